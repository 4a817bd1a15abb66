//! Two operators as processes with 60 VMs in two pools that share members, and 200 users for three minutes. The leader is suspended
//! and continued eight times. The history of all objects then shows each version of each VM and each assignment.
//!
//! Scheduler, kubelet and runners are simulated. The VMs of one pool restart between two users.

mod history;
mod users;

use crate::apiserver::leader::{Process, address_of};
use crate::apiserver::world::{World, eventually, install};
use history::Checked;
use kube::api::ListParams;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::components::{Cluster, VM_KINDS, api};
use support::real::Server;

/// The pools. Some members belong to both.
const POOLS: [&str; 2] = ["keep", "restart"];
const VMS: usize = 60;
const USERS: usize = 200;
const SUSPENSIONS: usize = 8;
const DURATION: Duration = Duration::from_secs(180);
/// Time in which a new leader works before it is suspended.
const LEADERSHIP: Duration = Duration::from_secs(4);

/// An API server with all definitions, and a namespace.
async fn world() -> World {
    let server: &'static Server = Box::leak(Box::new(Server::start()));
    let client = server.client().await;
    install(&client, |_| true).await;
    eventually("the definitions are established", || async {
        let lists = VM_KINDS.map(|it| api(&client, it.kind, None));
        let everything = ListParams::default();
        let lists = lists.iter().map(|api| api.list(&everything));
        futures::future::try_join_all(lists).await.is_ok()
    })
    .await;
    World::on(server, "pool-load").await
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "vmoperator.jdrupes.org/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

async fn create_pools(cluster: &Cluster, namespace: &str) {
    for (pool, on_release) in POOLS.into_iter().zip(["Keep", "Restart"]) {
        let spec = json!({"permissions": [], "retention": "PT3S", "onRelease": on_release});
        let pool = object("VmPool", pool, spec);
        cluster.make(namespace, "VmPool", pool).await;
    }
    for number in 0..VMS {
        // A third of the VMs belongs to each pool, and a third to both.
        let pools = match number % 3 {
            2 => &POOLS[..],
            one => &POOLS[one..=one],
        };
        let spec = json!({"pools": pools, "vm": {"state": "Stopped", "maximumRam": "64Mi", "networks": []}});
        let vm = object("VirtualMachine", &format!("vm-{number:02}"), spec);
        cluster.make(namespace, "VirtualMachine", vm).await;
    }
}

/// Suspends each leader, and continues it when the other operator leads.
async fn suspend_leaders(operators: [&Process; 2]) {
    let mut leader = usize::from(operators[1].leads().await);
    for _ in 0..SUSPENSIONS {
        tokio::time::sleep(LEADERSHIP).await;
        let (first, second) = (operators[leader], operators[1 - leader]);
        first.signal("-STOP");
        eventually("the other operator leads", || second.leads()).await;
        first.signal("-CONT");
        eventually("the continued operator has lost the leadership", || async {
            !first.leads().await && first.get("/readyz").await.contains("200 OK")
        })
        .await;
        leader = 1 - leader;
    }
}

/// Waits until each assignment has a VM, because assignments expire after 3 s, and each VM that names an assignment belongs to it.
async fn settled(cluster: &Cluster, namespace: &str) {
    eventually("the pools are settled", || async {
        let present = cluster.present(namespace);
        let of_kind = |kind: &str| {
            let objects = present.iter().filter(move |((of, _), _)| *of == kind);
            objects.map(|(_, object)| object).collect::<Vec<_>>()
        };
        let claims = of_kind("VmAssignment");
        let mut vms = of_kind("VirtualMachine").into_iter();
        let has_vm = |claim: &&Value| claim["status"]["conditions"][0]["reason"] == "Assigned";
        claims.iter().all(has_vm)
            && vms.all(|vm| {
                let uid = &vm["status"]["assignment"]["uid"];
                uid.is_null() || claims.iter().any(|claim| claim["metadata"]["uid"] == *uid)
            })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspended_leaders_give_no_vm_to_two_users_and_keep_the_order_of_the_queue() {
    let world = world().await;
    let namespace = &*world.namespace;
    let cluster = Cluster::start(world.client.clone(), &VM_KINDS).await;
    create_pools(&cluster, namespace).await;
    let address = address_of(world.server);
    let first = Process::start(&world, "first", &address).await;
    eventually("the first leads", || first.leads()).await;
    let second = Process::start(&world, "second", &address).await;

    let (began, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let users = (0..USERS).map(|number| users::run(number, &cluster, namespace, &stop));
    let users: Vec<_> = users.map(tokio::spawn).collect();
    suspend_leaders([&first, &second]).await;
    let suspended = began.elapsed();
    tokio::time::sleep(DURATION.saturating_sub(suspended)).await;
    stop.store(true, Ordering::Relaxed);
    for user in users {
        user.await.unwrap();
    }
    let loaded = began.elapsed();
    settled(&cluster, namespace).await;
    assert_eq!(cluster.failures(namespace), [""; 0]);

    let history = cluster.take_history(namespace);
    let checked = Checked::of(&history);
    println!(
        "{USERS} users, {VMS} VMs, {SUSPENSIONS} suspensions in {:.0} s of {:.0} s: {} versions of objects, {checked:?}",
        suspended.as_secs_f64(),
        loaded.as_secs_f64(),
        history.len(),
    );
    assert_eq!(checked.violations, [""; 0]);
    // The run has exercised what it checks.
    assert!(checked.assigned > 2 * VMS, "{checked:?}");
    assert!(checked.reclaimed > 0 && checked.restarted > 0 && checked.connected > 0);
    assert!(checked.lent > 0, "no shared VM was in both pools");
}
