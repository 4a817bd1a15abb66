use super::*;
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
