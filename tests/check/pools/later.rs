//! Definitions of pools that are missing at the start of the operator.

use super::{NAMESPACE, create, empty_server};
use futures::FutureExt;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use support::install::definitions;
use support::memory::Server;
use support::{components, timings};
use tokio::task::JoinHandle;
use vm_operator::api::pool::names;
use vm_operator::controllers::pool::context::PoolController;
use vm_operator::controllers::pool::orphans::Orphans;
use vm_operator::controllers::pool::{MANAGER, watch};
use vm_operator::k8s::cluster::Cluster;
use vm_operator::k8s::controller;
use vm_operator::k8s::registry::Registry;
use vm_operator::k8s::tasks::Tasks;

/// The controller of pools, which runs until its task is aborted.
pub(super) struct Running {
    pub(super) ctx: Arc<PoolController>,
    pub(super) registry: Registry,
    pub(super) task: JoinHandle<()>,
    _tasks: Tasks,
}

pub(super) fn run(server: &Server) -> Running {
    let mut cluster = Cluster::new(server.client(NAMESPACE), MANAGER);
    (cluster.now, cluster.instant) = (timings::now, timings::instant);
    let ctx = Arc::new(PoolController::new(cluster, NAMESPACE.to_owned()));
    let mut registry = Registry::default();
    ctx.register(&mut registry);
    let mut tasks = Tasks::default();
    let watched = watch(&ctx, &mut tasks);
    let never = std::future::pending().boxed().shared();
    let orphans = controller::run(Orphans::new(&ctx), watched.vms, never.clone());
    let pool = controller::run(ctx.clone(), watched.pools, never);
    let task = tokio::spawn(futures::future::join(orphans, pool).map(drop));
    Running {
        ctx,
        registry,
        task,
        _tasks: tasks,
    }
}

#[tokio::test(start_paused = true)]
async fn definitions_that_appear_later_are_noticed_and_nothing_waits_for_them() {
    let server = empty_server();
    let [vms, reports, pools, assignments] = definitions()[..4].to_vec().try_into().unwrap();
    server.install_crd(&vms);
    server.install_crd(&reports);
    let Running {
        registry,
        task: running,
        ..
    } = &run(&server);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(registry.missing(), [""; 0]);
    registry.ready().await;
    assert!(!running.is_finished());

    server.install_crd(&pools);
    server.install_crd(&assignments);
    let member = json!({"pools": ["p"], "vm": {"state": "Stopped"}});
    create(&server, "VirtualMachine", "one", member).await;
    create(&server, "VmPool", "p", json!({"permissions": []})).await;
    let name = names::assignment("p", "anna");
    create(
        &server,
        "VmAssignment",
        &name,
        json!({"pool": "p", "user": "anna"}),
    )
    .await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let api = components::api(&server.client(NAMESPACE), "VmAssignment", Some(NAMESPACE));
    let assignment = serde_json::to_value(api.get(&name).await.unwrap()).unwrap();
    assert_eq!(
        assignment["status"]["conditions"][0]["reason"], "Assigned",
        "{assignment:#}"
    );
    assert_eq!(assignment["status"]["vm"]["name"], "one");
    running.abort();
}
