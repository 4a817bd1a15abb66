//! Ends that KVM has caused.

use crate::runner::state::tests::*;

/// QEMU's last words when it aborts because of KVM.
const ABORT: &str = "error: failed to set MSR 0x10a to 0xe0000e9; qemu-system-x86_64: ../target/i386/kvm/kvm.c:3213: \
    kvm_buf_set_msrs: Assertion `ret == cpu->kvm_msr_buf->nmsrs' failed.";

fn exited(second: u64, status: i32, last_output: &str) -> (u64, Event) {
    let last_output = last_output.to_owned();
    let event = Event::QemuExited {
        status,
        last_output,
    };
    (second, event)
}

fn failed(second: u64) -> Vec<(u64, Event)> {
    let why = "KVM cannot resume the guest".to_owned();
    vec![(second, Event::KvmFailed(why)), exited(second + 1, 0, "")]
}

fn reason(events: &[(u64, Event)]) -> EndReason {
    outcome(&play_with_kvm(events).1).reason
}

#[test]
fn a_qemu_that_ends_and_names_kvm_means_that_acceleration_is_unavailable() {
    for words in [
        ABORT,
        "qemu-system-x86_64: failed to initialize kvm: Device or resource busy",
        "Could not access KVM kernel module: Permission denied",
        "kvm run failed Bad address",
        "qemu-system-x86_64: kernel doesn't allow setting HyperV VP_INDEX",
        "KVM: entry failed, hardware error 0x80000021",
    ] {
        assert_eq!(
            reason(&[exited(1, 1, words)]),
            EndReason::AcceleratorUnavailable,
            "{words}"
        );
    }
    let (_, actions) = play_with_kvm(&[booting(), vec![exited(120, -6, ABORT)]].concat());
    let end = outcome(&actions);
    assert_eq!(end.reason, EndReason::AcceleratorUnavailable);
    assert!(
        end.message
            .starts_with("QEMU exited with signal 6, because KVM has failed: error"),
        "{}",
        end.message
    );
    assert!(end.message.ends_with(ABORT), "{}", end.message);
}

#[test]
fn another_end_of_qemu_and_one_without_kvm_keep_their_reasons() {
    assert_eq!(
        reason(&[exited(1, 1, "Could not open '/data/disk'")]),
        EndReason::StartFailed
    );
    assert_eq!(
        reason(&[exited(1, 1, "Host doesn't support requested features")]),
        EndReason::StartFailed
    );
    // QEMU continues after a warning.
    let warning = "qemu-system-x86_64: -accel kvm: warning: Number of hotpluggable cpus requested (4) exceeds the recommended cpus \
        supported by KVM (2); could not open disk";
    assert_eq!(reason(&[exited(1, 1, warning)]), EndReason::StartFailed);
    assert_eq!(
        reason(&[booting(), vec![exited(9, -11, "")]].concat()),
        EndReason::QemuCrashed
    );
    let (_, actions) = play(&[exited(1, -6, ABORT)]);
    assert_eq!(outcome(&actions).reason, EndReason::StartFailed);
}

#[test]
fn a_guest_that_kvm_cannot_continue_is_unavailable_acceleration_for_120_seconds_and_then_failed() {
    for (second, expected) in [
        (1, EndReason::AcceleratorUnavailable),
        (120, EndReason::AcceleratorUnavailable),
        (121, EndReason::AcceleratorFailed),
    ] {
        let events = [booting(), failed(second)].concat();
        assert_eq!(reason(&events), expected, "{second}");
        let (_, actions) = play_with_kvm(&events);
        assert!(actions.contains(&(second, Action::Quit)), "{actions:?}");
        assert_eq!(
            reason(&[booting(), vec![exited(second, -6, ABORT)]].concat()),
            expected,
            "{second}"
        );
    }
}

#[test]
fn a_requested_shutdown_stays_one_if_kvm_fails_in_it() {
    let events = [booting(), vec![(5, Event::Stop)], failed(6)].concat();
    assert_eq!(reason(&events), EndReason::Stopped);
}
