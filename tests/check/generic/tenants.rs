//! The scenarios of the third kind, and its set in a process.

use super::kinds::{SECOND, scenario};
use super::tenant::{Tenant, TenantSettings, Tenants};
use axum::body::Body;
use axum::http::Request;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, CustomResourceExt};
use serde_json::{Value, json};
use std::time::Duration;
use support::components::Kind;
use support::enumeration::run::Run;
use support::enumeration::simulated::{self, NAMESPACE};
use support::enumeration::{self, Controller, Scenario, Started, Step};
use support::fault::Fault;
use support::layer::Layer;
use support::memory::Server;
use support::timings::{self, Timings};
use tower::ServiceExt;
use vm_operator::k8s::cluster::Cluster;
use vm_operator::k8s::leader::{Candidate, Leadership};
use vm_operator::operator::set::{ControllerSet, Start};
use vm_operator::settings::Section;

static CONTROLLER: Controller = Controller {
    kinds: &[Kind::new("foreign.example.org", "Tenant", "tenants")
        .owner()
        .cluster_scoped()],
    name: "a",
    follows: &["tenants", "configmaps"],
    definitions: || vec![serde_json::to_string(&Tenant::crd()).unwrap()],
    prepare: |client| enumeration::create_namespace(client, SECOND).boxed(),
    start,
    is_settled: |cluster, namespace| {
        let tenant = cluster.get(namespace, "Tenant", "a");
        tenant.is_none_or(|tenant| {
            tenant["status"]["conditions"][0]["observedGeneration"]
                == tenant["metadata"]["generation"]
        })
    },
    is_reported: |place, fault| {
        let is_rejected = matches!(fault, Fault::Refused(403 | 422));
        is_rejected && place.starts_with("PATCH configmaps/")
    },
    reports: |cluster, namespace, message| {
        let tenant = cluster.get(namespace, "Tenant", "a").unwrap_or_default();
        let reported = tenant["status"]["conditions"][0]["message"].as_str();
        reported.is_some_and(|reported| reported.contains(message))
    },
    judge: |run| {
        let mut quotas = Vec::new();
        for entry in &run.history {
            let name = entry.object["metadata"]["name"].clone();
            match (entry.kind, entry.deleted) {
                ("ConfigMap", false) => quotas.push(name),
                ("ConfigMap", true) => quotas.retain(|quota| *quota != name),
                // A deletion in the foreground has the same effect.
                ("Tenant", true) if quotas.contains(&name) => {
                    return vec![format!("{name} is gone before its quota")];
                }
                _ => {}
            }
        }
        Vec::new()
    },
};

fn started(cluster: Cluster) -> Start {
    let text = "/Tenants: {size_max: 5}\n/Manager: {}";
    let (settings, warnings) = TenantSettings::parse(text, "f").unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let never = futures::future::pending().boxed().shared();
    let mut start = Start::new(cluster, NAMESPACE.to_owned(), never);
    Tenants::start(&[], &settings, &mut start);
    start
}

fn start(layer: &Layer, namespace: &str, timings: &Timings) -> Started {
    let manager = Tenants::DEFINITION.manager;
    let cluster = enumeration::cluster(layer, namespace, timings, manager);
    let metrics = cluster.metrics.clone();
    let Start {
        runs, mut tasks, ..
    } = started(cluster);
    let task = tokio::spawn(async move {
        tokio::select! {
            _ = futures::future::join_all(runs) => {}
            ended = tasks.ended() => panic!("{ended}"),
        }
    });
    let failing = "vm_operator_backoff_objects{controller=\"tenants\"} 1";
    let busy_reason = move || metrics.text().contains(failing).then(|| failing.to_owned());
    Started {
        task,
        busy_reason: Box::new(busy_reason),
    }
}

fn create_undecodable<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    run.cluster
        .make("", "Tenant", undecodable())
        .map(drop)
        .boxed()
}

