//! The steps on a KVM that answers at the system call.

use crate::runner::kvm::check::*;
use crate::sys::kvm::fake::{self, Answer};
use kvm_bindings::{KVM_EXIT_INTERNAL_ERROR, KVM_EXIT_SHUTDOWN};

/// The result of the steps after the opening, their names, and the requests.
fn steps(answers: &[(u8, Answer)], extent: Extent) -> (Result<(), FailedStep>, Vec<Step>, Vec<u8>) {
    let kvm = kvm::kvm(tempfile::tempfile().unwrap());
    let mut begun = Vec::new();
    let work = || run_on(&kvm, extent, &mut |step| begun.push(step));
    let (result, calls) = fake::with_answers(answers, work);
    (result, begun, calls)
}

fn failed(answers: &[(u8, Answer)]) -> FailedStep {
    steps(answers, Extent::Full).0.unwrap_err()
}

#[test]
fn a_kvm_that_works_passes_all_steps_of_the_extent() {
    let (result, begun, calls) = steps(&[], Extent::Full);
    assert_eq!((result, begun.as_slice()), (Ok(()), &Step::VARIANTS[1..]));
    assert_eq!(calls.iter().filter(|call| **call == fake::RUN).count(), 5);
    let (result, begun, calls) = steps(&[], Extent::Basic);
    assert_eq!((result, begun.last()), (Ok(()), Some(&Step::RealMode)));
    assert_eq!(calls.iter().filter(|call| **call == fake::RUN).count(), 1);
}

#[test]
fn each_errno_of_each_request_fails_the_step_that_makes_it() {
    let errnos = [
        libc::EACCES,
        libc::EBADF,
        libc::EBUSY,
        libc::EEXIST,
        libc::EFAULT,
        libc::EINVAL,
        libc::EIO,
        libc::EMFILE,
        libc::ENOENT,
        libc::ENOEXEC,
        libc::ENOMEM,
        libc::ENOSYS,
        libc::ENOTTY,
        libc::ENXIO,
        libc::EOPNOTSUPP,
        libc::EPERM,
        libc::E2BIG,
    ];
    for (request, step) in [
        (fake::GET_API_VERSION, Step::Interface),
        (fake::CREATE_VM, Step::CreateVm),
        (fake::GET_VCPU_MMAP_SIZE, Step::CreateVm),
        (fake::SET_USER_MEMORY_REGION, Step::CreateVcpu),
        (fake::CREATE_VCPU, Step::CreateVcpu),
        (fake::GET_SUPPORTED_CPUID, Step::CreateVcpu),
        (fake::SET_CPUID2, Step::CreateVcpu),
        (fake::GET_SREGS, Step::CreateVcpu),
        (fake::SET_SREGS, Step::CreateVcpu),
        (fake::SET_REGS, Step::CreateVcpu),
        (fake::RUN, Step::RealMode),
    ] {
        for errno in errnos {
            let failed = failed(&[(request, Answer::Errno(errno))]);
            let text = std::io::Error::from_raw_os_error(errno).to_string();
            assert_eq!(failed.step, step, "{request:#x} {errno}");
            assert!(
                failed.why.contains(&text),
                "{request:#x} {errno}: {}",
                failed.why
            );
        }
    }
}

#[test]
fn an_interrupted_call_is_repeated() {
    for errno in [libc::EINTR, libc::EAGAIN] {
        for (request, answer) in [
            (fake::CREATE_VM, Answer::Descriptor),
            (fake::RUN, Answer::Exit(kvm_bindings::KVM_EXIT_HLT)),
        ] {
            let answers = [
                (request, Answer::Errno(errno)),
                (request, Answer::Errno(errno)),
                (request, answer),
            ];
            assert_eq!(
                steps(&answers, Extent::Full).0,
                Ok(()),
                "{request:#x} {errno}"
            );
        }
    }
}

#[test]
fn known_causes_have_a_next_step() {
    for (errno, next) in [
        (libc::EBUSY, "another hypervisor"),
        (libc::ENOMEM, "free some memory"),
    ] {
        let failed = failed(&[(fake::CREATE_VM, Answer::Errno(errno))]);
        assert!(failed.why.contains(next), "{}", failed.why);
    }
    let failed = failed(&[(fake::GET_API_VERSION, Answer::Value(11))]);
    assert!(
        failed.why.contains("version 11, but QEMU needs version 12"),
        "{}",
        failed.why
    );
}

#[test]
fn an_instruction_that_kvm_does_not_execute_fails_its_step_with_the_kernels_reason() {
    let halt = (fake::RUN, Answer::Exit(kvm_bindings::KVM_EXIT_HLT));
    for (n, step) in [
        Step::RealMode,
        Step::LongMode,
        Step::Fninit,
        Step::Cmpxchg16b,
        Step::Xsave,
    ]
    .into_iter()
    .enumerate()
    {
        let answers = |exit: u32| [vec![halt; n], vec![(fake::RUN, Answer::Exit(exit))]].concat();
        let failed = failed(&answers(KVM_EXIT_INTERNAL_ERROR));
        assert_eq!(failed.step, step);
        assert!(
            failed.why.starts_with(
                "KVM cannot execute a test instruction (KVM internal error, suberror 0"
            ),
            "{}",
            failed.why
        );
        let failed = self::failed(&answers(KVM_EXIT_SHUTDOWN));
        assert!(
            failed.step == step && failed.why.contains("exit reason Shutdown; "),
            "{failed:?}"
        );
        // A VM that must have KVM is not kept from it by long mode.
        let basic = steps(&answers(KVM_EXIT_INTERNAL_ERROR), Extent::Basic).0;
        assert_eq!(basic.is_err(), step == Step::RealMode);
    }
}

#[test]
fn a_device_that_is_not_kvms_fails_the_first_step() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kvm");
    std::fs::write(&file, "").unwrap();
    for (device, text) in [
        (Path::new("/none/kvm"), "the pod has no /none/kvm"),
        (
            Path::new("/dev/null"),
            "device number 1:3, but KVM has 10:232",
        ),
        (&file, "is not a character device"),
    ] {
        let mut begun = Vec::new();
        let failed = run(device, Extent::Full, &mut |step| begun.push(step)).unwrap_err();
        assert_eq!(
            (failed.step, begun.as_slice()),
            (Step::Open, &[Step::Open][..])
        );
        assert!(failed.why.contains(text), "{}", failed.why);
    }
}
