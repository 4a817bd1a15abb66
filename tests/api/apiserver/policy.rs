//! The permissions of the token of a runner of the Java VM-Operator: a real token, bound to the pod, with the role of
//! `deploy/components/reference-runner` and the admission policy of `deploy/cluster`. `reports` has those of other runners.

use crate::apiserver::objects::unschedulable_vm;
use crate::apiserver::world::{World, eventually, root};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::authorization::v1::SelfSubjectRulesReview;
use k8s_openapi::api::core::v1::{Event as CoreEvent, Pod, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, Error, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use vm_operator::api::VirtualMachine;

/// A namespace with the VMs `vm` and `other`, and pods with the account of runners of the Java VM-Operator.
async fn two_vms(name: &str) -> World {
    let world = World::new(name).await;
    // The device plugin is in a namespace of its own.
    let cluster = world.kustomize("deploy/cluster").into_iter();
    for object in cluster.filter(|object| object["metadata"]["namespace"].is_null()) {
        world.apply(&object, false).await.unwrap();
    }
    for mut object in world.with_reference_runner() {
        let wanted = ["Role", "RoleBinding"].contains(&object["kind"].as_str().unwrap());
        if wanted && object["metadata"]["name"] == "vm-runner" {
            if object["kind"] == "RoleBinding" {
                object["subjects"][0]["namespace"] = world.namespace.clone().into();
            }
            world.apply(&object, false).await.unwrap();
        }
    }
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    for name in ["vm", "other"] {
        let mut vm = unschedulable_vm("Running");
        vm.metadata.name = Some(name.to_owned());
        world
            .vms()
            .create(&PostParams::default(), &vm)
            .await
            .unwrap();
        pods.create(&PostParams::default(), &java_pod(name))
            .await
            .unwrap();
    }
    world
}

/// A pod of the Java VM-Operator, as far as the permissions of its runner depend on it.
fn java_pod(name: &str) -> Pod {
    let container = json!({
        "name": name, "image": "none",
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
    });
    let security = json!({"runAsNonRoot": true, "runAsUser": 107, "seccompProfile": {"type": "RuntimeDefault"}});
    let spec = json!({
        "containers": [container], "securityContext": security, "nodeSelector": {"no-such": "node"},
        "serviceAccountName": "vm-runner",
    });
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
}

impl World {
    /// The objects of the base with the component for runners of the Java VM-Operator.
    fn with_reference_runner(&self) -> Vec<Value> {
        let components = ["../../deploy/components/reference-runner"];
        let dir = format!(".cache/{}-runners", self.namespace);
        std::fs::create_dir_all(root().join(&dir)).unwrap();
        let overlay = json!({"resources": ["../../deploy"], "components": components});
        std::fs::write(
            root().join(&dir).join("kustomization.yaml"),
            overlay.to_string(),
        )
        .unwrap();
        let objects = self.kustomize(&dir);
        std::fs::remove_dir_all(root().join(&dir)).unwrap();
        objects
    }

    pub fn vms(&self) -> Api<VirtualMachine> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// A client with a token of that account, bound to that pod.
    pub async fn token(&self, account: &str, pod: Option<&str>) -> Client {
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        let bound = match pod {
            Some(name) => {
                json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pods.get(name).await.unwrap().uid()})
            }
            None => Value::Null,
        };
        let request = json!({"metadata": {}, "spec": {"audiences": [], "boundObjectRef": bound}});
        let request: TokenRequest = serde_json::from_value(request).unwrap();
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), &self.namespace);
        let token = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .unwrap();
        let mut config = self.config.clone();
        config.auth_info = kube::config::AuthInfo::default();
        config.auth_info.token = Some(token.status.unwrap().token.into());
        Client::try_from(config).unwrap()
    }

    async fn runner(&self, pod: Option<&str>) -> Client {
        self.token("vm-runner", pod).await
    }

    /// Writes a status as a runner does.
    async fn write_status(&self, client: &Client, vm: &str) -> Result<VirtualMachine, Error> {
        let (version, kind) = ("vmoperator.jdrupes.org/v1", "VirtualMachine");
        let body = json!({"apiVersion": version, "kind": kind, "metadata": {"name": vm}, "status": {"runnerVersion": "1"}});
        let vms = Api::<VirtualMachine>::namespaced(client.clone(), &self.namespace);
        vms.patch_status(
            vm,
            &PatchParams::apply("java-runner").force(),
            &Patch::Apply(&body),
        )
        .await
    }

    /// Publishes an event as a runner does.
    async fn publish(&self, client: &Client, kind: &str, name: &str) -> Result<Event, Error> {
        let event = json!({
            "metadata": {"generateName": "vm-", "namespace": self.namespace}, "type": "Normal", "reason": "Test",
            "action": "Test", "eventTime": "2026-01-01T00:00:00.000000Z", "note": "a test",
            "reportingController": "example.org/runner", "reportingInstance": "vm",
            "regarding": {"apiVersion": "v1", "kind": kind, "namespace": self.namespace, "name": name},
        });
        let events = Api::namespaced(client.clone(), &self.namespace);
        events
            .create(
                &PostParams::default(),
                &serde_json::from_value(event).unwrap(),
            )
            .await
    }

    /// Returns when the new policy is in force.
    async fn policy_is_in_force(&self, runner: &Client) {
        eventually("the policy is in force", || async {
            rejection(self.write_status(runner, "other").await)
                .is_some_and(|why| why.contains("ValidatingAdmissionPolicy"))
        })
        .await;
    }
}

/// The message of a rejection by the policy, if there is one. Other errors panic.
fn rejection<T>(result: Result<T, Error>) -> Option<String> {
    match result {
        Ok(_) => None,
        Err(Error::Api(status)) if status.code == 403 || status.code == 422 => Some(status.message),
        Err(error) => panic!("{error}"),
    }
}

