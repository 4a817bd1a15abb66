//! The causes of rejections: the fragments of messages by which the operator distinguishes them are those of a real API server.

use crate::apiserver::world::World;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use std::time::Duration;
use vm_operator::k8s::error::Error;
use vm_operator::k8s::rejection::Cause;

/// A pod that Pod Security admits.
fn pod() -> Value {
    let security = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true,
        "seccompProfile": {"type": "RuntimeDefault"}});
    let container = json!({"name": "c", "image": "i", "securityContext": security});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}})
}

fn claim(size: &str) -> Value {
    let spec =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}});
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}, "spec": spec})
}

fn limit_range(limit: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": [limit]}})
}

async fn cause_of(world: &World, object: &Value) -> Cause {
    // The API server enforces a LimitRange, a quota or a policy as soon as its own watch has it.
    let mut attempts = 0;
    let source = loop {
        match world.apply(object, true).await {
            Err(error) => break error,
            Ok(_) => attempts += 1,
        }
        assert!(attempts < 100, "{object} is admitted");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let kind = object["kind"].as_str().unwrap().into();
    let error = Error::Api {
        verb: "create",
        kind,
        name: "p".to_owned(),
        source,
    };
    Cause::of(&error)
}

async fn set_quota(world: &World, hard: &Value) {
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}});
    world.apply(&quota, false).await.unwrap();
    // In place of its controller, which does not run.
    let zero: Value = hard
        .as_object()
        .unwrap()
        .keys()
        .map(|key| (key.clone(), json!("0")))
        .collect();
    let status = json!({"status": {"hard": hard, "used": zero}});
    Api::<ResourceQuota>::namespaced(world.client.clone(), &world.namespace)
        .patch_status("q", &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
}

#[tokio::test]
async fn causes_of_rejections_are_recognized() {
    let world = World::new("rejections").await;
    world.apply(&pod(), true).await.unwrap();
    let mut privileged = pod();
    privileged["spec"]["hostNetwork"] = true.into();
    assert_eq!(cause_of(&world, &privileged).await, Cause::PodSecurity);
    let mut large = pod();
    large["spec"]["containers"][0]["resources"] =
        json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "4Gi"}});

    let maximum = json!({"type": "Container", "max": {"memory": "2Gi"}});
    let ratio = json!({"type": "Pod", "maxLimitRequestRatio": {"memory": "2"}});
    let storage = json!({"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}});
    for (limit, object) in [(maximum, &large), (ratio, &large), (storage, &claim("2Gi"))] {
        world.apply(&limit_range(&limit), false).await.unwrap();
        assert_eq!(cause_of(&world, object).await, Cause::LimitRange, "{limit}");
    }
    set_quota(&world, &json!({"pods": "0"})).await;
    assert_eq!(cause_of(&world, &pod()).await, Cause::Quota);
    set_quota(&world, &json!({"limits.cpu": "1"})).await;
    // Until then, the API server's watch has the former quota.
    crate::apiserver::world::eventually("the changed quota is in effect", async || {
        cause_of(&world, &pod()).await == Cause::MissingAmount
    })
    .await;
}

#[tokio::test]
async fn a_policy_and_missing_rights_are_recognized() {
    let mut world = World::new("policies").await;
    let name = json!({"name": "rejections-test"});
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]);
    let namespaces = json!({"matchLabels": {"kubernetes.io/metadata.name": world.namespace}});
    for (kind, spec) in [
        (
            "ValidatingAdmissionPolicy",
            json!({"matchConstraints": {"resourceRules": rules}, "validations": [{"expression": "false", "message": "no"}]}),
        ),
        (
            "ValidatingAdmissionPolicyBinding",
            json!({"policyName": "rejections-test", "validationActions": ["Deny"], "matchResources": {"namespaceSelector": namespaces}}),
        ),
    ] {
        let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": name, "spec": spec});
        world.apply(&object, false).await.unwrap();
    }
    crate::apiserver::world::eventually("the policy applies", async || {
        world.apply(&pod(), true).await.is_err()
    })
    .await;
    assert_eq!(cause_of(&world, &pod()).await, Cause::Policy);
    let mut config = world.config.clone();
    config.auth_info.impersonate = Some("nobody".to_owned());
    world.client = Client::try_from(config).unwrap();
    assert_eq!(cause_of(&world, &pod()).await, Cause::Rights);
}
