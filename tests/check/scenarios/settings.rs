//! The settings change while VMs run.

use super::fake_api::{CLAIMS, CONFIG_MAPS, PODS, VMS, request_paths};
use super::world::{World, one_disk, pass};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tracing::level_filters::LevelFilter;
use vm_operator::operator::logs::LogLevel;
use vm_operator::operator::settings::follow::Follower;

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/ns/events";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/ns/deployments";

fn config_map(reconciler: &str) -> ConfigMap {
    let text = format!("\"/Manager\":\n  \"/Controller\":\n    \"/Reconciler\":\n      {reconciler}\n");
    serde_json::from_value(json!({"metadata": {"name": "vm-operator"}, "data": {"config.yaml": text}})).unwrap()
}

async fn running() -> World {
    let mut world = World::new(one_disk());
    world.ctx.home = Some("ns".to_owned());
    world.api.put(DEPLOYMENTS, json!({"metadata": {"name": "vm-operator", "uid": "deployment-uid"}}));
    world.settle().await;
    world.run();
    world.settle().await;
    world
}

fn events(world: &World) -> Vec<Value> {
    let all = world.api.list(EVENTS).into_iter();
    all.filter(|event| event["regarding"]["kind"] == "Deployment").collect()
}

fn is_valid(world: &World) -> bool {
    world.ctx.metrics.text().contains("vm_operator_settings_valid 1")
}

#[tokio::test]
async fn new_settings_hold_from_the_next_start_on_and_disturb_no_running_vm() {
    let world = running().await;
    let mut follower = Follower::default();
    let version = config_map("runnerImage: {source: registry.example/runner:2}");
    assert!(follower.saw(Some(&version), &world.ctx).await);
    assert_eq!(world.ctx.settings().reconciler.runner_image.source, "registry.example/runner:2");
    assert_eq!(events(&world).len(), 1);
    world.api.requests();
    assert_eq!(world.step().await, [""; 0], "the running VM is left alone");

    // The same version again, as after a watch that broke.
    assert!(!follower.saw(Some(&version), &world.ctx).await);
    assert_eq!(request_paths(&world.api), [""; 0]);

    world.api.remove(PODS, "vm");
    world.settle().await;
    let pod = world.api.get(PODS, "vm").unwrap();
    assert_eq!(pod["spec"]["containers"][0]["image"], "registry.example/runner:2");
}

#[tokio::test]
async fn what_a_pod_may_do_changes_at_the_vms_next_start_and_not_before() {
    let world = running().await;
    let mut follower = Follower::default();
    let rights = |world: &World| {
        let pod = world.api.get(PODS, "vm").unwrap()["spec"].clone();
        let (own, all) = (&pod["containers"][0]["securityContext"], &pod["securityContext"]);
        (own["privileged"].clone(), all["runAsUser"].clone(), all["runAsNonRoot"].clone())
    };
    let before = rights(&world);
    assert_eq!(before, (json!(null), json!(107), json!(true)));
    for (settings, after) in [
        ("accelerator: {privileged: true}", (json!(true), json!(107), json!(true))),
        ("deviceAccess: root", (json!(null), json!(0), json!(null))),
        ("cpuOvercommit: 2", before),
    ] {
        let old = rights(&world);
        assert!(follower.saw(Some(&config_map(settings)), &world.ctx).await);
        world.api.requests();
        assert_eq!(world.step().await, [""; 0], "{settings}: the running VM is left alone");
        assert_eq!(rights(&world), old, "{settings}");
        world.api.remove(PODS, "vm");
        world.settle().await;
        // One that others delete again and again is made later.
        pass(60);
        world.settle().await;
        assert_eq!(rights(&world), after, "{settings}");
        world.run();
        world.settle().await;
    }
}

#[tokio::test]
async fn wrong_settings_change_nothing_and_are_told_of_once() {
    let world = running().await;
    let mut follower = Follower::default();
    assert!(follower.saw(Some(&config_map("cpuOvercommit: 3")), &world.ctx).await);
    let good = world.ctx.settings();
    world.api.requests();
    let wrong = config_map("cpuOvercommit: lots");
    assert!(!follower.saw(Some(&wrong), &world.ctx).await);
    assert_eq!((world.ctx.settings(), is_valid(&world)), (good, false));
    let deployment = format!("GET {DEPLOYMENTS}/vm-operator");
    assert_eq!(world.api.requests(), [deployment]);

    let told = events(&world);
    let refusal = told.iter().find(|event| event["reason"] == "SettingsRefused").unwrap();
    let note = refusal["note"].as_str().unwrap();
    for words in ["vm-operator, line 4", "cpuOvercommit", "\"lots\"", "give a number", "stay in force"] {
        assert!(note.contains(words), "{words}: {note}");
    }
    assert_eq!((&refusal["type"], &refusal["regarding"]["uid"]), (&json!("Warning"), &json!("deployment-uid")));

    assert!(!follower.saw(Some(&wrong), &world.ctx).await);
    assert_eq!(request_paths(&world.api), [""; 0], "a version that is shown again is not told of again");
    assert!(!follower.saw(Some(&config_map("cpuOvercommit: 3")), &world.ctx).await);
    assert!(is_valid(&world));
}

#[tokio::test]
async fn settings_that_are_gone_stay_in_force() {
    let world = running().await;
    let mut follower = Follower::default();
    assert!(follower.saw(Some(&config_map("cpuOvercommit: 3")), &world.ctx).await);
    let before = world.ctx.settings();
    for config_map in [None, Some(ConfigMap::default())] {
        assert!(!follower.saw(config_map.as_ref(), &world.ctx).await);
        assert_eq!(world.ctx.settings(), before);
    }
}

