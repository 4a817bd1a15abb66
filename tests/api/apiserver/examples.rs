//! Each file in `examples/` is created on the API server, with values in place of its placeholders only. The operator then
//! creates the objects of its VMs. No node and no volume exists, so no pod starts.

use crate::apiserver::peerpods;
use crate::apiserver::sip;
use crate::apiserver::world::{TIMEOUT, World, eventually};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use support::example::{files, filled_in};
use vm_operator::api::VirtualMachine;
use vm_operator::api::conditions::find;
use vm_operator::api::vm::conditions;

/// Values for placeholders.
const VALUES: [(&str, &str); 7] = [
    ("<ADDRESS>", "10.0.0.1"),
    ("<HOST>", "host-1"),
    ("<CLUSTER-UID>", "cluster"),
    ("<POD-UID>", "pod"),
    ("<VM-UID>", "vm"),
    (
        "<SSH-PUBLIC-KEY>",
        "ssh-ed25519 AAAAC3Nza reader@example.org",
    ),
    ("<PASSWORD>", "change-me"),
];

/// Kinds of Argo CD and Flux: group, version, kind and plural. The API server lacks their definitions, so the test checks the
/// metadata of their objects only.
const OTHER_KINDS: [(&str, &str, &str, &str); 3] = [
    ("argoproj.io", "v1alpha1", "Application", "applications"),
    (
        "source.toolkit.fluxcd.io",
        "v1",
        "GitRepository",
        "gitrepositories",
    ),
    (
        "kustomize.toolkit.fluxcd.io",
        "v1",
        "Kustomization",
        "kustomizations",
    ),
];

/// The reason of the condition `Ready` for VMs without a pod. All others have a pod.
const WITHOUT_POD: [(&str, &str); 4] = [
    ("desktop-member.yaml", "Stopped"),
    ("windows.yaml", "Stopped"),
    // Its priority class and its runtime class do not exist here.
    ("full.yaml", "Rejected"),
    // The VM waits for the download, whose pod gets no node here.
    ("install-from-url.yaml", "MediaFetchFailed"),
];

async fn define_other_kinds(world: &World) {
    let crds = Api::<CustomResourceDefinition>::all(world.client.clone());
    for (group, version, kind, plural) in OTHER_KINDS {
        let name = format!("{plural}.{group}");
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name},
            "spec": {
                "group": group, "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
                "versions": [{"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
            },
        });
        let params = PatchParams::apply("test").force();
        crds.patch(&name, &params, &Patch::Apply(&crd))
            .await
            .unwrap();
        eventually("the definition is established", || async {
            let crd = crds.get(&name).await.unwrap();
            let conditions = crd.status.and_then(|status| status.conditions);
            conditions
                .into_iter()
                .flatten()
                .any(|condition| condition.type_ == "Established" && condition.status == "True")
        })
        .await;
    }
}

fn objects(text: &str) -> Vec<Value> {
    let documents = text.split("\n---\n");
    documents
        .map(|text| serde_saphyr::from_str(text).unwrap())
        .collect()
}

/// The names of the PVCs of the VM.
fn claims_of(vm: &Value) -> BTreeSet<String> {
    let name = vm["metadata"]["name"].as_str().unwrap();
    let disks = vm["spec"]["vm"]["disks"].as_array();
    let disks = disks.into_iter().flatten().filter_map(|disk| {
        let disk = disk["volumeClaimTemplate"]["metadata"]["name"].as_str()?;
        Some(format!("{name}-{disk}-disk"))
    });
    disks.chain([format!("{name}-runner-data")]).collect()
}

