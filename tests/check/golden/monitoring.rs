//! The metrics in the dashboards and the alert rules exist, and each alert has a runbook. The scrape configuration equals the PodMonitors.

use super::{json_of, root, sample_metrics, vm_of};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use vm_operator::api::runner::metrics;
use vm_operator::controllers::vm::objects;
use vm_operator::controllers::vm::plan::plan;
use vm_operator::operator::sets::SETS;
use vm_operator::settings::Reconciler;

const DASHBOARDS: [&str; 3] = ["dashboard.json", "vms.json", "vm.json"];

/// Prefixes of the metrics of operators and VMs.
const PREFIXES: [&str; 5] = [
    "vm_operator_",
    "vmoperator_",
    "kubevirt_vmi_",
    "process_",
    "workqueue_",
];

fn text(file: &str) -> String {
    let directory = root().join("deploy/monitoring/base");
    std::fs::read_to_string(directory.join(file)).unwrap()
}

/// The metrics of operators and VMs, as Prometheus stores them.
fn served() -> BTreeSet<String> {
    let text = sample_metrics().text();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let operator = samples.map(|line| line.split([' ', '{']).next().unwrap());
    let vms = metrics::ALL.iter().map(|metric| metric.name);
    operator.chain(vms).map(str::to_owned).collect()
}

fn named(file: &str) -> BTreeSet<String> {
    let text = text(file);
    let words = text
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .map(str::to_owned);
    words
        .filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix)))
        .collect()
}

#[test]
fn dashboards_and_alerts_name_metrics_that_are_served() {
    let served = served();
    let mut shown = BTreeSet::new();
    for file in DASHBOARDS.into_iter().chain(["rules.yaml"]) {
        let named = named(file);
        assert!(named.len() > 4, "{file}: {named:?}");
        let unknown: Vec<_> = named.difference(&served).collect();
        assert!(
            unknown.is_empty(),
            "{file} names what is not served: {unknown:?}"
        );
        shown.extend(named);
    }
    // Each metric is shown somewhere, a histogram by one of its series, and the sum of user and kernel time by its parts.
    let is_shown = |name: &String| {
        let stem = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end));
        shown.contains(name) || stem.is_some_and(|stem| shown.contains(&format!("{stem}_bucket")))
    };
    let hidden: Vec<_> = served.iter().filter(|name| !is_shown(name)).collect();
    assert_eq!(hidden, [""; 0]);
}

fn monitors() -> Vec<Value> {
    text("pod-monitor.yaml")
        .split("\n---\n")
        .map(|one| serde_saphyr::from_str(one).unwrap())
        .collect()
}

fn endpoint(monitor: &Value) -> Value {
    let endpoints = monitor["spec"]["podMetricsEndpoints"].as_array().unwrap();
    let [endpoint] = endpoints.as_slice() else {
        panic!("one port")
    };
    endpoint.clone()
}

#[test]
fn the_pods_of_vms_are_scraped_at_their_port() {
    let monitors = monitors();
    let monitor = monitors
        .iter()
        .find(|monitor| monitor["metadata"]["name"] == "vm-runner")
        .unwrap();
    let spec =
        json!({"metricsPort": 9555, "vm": {"maximumRam": "1Gi", "networks": [{"user": {}}]}});
    let pod = json_of(&objects::build(&plan(&vm_of(spec), &Reconciler::default()).unwrap()).pod);
    let labels = &pod["metadata"]["labels"];
    let selected = monitor["spec"]["selector"]["matchLabels"]
        .as_object()
        .unwrap();
    assert!(selected.len() == 2 && selected.iter().all(|(name, value)| labels[name] == *value));
    let endpoint = endpoint(monitor);
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
    assert_eq!(endpoint["path"], "/metrics");
    // The label of the pod from which the target gets the VM's name.
    assert_eq!(
        labels["app.kubernetes.io/instance"],
        pod["metadata"]["name"]
    );
}

