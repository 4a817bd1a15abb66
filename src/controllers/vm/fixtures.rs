//! VMs and pods for unit tests.

use crate::api::VirtualMachine;
use crate::api::vm::conditions::{self, ConditionReason, DesiredCondition};
use crate::controllers::vm::copy_source::CopySource;
use crate::controllers::vm::observe::{Observed, ReportCopy};
use crate::k8s::views::PodView;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The time of all observations.
pub fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

/// A VM named `vm` with UID `vm-uid`, with that `spec.vm`.
pub fn vm(machine: Value) -> VirtualMachine {
    serde_json::from_value(json!({
        "apiVersion": "vmoperator.jdrupes.org/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "vm", "namespace": "ns", "uid": "vm-uid", "generation": 3, "resourceVersion": "10"},
        "spec": {"vm": machine},
        "status": {},
    }))
    .unwrap()
}

/// The VM with the status of a running guest.
pub fn seen_running(mut vm: VirtualMachine) -> VirtualMachine {
    let status = vm.status.as_mut().unwrap();
    let wanted = DesiredCondition {
        type_: conditions::RUNNING,
        status: true,
        reason: ConditionReason::VmStarted,
        message: String::new(),
    };
    status.conditions[0] = wanted.at(&[], Some(3), now());
    status.cpus = 2;
    vm
}

/// The observation of a VM without children.
pub fn alone(vm: VirtualMachine) -> Observed {
    Observed {
        vm: Arc::new(vm),
        config_map: None,
        pod: None,
        deleted_by_operator: false,
        claims: BTreeMap::new(),
        recorded: Vec::new(),
        name_conflicts: BTreeMap::new(),
        warnings: BTreeMap::new(),
        image_repository: None,
        fetches: BTreeMap::new(),
        import_progress: None,
        copy_source: CopySource::default(),
        images_missing: Duration::ZERO,
        display_secret: None,
        service: None,
        report: None,
        copy: ReportCopy::None,
        now: now(),
    }
}

/// The VM's pod with that status.
pub fn pod(status: Value) -> PodView {
    serde_json::from_value(json!({
        "metadata": {
            "name": "vm",
            "uid": "pod-uid",
            "resourceVersion": "20",
            "ownerReferences": [{"apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "name": "vm", "uid": "vm-uid"}],
        },
        "status": status,
    }))
    .unwrap()
}

/// The observation of a VM with this pod.
pub fn with_pod(vm: VirtualMachine, pod: PodView) -> Observed {
    Observed {
        pod: Some(Arc::new(pod)),
        ..alone(vm)
    }
}

/// Status of a pod after its container has exited: with this termination message, after this many seconds.
pub fn ended(message: &str, seconds: i64) -> Value {
    let started = now()
        .checked_sub(k8s_openapi::jiff::SignedDuration::from_secs(seconds))
        .unwrap();
    json!({
        "phase": "Failed",
        "containerStatuses": [{"name": "vm", "image": "i", "state": {"terminated": {
            "exitCode": 1, "reason": "Error", "message": message, "startedAt": started, "finishedAt": now(),
        }}}],
    })
}
