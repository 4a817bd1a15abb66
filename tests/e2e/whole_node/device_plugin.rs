//! A changed, missing or late device plugin, and devices that only a group of the node may open.

use super::device_ownership::DevicesOfRoot;
use crate::devices::{KVM, KVM_IF_PRESENT, TUN, node_offers, restricted, run_in_pod, slots};
use crate::harness::vm::condition;
use crate::harness::{
    Space, e2e, e2e_in_an_empty_namespace, e2e_with, environment, eventually, kubectl,
};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

const DAEMON_SET: &str = "daemonset/vm-device-plugin";

/// The device plugin of this project is installed again when this is dropped.
struct OwnPlugin;

impl Drop for OwnPlugin {
    fn drop(&mut self) {
        let plugin = environment::repo().join("deploy/device-plugin");
        let args = ["apply", "--kustomize", &plugin.display().to_string()];
        let applied = kubectl::command(&args).into_std().output();
        assert!(
            applied.is_ok_and(|output| output.status.success()),
            "the device plugin cannot be installed again: kubectl {args:?}"
        );
    }
}

impl OwnPlugin {
    /// Installs the plugin for a node without `/dev/kvm` and `/dev/net/tun`.
    async fn without_devices(space: &Space) -> Self {
        Self::with(space, &["--host-dev=/nowhere"]).await
    }

    /// Installs the plugin with these arguments.
    async fn with(space: &Space, more: &[&str]) -> Self {
        let args = [&["device-plugin", "--log-format=json"], more].concat();
        let patch = json!([{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": args}]);
        let kustomization = json!({
            "resources": ["../../../../deploy/device-plugin"],
            "patches": [{"target": {"kind": "DaemonSet"}, "patch": patch.to_string()}],
        });
        let dir = space.overlay_dir().join("plugin");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("kustomization.yaml"), kustomization.to_string()).unwrap();
        kubectl::run(&["apply", "--kustomize", &dir.display().to_string()]).await;
        is_rolled_out().await;
        Self
    }

    /// Removes the plugin.
    async fn absent() -> Self {
        kubectl::run(&[
            "delete",
            DAEMON_SET,
            "--namespace",
            "kube-system",
            "--timeout",
            "60s",
        ])
        .await;
        Self
    }
}

async fn is_rolled_out() {
    kubectl::run(&[
        "rollout",
        "status",
        DAEMON_SET,
        "--namespace",
        "kube-system",
        "--timeout",
        "60s",
    ])
    .await;
}

fn accelerator(resource: &str) -> Value {
    json!({"accelerator": {"policy": "auto", "kvmResource": resource}})
}

#[test]
fn a_vm_that_requests_kvm_without_a_node_that_has_it_reports_the_cause() {
    e2e_with(
        environment::SLOTS,
        "local",
        accelerator(KVM),
        async |space| {
            node_offers(KVM, slots("/dev/kvm")).await;
            let _own_plugin = OwnPlugin::without_devices(space).await;
            node_offers(KVM, "0").await;
            node_offers(KVM_IF_PRESENT, "1k").await;
            let vm = space.create("vm", json!({})).await;
            let ready = condition(
                &vm.wait_for_reason("AcceleratorResourceMissing", 60).await,
                "Ready",
            );
            let message = ready["message"].as_str().unwrap_or_default();
            for text in [
                KVM,
                "install cluster.yaml of the operator's release",
                "set accelerator.kvmResource",
            ] {
                assert!(message.contains(text), "{message}");
            }
        },
    );
}

/// Applies the shipped overlay `local` as a user does, with its configuration.
async fn install_shipped(space: &Space) {
    let kustomization = json!({
        "namespace": space.name,
        "resources": ["../../../deploy/overlays/local"],
    });
    let dir = space.overlay_dir();
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("kustomization.yaml"), kustomization.to_string()).unwrap();
    space
        .kubectl(&["apply", "--kustomize", &dir.display().to_string()])
        .await;
    space.operator().await;
}

#[test]
fn with_the_shipped_configuration_a_vm_waits_for_the_device_plugin_and_starts_when_it_registers() {
    e2e_in_an_empty_namespace(environment::SLOTS, async |space| {
        install_shipped(space).await;
        let own_plugin = OwnPlugin::absent().await;
        node_offers(KVM_IF_PRESENT, "0").await;
        let vm = space.create("vm", json!({})).await;
        let waiting = vm.wait_for_reason("AcceleratorResourceMissing", 60).await;
        let ready = condition(&waiting, "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        for text in [
            KVM_IF_PRESENT,
            "kubectl get daemonset vm-device-plugin -n kube-system",
            "accelerator.kvmResource",
        ] {
            assert!(message.contains(text), "{message}");
        }
        let preferred =
            "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution/0";
        let pod = vm.pod().unwrap();
        let expression = &pod.pointer(preferred).unwrap()["preference"]["matchExpressions"][0];
        assert_eq!(expression["key"], "vmoperator.jdrupes.org/kvm");

        drop(own_plugin);
        node_offers(KVM_IF_PRESENT, "1k").await;
        let accelerated = condition(&vm.booted().await, "Accelerated");
        let reason = accelerated["reason"].as_str().unwrap_or_default();
        let expected: &[&str] = match slots("/dev/kvm") {
            "0" => &["KvmNotAvailable"],
            // The runner has tried the device.
            _ => &["Kvm", "KvmDoesNotWork"],
        };
        assert!(expected.contains(&reason), "{accelerated}");

        // A running VM keeps its device.
        let pod = vm.pod_uid();
        let _own_plugin = OwnPlugin::absent().await;
        node_offers(KVM_IF_PRESENT, "0").await;
        vm.processed("Running").await;
        assert_eq!(vm.pod_uid(), pod);
    });
}

/// Mode, owner and identity of a file.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    mode: u32,
    owner: (u32, u32),
    inode: (u64, u64),
    number: u64,
}

