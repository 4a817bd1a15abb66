//! Running VMs are changed at random, in one or two fields, on a real API server with the rest of Kubernetes played. Whatever
//! a running machine can follow has to be at once as if the VM had been made so, and the VM says for which fields it has to be
//! restarted; then all is so. An undone change ends as before. Or the API server refuses the change and says which field is
//! wrong; or the VM says what is in its way, as one that was made so does. None is stuck without a reason.
//!
//! `make test-changes` runs it.
//!
//! | variable | default | what |
//! |---|---|---|
//! | `CHANGES_MINUTES` | 4 | for how long: as many changes as there is time for |
//! | `CHANGES` | | how many changes, instead of that: the same ones on each machine |
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
mod compare;
#[path = "../common/generator.rs"]
mod generator;
#[path = "../faults/install.rs"]
mod install;
#[path = "../faults/judge.rs"]
#[allow(dead_code, reason = "the faults' test uses all of it")]
mod judge;
#[path = "../common/nonsense.rs"]
mod nonsense;
mod pick;
mod placed;
mod rest;
mod schema;

use case::{Case, NAMESPACES, Verdict};
use cluster::Cluster;
use futures::StreamExt;
use http::Request;
use kube::Client;
use pick::{CLASS_THAT_GROWS, Change, change, specs};
use schema::Field;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::real::Server;
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
    let storage = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS_THAT_GROWS},
        "provisioner": "vm-operator.test/none", "allowVolumeExpansion": true,
    });
    for (path, class) in [
        ("/apis/scheduling.k8s.io/v1/priorityclasses", priority),
        ("/apis/node.k8s.io/v1/runtimeclasses", runtime),
        ("/apis/storage.k8s.io/v1/storageclasses", storage),
    ] {
        let request = Request::post(path).header("Content-Type", "application/json");
        client.request::<Value>(request.body(class.to_string().into_bytes()).unwrap()).await.unwrap();
    }
}

/// Which changes, and until when.
struct Wanted {
    seed: u64,
    first: u64,
    count: u64,
    ends: Instant,
    is_one: bool,
}

impl Wanted {
    fn asked() -> Self {
        let is_set = |variable| std::env::var_os(variable).is_some();
        let (is_one, is_counted) = (is_set("CHANGES_ONLY"), is_set("CHANGES"));
        let minutes = number("CHANGES_MINUTES", if is_one || is_counted { 24 * 60 } else { 4 });
        let count = if is_one { 1 } else { number("CHANGES", u64::MAX) };
        let how_many =
            if is_one || is_counted { format!("{count}") } else { format!("as many as fit in {minutes} min") };
        let (seed, first) = (number("CHANGES_SEED", 1), number("CHANGES_ONLY", 0));
        println!("changes of seed {seed} from number {first} on: {how_many}");
        Self { seed, first, count, ends: Instant::now() + Duration::from_secs(60 * minutes), is_one }
    }
}

/// Changes VMs until the number is reached, or the time over. Gives what came of it, by the number of the change.
async fn verdicts(cluster: &Cluster, wanted: &Wanted, fields: &[Field]) -> Vec<(u64, Change, Verdict)> {
    let specs = &specs(wanted.seed);
    let numbers = wanted.first..wanted.first.saturating_add(wanted.count);
    let cases = numbers.take_while(|_| Instant::now() < wanted.ends).map(|n| async move {
        let change = change(specs, fields, wanted.seed, n);
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
    let (began, tells, wanted, fields) =
        (Instant::now(), std::env::var_os("CHANGES_TELL").is_some(), Wanted::asked(), schema::fields());
    let seed = wanted.seed;
    let verdicts = verdicts(cluster, &wanted, &fields).await;
    let (mut counts, mut wrong) = (BTreeMap::<String, usize>::new(), Vec::new());
    for (n, change, verdict) in &verdicts {
        let changed = change.fields.join(" and ");
        let kind = match verdict {
            Verdict::Same => "as if made so, and back".to_owned(),
            Verdict::Refused => "refused, with the field".to_owned(),
            Verdict::Explained(reason, message) => {
                if tells {
                    println!("change {n}, {changed}: {reason}: {message}");
                }
                format!("explained: {reason}")
            }
            Verdict::Wrong(why) => {
                wrong.push(format!("change {n} of seed {seed}, {changed}: {why}"));
                "wrong".to_owned()
            }
        };
        *counts.entry(kind).or_default() += 1;
    }
    for (kind, count) in &counts {
        println!("{count:>6} {kind}");
    }
    let places = verdicts.iter().flat_map(|(_, change, _)| change.places()).collect();
    let untouched = schema::untouched(&fields, &places);
    let touched = fields.len() - untouched.len();
    println!("{touched} of the {} fields of the schema were changed", fields.len());
    if tells {
        println!("not changed: {}", untouched.join(", "));
    }
    println!("{} changes, seed {seed}, in {} s", verdicts.len(), began.elapsed().as_secs());
    if !wanted.is_one && touched < schema::TOUCHED.min(verdicts.len() / 2) {
        wrong.push(format!("only {touched} of {} fields were changed: {}", fields.len(), untouched.join(", ")));
    }
    if !wanted.is_one && counts.get("as if made so, and back").is_none_or(|same| same * 2 < verdicts.len()) {
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
