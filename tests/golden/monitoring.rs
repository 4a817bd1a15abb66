//! Dashboard and alert rules are about figures that there are.

use super::root;
use std::collections::BTreeSet;
use vm_operator::operator::metrics::Metrics;

/// The operator's figures, as Prometheus stores them.
fn served() -> BTreeSet<String> {
    let metrics = Metrics::default();
    metrics.reconciled("Done", 0.0);
    metrics.requested("get", "vms");
    metrics.set_vms(["Running"].into_iter());
    metrics.set_stored("vms", 1);
    let text = metrics.text();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| line.split([' ', '{']).next().unwrap().to_owned()).collect()
}

fn named(file: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("deploy/monitoring").join(file)).unwrap();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(str::to_owned);
    words.filter(|word| word.starts_with("vm_operator_")).collect()
}

#[test]
fn dashboard_and_alerts_name_figures_that_are_served() {
    let served = served();
    for file in ["dashboard.json", "rules.yaml"] {
        let named = named(file);
        assert!(named.len() > 4, "{file}: {named:?}");
        let unknown: Vec<_> = named.difference(&served).collect();
        assert!(unknown.is_empty(), "{file} names what is not served: {unknown:?}");
    }
    // Each is shown somewhere; a histogram by one of its series.
    let shown: BTreeSet<_> = named("dashboard.json").union(&named("rules.yaml")).cloned().collect();
    let shown = |name: &String| {
        let stem = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        shown.contains(name) || stem.is_some_and(|stem| shown.contains(&format!("{stem}_bucket")))
    };
    assert_eq!(served.iter().filter(|name| !shown(name)).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn the_dashboard_is_json() {
    let text = std::fs::read_to_string(root().join("deploy/monitoring/dashboard.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(panel["targets"].as_array().is_some_and(|targets| !targets.is_empty()), "{}", panel["title"]);
    }
}
