use super::*;
use crate::controllers::peerpod::MANAGER;
use crate::k8s::cluster::Cluster;
use crate::settings::peerpod::{AwsProvider, PeerPodSettings, Providers};
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

const ID: &str = "i-0123456789abcdef0";

/// A change after the report of the orphan, and before its deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Nothing,
    PeerPod,
    Pod,
    FailedList,
    DeveloperMode,
    Tag,
}

/// The double of both services.
struct Services {
    change: Change,
    has_changed: AtomicBool,
    terminations: AtomicUsize,
}

impl Services {
    fn is_now(&self, change: Change) -> bool {
        self.change == change && self.has_changed.load(Ordering::Relaxed)
    }

    /// The answer of the API server. It has no Deployment for the event.
    fn object(&self, path: &str) -> (u16, Value) {
        let list = |items: Value| (200, json!({"metadata": {}, "items": items}));
        let named = |change, item| {
            let items = if self.is_now(change) {
                vec![item]
            } else {
                vec![]
            };
            list(json!(items))
        };
        match path.rsplit('/').next().unwrap() {
            "peer-pods-cm" => {
                let mode = self.is_now(Change::DeveloperMode).to_string();
                (
                    200,
                    json!({"data": {"AWS_REGION": "r", "PEERPODS_DEVELOPER_MODE": mode}}),
                )
            }
            "kube-system" => (
                200,
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"uid": "cluster"}}),
            ),
            "pods" if self.is_now(Change::FailedList) => (500, json!({})),
            "pods" => named(Change::Pod, json!({"metadata": {"name": "a"}})),
            "peerpods" => named(
                Change::PeerPod,
                json!({"spec": {"cloudProvider": 1, "instanceID": ID}}),
            ),
            name => {
                // The report looks for the Deployment, for its event.
                self.has_changed
                    .fetch_or(name == "vm-operator-peerpod", Ordering::Relaxed);
                let details = json!({"name": name});
                (
                    404,
                    json!({"status": "Failure", "reason": "NotFound", "code": 404, "message": "", "details": details}),
                )
            }
        }
    }

    /// The answer of EC2 and STS.
    fn answer(&self, body: &str) -> String {
        let action = body.split(['=', '&']).nth(1).unwrap();
        let uid = if self.is_now(Change::Tag) {
            "other"
        } else {
            "cluster"
        };
        let content = match action {
            "GetCallerIdentity" => {
                "<GetCallerIdentityResult><Account>1</Account></GetCallerIdentityResult>".to_owned()
            }
            "DescribeInstances" => format!(
                "<reservationSet><item><instancesSet><item><instanceId>{ID}</instanceId><instanceState><name>running</name></instanceState>\
                 <tagSet><item><key>Name</key><value>podvm-a-0123abcd</value></item><item><key>caa-cluster-uid</key><value>{uid}</value></item>\
                 </tagSet></item></instancesSet></item></reservationSet>"
            ),
            "DescribeAddresses" => "<addressesSet/>".to_owned(),
            "DescribeNetworkInterfaces" => "<networkInterfaceSet/>".to_owned(),
            "TerminateInstances" => {
                self.terminations.fetch_add(1, Ordering::Relaxed);
                String::new()
            }
            _ => panic!("{action}"),
        };
        format!("<{action}Response>{content}</{action}Response>")
    }
}

static MINUTES: AtomicU64 = AtomicU64::new(0);

fn instant() -> Instant {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *START.get_or_init(Instant::now) + Duration::from_secs(60 * MINUTES.load(Ordering::Relaxed))
}

async fn controller(services: Arc<Services>) -> PeerPodController {
    let of_api = services.clone();
    let api = tower::service_fn(move |request: http::Request<Body>| {
        let (status, object) = of_api.object(request.uri().path());
        let body = Body::from(object.to_string().into_bytes());
        async move { Ok::<_, Infallible>(http::Response::builder().status(status).body(body).unwrap()) }
    });
    let answer = async move |body: String| services.answer(&body);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = Some(format!("http://{}", listener.local_addr().unwrap()));
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(answer)).await });
    let aws = AwsProvider {
        endpoint: url.clone(),
        sts_endpoint: url,
    };
    let settings = PeerPodSettings {
        providers: Providers { aws },
        sweep: Sweep::Delete,
        ..PeerPodSettings::default()
    };
    let mut cluster = Cluster::new(kube::Client::new(api, "ns"), MANAGER);
    cluster.instant = instant;
    let keys = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    let keys = keys.map(|key| (key.to_owned(), "k".to_owned()));
    PeerPodController::new(cluster, "ns".to_owned(), settings, HashMap::from(keys))
}

#[tokio::test]
async fn orphan_is_deleted_only_if_it_is_still_one() {
    for (change, expected) in [
        (Change::Nothing, 1),
        (Change::PeerPod, 0),
        (Change::Pod, 0),
        (Change::FailedList, 0),
        (Change::DeveloperMode, 0),
        (Change::Tag, 0),
    ] {
        let services = Arc::new(Services {
            change,
            has_changed: AtomicBool::new(false),
            terminations: AtomicUsize::new(0),
        });
        let controller = controller(services.clone()).await;
        let mut memory = Memory::default();
        controller.sweep(&mut memory).await.unwrap();
        MINUTES.fetch_add(30, Ordering::Relaxed);
        let swept = controller.sweep(&mut memory).await;
        assert_eq!(swept.is_err(), change == Change::FailedList, "{swept:?}");
        assert!(services.has_changed.load(Ordering::Relaxed), "{change:?}");
        let terminations = services.terminations.load(Ordering::Relaxed);
        assert_eq!(terminations, expected, "{change:?}");
    }
}
