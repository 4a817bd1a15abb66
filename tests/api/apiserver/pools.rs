//! Pools: two controllers without leader election, which both write, and the rules of the definitions.

use crate::apiserver::objects::unschedulable_vm;
use crate::apiserver::world::{World, eventually};
use futures::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::task::JoinHandle;
use vm_operator::api::pool::names;
use vm_operator::controllers::pool;
use vm_operator::controllers::pool::context::PoolController;
use vm_operator::controllers::pool::orphans::Orphans;
use vm_operator::k8s::cluster::Cluster;
use vm_operator::k8s::controller;
use vm_operator::k8s::tasks::Tasks;

const VERSION: &str = "vmoperator.jdrupes.org/v1";

/// Starts the controllers of pools and of their orphans, without leader election.
fn start(world: &World) -> JoinHandle<()> {
    let cluster = Cluster::new(world.client.clone(), pool::MANAGER);
    let ctx = Arc::new(PoolController::new(cluster, world.namespace.clone()));
    let mut tasks = Tasks::default();
    let watched = pool::watch(&ctx, &mut tasks);
    let never = std::future::pending().boxed().shared();
    tokio::spawn(async move {
        let orphans = controller::run(Orphans::new(&ctx), watched.vms, never.clone());
        let pools = controller::run(ctx, watched.pools, never);
        tokio::select! {
            _ = futures::future::join(orphans, pools) => {}
            ended = tasks.ended() => panic!("{ended}"),
        }
    })
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn assignment(pool: &str, user: &str) -> Value {
    let name = names::assignment(pool, user);
    object("VmAssignment", &name, json!({"pool": pool, "user": user}))
}

async fn create(world: &World, plural: &str, object: &Value) {
    let path = format!("/apis/{VERSION}/namespaces/{}/{plural}", world.namespace);
    let request = http::Request::post(path).header("Content-Type", "application/json");
    let request = request.body(object.to_string().into_bytes()).unwrap();
    world.client.request::<Value>(request).await.unwrap();
}

async fn list(world: &World, plural: &str) -> Vec<Value> {
    let path = format!("/apis/{VERSION}/namespaces/{}/{plural}", world.namespace);
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    let list: Value = world.client.request(request).await.unwrap();
    list["items"].as_array().unwrap().clone()
}

fn reason(assignment: &Value) -> &str {
    assignment["status"]["conditions"][0]["reason"]
        .as_str()
        .unwrap_or_default()
}

/// The names of VMs that the API server assigns to users, by user.
async fn holdings(world: &World) -> BTreeMap<String, String> {
    let vms = list(world, "vms").await;
    let mut holdings = BTreeMap::new();
    for assignment in list(world, "vmassignments").await {
        let mut named = vms
            .iter()
            .filter(|vm| vm["metadata"]["uid"] == assignment["status"]["vm"]["uid"]);
        let vm =
            named.find(|vm| vm["status"]["assignment"]["uid"] == assignment["metadata"]["uid"]);
        if let Some(vm) = vm.filter(|_| reason(&assignment) == "Assigned") {
            let user = assignment["spec"]["user"].as_str().unwrap().to_owned();
            holdings.insert(user, vm["metadata"]["name"].as_str().unwrap().to_owned());
        }
    }
    holdings
}

#[tokio::test]
async fn two_controllers_give_each_vm_to_one_user_in_the_order_of_the_queue() {
    let world = World::new("pools").await;
    let controllers = [start(&world), start(&world)];
    let pool = object(
        "VmPool",
        "desktops",
        json!({"permissions": [], "onRelease": "Stop"}),
    );
    create(&world, "vmpools", &pool).await;
    let spec = json!({"pools": ["desktops"], "vm": {"state": "Stopped", "networks": []}});
    for vm in 0..6 {
        let vm = object("VirtualMachine", &format!("vm{vm}"), spec.clone());
        create(&world, "vms", &vm).await;
    }
    for user in 0..10 {
        create(
            &world,
            "vmassignments",
            &assignment("desktops", &format!("user{user}")),
        )
        .await;
    }
    eventually("six users have a VM", || async {
        holdings(&world).await.len() == 6
    })
    .await;
    let held = holdings(&world).await;
    let vms: BTreeSet<_> = held.values().collect();
    assert_eq!(vms.len(), 6, "{held:?}");
    eventually("four users wait", || async {
        let assignments = list(&world, "vmassignments").await;
        assignments
            .iter()
            .filter(|assignment| reason(assignment) == "Waiting")
            .count()
            == 4
    })
    .await;
    let running = list(&world, "vms").await;
    assert!(
        running
            .iter()
            .all(|vm| vm["spec"]["vm"]["state"] == "Running")
    );
    // The first user leaves, and one of those who wait gets the VM.
    let (first, vm) = held.iter().next().unwrap();
    let name = names::assignment("desktops", first);
    world
        .shell(&format!("kubectl delete vmassignment {name}"))
        .unwrap();
    eventually("another user has the VM", || async {
        let held = holdings(&world).await;
        held.len() == 6 && held.values().any(|other| other == vm) && !held.contains_key(first)
    })
    .await;
    let columns = world.shell("kubectl get vmassignments").unwrap();
    assert!(columns.starts_with("NAME"), "{columns}");
    assert!(
        columns.contains("EXPIRES") && columns.contains("Waiting"),
        "{columns}"
    );
    // The pool's status is written after the last assignment.
    eventually("the pool says that no VM is free", || async {
        let pool = world.shell("kubectl describe vmpool desktops").unwrap();
        pool.contains("no VM is free: 6 of 6 VMs are assigned")
    })
    .await;
    // The deletion of the pool ends all assignments.
    world.shell("kubectl delete vmpool desktops").unwrap();
    eventually("no VM is assigned", || async {
        let vms = list(&world, "vms").await;
        let is_free = |vm: &Value| vm["status"]["assignment"] == json!({});
        list(&world, "vmassignments").await.is_empty() && vms.iter().all(is_free)
    })
    .await;
    controllers.iter().for_each(JoinHandle::abort);
}

/// Writes `status.assignment` as the Java VM-Operator does.
async fn assign_by_java(world: &World, vm: &str, user: &str, last_used: &str) {
    let assignment = json!({"pool": "desktops", "user": user, "lastUsed": last_used});
    let path = format!(
        "/apis/{VERSION}/namespaces/{}/vms/{vm}/status",
        world.namespace
    );
    let request = http::Request::patch(path).header("Content-Type", "application/merge-patch+json");
    let body = json!({"status": {"assignment": assignment}}).to_string();
    let request = request.body(body.into_bytes()).unwrap();
    world.client.request::<Value>(request).await.unwrap();
}

/// The state that a restart or a stop of the VM would change.
async fn states(world: &World) -> Vec<Value> {
    let vms = list(world, "vms").await;
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    let pods = pods.list(&ListParams::default()).await.unwrap().items;
    let state = |vm: &Value| {
        let name = vm["metadata"]["name"].as_str().unwrap();
        let pod = pods.iter().find(|pod| pod.name_any() == name);
        let pod = pod.map(|pod| (pod.uid(), pod.metadata.deletion_timestamp.clone()));
        json!([name, vm["spec"], vm["metadata"]["generation"], pod])
    };
    vms.iter().map(state).collect()
}

#[tokio::test]
async fn assignments_of_the_java_operator_are_adopted_without_a_restart() {
    let world = World::new("java-pools").await;
    let operator = world.start_operator().await;
    for (vm, state) in [
        ("anna1", "Running"),
        ("anna2", "Running"),
        ("berta", "Stopped"),
    ] {
        let mut object = serde_json::to_value(unschedulable_vm(state)).unwrap();
        object["metadata"]["name"] = vm.into();
        object["spec"]["pools"] = json!(["desktops"]);
        create(&world, "vms", &object).await;
    }
    let pods = || async {
        states(&world)
            .await
            .iter()
            .filter(|it| !it[3].is_null())
            .count()
    };
    eventually("both VMs have a pod", || async { pods().await == 2 }).await;
    assign_by_java(&world, "anna1", "anna", "2026-01-01T08:00:00Z").await;
    assign_by_java(&world, "anna2", "anna", "2026-01-02T08:00:00Z").await;
    assign_by_java(&world, "berta", "berta", "2026-01-03T08:00:00Z").await;
    let before = states(&world).await;

    let controllers = [start(&world), start(&world)];
    let spec = json!({"permissions": [], "onRelease": "Restart", "retention": "P1Y"});
    create(&world, "vmpools", &object("VmPool", "desktops", spec)).await;
    eventually("the assignments are adopted", || async {
        holdings(&world).await.len() == 2
    })
    .await;
    // Of two VMs of a user, the one that was used last remains.
    let held = holdings(&world).await;
    assert_eq!((&*held["anna"], &*held["berta"]), ("anna2", "berta"));
    let assignments = list(&world, "vmassignments").await;
    for assignment in &assignments {
        assert_eq!(
            assignment["metadata"]["annotations"][names::ANNOTATION_ADOPTED],
            "true"
        );
        let used = assignment["status"]["lastUsed"].as_str().unwrap();
        assert!(used.starts_with("2026-01-0"), "{used}");
    }
    eventually("the other VM is free", || async {
        let vms = list(&world, "vms").await;
        vms[0]["status"]["assignment"]["user"].is_null()
    })
    .await;
    // Nobody uses the VM that is given back, so its guest restarts before the next user gets it. The adopted VMs run on.
    let after = states(&world).await;
    assert_eq!(after[1..], before[1..]);
    controllers.iter().for_each(JoinHandle::abort);
    operator.stop().await;
}

#[tokio::test]
async fn assignment_of_no_pool_says_so_and_cannot_be_changed() {
    let world = World::new("assignments").await;
    let created = world
        .apply(&assignment("none", "anna"), false)
        .await
        .unwrap();
    let created = serde_json::to_value(created).unwrap();
    assert_eq!(reason(&created), "Pending", "{created:#}");
    let mut changed = assignment("none", "anna");
    changed["spec"]["user"] = "berta".into();
    let error = world.apply(&changed, true).await.unwrap_err().to_string();
    assert!(error.contains("cannot be changed"), "{error}");
    let error = world
        .apply(&assignment("none", "a\nb"), true)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("spec.user"), "{error}");
}