#[tokio::test]
async fn what_the_settings_say_of_pods_and_claims_reaches_them_unless_the_vm_says_otherwise() {
    let pod_of = async |spec: Value| {
        let world = World::with_spec(spec);
        let settings = "podDefaults: {priorityClassName: vms, nodeSelector: {vms: all}, tolerations: [{key: vms}], \
                        imagePullSecrets: [{name: registry}]}\n      \
                        accelerator: {policy: kvm, kvmResource: devices.kubevirt.io/kvm}\n      \
                        imageRepository: {storageClassName: nfs, size: 5Gi, accessModes: [ReadWriteMany]}";
        assert!(Follower::default().saw(Some(&config_map(settings)), &world.ctx).await);
        world.settle().await;
        (world.api.get(PODS, "vm").unwrap()["spec"].clone(), world)
    };
    let (pod, world) = pod_of(json!({"vm": one_disk()})).await;
    assert_eq!((&pod["priorityClassName"], &pod["nodeSelector"]), (&json!("vms"), &json!({"vms": "all"})));
    assert_eq!(pod["tolerations"][0]["key"], "vms");
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]));
    let resources = &pod["containers"][0]["resources"];
    assert_eq!(resources["limits"], json!({"devices.kubevirt.io/kvm": "1"}));
    assert_eq!(resources["requests"]["devices.kubevirt.io/kvm"], "1");
    let config = world.api.get(CONFIG_MAPS, "vm").unwrap()["data"]["config.yaml"].as_str().unwrap().to_owned();
    assert!(config.contains(r#""accelerator": "kvm""#), "{config}");
    let claim = world.api.get(CLAIMS, "vmop-image-repository").unwrap()["spec"].clone();
    assert_eq!((&claim["storageClassName"], &claim["accessModes"]), (&json!("nfs"), &json!(["ReadWriteMany"])));
    assert_eq!(claim["resources"]["requests"]["storage"], "5Gi");

    let own = json!({"nodeSelector": {"vms": "mine"}, "priorityClassName": "mine", "vm": one_disk()});
    let (pod, _) = pod_of(own).await;
    assert_eq!((&pod["priorityClassName"], &pod["nodeSelector"]), (&json!("mine"), &json!({"vms": "mine"})));
}

#[tokio::test]
async fn an_image_repository_that_is_not_to_be_made_is_not_made() {
    let world = World::new(one_disk());
    assert!(Follower::default().saw(Some(&config_map("imageRepository: {create: false}")), &world.ctx).await);
    world.settle().await;
    assert_eq!(world.api.get(CLAIMS, "vmop-image-repository"), None);
    assert_eq!(world.ready().0, "Starting");
}

#[tokio::test]
async fn the_log_has_the_level_of_the_config_map_at_once() {
    let mut world = running().await;
    let levels = Arc::new(Mutex::new(Vec::new()));
    world.ctx.log_level = LogLevel::new(LevelFilter::INFO, {
        let levels = levels.clone();
        Box::new(move |level| levels.lock().unwrap().push(level))
    });
    let mut follower = Follower::default();
    let mut version = config_map("cpuOvercommit: 2");
    version.data.as_mut().unwrap().insert("logging.properties".to_owned(), ".level=FINE".to_owned());
    follower.saw(Some(&version), &world.ctx).await;
    assert_eq!(*levels.lock().unwrap(), [LevelFilter::DEBUG]);
    follower.saw(Some(&config_map("cpuOvercommit: 2")), &world.ctx).await;
    assert_eq!(*levels.lock().unwrap(), [LevelFilter::DEBUG, LevelFilter::INFO]);
}

/// The data of the VM's ConfigMap, but for the runner's own file.
fn logging(world: &World) -> Option<String> {
    let config_map = world.api.get(CONFIG_MAPS, "vm").unwrap();
    config_map["data"]["logging.properties"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn the_config_map_keeps_how_logging_is_configured_and_no_vm_restarts_by_it() {
    let world = running().await;
    assert_eq!(logging(&world), None, "nobody has said anything");
    let pod = world.api.get(PODS, "vm").unwrap()["metadata"]["uid"].clone();
    let mut follower = Follower::default();
    // Lines without effect are kept, too.
    let lines = "handlers=java.util.logging.ConsoleHandler\norg.jgrapes.level=FINE\n";
    let version = config_map(&format!("loggingProperties: {}", json!(lines)));
    follower.saw(Some(&version), &world.ctx).await;
    world.settle().await;
    assert_eq!(logging(&world).as_deref(), Some(lines));
    // The VM's own count more.
    world.edit(|_| {});
    world.api.change(VMS, "vm", |vm| vm["spec"]["loggingProperties"] = ".level=FINE".into());
    world.settle().await;
    assert_eq!(logging(&world).as_deref(), Some(".level=FINE"));
    world.edit(|_| {});
    world.api.change(VMS, "vm", |vm| drop(vm["spec"].as_object_mut().unwrap().remove("loggingProperties")));
    world.settle().await;
    assert_eq!(logging(&world).as_deref(), Some(lines), "those of the settings again");
    follower.saw(Some(&config_map("cpuOvercommit: 2")), &world.ctx).await;
    world.settle().await;
    assert_eq!(logging(&world), None, "nobody says anything any more");
    assert_eq!(world.api.get(PODS, "vm").unwrap()["metadata"]["uid"], pod);
}
