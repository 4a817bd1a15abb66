//! The examples: each says its purpose and is valid, and together they use every field.

use super::fields::{covers, leaves};
use super::generated::{IN_THE_WAY, collect};
use super::root;
use serde_json::Value;
use std::collections::BTreeSet;
use support::observed::observed_without_children;
use vm_operator::controllers::vm::objects;
use vm_operator::controllers::vm::plan::plan;
use vm_operator::settings::Reconciler;

/// The VMs in `examples/`, by file name.
fn vms() -> Vec<(String, String, Value)> {
    let mut vms = Vec::new();
    for entry in std::fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            let text = std::fs::read_to_string(&path).unwrap();
            let object: Value = serde_saphyr::from_str(&text).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            assert!(text.starts_with("# "), "{name} does not say its purpose");
            if object["kind"] == "VirtualMachine" {
                vms.push((name, text, object));
            }
        }
    }
    assert!(vms.len() >= 5, "{}", vms.len());
    vms
}

#[test]
fn each_can_be_run() {
    for (name, _, object) in vms() {
        let vm = serde_json::from_value(object).unwrap();
        let plan = plan(&observed_without_children(vm), &Reconciler::default())
            .unwrap_or_else(|invalid| panic!("{name}: {invalid:?}"));
        let config = objects::build(&plan).config_map.data.unwrap()["config.yaml"].clone();
        assert_eq!(vm_operator::runner::check(&config), Ok(vec![]), "{name}");
    }
}

#[test]
fn together_they_show_every_field_and_none_that_is_not_there() {
    let mut shown = BTreeSet::new();
    vms()
        .iter()
        .for_each(|(_, _, object)| collect("spec", &object["spec"], &mut shown));
    // Fields for compatibility with the Java VM-Operator, fields without effect in this version, and a part of the
    // fields that Kubernetes defines.
    let left_out = ["spec.runnerTemplate", "spec.nodeName", "spec.image.source"];
    let of_kubernetes = [
        "spec.affinity",
        "spec.tolerations",
        "spec.topologySpreadConstraints",
        ".selector",
        ".dataSource",
        ".limits",
    ];
    let places: Vec<String> = leaves().into_keys().collect();
    for place in &places {
        let known = left_out
            .iter()
            .chain(IN_THE_WAY)
            .any(|left| covers(left, place))
            || of_kubernetes.iter().any(|part| place.contains(part))
            || place.ends_with("cpuTopology.diesPerSocket");
        let leaf = place.strip_suffix("{}").unwrap_or(place);
        assert!(
            known || shown.iter().any(|path| path.starts_with(leaf)),
            "no example shows {place}"
        );
    }
    for path in &shown {
        let known = places
            .iter()
            .any(|place| path.starts_with(place.strip_suffix("{}").unwrap_or(place)));
        assert!(known, "an example has {path}, which is no field");
    }
}
