//! Random changes of running VMs in one or two fields, on a real API server with simulated components. Changes that a
//! running VM can follow must have the same result as a VM that was created so. The VM must report the fields that need
//! a restart, and after the restart all must be equal. An undone change must restore the start. Alternatively the API
//! server rejects the change and names the field, or the VM reports its blocking condition, as the created one does. No
//! VM may be stuck without a reason.
//!
//! `make test-changes` runs it. A run makes a slice of the numbered changes, another one each day. Every second change
//! is of a single field of the schema, field after field, so that the slices of a few days cover all fields.
//!
//! | variable | default | effect |
//! |---|---|---|
//! | `CHANGES` | 120 | the number of changes; 500 cover every field |
//! | `CHANGES_FROM` | 120 times the day's number | the number of the first change |
//! | `CHANGES_SEED` | 1 | the seed; seed and number determine a change |
//! | `CHANGES_MINUTES` | | as many changes as fit in that time, instead of `CHANGES` |
//! | `CHANGES_ONLY` | | run only the change with that number |
//! | `CHANGES_TELL` | | if set: print the blocking condition of each VM that does not run |
//! | `CHANGES_AT_ONCE` | 24 | the number of concurrent changes |

mod allowed;
mod case;
mod compare;
mod pick;
mod placed;
mod reconciles;
mod rest;
mod schema;

use case::{Case, NAMESPACES, Verdict};
use http::Request;
use kube::Client;
use kube::api::PostParams;
use pick::{CLASS_THAT_GROWS, Change, change, specs};
use reconciles::Reconciles;
use schema::Field;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use support::components::{Cluster, VM_KINDS, api};
use support::install;
use support::real::Server;

use futures::StreamExt;
use vm_operator::controllers::vm;
use vm_operator::controllers::vm::context::VmController;
use vm_operator::k8s;
use vm_operator::settings::{LoadBalancerService, Settings};

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(otherwise, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is no number"))
    })
}

/// An operator for each namespace.
async fn operate(client: &Client, namespace: &'static str) {
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    let request = Request::post("/api/v1/namespaces").header("Content-Type", "application/json");
    client
        .request::<Value>(request.body(body.to_string().into_bytes()).unwrap())
        .await
        .unwrap();
    make_source(client, namespace).await;
    let mut settings = Settings::default();
    settings.reconciler.load_balancer_service = LoadBalancerService::On {
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    };
    let mut cluster = k8s::cluster::Cluster::new(client.clone(), vm::MANAGER);
    cluster.first_backoff = Duration::from_millis(100);
    cluster.jitter = || 0.0;
    let ctx = VmController::new(cluster, namespace.to_owned(), settings);
    tokio::spawn(support::vms::operate(Arc::new(ctx), std::future::pending()));
}

/// The PVC that the example of all fields copies. Without it, each VM would stop before its copy.
async fn make_source(client: &Client, namespace: &str) {
    let spec =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let claim = json!({"metadata": {"name": "golden-system-disk"}, "spec": spec});
    api(client, "PersistentVolumeClaim", Some(namespace))
        .create(
            &PostParams::default(),
            &serde_json::from_value(claim).unwrap(),
        )
        .await
        .unwrap();
}

/// The objects that the examples name and an administrator would create.
async fn make_classes(client: &Client) {
    let priority = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "vms"}, "value": 1});
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
        client
            .request::<Value>(request.body(class.to_string().into_bytes()).unwrap())
            .await
            .unwrap();
    }
}

/// The number of changes of one run.
pub const SLICE: u64 = 80;
/// The number of changes that cover each field of the schema. A test compares it with the schema.
pub const ROUND: u64 = 500;

/// The selection of changes.
struct Selection {
    seed: u64,
    first: u64,
    count: u64,
    ends: Option<Instant>,
}

impl Selection {
    /// From the variables of the environment.
    fn from_environment() -> Self {
        let set = |variable: &str| std::env::var_os(variable).map(|_| number(variable, 0));
        let day = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() / (24 * 60 * 60);
        let only = set("CHANGES_ONLY");
        let ends = set("CHANGES_MINUTES")
            .map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
        let wanted = Self {
            seed: number("CHANGES_SEED", 1),
            first: only.unwrap_or_else(|| number("CHANGES_FROM", day * SLICE)),
            count: match (only, ends) {
                (Some(_), _) => 1,
                (None, Some(_)) => u64::MAX,
                (None, None) => number("CHANGES", SLICE),
            },
            ends: ends.filter(|_| only.is_none()),
        };
        let Self {
            seed,
            first,
            count,
            ends,
        } = wanted;
        match ends {
            Some(_) => println!(
                "changes from number {first} on, until the time is over; CHANGES_SEED={seed} CHANGES_FROM={first}"
            ),
            None => println!(
                "{count} changes from number {first} on; CHANGES_SEED={seed} CHANGES_FROM={first} CHANGES={count}"
            ),
        }
        wanted
    }

