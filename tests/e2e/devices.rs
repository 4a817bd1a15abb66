//! The device plugin: the resources of a node, and the devices of a pod.

use super::harness::{Space, e2e, eventually, kubectl};
use serde_json::{Value, json};
use std::path::Path;

pub const KVM: &str = "vmoperator.jdrupes.org/kvm";
pub const KVM_IF_PRESENT: &str = "vmoperator.jdrupes.org/kvm-if-present";
pub const TUN: &str = "vmoperator.jdrupes.org/tun";

/// The allocatable amount of a resource, or `None` if the node does not have the resource.
async fn allocatable(resource: &str) -> Option<String> {
    let nodes: Value =
        serde_json::from_str(&kubectl::run(&["get", "nodes", "--output", "json"]).await).unwrap();
    nodes["items"][0]["status"]["allocatable"][resource]
        .as_str()
        .map(str::to_owned)
}

pub async fn node_offers(resource: &str, amount: &str) {
    eventually(
        &format!("the node offers {amount} of {resource}"),
        60,
        async || {
            let offered = allocatable(resource).await;
            if offered.as_deref() == Some(amount) {
                Ok(())
            } else {
                Err(format!("{offered:?}"))
            }
        },
    )
    .await;
}

/// The amount of a device on the node.
pub fn slots(device: &str) -> &'static str {
    if Path::new(device).exists() {
        "1k"
    } else {
        "0"
    }
}

/// Runs a container in a pod of the namespace. Returns its state when it has terminated: exit code, and the end of the log as
/// the message of a failure.
pub async fn run_in_pod(space: &Space, name: &str, mut container: Value) -> Value {
    container["name"] = json!("main");
    container["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": space.name, "name": name},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    });
    kubectl::create(&pod).await.unwrap();
    eventually(&format!("pod {name} finishes"), 60, async || {
        let pod = space.pods.get(name).unwrap_or_default();
        let state = pod["status"]["containerStatuses"][0]["state"]["terminated"].clone();
        if state.is_object() {
            Ok(state)
        } else {
            Err(format!("{:#}", pod["status"]))
        }
    })
    .await
}

/// The security context of a VM's container, which Pod Security `restricted` admits.
pub fn restricted() -> Value {
    json!({
        "runAsNonRoot": true, "runAsUser": 107, "runAsGroup": 107, "seccompProfile": {"type": "RuntimeDefault"},
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
    })
}

/// The error of a QEMU that opens `/dev/net/tun`, in a pod that passes the namespace's Pod Security and requests these
/// resources.
pub async fn tap_in_pod(space: &Space, name: &str, resources: Value) -> String {
    let qemu = [
        "/usr/bin/qemu-system-x86_64",
        "-accel",
        "tcg",
        "-nodefaults",
        "-display",
        "none",
    ];
    let tap = ["-netdev", "tap,id=net,ifname=t0,script=no,downscript=no"];
    let command = [&qemu[..], &tap[..]].concat();
    let container = json!({
        "image": concat!("localhost/vm-runner:", env!("CARGO_PKG_VERSION")),
        "command": command,
        "resources": {"limits": resources},
        "securityContext": restricted(),
    });
    let state = run_in_pod(space, name, container).await;
    state["message"].as_str().unwrap_or_default().to_owned()
}

/// The device could be opened for reading and writing, which is all that the device plugin permits. Creating an
/// interface needs a capability.
pub const OPENED: &str = "could not configure /dev/net/tun (t0): Operation not permitted";

#[test]
fn a_restricted_pod_gets_the_device_that_it_asks_for_and_no_other_pod_has_it() {
    e2e(0, async |space| {
        node_offers(TUN, slots("/dev/net/tun")).await;
        node_offers(KVM, slots("/dev/kvm")).await;
        node_offers(KVM_IF_PRESENT, "1k").await;
        let output = tap_in_pod(space, "asks", json!({TUN: "1"})).await;
        assert!(output.contains(OPENED), "{output}");
        let output = tap_in_pod(space, "asks-not", json!({})).await;
        assert!(
            output.contains("could not open /dev/net/tun: No such file or directory"),
            "{output}"
        );
    });
}

/// The container of the node's device plugin.
pub async fn plugin_container() -> Value {
    let args = [
        "get",
        "pods",
        "--namespace",
        "kube-system",
        "--selector",
        "app.kubernetes.io/name=vm-device-plugin",
        "--output",
        "json",
    ];
    let pods: Value = serde_json::from_str(&kubectl::run(&args).await).unwrap();
    pods["items"][0]["status"]["containerStatuses"][0].clone()
}
