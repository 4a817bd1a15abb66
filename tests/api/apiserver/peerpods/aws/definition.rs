//! The definition of PeerPods of confidential containers. It keeps annotations, but no conditions.

use super::{ACTIONS, Cloud, REGION};
use crate::apiserver::peerpods::foreign;
use crate::apiserver::peerpods::life::SEEN;
use kube::ResourceExt;
use serde_json::{Value, json};
use std::time::Duration;
use vm_operator::api::peerpod::names;

#[tokio::test(flavor = "multi_thread")]
async fn definition_of_confidential_containers_keeps_the_note_and_events_have_each_reason_once() {
    let mut cloud = Cloud::of(foreign::life("aws", names::PROVIDER_AWS).await).await;
    let keys = cloud.user("controller", &ACTIONS).await;
    cloud.enforce().await;
    let id = cloud.run_instance("podvm-a-0123abcd").await;
    let retains = json!({"AWS_REGION": REGION, names::KEY_DEVELOPER_MODE: "true"});
    cloud.configure(retains, &keys).await;
    cloud.operate().await;
    cloud.pod("a", &id, json!({})).await;
    cloud.noted("a").await;
    cloud.end("a").await;
    cloud
        .says("a", "DeveloperMode", names::KEY_DEVELOPER_MODE)
        .await;
    cloud.annotate("a", "test", "later").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let peerpod = cloud.peerpods.get("a").await.unwrap();
    let note: Value = serde_json::from_str(&peerpod.annotations()[SEEN]).unwrap();
    assert_eq!(note["name"], "podvm-a-0123abcd");
    assert!(peerpod.status.unwrap_or_default().conditions.is_empty());
    assert_eq!(cloud.notes("PeerPod", "a", "DeveloperMode").await.len(), 1);

    cloud.configure(json!({"AWS_REGION": REGION}), &keys).await;
    cloud.annotate("a", "test", "again").await;
    cloud.released("a").await;
    assert_eq!(cloud.state(&id).await, "terminated");
    cloud.says("a", "InstanceDeleted", &id).await;
}
