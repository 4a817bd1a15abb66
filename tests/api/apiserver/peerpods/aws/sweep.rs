//! The search for instances that no object names.

use super::{ACTIONS, Cloud, REGION};
use crate::apiserver::peerpods::peerpod;
use crate::apiserver::world::eventually;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vm_operator::api::PeerPod;
use vm_operator::settings::peerpod::Sweep;

/// The clock of the controller is ahead by this number of minutes.
static AHEAD: AtomicU64 = AtomicU64::new(0);

fn instant() -> Instant {
    Instant::now() + Duration::from_secs(AHEAD.load(Ordering::Relaxed) * 60)
}

impl Cloud {
    /// Waits for it, while the clock of the controller runs fast.
    async fn sweeps_until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        eventually(what, async || {
            AHEAD.fetch_add(2, Ordering::Relaxed);
            holds().await
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p16_only_an_instance_of_this_cluster_that_nothing_names_is_an_orphan() {
    let mut cloud = Cloud::start("aws-sweep").await;
    let namespaces = Api::<Namespace>::all(cloud.world.client.clone());
    let uid = namespaces.get("kube-system").await.unwrap().uid().unwrap();
    let keys = cloud.user("controller", &ACTIONS).await;
    cloud.enforce().await;
    let run = async |name: &str, uid: &str| {
        cloud
            .run_tagged(&[("Name", name), ("caa-cluster-uid", uid)])
            .await
    };
    let orphan = run("podvm-gone-0123abcd", &uid).await;
    let of_peerpod = run("podvm-other-0123abcd", &uid).await;
    let retained = [
        cloud.run_instance("podvm-gone-1123abcd").await,
        run("podvm-gone-2123abcd", "another").await,
        run("database", &uid).await,
        run("podvm-live-0123abcd", &uid).await,
        of_peerpod.clone(),
    ];
    let address = cloud.address(&format!("eip-{orphan}"), Some(&orphan)).await;
    let of_user = cloud.address("of-user", None).await;
    let interface = cloud.interface(&format!("nic-{orphan}")).await;
    // The adaptor has failed to write the PeerPod of the pod "live". The controller does not watch the namespace "default".
    cloud.pod("live", "", json!({})).await;
    let elsewhere = Api::<PeerPod>::namespaced(cloud.world.client.clone(), "default");
    let mut object = peerpod("sweep", &of_peerpod);
    (object.metadata.finalizers, object.metadata.owner_references) = (None, None);
    let params = PostParams::default();
    elsewhere.create(&params, &object).await.unwrap();
    let is_retained = async |cloud: &Cloud| {
        for id in &retained {
            assert_eq!(cloud.state(id).await, "running", "{id}");
        }
    };

    cloud.configure(json!({"AWS_REGION": REGION}), &keys).await;
    cloud.operate_with(Sweep::Report, instant).await;
    cloud
        .sweeps_until("the orphan is reported", async || {
            !cloud
                .notes("Deployment", "", "InstanceOrphaned")
                .await
                .is_empty()
        })
        .await;
    let notes = cloud
        .notes("Deployment", "", "InstanceOrphaned")
        .await
        .join("\n");
    assert!(
        notes.contains(&orphan) && notes.contains("terminate it"),
        "{notes}"
    );
    assert!(!retained.iter().any(|id| notes.contains(id)), "{notes}");
    let metric = "vm_operator_peerpod_orphans{provider=\"aws\"}";
    assert!(cloud.metrics.text().contains(&format!("{metric} 1\n")));

    // After the developer mode, the grace period begins again.
    let retains = json!({"AWS_REGION": REGION, "PEERPODS_DEVELOPER_MODE": "true"});
    cloud.configure(retains, &keys).await;
    cloud.operate_with(Sweep::Delete, instant).await;
    for _ in 0..4 {
        AHEAD.fetch_add(40, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(2_500)).await;
    }
    assert!(cloud.metrics.text().contains(&format!("{metric} 0\n")));
    assert_eq!(cloud.state(&orphan).await, "running");

    cloud.configure(json!({"AWS_REGION": REGION}), &keys).await;
    cloud
        .sweeps_until("the orphan and its resources are deleted", async || {
            !cloud.has("DescribeAddresses", &address).await
                && !cloud.has("DescribeNetworkInterfaces", &interface).await
        })
        .await;
    assert_eq!(cloud.state(&orphan).await, "terminated");
    assert!(
        cloud
            .notes("Deployment", "", "OrphanDeleted")
            .await
            .join("\n")
            .contains(&orphan)
    );
    is_retained(&cloud).await;
    assert!(cloud.has("DescribeAddresses", &of_user).await);
    elsewhere
        .delete("sweep", &DeleteParams::default())
        .await
        .unwrap();
}
