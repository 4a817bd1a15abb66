use crate::api::conditions::ConditionReason;
use crate::runner::config;
use crate::runner::harden::FileAccess;
use crate::runner::kvm::*;
use crate::runner::machine::KVM_PROBE_IMAGE;
use std::future::pending;
use std::os::unix::fs::PermissionsExt;

/// A program in place of QEMU, and the directory that it is in.
struct Fake {
    dir: tempfile::TempDir,
    program: &'static str,
}

impl Fake {
    fn new(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("qemu");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = path.display().to_string().leak();
        Self { dir, program }
    }

    fn kvm_test<'a>(&self, device: &'a str) -> KvmTest<'a> {
        let mut files = FileAccess::of_programs();
        files.extend(
            [Access::Execute, Access::Manage].map(|access| (self.dir.path().to_owned(), access)),
        );
        let guest = self.dir.path().join(KVM_PROBE_IMAGE);
        KvmTest {
            program: self.program,
            device: Path::new(device),
            files,
            guest,
            time: KVM_TEST_TIMEOUT,
        }
    }

    async fn select_acceleration(&self, device: &str, vm: &str) -> Result<Acceleration, Failure> {
        select_acceleration(&spec(vm), self.kvm_test(device), pending()).await
    }

    /// The problem that the file of KVM's own device has with it.
    async fn problem(&self, vm: &str) -> Option<Problem> {
        let spec = spec(vm);
        // As if the device were there.
        self.kvm_test("/dev/null").of_guest(&spec).await
    }
}

fn spec(vm: &str) -> Spec {
    let text = format!("\"/Runner\":\n  vm: {{name: test-vm, {vm}}}\n");
    Spec::from_config(&config::parse(&text).unwrap().config).unwrap()
}

fn instead(settled: Result<Acceleration, Failure>) -> Problem {
    match settled.unwrap() {
        Acceleration::TcgFallback(problem) => problem,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn without_a_device_that_is_kvms_nothing_is_tried_and_the_guest_is_emulated() {
    let qemu = Fake::new("touch $(dirname $0)/started; exit 85");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kvm").display().to_string();
    std::fs::write(&file, "").unwrap();
    for (device, word) in [
        ("/none/kvm", "the pod has no /none/kvm"),
        ("/dev/null", "device 1:3 and not KVM's"),
        (&file, "is no device"),
    ] {
        let problem = instead(qemu.select_acceleration(device, "accelerator: auto").await);
        assert_eq!(problem.reason, ConditionReason::KvmNotAvailable);
        assert!(problem.message.contains(word), "{}", problem.message);
        let failure = qemu
            .select_acceleration(device, "accelerator: kvm")
            .await
            .unwrap_err();
        assert_eq!(failure.reason, EndReason::AcceleratorUnavailable);
        assert!(
            failure.message.contains(word) && failure.message.contains("use accelerator auto"),
            "{failure}"
        );
    }
    assert_eq!(
        qemu.select_acceleration("/none/kvm", "accelerator: tcg")
            .await,
        Ok(Acceleration::Tcg)
    );
    assert_eq!(
        qemu.select_acceleration("/none/kvm", "accelerator: none")
            .await,
        Ok(Acceleration::Unset)
    );
    assert!(!qemu.dir.path().join("started").exists());
}

#[tokio::test]
async fn a_guest_that_comes_to_its_end_is_what_counts() {
    assert_eq!(Fake::new("exit 85").problem("accelerator: kvm").await, None);
    // A guest that resets the machine ends QEMU, too.
    let problem = Fake::new("exit 0")
        .problem("accelerator: kvm")
        .await
        .unwrap();
    assert_eq!(problem.reason, ConditionReason::KvmDoesNotWork);
}

#[tokio::test]
async fn a_qemu_that_aborts_is_told_with_its_words() {
    let qemu = Fake::new("echo 'error: failed to set MSR 0x10a' >&2; kill -ABRT $$");
    let problem = qemu.problem("accelerator: auto").await.unwrap();
    assert_eq!(problem.reason, ConditionReason::KvmDoesNotWork);
    assert!(
        problem
            .message
            .ends_with("QEMU ended with signal 6: error: failed to set MSR 0x10a"),
        "{}",
        problem.message
    );
    assert!(!qemu.dir.path().join(KVM_PROBE_IMAGE).exists());
}

#[tokio::test]
async fn a_cpu_that_comes_to_a_halt_is_not_waited_for() {
    let registers = "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do echo EAX=$n >&2; done; sleep 60";
    let qemu = Fake::new(&format!(
        "echo 'KVM internal error. Suberror: 1' >&2; {registers}"
    ));
    let problem = qemu.problem("accelerator: auto").await.unwrap();
    // A QEMU that is waited for is reported as one that hangs.
    assert!(
        problem
            .message
            .ends_with("guest's CPU: KVM internal error. Suberror: 1"),
        "{}",
        problem.message
    );
}

#[tokio::test(start_paused = true)]
async fn a_qemu_that_hangs_is_ended_after_5_seconds() {
    let qemu = Fake::new("exec sleep 600");
    let began = Instant::now();
    let problem = qemu
        .problem("accelerator: auto, cpuModel: EPYC")
        .await
        .unwrap();
    let took = began.elapsed();
    assert!(
        problem.message.contains("not done within 5 s"),
        "{}",
        problem.message
    );
    assert!(
        took >= probe::QEMU_TEST_TIMEOUT && took < probe::QEMU_TEST_TIMEOUT * 2,
        "{took:?}"
    );
}

#[tokio::test]
async fn a_trial_that_is_given_up_kills_and_reaps_its_qemu() {
    let qemu = Fake::new(
        "echo $$ > $(dirname $0)/part; mv $(dirname $0)/part $(dirname $0)/pid; exec sleep 600",
    );
    let (path, spec, kvm_test) = (
        qemu.dir.path().join("pid"),
        spec("accelerator: kvm"),
        qemu.kvm_test("/dev/null"),
    );
    let runs = async {
        while !path.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        problem = kvm_test.of_guest(&spec) => panic!("{problem:?}"),
        () = runs => {}
    }
    let pid = std::fs::read_to_string(path).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists());
}

#[tokio::test]
async fn a_model_that_the_host_refuses_is_told_with_those_that_work() {
    let script = r#"case "$*" in
*fd=3*) while read -r question; do case $question in *quit*) break;; esac; done <&3
    echo '{"return": {}}' >&3
    echo '{"return": [{"name": "EPYC", "unavailable-features": []}, {"name": "Haswell", "unavailable-features": ["tsx"]}]}' >&3;;
