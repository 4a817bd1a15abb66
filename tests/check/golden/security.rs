//! The security model of `docs/security.md`: the privileges of created pods and of installed objects.

use super::generated::{made, stored};
use super::root;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::ResourceExt;
use serde_json::Value;
use vm_operator::api::vm::names;

/// All requirements of Pod Security `restricted`, and additional ones.
fn is_restricted(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref().unwrap();
    let hosts = PodSpec {
        host_network: spec.host_network,
        host_pid: spec.host_pid,
        host_ipc: spec.host_ipc,
        init_containers: spec.init_containers.clone(),
        ephemeral_containers: spec.ephemeral_containers.clone(),
        ..PodSpec::default()
    };
    let [container] = spec.containers.as_slice() else {
        return false;
    };
    let (pod, own) = (
        spec.security_context.clone().unwrap(),
        container.security_context.clone().unwrap(),
    );
    let capabilities = own.capabilities.unwrap();
    hosts == PodSpec::default()
        && pod.run_as_non_root == Some(true)
        && pod.run_as_user.is_some_and(|user| user > 0)
        && pod.seccomp_profile.unwrap().type_ == "RuntimeDefault"
        && (pod.sysctls, pod.supplemental_groups) == (None, None)
        && own.allow_privilege_escalation == Some(false)
        && own.privileged.is_none()
        && (
            own.run_as_user,
            own.run_as_non_root,
            own.seccomp_profile,
            own.proc_mount,
        ) == (None, None, None, None)
        && own.read_only_root_filesystem == Some(true)
        && (capabilities.drop, capabilities.add) == (Some(vec!["ALL".to_owned()]), None)
        && container
            .ports
            .iter()
            .flatten()
            .all(|port| port.host_port.is_none())
}

fn has_tap(spec: &Value) -> bool {
    spec["vm"]["networks"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|network| network["tap"].is_object())
}

/// Removes the privileges of a tap from a pod, which must have them. Any other deviation fails the `restricted` check.
fn remove_tap_privileges(pod: &mut Pod) {
    let spec = pod.spec.as_mut().unwrap();
    assert_eq!(spec.host_network.take(), Some(true));
    let container = &mut spec.containers[0];
    let capabilities = container
        .security_context
        .as_mut()
        .unwrap()
        .capabilities
        .as_mut()
        .unwrap();
    assert_eq!(capabilities.add.take(), Some(vec!["NET_ADMIN".to_owned()]));
    let mut limits = container.resources.clone().unwrap().limits.unwrap();
    assert_eq!(limits.remove(names::RESOURCE_TUN).unwrap().0, "1");
    // In the host network it would be open to all.
    assert!(
        container
            .ports
            .iter()
            .flatten()
            .all(|port| port.name.as_deref() != Some("metrics"))
    );
}

#[test]
fn no_vm_gets_a_pod_that_is_not_restricted() {
    let (mut repositories, mut taps, mut fetches, mut imports) = (0, 0, 0, 0);
    for spec in stored() {
        let Ok(objects) = made(spec.clone()) else {
            continue;
        };
        let mut pod = objects.pod;
        if pod.annotations().contains_key(names::ANNOTATION_IMPORTS) {
            imports += 1;
            let spec = pod.spec.as_ref().unwrap();
            let account = spec.service_account_name.as_ref();
            assert_eq!(
                (spec.automount_service_account_token, account),
                (Some(false), None)
            );
        } else if has_tap(&spec) {
            remove_tap_privileges(&mut pod);
            taps += 1;
        }
        assert!(is_restricted(&pod), "{spec}: {pod:#?}");
        for fetch in objects.fetches.into_iter().filter_map(|fetch| fetch.pod) {
            fetches += 1;
            assert!(is_restricted(&fetch), "{fetch:#?}");
            let spec = fetch.spec.unwrap();
            assert_eq!(
                (
                    spec.automount_service_account_token,
                    spec.service_account_name
                ),
                (Some(false), None)
            );
            let [volume] = spec.volumes.as_deref().unwrap() else {
                panic!("{:?}", spec.volumes)
            };
            assert_eq!(
                volume.persistent_volume_claim.as_ref().unwrap().claim_name,
                "vmop-image-repository"
            );
        }
        let spec = pod.spec.unwrap();
        for volume in spec.volumes.iter().flatten() {
            // All other volumes are PVCs: no host path.
            let claim = volume.persistent_volume_claim.as_ref();
            assert!(claim.is_some() || volume.projected.is_some(), "{volume:?}");
            let is_shared = claim.is_some_and(|claim| claim.claim_name == "vmop-image-repository");
            repositories += usize::from(is_shared);
            assert!(
                !is_shared || claim.unwrap().read_only == Some(true),
                "{volume:?}"
            );
        }
    }
    assert!(
        repositories > 5 && taps > 5 && imports > 5,
        "the repository is used by {repositories}, taps by {taps}, imports by {imports}"
    );
    assert!(fetches > 5, "only {fetches} fetch");
}

