//! A list that is older than the known state.

use super::fake_api::{CONFIG_MAPS, Fault, PODS, REPORTS, VMS};
use super::world::{World, fill, one_disk, request};
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use vm_operator::api::vm::State;
use vm_operator::controllers::vm::reconcile;
use vm_operator::k8s::controller::Outcome;
use vm_operator::k8s::views::PodView;

async fn running() -> World {
    let world = World::new(one_disk());
    world.settle().await;
    world.run();
    world.settle().await;
    assert_eq!(world.ready().0, "Running");
    world
}

#[tokio::test]
async fn runner_status_is_not_reset_for_a_stale_list_without_the_pod() {
    let world = running().await;
    fill(&world.ctx.caches.pods, Vec::new());
    assert_eq!(world.step().await, [request("GET", PODS, "vm")]);
    assert_eq!(world.step().await, [""; 0]);
    assert_eq!(
        (world.ready().0.as_str(), world.vm().status.unwrap().cpus),
        ("Running", 1)
    );
}

#[tokio::test]
async fn status_of_the_new_pod_is_not_reset_for_the_end_of_the_old_pod() {
    // A delayed watch reports the previous pod.
    for event in [Event::Apply as fn(PodView) -> Event<PodView>, Event::Delete] {
        let world = running().await;
        let pod = world.api.get(PODS, "vm").unwrap();
        let mut before = pod.clone();
        before["metadata"]["uid"] = "the one before".into();
        before["metadata"]["resourceVersion"] = "1".into();
        before["status"] = json!({"phase": "Failed"});
        fill(&world.ctx.caches.pods, vec![before.clone()]);
        world
            .ctx
            .caches
            .pods
            .watched(event(serde_json::from_value(before).unwrap()));
        assert_eq!(world.step().await, [""; 0]);
        assert_eq!(
            (world.ready().0.as_str(), world.vm().status.unwrap().cpus),
            ("Running", 1)
        );
        assert_eq!(world.api.get(PODS, "vm").unwrap(), pod);
    }
}

#[tokio::test]
async fn a_pod_that_is_gone_is_looked_for_once_where_only_a_list_says_so() {
    let world = running().await;
    world.api.remove(PODS, "vm");
    world.deliver();
    let status = || request("PATCH", VMS, "vm/status");
    let (pod, vm) = (request("GET", PODS, "vm"), request("GET", VMS, "vm"));
    assert_eq!(
        world.step().await,
        [
            pod,
            vm,
            status(),
            status(),
            request("POST", PODS, "vm"),
            request("POST", REPORTS, "POD")
        ]
    );
}

#[tokio::test]
async fn pod_that_starts_during_a_spec_change_is_not_deleted() {
    let world = World::new(one_disk());
    world.settle().await;
    let pod = world.api.get(PODS, "vm").unwrap();
    // The operator does not know yet that the pod has started.
    world.api.change(PODS, "vm", |pod| {
        pod["status"] = json!({"phase": "Running"})
    });
    world.api.change(VMS, "vm", |vm| {
        vm["spec"]["image"] = json!({"source": "example.org/another:1"});
        vm["metadata"]["generation"] = 2.into();
    });
    world.reconcile().await.unwrap();
    assert!(
        world
            .api
            .requests()
            .contains(&request("DELETE", PODS, "vm"))
    );
    let there = world.api.get(PODS, "vm").unwrap();
    assert_eq!(there["metadata"]["uid"], pod["metadata"]["uid"]);
    assert_eq!(there["metadata"]["deletionTimestamp"], Value::Null);
    world.settle().await;
    assert_eq!(
        world.api.get(PODS, "vm").unwrap()["metadata"]["deletionTimestamp"],
        Value::Null
    );
}

#[tokio::test]
async fn an_operator_that_knows_the_vm_of_the_past_only_ends_and_changes_no_guest() {
    for past in [
        json!({"state": "Stopped"}),
        json!({"restartRequest": 1}),
        json!({"resetRequest": 1}),
    ] {
        let mut world = running().await;
        world.edit(|machine| {
            machine
                .as_object_mut()
                .unwrap()
                .extend(past.as_object().unwrap().clone())
        });
        let mut before = world.vm();
        before.status.as_mut().unwrap().observed_generation = before.metadata.generation;
        // In between, another operator has correctly stopped and started the VM.
        world.edit(|machine| machine["state"] = "Running".into());
        world.restart_operator();
        let look = async || {
            reconcile(Arc::new(before.clone()), &world.ctx)
                .await
                .unwrap()
        };
        for _ in 0..2 {
            assert_eq!(
                look().await,
                Outcome::Recheck(Duration::from_secs(1)),
                "{past}"
            );
            assert_eq!(world.api.requests(), [request("GET", VMS, "vm")], "{past}");
        }
    }
}

