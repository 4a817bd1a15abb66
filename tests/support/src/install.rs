//! Installs the definition of VMs on an API server without it.

use http::Request;
use std::path::Path;
use std::time::Duration;

#[must_use]
/// The YAML of the definition.
pub fn definition() -> String {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds/vms.vmoperator.jdrupes.org.yaml");
    std::fs::read_to_string(path).unwrap()
}

/// Installs the definition and waits until the API server serves it.
pub async fn install(client: &kube::Client) {
    let crd: serde_json::Value = serde_saphyr::from_str(&definition()).unwrap();
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let request = Request::post(crds)
        .header("Content-Type", "application/json")
        .body(crd.to_string().into_bytes());
    client
        .request::<serde_json::Value>(request.unwrap())
        .await
        .unwrap();
    for _ in 0..200 {
        let vms = Request::get("/apis/vmoperator.jdrupes.org/v1/vms")
            .body(Vec::new())
            .unwrap();
        if client.request_text(vms).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the definition is not established");
}
