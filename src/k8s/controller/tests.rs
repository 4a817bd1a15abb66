use super::*;
use crate::k8s::cluster::Manager;
use k8s_openapi::api::core::v1::ConfigMap;

struct Fake {
    cluster: Cluster,
    states: States<()>,
}

impl Reconciler for Fake {
    type Object = ConfigMap;
    type State = ();
    const NAME: &'static str = "fake";

    fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn states(&self) -> &States<()> {
        &self.states
    }

    fn objects(&self) -> Store<ConfigMap> {
        kube::runtime::reflector::store().0
    }

    async fn reconcile(&self, _: Arc<ConfigMap>) -> Result<Outcome, Error> {
        Ok(Outcome::Done)
    }
}

fn fake() -> Fake {
    let nothing = tower::service_fn(async |_| {
        Ok::<_, std::convert::Infallible>(axum::http::Response::new(kube::client::Body::empty()))
    });
    let manager = Manager {
        field_manager: "fake",
        reporter: "fake",
        action: "Reconcile",
    };
    Fake {
        cluster: Cluster::new(kube::Client::new(nothing, "ns"), manager),
        states: States::new(Duration::from_secs(1), || 0.0),
    }
}

fn key() -> ObjectKey {
    ObjectKey::new("ns", "a")
}

fn conflict() -> Error {
    let status = serde_json::json!({"code": 409, "message": "the object has been modified", "reason": "Conflict"});
    let source = kube::Error::Api(serde_json::from_value(status).unwrap());
    Error::Api {
        verb: "patch",
        kind: "Pod".into(),
        name: "a".to_owned(),
        source,
    }
}

#[tokio::test]
async fn who_is_always_too_late_waits_longer_and_longer_until_it_goes_well() {
    let fake = fake();
    let pauses = |n: usize| -> Vec<Action> {
        (0..n)
            .map(|_| after_failure(&fake, &key(), &conflict()))
            .collect()
    };
    let expected = [
        1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000, 30_000, 30_000,
    ];
    assert_eq!(
        pauses(10),
        expected.map(|ms| Action::requeue(Duration::from_millis(ms)))
    );
    guarded(&fake, &key(), async { Ok(Outcome::Done) })
        .await
        .unwrap();
    assert_eq!(pauses(1), [Action::requeue(Duration::from_secs(1))]);
}

#[tokio::test]
async fn a_server_that_is_busy_is_asked_when_it_says() {
    let fake = fake();
    let busy = |seconds: u32| {
        let details = serde_json::json!({"retryAfterSeconds": seconds});
        let status =
            serde_json::json!({"code": 429, "message": "m", "reason": "r", "details": details});
        let source = kube::Error::Api(serde_json::from_value(status).unwrap());
        Error::Api {
            verb: "patch",
            kind: "Pod".into(),
            name: "a".to_owned(),
            source,
        }
    };
    for seconds in [45, 1, 1] {
        assert_eq!(
            after_failure(&fake, &key(), &busy(seconds)),
            Action::requeue(Duration::from_secs(seconds.into()))
        );
    }
}

#[tokio::test]
async fn a_panic_is_one_objects_failure() {
    let fake = fake();
    let error = guarded(&fake, &key(), async { panic!("poisoned") })
        .await
        .unwrap_err();
    assert_eq!(
        (error.reason(), error.to_string().as_str()),
        (
            "InternalError",
            "internal error of the operator; report it as a bug: poisoned"
        )
    );
    assert_eq!(
        after_failure(&fake, &key(), &error),
        Action::requeue(Duration::from_secs(1))
    );
    assert_eq!(
        after_failure(&fake, &key(), &error),
        Action::requeue(Duration::from_secs(2))
    );
    let done = guarded(&fake, &key(), async { Ok(Outcome::Done) })
        .await
        .unwrap();
    assert_eq!((done, fake.states.failing()), (Action::await_change(), 0));
}

#[tokio::test]
async fn queue_counts_additions_waits_and_retries() {
    let fake = fake();
    let has = |name: &str, value: &str| {
        let text = fake.cluster.metrics.text();
        let line = format!(r#"workqueue_{name}{{controller="fake",name="fake"}} {value}"#);
        assert!(text.lines().any(|other| other == line), "{line}: {text}");
    };
    fake.queue().enqueue(&key(), Duration::ZERO);
    fake.queue().enqueue(&key(), Duration::ZERO);
    fake.queue().update_depth();
    has("depth", "1");
    has("adds_total", "1");
    guarded(&fake, &key(), async { Err(conflict()) })
        .await
        .unwrap_err();
    has("queue_duration_seconds_count", "1");
    after_failure(&fake, &key(), &conflict());
    fake.queue().update_depth();
    // The retry is not due yet.
    has("depth", "0");
    has("adds_total", "2");
    has("retries_total", "1");
}

#[tokio::test(start_paused = true)]
async fn a_reconcile_that_hangs_is_given_up() {
    let error = guarded(&fake(), &key(), std::future::pending())
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "Timeout");
}
