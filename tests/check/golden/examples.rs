//! The examples: each says its purpose and is valid, and together they use every field.

use super::fields::{covers, leaves};
use super::generated::{BLOCKING_FIELDS, collect};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use support::example::files;
use support::observed::observed_without_children;
use vm_operator::controllers::vm::objects;
use vm_operator::controllers::vm::plan::plan;
use vm_operator::settings::Reconciler;

/// The VMs in `examples/`, by file name.
fn vms() -> Vec<(String, Value)> {
    let mut vms = Vec::new();
    for (name, text) in files() {
        for document in text.split("\n---\n") {
            let object: Value = serde_saphyr::from_str(document).unwrap();
            if object["kind"] == "VirtualMachine" {
                vms.push((name.clone(), object));
            }
        }
    }
    assert!(vms.len() >= 5, "{}", vms.len());
    vms
}

/// The words of the comment at the start of the file.
fn introduction(text: &str) -> String {
    let lines = text
        .lines()
        .map_while(|line| line.strip_prefix('#'))
        .map(str::trim);
    lines.collect::<Vec<_>>().join(" ")
}

#[test]
fn each_example_names_its_purpose_and_its_needs() {
    for (name, text) in files() {
        let introduction = introduction(&text);
        assert!(!introduction.starts_with("Needs:"), "{name}");
        assert!(
            introduction.contains("Needs: ") || name == "pool.yaml",
            "{name}: {introduction}"
        );
    }
}

#[test]
fn windows_example_begins_with_its_lack_of_a_trial() {
    let (_, text) = files()
        .into_iter()
        .find(|(name, _)| name == "windows.yaml")
        .unwrap();
    let first = text.lines().next().unwrap_or_default();
    assert!(first.to_lowercase().contains("not tried by us"), "{first}");
}

#[test]
fn each_can_be_run() {
    for (name, object) in vms() {
        let vm = serde_json::from_value(object).unwrap();
        let mut observed = observed_without_children(vm);
        let source = json!({"metadata": {"name": "source"}, "status": {"phase": "Bound"}});
        observed.copy_source.claim = Some(Arc::new(serde_json::from_value(source).unwrap()));
        let plan = plan(&observed, &Reconciler::default())
            .unwrap_or_else(|invalid| panic!("{name}: {invalid:?}"));
        let config = objects::build(&plan).config_map.data.unwrap()["config.yaml"].clone();
        assert_eq!(vm_operator::runner::check(&config), Ok(vec![]), "{name}");
    }
}

#[test]
fn examples_show_every_field_and_no_unknown_field() {
    let mut shown = BTreeSet::new();
    vms()
        .iter()
        .for_each(|(_, object)| collect("spec", &object["spec"], &mut shown));
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
            .chain(BLOCKING_FIELDS)
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
