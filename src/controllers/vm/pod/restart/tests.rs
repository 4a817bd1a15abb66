//! Differences that must not require a restart: another configuration or version of the operator, another order of equal values.

use crate::api::VirtualMachine;
use crate::controllers::vm::decide::{Decision, decide};
use crate::controllers::vm::fixtures::{alone, with_pod};
use crate::controllers::vm::objects::{build, with_short_hashes};
use crate::controllers::vm::plan::plan;
use crate::controllers::vm::pod::restart::*;
use crate::settings::{LoadBalancerService, Policy, Reconciler};
use proptest::prelude::*;
use proptest::sample::subsequence;
use serde_json::{Value, json};

/// The hash of a field that is not set.
const UNSET: &str = "74234e98";

/// Optional parts of a spec.
fn spec_parts() -> Vec<Value> {
    let claim = json!({"metadata": {"name": "system", "labels": {"b": "1", "a": "2"}}, "spec": {"volumeMode": "Block"}});
    vec![
        json!({"image": {"source": "example.org/runner:1"}}),
        json!({"image": {"source": "ghcr.io/mnlipp/org.jdrupes.vmoperator.runner.qemu-arch:latest"}}),
        json!({"nodeSelector": {"zone": "a", "disk": "fast"}}),
        json!({"tolerations": [{"key": "vms", "operator": "Exists"}]}),
        json!({"podLabels": {"z": "1", "a": "2"}, "podAnnotations": {"y": "1", "b": "2"}}),
        json!({"resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"example.org/gpu": 1}}}),
        json!({"cloudInit": {"userData": {"z": {"y": 1, "x": [1, 2]}, "a": null}, "metaData": {"k": "v"}}}),
        json!({"loadBalancerService": {"labels": {"b": null, "a": "1"}}}),
        json!({"vm": {"maximumCpus": 4, "currentCpus": 2}}),
        json!({"vm": {"maximumRam": "4Gi", "currentRam": "2 GiB"}}),
        json!({"vm": {"useTpm": true, "bootMenu": true, "firmware": "secure"}}),
        json!({"vm": {"networks": [{"user": {"net": "10.0.0.0/24", "forward": [{"port": 2222, "guestPort": 22}]}}]}}),
        json!({"vm": {"disks": [{"volumeClaimTemplate": claim, "bootindex": 1}, {"cdrom": {"image": "a.iso"}}]}}),
        json!({"vm": {"display": {"outputs": 2, "spice": {"port": 5901, "generateSecret": false}}}}),
    ]
}

type Edit = fn(&mut Reconciler);

/// Settings that an administrator may change while VMs run.
const SETTINGS: [Edit; 12] = [
    |s| s.cpu_overcommit = 7.5,
    |s| s.ram_overcommit = 3.0,
    |s| s.runner_image.source = "example.org/newer:2".to_owned(),
    |s| s.runner_image.pull_policy = "Always".to_owned(),
    |s| {
        s.replaced_images = vec!["example.org/".to_owned()];
        s.trusted_images = vec!["ghcr.io/".to_owned()];
    },
    |s| s.runner_data_pvc.storage_class_name = Some("fast".to_owned()),
    |s| s.image_repository.create = false,
    |s| {
        s.load_balancer_service = LoadBalancerService::On {
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        }
    },
    |s| s.accelerator.kvm_resource = Some("example.org/kvm".to_owned()),
    |s| s.accelerator.kvm_resource = Some(names::RESOURCE_KVM_IF_PRESENT.to_owned()),
    |s| s.accelerator.policy = Policy::Kvm,
    |s| {
        s.pod_defaults.node_selector = Some([("pool".to_owned(), "vms".to_owned())].into());
        s.pod_defaults.priority_class_name = Some("high".to_owned());
        s.pod_defaults.tolerations = Some(Vec::new());
    },
];

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// The text of the value with the keys of its maps in the opposite order.
fn reversed(value: &Value) -> String {
    let list = |items: Vec<String>| items.join(",");
    match value {
        Value::Object(map) => {
            let parts = map
                .iter()
                .rev()
                .map(|(name, part)| format!("{}:{}", json!(name), reversed(part)));
            format!("{{{}}}", list(parts.collect()))
        }
        Value::Array(items) => format!("[{}]", list(items.iter().map(reversed).collect())),
        other => other.to_string(),
    }
}

fn running(spec: &[Value]) -> Value {
    let mut vm = json!({
        "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "status": {},
        "metadata": {"name": "vm", "namespace": "ns", "uid": "vm-uid", "generation": 3, "resourceVersion": "10"},
        "spec": {"vm": {"state": "Running"}},
    });
    spec.iter().for_each(|part| merge(&mut vm["spec"], part));
    vm
}

fn pod_of(vm: &VirtualMachine, settings: &Reconciler) -> Pod {
    build(&plan(&alone(vm.clone()), settings).unwrap()).pod
}

fn seen(pod: &Pod) -> PodView {
    let mut pod = serde_json::to_value(pod).unwrap();
    merge(
        &mut pod,
        &json!({"metadata": {"uid": "pod-uid"}, "status": {"phase": "Running"}}),
    );
    serde_json::from_value(pod).unwrap()
}

/// The decision and the condition for a VM that runs in this pod, by an operator with these settings.
fn verdict(
    vm: VirtualMachine,
    settings: &Reconciler,
    pod: PodView,
) -> (Decision, Option<DesiredCondition>) {
    let observed = with_pod(vm, pod.clone());
    let desired = build(&plan(&observed, settings).unwrap()).pod;
    let shutdown_period = observed.vm.spec.shutdown_period();
    (
        decide(&observed, true),
        required(&desired, shutdown_period, &pod),
    )
}

proptest! {
    #[test]
    fn only_changes_by_the_user_require_a_restart(
        parts in subsequence(spec_parts(), 0..=spec_parts().len()),
        before in subsequence(SETTINGS.to_vec(), 0..=SETTINGS.len()),
        after in subsequence(SETTINGS.to_vec(), 0..=SETTINGS.len()),
        forgotten in 0usize..30,
    ) {
        let (mut old, mut new) = (Reconciler::default(), Reconciler::default());
        before.iter().for_each(|edit| edit(&mut old));
        after.iter().for_each(|edit| edit(&mut new));
        let text = running(&parts);
        let vm: VirtualMachine = serde_json::from_value(text.clone()).unwrap();
        let pod = pod_of(&vm, &old);
        // Another order of the fields of the spec.
        let vm: VirtualMachine = serde_json::from_str(&reversed(&text)).unwrap();
        prop_assert_eq!(verdict(vm.clone(), &new, seen(&pod)), (Decision::Keep, None));
        // A pod of another version of the operator, which lacked one field and had an unknown one.
        let mut pod = pod;
        let mut hashes = started_with(pod.annotations()).unwrap();
        if let Some(name) = hashes.keys().nth(forgotten).cloned() {
            hashes.remove(&name);
        }
        hashes.insert("spec.vm.unheardOf".to_owned(), "00".to_owned());
        let annotations = pod.metadata.annotations.as_mut().unwrap();
        annotations.insert(names::ANNOTATION_STARTED_WITH.to_owned(), json!(hashes).to_string());
        annotations.insert(names::ANNOTATION_VERSION.to_owned(), "99.0.0".to_owned());
        prop_assert_eq!(verdict(vm, &new, seen(&pod)), (Decision::Keep, None));
    }
}

#[test]
fn each_part_that_a_running_machine_cannot_follow_is_found_by_the_same_means() {
    let settings = Reconciler::default();
    let base: VirtualMachine = serde_json::from_value(running(&[])).unwrap();
    let pod = seen(&pod_of(&base, &settings));
    let live = ["loadBalancerService"];
    for part in spec_parts() {
        let vm: VirtualMachine =
            serde_json::from_value(running(std::slice::from_ref(&part))).unwrap();
        let (decision, condition) = verdict(vm, &settings, pod.clone());
        assert_eq!(decision, Decision::Keep, "{part}");
        let is_live = live.iter().any(|field| part.get(field).is_some());
        assert_eq!(condition.is_none(), is_live, "{part}: {condition:?}");
    }
}

#[test]
fn pods_that_are_there_keep_their_hashes() {
    // A changed hash would require a restart of every running VM. If that cannot be avoided, rename the field in `identity::fields` and the
    // key of all other fields.
    let vm: VirtualMachine = serde_json::from_value(running(&spec_parts())).unwrap();
    let pod = pod_of(&vm, &Reconciler::default());
    let stored = include_str!("started-with.json");
    let stored: BTreeMap<String, String> = serde_json::from_str(stored).unwrap();
    let now = started_with(pod.annotations()).unwrap();
    let changed: Vec<_> = stored
        .iter()
        .filter(|(field, hash)| now.get(*field) != Some(hash))
        .collect();
    assert!(
        changed.is_empty(),
        "{changed:?}; now {}",
        serde_json::to_string_pretty(&now).unwrap()
    );
    // For pods with the short form, a field of a later version was not set.
    let smallest: VirtualMachine = serde_json::from_value(running(&[])).unwrap();
    let smallest = pod_of(&smallest, &Reconciler::default());
    let mut now = started_with(smallest.annotations()).unwrap();
    now.retain(|field, hash| !stored.contains_key(field) && hash != UNSET);
    assert_eq!(now, BTreeMap::new(), "hash the default as an unset field");
}

#[test]
fn short_form_of_the_hashes_has_the_same_meaning() {
    let settings = Reconciler::default();
    let with =
        |parts: &[Value]| -> VirtualMachine { serde_json::from_value(running(parts)).unwrap() };
    let base = with(&[]);
    for part in spec_parts() {
        let changed = with(std::slice::from_ref(&part));
        for (before, after) in [(&base, &changed), (&changed, &base), (&changed, &changed)] {
            let pod = pod_of(before, &settings);
            let forms = [pod.clone(), with_short_hashes(pod)];
            let [long, short] = forms.map(|pod| verdict(after.clone(), &settings, seen(&pod)));
            assert_eq!(long, short, "{part}");
        }
    }
}

#[test]
fn restart_request_of_zero_is_recorded_without_a_restart() {
    let base: VirtualMachine = serde_json::from_value(running(&[])).unwrap();
    let pod = seen(&pod_of(&base, &Reconciler::default()));
    let counted = |request: u8| {
        let vm = running(&[json!({"vm": {"restartRequest": request}})]);
        let observed = with_pod(serde_json::from_value(vm).unwrap(), pod.clone());
        (is_due(&observed), carried_out(&observed, false))
    };
    assert_eq!([counted(0), counted(1)], [(false, Some(0)), (true, None)]);
    assert_eq!(carried_out(&with_pod(base, pod), false), None);
}

#[test]
fn a_smaller_margin_of_the_operator_that_created_the_pod_needs_no_restart() {
    let settings = Reconciler::default();
    let vm: VirtualMachine = serde_json::from_value(running(&[])).unwrap();
    let mut pod = pod_of(&vm, &settings);
    let verdict_for = |pod: &Pod, timeout: i64| {
        let mut vm = vm.clone();
        vm.spec.vm.powerdown_timeout += timeout;
        verdict(vm, &settings, seen(pod)).1
    };
    assert!(verdict_for(&pod, 6).is_some());
    let grace = &mut pod.spec.as_mut().unwrap().termination_grace_period_seconds;
    *grace = grace.map(|grace| grace - 5);
    assert_eq!(verdict_for(&pod, 0), None);
    assert!(verdict_for(&pod, 1).is_some());
}
