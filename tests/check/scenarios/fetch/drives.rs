//! Images in drives: shared, retained and replaced.

use super::*;

fn second_vm(machine: &Value) -> Value {
    let metadata = json!({"name": "vm2", "namespace": "ns", "uid": "vm2-uid", "generation": 1});
    let (version, kind) = ("vmoperator.jdrupes.org/v1", "VirtualMachine");
    json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {"vm": machine}, "status": {}})
}

#[tokio::test]
async fn two_machines_with_one_image_fetch_it_once() {
    let world = begun(boots_from(URL)).await;
    world.api.put(VMS, second_vm(&boots_from(URL)));
    let second = async || {
        let vm: VirtualMachine =
            serde_json::from_value(world.api.get(VMS, "vm2").unwrap()).unwrap();
        reconcile(Arc::new(vm), &world.ctx).await.unwrap();
        world.api.requests()
    };
    let requests = second().await;
    assert!(
        !requests
            .iter()
            .any(|request| request.contains("vmop-fetch")),
        "{requests:?}"
    );
    fetch_runs(&world, URL, "{\"bytes\":1,\"total\":2}\n");
    let requests = [world.step().await, second().await].concat();
    assert_eq!(
        requests
            .iter()
            .filter(|request| request.contains("/log"))
            .count(),
        1,
        "{requests:?}"
    );
    fetch_ends(&world, URL, FETCHED);
    let requests = [second().await, world.step().await].concat();
    assert_eq!(
        requests
            .iter()
            .filter(|request| request.contains(CLAIM))
            .count(),
        1,
        "{requests:?}"
    );
    assert!(
        ["vm", "vm2"]
            .iter()
            .all(|vm| world.api.get(PODS, vm).is_some())
    );
}

#[tokio::test]
async fn the_old_medium_stays_until_the_new_one_is_there() {
    let world = downloaded(boots_from(URL)).await;
    world.edit(|machine| machine["disks"][1]["cdrom"]["image"] = OTHER.into());
    world.settle().await;
    assert_eq!(
        (cd(&world), media_condition(&world).1.as_str()),
        (path_of(URL), "Fetching")
    );
    assert_eq!(world.ready().0, "Running");
    fetch_ends(&world, OTHER, FETCHED);
    world.settle().await;
    assert_eq!(
        (cd(&world), media_condition(&world).1.as_str()),
        (path_of(OTHER), "Fetched")
    );
    // The previous image still exists and needs no server.
    world.edit(|machine| machine["disks"][1]["cdrom"]["image"] = URL.into());
    let requests = world.step().await;
    assert!(
        !requests
            .iter()
            .any(|request| request.contains("vmop-fetch")),
        "{requests:?}"
    );
    assert_eq!(cd(&world), path_of(URL));
}

#[tokio::test]
async fn restarted_machine_with_changed_image_does_not_get_the_old_image() {
    let world = downloaded(has_besides(URL)).await;
    world.edit(|machine| machine["disks"][1]["cdrom"]["image"] = OTHER.into());
    world.settle().await;
    world.api.remove(PODS, "vm");
    world.settle().await;
    assert!(world.api.get(PODS, "vm").is_some());
    assert_eq!(cd(&world), "");
}

#[tokio::test]
async fn path_image_is_retained_and_unrecorded_image_is_fetched_again() {
    let world = World::new(has_besides("a.iso"));
    world.settle().await;
    world.run();
    world.settle().await;
    world.edit(|machine| machine["disks"][1]["cdrom"]["image"] = URL.into());
    world.settle().await;
    assert_eq!(cd(&world), "/var/local/vmop-image-repository/a.iso");
    fetch_ends(&world, URL, FETCHED);
    world.settle().await;
    world.api.change(CLAIMS, CLAIM, |claim| {
        drop(
            claim["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("annotations"),
        )
    });
    world.settle().await;
    assert_eq!(
        (cd(&world), media_condition(&world).1.as_str()),
        (path_of(URL), "Fetching")
    );
    fetch_ends(&world, URL, r#"{"reason":"AlreadyThere"}"#);
    world.settle().await;
    assert_eq!(media_condition(&world).1, "Fetched");
}

#[tokio::test]
async fn a_machine_that_reads_its_cd_from_the_url_itself_goes_on_doing_so_until_its_next_start() {
    let world = downloaded(has_besides(URL)).await;
    // As the Java VM-Operator has created it, if the VM was adopted while it ran.
    let yaml = format!("\"/Runner\":\n  vm:\n    drives:\n    - {{type: ide-cd, file: {URL:?}}}\n");
    world.api.change(CONFIG_MAPS, "vm", |config_map| {
        config_map["data"]["config.yaml"] = yaml.into()
    });
    world.settle().await;
    assert_eq!(cd(&world), URL);
    world.api.remove(PODS, "vm");
    world.settle().await;
    assert_eq!(cd(&world), path_of(URL));
}

#[tokio::test]
async fn a_stopped_machine_fetches_nothing() {
    let mut machine = boots_from(URL);
    machine["state"] = "Stopped".into();
    let world = World::new(machine);
    world.settle().await;
    assert!(world.api.get(PODS, &pod_of(URL)).is_none());
    assert!(
        !world
            .vm()
            .status
            .unwrap()
            .conditions
            .iter()
            .any(|c| c.type_ == "MediaFetched")
    );
}
