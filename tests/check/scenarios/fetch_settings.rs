//! The configuration of downloads.

use super::fake_api::PODS;
use super::fetch::{
    FETCHED, URL, boots_from, cd, fetch_ends, has_besides, media_condition, path_of, pod_of,
};
use super::world::{World, now, pass};
use serde_json::json;
use vm_operator::settings::{Authorities, Settings};

#[tokio::test]
async fn how_long_a_start_waits_is_a_setting() {
    let mut world = World::new(boots_from(URL));
    let mut settings = Settings::default();
    settings.reconciler.image_repository.fetch.start_deadline = 30;
    world.ctx.settings = settings.clone();
    world.settle().await;
    pass(29);
    world.settle().await;
    assert!(world.api.get(PODS, "vm").is_none());
    assert_eq!(world.ready().0, "Starting");
    pass(1);
    world.settle().await;
    assert!(world.api.get(PODS, "vm").is_some());
    assert_eq!(
        (cd(&world).as_str(), media_condition(&world).1.as_str()),
        ("", "Fetching")
    );
    // Without a wait the VM starts, and the image is inserted later.
    let mut world = World::new(boots_from(URL));
    settings.reconciler.image_repository.fetch.start_deadline = 0;
    world.ctx.settings = settings;
    world.settle().await;
    assert!(world.api.get(PODS, "vm").is_some());
    world.run();
    fetch_ends(&world, URL, FETCHED);
    world.settle().await;
    assert_eq!(cd(&world), path_of(URL));
}

#[tokio::test]
async fn unstarted_fetch_pod_is_recreated_with_changed_settings() {
    let mut world = World::new(has_besides(URL));
    world.settle().await;
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": now(),
        "message": "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector",
    });
    world.api.change(PODS, &pod_of(URL), |pod| {
        pod["status"] = json!({"phase": "Pending", "conditions": [condition]});
    });
    world.settle().await;
    assert_eq!(media_condition(&world).1, "Unschedulable");
    let uid = |world: &World| world.api.get(PODS, &pod_of(URL)).unwrap()["metadata"]["uid"].clone();
    let before = uid(&world);
    let mut settings = Settings::default();
    settings.reconciler.pod_defaults.node_selector =
        Some([("room".to_owned(), "1".to_owned())].into());
    world.ctx.settings = settings;
    world.settle().await;
    assert_ne!(uid(&world), before);
    assert_eq!(media_condition(&world).1, "Fetching");
}

#[tokio::test]
async fn fetch_pods_have_the_companys_proxies_and_authorities() {
    let mut world = World::new(has_besides(URL));
    let mut settings = Settings::default();
    let fetch = &mut settings.reconciler.image_repository.fetch;
    fetch.http_proxy = Some("http://p:1".to_owned());
    fetch.https_proxy = Some("http://p:2".to_owned());
    fetch.no_proxy = Some(".example.org".to_owned());
    fetch.proxy_secret = Some("proxy".to_owned());
    fetch.authorities = Authorities {
        config_map: Some("company".to_owned()),
        key: "root.pem".to_owned(),
    };
    world.ctx.settings = settings;
    world.settle().await;
    let spec = world.api.get(PODS, &pod_of(URL)).unwrap()["spec"].clone();
    let container = &spec["containers"][0];
    let variable = |name: &str, value: &str| json!({"name": name, "value": value});
    let named = [
        ("HTTP_PROXY", "http://p:1"),
        ("HTTPS_PROXY", "http://p:2"),
        ("NO_PROXY", ".example.org"),
    ];
    assert_eq!(
        container["env"],
        json!(named.map(|(name, value)| variable(name, value)))
    );
    assert_eq!(
        container["envFrom"],
        json!([{"secretRef": {"name": "proxy"}}])
    );
    let folder = "/etc/opt/vmrunner/authorities";
    let argument = json!(format!("--authorities={folder}/ca.crt"));
    assert!(
        container["args"].as_array().unwrap().contains(&argument),
        "{container:#}"
    );
    assert_eq!(
        container["volumeMounts"][1],
        json!({"name": "authorities", "mountPath": folder, "readOnly": true})
    );
    let source = json!({"name": "company", "items": [{"key": "root.pem", "path": "ca.crt"}]});
    assert_eq!(
        spec["volumes"][1],
        json!({"name": "authorities", "configMap": source})
    );
}

#[tokio::test]
async fn without_a_repository_or_with_a_scheme_that_is_not_allowed_no_pod_is_made() {
    let mut world = World::new(has_besides("http://example.org/a.iso"));
    let mut settings = Settings::default();
    settings.reconciler.image_repository.fetch.schemes = vec!["https".to_owned()];
    world.ctx.settings = settings.clone();
    world.settle().await;
    assert_eq!(media_condition(&world).1, "SchemeNotAllowed");
    let mut world = World::new(has_besides(URL));
    settings.reconciler.image_repository.create = false;
    world.ctx.settings = settings;
    world.settle().await;
    assert_eq!(media_condition(&world).1, "RepositoryMissing");
    assert!(
        !world
            .api
            .list(PODS)
            .iter()
            .any(|pod| pod["metadata"]["name"] != "vm")
    );
}
