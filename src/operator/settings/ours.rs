//! (pure) The settings that the reference does not have: what VMs' pods are given besides what a VM says.

use super::fetch;
use super::tree::{Node, Section};
use super::{Accelerator, DeviceAccess, ImageRepository, Note, PodDefaults, Policy, SettingsError, Tap};
use crate::api::names;
use crate::api::quantity::Bytes;

pub(super) fn image_repository(
    mut section: Section<'_>,
    notes: &mut Vec<Note>,
) -> Result<ImageRepository, SettingsError> {
    let default = ImageRepository::default();
    let create = section.take("create").map(|node| yes_or_no(&node)).transpose()?.unwrap_or(default.create);
    let storage_class_name = section.take("storageClassName").map(|node| node.text()).transpose()?;
    let size = section.take("size").map(|node| size(&node)).transpose()?.unwrap_or(default.size);
    let access_modes = section.take("accessModes").map(access_modes).transpose()?.unwrap_or(default.access_modes);
    let fetch = fetch::settings(section.section("fetch")?, notes)?;
    section.note_rest(notes);
    Ok(ImageRepository { create, storage_class_name, size, access_modes, fetch })
}

/// As Kubernetes spells it, which knows fewer units than are taken here.
pub(super) fn size(node: &Node<'_>) -> Result<String, SettingsError> {
    let size = node.text().ok().and_then(|text| text.parse::<Bytes>().ok()).filter(|bytes| bytes.0 > 0);
    size.map_or_else(|| node.refuse("give a size, such as 20Gi"), |size| Ok(size.to_quantity()))
}

fn access_modes(node: Node<'_>) -> Result<Vec<String>, SettingsError> {
    const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    let refusal = node.refuse("give a list with at least one");
    let mode = |node: &Node<'_>| match node.text() {
        Ok(mode) if MODES.contains(&mode.as_str()) => Ok(mode),
        _ => node.refuse(format!("give {}", MODES.join(", "))),
    };
    let modes = node.items()?.iter().map(mode).collect::<Result<Vec<_>, _>>()?;
    if modes.is_empty() { refusal } else { Ok(modes) }
}

pub(super) fn pod_defaults(mut section: Section<'_>, notes: &mut Vec<Note>) -> Result<PodDefaults, SettingsError> {
    let defaults = PodDefaults {
        node_selector: section.take("nodeSelector").map(|n| n.typed("give labels, each a text")).transpose()?,
        tolerations: section.take("tolerations").map(|n| n.typed("give a list as in a pod's spec")).transpose()?,
        priority_class_name: section.take("priorityClassName").map(|node| node.text()).transpose()?,
        image_pull_secrets: section
            .take("imagePullSecrets")
            .map(|n| n.typed("give a list of names, as - name: registry"))
            .transpose()?,
    };
    section.note_rest(notes);
    Ok(defaults)
}

pub(super) fn accelerator(mut section: Section<'_>, notes: &mut Vec<Note>) -> Result<Accelerator, SettingsError> {
    let resource = section.take("kvmResource").map(|node| resource(&node, names::RESOURCE_KVM)).transpose()?;
    let privileged = match section.take("privileged") {
        Some(node) if node.boolean() == Some(true) && resource.is_some() => {
            return node.refuse("give false, as kvmResource brings /dev/kvm, or leave kvmResource out");
        }
        node => node.map(|node| yes_or_no(&node)).transpose()?.unwrap_or_default(),
    };
    let policy = match section.take("policy") {
        None => Policy::default(),
        Some(node) => match node.text().as_deref() {
            Ok("auto") => Policy::Auto,
            Ok("tcg") => Policy::Tcg,
            Ok("kvm") if resource.is_none() && !privileged => {
                return node.refuse("give kvmResource too, by which a pod gets /dev/kvm, or privileged: true");
            }
            Ok("kvm") => Policy::Kvm,
            _ => return node.refuse("give kvm, auto or tcg"),
        },
    };
    section.note_rest(notes);
    Ok(Accelerator { policy, kvm_resource: resource, privileged })
}

pub(super) fn tap(mut section: Section<'_>, notes: &mut Vec<Note>) -> Result<Tap, SettingsError> {
    let default = Tap::default();
    let tun_resource = section.take("tunResource").map(|node| resource(&node, &default.tun_resource)).transpose()?;
    let host_path = section.take("hostPath").map(|node| yes_or_no(&node)).transpose()?.unwrap_or_default();
    section.note_rest(notes);
    Ok(Tap { tun_resource: tun_resource.unwrap_or(default.tun_resource), host_path })
}

fn yes_or_no(node: &Node<'_>) -> Result<bool, SettingsError> {
    node.boolean().map_or_else(|| node.refuse("give true or false"), Ok)
}

/// An extended resource has a domain before its name.
fn resource(node: &Node<'_>, such_as: &str) -> Result<String, SettingsError> {
    let legal = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
    };
    let name = node.text().ok();
    let name = name.filter(|text| text.split_once('/').is_some_and(|(domain, name)| legal(domain) && legal(name)));
    name.map_or_else(|| node.refuse(format!("give a resource of a device plugin, such as {such_as}")), Ok)
}

