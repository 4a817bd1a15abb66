//! Many deletions at once. With `PEERPODS=1000 cargo test --test api -- deletions_share --nocapture`, the figure of the page about figures.

use super::{ACTIONS, Cloud, REGION, instant};
use crate::apiserver::peerpods::peerpod;
use futures::{StreamExt, TryStreamExt};
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::watcher::{self, Event};
use serde_json::json;
use std::time::{Duration, Instant};
use vm_operator::settings::peerpod::Sweep;

#[tokio::test(flavor = "multi_thread")]
async fn deletions_share_their_calls_and_need_two_writes_each() {
    let count: usize = std::env::var("PEERPODS").map_or(100, |text| text.parse().unwrap());
    let mut cloud = Cloud::start("aws-scale").await;
    let keys = cloud.user("controller", &ACTIONS).await;
    cloud.enforce().await;
    let tag = "TagSpecification.1.Tag.1";
    let body = cloud
        .ec2(&[
            ("Action", "RunInstances"),
            ("ImageId", "ami-12c6146b"),
            ("MinCount", &count.to_string()),
            ("MaxCount", &count.to_string()),
            ("TagSpecification.1.ResourceType", "instance"),
            (&format!("{tag}.Key"), "Name"),
            (&format!("{tag}.Value"), "podvm-a-0123abcd"),
        ])
        .await;
    let ids = body.split("<instanceId>").skip(1);
    let ids = ids.map(|rest| rest.split_once('<').unwrap().0);
    let ended = ids.enumerate().map(|(n, id)| {
        let mut object = peerpod(&format!("p{n}"), id);
        object.metadata.owner_references.as_mut().unwrap()[0].uid = format!("u{n}");
        let peerpods = cloud.peerpods.clone();
        async move {
            peerpods
                .create(&PostParams::default(), &object)
                .await
                .unwrap();
            peerpods
                .delete(&object.name_any(), &DeleteParams::default())
                .await
                .unwrap();
        }
    });
    let ended = futures::stream::iter(ended).buffer_unordered(16);
    assert_eq!(ended.count().await, count);

    cloud.configure(json!({"AWS_REGION": REGION}), &keys).await;
    let events = watcher::watcher(cloud.peerpods.clone(), watcher::Config::default());
    let mut events = events.boxed();
    while !matches!(events.try_next().await.unwrap(), Some(Event::InitDone)) {}
    let began = Instant::now();
    cloud.operate_with(Sweep::Report, instant).await;
    let (mut writes, mut released) = (0, 0);
    while released < count {
        let event = tokio::time::timeout(Duration::from_secs(120), events.try_next());
        writes += 1;
        if let Some(Event::Delete(_)) = event.await.unwrap().unwrap() {
            released += 1;
        }
    }
    println!(
        "{count} deletions in {:?}, with {writes} writes",
        began.elapsed()
    );
    assert!(writes <= 2 * count, "{writes}");
    let left = cloud
        .ec2(&[
            ("Action", "DescribeInstances"),
            ("Filter.1.Name", "instance-state-name"),
            ("Filter.1.Value.1", "running"),
        ])
        .await;
    assert!(!left.contains("<instanceId>"), "{left}");
}
