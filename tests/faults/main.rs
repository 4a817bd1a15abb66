//! Every fault at every call: a VM's life on a real API server, with one thing that goes wrong at one place, for every
//! place and everything that can go wrong there. The end is always the same, and nothing forbidden ever happens.
//!
//! `make test-faults` runs it, and so does `make test`. It starts an API server and an etcd of its own; the rest of Kubernetes is played.
//!
//! | file | what |
//! |---|---|
//! | `cluster` | scheduler, volume binder, kubelet, runner and garbage collector, played; the history of all objects |
//! | `install` | the definition of VMs |
//! | `layer` | between operator and API server: counts what passes, and lets one thing go wrong |
//! | `fault` | what can go wrong, and where |
//! | `traffic` | what passes, and whether an operator is at rest |
//! | `adopted` | a VM of the reference, as it is found |
//! | `leftovers` | what an earlier VM of the same name has left |
//! | `scenario` | what happens to a VM, with at most one fault |
//! | `run` | one run of it: the operator, each step, and waiting for the end |
//! | `judge` | what must hold at the end |
//! | `history` | what must hold at every revision |
//!
//! | variable | default | what |
//! |---|---|---|
//! | `FAULTS_ONLY` | | only scenarios with one of these, between commas, in their name |
//! | `FAULTS_AT_ONCE` | 16 | runs at once |
//! | `FAULTS_MINUTES` | | instead of all: three faults at once at random places, for that long |
//! | `FAULTS_SEED` | 1 | which places those are |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

mod adopted;
#[allow(dead_code, reason = "the test of changes uses all of it")]
mod cluster;
mod fault;
mod history;
mod install;
mod judge;
mod layer;
mod leftovers;
mod run;
mod scenario;
mod traffic;

use cluster::Cluster;
use fault::Fault;
use futures::StreamExt;
use scenario::{Reference, Scenario, Step, Verdict, is_final};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use support::real::Server;

const SPEC: &str = r#"{"vm": {"state": "Running", "maximumCpus": 4, "maximumRam": "2Gi", "currentRam": "1Gi", "disks": [
    {"volumeClaimTemplate": {"metadata": {"name": "system"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}}]}}"#;
const STOPPED_BY_GUEST: &str = r#"{"guestShutdownStops": true, "vm": {"state": "Running"}}"#;
const GROWING: &str = r#"{"vm": {"state": "Running", "disks": [{"volumeClaimTemplate": {"metadata": {"name": "system"}, "spec": {
    "storageClassName": "grows", "resources": {"requests": {"storage": "1Gi"}}}}}]}}"#;
const GROWN: &str = r#"{"disks": [{"volumeClaimTemplate": {"metadata": {"name": "system"}, "spec": {
    "storageClassName": "grows", "resources": {"requests": {"storage": "2Gi"}}}}}]}"#;