#[track_caller]
fn assert_rejected<T>(result: Result<T, Error>, why: &str) {
    let message = rejection(result).expect("it is rejected");
    assert!(message.contains(why), "{message}");
}

#[tokio::test]
async fn a_runner_writes_the_status_and_events_of_its_own_vm_and_of_no_other() {
    let world = two_vms("policy").await;
    let runner = world.runner(Some("vm")).await;
    world.policy_is_in_force(&runner).await;

    let vm = world.write_status(&runner, "vm").await.unwrap();
    assert_eq!(vm.status.unwrap().runner_version.as_deref(), Some("1"));
    world
        .publish(&runner, "VirtualMachine", "vm")
        .await
        .unwrap();

    assert_rejected(
        world.write_status(&runner, "other").await,
        "the runner of VM vm may not write to VM other",
    );
    let why = "the runner of VM vm may publish events on that VM only";
    assert_rejected(world.publish(&runner, "VirtualMachine", "other").await, why);
    assert_rejected(world.publish(&runner, "Pod", "vm").await, why);
    // A token of the same account that is not bound to a pod.
    let unbound = world.runner(None).await;
    assert_rejected(
        world.write_status(&unbound, "vm").await,
        "only with the token of a pod",
    );
    assert_rejected(
        world.publish(&unbound, "VirtualMachine", "vm").await,
        "only with the token of a pod",
    );

    // Other accounts are not affected.
    world.write_status(&world.client, "other").await.unwrap();
    world.publish(&world.client, "Pod", "vm").await.unwrap();
}

#[tokio::test]
async fn the_role_of_a_java_runner_has_the_rights_that_it_uses() {
    let world = two_vms("rules").await;
    let runner = world.runner(Some("vm")).await;
    let review = json!({"spec": {"namespace": world.namespace}});
    let review: SelfSubjectRulesReview = serde_json::from_value(review).unwrap();
    let review = Api::all(runner)
        .create(&PostParams::default(), &review)
        .await
        .unwrap()
        .status
        .unwrap();
    let mut rules = BTreeSet::new();
    for rule in review.resource_rules {
        for (group, resource) in rule
            .api_groups
            .iter()
            .flatten()
            .zip(rule.resources.iter().flatten())
        {
            // The permissions of each account: reviews of its own access, and since Kubernetes 1.37 the cluster's certificates.
            let of_each_account = ["authorization", "authentication", "certificates"];
            let is_group = |name: &&str| group.ends_with(&format!("{name}.k8s.io"));
            if !of_each_account.iter().any(is_group) {
                rules.insert(format!("{} {group}/{resource}", rule.verbs.join(",")));
            }
        }
    }
    let wanted = [
        "create events.k8s.io/events",
        "list,get,patch vmoperator.jdrupes.org/vms",
        "patch vmoperator.jdrupes.org/vms/status",
    ];
    assert_eq!(rules, wanted.map(str::to_owned).into());
}

#[tokio::test]
async fn the_policy_holds_also_where_a_role_gives_too_much() {
    let world = two_vms("too-much").await;
    let rule = json!({"apiGroups": ["vmoperator.jdrupes.org", "", "events.k8s.io"], "resources": ["*"], "verbs": ["*"]});
    let metadata = json!({"name": "vm-runner", "namespace": world.namespace});
    let version = "rbac.authorization.k8s.io/v1";
    world
        .apply(
            &json!({"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": [rule]}),
            false,
        )
        .await
        .unwrap();
    let runner = world.runner(Some("vm")).await;
    world.policy_is_in_force(&runner).await;
    let vms = Api::<VirtualMachine>::namespaced(runner.clone(), &world.namespace);

    // The runner of the Java VM-Operator does this after its guest has shut down.
    let stopped = Patch::Merge(json!({"spec": {"vm": {"state": "Stopped"}}}));
    eventually("the role is in force", || async {
        vms.patch("vm", &PatchParams::default(), &stopped)
            .await
            .is_ok()
    })
    .await;
    assert_rejected(
        vms.patch("other", &PatchParams::default(), &stopped).await,
        "may not write to VM other",
    );
    assert_rejected(
        vms.delete("other", &DeleteParams::default()).await,
        "may not write to VM other",
    );
    assert_rejected(
        vms.delete("vm", &DeleteParams::default()).await,
        "may not write to VM vm",
    );
    let mut new = unschedulable_vm("Running");
    new.metadata.name = Some("new".to_owned());
    assert_rejected(
        vms.create(&PostParams::default(), &new).await,
        "may not write to VM new",
    );

    let about = |name: &str| -> CoreEvent {
        let object = json!({"kind": "VirtualMachine", "namespace": world.namespace, "name": name});
        let metadata = json!({"generateName": "vm-", "namespace": world.namespace});
        serde_json::from_value(
            json!({"metadata": metadata, "involvedObject": object, "reason": "Test"}),
        )
        .unwrap()
    };
    let events = Api::<CoreEvent>::namespaced(runner, &world.namespace);
    events
        .create(&PostParams::default(), &about("vm"))
        .await
        .unwrap();
    assert_rejected(
        events.create(&PostParams::default(), &about("other")).await,
        "may publish events on that VM only",
    );
}

#[tokio::test]
async fn a_runners_token_is_worth_nothing_once_its_pod_is_gone() {
    let world = two_vms("token").await;
    let runner = world.runner(Some("vm")).await;
    world.write_status(&runner, "vm").await.unwrap();
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    pods.delete("vm", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    eventually("the token is rejected", || async {
        matches!(world.write_status(&runner, "vm").await, Err(Error::Api(status)) if status.code == 401)
    })
    .await;
}
