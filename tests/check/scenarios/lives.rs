//! Common courses of a VM, and each of them with each fault.

use super::fake_api::{CLAIMS, CONFIG_MAPS, Fault, PODS, REPORTS, SECRETS, VMS};
use super::world::{
    CRASHED, POWERED_OFF, World, change_of_size, one_disk, pass, pod_and_status, request,
};
use serde_json::json;
use vm_operator::api::vm::State;
use vm_operator::k8s::controller::Outcome;
use vm_operator::settings::GuestShutdownRecord;

#[tokio::test]
async fn a_new_vm_costs_six_writes_and_one_per_disk_and_then_none() {
    let world = World::new(one_disk());
    let mut expected = vec![
        request("GET", VMS, "vm"),
        request("POST", CONFIG_MAPS, "vm"),
        request("PATCH", VMS, "vm/status"),
        request("POST", CLAIMS, "vm-runner-data"),
        request("POST", CLAIMS, "vm-system-disk"),
        request("POST", CLAIMS, "vmop-image-repository"),
        request("POST", PODS, "vm"),
        request("POST", SECRETS, "vm-display-secret"),
        // In addition to the six: the report of the pod's runner.
        request("POST", REPORTS, "POD"),
    ];
    expected.sort();
    assert_eq!(world.step().await, expected);
    // Nothing is created twice, although the watches have reported nothing yet.
    assert_eq!(world.reconcile().await.unwrap(), Outcome::Done);
    assert_eq!(world.api.requests(), [""; 0]);
    world.deliver();
    assert_eq!(world.step().await, [""; 0]);
    assert_eq!(world.ready().0, "Starting");
}

#[tokio::test]
async fn how_long_a_start_takes_is_observed_once_a_start() {
    let mut world = World::new(one_disk());
    world.settle().await;
    let observed = |world: &World| {
        world
            .ctx
            .scope
            .cluster
            .metrics
            .text()
            .lines()
            .find_map(|line| {
                Some(
                    line.strip_prefix("vm_operator_vm_start_seconds_sum ")?
                        .to_owned(),
                )
            })
    };
    assert_eq!(observed(&world).unwrap(), "0.0");
    pass(3);
    world.run();
    world.step().await;
    pass(60);
    world.step().await;
    assert_eq!(observed(&world).unwrap(), "3.0");
    assert!(
        world
            .ctx
            .scope
            .cluster
            .metrics
            .text()
            .contains("vm_operator_vm_start_seconds_count 1")
    );
    // An operator that has not observed the start does not measure it.
    world.restart_operator();
    world.step().await;
    assert!(
        world
            .ctx
            .scope
            .cluster
            .metrics
            .text()
            .contains("vm_operator_vm_start_seconds_count 0")
    );
}

#[tokio::test]
async fn a_running_vm_is_ready_and_a_restarted_operator_writes_nothing() {
    let mut world = World::new(one_disk());
    world.settle().await;
    world.run();
    assert_eq!(world.step().await, [request("PATCH", VMS, "vm/status")]);
    assert_eq!(world.ready().0, "Running");
    world.restart_operator();
    assert_eq!(world.step().await, [""; 0]);
}

#[tokio::test]
async fn a_change_of_cpus_goes_to_the_config_and_wakes_the_kubelet() {
    let world = World::new(json!({"state": "Running", "maximumCpus": 4, "currentCpus": 1}));
    world.settle().await;
    world.run();
    world.settle().await;
    world.edit(|machine| machine["currentCpus"] = 2.into());
    assert_eq!(world.step().await, change_of_size());
    world.deliver();
    assert_eq!(world.step().await, [""; 0]);
    let version = &world.api.get(CONFIG_MAPS, "vm").unwrap()["metadata"]["resourceVersion"];
    let annotations = &world.api.get(PODS, "vm").unwrap()["metadata"]["annotations"];
    assert_eq!(&annotations["vmrunner.jdrupes.org/cmVersion"], version);
}

#[tokio::test]
async fn stopped_vm_loses_only_its_pod() {
    let world = World::new(one_disk());
    world.settle().await;
    world.run();
    world.settle().await;
    world.edit(|machine| machine["state"] = "Stopped".into());
    let requests = world.step().await;
    assert!(
        requests.contains(&request("DELETE", PODS, "vm")),
        "{requests:?}"
    );
    assert_eq!(
        requests.iter().filter(|r| r.starts_with("DELETE")).count(),
        1
    );
    assert_eq!(world.ready().0, "Stopping");
    world.settle().await;
    world.remove_pod();
    // The runner's report that the VM runs is reset too, because no runner is left to do it. The PVCs are read, because the store may
    // not know of a deletion under the pod.
    let status = || request("PATCH", VMS, "vm/status");
    let claims = ["vm-runner-data", "vm-system-disk"].map(|name| request("GET", CLAIMS, name));
    let others = [request("GET", PODS, "vm"), status(), status()];
    assert_eq!(world.step().await, [&claims[..], &others].concat());
    assert_eq!(world.ready().0, "Stopped");
    assert_eq!(world.vm().status.unwrap().cpus, 0);
    assert_eq!(world.api.list(CLAIMS).len(), 3);
}

