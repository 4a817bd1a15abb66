//! A VM with all objects that the Java VM-Operator creates for it.

use crate::components::Cluster;
use serde_json::{Value, json};

/// Creates the objects.
pub async fn make(cluster: &Cluster, namespace: &str, spec: &str) {
    let make = async |kind: &str, object: Value| cluster.make(namespace, kind, object).await;
    let (version, kind) = ("vmoperator.jdrupes.org/v1", "VirtualMachine");
    let spec: Value = serde_json::from_str(spec).unwrap();
    let vm = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "vm"}, "spec": spec});
    let vm = make(kind, vm).await;
    let labels = json!({
        "app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": "vm",
        "app.kubernetes.io/managed-by": "vm-operator",
    });
    let owner = json!([{
        "apiVersion": version, "kind": kind, "name": "vm", "uid": vm["metadata"]["uid"], "controller": false,
        "blockOwnerDeletion": true,
    }]);
    let metadata = json!({"name": "vm", "labels": labels, "ownerReferences": owner});
    let data = json!({"config.yaml": "\"/Runner\":\n  vm: {name: vm}\n", "logging.properties": ""});
    make(
        "ConfigMap",
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}),
    )
    .await;
    for (name, mode) in [
        ("vm-runner-data", "Filesystem"),
        ("vm-system-disk", "Block"),
    ] {
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "volumeMode": mode, "resources": {"requests": {"storage": "1Gi"}},
        });
        let metadata = json!({"name": name, "labels": labels});
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec});
        make("PersistentVolumeClaim", claim).await;
    }
    let spec = json!({
        "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "containers": [{"name": "vm", "image": "r"}],
    });
    make(
        "Pod",
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}),
    )
    .await;
}
