//! The decision, with a script that is the child.

use crate::runner::kvm::*;
use std::future::pending;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A program in place of the runner, in a directory of its own.
struct Child {
    dir: tempfile::TempDir,
    program: PathBuf,
}

impl Child {
    fn new(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("vm-runner");
        let script = format!(
            "#!/bin/sh\ncd {}\necho \"$*\" >>calls\n{script}\n",
            dir.path().display()
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { dir, program }
    }

    async fn select(&self, accelerator: Accelerator) -> Result<Acceleration, Failure> {
        let kvm_check = KvmCheck {
            program: &self.program,
            device: Path::new("/dev/kvm"),
        };
        select_acceleration(accelerator, kvm_check, pending()).await
    }

    fn calls(&self) -> Vec<String> {
        let calls = std::fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }
}

fn fallback(selected: Result<Acceleration, Failure>) -> Problem {
    match selected.unwrap() {
        Acceleration::TcgFallback(problem) => problem,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_check_that_passes_selects_kvm_and_each_policy_has_its_extent() {
    let child = Child::new(r#"echo '{"Begin":"Open"}'; echo '"Passed"'"#);
    for accelerator in [Accelerator::Auto, Accelerator::Kvm] {
        assert_eq!(child.select(accelerator).await, Ok(Acceleration::Kvm));
    }
    let full = "kvm-check --device /dev/kvm --steps";
    assert_eq!(child.calls(), [full.to_owned(), format!("{full} --basic")]);
    assert_eq!(child.select(Accelerator::Tcg).await, Ok(Acceleration::Tcg));
    assert_eq!(
        child.select(Accelerator::Unset).await,
        Ok(Acceleration::Unset)
    );
    assert_eq!(child.calls().len(), 2, "no check without need");
}

#[tokio::test]
async fn a_failed_step_emulates_the_guest_or_ends_the_start_with_the_step() {
    for (step, text, reason) in [
        ("Open", "", ConditionReason::KvmNotAvailable),
        (
            "RealMode",
            "\"run a program in real mode\": ",
            ConditionReason::KvmDoesNotWork,
        ),
        (
            "Fninit",
            "\"run FNINIT in 64-bit mode\": ",
            ConditionReason::KvmDoesNotWork,
        ),
    ] {
        let script = format!(
            r#"echo '{{"Begin":"{step}"}}'; echo '{{"Failed":{{"step":"{step}","why":"cause"}}}}'"#
        );
        let child = Child::new(&script);
        let problem = fallback(child.select(Accelerator::Auto).await);
        assert_eq!(problem.reason, reason);
        assert!(
            problem.message.ends_with(&format!("{text}cause")),
            "{}",
            problem.message
        );
        let failure = child.select(Accelerator::Kvm).await.unwrap_err();
        assert_eq!(failure.reason, EndReason::AcceleratorUnavailable);
        let next = "cause. Repair KVM on the node. To permit emulation instead, set accelerator.policy to auto in the operator's ConfigMap";
        assert!(failure.message.ends_with(next), "{failure}");
        assert_eq!(child.calls().len(), 2, "a result is not checked again");
    }
}

#[tokio::test]
async fn a_child_that_kvm_ends_fails_the_step_that_it_was_in() {
    let child = Child::new(r#"echo '{"Begin":"CreateVm"}'; kill -BUS $$"#);
    let problem = fallback(child.select(Accelerator::Auto).await);
    assert_eq!(problem.reason, ConditionReason::KvmDoesNotWork);
    let end = "\"create a VM\": the process of the KVM check exited with signal 7; ";
    assert!(problem.message.contains(end), "{}", problem.message);
}

#[tokio::test]
async fn a_check_that_does_not_end_is_tried_once_more_and_then_unknown() {
    let child = Child::new(r#"echo '{"Begin":"LongMode"}'; exec sleep 600"#);
    let began = Instant::now();
    let problem = fallback(child.select(Accelerator::Auto).await);
    assert!(began.elapsed() >= CHECK_TIMEOUT * 2);
    assert_eq!(
        (problem.reason, child.calls().len()),
        (ConditionReason::KvmCheckTimedOut, 2)
    );
    assert!(
        problem
            .message
            .contains("the last check at the step \"run a program in 64-bit mode\""),
        "{}",
        problem.message
    );
}

#[tokio::test]
async fn a_check_that_ends_in_the_second_attempt_counts() {
    let child = Child::new(r#"[ $(wc -l <calls) = 1 ] && exec sleep 600; echo '"Passed"'"#);
    assert_eq!(child.select(Accelerator::Auto).await, Ok(Acceleration::Kvm));
    assert_eq!(child.calls().len(), 2);
}

#[tokio::test]
async fn a_request_to_stop_ends_the_check_and_its_child() {
    let child = Child::new("echo $$ >part; mv part pid; exec sleep 600");
    let pid = child.dir.path().join("pid");
    let kvm_check = KvmCheck {
        program: &child.program,
        device: Path::new("/dev/kvm"),
    };
    let request = async {
        while !pid.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let stopped = select_acceleration(Accelerator::Kvm, kvm_check, request)
        .await
        .unwrap_err();
    assert_eq!(stopped.reason, EndReason::Stopped);
    let process = Path::new("/proc").join(std::fs::read_to_string(pid).unwrap().trim());
    // The runtime reaps it.
    while process.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn only_an_end_that_kvm_has_caused_gets_its_next_step() {
    let explained = |reason| {
        let outcome = Outcome {
            reason,
            message: "words".to_owned(),
            qemu_exit: Some(0),
            by_guest: false,
        };
        explain_end(outcome).message
    };
    assert!(
        explained(EndReason::AcceleratorUnavailable)
            .contains("the VM requires KVM, but words. Repair KVM on the node")
    );
    assert!(
        explained(EndReason::AcceleratorFailed)
            .starts_with("words; the operator starts the VM again. If KVM fails again")
    );
    assert_eq!(explained(EndReason::GuestHalted), "words");
}
