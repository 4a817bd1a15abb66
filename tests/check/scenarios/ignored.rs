//! A field without effect is reported as long as it is set.

use super::fake_api::VMS;
use super::world::World;
use serde_json::json;
use vm_operator::api::conditions::find;
use vm_operator::api::vm::conditions;

#[tokio::test]
async fn a_field_without_effect_is_named_once_and_no_longer_than_it_is_there() {
    let world = World::new(json!({"state": "Running"}));
    world.settle().await;
    let ignored_field = || {
        let conditions = world.vm().status.unwrap().conditions;
        find(&conditions, conditions::IGNORED_FIELD).map(|c| (c.status.clone(), c.message.clone()))
    };
    assert_eq!(ignored_field(), None);
    world.api.change(VMS, "vm", |vm| {
        vm["spec"]["runnerTemplate"]["source"] = "mine.ftl.yaml".into();
        vm["metadata"]["generation"] = 2.into();
    });
    world.settle().await;
    let (status, message) = ignored_field().unwrap();
    assert!(
        status == "True" && message.contains("spec.runnerTemplate.source"),
        "{message}"
    );
    world.deliver();
    assert_eq!(world.step().await, [""; 0]);
    world.api.change(VMS, "vm", |vm| {
        vm["spec"]["runnerTemplate"] = json!({"update": true});
        vm["metadata"]["generation"] = 3.into();
    });
    world.settle().await;
    assert_eq!(ignored_field(), None);
}