#[test]
fn pod_of_the_console_is_scraped_at_its_port() {
    let file = root().join("deploy/web/deployment.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let deployment: Value = serde_saphyr::from_str(&text).unwrap();
    let pod = &deployment["spec"]["template"];
    let mut monitors = monitors().into_iter();
    let monitor = monitors.find(|monitor| monitor["metadata"]["name"] == "vm-web");
    let monitor = monitor.unwrap();
    let selected = &monitor["spec"]["selector"]["matchLabels"];
    assert_eq!(*selected, pod["metadata"]["labels"]);
    let ports = pod["spec"]["containers"][0]["ports"].as_array().unwrap();
    let endpoint = endpoint(&monitor);
    let scraped = ports.iter().find(|port| port["name"] == endpoint["port"]);
    assert_eq!(scraped.unwrap()["containerPort"], 8081);
}

#[test]
fn samples_cannot_replace_the_labels_of_their_target() {
    for monitor in monitors() {
        assert!(endpoint(&monitor)["honorLabels"].is_null(), "{monitor}");
    }
}

#[test]
fn targets_have_the_name_of_their_deployment() {
    let label = json!({
        "sourceLabels": ["__meta_kubernetes_pod_label_app_kubernetes_io_name"],
        "targetLabel": "deployment",
    });
    for set in SETS {
        let mut monitors = monitors().into_iter();
        let monitor = monitors.find(|monitor| monitor["metadata"]["name"] == set.name);
        let monitor = monitor.unwrap_or_else(|| panic!("no PodMonitor of {}", set.name));
        let selected = &monitor["spec"]["selector"]["matchLabels"];
        assert_eq!(selected["app.kubernetes.io/name"], set.name);
        let endpoint = endpoint(&monitor);
        let relabelings = endpoint["relabelings"].as_array();
        assert!(
            relabelings.is_some_and(|all| all.contains(&label)),
            "{monitor}"
        );
    }
}

/// Relabelings of a PodMonitor, with the names of fields that Prometheus uses.
fn in_scrape_configuration(relabelings: &Value) -> Vec<Value> {
    let relabelings = relabelings.as_array().into_iter().flatten();
    let renamed = relabelings.map(|one| {
        let fields = one.as_object().unwrap().iter().map(|(name, value)| {
            let name = match name.as_str() {
                "sourceLabels" => "source_labels",
                "targetLabel" => "target_label",
                other => other,
            };
            (name.to_owned(), value.clone())
        });
        Value::Object(fields.collect())
    });
    renamed.collect()
}

#[test]
fn scrape_configuration_has_an_equal_job_for_each_monitor() {
    let file = root().join("deploy/monitoring/prometheus.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let configuration: Value = serde_saphyr::from_str(&text).unwrap();
    let jobs = configuration["scrape_configs"].as_array().unwrap();
    let monitors = monitors();
    assert_eq!(jobs.len(), monitors.len());
    for monitor in monitors {
        let mut named = jobs
            .iter()
            .filter(|job| job["job_name"] == monitor["metadata"]["name"]);
        let job = named.next().unwrap_or_else(|| panic!("no job: {monitor}"));
        let endpoint = endpoint(&monitor);
        assert_eq!(job["scrape_interval"], endpoint["interval"]);
        assert_eq!(job["sample_limit"], monitor["spec"]["sampleLimit"]);

        let pods = &job["kubernetes_sd_configs"][0]["selectors"][0];
        let selected = pods["label"].as_str().unwrap().split(',');
        let selected: BTreeSet<_> = selected.map(str::to_owned).collect();
        let labels = monitor["spec"]["selector"]["matchLabels"]
            .as_object()
            .unwrap();
        let labels: BTreeSet<_> = labels
            .iter()
            .map(|(name, value)| format!("{name}={}", value.as_str().unwrap()))
            .collect();
        assert_eq!(selected, labels);

        let relabelings = job["relabel_configs"].as_array().unwrap();
        let port = json!({
            "action": "keep",
            "source_labels": ["__meta_kubernetes_pod_container_port_name"],
            "regex": endpoint["port"],
        });
        assert!(relabelings.contains(&port), "{job}");
        for one in in_scrape_configuration(&endpoint["relabelings"]) {
            assert!(relabelings.contains(&one), "{one} is missing: {job}");
        }
        let metrics = job["metric_relabel_configs"].as_array();
        assert_eq!(
            metrics.cloned().unwrap_or_default(),
            in_scrape_configuration(&endpoint["metricRelabelings"])
        );
    }
}

#[test]
fn each_alert_has_a_runbook_and_each_runbook_an_alert() {
    let rules: Value = serde_saphyr::from_str(&text("rules.yaml")).unwrap();
    let groups = rules["spec"]["groups"].as_array().unwrap();
    let rules = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap());
    let mut pages = BTreeSet::new();
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        let url = rule["annotations"]["runbook_url"].as_str().unwrap();
        assert_eq!(url, format!("docs/runbooks/{name}.md"));
        let page = std::fs::read_to_string(root().join(url)).unwrap();
        assert!(page.starts_with(&format!("# {name}\n")), "{url}");
        pages.insert(format!("{name}.md"));
    }
    let files = std::fs::read_dir(root().join("docs/runbooks")).unwrap();
    let files: BTreeSet<_> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(files, pages);
}