/// Whether the VM has its objects, or the first difference.
async fn has_its_objects(world: &World, file: &str, vm: &Value) -> Result<(), String> {
    let name = vm["metadata"]["name"].as_str().unwrap();
    let (client, namespace) = (world.client.clone(), &*world.namespace);
    let vms = Api::<VirtualMachine>::namespaced(client.clone(), namespace);
    let config_maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
    let pods = Api::<Pod>::namespaced(client, namespace);
    let claims = claims.list(&ListParams::default()).await.unwrap();
    let claims: BTreeSet<String> = claims.iter().map(ResourceExt::name_any).collect();
    let expected = claims_of(vm);
    if !expected.is_subset(&claims) {
        return Err(format!("PVCs: {claims:?}"));
    }
    if config_maps.get_opt(name).await.unwrap().is_none() {
        return Err("no ConfigMap".to_owned());
    }
    let display_secret = format!("{name}-display-secret");
    let has_display = !vm["spec"]["vm"]["display"]["spice"].is_null();
    if has_display && secrets.get_opt(&display_secret).await.unwrap().is_none() {
        return Err("no display Secret".to_owned());
    }
    let without_pod = WITHOUT_POD.iter().find(|(of, _)| *of == file);
    let expected = without_pod.map(|(_, reason)| *reason);
    let has_pod = pods.get_opt(name).await.unwrap().is_some();
    let status = vms.get(name).await.unwrap().status.unwrap_or_default();
    let ready = find(&status.conditions, conditions::READY);
    let reason = ready.map(|ready| &*ready.reason).unwrap_or_default();
    if has_pod != expected.is_none() || expected.is_some_and(|expected| reason != expected) {
        return Err(format!("pod: {has_pod}, {ready:?}"));
    }
    Ok(())
}

/// Creates the PVCs that are copied onto disks of the VM. No provisioner runs that gives volumes to them.
async fn create_sources(world: &World, vm: &Value) {
    let disks = vm["spec"]["vm"]["disks"].as_array().into_iter().flatten();
    for name in disks.filter_map(|disk| disk["source"]["pvc"]["name"].as_str()) {
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec});
        world.apply(&claim, false).await.unwrap();
        Api::<PersistentVolumeClaim>::namespaced(world.client.clone(), &world.namespace)
            .patch_status(
                name,
                &PatchParams::default(),
                &Patch::Merge(json!({"status": {"phase": "Bound"}})),
            )
            .await
            .unwrap();
    }
}

/// Waits for the objects of the VM.
async fn gets_its_objects(world: &World, file: &str, vm: &Value) {
    let began = Instant::now();
    while let Err(problem) = has_its_objects(world, file, vm).await {
        assert!(began.elapsed() < TIMEOUT, "{file}: {problem}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Creates the objects of an example in a namespace of their own, and waits for the objects of its VMs. Returns the number of
/// VMs.
async fn create(file: &str, text: &str) -> usize {
    let text = filled_in(file, text, &VALUES);
    let name = file.trim_end_matches(".yaml").replace('/', "-");
    let world = World::new(&format!("example-{name}")).await;
    if file == "bridge.yaml" {
        let label = "pod-security.kubernetes.io/enforce=privileged";
        let command = format!(
            "kubectl label namespace {} --overwrite {label}",
            world.namespace
        );
        world.shell(&command).unwrap();
    }
    if file.starts_with("peerpod/") {
        drop(peerpods::install(&world).await);
    }
    if file.starts_with("sip") {
        drop(sip::install(&world).await);
    }
    let folder = tempfile::tempdir().unwrap();
    let filled = folder.path().join("example.yaml");
    std::fs::write(&filled, &text).unwrap();
    let applied = world.shell(&format!("kubectl apply -f {}", filled.display()));
    assert!(applied.is_ok(), "{file}: {applied:?}");
    let mut vms = objects(&text);
    vms.retain(|object| object["kind"] == "VirtualMachine");
    if !vms.is_empty() {
        let operator = world.start_operator().await;
        for vm in &vms {
            create_sources(&world, vm).await;
            gets_its_objects(&world, file, vm).await;
        }
        operator.stop().await;
    }
    vms.len()
}

#[tokio::test]
async fn each_example_is_created_and_its_vms_get_their_objects() {
    define_other_kinds(&World::new("example-kinds").await).await;
    let files = files();
    let created =
        futures::future::join_all(files.iter().map(|(file, text)| create(file, text))).await;
    let vms: usize = created.iter().sum();
    assert!(
        files.len() >= 15 && vms >= 10,
        "{} files, {vms} VMs",
        files.len()
    );
}
