//! The controller with instances of EC2, and its scenarios.

use super::ec2::{self, Ec2, REGION};
use super::{ADAPTOR, DEVELOPER_MODE, PEERPOD, change, delete, delete_pod, leaders, pod_is_gone};
use crate::components::Cluster;
use crate::enumeration::run::Run;
use crate::enumeration::{Controller, Scenario, Step};
use crate::layer::Layer;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use std::time::Duration;
use vm_operator::controllers::peerpod::PeerPodController;
use vm_operator::https::{HttpsClient, HttpsError};
use vm_operator::k8s::leader::Leadership;
use vm_operator::settings::peerpod::Sweep;

/// The controller, which also deletes orphans.
pub const CONTROLLER: Controller = Controller {
    kinds: &[PEERPOD],
    start: |layer, namespace, timings| {
        leaders::start(layer, namespace, timings, Sweep::Delete, provide)
    },
    is_settled,
    ..super::CONTROLLER
};

fn provide(
    controller: &mut PeerPodController,
    layer: &Layer,
    namespace: &str,
    leadership: Leadership,
) {
    let client = client(layer, namespace, leadership);
    controller.https = Box::new(move |_| Ok(client.clone()));
}

/// A client whose calls pass the layer. An operator that calls without leadership does not survive it.
fn client(layer: &Layer, namespace: &str, leadership: Leadership) -> HttpsClient {
    let (layer, services) = (layer.clone(), Ec2::new(layer.server(), namespace));
    HttpsClient::with_exchange(move |request| {
        let (layer, services, leads) = (layer.clone(), services.clone(), leadership.leads());
        async move {
            let action = ec2::action(&request);
            assert!(leads, "{action} without leadership");
            let answer = layer.call(&action, services.answer(&request), ec2::rejection);
            answer.await.map_err(HttpsError::new)
        }
        .boxed()
    })
}

/// No `PeerPod` is being deleted, each one has the note about its instance, and no instance or address outlives its pod.
fn is_settled(cluster: &Cluster, namespace: &str) -> bool {
    let present = cluster.present(namespace);
    let is_right = |((kind, _), object): (&(&str, String), &Value)| {
        let data = &object["data"];
        let is_noted = object["metadata"]["annotations"][SEEN].is_string();
        let pod = data["pod"].as_str().map(|pod| ("Pod", pod.to_owned()));
        (*kind != "PeerPod" || is_noted)
            && (data["state"] == "terminated" || pod.is_none_or(|pod| present.contains_key(&pod)))
    };
    super::is_settled(cluster, namespace) && present.iter().all(is_right)
}

/// Creates a pod, its instance, and the `PeerPod` of both.
fn create<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        config_map(run, ADAPTOR, json!({"AWS_REGION": REGION})).await;
        let pod = super::pod(run).await;
        instance(run, ID, "pod").await;
        super::peerpod(run, "one", &pod, "aws", ID).await;
    }
    .boxed()
}

/// Creates an instance of that pod, and its address.
async fn instance(run: &Run, id: &str, pod: &str) {
    let cluster = super::cluster_uid(run).await;
    let name = format!("podvm-{pod}-{}", &id[2..]);
    let instance = json!({"state": "running", "name": name, "cluster": cluster, "pod": pod});
    config_map(run, id, instance).await;
    let (name, association) = (format!("eip-{id}"), format!("eipassoc-{id}"));
    let address = json!({"name": name, "association": association, "instance": id, "pod": pod});
    config_map(run, &format!("eipalloc-{id}"), address).await;
}

pub(super) async fn config_map(run: &Run, name: &str, data: Value) {
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    run.cluster.make(&run.namespace, "ConfigMap", object).await;
}

/// Creates an instance of no pod, and one of a pod whose `PeerPod` the cloud-api-adaptor could not create.
fn orphan<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        instance(run, "i-0000000b", "gone").await;
        instance(run, "i-0000000c", "pod").await;
    }
    .boxed()
}

/// Deletes the instance as the cloud-api-adaptor does, but without the removal of the finalizer. EC2 forgets it.
fn forget<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    async {
        pod_is_gone(run).await;
        delete(run, "ConfigMap", &format!("eipalloc-{ID}")).await;
        delete(run, "ConfigMap", ID).await;
    }
    .boxed()
}

pub(super) async fn set(run: &Run, after: u64, name: &str, key: &str, value: &str) {
    tokio::time::sleep(Duration::from_secs(after)).await;
    change(run, "ConfigMap", name, json!({"data": {key: value}})).await;
}

const ID: &str = "i-0000000a";

/// The annotation in which the controller notes that it has seen the instance.
const SEEN: &str = "peerpod.vmoperator.jdrupes.org/seen";

const CREATED: &[Step] = &[Step::Act(create), Step::Start];
/// The patch changes nothing, and follows the note about the instance.
const NOTED: &[Step] = &[Step::Act(create), Step::Start, Step::Patch("{}")];

/// EC2 does not show the instance for some time.
const HIDE: Step = Step::Act(|run, _| set(run, 0, ID, "isHidden", "true").boxed());
const SHOW: Step = Step::Act(|run, _| set(run, 120, ID, "isHidden", "false").boxed());
/// The configuration names another region, for longer than the time after which an absence is proved.
const LEAVE: Step = Step::Act(|run, _| set(run, 0, ADAPTOR, "AWS_REGION", "us-east-1").boxed());
const RETURN: Step = Step::Act(|run, _| set(run, 400, ADAPTOR, "AWS_REGION", REGION).boxed());
const RETAIN: Step = Step::Act(|run, _| set(run, 0, ADAPTOR, DEVELOPER_MODE, "true").boxed());
const DELETE: Step = Step::Act(|run, _| set(run, 40, ADAPTOR, DEVELOPER_MODE, "false").boxed());

pub(super) const POD_ENDS: Step = Step::Act(delete_pod);
const ENDED: Option<(&str, &str)> = Some(("ConfigMap/i-0000000a", "terminated"));
const ORPHAN_ENDED: Option<(&str, &str)> = Some(("ConfigMap/i-0000000b", "terminated"));

pub(super) const fn scenario(
    name: &'static str,
    before: &'static [Step],
    steps: &'static [Step],
    says: Option<(&'static str, &'static str)>,
) -> Scenario {
    Scenario {
        before,
        ..super::scenario(name, steps, says)
    }
}

/// The scenarios.
pub const SCENARIOS: &[Scenario] = &[
    scenario("aws-ends", CREATED, &[POD_ENDS], ENDED),
    scenario("aws-forgotten", NOTED, &[POD_ENDS, Step::Act(forget)], None),
    scenario("aws-hidden", NOTED, &[HIDE, POD_ENDS, SHOW], ENDED),
    scenario("aws-region", NOTED, &[LEAVE, POD_ENDS, RETURN], ENDED),
    scenario("aws-retained", NOTED, &[RETAIN, POD_ENDS, DELETE], ENDED),
    scenario("aws-sweep", NOTED, &[Step::Act(orphan)], ORPHAN_ENDED),
];
