//! A VM with every scheduling field, which neither the generator's VMs nor the examples have.

use serde_json::{Value, json};

/// Two values for each field, which differ where the API server allows it.
pub fn spec() -> Value {
    let selector = |name: &str| {
        json!({
            "matchLabels": {"app": name},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": [name, "all"]},
                {"key": "stage", "operator": "NotIn", "values": ["test"]},
            ],
        })
    };
    let of_pods = |name: &str, topology: &str| {
        json!({
            "topologyKey": topology, "labelSelector": selector(name), "namespaceSelector": selector(name),
            "namespaces": [name, "others"], "matchLabelKeys": [format!("{name}-like")],
            "mismatchLabelKeys": [format!("{name}-unlike")],
        })
    };
    let nodes = |name: &str, operator: &str| {
        json!({
            "matchExpressions": [{"key": "rack", "operator": operator, "values": [name]}],
            "matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}],
        })
    };
    let preferred = |term: &str, one: Value, two: Value| json!([{"weight": 1, term: one}, {"weight": 2, term: two}]);
    let (node, zone) = ("kubernetes.io/hostname", "topology.kubernetes.io/zone");
    let (one, two) = (of_pods("one", node), of_pods("two", zone));
    let pods = json!({
        "requiredDuringSchedulingIgnoredDuringExecution": [one, two],
        "preferredDuringSchedulingIgnoredDuringExecution": preferred("podAffinityTerm", two.clone(), one.clone()),
    });
    let (in_rack, not_in_rack) = (nodes("one", "In"), nodes("two", "NotIn"));
    let spread = |name: &str, topology: &str, unsatisfiable: &str| {
        json!({
            "maxSkew": 1, "topologyKey": topology, "whenUnsatisfiable": unsatisfiable, "labelSelector": selector(name),
            "matchLabelKeys": [format!("{name}-like")],
        })
    };
    let claim = json!({"selector": selector("disk"), "volumeMode": "Filesystem"});
    json!({
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [in_rack, not_in_rack]},
                "preferredDuringSchedulingIgnoredDuringExecution": preferred("preference", in_rack.clone(), not_in_rack.clone()),
            },
            "podAffinity": pods,
            "podAntiAffinity": pods.clone(),
        },
        "topologySpreadConstraints": [spread("one", node, "DoNotSchedule"), spread("two", zone, "ScheduleAnyway")],
        "vm": {"disks": [{"volumeClaimTemplate": {"metadata": {"name": "system"}, "spec": claim}}]},
    })
}