impl Stat {
    fn of(path: &Path) -> Self {
        let found = fs::metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self {
            mode: found.mode(),
            owner: (found.uid(), found.gid()),
            inode: (found.dev(), found.ino()),
            number: found.rdev(),
        }
    }
}

/// Changes the mode of a device of the node. Dropping this restores it.
struct ChangedMode(PathBuf, u32);

impl ChangedMode {
    fn set(path: &str, mode: u32) -> Self {
        let before = Stat::of(Path::new(path)).mode;
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        Self(path.into(), before)
    }
}

impl Drop for ChangedMode {
    fn drop(&mut self) {
        let restored = fs::set_permissions(&self.0, PermissionsExt::from_mode(self.1));
        restored.unwrap_or_else(|e| panic!("{}: {e}", self.0.display()));
    }
}

/// The state of a container that runs the script.
async fn run_script(
    space: &Space,
    name: &str,
    script: &str,
    resources: Value,
    security: Value,
) -> Value {
    let container = json!({
        "image": "localhost/busybox:1",
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "resources": {"limits": resources},
        "securityContext": security,
    });
    run_in_pod(space, name, container).await
}

/// The devices of the node that the plugin offers, with their resources.
fn present_devices() -> Vec<(&'static str, &'static str)> {
    let devices = [("/dev/kvm", KVM_IF_PRESENT), ("/dev/net/tun", TUN)];
    let present = devices.into_iter();
    let present: Vec<_> = present
        .filter(|(path, _)| Path::new(path).exists())
        .collect();
    assert!(!present.is_empty(), "the node has none of {devices:?}");
    present
}

/// The state of a container of a restricted pod that opens the device of the resource. Its message names mode and owner of the device
/// also if it can be opened.
async fn open_device(space: &Space, pod: &str, (path, resource): (&str, &str)) -> Value {
    let script = format!("exec 2>/dev/termination-log; id >&2; ls -ln {path} >&2; exec 3<>{path}");
    run_script(space, pod, &script, json!({resource: "1"}), restricted()).await
}