    fn numbers(&self) -> impl Iterator<Item = u64> {
        let numbers = self.first..self.first.saturating_add(self.count);
        numbers.take_while(|_| self.ends.is_none_or(|ends| Instant::now() < ends))
    }
}

/// Changes VMs until the number or the time limit is reached. Returns the results by the numbers of the changes.
async fn verdicts(
    cluster: &Cluster,
    reconciles: &Reconciles,
    wanted: &Selection,
    fields: &[Field],
) -> Vec<(u64, Change, Verdict)> {
    let specs = &specs(wanted.seed);
    let cases = wanted.numbers().map(|n| async move {
        let change = change(specs, fields, wanted.seed, n);
        let case = Case {
            cluster,
            reconciles,
            name: format!("vm-{n}"),
            change,
        };
        let verdict = case.run().await;
        if let Verdict::Wrong(why) = &verdict {
            println!("change {n}, {}: {why}", case.change.fields.join(" and "));
        }
        (n, case.change, verdict)
    });
    let at_once = number("CHANGES_AT_ONCE", 24).try_into().unwrap_or(24);
    futures::stream::iter(cases)
        .buffer_unordered(at_once)
        .collect()
        .await
}

async fn all_changes(server: &Server) -> Vec<String> {
    let client = server.client().await;
    install::install(&client).await;
    make_classes(&client).await;
    let (cluster, reconciles) = (
        &Cluster::start(client.clone(), &VM_KINDS).await,
        Reconciles::start(),
    );
    for namespace in NAMESPACES {
        operate(&client, namespace).await;
    }
    let (began, prints_reasons) = (Instant::now(), std::env::var_os("CHANGES_TELL").is_some());
    let (wanted, fields) = (Selection::from_environment(), schema::fields());
    let seed = wanted.seed;
    let verdicts = verdicts(cluster, &reconciles, &wanted, &fields).await;
    let (mut counts, mut wrong) = (BTreeMap::<String, usize>::new(), Vec::new());
    for (n, change, verdict) in &verdicts {
        let changed = change.fields.join(" and ");
        let kind = match verdict {
            Verdict::Same => "equal to a created VM, and undone".to_owned(),
            Verdict::Rejected => "rejected, with the field".to_owned(),
            Verdict::Explained(reason, message) => {
                if prints_reasons {
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
    println!(
        "{} changes in {} s",
        verdicts.len(),
        began.elapsed().as_secs()
    );
    let is_counted = wanted.ends.is_none();
    if is_counted && verdicts.len() as u64 != wanted.count {
        wrong.push(format!(
            "{} changes were made, not {}",
            verdicts.len(),
            wanted.count
        ));
    }
    // Each field of the selected slice was changed. The number of these fields does not depend on the machine.
    let places = verdicts
        .iter()
        .flat_map(|(_, change, _)| change.places())
        .collect();
    let turns = verdicts
        .iter()
        .filter_map(|(n, ..)| pick::field_of_change(&fields, seed, *n));
    let turns: BTreeMap<&str, &Field> = turns.map(|field| (field.path.as_str(), field)).collect();
    let missed = turns
        .values()
        .filter(|field| !field.is_among(&places))
        .map(|field| field.path.as_str());
    let missed: Vec<&str> = missed
        .filter(|path| !schema::UNREACHABLE.contains(path))
        .collect();
    let changed = fields
        .iter()
        .filter(|field| field.is_among(&places))
        .count();
    println!(
        "{changed} of the {} fields of the schema were changed; it was the turn of {}",
        fields.len(),
        turns.len()
    );
    if !missed.is_empty() {
        wrong.push(format!(
            "it was their turn, and they were not changed: {}",
            missed.join(", ")
        ));
    }
    // Usually four of five changes are carried out. With less than half, the test shows too little.
    let is_slice = wanted.count >= SLICE || !is_counted;
    if is_slice
        && counts
            .get("equal to a created VM, and undone")
            .is_none_or(|same| same * 2 < verdicts.len())
    {
        wrong.push("fewer than half of the changes were carried out".to_owned());
    }
    wrong
}

#[test]
fn changed_vm_equals_a_newly_created_vm_and_can_be_reverted() {
    // In this thread, which lives until the end, because the server stops with it.
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let wrong = runtime.block_on(all_changes(&server));
    runtime.shutdown_background();
    assert!(
        wrong.is_empty(),
        "{} of them went wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
