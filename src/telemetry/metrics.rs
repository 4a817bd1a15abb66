//! The metrics of the operator, in the OpenMetrics format.

use crate::telemetry::pools::PoolMetrics;
use crate::telemetry::process::ProcessCollector;
use crate::telemetry::scraped::ScrapedGauge;
use crate::telemetry::work_queue::WorkQueueMetrics;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

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
    /// Metrics with the prefix `vm_operator_`.
    registry: Registry,
    /// Metrics that other programs have too, under the same names.
    common: Registry,
    reconciles: Family<ReconcileLabels, Counter>,
    duration: Family<ControllerLabel, Histogram>,
    backoff: Family<ControllerLabel, Gauge>,
    requests: Family<RequestLabels, Counter>,
    vms: Family<OneLabel, Gauge>,
    objects: Family<OneLabel, Gauge>,
    /// The conditions of all VMs.
    pub vm_conditions: ScrapedGauge,
    /// State, node and runner of all VMs.
    pub vm_info: ScrapedGauge,
    /// The restarts of all VMs.
    pub vm_restarts: ScrapedGauge,
    /// The queues of the controllers.
    pub work_queue: WorkQueueMetrics,
    /// Pools and their assignments.
    pub pools: PoolMetrics,
    /// Seconds from the creation of a VM's pod until the VM runs.
    pub vm_start: Histogram,
    /// 1 if this operator is the leader, else 0.
    pub leader: Gauge,
    /// Watches that were restarted.
    pub watch_restarts: Counter,
    /// VMs that cannot be decoded.
    pub undecodable: Gauge,
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
        let (watch_restarts, undecodable) = (Counter::default(), Gauge::default());
        let (requests, leader) = (Family::default(), Gauge::default());
        let help = "Requests to the API server, by RBAC verb, resource and HTTP status code; the label code has the value \
            error if there was no response";
        registry.register("api_requests", help, Family::clone(&requests));
        registry.register(
            "leader",
            "Leadership: 1 if this operator is the leader, else 0",
            leader.clone(),
        );
        let (vms, objects) = (Family::default(), Family::default());
        let help = "VMs, by the reason of their condition Ready";
        registry.register("vms", help, Family::clone(&vms));
        let help = "Conditions of each VM, by type and status; the value is always 1. The condition Accelerated is \
            missing if the operator's configuration selects emulation (accelerator.policy: tcg)";
        let vm_conditions = ScrapedGauge::new("vm_condition", help);
        let help = "Node, desired state, reason of the condition Ready, and version of the runner of each VM, as labels; \
            the value is always 1";
        let vm_info = ScrapedGauge::new("vm_info", help);
        let help =
            "Failed starts and unexpected stops of each VM; 0 after the VM has run for 10 min";
        let vm_restarts = ScrapedGauge::new("vm_restarts", help);
        for metric in [&vm_conditions, &vm_info, &vm_restarts] {
            registry.register_collector(Box::new(metric.clone()));
        }
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "Version of the operator", version);
        let pools = PoolMetrics::registered(&mut registry);
        let help = "Objects that the operator keeps in memory, by resource";
        registry.register("stored_objects", help, Family::clone(&objects));
        let vm_start = Histogram::new([
            0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0,
        ]);
        let help = "Time from the creation of a VM's pod until the VM runs";
        registry.register("vm_start_seconds", help, vm_start.clone());
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
            "undecodable_vms",
            "VirtualMachine objects that the operator cannot decode",
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
            vms,
            objects,
            vm_conditions,
            vm_info,
            vm_restarts,
            pools,
            vm_start,
            requests,
            leader,
            settings_valid,
            registry,
            reconciles,
            duration,
            backoff,
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

    /// Sets the number of VMs in each state.
    pub fn set_vms<'a>(&self, states: impl Iterator<Item = &'a str>) {
        // A state without VMs is not served.
        self.vms.clear();
        for state in states {
            self.vms.get_or_create(&[("state", state.to_owned())]).inc();
        }
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
        // Writing into a string cannot fail.
        let _ = encode_registry(&mut text, &self.registry)
            .and_then(|()| encode_registry(&mut text, &self.common))
            .and_then(|()| encode_eof(&mut text));
        text
    }
}
