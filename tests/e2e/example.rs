//! The first example of `examples/`, unchanged.

use super::harness::disk::Counts;
use super::harness::space::CPU_OVERCOMMIT;
use super::harness::vm::{BOOT, Vm, condition};
use super::harness::{e2e, environment};
use serde_json::{Value, json};

#[test]
fn the_example_boots_and_its_status_says_so() {
    e2e(1, async |space| {
        let labels = json!({
            "app.kubernetes.io/name": "vmrunner",
            "app.kubernetes.io/instance": "test-vm",
            "vmrunner.jdrupes.org/disk": "system",
        });
        let disk = space.tiny_disk("test-vm", &labels).await;
        let example = environment::repo()
            .join("examples/test-vm.yaml")
            .display()
            .to_string();
        space.kubectl(&["apply", "--filename", &example]).await;
        let vm = Vm {
            space,
            name: "test-vm".to_owned(),
            disk,
        };

        vm.wait_for_reason("Running", BOOT).await;
        let status = vm.booted().await["status"].take();
        let pod = vm.pod().unwrap();
        assert_eq!(status["osinfo"]["id"], "tiny", "{status:#}");
        assert_eq!(status["cpus"], 2, "{status:#}");
        assert_eq!(status["nodeName"], pod["spec"]["nodeName"], "{status:#}");
        assert_eq!(status["podIP"], pod["status"]["podIP"], "{status:#}");
        assert_eq!(
            status["runnerVersion"],
            env!("CARGO_PKG_VERSION"),
            "{status:#}"
        );
        let expected = [
            ("Ready", "True"),
            ("Running", "True"),
            ("Booted", "True"),
            ("VmopAgentConnected", "False"),
            ("UserLoggedIn", "False"),
            ("ConsoleConnected", "False"),
        ];
        for (type_, expected) in expected {
            assert_eq!(
                condition(&vm.now(), type_)["status"],
                expected,
                "{type_}: {status:#}"
            );
        }
        // The balloon needs the guest's driver, so it may follow the agent's response.
        vm.until("has the memory that is wanted", BOOT, |vm| {
            vm["status"]["ram"] == "4Gi"
        })
        .await;
        assert_eq!(
            vm.counts().await,
            Counts {
                boot: 1,
                shutdowns: 0
            }
        );
        let requests = &pod["spec"]["containers"][0]["resources"]["requests"];
        assert_eq!(
            requests["cpu"],
            format!("{}m", 2 * 1000 / CPU_OVERCOMMIT),
            "as in the operator's ConfigMap"
        );
        the_columns_say_it(&vm).await;
        the_pod_is_restricted_and_needs_no_flag_to_be_drained(&vm, &pod).await;
    });
}

const COLUMNS: [&str; 11] = [
    "NAME",
    "STATE",
    "STATUS",
    "BOOTED",
    "ACCELERATION",
    "CPUS",
    "RAM",
    "NODE",
    "IP",
    "AGE",
    "MESSAGE",
];

async fn the_columns_say_it(vm: &Vm<'_>) {
    let table = vm.space.kubectl(&["get", "vms", "--output", "wide"]).await;
    let columns = |line: usize| -> Vec<&str> {
        table
            .lines()
            .nth(line)
            .unwrap_or_default()
            .split_whitespace()
            .collect()
    };
    assert_eq!(columns(0), COLUMNS, "{table}");
    let acceleration = condition(&vm.now(), "Accelerated")["reason"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let ip = vm.now()["status"]["podIP"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let node = vm.now()["status"]["nodeName"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert_eq!(
        columns(1)[..9],
        [
            "test-vm",
            "Running",
            "Running",
            "True",
            &acceleration,
            "2",
            "4Gi",
            &node,
            &ip
        ],
        "{table}"
    );
}

async fn the_pod_is_restricted_and_needs_no_flag_to_be_drained(vm: &Vm<'_>, pod: &Value) {
    let label = r"jsonpath={.metadata.labels.pod-security\.kubernetes\.io/enforce}";
    let enforced = vm
        .space
        .kubectl(&["get", "namespace", &vm.space.name, "--output", label])
        .await;
    assert_eq!(enforced, "restricted");
    for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
        assert!(
            volume["emptyDir"].is_null() && volume["hostPath"].is_null(),
            "{volume}"
        );
    }
    // The firmware's variables and the VM's UUID are on a volume. No other file of the runner outlives the pod.
    assert_eq!(
        pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"],
        true
    );
}
