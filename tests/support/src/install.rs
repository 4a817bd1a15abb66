//! Installs the definitions on an API server without them.

use http::Request;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use vm_operator::operator::cli::crd_files;

/// The YAML of the definitions, of this project and of Metal3.
///
/// # Panics
/// A file cannot be read.
#[must_use]
pub fn definitions() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../metal3");
    let metal3 = std::fs::read_to_string(folder.join("baremetalhosts.metal3.io.yaml")).unwrap();
    let own = crd_files().unwrap().into_iter().map(|(_, text)| text);
    own.chain([metal3]).collect()
}

/// Installs the definitions and waits until the API server serves them.
///
/// # Panics
/// The API server rejects one, or does not serve it.
pub async fn install(client: &kube::Client) {
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definitions = definitions();
    let parsed = definitions
        .iter()
        .map(|it| serde_saphyr::from_str::<Value>(it).unwrap());
    let parsed: Vec<_> = parsed.collect();
    for crd in &parsed {
        let request = Request::post(crds)
            .header("Content-Type", "application/json")
            .body(crd.to_string().into_bytes());
        client.request::<Value>(request.unwrap()).await.unwrap();
    }
    for crd in &parsed {
        is_served(client, &crd["spec"]).await;
    }
}

async fn is_served(client: &kube::Client, spec: &Value) {
    let version = &spec["versions"][0]["name"];
    let names = [&spec["group"], version, &spec["names"]["plural"]];
    let path = format!("/apis/{}", names.map(|it| it.as_str().unwrap()).join("/"));
    for _ in 0..200 {
        let list = Request::get(path.as_str()).body(Vec::new()).unwrap();
        if client.request_text(list).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{path} is not served");
}
