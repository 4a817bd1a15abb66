use super::*;
use crate::k8s::cluster::Manager;
use crate::k8s::store::primary::PrimaryStore;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use std::sync::Mutex;

struct Fake {
    cluster: Cluster,
    states: States<()>,
    objects: PrimaryStore<ConfigMap>,
    /// The time since then, in milliseconds, and the object of each reconcile that has started.
    began: tokio::time::Instant,
    started: Mutex<Vec<(u128, String)>>,
}

impl Reconciler for Fake {
    type Object = ConfigMap;
    type State = ();
    const NAME: &'static str = "fake";
    const CONCURRENCY: u16 = 2;

    fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn states(&self) -> &States<()> {
        &self.states
    }

    fn objects(&self) -> Store<ConfigMap> {
        self.objects.reader()
    }

    async fn reconcile(&self, object: Arc<ConfigMap>) -> Result<Outcome, Error> {
        let started = (self.began.elapsed().as_millis(), object.name_any());
        self.started.lock().unwrap().push(started);
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(Outcome::Recheck(Duration::from_secs(10)))
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
        objects: PrimaryStore::default(),
        began: tokio::time::Instant::now(),
        started: Mutex::default(),
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
async fn backoff_of_conflicts_grows_until_a_reconcile_succeeds() {
    let fake = fake();
    let pauses = |n: usize| -> Vec<Duration> {
        (0..n)
            .map(|_| after_failure(&fake, &key(), &conflict()))
            .collect()
    };
    let expected = [
        1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000, 30_000, 30_000,
    ];
    assert_eq!(pauses(10), expected.map(Duration::from_millis));
    guarded(&fake, &key(), async { Ok(Outcome::Done) })
        .await
        .unwrap();
    assert_eq!(pauses(1), [Duration::from_secs(1)]);
}

#[tokio::test]
async fn retry_after_of_a_busy_server_is_respected() {
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
            Duration::from_secs(seconds.into())
        );
    }
}

#[tokio::test]
async fn panic_fails_only_one_object() {
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
    assert_eq!(after_failure(&fake, &key(), &error), Duration::from_secs(1));
    assert_eq!(after_failure(&fake, &key(), &error), Duration::from_secs(2));
    let done = guarded(&fake, &key(), async { Ok(Outcome::Done) })
        .await
        .unwrap();
    assert_eq!((done, fake.states.failing()), (Outcome::Done, 0));
}

fn object(name: &str) -> ConfigMap {
    serde_json::from_value(serde_json::json!({"metadata": {"name": name, "namespace": "ns"}}))
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn objects_are_reconciled_after_changes_and_delays_until_the_stop() {
    let fake = Arc::new(fake());
    fake.objects.watched(&Event::Init);
    for name in ["c", "b", "a"] {
        fake.objects.watched(&Event::InitApply(object(name)));
    }
    fake.objects.watched(&Event::InitDone);
    let began = fake.began;
    // The object x does not exist. The stop is during the last reconcile of b.
    let changes = [(500, "a"), (5000, "b"), (5000, "x")];
    let changes = futures::stream::iter(changes).then(move |(after, name)| async move {
        tokio::time::sleep_until(began + Duration::from_millis(after)).await;
        ObjectRef::from_obj(&object(name))
    });
    let stop = tokio::time::sleep(Duration::from_millis(16_500));
    run(fake.clone(), changes, stop).await;
    assert_eq!(began.elapsed(), Duration::from_secs(17));
    let started = std::mem::take(&mut *fake.started.lock().unwrap());
    let started: Vec<_> = started.iter().map(|(at, it)| (*at, it.as_str())).collect();
    let expected = [
        (0, "a"),
        (0, "b"),
        (1000, "c"),
        (1000, "a"),
        (5000, "b"),
        (12_000, "a"),
        (12_000, "c"),
        (16_000, "b"),
    ];
    assert_eq!(started, expected);
    after_failure(&*fake, &key(), &conflict());
    let text = fake.cluster.metrics.text();
    for (name, value) in [
        ("depth", 0),
        ("adds_total", 12),
        ("queue_duration_seconds_count", 9),
        ("retries_total", 1),
    ] {
        let line = format!(r#"workqueue_{name}{{controller="fake",name="fake"}} {value}"#);
        assert!(text.lines().any(|other| other == line), "{line}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_reconcile_times_out() {
    let error = guarded(&fake(), &key(), std::future::pending())
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "Timeout");
}