#[test]
fn a_restricted_pod_opens_devices_that_only_a_group_of_the_node_may_open() {
    let present = present_devices();
    e2e(environment::SLOTS, async |space| {
        node_offers(TUN, slots("/dev/net/tun")).await;
        let _devices_of_root = DevicesOfRoot::switch_on();
        let _modes: Vec<_> = present
            .iter()
            .map(|(path, _)| ChangedMode::set(path, 0o660))
            .collect();
        let stat = || -> Vec<_> {
            let paths = present.iter();
            paths.map(|(path, _)| Stat::of(Path::new(path))).collect()
        };
        let before = stat();
        for (n, device) in present.iter().enumerate() {
            let state = open_device(space, &format!("opens-{n}"), *device).await;
            assert_eq!(state["exitCode"], 0, "{device:?}: {state}");
        }
        let own = Stat::of(Path::new("/run/vm-device-plugin"));
        assert_eq!((own.mode & 0o7777, own.owner), (0o700, (0, 0)));

        // Without its directory, the plugin offers the devices of the node.
        let options = ["--host-dev=/host/dev", "--device-dir=/nowhere"];
        let _own_plugin = OwnPlugin::with(space, &options).await;
        // The node's status still has the resources of the replaced plugin.
        let log = eventually("the plugin has registered each resource", 60, async || {
            let log = kubectl::run(&["logs", DAEMON_SET, "--namespace", "kube-system"]).await;
            let registered = [KVM, KVM_IF_PRESENT, TUN].map(|resource| {
                let line = format!(r#""registered","resource":"{resource}""#);
                log.contains(&line)
            });
            (registered == [true; 3]).then(|| log.clone()).ok_or(log)
        })
        .await;
        assert!(log.contains("pods get the node's device file"), "{log}");
        for (n, device) in present.iter().enumerate() {
            let state = open_device(space, &format!("fails-{n}"), *device).await;
            let message = state["message"].as_str().unwrap_or_default();
            if !message.contains("Permission denied") {
                let log = kubectl::run(&["logs", DAEMON_SET, "--namespace", "kube-system"]).await;
                panic!("{device:?}: {state}\n{log}");
            }
        }
        assert_eq!(stat(), before, "the node's devices are unchanged");
    });
}

/// The container runtime enforces device cgroups: a container may open devices of its resources only. A container with the
/// capability MKNOD can create the device node itself, as the device plugin does.
#[test]
fn a_pod_without_the_resource_cannot_open_a_device_node_that_it_creates() {
    e2e_with(environment::SLOTS, "privileged", json!({}), async |space| {
        let create = "mknod /tmp/kvm c 10 232 && echo created >&2 && exec 3<>/tmp/kvm";
        let root = json!({"runAsUser": 0});
        let state = run_script(space, "creates", create, json!({}), root.clone()).await;
        let message = state["message"].as_str().unwrap_or_default();
        assert!(
            message.contains("created") && message.contains("Operation not permitted"),
            "{state}"
        );
        node_offers(KVM_IF_PRESENT, "1k").await;
        if slots("/dev/kvm") != "0" {
            let resource = json!({KVM_IF_PRESENT: "1"});
            let state = run_script(space, "requests", create, resource, root).await;
            assert_eq!(state["exitCode"], 0, "{state}");
        }
    });
}

#[test]
fn a_device_node_that_was_removed_or_changed_is_created_again() {
    let node = Path::new("/run/vm-device-plugin/tun");
    e2e(environment::SLOTS, async |_| {
        node_offers(TUN, slots("/dev/net/tun")).await;
        let number = Stat::of(Path::new("/dev/net/tun")).number;
        for change in [
            || fs::remove_file("/run/vm-device-plugin/tun"),
            || {
                fs::set_permissions(
                    "/run/vm-device-plugin/tun",
                    PermissionsExt::from_mode(0o600),
                )
            },
        ] {
            change().unwrap();
            eventually("the plugin creates the node again", 30, async || {
                let found = fs::metadata(node).map_err(|e| e.to_string())?;
                if (found.rdev(), found.mode() & 0o7777) == (number, 0o666) {
                    Ok(())
                } else {
                    Err(format!("{found:?}"))
                }
            })
            .await;
        }
    });
}
