//! Installs the definitions on an API server without them.

use http::Request;
use std::path::Path;
use std::time::Duration;

const OUR_GROUP: &str = "vmoperator.jdrupes.org";

/// Folder below `crds/`, plural name, group and version of each kind.
const KINDS: [(&str, &str, &str, &str); 7] = [
    ("", "vms", OUR_GROUP, "v1"),
    ("", "vmreports", OUR_GROUP, "v1"),
    ("", "vmpools", OUR_GROUP, "v1"),
    ("", "vmassignments", OUR_GROUP, "v1"),
    (
        "peerpod",
        "peerpods",
        "confidentialcontainers.org",
        "v1alpha1",
    ),
    ("sip", "sipclusters", "airship.airshipit.org", "v1"),
    ("../tests/metal3", "baremetalhosts", "metal3.io", "v1alpha1"),
];

/// The YAML of the definitions, of this project and of Metal3.
///
/// # Panics
/// A file cannot be read.
#[must_use]
pub fn definitions() -> Vec<String> {
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
    let file =
        |(folder, plural, group, _)| crds.join(folder).join(format!("{plural}.{group}.yaml"));
    let files = KINDS.map(file);
    files
        .map(|file| std::fs::read_to_string(file).unwrap())
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
    for (_, plural, group, version) in KINDS {
        is_served(client, &format!("/apis/{group}/{version}/{plural}")).await;
    }
}

async fn is_served(client: &kube::Client, path: &str) {
    for _ in 0..200 {
        let list = Request::get(path).body(Vec::new()).unwrap();
        if client.request_text(list).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{path} is not served");
}
