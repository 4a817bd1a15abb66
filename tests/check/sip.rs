//! A `SIPCluster` on an API server in memory, on virtual time: its requests when it is ready, and its reports about rejected requests and
//! lost hosts.

use http::Response;
use kube::Client;
use kube::api::DeleteParams;
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::components::Cluster as Components;
use support::enumeration::{Started, simulated::NAMESPACE};
use support::memory::Server;
use support::{install, sip, timings};
use vm_operator::api::sip::names::LABEL_CLUSTER_NAME;
use vm_operator::controllers::sip::MANAGER;
use vm_operator::k8s::cluster::Cluster;

const SUCCEEDED: &str = "ReconciliationSucceeded";
const FORBIDDEN: &str = "quota of the test";

/// The requests of the controller without watches: method and path.
#[derive(Clone, Default)]
struct Requests {
    sent: Arc<Mutex<Vec<String>>>,
    /// The end of the paths of rejected patches.
    rejected: Arc<Mutex<Option<&'static str>>>,
}

impl Requests {
    fn client(&self, server: &Server) -> Client {
        let (requests, server) = (self.clone(), server.client(NAMESPACE));
        let send = move |request: http::Request<Body>| {
            let (requests, server) = (requests.clone(), server.clone());
            async move {
                match requests.rejection(&request) {
                    Some(rejection) => Ok(rejection),
                    None => server.send(request).await,
                }
            }
        };
        Client::new(tower::service_fn(send), NAMESPACE)
    }

    fn rejection(&self, request: &http::Request<Body>) -> Option<Response<Body>> {
        if request
            .uri()
            .query()
            .is_some_and(|query| query.contains("watch=true"))
        {
            return None;
        }
        let sent = format!("{} {}", request.method(), request.uri().path());
        let rejected = *self.rejected.lock().unwrap();
        let is_rejected =
            rejected.is_some_and(|end| sent.starts_with("PATCH") && sent.ends_with(end));
        self.sent.lock().unwrap().push(sent);
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": FORBIDDEN, "reason": "Forbidden", "code": 403,
        });
        let answer = || {
            Response::builder()
                .status(403)
                .body(status.to_string().into_bytes().into())
        };
        is_rejected.then(|| answer().unwrap())
    }

    fn reject(&self, rejected: Option<&'static str>) {
        *self.rejected.lock().unwrap() = rejected;
    }

    /// The requests since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.sent.lock().unwrap())
    }
}

/// A running controller, and three hosts.
struct World {
    server: Server,
    components: Components,
    requests: Requests,
    cluster: Cluster,
    controller: Started,
}

impl World {
    async fn new() -> Self {
        let (server, requests) = (Server::new(1), Requests::default());
        timings::follow_virtual_clock(server.now());
        for definition in install::definitions() {
            server.install_crd(&definition);
        }
        server.create_namespace(NAMESPACE);
        let client = server.client(NAMESPACE);
        let kinds = sip::CONTROLLER.kinds;
        let components = Components::start_single(client, NAMESPACE, kinds).await;
        for (n, name) in ["a", "b", "c"].into_iter().enumerate() {
            sip::create_host(&components, NAMESPACE, name, &format!("10.0.0.{n}")).await;
        }
        let mut cluster = Cluster::new(requests.client(&server), MANAGER);
        (cluster.now, cluster.instant) = (timings::now, timings::instant);
        let controller = sip::operate(cluster.clone(), NAMESPACE);
        Self {
            server,
            components,
            requests,
            cluster,
            controller,
        }
    }

    /// Creates a cluster with two hosts and these services.
    async fn create(&self, services: Value) {
        let object = json!({
            "apiVersion": "airship.airshipit.org/v1", "kind": "SIPCluster", "metadata": {"name": "tenant"},
            "spec": {"nodes": {"ControlPlane": {"count": {"active": 2}}}, "services": services},
        });
        self.components.make(NAMESPACE, "SIPCluster", object).await;
    }

