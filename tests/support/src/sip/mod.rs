//! The controller of `SIPClusters`, and its scenarios. No baremetal-operator runs: hosts are objects with a status.

use crate::components::{Cluster, Entry, Kind};
use crate::enumeration::run::Run;
use crate::enumeration::{self, Controller, History, Scenario, Started, Step};
use crate::install;
use crate::layer::Layer;
use crate::timings::Timings;
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use vm_operator::controllers::sip::{MANAGER, SipController};
use vm_operator::k8s::tasks::Tasks;
use vm_operator::settings::sip::SipSettings;

const CLUSTER: Kind = Kind::new("airship.airshipit.org", "SIPCluster", "sipclusters").owner();

const HOST: Kind = Kind {
    version: "v1alpha1",
    ..Kind::new("metal3.io", "BareMetalHost", "baremetalhosts")
};

const DEPLOYMENT: Kind = Kind::new("apps", "Deployment", "deployments").owner();

const BUDGET: Kind = Kind::new("policy", "PodDisruptionBudget", "poddisruptionbudgets");

/// The label of a host: name of its cluster.
const LABEL: &str = "sip.airshipit.org/cluster-name";

/// The controller of `SIPClusters`.
pub const CONTROLLER: Controller = Controller {
    kinds: &[CLUSTER, HOST, DEPLOYMENT, BUDGET],
    name: "tenant",
    follows: &[
        "sipclusters",
        "baremetalhosts",
        "secrets",
        "configmaps",
        "deployments",
        "services",
        "poddisruptionbudgets",
        "pods",
    ],
    definitions: install::definitions,
    prepare: |_| async {}.boxed(),
    start,
    is_settled,
    // A rejected request is reported, and sent again after a minute.
    is_reported: |_, _| false,
    reports: |_, _, _| false,
    judge,
};

fn start(layer: &Layer, namespace: &str, timings: &Timings) -> Started {
    let cluster = enumeration::cluster(layer, namespace, timings, MANAGER);
    let settings = SipSettings::default();
    let controller = SipController::new(cluster, namespace.to_owned(), settings);
    let mut tasks = Tasks::default();
    let changes = controller.watch(&mut tasks);
    enumeration::started(Arc::new(controller), changes, tasks)
}

/// The cluster is ready with one pod, or does not exist.
fn is_settled(cluster: &Cluster, namespace: &str) -> bool {
    let present = cluster.present(namespace);
    let pods = present.iter().filter(|((kind, _), _)| *kind == "Pod");
    let is_replacing = pods.clone().count() > 1;
    let Some(sip) = cluster.get(namespace, "SIPCluster", "tenant") else {
        return pods.count() == 0;
    };
    let conditions = sip["status"]["conditions"].as_array();
    let ready = conditions.and_then(|all| all.iter().find(|it| it["type"] == "Ready"));
    let is_current = |ready: &Value| {
        ready["observedGeneration"] == sip["metadata"]["generation"]
            && ready["reason"] != "Progressing"
    };
    !is_replacing && sip["metadata"]["deletionTimestamp"].is_null() && ready.is_some_and(is_current)
}

/// The course of a run, as far as the invariants need it.
#[derive(Default)]
struct Seen {
    /// Whether each host has the labels of the cluster.
    members: BTreeMap<String, bool>,
    /// The configuration of the load balancer.
    text: String,
    /// The configuration with which each pod was created.
    pods: BTreeMap<String, String>,
    /// The largest number of wanted hosts.
    wanted: u64,
    is_ending: bool,
    found: Vec<String>,
}

impl Seen {
    fn host(&mut self, entry: &Entry, name: String) {
        let object = &entry.object;
        let is_member = !entry.deleted && object["metadata"]["labels"][LABEL] == "tenant";
        let was_member = self.members.insert(name.clone(), is_member) == Some(true);
        if !was_member || is_member || entry.deleted || self.is_ending {
            return;
        }
        if !object["spec"]["consumerRef"].is_null() {
            self.found.push(format!(
                "host {name} has a consumer, and has lost its labels"
            ));
        }
        if self.pods.values().any(|text| names(text, &name)) {
            self.found.push(format!(
                "host {name} has lost its labels before a pod that uses it has ended"
            ));
        }
    }

    fn entry(&mut self, entry: &Entry) {
        let object = &entry.object;
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let is_ending = entry.deleted || !object["metadata"]["deletionTimestamp"].is_null();
        match entry.kind {
            "BareMetalHost" => self.host(entry, name),
            "ConfigMap" if !is_ending && !self.is_ending => {
                object["data"]["haproxy.cfg"]
                    .as_str()
                    .unwrap_or_default()
                    .clone_into(&mut self.text);
                let others = self.members.iter().filter(|(_, is_member)| !**is_member);
                let named = others.filter(|(host, _)| names(&self.text, host));
                self.found.extend(named.map(|(host, _)| {
                    format!("a load balancer names {host}, which is not in the cluster")
                }));
            }
            "Pod" if entry.deleted => drop(self.pods.remove(&name)),
            "Pod" => drop(self.pods.entry(name).or_insert_with(|| self.text.clone())),
            "SIPCluster" => {
                self.is_ending = is_ending;
                let wanted = object["spec"]["nodes"]["ControlPlane"]["count"]["active"].as_u64();
                self.wanted = self.wanted.max(wanted.unwrap_or_default());
            }
            _ => {}
        }
        let members = self
            .members
            .values()
            .filter(|is_member| **is_member)
            .count() as u64;
        if members > self.wanted {
            self.found.push(format!(
                "{members} hosts are in the cluster, which wants {}",
                self.wanted
            ));
        }
    }
}

fn names(configuration: &str, host: &str) -> bool {
    configuration.contains(&format!("server {host} "))
}

