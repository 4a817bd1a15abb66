//! Many PeerPods of running pods. With `PEERPODS=10000 cargo test --test api -- live_peerpods --nocapture`, figures of the page about figures.

use crate::apiserver::peerpods::life::{Life, SEEN};
use crate::apiserver::peerpods::peerpod;
use crate::apiserver::world::eventually;
use futures::StreamExt;
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::json;
use std::time::Instant;
use vm_operator::settings::peerpod::Providers;

/// The memory of this process in MiB. It contains the controller and the test.
fn memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kibibytes / 1024.0
}

fn reconciles(life: &Life) -> usize {
    let text = life.metrics.text();
    let counts = text
        .lines()
        .filter(|line| line.starts_with("vm_operator_reconciles_total{"));
    let counts = counts.map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap());
    counts.sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn live_peerpods_need_no_write_after_a_restart() {
    let count: usize = std::env::var("PEERPODS").map_or(100, |text| text.parse().unwrap());
    let mut life = Life::start("peerpods-live", "aws").await;
    // In place of pods, which the garbage collector of this server would miss.
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}});
    let owner = life.world.apply(&owner, false).await.unwrap();
    let created = (0..count).map(|n| {
        let mut object = peerpod(&format!("p{n}"), &format!("i-{n:017x}"));
        let reference = &mut object.metadata.owner_references.as_mut().unwrap()[0];
        (reference.kind, reference.name) = ("ConfigMap".to_owned(), owner.name_any());
        reference.uid = owner.uid().unwrap();
        let note = json!({"place": "123456789012/eu-central-1", "name": "podvm-a-0123abcd"});
        let note = (SEEN.to_owned(), note.to_string());
        object.metadata.annotations = Some([note].into());
        let peerpods = life.peerpods.clone();
        async move {
            let params = PostParams::default();
            peerpods.create(&params, &object).await.unwrap();
        }
    });
    let created = futures::stream::iter(created).buffer_unordered(16);
    assert_eq!(created.count().await, count);

    let before = memory();
    for start in 1..=2 {
        let (began, done) = (Instant::now(), reconciles(&life));
        life.operate(Providers::default()).await;
        eventually("all PeerPods are reconciled", async || {
            reconciles(&life) >= done + count
        })
        .await;
        println!(
            "start {start} over {count} PeerPods: {:?}, memory {before:.1} MiB before the first start, {:.1} MiB now",
            began.elapsed(),
            memory()
        );
    }
    let requests = life.requests.lock().unwrap();
    let is_write = |verb: &str| !["get", "list", "watch"].contains(&verb);
    let writes: Vec<_> = requests.iter().filter(|it| is_write(&it.0.2)).collect();
    assert!(writes.is_empty(), "{writes:?}");
}
