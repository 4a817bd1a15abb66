//! The objects of `deploy/monitoring`, and a scrape of an operator for `tests/monitoring/selftest`.

use crate::apiserver::leader::{FIRST, Process, server_address};
use crate::apiserver::objects::unschedulable_vm;
use crate::apiserver::world::{World, eventually, root};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use vm_operator::api::pool;
use vm_operator::api::vm::conditions;
use vm_operator::api::vm::names;
use vm_operator::api::{VirtualMachine, VmReport};
use vm_operator::controllers::peerpod::metrics::PeerPodMetrics;
use vm_operator::controllers::sip::metrics::SipMetrics;
use vm_operator::operator::sets::SETS;
use vm_operator::telemetry::metrics::Metrics;

/// The account of Prometheus in the manifests of kube-prometheus.
const PROMETHEUS: &str = "system:serviceaccount:monitoring:prometheus-k8s";

/// A PodMonitor for each set of controllers, for the web console and for VMs, the alerts, and the dashboards.
const OBJECTS: usize = SETS.len() + 4;

/// Asserts that the monitor selects the pod and one of its ports.
fn assert_scrapes(monitor: &Value, pod: &Value) {
    let selected = monitor["spec"]["selector"]["matchLabels"]
        .as_object()
        .unwrap();
    assert!(
        selected
            .iter()
            .all(|(name, value)| pod["metadata"]["labels"][name] == *value),
        "{selected:?}"
    );
    let [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        .as_array()
        .unwrap()
        .as_slice()
    else {
        panic!("one port")
    };
    let ports = pod["spec"]["containers"][0]["ports"].as_array().unwrap();
    assert!(
        ports.iter().any(|port| port["name"] == endpoint["port"]),
        "{ports:?}"
    );
    assert_eq!(endpoint["path"], "/metrics");
}

/// This cluster does not have the kinds of the Prometheus operator. The rendered names match the installed ones.
#[tokio::test]
async fn monitoring_scrapes_the_operator_that_is_installed() {
    let world = World::new("monitoring").await;
    let find = |objects: &[Value], kind: &str| {
        let mut found = objects
            .iter()
            .filter(|object| object["kind"] == kind)
            .cloned();
        found.next().unwrap_or_else(|| panic!("no {kind}"))
    };
    let rendered = world.kustomize("deploy/monitoring");
    assert_eq!(rendered.len(), OBJECTS);

    // The test of the VMs' monitor is in tests/check/golden/monitoring.rs.
    let sets = SETS.iter().map(|set| (set.folder, set.name));
    for (folder, name) in sets.chain([("web", "vm-web")]) {
        let installed = world.kustomize(&format!("deploy/{folder}"));
        let installed = find(&installed, "Deployment");
        assert_eq!(installed["metadata"]["name"], name);
        let monitor = rendered
            .iter()
            .find(|object| object["kind"] == "PodMonitor" && object["metadata"]["name"] == name);
        let monitor = monitor.unwrap_or_else(|| panic!("no PodMonitor of {name}"));
        assert_scrapes(monitor, &installed["spec"]["template"]);
    }

    let rules = find(&rendered, "PrometheusRule");
    assert!(
        rules["spec"]["groups"][0]["rules"]
            .as_array()
            .unwrap()
            .len()
            > 4
    );
    let dashboards = find(&rendered, "ConfigMap");
    world.dry_run_apply(&dashboards).await.unwrap();
    assert_eq!(
        dashboards["metadata"]["labels"]["grafana_dashboard"], "1",
        "Grafana's sidecar finds them"
    );
    for file in ["dashboard.json", "vms.json", "vm.json"] {
        let text = dashboards["data"][file].as_str().unwrap();
        let dashboard = serde_json::from_str::<Value>(text).unwrap();
        assert!(dashboard["panels"].as_array().unwrap().len() > 4, "{file}");
    }
}

/// The labels of all objects of a kind.
fn labels<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let objects = objects.iter().filter(|object| object["kind"] == kind);
    objects
        .map(|object| &object["metadata"]["labels"])
        .collect()
}

#[tokio::test]
async fn prometheus_of_the_chart_selects_monitors_and_rules_by_its_release() {
    let world = World::new("monitoring-stack").await;
    let rendered = world.kustomize("deploy/monitoring/kube-prometheus-stack");
    assert_eq!(rendered.len(), OBJECTS);
    let monitors = labels(&rendered, "PodMonitor");
    let rules = labels(&rendered, "PrometheusRule");
    assert_eq!((monitors.len(), rules.len()), (OBJECTS - 2, 1));
    for labels in monitors.into_iter().chain(rules) {
        assert_eq!(labels["release"], "kube-prometheus-stack");
    }
    // The label belongs to the objects and must not select pods.
    let selectors = rendered
        .iter()
        .filter_map(|object| object.pointer("/spec/selector/matchLabels"));
    assert!(
        selectors
            .into_iter()
            .all(|selector| selector["release"].is_null())
    );
}

#[tokio::test]
async fn prometheus_of_the_manifests_may_read_pods_and_no_secrets() {
    let world = World::new("monitoring-manifests").await;
    let rendered = world.kustomize("deploy/monitoring/kube-prometheus");
    let [rules] = labels(&rendered, "PrometheusRule")[..] else {
        panic!("one object with rules")
    };
    assert_eq!(
        (&rules["prometheus"], &rules["role"]),
        (&json!("k8s"), &json!("alert-rules"))
    );
    assert!(!world.may(PROMETHEUS, "list", "", "pods").await);
    let mut applied = 0;
    for object in &rendered {
        if ["Role", "RoleBinding"].contains(&object["kind"].as_str().unwrap()) {
            world.apply(object, false).await.unwrap();
            applied += 1;
        }
    }
    assert_eq!(applied, 2);
    for verb in ["get", "list", "watch"] {
        eventually("the binding is in force", || {
            world.may(PROMETHEUS, verb, "", "pods")
        })
        .await;
    }
    assert!(!world.may(PROMETHEUS, "delete", "", "pods").await);
    assert!(!world.may(PROMETHEUS, "get", "", "secrets").await);
}

