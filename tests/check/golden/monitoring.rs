//! The metrics in the dashboard and the alert rules exist.

use super::{json_of, root, vm_of};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use vm_operator::controllers::vm::objects;
use vm_operator::controllers::vm::plan::plan;
use vm_operator::settings::Reconciler;
use vm_operator::telemetry::metrics::Metrics;

/// The operator's metrics, as Prometheus stores them.
fn served() -> BTreeSet<String> {
    let metrics = Metrics::default();
    metrics.reconciled("vm", "Done", 0.0);
    metrics.set_backoff("vm", 0);
    metrics.requested("get", "vms");
    metrics.set_vms(["Running"].into_iter());
    metrics.set_stored("vms", 1);
    metrics.pools.set_vms("desktops", "free", 1);
    metrics.pools.set_waiting("desktops", 0);
    metrics.pools.assigned("desktops", 0.1);
    metrics.pools.conflict("desktops");
    metrics.conditions.set_source(|sample| {
        sample(&[
            ("namespace", ""),
            ("name", ""),
            ("type", ""),
            ("status", ""),
        ]);
    });
    let text = metrics.text();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| line.split([' ', '{']).next().unwrap().to_owned())
        .collect()
}

fn named(file: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("deploy/monitoring").join(file)).unwrap();
    let words = text
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .map(str::to_owned);
    words
        .filter(|word| word.starts_with("vm_operator_"))
        .collect()
}

#[test]
fn dashboard_and_alerts_name_figures_that_are_served() {
    let served = served();
    for file in ["dashboard.json", "rules.yaml"] {
        let named = named(file);
        assert!(named.len() > 4, "{file}: {named:?}");
        let unknown: Vec<_> = named.difference(&served).collect();
        assert!(
            unknown.is_empty(),
            "{file} names what is not served: {unknown:?}"
        );
    }
    // Each metric is shown somewhere, a histogram by one of its series.
    let shown: BTreeSet<_> = named("dashboard.json")
        .union(&named("rules.yaml"))
        .cloned()
        .collect();
    let shown = |name: &String| {
        let stem = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end));
        shown.contains(name) || stem.is_some_and(|stem| shown.contains(&format!("{stem}_bucket")))
    };
    assert_eq!(
        served
            .iter()
            .filter(|name| !shown(name))
            .collect::<Vec<_>>(),
        [""; 0]
    );
}

#[test]
fn the_pods_of_vms_are_scraped() {
    let text = std::fs::read_to_string(root().join("deploy/monitoring/pod-monitor.yaml")).unwrap();
    let monitors: Vec<Value> = text
        .split("\n---\n")
        .map(|one| serde_saphyr::from_str(one).unwrap())
        .collect();
    let monitor = monitors
        .iter()
        .find(|monitor| monitor["metadata"]["name"] == "vm-runner")
        .unwrap();
    let spec =
        json!({"metricsPort": 9555, "vm": {"maximumRam": "1Gi", "networks": [{"user": {}}]}});
    let pod = json_of(&objects::build(&plan(&vm_of(spec), &Reconciler::default()).unwrap()).pod);
    let selected = monitor["spec"]["selector"]["matchLabels"]
        .as_object()
        .unwrap();
    assert!(
        selected.len() == 2
            && selected
                .iter()
                .all(|(name, value)| pod["metadata"]["labels"][name] == *value)
    );
    let [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        .as_array()
        .unwrap()
        .as_slice()
    else {
        panic!("one port")
    };
    let ports = pod["spec"]["containers"][0]["ports"].as_array().unwrap();
    let scraped: Vec<_> = ports
        .iter()
        .filter(|port| port["name"] == endpoint["port"])
        .collect();
    assert_eq!(
        (scraped.len(), &scraped[0]["containerPort"]),
        (1, &json!(9555)),
        "{ports:?}"
    );
    // Samples have labels that Prometheus adds, too. The labels of the samples win.
    assert_eq!(
        (&endpoint["path"], &endpoint["honorLabels"]),
        (&json!("/metrics"), &json!(true))
    );
}

#[test]
fn the_dashboard_is_json() {
    let text = std::fs::read_to_string(root().join("deploy/monitoring/dashboard.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(
            panel["targets"]
                .as_array()
                .is_some_and(|targets| !targets.is_empty()),
            "{}",
            panel["title"]
        );
    }
}
