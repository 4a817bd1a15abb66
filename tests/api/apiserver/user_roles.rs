//! The ClusterRoles of `deploy/cluster` for users of VMs, alone and as parts of view, edit and admin.

use crate::apiserver::objects::unschedulable_vm;
use crate::apiserver::world::{World, eventually};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use vm_operator::api::pool::{self, VmAssignmentSpec};
use vm_operator::api::{VirtualMachine, VmAssignment};

/// The group of the kinds of this project.
const GROUP: &str = "vmoperator.jdrupes.org";

const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

impl World {
    /// A namespace with a user for each role, who has the role's name.
    async fn with_users(name: &str, roles: &[&str]) -> Self {
        let world = Self::new(name).await;
        let cluster = world.kustomize("deploy/cluster").into_iter();
        for object in cluster.filter(|object| object["kind"] == "ClusterRole") {
            world.apply(&object, false).await.unwrap();
        }
        let bindings = Api::<RoleBinding>::namespaced(world.client.clone(), &world.namespace);
        for role in roles {
            let group = "rbac.authorization.k8s.io";
            let binding = json!({
                "metadata": {"name": role},
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": group, "kind": "User", "name": role}],
            });
            let binding = serde_json::from_value(binding).unwrap();
            bindings
                .create(&PostParams::default(), &binding)
                .await
                .unwrap();
        }
        world
    }

    /// Whether the user may do that in the namespace.
    pub async fn may(&self, user: &str, verb: &str, group: &str, resource: &str) -> bool {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let attributes = json!({
            "namespace": self.namespace, "verb": verb, "group": group,
            "resource": resource, "subresource": subresource,
        });
        let review =
            json!({"metadata": {}, "spec": {"user": user, "resourceAttributes": attributes}});
        let review: SubjectAccessReview = serde_json::from_value(review).unwrap();
        let reviews = Api::<SubjectAccessReview>::all(self.client.clone());
        let review = reviews
            .create(&PostParams::default(), &review)
            .await
            .unwrap();
        review.status.unwrap().allowed
    }

    /// The verbs of `verbs` that the user may use.
    async fn allowed<'a>(&self, user: &str, verbs: &[&'a str], resource: &str) -> Vec<&'a str> {
        let mut allowed = Vec::new();
        for verb in verbs {
            if self.may(user, verb, GROUP, resource).await {
                allowed.push(*verb);
            }
        }
        allowed
    }

    /// A client that acts as the user.
    fn client_of(&self, user: &str) -> Client {
        let mut config = self.config.clone();
        config.auth_info.impersonate = Some(user.to_owned());
        Client::try_from(config).unwrap()
    }
}

#[tokio::test]
async fn roles_allow_their_verbs_and_no_secrets() {
    let world = World::with_users("roles", &["vm-viewer", "vm-user", "vm-admin"]).await;
    let nothing: [&str; 0] = [];
    for (user, writes) in [
        ("vm-viewer", &nothing[..]),
        ("vm-user", &WRITE),
        ("vm-admin", &WRITE),
    ] {
        assert_eq!(world.allowed(user, &READ, "vms").await, READ, "{user}");
        assert_eq!(world.allowed(user, &WRITE, "vms").await, writes, "{user}");
        for (resource, verb) in [
            ("secrets", "get"),
            ("secrets", "list"),
            ("pods/exec", "create"),
            ("pods/portforward", "create"),
        ] {
            assert!(
                !world.may(user, verb, "", resource).await,
                "{user} {resource}"
            );
        }
    }
    for (user, pools, claims) in [
        ("vm-viewer", &nothing[..], &nothing[..]),
        ("vm-user", &nothing, &WRITE),
        ("vm-admin", &WRITE, &WRITE),
    ] {
        for (resource, writes) in [("vmpools", pools), ("vmassignments", claims)] {
            assert_eq!(world.allowed(user, &READ, resource).await, READ, "{user}");
            assert_eq!(
                world.allowed(user, &WRITE, resource).await,
                writes,
                "{user} {resource}"
            );
        }
    }
    for resource in [
        "vms/status",
        "vmreports",
        "vmreports/status",
        "vmpools/status",
        "vmassignments/status",
    ] {
        for user in ["vm-viewer", "vm-user"] {
            assert_eq!(
                world.allowed(user, &WRITE, resource).await,
                nothing,
                "{user}"
            );
        }
        assert_eq!(world.allowed("vm-admin", &READ, resource).await, READ);
        assert_eq!(world.allowed("vm-admin", &WRITE, resource).await, WRITE);
    }
}