#[test]
fn the_device_plugin_has_three_directories_of_the_host_and_one_capability() {
    let dir = root().join("deploy/device-plugin");
    let text = std::fs::read_to_string(dir.join("daemon-set.yaml")).unwrap();
    let pod = serde_saphyr::from_str::<DaemonSet>(&text)
        .unwrap()
        .spec
        .unwrap()
        .template
        .spec
        .unwrap();
    let volumes: Vec<_> = pod.volumes.iter().flatten().collect();
    let paths: Vec<_> = volumes
        .iter()
        .filter_map(|v| v.host_path.as_ref())
        .map(|path| path.path.as_str())
        .collect();
    let expected = vec![
        "/var/lib/kubelet/device-plugins",
        "/run/vm-device-plugin",
        "/dev",
    ];
    assert_eq!((paths, volumes.len()), (expected, 4));
    assert_eq!(
        (pod.host_network, pod.host_pid, pod.host_ipc),
        (None, None, None)
    );
    assert_eq!(
        (pod.automount_service_account_token, pod.init_containers),
        (Some(false), None)
    );
    assert_eq!(
        pod.security_context.unwrap().seccomp_profile.unwrap().type_,
        "RuntimeDefault"
    );
    let [container] = pod.containers.as_slice() else {
        panic!("one container")
    };
    let mounts: Vec<_> = container
        .volume_mounts
        .iter()
        .flatten()
        .map(|m| (m.mount_path.as_str(), m.read_only))
        .collect();
    let covered = [
        ("/host/dev", Some(true)),
        ("/host/dev/shm", Some(true)),
        ("/host/dev/pts", Some(true)),
    ];
    let written = [
        ("/var/lib/kubelet/device-plugins", None),
        ("/run/vm-device-plugin", None),
    ];
    assert_eq!(mounts, [&written[..], &covered[..]].concat());
    let own = container.security_context.clone().unwrap();
    assert_eq!(
        (
            own.privileged,
            own.allow_privilege_escalation,
            own.read_only_root_filesystem
        ),
        (None, Some(false), Some(true))
    );
    let capabilities = own.capabilities.unwrap();
    let only = |name: &str| Some(vec![name.to_owned()]);
    assert_eq!(
        (capabilities.drop, capabilities.add),
        (only("ALL"), only("MKNOD"))
    );

    // Its service account has no permissions.
    let mut kinds: Vec<String> = Vec::new();
    for file in std::fs::read_dir(dir).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        kinds.extend(
            text.lines()
                .filter_map(|line| line.strip_prefix("kind: "))
                .map(str::to_owned),
        );
    }
    kinds.sort();
    assert_eq!(kinds, ["DaemonSet", "Kustomization", "ServiceAccount"]);
}

#[test]
fn the_part_of_a_namespace_has_nothing_of_the_cluster() {
    let kinds = |dir: &str| -> Vec<String> {
        let files = std::fs::read_dir(root().join("deploy").join(dir)).unwrap();
        let texts = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        let kinds = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
        kinds
            .filter_map(|line| line.strip_prefix("kind: ").map(str::to_owned))
            .collect()
    };
    let of_a_namespace = [
        "ConfigMap",
        "Deployment",
        "Kustomization",
        "Lease",
        "PersistentVolumeClaim",
        "Role",
        "RoleBinding",
        "ServiceAccount",
    ];
    let base = kinds("base");
    assert!(
        base.len() > 8
            && base
                .iter()
                .all(|kind| of_a_namespace.contains(&kind.as_str())),
        "{base:?}"
    );
    assert!(kinds("cluster").contains(&"ValidatingAdmissionPolicy".to_owned()));
}
