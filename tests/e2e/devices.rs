//! The device plugin: the resources of a node, the devices of a pod, and the report of a VM without the resource.

use super::harness::vm::condition;
use super::harness::{Space, e2e, environment, eventually, kubectl};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

pub const KVM: &str = "vmoperator.jdrupes.org/kvm";
pub const TUN: &str = "vmoperator.jdrupes.org/tun";
const VHOST_NET: &str = "vmoperator.jdrupes.org/vhost-net";

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
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": space.name, "name": name},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 107, "runAsGroup": 107, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "qemu",
                "image": "localhost/vm-runner:0.1.0",
                "command": command,
                "resources": {"limits": resources},
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }],
        },
    });
    kubectl::create(&pod).await.unwrap();
    eventually(&format!("pod {name} finishes"), 60, async || {
        let pod = space.pods.get(name).unwrap_or_default();
        let ended =
            pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"].as_str();
        ended
            .map(str::to_owned)
            .ok_or_else(|| format!("{:#}", pod["status"]))
    })
    .await
}

/// The device could be opened for reading and writing, which is all that the device plugin permits. Creating an
/// interface needs a capability.
pub const OPENED: &str = "could not configure /dev/net/tun (t0): Operation not permitted";

#[test]
fn a_restricted_pod_gets_the_device_that_it_asks_for_and_no_other_pod_has_it() {
    e2e(0, async |space| {
        node_offers(TUN, slots("/dev/net/tun")).await;
        node_offers(VHOST_NET, slots("/dev/vhost-net")).await;
        let output = tap_in_pod(space, "asks", json!({TUN: "1"})).await;
        assert!(output.contains(OPENED), "{output}");
        let output = tap_in_pod(space, "asks-not", json!({})).await;
        assert!(
            output.contains("could not open /dev/net/tun: No such file or directory"),
            "{output}"
        );
    });
}

/// The number of times that the node's device plugin has registered a resource.
pub async fn registered(resource: &str) -> usize {
    let logs = [
        "--namespace",
        "kube-system",
        "logs",
        "daemonset/vm-device-plugin",
    ];
    let lines = kubectl::try_run(&logs).await.unwrap_or_default();
    lines
        .lines()
        .filter(|line| line.contains("\"registered\"") && line.contains(resource))
        .count()
}

pub async fn registers_again(resource: &str, before: usize) {
    eventually(
        &format!("the plugin registers {resource} again"),
        60,
        async || {
            let times = registered(resource).await;
            if times > before {
                Ok(())
            } else {
                Err(format!("{times} times"))
            }
        },
    )
    .await;
}

/// A second plugin for kvm only, without access to the node's devices: the kubelet then has none of them. It runs in
/// the given new namespace.
async fn hide_kvm(space: &Space, more: &[&str]) -> String {
    let namespace = format!("{}-plugin", space.name);
    if kubectl::try_run(&["get", "namespace", &namespace])
        .await
        .is_err()
    {
        kubectl::run(&["create", "namespace", &namespace]).await;
    }
    let args = [
        &[
            "device-plugin",
            "--device=kvm",
            "--host-dev=/nowhere",
            "--log-format=json",
        ],
        more,
    ]
    .concat();
    let patch =
        json!([{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": args}]);
    let kustomization = json!({
        "namespace": namespace,
        "resources": ["../../../deploy/device-plugin"],
        "patches": [{"target": {"kind": "DaemonSet"}, "patch": patch.to_string()}],
    });
    let dir = environment::overlays_dir().join(&namespace);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("kustomization.yaml"), kustomization.to_string()).unwrap();
    kubectl::run(&["apply", "--kustomize", &dir.display().to_string()]).await;
    namespace
}

#[test]
fn a_vm_that_asks_for_kvm_where_no_node_has_it_says_so_and_runs_emulated_where_that_is_offered() {
    e2e(1, async |space| {
        node_offers(KVM, slots("/dev/kvm")).await;
        let namespace = hide_kvm(space, &[]).await;
        node_offers(KVM, "0").await;

        space
            .configure(&json!({"accelerator": {"policy": "auto", "kvmResource": KVM}}))
            .await;
        let vm = space.create("vm", json!({})).await;
        let ready = condition(
            &vm.wait_for_reason("AcceleratorResourceMissing", 60).await,
            "Ready",
        );
        let message = ready["message"].as_str().unwrap_or_default();
        for text in [
            KVM,
            "install the device plugin on nodes that have /dev/kvm",
            "or set accelerator.policy to tcg",
        ] {
            assert!(message.contains(text), "{message}");
        }

        hide_kvm(space, &["--offer-without-device=kvm"]).await;
        node_offers(KVM, "1k").await;
        let accelerated = condition(&vm.booted().await, "Accelerated");
        assert_eq!(
            (&accelerated["status"], &accelerated["reason"]),
            (&json!("False"), &json!("KvmNotAvailable"))
        );

        let before = registered(KVM).await;
        kubectl::run(&["delete", "namespace", &namespace, "--wait=false"]).await;
        registers_again(KVM, before).await;
        node_offers(KVM, slots("/dev/kvm")).await;
        drop(fs::remove_dir_all(
            environment::overlays_dir().join(&namespace),
        ));
    });
}
