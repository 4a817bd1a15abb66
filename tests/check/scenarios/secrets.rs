//! The display Secret: found, generated, followed, and never overwritten.

use super::fake_api::{CONFIG_MAPS, PODS, SECRETS, VMS};
use super::world::{World, one_disk, request};
use serde_json::{Value, json};

fn display(secret: bool) -> Value {
    let mut machine = one_disk();
    machine["display"] = json!({"spice": {"generateSecret": secret}});
    machine
}

fn labels(vm: &str) -> Value {
    json!({
        "app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": vm,
        "app.kubernetes.io/component": "display-secret",
    })
}

fn put(world: &World, name: &str, vm: &str) -> Value {
    let data = json!({"display-password": "Z2VoZWlt"});
    world.api.put(
        SECRETS,
        json!({"metadata": {"name": name, "labels": labels(vm)}, "data": data}),
    )
}

/// The Secrets in the pod's configuration volume.
fn mounted(world: &World) -> Vec<Value> {
    let pod = world.api.get(PODS, "vm").unwrap();
    let sources = pod["spec"]["volumes"][0]["projected"]["sources"]
        .as_array()
        .unwrap()
        .clone();
    sources
        .iter()
        .map(|source| source["secret"]["name"].clone())
        .filter(|name| !name.is_null())
        .collect()
}

fn required(world: &World) -> Option<String> {
    let conditions = world.vm().status.unwrap().conditions;
    conditions
        .into_iter()
        .find(|c| c.type_ == "RestartRequired")
        .map(|c| c.message)
}

#[tokio::test]
async fn b36_generated_secret_admits_no_client_and_is_owned_by_its_vm() {
    let world = World::new(one_disk());
    world.settle().await;
    let secret = world.api.get(SECRETS, "vm-display-secret").unwrap();
    assert_eq!(
        secret["stringData"],
        json!({"display-password": "secret", "password-expiry": "now"})
    );
    // The Java VM-Operator leaves it behind.
    assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], "vm-uid");
    for (name, value) in labels("vm").as_object().unwrap() {
        assert_eq!(&secret["metadata"]["labels"][name], value);
    }
    assert_eq!(mounted(&world), ["vm-display-secret"; 2]);
}

#[tokio::test]
async fn a_secret_of_the_users_own_is_used_whatever_its_name_and_never_written() {
    for name in ["a-secret", "vm-display-secret", "z-secret"] {
        let mut world = World::new(one_disk());
        let own = put(&world, name, "vm");
        put(&world, "another", "another-vm");
        world.settle().await;
        world.run();
        world.edit(|machine| machine["currentCpus"] = 1.into());
        world.settle().await;
        world.restart_operator();
        world.settle().await;
        assert_eq!(world.api.list(SECRETS).len(), 2);
        assert_eq!(world.api.get(SECRETS, name).unwrap(), own);
        assert_eq!(mounted(&world), [name; 2]);
    }
}

#[tokio::test]
async fn no_secret_is_generated_if_disabled_and_a_later_one_is_used_at_restart() {
    let world = World::new(display(false));
    world.settle().await;
    world.run();
    world.settle().await;
    assert_eq!(
        (world.api.list(SECRETS).len(), mounted(&world).len()),
        (0, 0)
    );
    put(&world, "mine", "vm");
    world.settle().await;
    let message = required(&world).unwrap();
    assert!(message.contains("the display secret"), "{message}");
    assert_eq!(mounted(&world).len(), 0);
    world.edit(|machine| machine["restartRequest"] = 1.into());
    world.settle().await;
    world.api.remove(PODS, "vm");
    world.settle().await;
    assert_eq!(
        (mounted(&world), required(&world)),
        (vec![json!("mine"); 2], None)
    );
}

#[tokio::test]
async fn a_machine_without_a_display_gets_no_secret() {
    let mut machine = one_disk();
    machine["display"] = json!({"outputs": 1});
    let world = World::new(machine);
    world.settle().await;
    assert_eq!(
        (world.api.list(SECRETS).len(), mounted(&world).len()),
        (0, 0)
    );
}

#[tokio::test]
async fn new_password_triggers_a_kubelet_refresh_and_is_unchanged() {
    let mut world = World::new(one_disk());
    world.settle().await;
    // A fixed password has no expiry.
    let fixed = json!({"display-password": "bmV3"});
    world.api.change(SECRETS, "vm-display-secret", |secret| {
        secret["data"] = fixed.clone()
    });
    let secret = world.api.get(SECRETS, "vm-display-secret").unwrap();
    world.deliver();
    assert_eq!(world.step().await, [request("PATCH", PODS, "vm")]);
    let annotations = world.api.get(PODS, "vm").unwrap()["metadata"]["annotations"].clone();
    assert_eq!(
        annotations["vmrunner.jdrupes.org/dpVersion"],
        secret["metadata"]["resourceVersion"]
    );
    world.deliver();
    assert_eq!(world.step().await, [""; 0]);
    world.restart_operator();
    world.edit(|machine| machine["state"] = "Stopped".into());
    world.settle().await;
    world.api.remove(PODS, "vm");
    world.edit(|machine| machine["state"] = "Running".into());
    world.settle().await;
    assert_eq!(world.api.get(SECRETS, "vm-display-secret").unwrap(), secret);
}

#[tokio::test]
async fn a_generated_secret_that_is_deleted_comes_back_into_the_pod_that_runs() {
    let world = World::new(one_disk());
    world.settle().await;
    world.run();
    world.settle().await;
    world.api.remove(SECRETS, "vm-display-secret");
    world.deliver();
    assert_eq!(
        world.step().await,
        [
            request("PATCH", PODS, "vm"),
            request("POST", SECRETS, "vm-display-secret")
        ]
    );
    world.settle().await;
    assert_eq!((required(&world), world.api.list(PODS).len()), (None, 1));
}

#[tokio::test]
async fn of_several_secrets_the_users_own_counts_and_always_the_same() {
    let mut world = World::new(one_disk());
    world.settle().await;
    for name in ["z", "b", "c"] {
        put(&world, name, "vm");
    }
    world.api.remove(PODS, "vm");
    world.settle().await;
    assert_eq!(mounted(&world), ["b"; 2]);
    world.restart_operator();
    assert_eq!(world.step().await, [""; 0]);
    assert_eq!(world.api.list(SECRETS).len(), 4);
}

#[tokio::test]
async fn no_password_gets_into_another_object() {
    let mut world = World::new(one_disk());
    world.ctx.random_password = || "geheim-1234".to_owned();
    world.settle().await;
    world.run();
    world.settle().await;
    assert!(
        world.api.list(SECRETS)[0]
            .to_string()
            .contains("geheim-1234")
    );
    for object in [CONFIG_MAPS, PODS, VMS]
        .iter()
        .flat_map(|collection| world.api.list(collection))
    {
        assert!(!object.to_string().contains("geheim"), "{object}");
    }
}
