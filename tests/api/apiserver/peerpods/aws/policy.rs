//! Policies without one of the actions that the controller needs.

use super::{ACTIONS, Cloud, REGION};
use crate::apiserver::peerpods::log::Log;
use serde_json::json;

/// The only action that the controller does without.
const INTERFACES: &str = "ec2:DescribeNetworkInterfaces";

fn without(action: &str) -> Vec<&'static str> {
    let others = ACTIONS.into_iter().filter(|it| *it != action);
    others.collect()
}

#[tokio::test]
async fn policy_without_one_action_is_reported_with_the_action() {
    let mut cloud = Cloud::start("aws-policy").await;
    let keys = cloud.user("controller", &without(ACTIONS[0])).await;
    cloud.enforce().await;
    let id = cloud.run_instance("podvm-a-0123abcd").await;
    let address = cloud.address(&format!("eip-{id}"), Some(&id)).await;
    let interface = cloud.interface(&format!("nic-{id}")).await;
    cloud.configure(json!({"AWS_REGION": REGION}), &keys).await;
    let log = Log::start();
    cloud.operate().await;
    cloud.pod("a", &id, json!({})).await;
    cloud.end("a").await;
    for action in without(INTERFACES) {
        cloud.permit("controller", &without(action)).await;
        cloud.annotate("a", "test", action).await;
        let next = format!("permit {action} in the policy");
        cloud.reports("a", "PermissionDenied", &next).await;
        if action == "ec2:TerminateInstances" {
            assert_eq!(cloud.state(&id).await, "running");
        }
    }
    assert_eq!(cloud.state(&id).await, "terminated");
    assert!(!cloud.has("DescribeAddresses", &address).await);
    cloud.permit("controller", &without(INTERFACES)).await;
    cloud.annotate("a", "test", "last").await;
    cloud.released("a").await;
    assert!(cloud.has("DescribeNetworkInterfaces", &interface).await);
    assert!(
        log.text()
            .contains(&format!("permit {INTERFACES} in the policy"))
    );
}