/// A load balancer names only hosts of the cluster, and a host that leaves keeps its labels until no pod uses it. The cluster never has more
/// hosts than it has ever wanted. A host with a consumer keeps its labels.
fn judge(history: &History) -> Vec<String> {
    let mut seen = Seen::default();
    for entry in &history.history {
        seen.entry(entry);
    }
    seen.found
}

/// Creates a host with network data.
async fn host(run: &Run, name: &str, address: &str) {
    let networks = json!({"networks": [{"id": "oam", "type": "ipv4", "ip_address": address}]});
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{name}-network")},
        "stringData": {"networkData": networks.to_string()},
    });
    run.cluster.make(&run.namespace, "Secret", secret).await;
    let host = json!({
        "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": name},
        "spec": {"online": true, "networkData": {"name": format!("{name}-network")}},
    });
    run.cluster
        .make(&run.namespace, "BareMetalHost", host)
        .await;
    let status = json!({"status": {
        "provisioning": {"state": "available", "ID": ""}, "operationalStatus": "OK", "errorMessage": "", "errorCount": 0,
        "poweredOn": true, "provisioningFailCount": 0,
    }});
    let written = run
        .cluster
        .merge("BareMetalHost", &run.namespace, name, "status", status);
    written.await.unwrap();
}

/// Creates three hosts.
fn hosts<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        for (n, name) in ["a", "b", "c"].into_iter().enumerate() {
            host(run, name, &format!("10.0.0.{n}")).await;
        }
    }
    .boxed()
}

/// Deletes the host `a`.
fn delete_host<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    let hosts = run.cluster.api("BareMetalHost", Some(&run.namespace));
    async move { drop(hosts.delete("a", &DeleteParams::default()).await.unwrap()) }.boxed()
}

/// Gives the host `a` a consumer, as the Metal3 provider of Cluster API does.
fn consume<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    let consumer = json!({"spec": {"consumerRef": {"kind": "Metal3Machine", "name": "machine"}}});
    async {
        let written = run
            .cluster
            .merge("BareMetalHost", &run.namespace, "a", "", consumer);
        written.await.unwrap();
    }
    .boxed()
}

const FOREIGN: &str = "loadbalancer-controlplane-tenant";

/// Creates a ConfigMap with the name of a child. It has no owner, and no label by which the controller would see its deletion.
fn take_name<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    let taken = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": FOREIGN}});
    async { drop(run.cluster.make(&run.namespace, "ConfigMap", taken).await) }.boxed()
}

fn free_name<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    let config_maps = run.cluster.api("ConfigMap", Some(&run.namespace));
    let params = DeleteParams::default();
    async move { drop(config_maps.delete(FOREIGN, &params).await.unwrap()) }.boxed()
}

const SPEC: &str = r#"{
    "nodes": {"ControlPlane": {"count": {"active": 2}}},
    "services": {"loadBalancerControlPlane": [{"image": "", "nodePort": 30643, "nodeInterfaceId": "oam"}]}
}"#;

const NEW: &[Step] = &[Step::Act(hosts), Step::Start];
const CREATED: &[Step] = &[Step::Act(hosts), Step::Start, Step::Create];

const fn scenario(
    name: &'static str,
    before: &'static [Step],
    steps: &'static [Step],
    ready: &'static str,
    says: Option<(&'static str, &'static str)>,
) -> Scenario {
    Scenario {
        name,
        spec: SPEC,
        before,
        steps,
        ready,
        says,
    }
}

const THREE: &str = r#"{"spec": {"nodes": {"ControlPlane": {"count": {"active": 3}}}}}"#;
const ONE: &str = r#"{"spec": {"nodes": {"ControlPlane": {"count": {"active": 1}}}}}"#;
const NO_ROLE: &str = r#"{"spec": {"nodes": {"ControlPlane": null}}}"#;

const SUCCEEDED: &str = "ReconciliationSucceeded";
const SERVED: Option<(&str, &str)> = Some((
    "ConfigMap/loadbalancer-controlplane-tenant",
    "server b 10.0.0.1:6443",
));

/// The scenarios.
pub const SCENARIOS: &[Scenario] = &[
    scenario("sip-claim", NEW, &[Step::Create], SUCCEEDED, SERVED),
    scenario(
        "sip-expand",
        CREATED,
        &[Step::Patch(THREE)],
        SUCCEEDED,
        Some((
            "ConfigMap/loadbalancer-controlplane-tenant",
            "server c 10.0.0.2:6443",
        )),
    ),
    scenario(
        "sip-contract",
        CREATED,
        &[Step::Patch(ONE)],
        SUCCEEDED,
        None,
    ),
    scenario(
        "sip-in-use",
        CREATED,
        &[Step::Act(consume), Step::Patch(ONE)],
        SUCCEEDED,
        Some((
            "ConfigMap/loadbalancer-controlplane-tenant",
            "server a 10.0.0.0:6443",
        )),
    ),
    scenario(
        "sip-no-role",
        CREATED,
        &[Step::Patch(NO_ROLE)],
        SUCCEEDED,
        None,
    ),
    scenario(
        "sip-member-lost",
        CREATED,
        &[Step::Act(delete_host)],
        SUCCEEDED,
        Some((
            "ConfigMap/loadbalancer-controlplane-tenant",
            "server c 10.0.0.2:6443",
        )),
    ),
    scenario(
        "sip-service-fails",
        &[
            Step::Act(hosts),
            Step::Act(take_name),
            Step::Start,
            Step::Create,
        ],
        &[Step::Act(free_name)],
        SUCCEEDED,
        SERVED,
    ),
    scenario("sip-delete", CREATED, &[Step::Delete], "", None),
];
