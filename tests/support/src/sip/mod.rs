//! The controller of `SIPClusters`, and its scenarios. No baremetal-operator runs: hosts are objects with a status.

mod invariants;

use crate::components::{Cluster, Kind};
use crate::enumeration::run::Run;
use crate::enumeration::{self, Controller, Scenario, Started, Step};
use crate::install;
use crate::layer::Layer;
use crate::timings::Timings;
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::ByteString;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use std::sync::Arc;
use vm_operator::controllers::sip::{MANAGER, SipController};
use vm_operator::k8s;
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
    judge: invariants::judge,
};

fn start(layer: &Layer, namespace: &str, timings: &Timings) -> Started {
    operate(
        enumeration::cluster(layer, namespace, timings, MANAGER),
        namespace,
    )
}

/// Starts the controller. Jump hosts have a constant key.
#[must_use]
pub fn operate(cluster: k8s::cluster::Cluster, namespace: &str) -> Started {
    let settings = SipSettings::default();
    let mut controller = SipController::new(cluster, namespace.to_owned(), settings);
    controller.host_key = || Ok([("key".to_owned(), ByteString(b"secret".to_vec()))].into());
    let mut tasks = Tasks::default();
    let changes = controller.watch(&mut tasks);
    enumeration::started(Arc::new(controller), changes, tasks)
}

/// The cluster is ready with one pod for each service, or does not exist.
fn is_settled(cluster: &Cluster, namespace: &str) -> bool {
    let present = cluster.present(namespace);
    let of_kind = |wanted: &'static str| {
        let all = present.iter().filter(move |((kind, _), _)| *kind == wanted);
        all.filter(|(_, object)| object["metadata"]["labels"][LABEL] == "tenant")
    };
    let (pods, deployments) = (of_kind("Pod"), of_kind("Deployment"));
    let is_replacing = pods.clone().count() > deployments.count();
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

/// Creates an available host with network data and a BMC.
pub async fn create_host(cluster: &Cluster, namespace: &str, name: &str, address: &str) {
    let networks = json!({"networks": [{"id": "oam", "type": "ipv4", "ip_address": address}]});
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{name}-network")},
        "stringData": {"networkData": networks.to_string()},
    });
    cluster.make(namespace, "Secret", secret).await;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{name}-bmc")},
        "stringData": {"username": "admin", "password": "qwertz"},
    });
    cluster.make(namespace, "Secret", secret).await;
    let bmc = json!({"address": format!("redfish://10.0.1.1/redfish/v1/Systems/{name}"), "credentialsName": format!("{name}-bmc")});
    let host = json!({
        "apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": name},
        "spec": {"online": true, "networkData": {"name": format!("{name}-network")}, "bmc": bmc},
    });
    cluster.make(namespace, "BareMetalHost", host).await;
    let status = json!({"status": {
        "provisioning": {"state": "available", "ID": ""}, "operationalStatus": "OK", "errorMessage": "", "errorCount": 0,
        "poweredOn": true, "provisioningFailCount": 0,
    }});
    let written = cluster.merge("BareMetalHost", namespace, name, "status", status);
    written.await.unwrap();
}

/// Creates three hosts.
fn hosts<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        for (n, name) in ["a", "b", "c"].into_iter().enumerate() {
            create_host(&run.cluster, &run.namespace, name, &format!("10.0.0.{n}")).await;
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

/// The reason of the cluster's condition `Ready`.
fn reason(run: &Run) -> String {
    let sip = run.cluster.get(&run.namespace, "SIPCluster", "tenant");
    crate::final_state::ready(sip.as_ref())
}

/// Deletes the ConfigMap with the name of a child. The controller tries again after one to two minutes, longer than a run counts as ended.
fn free_name<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    let config_maps = run.cluster.api("ConfigMap", Some(&run.namespace));
    async move {
        let params = DeleteParams::default();
        drop(config_maps.delete(FOREIGN, &params).await.unwrap());
        run.until(|run| {
            let fails = reason(run) == "InfraServiceFailure";
            fails.then(|| "the cluster still reports the name".to_owned())
        })
        .await
    }
    .boxed()
}

/// Makes the kind `BareMetalHost` unknown, and creates a ConfigMap with a template of the Airship SIP operator.
fn hide_hosts<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    run.set_unknown(Some("baremetalhosts"));
    let metadata = json!({"name": "loadbalancerworker"});
    let template = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
    async {
        drop(
            run.cluster
                .make(&run.namespace, "ConfigMap", template)
                .await,
        )
    }
    .boxed()
}

