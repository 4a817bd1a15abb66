//! (pure) What a running machine cannot follow: fields that take effect at the next start.
//!
//! They are the user's fields, not what becomes of them: neither other settings nor a newer operator makes a restart
//! look necessary.

use crate::api::logging::level;
use crate::api::quantity::Bytes;
use crate::api::runner::config::{DriveConfig, DriveType, VmConfig};
use crate::api::vm::{Memory, Resources, VirtualMachineSpec};
use crate::api::{VirtualMachine, hex};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// A hash for each field. What stays equal in another spelling (`1024Mi`, `1Gi`) has the same.
pub(super) fn fields(
    vm: &VirtualMachine,
    config: Option<&VmConfig>,
    maximum_ram: Bytes,
    display_secret: Option<&str>,
) -> BTreeMap<String, String> {
    let spec = &vm.spec;
    let machine = &spec.vm;
    let spice = machine.display.spice.as_ref();
    let spice = spice.map(|spice| json!([spice.port, spice.streaming_video, spice.usb_redirects]));
    let drives: Option<Vec<DriveConfig>> = config.map(|vm| vm.drives.iter().map(drive).collect());
    let placed = [
        ("spec.image", value(&spec.image)),
        ("spec.nodeName", value(&spec.node_name)),
        ("spec.nodeSelector", value(&spec.node_selector)),
        ("spec.affinity", value(&spec.affinity)),
        ("spec.tolerations", value(&spec.tolerations)),
        (
            "spec.topologySpreadConstraints",
            value(&spec.topology_spread_constraints),
        ),
        ("spec.priorityClassName", value(&spec.priority_class_name)),
        ("spec.runtimeClassName", value(&spec.runtime_class_name)),
        ("spec.imagePullSecrets", value(&spec.image_pull_secrets)),
        ("spec.podLabels", value(&spec.pod_labels)),
        ("spec.podAnnotations", value(&spec.pod_annotations)),
        ("spec.metricsPort", value(&spec.metrics_port)),
        ("spec.resources", fixed_resources(spec)),
        (
            "spec.loggingProperties",
            value(
                &spec
                    .logging_properties
                    .as_deref()
                    .and_then(|text| level(text).0),
            ),
        ),
        // As text: what is false or empty in it is the guest's business.
        (
            "spec.cloudInit",
            value(&spec.cloud_init.as_ref().map(|seed| value(seed).to_string())),
        ),
    ];
    let machine = [
        ("spec.vm.machineUuid", value(&machine.machine_uuid)),
        ("spec.vm.useTpm", value(&machine.use_tpm)),
        ("spec.vm.firmware", value(&machine.firmware)),
        ("spec.vm.bootMenu", value(&machine.boot_menu)),
        ("spec.vm.cpuModel", value(&machine.cpu_model)),
        (
            "spec.vm.maximumCpus",
            value(&config.and_then(|vm| vm.maximum_cpus)),
        ),
        ("spec.vm.cpuTopology", value(&machine.cpu_topology)),
        ("spec.vm.maximumRam", value(&maximum_ram.0)),
        (
            "spec.vm.memory",
            value(
                &machine
                    .memory
                    .as_ref()
                    .filter(|memory| **memory != Memory::default()),
            ),
        ),
        ("spec.vm.rtcBase", value(&machine.rtc_base)),
        ("spec.vm.rtcClock", value(&machine.rtc_clock)),
        ("spec.vm.networks", value(&machine.networks)),
        ("spec.vm.disks", value(&drives)),
        ("spec.vm.display.outputs", value(&machine.display.outputs)),
        ("spec.vm.display.spice", value(&spice)),
        ("the display secret", value(&display_secret)),
    ];
    placed
        .into_iter()
        .chain(machine)
        .map(|(field, value)| (field.to_owned(), hash(&value)))
        .collect()
}

/// Maps are sorted, so that the order in which something was written does not matter.
fn value(part: &impl Serialize) -> Value {
    // Plain data can always be brought into this shape.
    serde_json::to_value(part).unwrap_or_default()
}

fn hash(value: &Value) -> String {
    hex(Sha256::digest(said(value).to_string()).iter().take(4))
}

/// What is said in it: a later version's field that is not set says nothing, so that it makes no difference to a pod of
/// an earlier one.
fn said(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let says = |part: &Value| match part {
                Value::Null | Value::Bool(false) => false,
                Value::Object(map) => !map.is_empty(),
                Value::Array(items) => !items.is_empty(),
                _ => true,
            };
            let parts = map.iter().map(|(name, part)| (name.clone(), said(part)));
            Value::Object(parts.filter(|(_, part)| says(part)).collect())
        }
        Value::Array(items) => items.iter().map(said).collect(),
        other => other.clone(),
    }
}

/// A drive without what changes while the machine runs: the CD in it, the size of its image.
fn drive(drive: &DriveConfig) -> DriveConfig {
    let is_cd = drive.type_ == DriveType::IdeCd;
    DriveConfig {
        file: drive.file.clone().filter(|_| !is_cd),
        size: None,
        ..drive.clone()
    }
}

/// The resources but for CPU and memory, which a running pod follows.
fn fixed_resources(spec: &VirtualMachineSpec) -> Value {
    let Some(Resources { limits, requests }) = &spec.resources else {
        return Value::Null;
    };
    let fixed = [limits, requests].map(|amounts| {
        let amounts = amounts
            .iter()
            .flatten()
            .filter(|(name, _)| *name != "cpu" && *name != "memory");
        amounts.collect::<BTreeMap<_, _>>()
    });
    if fixed.iter().all(BTreeMap::is_empty) {
        Value::Null
    } else {
        value(&fixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_is_not_set_makes_no_difference() {
        let before =
            json!({"user": {"device": "e1000e", "net": "10.0.0.0/8"}, "list": [null, {"a": 1}]});
        let new = json!({
            "user": {"device": "e1000e", "net": "10.0.0.0/8", "queues": null, "isolated": false, "routes": [], "dns": {}},
            "list": [null, {"a": 1, "b": {"c": null}}],
        });
        assert_eq!(hash(&before), hash(&new));
        for different in [
            json!({"user": {"device": "e1000e", "net": "10.0.0.0/8"}, "list": [{"a": 1}]}),
            json!({"user": {"device": "e1000e", "isolated": true, "net": "10.0.0.0/8"}, "list": [null, {"a": 1}]}),
            json!({"user": {"device": "", "net": "10.0.0.0/8"}, "list": [null, {"a": 1}]}),
        ] {
            assert_ne!(hash(&before), hash(&different), "{different}");
        }
    }
}
