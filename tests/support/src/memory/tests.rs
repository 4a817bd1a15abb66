//! Properties of the server that need no comparison with a real one: time, order, history.

use super::Server;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent,
    WatchParams,
};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

fn config_map(name: &str, value: &str) -> ConfigMap {
    let labels = json!({"value": value});
    serde_json::from_value(
        json!({"metadata": {"name": name, "labels": labels}, "data": {"key": value}}),
    )
    .unwrap()
}

fn config_maps(client: &Client) -> Api<ConfigMap> {
    Api::default_namespaced(client.clone())
}

fn pod() -> Pod {
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
}

async fn merge(api: &Api<ConfigMap>, name: &str, patch: Value) -> kube::Result<ConfigMap> {
    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    }
}

/// Type, name and value of the first events of a watch.
async fn events(
    api: &Api<ConfigMap>,
    params: WatchParams,
    from: &str,
    count: usize,
) -> Vec<String> {
    let events = api.watch(&params, from).await.unwrap();
    let shown = |event: WatchEvent<ConfigMap>| match event {
        WatchEvent::Added(object) => format!("ADDED {}", object.name_any()),
        WatchEvent::Modified(object) => format!("MODIFIED {}", object.name_any()),
        WatchEvent::Deleted(object) => format!("DELETED {}", object.name_any()),
        WatchEvent::Bookmark(bookmark) => {
            format!("BOOKMARK {}", bookmark.metadata.resource_version)
        }
        WatchEvent::Error(status) => format!("ERROR {}", status.code),
    };
    events
        .take(count)
        .map_ok(shown)
        .try_collect()
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_uids_and_latencies() {
    let run = async |seed| {
        let server = Server::new(seed);
        let began = Instant::now();
        let made = config_maps(&server.client("default"))
            .create(&PostParams::default(), &config_map("a", "1"))
            .await;
        (made.unwrap().uid().unwrap(), began.elapsed())
    };
    let first = run(1).await;
    assert_eq!(first, run(1).await);
    assert_ne!(first, run(2).await);
    // A response uses two timers of whole milliseconds.
    assert!(
        first.1 >= Duration::from_millis(1) && first.1 <= Duration::from_millis(52),
        "{first:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_from_a_revision_and_keeps_the_order() {
    let server = Server::new(3);
    let api = config_maps(&server.client("default"));
    let made = api
        .create(&PostParams::default(), &config_map("a", "0"))
        .await
        .unwrap();
    for n in 1..20 {
        merge(&api, "a", json!({"data": {"key": n.to_string()}}))
            .await
            .unwrap();
    }
    let stream = api
        .watch(&WatchParams::default(), &made.resource_version().unwrap())
        .await
        .unwrap();
    let values = stream.take(19).map_ok(|event| match event {
        WatchEvent::Modified(object) => object.data.unwrap()["key"].parse::<u32>().unwrap(),
        other => panic!("{other:?}"),
    });
    let values: Vec<u32> = values.try_collect().await.unwrap();
    assert_eq!(values, (1..20).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn an_object_that_enters_or_leaves_the_selection_is_added_or_deleted() {
    let server = Server::new(0);
    let api = config_maps(&server.client("default"));
    let from = server.revision().to_string();
    api.create(&PostParams::default(), &config_map("a", "1"))
        .await
        .unwrap();
    for value in ["2", "2", "1"] {
        let patch = json!({"metadata": {"labels": {"value": value}}, "data": {"key": server.revision().to_string()}});
        merge(&api, "a", patch).await.unwrap();
    }
    let selected = WatchParams::default().labels("value=2");
    assert_eq!(
        events(&api, selected, &from, 3).await,
        ["ADDED a", "MODIFIED a", "DELETED a"]
    );
    let other = WatchParams::default().fields("metadata.name=b").timeout(5);
    assert_eq!(events(&api, other, &from, 1).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_while_nothing_changes_and_the_watch_ends_in_time() {
    let server = Server::new(0);
    let api = config_maps(&server.client("default"));
    let began = Instant::now();
    let from = server.revision().to_string();
    let seen = events(&api, WatchParams::default().timeout(150), &from, 10).await;
    assert_eq!(
        seen,
        [format!("BOOKMARK {from}"), format!("BOOKMARK {from}")]
    );
    assert!(began.elapsed() >= Duration::from_secs(150));
}

#[tokio::test(start_paused = true)]
async fn revisions_before_the_compaction_are_gone() {
    let server = Server::new(0).without_latency();
    let api = config_maps(&server.client("default"));
    let first = api
        .create(&PostParams::default(), &config_map("a", "1"))
        .await
        .unwrap()
        .resource_version()
        .unwrap();
    merge(&api, "a", json!({"data": {"key": "2"}}))
        .await
        .unwrap();
    let at = ListParams::default()
        .at(&first)
        .matching(kube::api::VersionMatch::Exact);
    assert_eq!(
        api.list(&at).await.unwrap().items[0].data.as_ref().unwrap()["key"],
        "1"
    );
    server.compact(server.revision());
    assert_eq!(code(&api.list(&at).await.unwrap_err()), 410);
    assert_eq!(
        events(&api, WatchParams::default(), &first, 2).await,
        ["ERROR 410"]
    );
}

#[tokio::test(start_paused = true)]
async fn pages_show_the_state_of_the_first_page() {
    let server = Server::new(0).without_latency();
    let api = config_maps(&server.client("default"));
    for name in ["a", "b", "c"] {
        api.create(&PostParams::default(), &config_map(name, "1"))
            .await
            .unwrap();
    }
    let first = api.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(
        (first.items.len(), first.metadata.remaining_item_count),
        (2, Some(1))
    );
    api.delete("c", &DeleteParams::default()).await.unwrap();
    let next = ListParams::default()
        .limit(2)
        .continue_token(first.metadata.continue_.as_deref().unwrap());
    let next = api.list(&next).await.unwrap();
    assert_eq!(next.items[0].name_any(), "c");
    assert_eq!(
        next.metadata.resource_version,
        first.metadata.resource_version
    );
}

#[tokio::test(start_paused = true)]
async fn a_preconditions_failure_is_a_conflict() {
    let server = Server::new(0).without_latency();
    let api = config_maps(&server.client("default"));
    let made = api
        .create(&PostParams::default(), &config_map("a", "1"))
        .await
        .unwrap();
    let other = Preconditions {
        uid: Some("other".to_owned()),
        resource_version: None,
    };
    let params = DeleteParams::default().preconditions(other);
    assert_eq!(code(&api.delete("a", &params).await.unwrap_err()), 409);
    let version = made.resource_version().unwrap();
    merge(
        &api,
        "a",
        json!({"metadata": {"resourceVersion": version}, "data": {"key": "2"}}),
    )
    .await
    .unwrap();
    let stale = merge(
        &api,
        "a",
        json!({"metadata": {"resourceVersion": version}, "data": {"key": "3"}}),
    )
    .await;
    assert_eq!(code(&stale.unwrap_err()), 409);
    let before = server.revision();
    merge(&api, "a", json!({"data": {"key": "2"}}))
        .await
        .unwrap();
    assert_eq!(
        server.revision(),
        before,
        "a patch that changes nothing is no revision"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_a_node_has_time_to_end() {
    let server = Server::new(0).without_latency();
    let client = server.client("default");
    let api = Api::<Pod>::default_namespaced(client.clone());
    api.create(&PostParams::default(), &pod()).await.unwrap();
    assert!(
        api.delete("p", &DeleteParams::default())
            .await
            .unwrap()
            .is_left()
    );
    assert_eq!(
        code(&api.get("p").await.unwrap_err()),
        404,
        "a pod without a node is deleted immediately"
    );

    api.create(&PostParams::default(), &pod()).await.unwrap();
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"name": "n"}});
    let request = http::Request::post("/api/v1/namespaces/default/pods/p/binding")
        .header("Content-Type", "application/json")
        .body(binding.to_string().into_bytes());
    client.request::<Value>(request.unwrap()).await.unwrap();
    api.delete("p", &DeleteParams::default()).await.unwrap();
    let ending = api.get("p").await.unwrap();
    assert_eq!(ending.metadata.deletion_grace_period_seconds, Some(30));
    let deadline = ending.metadata.deletion_timestamp.unwrap().0;
    assert_eq!(deadline.as_second() - server.now().as_second(), 30);
    api.delete("p", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    assert_eq!(code(&api.get("p").await.unwrap_err()), 404);
}

#[tokio::test(start_paused = true)]
async fn applied_fields_have_one_owner_and_go_when_they_are_dropped() {
    let server = Server::new(0).without_latency();
    let api = config_maps(&server.client("default"));
    let apply = async |manager: &str, force: bool, data: Value| {
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
        let params = PatchParams {
            force,
            ..PatchParams::apply(manager)
        };
        api.patch("a", &params, &Patch::Apply(&body)).await
    };
    apply("one", false, json!({"x": "1", "y": "1"}))
        .await
        .unwrap();
    let before = server.revision();
    apply("one", false, json!({"x": "1", "y": "1"}))
        .await
        .unwrap();
    assert_eq!(server.revision(), before);
    let conflict = apply("two", false, json!({"x": "2"})).await.unwrap_err();
    assert!(
        conflict
            .to_string()
            .contains(r#"conflict with "one": .data.x"#),
        "{conflict}"
    );
    apply("two", true, json!({"x": "2", "z": "2"}))
        .await
        .unwrap();
    let rest = apply("one", false, json!({})).await.unwrap();
    let data: Vec<(String, String)> = rest.data.unwrap_or_default().into_iter().collect();
    assert_eq!(
        data,
        [("x", "2"), ("z", "2")].map(|(k, v)| (k.to_owned(), v.to_owned()))
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_implemented_is_recorded() {
    let server = Server::new(0).without_latency();
    let client = server.client("default");
    Api::<Namespace>::all(client.clone())
        .get("default")
        .await
        .unwrap();
    assert_eq!(server.unknown_calls(), [""; 0]);
    let error = Api::<Namespace>::all(client)
        .delete("default", &DeleteParams::default())
        .await
        .unwrap_err();
    assert_eq!(code(&error), 501);
    assert_eq!(server.unknown_calls(), ["deletion of a namespace"]);
    assert!(
        server
            .calls_seen()
            .keys()
            .any(|call| call.starts_with("Get namespaces")),
        "{:?}",
        server.calls_seen()
    );
}
