//! Installs the definitions on an API server without them.

use http::Request;
use std::path::Path;
use std::time::Duration;

/// Plural names of the kinds.
const KINDS: [&str; 4] = ["vms", "vmreports", "vmpools", "vmassignments"];

/// The YAML of the definitions.
///
/// # Panics
/// A file cannot be read.
#[must_use]
pub fn definitions() -> Vec<String> {
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
    let files = KINDS.map(|kind| format!("{kind}.vmoperator.jdrupes.org.yaml"));
    files
        .map(|file| std::fs::read_to_string(crds.join(file)).unwrap())
        .into()
}

/// Installs the definitions and waits until the API server serves them.
///
/// # Panics
/// The API server rejects one, or does not serve it.
pub async fn install(client: &kube::Client) {
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    for definition in definitions() {
        let crd: serde_json::Value = serde_saphyr::from_str(&definition).unwrap();
        let request = Request::post(crds)
            .header("Content-Type", "application/json")
            .body(crd.to_string().into_bytes());
        client
            .request::<serde_json::Value>(request.unwrap())
            .await
            .unwrap();
    }
    for kind in KINDS {
        is_served(client, kind).await;
    }
}

async fn is_served(client: &kube::Client, kind: &str) {
    let path = format!("/apis/vmoperator.jdrupes.org/v1/{kind}");
    for _ in 0..200 {
        let list = Request::get(&path).body(Vec::new()).unwrap();
        if client.request_text(list).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the definition of {kind} is not established");
}
