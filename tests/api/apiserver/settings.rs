//! The operator's ConfigMap is followed through the API.

use crate::apiserver::world::{World, eventually};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

fn config(cpu_overcommit: &str) -> Value {
    let text =
        format!("\"/Manager\":\n  \"/Controller\":\n    \"/Reconciler\":\n      cpuOvercommit: {cpu_overcommit}\n");
    json!({"metadata": {"name": "vm-operator"}, "data": {"config.yaml": text, "logging.properties": "x=y"}})
}

#[tokio::test]
async fn a_changed_config_map_is_in_force_at_once_and_a_wrong_one_is_an_event_on_the_deployment() {
    let world = World::new("settings").await;
    let deployments = Api::<Deployment>::namespaced(world.client.clone(), &world.namespace);
    let labels = json!({"app": "none"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "b"}]}});
    let deployment = json!({
        "metadata": {"name": "vm-operator"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    });
    let deployment = deployments.create(&PostParams::default(), &serde_json::from_value(deployment).unwrap()).await;
    let deployment = deployment.unwrap();
    let operator = world.start_operator().await;
    let overcommit = || operator.ctx.settings().reconciler.cpu_overcommit.to_string();

    let config_maps = Api::<ConfigMap>::namespaced(world.client.clone(), &world.namespace);
    config_maps.create(&PostParams::default(), &serde_json::from_value(config("3")).unwrap()).await.unwrap();
    eventually("the new settings are in force", || async { overcommit() == "3" }).await;
    config_maps.patch("vm-operator", &PatchParams::default(), &Patch::Merge(config("none"))).await.unwrap();
    let events = Api::<Event>::namespaced(world.client.clone(), &world.namespace);
    eventually("the refusal is told of on the Deployment", || async {
        // What `kubectl describe deployment` asks for.
        let of_it = format!("regarding.kind=Deployment,regarding.uid={}", deployment.uid().unwrap());
        let events = events.list(&ListParams::default().fields(&of_it)).await.unwrap();
        events.iter().any(|event| {
            let note = event.note.as_deref().unwrap_or_default();
            event.reason.as_deref() == Some("SettingsRefused") && note.contains("line 4") && note.contains("\"none\"")
        })
    })
    .await;
    assert_eq!(overcommit(), "3");
    assert!(operator.ctx.metrics.text().contains("vm_operator_settings_valid 0"));
    config_maps.patch("vm-operator", &PatchParams::default(), &Patch::Merge(config("4"))).await.unwrap();
    eventually("the mended settings are in force", || async { overcommit() == "4" }).await;
    operator.stop().await;
}
