//! (pure) Hashes of the fields that take effect at the next start of a VM.
//!
//! They are fields of the VM, so neither another configuration of the operator nor a newer operator requires a restart.

use crate::api::logging::level;
use crate::api::runner::config::{DriveConfig, DriveType, VmConfig};
use crate::api::vm::{Machine, Memory, Resources, VirtualMachineSpec};
use crate::api::{VirtualMachine, hex};
use crate::controllers::vm::pod::restart::OTHER_FIELDS;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// The field that the template hash covers only if it is set.
const CONSOLE_PORT: &str = "spec.consolePort";

/// The short form of the hashes, in which one entry replaces those of all fields that are not set. These are half of the fields.
///
/// For a pod with it, a field of a later version was not set. So the default of a new field must have the hash of an unset field.
#[must_use]
pub fn short_form(mut hashes: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let unset = hash(&Value::Null);
    hashes.retain(|_, hash| *hash != unset);
    hashes.insert(OTHER_FIELDS.to_owned(), unset);
    hashes
}

/// The hashes without that of `spec.consolePort`, if the field is not set.
#[must_use]
pub fn without_unset_console_port(
    mut hashes: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let unset = hash(&Value::Null);
    hashes.retain(|field, hash| field != CONSOLE_PORT || *hash != unset);
    hashes
}

/// A hash of each field. Different spellings of a value (`1024Mi`, `1Gi`) have the same hash.
pub(super) fn hashes(
    vm: &VirtualMachine,
    config: Option<&VmConfig>,
    display_secret: Option<&str>,
) -> BTreeMap<String, String> {
    let mut fields = Vec::from(pod_fields(&vm.spec));
    fields.extend(machine_fields(&vm.spec.vm, config));
    fields.push(("the display secret", value(&display_secret)));
    fields
        .into_iter()
        .map(|(field, value)| (field.to_owned(), hash(&value)))
        .collect()
}

type Field = (&'static str, Value);

fn pod_fields(spec: &VirtualMachineSpec) -> [Field; 16] {
    let logging = spec.logging_properties.as_deref();
    // As text, because all values in it are for the guest, also `false` and empty ones.
    let cloud_init = spec.cloud_init.as_ref();
    let cloud_init = cloud_init.map(|seed| value(seed).to_string());
    [
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
        (CONSOLE_PORT, value(&spec.console_port)),
        ("spec.resources", fixed_resources(spec)),
        (
            "spec.loggingProperties",
            value(&logging.and_then(|text| level(text).0)),
        ),
        ("spec.cloudInit", value(&cloud_init)),
    ]
}

fn machine_fields(machine: &Machine, config: Option<&VmConfig>) -> [Field; 15] {
    let spice = machine.display.spice.as_ref();
    let spice = spice.map(|spice| json!([spice.port, spice.streaming_video, spice.usb_redirects]));
    let drives: Option<Vec<DriveConfig>> = config.map(|vm| vm.drives.iter().map(drive).collect());
    let memory = machine.memory.as_ref();
    let memory = memory.filter(|memory| **memory != Memory::default());
    [
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
        (
            "spec.vm.maximumRam",
            value(&config.map(|vm| vm.maximum_ram.0)),
        ),
        ("spec.vm.memory", value(&memory)),
        ("spec.vm.rtcBase", value(&machine.rtc_base)),
        ("spec.vm.rtcClock", value(&machine.rtc_clock)),
        ("spec.vm.networks", value(&machine.networks)),
        ("spec.vm.disks", value(&drives)),
        ("spec.vm.display.outputs", value(&machine.display.outputs)),
        ("spec.vm.display.spice", value(&spice)),
    ]
}

/// The value as JSON. Its maps are sorted, so the order of their fields has no effect.
fn value(part: &impl Serialize) -> Value {
    // Serializing plain data cannot fail.
    serde_json::to_value(part).unwrap_or_default()
}

fn hash(value: &Value) -> String {
    hex(Sha256::digest(without_unset(value).to_string())
        .iter()
        .take(4))
}

/// The value without unset fields, so that a field of a later version has no effect on pods of an earlier version.
fn without_unset(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let is_set = |part: &Value| match part {
                Value::Null | Value::Bool(false) => false,
                Value::Object(map) => !map.is_empty(),
                Value::Array(items) => !items.is_empty(),
                _ => true,
            };
            let parts = map
                .iter()
                .map(|(name, part)| (name.clone(), without_unset(part)));
            Value::Object(parts.filter(|(_, part)| is_set(part)).collect())
        }
        Value::Array(items) => items.iter().map(without_unset).collect(),
        other => other.clone(),
    }
}

/// A drive without the values that can change while the VM runs: the CD image, and the size of an image file.
fn drive(drive: &DriveConfig) -> DriveConfig {
    let is_cd = drive.type_ == DriveType::IdeCd;
    DriveConfig {
        file: drive.file.clone().filter(|_| !is_cd),
        size: None,
        ..drive.clone()
    }
}

/// The resources except CPU and memory, which can change while the pod runs.
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
