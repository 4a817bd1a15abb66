//! The orphaned objects of a previous VM with the same name.

use crate::components::Cluster;
use serde_json::json;
use vm_operator::api::vm::names;

/// Creates all of them except the PVCs, which no VM owns.
pub async fn make(cluster: &Cluster, namespace: &str) {
    let owner = names::owner("vm", "an-earlier-vm");
    let pod = json!({"restartPolicy": "Never", "containers": [{"name": "vm", "image": "r"}]});
    for (kind, name, field, content) in [
        (
            "ConfigMap",
            "vm",
            "data",
            json!({"config.yaml": "of the earlier one"}),
        ),
        (
            "Secret",
            "vm-display-secret",
            "stringData",
            json!({"display-password": "of the earlier one"}),
        ),
        ("Service", "vm", "spec", json!({"ports": [{"port": 5900}]})),
        ("Pod", "vm", "spec", pod),
    ] {
        let mut labels = names::labels("vm");
        if kind == "Secret" {
            labels.insert(
                names::LABEL_COMPONENT.to_owned(),
                names::COMPONENT_DISPLAY_SECRET.to_owned(),
            );
        }
        let metadata = json!({"name": name, "labels": labels, "ownerReferences": [owner]});
        cluster
            .make(
                namespace,
                kind,
                json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, field: content}),
            )
            .await;
    }
}