/// How VMs get at their block devices.
pub(super) fn device_access(node: &Node<'_>) -> Result<DeviceAccess, SettingsError> {
    match node.text().as_deref() {
        Ok("cri") => Ok(DeviceAccess::Cri),
        Ok("root") => Ok(DeviceAccess::Root),
        _ => node.refuse("give cri or root"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Reconciler, Settings};
    use super::*;

    fn parse(reconciler: &str) -> Result<Reconciler, String> {
        let indented: String = reconciler.lines().map(|line| format!("      {line}\n")).collect();
        let text = format!("\"/Manager\":\n  \"/Controller\":\n    \"/Reconciler\":\n{indented}");
        Settings::parse(&text, "config.yaml")
            .map(|(s, notes)| {
                assert_eq!(notes, [], "{reconciler}");
                s.reconciler
            })
            .map_err(|e| e.to_string())
    }

    #[test]
    fn the_image_repositorys_claim_can_be_described() {
        let text =
            "imageRepository:\n  create: false\n  storageClassName: nfs\n  size: 20Gi\n  accessModes: [ReadWriteMany]";
        let repository = parse(text).unwrap().image_repository;
        assert_eq!((repository.create, repository.size.as_str()), (false, "20Gi"));
        // Kubernetes does not know this spelling.
        let spelt = parse("imageRepository:\n  size: 20 GiB").unwrap().image_repository;
        assert_eq!(spelt.size, "20Gi");
        assert_eq!(repository.storage_class_name.as_deref(), Some("nfs"));
        assert_eq!(repository.access_modes, ["ReadWriteMany"]);
        assert_eq!(parse("imageRepository: {}").unwrap().image_repository, ImageRepository::default());
    }

    #[test]
    fn what_pods_get_by_default_is_what_kubernetes_takes() {
        let text = "podDefaults:\n  nodeSelector: {vms: \"yes\"}\n  tolerations: [{key: vms, operator: Exists}]\n  \
                    priorityClassName: vms\n  imagePullSecrets: [{name: registry}]";
        let defaults = parse(text).unwrap().pod_defaults;
        assert_eq!(defaults.node_selector.unwrap()["vms"], "yes");
        assert_eq!(defaults.tolerations.unwrap()[0].key.as_deref(), Some("vms"));
        assert_eq!(defaults.priority_class_name.as_deref(), Some("vms"));
        assert_eq!(defaults.image_pull_secrets.unwrap()[0].name, "registry");
    }

    #[test]
    fn kvm_is_had_by_a_resource() {
        let accelerator =
            parse("accelerator: {policy: kvm, kvmResource: vmoperator.jdrupes.org/kvm}").unwrap().accelerator;
        assert_eq!((accelerator.policy, accelerator.requested()), (Policy::Kvm, Some("vmoperator.jdrupes.org/kvm")));
        let accelerator =
            parse("accelerator: {policy: tcg, kvmResource: vmoperator.jdrupes.org/kvm}").unwrap().accelerator;
        assert_eq!((accelerator.policy, accelerator.requested()), (Policy::Tcg, None));
        let accelerator = parse("accelerator: {policy: kvm, privileged: true}").unwrap().accelerator;
        assert_eq!((accelerator.policy, accelerator.privileged), (Policy::Kvm, true));
    }

    #[test]
    fn the_device_behind_taps_is_had_by_a_resource_or_from_the_node() {
        assert_eq!(parse("tap: {}").unwrap().tap, Tap::default());
        let tap = parse("tap: {tunResource: example.org/tun}").unwrap().tap;
        assert_eq!((tap.tun_resource.as_str(), tap.host_path), ("example.org/tun", false));
        assert!(parse("tap: {hostPath: true}").unwrap().tap.host_path);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_and_says_what_is_allowed() {
        for (text, words) in [
            ("accelerator: {policy: kvm}", "kvmResource"),
            ("accelerator: {privileged: always}", "give true or false"),
            ("accelerator: {privileged: true, kvmResource: devices.kubevirt.io/kvm}", "leave kvmResource out"),
            ("accelerator: {policy: xen}", "give kvm, auto or tcg"),
            ("accelerator: {kvmResource: kvm}", "vmoperator.jdrupes.org/kvm"),
            ("tap: {tunResource: tun}", "such as vmoperator.jdrupes.org/tun"),
            ("tap: {hostPath: /dev/net/tun}", "give true or false"),
            ("deviceAccess: privileged", "give cri or root"),
            ("imageRepository: {size: 0}", "give a size"),
            ("imageRepository: {create: maybe}", "give true or false"),
            ("imageRepository: {accessModes: [ReadMany]}", "accessModes[0]: \"ReadMany\""),
            ("imageRepository: {accessModes: []}", "at least one"),
            ("podDefaults: {tolerations: {key: a}}", "podDefaults.tolerations"),
            ("podDefaults: {nodeSelector: {a: 1}}", "podDefaults.nodeSelector"),
            ("podDefaults: {imagePullSecrets: [registry]}", "- name: registry"),
        ] {
            let message = parse(text).expect_err(text);
            assert!(message.starts_with("config.yaml, line 4: ") && message.contains(words), "{text}: {message}");
        }
        assert_eq!(parse("deviceAccess: cri").unwrap().device_access, DeviceAccess::Cri);
        assert_eq!(parse("deviceAccess: root").unwrap().device_access, DeviceAccess::Root);
    }
}
