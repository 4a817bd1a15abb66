//! `Observed` values of a VM without children.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use vm_operator::api::VirtualMachine;
use vm_operator::controllers::vm::copy_source::CopySource;
use vm_operator::controllers::vm::observe::{Observed, ReportCopy};

/// The observed state of that VM without children.
pub fn observed_without_children(vm: VirtualMachine) -> Observed {
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
        now: Timestamp::UNIX_EPOCH,
    }
}

/// The observed state of a VM with that spec. It fails if the spec does not match the types.
pub fn observed_of_spec(spec: Value) -> Result<Observed, serde_json::Error> {
    let metadata = json!({"name": "vm", "namespace": "ns", "uid": "vm-uid", "generation": 1});
    let (version, kind) = ("vmoperator.jdrupes.org/v1", "VirtualMachine");
    let vm = json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec});
    serde_json::from_value(vm).map(observed_without_children)
}