/// Makes the kind `BareMetalHost` known when the cluster has reported that it is missing.
fn show_hosts<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        run.until(|run| {
            let reason = reason(run);
            let is_missing = reason == "BareMetalHostKindMissing";
            (!is_missing).then(|| format!("the missing kind is not reported: {reason}"))
        })
        .await;
        run.set_unknown(None);
    }
    .boxed()
}

/// Creates a second cluster, which wants all hosts.
fn create_rival<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    let balancer = json!({"image": "", "nodePort": 30644, "nodeInterfaceId": "oam"});
    let rival = json!({
        "apiVersion": "airship.airshipit.org/v1", "kind": "SIPCluster", "metadata": {"name": "rival"},
        "spec": {"nodes": {"ControlPlane": {"count": {"active": 3}}}, "services": {"loadBalancerControlPlane": [balancer]}},
    });
    async { drop(run.cluster.make(&run.namespace, "SIPCluster", rival).await) }.boxed()
}

const SPEC: &str = r#"{
    "nodes": {"ControlPlane": {"count": {"active": 2}}},
    "services": {"loadBalancerControlPlane": [{"image": "", "nodePort": 30643, "nodeInterfaceId": "oam"}]}
}"#;

const WITH_JUMP_HOST: &str = r#"{
    "nodes": {"ControlPlane": {"count": {"active": 2}}},
    "services": {
        "loadBalancerControlPlane": [{"image": "", "nodePort": 30643, "nodeInterfaceId": "oam"}],
        "jumpHost": [{"image": "", "nodePort": 30022, "nodeInterfaceId": "oam", "nodeSSHPrivateKeys": "a-bmc"}]
    }
}"#;
const WITH_WORKERS: &str = r#"{
    "nodes": {"ControlPlane": {"count": {"active": 1}}, "Worker": {"count": {"active": 1, "standby": 1}}},
    "services": {
        "loadBalancerWorker": [{"image": "", "nodePortRange": {"start": 30001, "end": 30002}, "nodeInterfaceId": "oam"}],
        "auth": [{"image": "dex", "nodePort": 30556}]
    }
}"#;
const BMC: &str = r#"{"spec": {"services": {"jumpHost": [{
    "image": "", "nodePort": 30022, "nodeInterfaceId": "oam", "nodeSSHPrivateKeys": "a-bmc", "bmc": {"proxy": true}
}]}}}"#;
const ALIAS: Option<(&str, &str)> = Some(("ConfigMap/jumphost-tenant", "HostName 10.0.0.1"));

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
    scenario(
        "sip-role-in-use",
        CREATED,
        &[Step::Act(consume), Step::Patch(NO_ROLE)],
        "HostsInUse",
        Some((
            "ConfigMap/loadbalancer-controlplane-tenant",
            "server a 10.0.0.0:6443",
        )),
    ),
    scenario(
        "sip-kind-appears",
        &[],
        &[
            Step::Act(hosts),
            Step::Act(hide_hosts),
            Step::Start,
            Step::Create,
            Step::Act(show_hosts),
        ],
        SUCCEEDED,
        // The first report of the cluster is not that of a look for templates.
        Some(("SIPCluster/tenant", "IgnoredField")),
    ),
    // The second cluster lacks a host until the last one of the first cluster is free.
    scenario(
        "sip-compete",
        CREATED,
        &[Step::Act(create_rival), Step::Delete],
        "",
        Some((
            "ConfigMap/loadbalancer-controlplane-rival",
            "server c 10.0.0.2:6443",
        )),
    ),
    Scenario {
        spec: WITH_WORKERS,
        ..scenario(
            "sip-workers",
            NEW,
            &[Step::Create],
            SUCCEEDED,
            Some((
                "ConfigMap/loadbalancer-worker-tenant",
                "server c 10.0.0.2:30002",
            )),
        )
    },
    Scenario {
        spec: WITH_JUMP_HOST,
        ..scenario("sip-jump-host", NEW, &[Step::Create], SUCCEEDED, ALIAS)
    },
    Scenario {
        spec: WITH_JUMP_HOST,
        ..scenario(
            "sip-jump-host-bmc",
            CREATED,
            &[Step::Patch(BMC)],
            SUCCEEDED,
            ALIAS,
        )
    },
];