#[tokio::test]
async fn invalid_pools_are_rejected_with_the_next_step() {
    let world = World::new("invalid-pools").await;
    let permission = |permission: Value| json!({"permissions": [permission]});
    for (spec, message) in [
        (
            json!({"permissions": [], "retention": "P"}),
            "is a duration without a number",
        ),
        (
            json!({"permissions": [], "retention": "P1DT"}),
            "is a duration without a number",
        ),
        (
            json!({"permissions": [], "retention": "soon"}),
            "spec.retention",
        ),
        (
            json!({"permissions": [], "retention": "2026-02-30T00:00:00Z"}),
            "nor an existing date",
        ),
        (json!({}), "permissions"),
        (permission(json!({})), "exactly one of user and role"),
        (
            permission(json!({"user": "a", "role": "b"})),
            "exactly one of user and role",
        ),
        (
            permission(json!({"user": "a", "may": ["takeConsole"]})),
            "Unsupported value",
        ),
        (json!({"permissions": [], "prewarm": -1}), "prewarm"),
    ] {
        let error = world
            .apply(&object("VmPool", "p", spec), true)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(message), "{error}");
    }
    let valid = permission(json!({"role": "user"}));
    let pool = serde_json::to_value(
        world
            .apply(&object("VmPool", "p", valid), true)
            .await
            .unwrap(),
    )
    .unwrap();
    assert_eq!(pool["spec"]["retention"], "PT1h");
    assert_eq!(
        pool["spec"]["permissions"][0]["may"],
        json!(["accessConsole"])
    );
}
