//! Running VMs are changed at random, in one or two fields, on a real API server with the rest of Kubernetes played. A
//! change has to end as if the VM had been made so, and an undone one as before; or the API server refuses it and says
//! which field is wrong; or the VM says what is in its way, as one that was made so does. None is stuck without a reason.
//!
//! `make test-changes` runs it.
//!
//! | variable | default | what |
//! |---|---|---|
//! | `CHANGES` | 200 | how many changes: the same ones on each machine |
//! | `CHANGES_MINUTES` | | for how long, instead of that |
//! | `CHANGES_SEED` | 1 | which ones: a change is known by this and its number |
//! | `CHANGES_ONLY` | | only the change of that number |
//! | `CHANGES_TELL` | | if set: what is in the way of each of those that do not run, and which fields were not changed |
//! | `CHANGES_AT_ONCE` | 24 | how many at once |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

mod allowed;
mod case;
#[path = "../faults/cluster.rs"]
#[allow(dead_code, reason = "the faults' test uses all of it")]
mod cluster;
#[path = "../common/generator.rs"]
#[allow(dead_code, reason = "other tests use all of it")]
mod generator;
#[path = "../faults/install.rs"]
mod install;
#[path = "../faults/judge.rs"]
#[allow(dead_code, reason = "the faults' test uses all of it")]
mod judge;
mod pick;
#[path = "../common/api_server.rs"]
mod server;

use case::{Case, NAMESPACES, Verdict};
use cluster::Cluster;
use futures::StreamExt;
use http::Request;
use kube::Client;
use pick::{Change, Random, change, specs, untouched};
use serde_json::{Value, json};
use server::Server;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vm_operator::operator::backoff::Failures;
use vm_operator::operator::context::Context;
use vm_operator::operator::settings::{LoadBalancerService, Settings};
use vm_operator::operator::{streams, vm};

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{variable} is no number")))
}

/// An operator of its own for each namespace.
async fn operate(client: &Client, namespace: &'static str) {
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    let request = Request::post("/api/v1/namespaces").header("Content-Type", "application/json");
    client.request::<Value>(request.body(body.to_string().into_bytes()).unwrap()).await.unwrap();
    let mut settings = Settings::default();
    settings.reconciler.load_balancer_service =
        LoadBalancerService::On { labels: BTreeMap::new(), annotations: BTreeMap::new() };
    let mut ctx = Context::new(client.clone(), namespace.to_owned(), settings);
    ctx.failures = Failures::pausing(Duration::from_millis(100));
    let ctx = Arc::new(ctx);
    tokio::spawn(async move {
        let vms = streams::vms(&ctx);
        let children = streams::children(&ctx, &vms.store);
        ctx.caches.ready().await;
        vm::run(ctx.clone(), vms, children.boxed(), std::future::pending()).await;
    });
}

/// What the examples name and an administrator would make.
async fn make_classes(client: &Client) {
    let priority =
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "vms"}, "value": 1});
    let runtime = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "runc"}, "handler": "runc"});
    for (path, class) in
        [("/apis/scheduling.k8s.io/v1/priorityclasses", priority), ("/apis/node.k8s.io/v1/runtimeclasses", runtime)]
    {
        let request = Request::post(path).header("Content-Type", "application/json");
        client.request::<Value>(request.body(class.to_string().into_bytes()).unwrap()).await.unwrap();
    }
}

/// Changes VMs until the number is reached, or the time over. Gives what came of it, by the number of the change.
async fn verdicts(cluster: &Cluster, seed: u64) -> Vec<(u64, Change, Verdict)> {
    let only = std::env::var_os("CHANGES_ONLY").map(|_| number("CHANGES_ONLY", 0));
    let (first, count) = match only {
        Some(only) => (only, 1),
        None if std::env::var_os("CHANGES_MINUTES").is_some() => (0, u64::MAX),
        None => (0, number("CHANGES", 200)),
    };
    let ends = Instant::now() + Duration::from_secs(60 * number("CHANGES_MINUTES", 24 * 60));
    let specs = &specs(seed);
    let numbers = (first..first.saturating_add(count)).take_while(|_| Instant::now() < ends);
    let cases = numbers.map(|n| async move {
        let change = change(specs, &mut Random::new(seed, n));
        let case = Case { cluster, name: format!("vm-{n}"), change };
        let verdict = case.run().await;
        if let Verdict::Wrong(why) = &verdict {
            println!("change {n}, {}: {why}", case.change.fields.join(" and "));
        }
        (n, case.change, verdict)
    });
    let at_once = number("CHANGES_AT_ONCE", 24).try_into().unwrap_or(24);
    futures::stream::iter(cases).buffer_unordered(at_once).collect().await
}

async fn all_changes(server: &Server) -> Vec<String> {
    let client = server.client().await;
    install::install(&client).await;
    make_classes(&client).await;
    let cluster = &Cluster::start(client.clone()).await;
    for namespace in NAMESPACES {
        operate(&client, namespace).await;
    }
    let (began, seed, tells) = (Instant::now(), number("CHANGES_SEED", 1), std::env::var_os("CHANGES_TELL").is_some());
    let verdicts = verdicts(cluster, seed).await;
    let (mut counts, mut wrong) = (BTreeMap::<String, usize>::new(), Vec::new());
    for (n, change, verdict) in &verdicts {
        let fields = change.fields.join(" and ");
        let kind = match verdict {
            Verdict::Same => "as if made so, and back".to_owned(),
            Verdict::Refused => "refused, with the field".to_owned(),
            Verdict::Explained(reason, message) => {
                if tells {
                    println!("change {n}, {fields}: {reason}: {message}");
                }
                format!("explained: {reason}")
            }
            Verdict::Wrong(why) => {
                wrong.push(format!("change {n} of seed {seed}, {fields}: {why}"));
                "wrong".to_owned()
            }
        };
        *counts.entry(kind).or_default() += 1;
    }
    for (kind, count) in &counts {
        println!("{count:>6} {kind}");
    }
    let places = verdicts.iter().flat_map(|(_, change, _)| change.places()).collect();
    let (untouched, fields) = untouched(&places);
    println!("{} of the {fields} fields of the schema were changed", fields - untouched.len());
    if tells {
        println!("not changed: {}", untouched.join(", "));
    }
    println!("{} changes, seed {seed}, in {} s", verdicts.len(), began.elapsed().as_secs());
    let is_whole = std::env::var_os("CHANGES_ONLY").is_none();
    if is_whole && counts.get("as if made so, and back").is_none_or(|same| same * 2 < verdicts.len()) {
        wrong.push("fewer than half of the changes were carried out".to_owned());
    }
    wrong
}

#[test]
fn a_changed_vm_becomes_what_one_made_so_is_and_back() {
    // In this thread, which lives until the end: the server ends with it.
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let wrong = runtime.block_on(all_changes(&server));
    runtime.shutdown_background();
    assert!(wrong.is_empty(), "{} of them went wrong:\n{}", wrong.len(), wrong.join("\n"));
}
