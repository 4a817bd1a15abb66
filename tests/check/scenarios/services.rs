//! The load balancer service: created, updated, deleted, and never taken over from another owner.

use super::fake_api::{Fault, SERVICES, VMS};
use super::world::{CRASHED, World, one_disk, request};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use vm_operator::settings::{LoadBalancerService, Settings};

fn set_load_balancer(world: &mut World, setting: LoadBalancerService) {
    let mut settings = Settings::default();
    settings.reconciler.load_balancer_service = setting;
    world.ctx.settings = settings;
}

fn on() -> LoadBalancerService {
    let map = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    LoadBalancerService::On {
        labels: map("team", "red"),
        annotations: map("pool", "public"),
    }
}

fn with(machine: Value) -> World {
    let mut world = World::new(machine);
    set_load_balancer(&mut world, on());
    world
}

fn service(world: &World) -> Value {
    world.api.get(SERVICES, "vm").unwrap()
}

fn say(world: &World, what: Value) {
    world.api.change(VMS, "vm", |vm| {
        vm["spec"]["loadBalancerService"] = what;
        vm["metadata"]["generation"] = (vm["metadata"]["generation"].as_i64().unwrap() + 1).into();
    });
}

fn note(world: &World) -> Option<(String, String)> {
    let conditions = world.vm().status.unwrap().conditions;
    conditions
        .into_iter()
        .find(|c| c.type_ == "ServiceInSync")
        .map(|c| (c.reason, c.message))
}

#[tokio::test]
async fn there_is_no_service_unless_the_settings_want_one() {
    let world = World::new(one_disk());
    say(&world, json!({"labels": {"a": "b"}}));
    world.settle().await;
    assert_eq!(world.api.list(SERVICES).len(), 0);
}

#[tokio::test]
async fn a_service_leads_to_the_display_and_follows_its_port() {
    let world = with(one_disk());
    world.settle().await;
    let made = service(&world);
    assert_eq!(
        (&made["spec"]["type"], &made["metadata"]["labels"]["team"]),
        (&json!("LoadBalancer"), &json!("red"))
    );
    assert_eq!(made["metadata"]["annotations"]["pool"], "public");
    let port = json!([{"name": "spice", "port": 5900, "protocol": "TCP", "targetPort": 5900}]);
    assert_eq!(made["spec"]["ports"], port);
    let selector =
        json!({"app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": "vm"});
    assert_eq!(made["spec"]["selector"], selector);
    world.run();
    world.settle().await;
    world.edit(|machine| machine["display"] = json!({"spice": {"port": 5910}}));
    assert!(
        world
            .step()
            .await
            .contains(&request("PATCH", SERVICES, "vm"))
    );
    assert_eq!(service(&world)["spec"]["ports"][0]["port"], 5910);
    world.deliver();
    assert_eq!(world.step().await, [""; 0]);
}