fn undecodable() -> Value {
    json!({"apiVersion": "foreign.example.org/v1", "kind": "Tenant", "metadata": {"name": "b"}, "spec": {"size": "many"}})
}

const SPEC: &str = r#"{"size": 2}"#;
const CREATED: &[Step] = &[Step::Start, Step::Create];
const LARGE: Step = Step::Patch(r#"{"spec": {"size": 9}}"#);
const EMPTY: Step = Step::Patch(r#"{"spec": {"size": 0}}"#);
const QUOTA: &str = "ConfigMap/second/a";

static SCENARIOS: &[Scenario] = &[
    scenario(
        "tenant",
        SPEC,
        &[],
        CREATED,
        "Applied",
        Some((QUOTA, r#""size":"2""#)),
    ),
    scenario(
        "tenant-large",
        SPEC,
        CREATED,
        &[LARGE],
        "Applied",
        Some((QUOTA, r#""size":"5""#)),
    ),
    scenario("tenant-deleted", SPEC, CREATED, &[Step::Delete], "", None),
    scenario("tenant-empty", SPEC, CREATED, &[EMPTY], "", None),
    scenario(
        "tenant-undecodable",
        SPEC,
        CREATED,
        &[Step::Act(create_undecodable), LARGE],
        "Applied",
        Some((QUOTA, r#""size":"5""#)),
    ),
];

#[test]
fn faults_at_each_call_of_a_kind_with_a_finalizer_lead_to_the_same_end() {
    simulated::check(&CONTROLLER, SCENARIOS);
}

async fn page(start: &Start, path: &str) -> String {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = start.pages.clone().router().oneshot(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap();
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn set_waits_for_its_foreign_kind_and_names_the_command_of_its_owner() {
    let server = Server::new(1);
    timings::follow_virtual_clock(server.now());
    let client = server.client(NAMESPACE);
    enumeration::create_namespace(&client, NAMESPACE).await;
    enumeration::create_namespace(&client, SECOND).await;
    let mut cluster = Cluster::new(client.clone(), Tenants::DEFINITION.manager);
    (cluster.now, cluster.instant) = (timings::now, timings::instant);
    (cluster.leadership, cluster.foreign) = (Leadership::waiting(), Tenants::DEFINITION.foreign);
    let (leadership, leases) = (
        cluster.leadership.clone(),
        Api::namespaced(client.clone(), NAMESPACE),
    );
    let mut candidate = Candidate::new(leases, Tenants::DEFINITION.lease, "one", leadership);
    let mut start = started(cluster);
    let runs = std::mem::take(&mut start.runs);
    let runs = tokio::spawn(futures::future::join_all(runs));
    let soon = || tokio::time::sleep(Duration::from_secs(60));
    soon().await;
    let text = page(&start, "/readyz").await;
    assert!(text.contains("kubectl apply -f tenants.yaml"), "{text}");

    server.install_crd(&serde_json::to_string(&Tenant::crd()).unwrap());
    soon().await;
    assert_eq!(page(&start, "/readyz").await, "ok");
    let election = tokio::spawn(async move { candidate.run().await });
    soon().await;
    let lease = Api::<Lease>::namespaced(client.clone(), NAMESPACE)
        .get("tenants")
        .await
        .unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some("one"));
    let request = Request::post("/apis/foreign.example.org/v1/tenants")
        .header("Content-Type", "application/json");
    let request = request
        .body(undecodable().to_string().into_bytes())
        .unwrap();
    client.request::<Value>(request).await.unwrap();
    soon().await;
    let text = page(&start, "/metrics").await;
    assert!(
        text.contains("undecodable_objects{controller=\"tenants\"} 1"),
        "{text}"
    );
    let events = Api::<Event>::all(client)
        .list(&ListParams::default())
        .await
        .unwrap();
    let note = events
        .items
        .iter()
        .find_map(|event| event.note.clone())
        .unwrap_or_default();
    assert!(
        note.contains("spec.size") && note.contains("tenants.yaml"),
        "{note}"
    );
    election.abort();
    runs.abort();
}