#[tokio::test]
async fn roles_of_kubernetes_include_those_of_vms() {
    let world = World::with_users("aggregated-roles", &["view", "edit", "admin"]).await;
    eventually("the roles are aggregated", async || {
        world.may("view", "list", GROUP, "vms").await
            && world.may("edit", "create", GROUP, "vms").await
            && world.may("admin", "patch", GROUP, "vmreports").await
    })
    .await;
    let nothing: [&str; 0] = [];
    assert_eq!(world.allowed("view", &WRITE, "vms").await, nothing);
    assert_eq!(world.allowed("edit", &WRITE, "vms").await, WRITE);
    assert_eq!(world.allowed("edit", &WRITE, "vmreports").await, nothing);
    eventually("the roles have pools", async || {
        world.may("view", "list", GROUP, "vmassignments").await
            && world.may("edit", "delete", GROUP, "vmassignments").await
            && world.may("admin", "patch", GROUP, "vmpools").await
    })
    .await;
    assert_eq!(
        world.allowed("view", &WRITE, "vmassignments").await,
        nothing
    );
    assert_eq!(world.allowed("edit", &WRITE, "vmpools").await, nothing);
    // The display's Secret, the console and the display.
    for (resource, verb) in [
        ("secrets", "get"),
        ("pods/exec", "create"),
        ("pods/portforward", "create"),
    ] {
        assert!(!world.may("view", verb, "", resource).await, "{resource}");
        for user in ["edit", "admin"] {
            assert!(
                world.may(user, verb, "", resource).await,
                "{user} {resource}"
            );
        }
    }
}

#[tokio::test]
async fn viewer_reads_conditions_and_a_user_creates_and_changes_vms() {
    let world = World::with_users("users-of-vms", &["vm-viewer", "vm-user"]).await;
    let vms =
        |user: &str| Api::<VirtualMachine>::namespaced(world.client_of(user), &world.namespace);
    let vm = unschedulable_vm("Stopped");
    let name = vm.metadata.name.clone().unwrap();
    let denied = vms("vm-viewer").create(&PostParams::default(), &vm).await;
    assert!(matches!(denied, Err(kube::Error::Api(status)) if status.code == 403));
    vms("vm-user")
        .create(&PostParams::default(), &vm)
        .await
        .unwrap();
    let patch = Patch::Merge(json!({"spec": {"vm": {"state": "Running"}}}));
    vms("vm-user")
        .patch(&name, &PatchParams::default(), &patch)
        .await
        .unwrap();
    let read = vms("vm-viewer").get(&name).await.unwrap();
    assert!(!read.status.unwrap().conditions.is_empty());
    let claims =
        |user: &str| Api::<VmAssignment>::namespaced(world.client_of(user), &world.namespace);
    let claim = VmAssignment::new(
        &pool::names::assignment("desktops", "anna"),
        VmAssignmentSpec {
            pool: "desktops".to_owned(),
            user: "anna".to_owned(),
        },
    );
    let denied = claims("vm-viewer")
        .create(&PostParams::default(), &claim)
        .await;
    assert!(matches!(denied, Err(kube::Error::Api(status)) if status.code == 403));
    claims("vm-user")
        .create(&PostParams::default(), &claim)
        .await
        .unwrap();
    let read = claims("vm-viewer").list(&ListParams::default()).await;
    assert_eq!(read.unwrap().items[0].spec.user, "anna");
    for user in ["vm-viewer", "vm-user"] {
        let secrets = Api::<Secret>::namespaced(world.client_of(user), &world.namespace);
        let denied = secrets.list(&ListParams::default()).await;
        assert!(matches!(denied, Err(kube::Error::Api(status)) if status.code == 403));
    }
}
