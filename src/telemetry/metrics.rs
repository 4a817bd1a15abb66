//! The metrics of the operator, in the OpenMetrics format.

use crate::telemetry::process::ProcessCollector;
use crate::telemetry::work_queue::WorkQueueMetrics;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The metrics that one controller defines.
pub trait OwnMetrics: Send + Sync + 'static {
    /// Creates the metrics and adds them to the registry, which gives their names the prefix `vm_operator_`.
    fn registered(registry: &mut Registry) -> Self;
}

/// The metrics of controllers, by their type.
type ByType = HashMap<TypeId, Arc<dyn Any + Send + Sync>>;

/// Labels of the reconcile counter.
type ReconcileLabels = [(&'static str, &'static str); 2];

/// The label of metrics of a controller.
type ControllerLabel = [(&'static str, &'static str); 1];

/// The label of a gauge.
type OneLabel = [(&'static str, String); 1];

/// Labels of the request counter.
type RequestLabels = [(&'static str, String); 3];

/// The metrics of the operator.
pub struct Metrics {
    /// Metrics with the prefix `vm_operator_`, and those of them that controllers define.
    registry: Mutex<(Registry, ByType)>,
    /// Metrics that other programs have too, under the same names.
    common: Registry,
    reconciles: Family<ReconcileLabels, Counter>,
    duration: Family<ControllerLabel, Histogram>,
    backoff: Family<ControllerLabel, Gauge>,
    requests: Family<RequestLabels, Counter>,
    undecodable: Family<ControllerLabel, Gauge>,
    objects: Family<OneLabel, Gauge>,
    /// The queues of the controllers.
    pub work_queue: WorkQueueMetrics,
    /// 1 if this operator is the leader, else 0.
    pub leader: Gauge,
    /// Namespaces with objects that the operator may not list or watch.
    pub forbidden_namespaces: Gauge,
    /// Watches that were restarted.
    pub watch_restarts: Counter,
    /// 1 if the newest configuration file is in use, 0 if it is invalid.
    pub settings_valid: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("vm_operator");
        let reconciles = Family::default();
        // A reconcile without writes takes microseconds. One that writes the objects of a VM takes some tens of milliseconds.
        let duration = Family::<ControllerLabel, Histogram>::new_with_constructor(|| {
            Histogram::new([
                0.0001, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0,
            ])
        });
        let backoff = Family::<ControllerLabel, Gauge>::default();
        let watch_restarts = Counter::default();
        let undecodable = Family::<ControllerLabel, Gauge>::default();
        let (requests, leader) = (Family::default(), Gauge::default());
        let help = "Requests to the API server, by RBAC verb, resource and HTTP status code; the label code has the value \
            error if there was no response";
        registry.register("api_requests", help, Family::clone(&requests));
        registry.register(
            "leader",
            "Leadership: 1 if this operator is the leader, else 0",
            leader.clone(),
        );
        let objects = Family::default();
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "Version of the operator", version);
        let help = "Objects that the operator keeps in memory, by resource";
        registry.register("stored_objects", help, Family::clone(&objects));
        let forbidden_namespaces = Gauge::default();
        registry.register(
            "forbidden_namespaces",
            "Watched namespaces with kinds that the operator may not list or watch",
            forbidden_namespaces.clone(),
        );
        let settings_valid = Gauge::default();
        settings_valid.set(1);
        registry.register(
            "reconciles",
            "Reconciles, by controller and outcome",
            reconciles.clone(),
        );
        registry.register(
            "reconcile_duration_seconds",
            "Duration of reconciles",
            duration.clone(),
        );
        registry.register(
            "backoff_objects",
            "Objects that wait for a retry after a failed reconcile",
            backoff.clone(),
        );
        registry.register(
            "watch_restarts",
            "Restarts of failed watches on the API server",
            watch_restarts.clone(),
        );
        registry.register(
            "undecodable_objects",
            "Objects that the operator cannot decode, by controller",
            undecodable.clone(),
        );
        let help = "Configuration: 1 if the newest configuration file is in use, 0 if the file cannot be used and the \
            operator continues with the previous configuration";
        registry.register("settings_valid", help, settings_valid.clone());
        let mut common = Registry::default();
        common.register_collector(Box::new(ProcessCollector));
        Self {
            work_queue: WorkQueueMetrics::new(&mut common),
            common,
            objects,
            requests,
            leader,
            settings_valid,
            registry: Mutex::new((registry, ByType::new())),
            reconciles,
            duration,
            backoff,
            forbidden_namespaces,
            watch_restarts,
            undecodable,
        }
    }
}

impl Metrics {
    /// Counts a reconcile.
    pub fn reconciled(&self, controller: &'static str, outcome: &'static str, seconds: f64) {
        let labels = [("controller", controller), ("outcome", outcome)];
        self.reconciles.get_or_create(&labels).inc();
        let labels = [("controller", controller)];
        self.duration.get_or_create(&labels).observe(seconds);
    }

    /// Sets the number of a controller's objects that wait after a failed reconcile.
    pub fn set_backoff(&self, controller: &'static str, objects: usize) {
        let objects = i64::try_from(objects).unwrap_or(i64::MAX);
        let labels = [("controller", controller)];
        self.backoff.get_or_create(&labels).set(objects);
    }

    /// Counts a request to the API server. `code` is the status code of the response, or `error`.
    pub fn requested(&self, verb: &'static str, resource: &str, code: &str) {
        let labels = [("verb", verb), ("resource", resource), ("code", code)];
        self.requests
            .get_or_create(&labels.map(|(name, value)| (name, value.to_owned())))
            .inc();
    }

    /// Sets the number of a controller's objects that cannot be decoded.
    pub fn set_undecodable(&self, controller: &'static str, objects: usize) {
        let objects = i64::try_from(objects).unwrap_or(i64::MAX);
        let labels = [("controller", controller)];
        self.undecodable.get_or_create(&labels).set(objects);
    }

    /// The metrics of a controller. The first call registers them, so a controller that starts again continues the counts.
    pub fn of<T: OwnMetrics>(&self) -> Arc<T> {
        let mut content = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let (registry, by_type) = &mut *content;
        let known = by_type.get(&TypeId::of::<T>()).cloned();
        if let Some(known) = known.and_then(|known| known.downcast().ok()) {
            return known;
        }
        let new = Arc::new(T::registered(registry));
        by_type.insert(TypeId::of::<T>(), new.clone());
        new
    }

    /// Sets the number of stored objects of a resource.
    pub fn set_stored(&self, resource: &'static str, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.objects
            .get_or_create(&[("resource", resource.to_owned())])
            .set(count);
    }

    /// The text of `/metrics`.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let content = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing into a string cannot fail.
        let _ = encode_registry(&mut text, &content.0)
            .and_then(|()| encode_registry(&mut text, &self.common))
            .and_then(|()| encode_eof(&mut text));
        text
    }
}