const LARGER_DISK: &str = r#"{"disks": [{"volumeClaimTemplate": {"metadata": {"name": "system"}, "spec": {"resources": {"requests": {"storage": "2Gi"}}}}}]}"#;
const WITH_CD: &str = r#"{"vm": {"state": "Running", "disks": [{"cdrom": {"image": "a.iso"}}]}}"#;
const WITH_DISPLAY: &str = r#"{"vm": {"state": "Running", "display": {"spice": {}}}}"#;
const RUNNING: &[Step] = &[Step::Operator, Step::Create];
const STOP: Step = Step::Machine(r#"{"state": "Stopped"}"#);
const NO_SERVICE: Step = Step::Spec(r#"{"loadBalancerService": {}}"#);

const fn scenario(
    name: &'static str,
    before: &'static [Step],
    steps: &'static [Step],
    ready: &'static str,
) -> Scenario {
    Scenario { name, spec: SPEC, before, steps, ready, says: None }
}

const SCENARIOS: &[Scenario] = &[
    scenario("create", &[], RUNNING, "Running"),
    scenario("restart-of-operator", RUNNING, &[Step::Operator], "Running"),
    scenario("cpus", RUNNING, &[Step::Machine(r#"{"currentCpus": 2}"#)], "Running"),
    scenario("memory", RUNNING, &[Step::Machine(r#"{"currentRam": "2Gi"}"#)], "Running"),
    Scenario {
        spec: GROWING,
        says: Some(("PersistentVolumeClaim/vm-system-disk", r#""capacity":{"storage":"2Gi"}"#)),
        ..scenario("disk-size", RUNNING, &[Step::Machine(GROWN)], "Running")
    },
    // A claim without a class that lets it grow: the API server refuses.
    Scenario {
        says: Some(("VirtualMachine/vm", r#""reason":"ExpansionRefused""#)),
        ..scenario("disk-size-refused", RUNNING, &[Step::Machine(LARGER_DISK)], "Running")
    },
    Scenario {
        spec: WITH_CD,
        ..scenario("cd", RUNNING, &[Step::Machine(r#"{"disks": [{"cdrom": {"image": "b.iso"}}]}"#)], "Running")
    },
    scenario("reset", RUNNING, &[Step::Machine(r#"{"resetRequest": 1}"#)], "Running"),
    scenario("restart-request", RUNNING, &[Step::Machine(r#"{"restartRequest": 1}"#)], "Running"),
    scenario("password", RUNNING, &[Step::Password], "Running"),
    scenario("service-off", RUNNING, &[NO_SERVICE], "Running"),
    scenario(
        "service-on",
        &[Step::Operator, Step::Create, NO_SERVICE],
        &[Step::Spec(r#"{"loadBalancerService": null}"#)],
        "Running",
    ),
    scenario("stop", RUNNING, &[STOP], "Stopped"),
    scenario("start", &[Step::Operator, Step::Create, STOP], &[Step::Machine(r#"{"state": "Running"}"#)], "Running"),
    scenario("crash", RUNNING, &[Step::Crash], "Running"),
    Scenario { spec: STOPPED_BY_GUEST, ..scenario("power-off", RUNNING, &[Step::PowerOff], "Stopped") },
    scenario("pod-deleted", RUNNING, &[Step::PodDeleted], "Running"),
    scenario("delete", RUNNING, &[Step::Delete], ""),
    scenario("adopt", &[Step::Adopt], &[Step::Operator], "Running"),
    Scenario { spec: WITH_DISPLAY, ..scenario("namesake", &[Step::Leftovers], RUNNING, "Running") },
];

/// A class of volumes that can grow.
async fn make_storage_class(client: &kube::Client) {
    let class = serde_json::json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "grows"},
        "provisioner": "test", "allowVolumeExpansion": true,
    });
    let request =
        http::Request::post("/apis/storage.k8s.io/v1/storageclasses").header("Content-Type", "application/json");
    client.request::<serde_json::Value>(request.body(class.to_string().into_bytes()).unwrap()).await.unwrap();
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is no number")))
}

/// What went wrong, if anything, and whether the fault has happened.
async fn one(
    cluster: &Cluster,
    scenario: &Scenario,
    n: usize,
    reference: &Reference,
    place: &str,
    fault: Fault,
) -> Verdict {
    let mut verdict = Verdict::NotReached;
    // Which requests a step takes may differ a little: how many events come as one is left to chance.
    for again in 0..3 {
        let faults = vec![(place.to_owned(), fault)];
        verdict = scenario.with_faults(cluster, &format!("{n}-{again}"), reference, faults).await;
        if !matches!(verdict, Verdict::NotReached) {
            break;
        }
    }
    verdict
}

/// Prints the table; gives what went wrong.
fn table(scenarios: &[(&Scenario, Reference)], verdicts: &[(usize, &str, Fault, Verdict)]) -> Vec<String> {
    let (mut wrong, mut all) = (Vec::new(), [0, 0, 0, 0]);
    println!("{:<20} {:>7} {:>7} {:>7} {:>12}", "scenario", "places", "runs", "same", "not reached");
    for (n, (scenario, reference)) in scenarios.iter().enumerate() {
        let of_scenario = || verdicts.iter().filter(|(of, ..)| *of == n);
        let count = |wanted: fn(&Verdict) -> bool| of_scenario().filter(|(.., verdict)| wanted(verdict)).count();
        let row = [
            reference.places.len(),
            of_scenario().count(),
            count(|v| matches!(v, Verdict::Same)),
            count(|v| matches!(v, Verdict::NotReached)),
        ];
        println!("{:<20} {:>7} {:>7} {:>7} {:>12}", scenario.name, row[0], row[1], row[2], row[3]);
        all.iter_mut().zip(row).for_each(|(all, row)| *all += row);
        let what = |place: &str| place.split('#').next().unwrap_or_default().to_owned();
        for (_, place, fault, verdict) in of_scenario() {
            // How often the like passes is left to chance; that it passes is not.
            let reached = |(_, other, same, verdict): &&(usize, &str, Fault, Verdict)| {
                what(other) == what(place) && same == fault && !matches!(verdict, Verdict::NotReached)
            };
            match verdict {
                Verdict::NotReached if of_scenario().find(reached).is_none() => {
                    wrong.push(format!("{}: {place} was never passed for {fault:?}", scenario.name));
                }
                verdict => {
                    let why = verdict.wrong();
                    wrong.extend(why.map(|why| format!("{}: {fault:?} at {place}: {why}", scenario.name)));
                }
            }
        }
    }
    println!("{:<20} {:>7} {:>7} {:>7} {:>12}", "all", all[0], all[1], all[2], all[3]);
    let kinds: BTreeSet<Fault> = verdicts.iter().map(|(_, _, fault, _)| *fault).collect();
    let (scenarios, kinds) = (scenarios.len(), kinds.len());
    println!(
        "{scenarios} scenarios × {} places in them × the faults possible there, of {kinds}: {} runs",
        all[0], all[1]
    );
    wrong
}

/// Several faults at once, at places that the seed picks.
async fn at_random(
    cluster: &Cluster,
    scenarios: &[(&Scenario, Reference)],
    seed: u64,
    minutes: u64,
    at_once: usize,
) -> Vec<String> {
    let ends = Instant::now() + Duration::from_secs(60 * minutes);
    let runs = futures::stream::iter(0u64..).take_while(|_| futures::future::ready(Instant::now() < ends)).map(
        |n| async move {
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (n + 1).wrapping_mul(0xD1B5_4A32_D192_ED03);
            let mut pick = |of: usize| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                usize::try_from(state % of as u64).unwrap_or_default()
            };
            let (scenario, reference) = &scenarios[pick(scenarios.len())];
            let mut faults = Vec::new();
            while faults.len() < 3 {
                let place = &reference.places[pick(reference.places.len())];
                let fault = Fault::at(place)[pick(Fault::at(place).len())];
                if !is_final(place, fault) {
                    faults.push((place.clone(), fault));
                }
            }
            let verdict = scenario.with_faults(cluster, &format!("random-{n}"), reference, faults.clone()).await;
            let tell = |why| format!("run {n} of seed {seed}: {}: {faults:?}: {why}", scenario.name);
            (matches!(verdict, Verdict::Same), verdict.wrong().map(tell))
        },
    );
    let verdicts: Vec<_> = runs.buffer_unordered(at_once).collect().await;
    let whole = verdicts.iter().filter(|(whole, _)| *whole).count();
    println!("{} runs with up to 3 faults each, seed {seed}; in {whole} all three have happened", verdicts.len());
    let mut wrong: Vec<String> = verdicts.into_iter().filter_map(|(_, wrong)| wrong).collect();
    if whole == 0 {
        wrong.push("in none have all faults happened".to_owned());
    }
    wrong
}

async fn every_fault_at_every_place(server: &Server) -> Vec<String> {
    let began = Instant::now();
    let client = server.client().await;
    install::install(&client).await;
    make_storage_class(&client).await;
    let cluster = &Cluster::start(client).await;
    let only = std::env::var("FAULTS_ONLY").unwrap_or_default();
    let at_once = number("FAULTS_AT_ONCE").and_then(|n| n.try_into().ok()).unwrap_or(16);
    let references = SCENARIOS.iter().filter(|scenario| only.split(',').any(|part| scenario.name.contains(part)));
    let references = references.map(|scenario| async move { (scenario, scenario.reference(cluster).await) });
    let scenarios = &futures::future::join_all(references).await;
    if let Some(minutes) = number("FAULTS_MINUTES") {
        let seed = number("FAULTS_SEED").unwrap_or(1);
        return at_random(cluster, scenarios, seed, minutes, at_once).await;
    }
    let cases = scenarios.iter().enumerate().flat_map(|(n, (scenario, reference))| {
        let places =
            reference.places.iter().flat_map(|place| Fault::at(place).iter().map(move |fault| (place, *fault)));
        places.map(move |(place, fault)| (n, *scenario, reference, place.as_str(), fault))
    });
    let runs = cases.enumerate().map(|(run, (n, scenario, reference, place, fault))| async move {
        (n, place, fault, one(cluster, scenario, run, reference, place, fault).await)
    });
    let verdicts: Vec<_> = futures::stream::iter(runs).buffer_unordered(at_once).collect().await;
    let wrong = table(scenarios, &verdicts);
    println!("in {} s, {at_once} at once", began.elapsed().as_secs());
    wrong
}

#[test]
fn every_fault_at_every_call_leads_to_the_same_end() {
    // In this thread, which lives until the end: the server ends with it.
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let wrong = runtime.block_on(every_fault_at_every_place(&server));
    runtime.shutdown_background();
    assert!(wrong.is_empty(), "{} of them went wrong:\n{}", wrong.len(), wrong.join("\n"));
}
