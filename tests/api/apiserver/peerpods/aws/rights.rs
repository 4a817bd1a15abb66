//! The permissions of the manifests are those that the requests of the controller need.

use super::{ACTIONS, Cloud, REGION, instant};
use crate::apiserver::world::{TIMEOUT, eventually, root};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::api::Api;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use support::rights::{Right, complaints};
use vm_operator::api::peerpod::names;
use vm_operator::k8s::leader::{Candidate, Leadership};
use vm_operator::settings::peerpod::Sweep;

/// Makes the status of the `PeerPod` one that cannot be decoded. The API server does not check the range of offsets.
async fn garble(cloud: &Cloud, name: &str) {
    let condition = json!({"type": "Ready", "status": "False", "reason": "a", "message": "a", "lastTransitionTime": "2026-01-01T00:00:00+99:99"});
    let path = format!(
        "/apis/confidentialcontainers.org/v1alpha1/namespaces/{}/peerpods/{name}/status",
        cloud.world.namespace
    );
    let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
    let patch = json!({"status": {"conditions": [condition]}}).to_string();
    let client = &cloud.world.client;
    let patched = client.request::<Value>(request.body(patch.into_bytes()).unwrap());
    patched.await.unwrap();
}

/// The permissions of the controller, with those of the overlay about VirtualMachines.
fn granted() -> BTreeSet<Right> {
    let files = [
        "peerpod/cluster-role.yaml",
        "peerpod/role.yaml",
        "overlays/peerpod-local/role.yaml",
    ];
    let rights = files.iter().flat_map(|file| {
        let text = std::fs::read_to_string(root().join("deploy").join(file)).unwrap();
        let role = serde_saphyr::from_str(&text).unwrap();
        support::rights::granted(names::MANAGER, &role)
    });
    rights.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn controller_of_peerpods_uses_each_of_its_permissions_and_no_other() {
    let mut cloud = Cloud::start("aws-rights").await;
    let namespaces = Api::<Namespace>::all(cloud.world.client.clone());
    let cluster = namespaces.get("kube-system").await.unwrap().uid().unwrap();
    let keys = cloud.user("controller", &ACTIONS).await;
    cloud.configure(json!({"AWS_REGION": REGION}), &keys).await;
    // The search for orphans reads the pods only if an instance has the tag of the cluster.
    let tags = [
        ("Name", "podvm-gone-0123abcd"),
        ("caa-cluster-uid", &*cluster),
    ];
    cloud.run_tagged(&tags).await;
    let instance = cloud.run_instance("podvm-seen-0123abcd").await;
    cloud.permit_virtual_machines().await;
    cloud.operate_with(Sweep::Report, instant).await;

    let leases = Api::<Lease>::namespaced(cloud.client(), &cloud.world.namespace);
    let leadership = Leadership::waiting();
    let mut candidate = Candidate::new(leases, names::LEASE, "test", leadership.clone());
    tokio::select! {
        lost = candidate.run() => panic!("{lost}"),
        () = leadership.elected() => {}
        () = tokio::time::sleep(TIMEOUT) => panic!("nobody is elected"),
    }
    candidate.release().await;

    cloud.pod("garbled", "", json!({})).await;
    garble(&cloud, "garbled").await;
    cloud.pod("seen", &instance, json!({})).await;
    cloud.noted("seen").await;
    let (vm_pod, vm) = cloud.pod_with_vm("vm").await;
    let of_vm = (names::PROVIDER_VIRTUAL_MACHINE, &*vm);
    cloud.record("vm", ("vm", &vm_pod), of_vm, json!({})).await;
    let restarted = cloud.pod_alone("restarted").await;
    for name in ["older", "younger"] {
        let pod = ("restarted", &*restarted);
        cloud.record(name, pod, ("aws", ""), json!({})).await;
        // Creation times are in seconds.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
    }
    let domain = "99999999-2222-3333-4444-555555555555";
    let pod = cloud.pod_alone("libvirt").await;
    let of_libvirt = (names::PROVIDER_LIBVIRT, domain);
    cloud
        .record("libvirt", ("libvirt", &pod), of_libvirt, json!({}))
        .await;
    for pod in ["seen", "vm", "libvirt"] {
        cloud.end(pod).await;
    }
    cloud.reports("libvirt", "ConfigMissing", "id_rsa").await;
    cloud
        .annotate("libvirt", names::ANNOTATION_ABANDON, domain)
        .await;
    cloud.reports("vm", "Deleting", "is being deleted").await;
    cloud.let_vm_go("vm").await;
    for name in ["libvirt", "older", "seen", "vm"] {
        cloud.released(name).await;
    }
    eventually("the garbled PeerPod is reported", async || {
        !cloud
            .notes("PeerPod", "garbled", "Unreadable")
            .await
            .is_empty()
    })
    .await;

    let began = Instant::now();
    let found = || {
        let requests = cloud.requests.lock().unwrap();
        complaints(&granted(), &requests, &BTreeSet::new())
    };
    // The search for orphans takes its time.
    while !found().is_empty() && began.elapsed() < Duration::from_secs(30) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(found(), [""; 0]);
}
