use super::*;
use crate::k8s::views::{ClaimView, SecretView, ServiceView};
use kube::Resource;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn object(spec: Value) -> Value {
    let managed = json!([{
        "manager": "m", "operation": "Apply", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {"f:l": {}}}},
    }]);
    json!({
        "apiVersion": "v1", "kind": "K", "spec": {"vm": spec},
        "metadata": {"name": "a", "managedFields": managed},
    })
}

#[test]
fn no_view_keeps_managed_fields_for_a_moment() {
    fn managed<K: Resource + DeserializeOwned>(spec: Value) -> bool {
        let read: K = serde_json::from_str(&object(spec).to_string()).unwrap();
        assert_eq!(read.meta().name.as_deref(), Some("a"));
        read.meta().managed_fields.is_some()
    }
    let kinds = [
        managed::<PodView>(json!({})),
        managed::<ClaimView>(json!({})),
        managed::<ServiceView>(json!({})),
        managed::<SecretView>(json!({})),
        managed::<ConfigMapView>(json!({})),
        managed::<VmView>(json!({})),
        managed::<ReportView>(json!("vm")),
    ];
    assert_eq!(kinds, [false; 7]);
}

#[test]
fn stored_vms_and_reports_have_no_room_for_more_elements() {
    let disk = json!({"cdrom": {"image": "a"}});
    let condition = json!({
        "type": "Running", "status": "True", "reason": "R", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let object = json!({
        "apiVersion": "v1", "kind": "K", "metadata": {"name": "a"},
        "spec": {"vm": {"disks": [disk], "networks": [{"user": {}}]}},
        "status": {"conditions": [condition]},
    });
    let vm: VirtualMachine = serde_json::from_value::<VmView>(object.clone())
        .unwrap()
        .into();
    assert_eq!(
        (
            vm.spec.vm.disks.capacity(),
            vm.spec.vm.networks.capacity(),
            vm.status.unwrap().conditions.capacity()
        ),
        (1, 1, 1)
    );
    let mut report = object;
    report["spec"] = json!({"vm": "a"});
    let report: ReportView = serde_json::from_value(report).unwrap();
    assert_eq!(report.status.unwrap().conditions.capacity(), 1);
}
