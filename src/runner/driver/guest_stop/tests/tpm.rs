//! Ends of the TPM.

use super::*;

#[tokio::test]
async fn a_qemu_that_crashes_takes_its_tpm_along_whichever_is_reaped_first() {
    for apart in [false, true] {
        let mut rig = rig().await;
        let (tpm, qemu) = (rig.take_tpm("Data client disconnected"), rig.qemu());
        rig.driver.qemu.signal(Signal::KILL);
        match apart {
            false => rig.driver.handle_exits(&[(tpm, 0), (qemu, -11)]).await,
            true => {
                rig.driver.handle_exits(&[(tpm, 0)]).await;
                rig.driver.handle_exits(&[(qemu, -11)]).await;
            }
        }
        assert_eq!(
            rig.driver.outcome.take().unwrap().reason,
            EndReason::QemuCrashed
        );
        let nothing = tokio::time::timeout(
            Duration::from_secs(1),
            rig.until("running", |d| d.observed.tpm.is_some()),
        );
        assert!(nothing.await.is_err());
    }
}

#[tokio::test]
async fn tpm_exit_before_the_guest_runs_is_reported_after_the_start() {
    let mut rig = starting().await;
    let tpm = rig.take_tpm("killed");
    rig.driver.handle_exits(&[(tpm, -9)]).await;
    let nothing = tokio::time::timeout(
        Duration::from_secs(1),
        rig.until("running", |d| d.observed.tpm.is_some()),
    );
    assert!(nothing.await.is_err());
    rig.driver.step(Event::Configured);
    rig.driver.step(Event::Continued);
    rig.until("running", |driver| driver.observed.tpm.is_some())
        .await;
}

#[tokio::test]
async fn failed_start_is_reported_with_the_tpm_error_output() {
    let mut rig = starting().await;
    let (tpm, qemu) = (rig.take_tpm("libtpms: bad magic"), rig.qemu());
    rig.driver.qemu.signal(Signal::KILL);
    rig.driver.handle_exits(&[(tpm, 1)]).await;
    rig.driver.handle_exits(&[(qemu, 1)]).await;
    let outcome = rig.driver.outcome.take().unwrap();
    assert_eq!(outcome.reason, EndReason::StartFailed);
    for words in [WORDS, "libtpms: bad magic", "tpm2-00.permall"] {
        assert!(outcome.message.contains(words), "{}", outcome.message);
    }
    assert_eq!(rig.driver.observed.tpm, None);
}

#[tokio::test]
async fn start_timeout_message_contains_the_tpm_output() {
    let mut rig = starting().await;
    let (tpm, qemu) = (rig.take_tpm("libtpms: bad magic"), rig.qemu());
    rig.driver
        .step(Event::ContinueFailed("too late".to_owned()));
    rig.driver.qemu.signal(Signal::KILL);
    rig.driver.handle_exits(&[(tpm, 1)]).await;
    rig.driver.handle_exits(&[(qemu, -9)]).await;
    let outcome = rig.driver.outcome.take().unwrap();
    assert!(
        outcome.message.contains("libtpms: bad magic"),
        "{}",
        outcome.message
    );
}