#[tokio::test]
async fn a_pod_deleted_by_hand_comes_back_at_once() {
    let world = World::new(one_disk());
    world.settle().await;
    world.api.remove(PODS, "vm");
    world.deliver();
    let requests = world.step().await;
    assert_eq!(
        requests,
        [
            request("GET", VMS, "vm"),
            request("POST", PODS, "vm"),
            request("POST", REPORTS, "POD")
        ]
    );
}

#[tokio::test]
async fn a_crash_is_remembered_and_followed_by_a_start_after_the_pause() {
    let mut world = World::new(one_disk());
    world.settle().await;
    world.run();
    world.settle().await;
    for (attempt, pause) in [(1, 1), (2, 2), (3, 4)] {
        world.end(CRASHED, 5);
        world.settle().await;
        let restarts = world.vm().status.unwrap().restarts.unwrap();
        assert_eq!(
            (restarts.attempts, restarts.reason.as_str()),
            (attempt, "QemuCrashed")
        );
        assert_eq!(world.ready().0, "RestartBackoff");
        assert!(world.ready().1.contains("signal 9"), "{}", world.ready().1);
        assert!(
            !world
                .vm()
                .status
                .unwrap()
                .conditions
                .iter()
                .any(|c| c.type_ == "Running" && c.status == "True")
        );
        // Neither a restart of the operator nor the time before the end of the backoff starts it.
        world.restart_operator();
        pass(pause - 1);
        world.settle().await;
        assert_eq!(
            world.reconcile().await.unwrap(),
            Outcome::Recheck(std::time::Duration::from_secs(1))
        );
        pass(1);
        let requests = world.step().await;
        assert!(
            requests.contains(&request("DELETE", PODS, "vm")),
            "{requests:?}"
        );
        world.api.remove(PODS, "vm");
        world.deliver();
        // The status has the cause of the exit until the VM runs.
        let [read, create, _, report] = pod_and_status();
        assert_eq!(world.step().await, [read, create, report]);
        world.settle().await;
    }
}

#[tokio::test]
async fn a_guest_that_shuts_down_stops_its_vm_where_that_is_wanted() {
    let world = World::with_spec(json!({"guestShutdownStops": true, "vm": one_disk()}));
    world.settle().await;
    world.end(POWERED_OFF, 5);
    let requests = world.step().await;
    assert!(
        requests.contains(&request("PATCH", VMS, "vm")),
        "{requests:?}"
    );
    let state = || world.api.get(VMS, "vm").unwrap()["spec"]["vm"]["state"].clone();
    assert_eq!(state(), "Stopped");
    world.settle().await;
    world.api.remove(PODS, "vm");
    world.settle().await;
    assert_eq!(
        (state(), world.ready().0.as_str()),
        (json!("Stopped"), "Stopped")
    );
}

/// For GitOps: a tool that applies the same spec again and again must not start the VM.
#[tokio::test]
async fn a_shutdown_in_the_status_stops_the_vm_until_its_spec_changes() {
    let mut world = World::with_spec(json!({"guestShutdownStops": true, "vm": one_disk()}));
    world.ctx.settings.reconciler.guest_shutdown_record = GuestShutdownRecord::Status;
    world.settle().await;
    world.run();
    world.settle().await;
    world.end(POWERED_OFF, 5);
    world.settle().await;
    assert_eq!(
        (world.ready().0.as_str(), world.vm().spec.vm.state),
        ("Stopping", State::Running)
    );
    world.api.remove(PODS, "vm");
    world.settle().await;
    world.restart_operator();
    world.ctx.settings.reconciler.guest_shutdown_record = GuestShutdownRecord::Status;
    world.settle().await;
    let (reason, message) = world.ready();
    assert!(
        reason == "Stopped" && message.contains("guestShutdownStops"),
        "{message}"
    );
    assert!(world.api.get(PODS, "vm").is_none());

    world.edit(|machine| machine["currentCpus"] = 1.into());
    world.settle().await;
    assert!(world.api.get(PODS, "vm").is_some());
    assert_eq!(world.vm().status.unwrap().guest_shutdown, None);
}

#[tokio::test]
async fn a_spec_that_cannot_be_used_is_explained_and_makes_nothing() {
    let world = World::new(json!({"state": "Running", "maximumRam": "lots"}));
    assert_eq!(world.step().await, [request("PATCH", VMS, "vm/status")]);
    let (reason, message) = world.ready();
    assert_eq!(reason, "InvalidSpec");
    assert!(
        message.contains("spec.vm.maximumRam") && message.contains("lots"),
        "{message}"
    );
    assert_eq!(world.step().await, [""; 0]);
}

