//! The metrics of VMs.

use crate::api::VirtualMachine;
use crate::api::conditions::find;
use crate::api::vm::State;
use crate::api::vm::conditions;
use crate::controllers::vm::views::exit::BACKOFF_RESET_UPTIME;
use crate::k8s::store::primary::PrimaryStore;
use crate::telemetry::metrics::OwnMetrics;
use crate::telemetry::scraped::{Labels, ScrapedGauge};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The metrics of VMs.
pub struct VirtualMachineMetrics {
    vms: Family<[(&'static str, String); 1], Gauge>,
    /// The conditions of all VMs.
    pub conditions: ScrapedGauge,
    /// State, node and runner of all VMs.
    pub info: ScrapedGauge,
    /// The restarts of all VMs.
    pub restarts: ScrapedGauge,
    /// Seconds from the creation of a VM's pod until the VM runs.
    pub start: Histogram,
}

impl OwnMetrics for VirtualMachineMetrics {
    fn registered(registry: &mut Registry) -> Self {
        let help = "Conditions of each VM, by type and status; the value is always 1. The condition Accelerated is \
            missing if the operator's configuration selects emulation (accelerator.policy: tcg)";
        let conditions = ScrapedGauge::new("vm_condition", help);
        let help = "Node, desired state, reason of the condition Ready, and version of the runner of each VM, as labels; \
            the value is always 1";
        let info = ScrapedGauge::new("vm_info", help);
        let help =
            "Failed starts and unexpected stops of each VM; 0 after the VM has run for 10 min";
        let metrics = Self {
            vms: Family::default(),
            conditions,
            info,
            restarts: ScrapedGauge::new("vm_restarts", help),
            start: Histogram::new([
                0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0,
                300.0,
            ]),
        };
        let help = "VMs, by the reason of their condition Ready";
        registry.register("vms", help, metrics.vms.clone());
        let help = "Time from the creation of a VM's pod until the VM runs";
        registry.register("vm_start_seconds", help, metrics.start.clone());
        for metric in [&metrics.conditions, &metrics.info, &metrics.restarts] {
            registry.register_collector(Box::new(metric.clone()));
        }
        metrics
    }
}

impl VirtualMachineMetrics {
    /// Connects the metrics with the store of the VMs. `now` is the clock.
    pub(super) fn set_sources(&self, vms: &PrimaryStore<VirtualMachine>, now: fn() -> Timestamp) {
        connect(&self.conditions, vms, conditions_of);
        connect(&self.info, vms, info);
        connect(&self.restarts, vms, move |vm, sample| {
            restarts(vm, now(), sample);
        });
    }

    /// Sets the number of VMs in each state.
    pub fn set_vms<'a>(&self, states: impl Iterator<Item = &'a str>) {
        // A state without VMs is not served.
        self.vms.clear();
        for state in states {
            self.vms.get_or_create(&[("state", state.to_owned())]).inc();
        }
    }
}

/// Connects a metric with a function that passes the samples of a VM to its second argument.
fn connect(
    metric: &ScrapedGauge,
    vms: &PrimaryStore<VirtualMachine>,
    samples: impl Fn(&VirtualMachine, &mut dyn FnMut(Labels<'_>, i64)) + Send + Sync + 'static,
) {
    let reader = vms.reader();
    metric.set_source(move |sample| reader.state().iter().for_each(|vm| samples(vm, sample)));
}

/// The samples of a VM's conditions. An emulated guest is no problem if its configuration says so, and no series of this metric
/// has a reason, so the condition `Accelerated` is left out then.
fn conditions_of(vm: &VirtualMachine, sample: &mut dyn FnMut(Labels<'_>, i64)) {
    let conditions = status_conditions(vm);
    let is_requested = conditions::emulation(conditions).is_some();
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    for Condition { type_, status, .. } in conditions {
        if type_ == conditions::ACCELERATED && status == "False" && !is_requested {
            continue;
        }
        let labels = [
            ("namespace", &*namespace),
            ("name", &name),
            ("type", type_),
            ("status", status),
        ];
        sample(&labels, 1);
    }
}

fn info(vm: &VirtualMachine, sample: &mut dyn FnMut(Labels<'_>, i64)) {
    let status = vm.status.as_ref();
    let node = status.and_then(|status| status.node_name.as_deref());
    let version = status.and_then(|status| status.runner_version.as_deref());
    let state = match vm.spec.vm.state {
        State::Running => "Running",
        State::Stopped => "Stopped",
    };
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    let labels = [
        ("namespace", &*namespace),
        ("name", &name),
        ("node", node.unwrap_or_default()),
        ("state", state),
        ("reason", ready_reason(vm)),
        ("runner_version", version.unwrap_or_default()),
    ];
    sample(&labels, 1);
}

/// Each VM has a sample, also without a restart, so that a first restart is a change of its series. The status keeps the count
/// until the next stop, also after the time of running that ends the row.
fn restarts(vm: &VirtualMachine, now: Timestamp, sample: &mut dyn FnMut(Labels<'_>, i64)) {
    let status = vm.status.as_ref();
    let restarts = status.and_then(|status| status.restarts.as_ref());
    let attempts = restarts.filter(|_| !has_run_long(vm, now));
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    let labels = [("namespace", &*namespace), ("name", &name)];
    sample(&labels, attempts.map_or(0, |past| past.attempts.into()));
}

/// Whether the VM has run long enough that its next stop is the first of a new row.
fn has_run_long(vm: &VirtualMachine, now: Timestamp) -> bool {
    find(status_conditions(vm), conditions::RUNNING).is_some_and(|running| {
        let since = running.last_transition_time.0;
        running.status == "True" && now.duration_since(since) >= BACKOFF_RESET_UPTIME
    })
}

fn status_conditions(vm: &VirtualMachine) -> &[Condition] {
    vm.status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default()
}

/// The reason of a VM's condition `Ready`, as `kubectl get vms` shows it.
pub(super) fn ready_reason(vm: &VirtualMachine) -> &str {
    find(status_conditions(vm), conditions::READY).map_or("Unknown", |ready| ready.reason.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn restarts_are_counted_until_the_vm_has_run_for_10_minutes() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let count = |status: &str, since: &str| {
            let running = json!({"type": "Running", "status": status, "reason": "", "message": "", "lastTransitionTime": since});
            let past =
                json!({"attempts": 3, "podUid": "1", "reason": "", "time": "2026-01-01T00:00:00Z"});
            let vm = json!({
                "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "metadata": {"name": "a"},
                "spec": {"vm": {}}, "status": {"conditions": [running], "restarts": past},
            });
            let mut counts = Vec::new();
            let vm = serde_json::from_value(vm).unwrap();
            restarts(&vm, now, &mut |_, count| counts.push(count));
            counts
        };
        assert_eq!(count("True", "2026-01-01T00:50:01Z"), [3]);
        assert_eq!(count("True", "2026-01-01T00:50:00Z"), [0]);
        assert_eq!(count("False", "2026-01-01T00:10:00Z"), [3]);
    }
}