#[tokio::test]
async fn pod_is_not_outdated_for_a_stale_vm_or_before_its_running_report() {
    let image = json!({"source": "example.org/another:1"});
    for is_edited in [true, false] {
        let mut world = World::new(one_disk());
        world.settle().await;
        let edit = || {
            world.api.change(VMS, "vm", |vm| {
                vm["spec"]["image"] = image.clone();
                vm["metadata"]["generation"] = 2.into();
            });
        };
        let before = if is_edited {
            // The pod matches the present VM.
            let before = world.vm();
            edit();
            world.settle().await;
            before
        } else {
            // The pod has started, and the kubelet has not reported it.
            edit();
            let before = world.vm();
            world
                .api
                .change(VMS, "vm", |vm| vm["status"]["cpus"] = 1.into());
            before
        };
        world.restart_operator();
        let look = reconcile(Arc::new(before), &world.ctx).await.unwrap();
        assert_eq!(
            look,
            Outcome::Recheck(Duration::from_secs(1)),
            "{is_edited}"
        );
        assert_eq!(
            world.api.requests(),
            [request("GET", VMS, "vm")],
            "{is_edited}"
        );
    }
}

#[tokio::test]
async fn objects_unknown_to_the_watch_are_not_given_a_stale_configuration() {
    for is_pod in [true, false] {
        let mut world = running().await;
        let mut before = world.vm();
        before.status = None;
        world.edit(|machine| machine["powerdownTimeout"] = 7.into());
        world.settle().await;
        world.restart_operator();
        match is_pod {
            true => fill(&world.ctx.caches.pods, Vec::new()),
            false => fill(&world.ctx.caches.config_maps, Vec::new()),
        }
        let look = reconcile(Arc::new(before), &world.ctx).await.unwrap();
        assert_eq!(look, Outcome::Recheck(Duration::from_secs(1)), "{is_pod}");
        assert_eq!(
            world.api.requests(),
            [request("GET", VMS, "vm")],
            "{is_pod}"
        );
    }
}

#[tokio::test]
async fn a_guest_is_not_ended_for_a_vm_that_is_gone_or_another_by_now() {
    let world = running().await;
    let mut before = world.vm();
    before.spec.vm.state = State::Stopped;
    let look = async || {
        reconcile(Arc::new(before.clone()), &world.ctx)
            .await
            .unwrap()
    };
    let vm = world.api.remove(VMS, "vm").unwrap();
    let expected = [request("GET", VMS, "vm")];
    assert_eq!(
        (look().await, world.api.requests()),
        (Outcome::Recheck(Duration::from_secs(1)), expected.to_vec())
    );
    let mut another = vm.clone();
    another["metadata"]["uid"] = "another".into();
    world.api.put(VMS, another);
    assert_eq!(
        (look().await, world.api.requests()),
        (Outcome::Recheck(Duration::from_secs(1)), expected.to_vec())
    );
}

#[tokio::test]
async fn operator_without_permission_to_get_the_vm_stops_no_guest() {
    let world = running().await;
    world.edit(|machine| machine["state"] = "Stopped".into());
    world.deliver();
    world.api.fail(0, Fault::Refused(403));
    world.reconcile().await.unwrap_err();
    assert!(
        !world
            .api
            .requests()
            .contains(&request("DELETE", PODS, "vm"))
    );
    let (reason, message) = world.ready();
    assert_eq!(reason, "Rejected");
    assert!(
        message.starts_with("cannot get VirtualMachine vm: "),
        "{message}"
    );
}

#[tokio::test]
async fn report_of_a_start_with_the_version_of_the_vm_replaces_the_live_read() {
    let world = running().await;
    world.edit(|machine| machine["state"] = "Stopped".into());
    world.settle().await;
    world.remove_pod();
    world.settle().await;
    world.edit(|machine| machine["state"] = "Running".into());
    let outdated = world.vm();
    world.edit(|machine| machine["state"] = "Stopped".into());
    let status = request("PATCH", VMS, "vm/status");
    let look = reconcile(Arc::new(outdated), &world.ctx).await.unwrap();
    assert_eq!(look, Outcome::Recheck(Duration::from_secs(1)));
    assert_eq!(world.api.requests(), std::slice::from_ref(&status));
    world.edit(|machine| machine["state"] = "Running".into());
    // The creation of the pod fails: the start is not reported again.
    // Before it, there are the status, its event and the ConfigMap.
    world.api.fail(3, Fault::Refused(503));
    world.reconcile().await.unwrap_err();
    let create = request("POST", PODS, "vm");
    let config = request("PATCH", CONFIG_MAPS, "vm");
    assert_eq!(world.api.requests(), [config, status, create.clone()]);
    assert_eq!(world.ready().0, "Starting");
    let (read, report) = (request("GET", VMS, "vm"), request("POST", REPORTS, "POD"));
    assert_eq!(world.step().await, [read, create, report]);
}