/// Conditions of a runner with an emulated guest, a full disk, and a QEMU that does not answer.
fn problems() -> Vec<Value> {
    let problem = |type_: &str, reason: &str| {
        json!({
            "type": type_, "status": "False", "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    vec![
        problem(conditions::ACCELERATED, "KvmNotAvailable"),
        problem(conditions::STORAGE_HEALTHY, "DiskFull"),
        problem(conditions::QEMU_RESPONSIVE, "QemuSilent"),
    ]
}

/// Writes the report of the VM's runner.
async fn report(world: &World, vm: &str) {
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    let reports = Api::<VmReport>::namespaced(world.client.clone(), &world.namespace);
    eventually("the pod has a report", async || {
        let pod = pods.get_opt(vm).await.unwrap();
        let uid = pod.and_then(|pod| pod.uid()).unwrap_or_default();
        !uid.is_empty() && reports.get_opt(&uid).await.unwrap().is_some()
    })
    .await;
    let uid = pods.get(vm).await.unwrap().uid().unwrap();
    let body = json!({
        "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VmReport", "metadata": {"name": uid},
        "status": {"runnerVersion": "1", "cpus": 1, "ram": "1Gi", "displayPasswordSerial": -1, "conditions": problems()},
    });
    let params = PatchParams::apply(names::MANAGER_RUNNER).force();
    reports
        .patch_status(&uid, &params, &Patch::Apply(&body))
        .await
        .unwrap();
}

/// A pool with two assignments.
async fn create_pool(world: &World) {
    let pool =
        json!({"kind": "VmPool", "metadata": {"name": "desktops"}, "spec": {"permissions": []}});
    let claim = |user: &str| {
        let name = pool::names::assignment("desktops", user);
        json!({"kind": "VmAssignment", "metadata": {"name": name}, "spec": {"pool": "desktops", "user": user}})
    };
    for mut object in [pool, claim("anna"), claim("berta")] {
        object["apiVersion"] = "vmoperator.jdrupes.org/v1".into();
        world.apply(&object, false).await.unwrap();
    }
}

/// The file `.cache/scrapes/operator.prom` is the input of `tests/monitoring/selftest`.
#[tokio::test]
async fn operator_serves_the_conditions_of_each_vm() {
    let world = World::new("scrape").await;
    let operator = Process::start(&world, FIRST, &server_address()).await;
    let vms = Api::<VirtualMachine>::namespaced(world.client.clone(), &world.namespace);
    // The first user gets the VM, so that the operator starts it. The second one waits.
    create_pool(&world).await;
    let mut vm = unschedulable_vm("Stopped");
    vm.spec.pools = vec!["desktops".to_owned()];
    vms.create(&PostParams::default(), &vm).await.unwrap();
    report(&world, "vm").await;
    let namespace = &world.namespace;
    let series = problems()
        .iter()
        .map(|condition| {
            let type_ = condition["type"].as_str().unwrap();
            let labels =
                format!(r#"namespace="{namespace}",name="vm",type="{type_}",status="False""#);
            format!("vm_operator_vm_condition{{{labels}}} 1")
        })
        .chain([
            format!(r#"vm_operator_vm_restarts{{namespace="{namespace}",name="vm"}} 0"#),
            format!(r#"vm_operator_vm_info{{namespace="{namespace}",name="vm","#),
            r#"vm_operator_api_requests_total{verb="create",resource="pods",code="201"} 1"#
                .to_owned(),
            r#"workqueue_queue_duration_seconds_count{controller="vm",name="vm"} "#.to_owned(),
            "process_open_fds ".to_owned(),
            r#"vm_operator_pool_vms{pool="desktops",state="assigned"} 1"#.to_owned(),
            r#"vm_operator_pool_waiting{pool="desktops"} 1"#.to_owned(),
            r#"vm_operator_pool_assign_seconds_count{pool="desktops"} 1"#.to_owned(),
            r#"vm_operator_pool_conflicts_total{pool="desktops"} "#.to_owned(),
        ])
        .collect::<Vec<_>>();
    eventually("the operator has copied the report", async || {
        let answer = operator.get("/metrics").await;
        series.iter().all(|series| answer.contains(series))
    })
    .await;
    let answer = operator.get("/metrics").await;
    let (_, text) = answer.split_once("\r\n\r\n").unwrap();
    let folder = root().join(".cache/scrapes");
    std::fs::create_dir_all(&folder).unwrap();
    // The controllers of PeerPods and SIPClusters run in processes of their own.
    let metrics = Metrics::default();
    let peerpods = metrics.of::<PeerPodMetrics>();
    peerpods.failed("aws", "Throttled");
    peerpods.set_up("aws", true);
    peerpods.set_orphans("aws", 1);
    peerpods.set_pending(&BTreeMap::from([("Deleting", 1)]), 1);
    peerpods.orphan_deleted("aws");
    let sip = metrics.of::<SipMetrics>();
    sip.cluster("ReconciliationSucceeded");
    sip.hosts("ControlPlane", 1);
    let others = metrics.text();
    let is_own = |line: &&str| ["peerpod_", "sip_"].iter().any(|own| line.contains(own));
    let others = others.lines().filter(is_own);
    let others: String = others.map(|line| format!("{line}\n")).collect();
    let text = text.replace("# EOF", &format!("{others}# EOF"));
    std::fs::write(folder.join("operator.prom"), text).unwrap();
}