#[tokio::test]
async fn rejected_pod_is_explained_with_the_server_message() {
    let world = World::new(one_disk());
    // The live read of the VM, ConfigMap, Secret, three PVCs, the record of the PVCs and its event come first.
    world.api.fail(8, Fault::Refused(403));
    assert!(world.reconcile().await.is_err());
    let (reason, message) = world.ready();
    assert_eq!(reason, "Rejected");
    assert!(
        message.contains("Pod vm") && message.contains("rejected by the test"),
        "{message}"
    );
    world.settle().await;
    assert_eq!(world.ready().0, "Starting");
}

#[tokio::test]
async fn a_foreign_pod_of_the_vms_name_is_left_alone_and_named() {
    let world = World::new(one_disk());
    let foreign = world.api.put(
        PODS,
        json!({"metadata": {"name": "vm"}, "status": {"phase": "Failed"}}),
    );
    world.settle().await;
    assert_eq!(world.ready().0, "NameTaken");
    world.edit(|machine| machine["state"] = "Stopped".into());
    world.settle().await;
    assert_eq!(
        world.ready(),
        ("Stopped".to_owned(), "the VM is stopped".to_owned())
    );
    assert_eq!(world.api.get(PODS, "vm").unwrap(), foreign);
}

#[tokio::test]
async fn a_vm_that_is_being_deleted_gets_nothing_back() {
    let world = World::new(one_disk());
    world.settle().await;
    world.run();
    world.settle().await;
    // Foreground deletion: the VM remains until its children are deleted.
    world.api.change(VMS, "vm", |vm| {
        vm["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()
    });
    for (collection, name) in [
        (CONFIG_MAPS, "vm"),
        (PODS, "vm"),
        (SECRETS, "vm-display-secret"),
    ] {
        world.api.remove(collection, name);
        world.settle().await;
        assert_eq!(world.api.get(collection, name), None);
    }
    assert!(
        !world
            .vm()
            .status
            .unwrap()
            .conditions
            .iter()
            .any(|c| c.type_ == "Running" && c.status == "True")
    );
}

#[tokio::test]
async fn a_vm_can_be_stopped_while_something_else_is_refused() {
    let world = World::new(one_disk());
    world.settle().await;
    world.edit(|machine| {
        machine["state"] = "Stopped".into();
        let second = json!({"volumeClaimTemplate": {"metadata": {"name": "second"}}});
        machine["disks"].as_array_mut().unwrap().push(second);
    });
    // The live read of the VM and the deletion of the pod come first. The next write is rejected.
    world.api.fail(2, Fault::Refused(403));
    assert!(world.reconcile().await.is_err());
    assert!(
        world
            .api
            .requests()
            .contains(&request("DELETE", PODS, "vm"))
    );
}

#[tokio::test]
async fn stale_runner_status_is_reset_before_a_new_pod_exists() {
    let world = World::new(one_disk());
    world.settle().await;
    world.run();
    world.settle().await;
    world.remove_pod();
    // The new pod is created, and the response is lost: after two live reads, of the old pod and of the VM, and the
    // reset of the status.
    world.api.fail(3, Fault::AnswerLost);
    assert!(world.reconcile().await.is_err());
    assert!(world.api.get(PODS, "vm").is_some());
    world.settle().await;
    assert_eq!(
        (world.ready().0.as_str(), world.vm().status.unwrap().cpus),
        ("Starting", 0)
    );
}

#[tokio::test]
async fn objects_of_others_are_never_taken_over() {
    for (collection, name, kind) in [
        (CONFIG_MAPS, "vm", "ConfigMap"),
        (SECRETS, "vm-display-secret", "Secret"),
    ] {
        let world = World::new(one_disk());
        let foreign = world.api.put(
            collection,
            json!({"metadata": {"name": name}, "data": {"config.yaml": "mine"}}),
        );
        let _ = world.reconcile().await;
        let (reason, message) = world.ready();
        assert_eq!(reason, "NameTaken");
        assert!(
            message.contains(kind) && message.contains(name),
            "{message}"
        );
        assert_eq!(world.api.get(collection, name).unwrap(), foreign);
    }
}

#[tokio::test]
async fn a_claim_of_another_vm_is_not_shared() {
    let world = World::new(one_disk());
    let labels =
        json!({"app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": "another"});
    world.api.put(
        CLAIMS,
        json!({"metadata": {"name": "vm-system-disk", "labels": labels}}),
    );
    // Before the watch has reported it, and after.
    assert!(world.reconcile().await.is_err());
    assert_eq!(world.ready().0, "NameTaken");
    world.settle().await;
    assert_eq!(world.ready().0, "InvalidSpec");
    assert_eq!(world.api.get(PODS, "vm"), None);
}
