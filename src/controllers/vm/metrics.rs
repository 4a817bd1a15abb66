//! The metrics of single VMs: their conditions, their state, their restarts.

use crate::api::VirtualMachine;
use crate::api::conditions;
use crate::api::vm::State;
use crate::k8s::store::primary::PrimaryStore;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::scraped::{Labels, ScrapedGauge};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

/// Passes the samples of a VM to its second argument.
type Samples = fn(&VirtualMachine, &mut dyn FnMut(Labels<'_>, i64));

/// Connects the metrics with the store of the VMs.
pub(super) fn set_sources(metrics: &Metrics, vms: &PrimaryStore<VirtualMachine>) {
    let connect = |metric: &ScrapedGauge, samples: Samples| {
        let reader = vms.reader();
        metric.set_source(move |sample| reader.state().iter().for_each(|vm| samples(vm, sample)));
    };
    connect(&metrics.vm_conditions, conditions_of);
    connect(&metrics.vm_info, info);
    connect(&metrics.vm_restarts, restarts);
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

/// Each VM has a sample, also without a restart, so that a first restart is a change of its series.
fn restarts(vm: &VirtualMachine, sample: &mut dyn FnMut(Labels<'_>, i64)) {
    let status = vm.status.as_ref();
    let restarts = status.and_then(|status| status.restarts.as_ref());
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    let labels = [("namespace", &*namespace), ("name", &name)];
    sample(
        &labels,
        restarts.map_or(0, |restarts| restarts.attempts.into()),
    );
}

fn status_conditions(vm: &VirtualMachine) -> &[Condition] {
    vm.status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default()
}

/// The reason of a VM's condition `Ready`, as `kubectl get vms` shows it.
pub(super) fn ready_reason(vm: &VirtualMachine) -> &str {
    conditions::find(status_conditions(vm), conditions::READY)
        .map_or("Unknown", |ready| ready.reason.as_str())
}