    /// Waits until `Ready` has the reason. Returns its message.
    async fn reason(&self, reason: &str) -> String {
        let ready = || {
            let sip = self.components.get(NAMESPACE, "SIPCluster", "tenant");
            let status = sip.map(|sip| sip["status"]["conditions"][0].clone());
            status.unwrap_or_default()
        };
        for _ in 0..300 {
            if ready()["reason"] == reason {
                return ready()["message"].as_str().unwrap().to_owned();
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("not {reason}: {}", ready());
    }

    /// The hosts with the label of the cluster.
    fn members(&self) -> Vec<String> {
        let hosts = self.components.present(NAMESPACE).into_iter();
        let hosts = hosts.filter(|((kind, _), _)| *kind == "BareMetalHost");
        let members =
            hosts.filter(|(_, host)| host["metadata"]["labels"][LABEL_CLUSTER_NAME] == "tenant");
        members.map(|((_, name), _)| name).collect()
    }

    /// The notes of the events with that reason.
    async fn events(&self, reason: &str) -> Vec<String> {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events");
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        let client = self.server.client(NAMESPACE);
        let events: Value = client.request(request).await.unwrap();
        let events = events["items"].as_array().unwrap().iter();
        let events = events.filter(|event| event["reason"] == reason);
        events
            .map(|event| event["note"].as_str().unwrap().to_owned())
            .collect()
    }

    /// The number of reconciles.
    fn reconciles(&self) -> u64 {
        let metrics = self.cluster.metrics.text();
        let lines = metrics.lines();
        let lines = lines.filter(|line| line.starts_with("vm_operator_reconciles_total{"));
        lines
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    }

    async fn delete(&self, kind: &str, name: &str) {
        let objects = self.components.api(kind, Some(NAMESPACE));
        objects
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }
}

fn balancer() -> Value {
    json!({"loadBalancerControlPlane": [{"image": "", "nodePort": 30643, "nodeInterfaceId": "oam"}]})
}

#[tokio::test(start_paused = true)]
async fn ready_cluster_causes_no_request_though_it_is_reconciled() {
    let world = World::new().await;
    let mut services = balancer();
    services["jumpHost"] = json!([{
        "image": "", "nodePort": 30022, "nodeInterfaceId": "oam", "nodeSSHPrivateKeys": "a-bmc", "bmc": {"proxy": true},
    }]);
    services["auth"] = json!([{"image": "dex", "nodePort": 30556}]);
    world.create(services).await;
    world.reason(SUCCEEDED).await;
    tokio::time::sleep(Duration::from_secs(90)).await;
    world.requests.take();
    let before = world.reconciles();
    // A member and a free host change, as the baremetal-operator changes them all the time.
    for host in ["a", "c"] {
        let status = json!({"status": {"poweredOn": false}});
        let written = world
            .components
            .merge("BareMetalHost", NAMESPACE, host, "status", status);
        written.await.unwrap();
        tokio::time::sleep(Duration::from_secs(90)).await;
    }
    assert!(world.reconciles() >= before + 2, "{}", world.reconciles());
    assert_eq!(world.requests.take(), [""; 0]);
    world.controller.task.abort();
}

#[tokio::test(start_paused = true)]
async fn rejected_labels_are_reported_and_tried_again_after_a_minute_or_two() {
    let world = World::new().await;
    world.requests.reject(Some("/baremetalhosts/b"));
    world.create(balancer()).await;
    let message = world.reason("UnableToApplyLabels").await;
    assert!(
        message.contains(FORBIDDEN) && message.contains("apply deploy/sip again"),
        "{message}"
    );
    // The first claim is taken back, and nothing is repeated before the minute ends.
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(world.members(), [""; 0]);
    let sent = world.requests.take();
    let patches = sent
        .iter()
        .filter(|sent| sent.starts_with("PATCH") && sent.contains("baremetalhosts"));
    assert_eq!(patches.count(), 3, "{sent:?}");
    world.requests.reject(None);
    world.reason(SUCCEEDED).await;
    assert_eq!(world.members(), ["a", "b"]);

    world.requests.reject(Some("/baremetalhosts/a"));
    world.delete("SIPCluster", "tenant").await;
    let message = world.reason("UnableToDecommission").await;
    assert!(message.contains(FORBIDDEN), "{message}");
    assert_eq!(world.members(), ["a"]);
    world.requests.reject(None);
    tokio::time::sleep(Duration::from_secs(130)).await;
    assert_eq!(world.members(), [""; 0]);
    assert!(
        world
            .components
            .get(NAMESPACE, "SIPCluster", "tenant")
            .is_none()
    );
    world.controller.task.abort();
}

#[tokio::test(start_paused = true)]
async fn deleted_member_is_replaced_and_an_event_names_it() {
    let world = World::new().await;
    world.create(balancer()).await;
    world.reason(SUCCEEDED).await;
    assert_eq!(world.members(), ["a", "b"]);
    world.delete("BareMetalHost", "a").await;
    tokio::time::sleep(Duration::from_secs(90)).await;
    world.reason(SUCCEEDED).await;
    assert_eq!(world.members(), ["b", "c"]);
    assert_eq!(
        world.events("HostLost").await,
        ["host a of role ControlPlane was deleted"]
    );
    world.controller.task.abort();
}

#[tokio::test(start_paused = true)]
async fn pods_that_do_not_start_are_reported_with_the_text_of_their_container() {
    const TEXT: &str = "ErrImagePull: no image has this name";
    let world = World::new().await;
    world.create(balancer()).await;
    world.reason(SUCCEEDED).await;
    let (reason, message) = TEXT.split_once(": ").unwrap();
    let waiting = json!({"waiting": {"reason": reason, "message": message}});
    for ((kind, name), _) in world.components.present(NAMESPACE) {
        let status = match kind {
            "Pod" => json!({"containerStatuses": [{"name": "main", "state": waiting}]}),
            "Deployment" => json!({"availableReplicas": 0}),
            _ => continue,
        };
        let status = json!({"status": status});
        let components = &world.components;
        let written = components.merge(kind, NAMESPACE, &name, "status", status);
        written.await.unwrap();
    }
    let message = world.reason("Progressing").await;
    assert!(message.contains(TEXT), "{message}");
    let sip = world.components.get(NAMESPACE, "SIPCluster", "tenant");
    let conditions = sip.unwrap()["status"]["conditions"].clone();
    let mut services = conditions.as_array().unwrap().iter();
    let services = services.find(|it| it["type"] == "ServicesReady").unwrap();
    assert_eq!(services["reason"], "PodsNotReady");
    assert_eq!(services["message"], *message);
    world.controller.task.abort();
}