#[tokio::test]
async fn without_a_display_the_ports_into_the_guest_are_carried() {
    // The Java VM-Operator fails there.
    let forward = json!([{"port": 2222, "guestPort": 22}, {"port": 5353, "guestPort": 53, "protocol": "UDP"}]);
    let world = with(json!({"display": {}, "networks": [{"user": {"forward": forward}}]}));
    world.settle().await;
    let ports = service(&world)["spec"]["ports"].clone();
    assert_eq!(
        (&ports[0]["name"], &ports[1]["name"]),
        (&json!("tcp-2222"), &json!("udp-5353"))
    );
    world.edit(|machine| machine["networks"] = json!([]));
    world.settle().await;
    assert!(!service(&world)["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn service_metadata_of_the_vm_overrides_defaults_and_null_removes_one() {
    let world = with(one_disk());
    let labels = json!({"team": null, "mine": "1", "app.kubernetes.io/instance": "another"});
    say(
        &world,
        json!({"labels": labels, "annotations": {"pool": "private"}}),
    );
    world.settle().await;
    let labels = service(&world)["metadata"]["labels"].clone();
    assert_eq!(
        (&labels["team"], &labels["mine"]),
        (&Value::Null, &json!("1"))
    );
    assert_eq!(labels["app.kubernetes.io/instance"], "vm");
    assert_eq!(
        service(&world)["metadata"]["annotations"]["pool"],
        "private"
    );
    // Omitted fields are removed. Fields of other managers remain.
    world.api.change(SERVICES, "vm", |service| {
        service["metadata"]["annotations"]["cloud"] = "id-7".into()
    });
    say(&world, json!({"annotations": {"pool": null}}));
    world.settle().await;
    let metadata = service(&world)["metadata"].clone();
    assert!(
        metadata["labels"]["mine"].is_null() && metadata["labels"]["team"] == "red",
        "{metadata}"
    );
    assert!(
        metadata["annotations"]["pool"].is_null() && metadata["annotations"]["cloud"] == "id-7",
        "{metadata}"
    );
}

#[tokio::test]
async fn a_service_that_is_not_wanted_any_more_goes_and_is_not_asked_for_twice() {
    for by_the_vm in [true, false] {
        let mut world = with(one_disk());
        world.settle().await;
        if by_the_vm {
            say(&world, json!({}))
        } else {
            set_load_balancer(&mut world, LoadBalancerService::Off)
        }
        let requests = world.step().await;
        assert!(
            requests.contains(&request("DELETE", SERVICES, "vm")),
            "{requests:?}"
        );
        // The release of a load balancer takes time.
        world.settle().await;
        world.api.remove(SERVICES, "vm");
        world.settle().await;
        assert_eq!(world.api.list(SERVICES).len(), 0);
    }
}

#[tokio::test]
async fn an_edited_or_deleted_service_comes_back_as_it_should_be() {
    let world = with(one_disk());
    world.settle().await;
    let spec = service(&world)["spec"].clone();
    world.api.change(SERVICES, "vm", |service| {
        service["spec"]["ports"] =
            json!([{"name": "spice", "port": 1, "protocol": "TCP", "targetPort": 1}]);
        service["spec"]["selector"]["more"] = "x".into();
        service["spec"]["type"] = "ClusterIP".into();
    });
    world.settle().await;
    assert_eq!(service(&world)["spec"], spec);
    world.api.remove(SERVICES, "vm");
    world.settle().await;
    assert_eq!(service(&world)["spec"], spec);
}

#[tokio::test]
async fn foreign_service_is_not_adopted_or_deleted_and_the_vm_runs() {
    let mut world = with(one_disk());
    let labels = json!({"app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": "vm"});
    for labels in [json!({}), labels] {
        let foreign = world.api.put(
            SERVICES,
            json!({"metadata": {"name": "vm", "labels": labels}, "spec": {}}),
        );
        for setting in [on(), LoadBalancerService::Off] {
            set_load_balancer(&mut world, setting.clone());
            for _ in 0..4 {
                world.deliver();
                world.reconcile().await.unwrap();
            }
            assert_eq!(world.api.get(SERVICES, "vm").unwrap(), foreign);
            assert_eq!(
                note(&world).map(|(reason, _)| reason),
                (setting == on()).then(|| "NameTaken".to_owned())
            );
            assert_eq!(world.ready().0, "Starting");
        }
    }
}

#[tokio::test]
async fn rejected_service_is_reported_and_retried() {
    let world = with(one_disk());
    world.settle().await;
    world.api.remove(SERVICES, "vm");
    world.deliver();
    world.api.fail(0, Fault::Refused(403));
    let outcome = world.reconcile().await.unwrap();
    assert_eq!(
        outcome,
        vm_operator::k8s::controller::Outcome::Recheck(std::time::Duration::from_secs(300))
    );
    let (reason, message) = note(&world).unwrap();
    assert!(
        reason == "Rejected" && message.contains("rejected by the test"),
        "{reason}: {message}"
    );
    world.settle().await;
    assert_eq!((note(&world), world.api.list(SERVICES).len()), (None, 1));
}

/// An internal error is the response of the API server if a webhook does not answer.
#[tokio::test]
async fn exit_of_a_pod_is_recorded_while_a_webhook_for_services_does_not_answer() {
    let world = with(one_disk());
    world.settle().await;
    world.run();
    world.settle().await;
    world.api.remove(SERVICES, "vm");
    let collection = format!("POST {SERVICES}");
    world
        .api
        .reject_creation(Some((&collection, 500, "failed calling webhook")));
    world.end(CRASHED, 1000);
    world.reconcile().await.unwrap_err();
    let restarts = world.vm().status.unwrap().restarts.unwrap();
    assert_eq!(
        (restarts.attempts, restarts.reason.as_str()),
        (1, "QemuCrashed")
    );
}

#[tokio::test]
async fn repeated_internal_error_of_the_api_server_is_reported() {
    let world = with(one_disk());
    let collection = format!("POST {SERVICES}");
    world
        .api
        .reject_creation(Some((&collection, 500, "failed calling webhook")));
    for failures in 1..=4 {
        world.deliver();
        world.reconcile().await.unwrap_err();
        let conditions = world.vm().status.map(|status| status.conditions);
        let ready = conditions.and_then(|all| all.into_iter().find(|it| it.type_ == "Ready"));
        let reported = ready.map(|ready| (ready.reason, ready.message));
        let is_reported = reported.is_some_and(|(reason, message)| {
            reason == "Rejected" && message.contains("failed calling webhook")
        });
        assert_eq!(is_reported, failures >= 3, "after {failures} failures");
    }
    world.api.reject_creation(None);
    world.settle().await;
    assert_eq!(world.ready().0, "Starting");
}