*-cpu\ host*) exit 85;;
*) echo "qemu: Host doesn't support requested features" >&2; exit 1;;
esac"#;
    let qemu = Fake::new(script);
    let problem = qemu
        .problem("accelerator: kvm, cpuModel: 'Haswell,enforce'")
        .await
        .unwrap();
    assert_eq!(problem.reason, ConditionReason::CpuModelRefused);
    for word in [
        "\"Haswell,enforce\"",
        "support requested features",
        "those that work: EPYC",
    ] {
        assert!(problem.message.contains(word), "{}", problem.message);
    }
    // The host's own model is not compared with itself.
    let broken = Fake::new("exit 1")
        .problem("accelerator: kvm, cpuModel: host")
        .await
        .unwrap();
    assert_eq!(broken.reason, ConditionReason::KvmDoesNotWork);
}

#[tokio::test]
async fn all_that_is_tried_has_one_end() {
    let script = r#"case "$*" in
*fd=3*) sleep 1; echo '{"return": {}}' >&3; echo '{"return": [{"name": "EPYC", "unavailable-features": []}]}' >&3;;
*-cpu\ host*) exit 85;;
*) echo "qemu: Host doesn't support requested features" >&2; exit 1;;
esac"#;
    let qemu = Fake::new(script);
    let kvm_test = KvmTest {
        time: Duration::ZERO,
        ..qemu.kvm_test("/dev/null")
    };
    let problem = kvm_test
        .of_guest(&spec("accelerator: kvm, cpuModel: EPYC"))
        .await
        .unwrap();
    assert_eq!(problem.reason, ConditionReason::CpuModelRefused);
    // The list of models, which alone would have 5 s, is not waited for.
    assert!(
        !problem.message.contains("those that work"),
        "{}",
        problem.message
    );
}
