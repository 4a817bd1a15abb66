//! Runs on a real API server, which validate the simulated ones.
//!
//! All scenarios run without a fault. They must end with the same objects and pass the same places as in the
//! simulation. A twentieth of all cases runs each day, in rotation, and must have the verdict of the simulation.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `FAULTS_ONLY` | | parts of scenario names, separated by commas |
//! | `FAULTS_ALL` | | `1`: all cases instead of a twentieth |
//! | `FAULTS_DAY` | days since 1970 | selects the twentieth |
//! | `FAULTS_CASE` | | only this case |
//! | `FAULTS_AT_ONCE` | 16 | concurrent runs |

use super::run::Run;
use super::simulated::Simulation;
use super::{Case, Controller, Reference, Scenario, Verdict, create_namespace, number, selected};
use crate::components::Cluster;
use crate::final_state::difference;
use crate::timings::Timings;
use futures::StreamExt;
use kube::Client;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime};

/// The fraction of the cases that runs on one day.
const DAYS: u64 = 20;
/// Seeds of the simulated runs, from which the expected counts of requests and events are taken.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=8;
/// On a real server independent requests come in any order, and several changes may arrive as one event. A run that did
/// not pass the place is repeated.
const ATTEMPTS_MAX: usize = 3;

/// Runs the controller's scenarios and returns the failures. The definitions must be installed.
///
/// # Panics
/// The API server rejects a request of the test.
pub async fn check(
    controller: &'static Controller,
    scenarios: &'static [Scenario],
    client: Client,
) -> Vec<String> {
    let began = Instant::now();
    let scenarios = selected(scenarios);
    (controller.prepare)(&client).await;
    let cluster = Cluster::start(client, controller.kinds).await;
    let at_once = number("FAULTS_AT_ONCE")
        .and_then(|n| n.try_into().ok())
        .unwrap_or(16);
    let simulation = Simulation::new(controller);
    let mut simulated = Vec::new();
    for seed in SEEDS {
        simulated.push(tokio::task::block_in_place(|| {
            simulation.references(&scenarios, seed)
        }));
    }
    let references = &simulated[0];

    let real = futures::stream::iter(references).map(|(scenario, _)| {
        let run = run(controller, &cluster, format!("{}-reference", scenario.name));
        async move { run.await.reference(scenario).await }
    });
    let real: Vec<_> = real.buffered(at_once).collect().await;
    let mut wrong = Vec::new();
    for (n, real) in real.into_iter().enumerate() {
        let of_seeds: Vec<&Reference> = simulated
            .iter()
            .map(|references| &references[n].1)
            .collect();
        match real {
            Ok(real) => wrong.extend(differences(scenarios[n], &of_seeds, &real)),
            Err(why) => wrong.push(format!("without a fault: {why}")),
        }
    }
    println!(
        "{} scenarios without a fault on both servers in {:.1} s",
        scenarios.len(),
        began.elapsed().as_secs_f64()
    );

    let cases = references.iter().flat_map(|(scenario, reference)| {
        Case::all(scenario, reference).map(move |case| (*scenario, reference, case))
    });
    let (mut all, mut cases): (usize, Vec<_>) = (0, cases.collect());
    all += cases.len();
    let day = number("FAULTS_DAY").unwrap_or_else(today);
    if let Ok(case) = std::env::var("FAULTS_CASE") {
        let only: Case = case
            .parse()
            .unwrap_or_else(|why| panic!("FAULTS_CASE: {why}"));
        cases.retain(|(_, _, case)| *case == only);
    } else if std::env::var("FAULTS_ALL").is_ok_and(|value| value == "1") {
        println!("all cases");
    } else {
        cases.retain(|(_, _, case)| case.hash() % DAYS == day % DAYS);
        println!("the cases of day {day}, FAULTS_DAY={day} repeats them");
    }
    assert!(!cases.is_empty(), "no case is selected");
    let runs = cases
        .iter()
        .enumerate()
        .map(|(n, (scenario, reference, case))| {
            let cluster = &cluster;
            async move {
                let mut verdict = Verdict::NotReached;
                for again in 0..ATTEMPTS_MAX {
                    let run = run(
                        controller,
                        cluster,
                        format!("{}-{n}-{again}", scenario.name),
                    )
                    .await;
                    verdict = run
                        .with_faults(scenario, reference, case.faults.clone())
                        .await;
                    if verdict != Verdict::NotReached {
                        break;
                    }
                }
                (case, verdict)
            }
        });
    let verdicts: Vec<_> = futures::stream::iter(runs)
        .buffer_unordered(at_once)
        .collect()
        .await;
    let count = |wanted: &Verdict| {
        verdicts
            .iter()
            .filter(|(_, verdict)| verdict == wanted)
            .count()
    };
    let (same, not_reached) = (count(&Verdict::Same), count(&Verdict::NotReached));
    println!(
        "{} of {all} cases on the real API server: {same} with the same end as in the simulation, {not_reached} did not pass their \
         place; {:.1} s, {at_once} at once",
        cases.len(),
        began.elapsed().as_secs_f64()
    );
    for (case, verdict) in &verdicts {
        if let Some(why) = verdict.wrong() {
            let again =
                format!("FAULTS_CASE='{case}' cargo test --test api faults:: -- --nocapture");
            wrong.push(format!("{case}: {why}\n    repeat: {again}"));
        }
    }
    if not_reached * 10 > verdicts.len() {
        wrong.push(format!(
            "{not_reached} of {} runs did not pass their place",
            verdicts.len()
        ));
    }
    wrong
}

fn today() -> u64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    since.as_secs() / (24 * 60 * 60)
}

async fn run(controller: &'static Controller, cluster: &Cluster, namespace: String) -> Run {
    create_namespace(&cluster.client, &namespace).await;
    Run::new(controller, cluster, namespace, Timings::real()).await
}

/// The number of times that each request, list, watch and event occurs.
fn occurrences(reference: &Reference) -> BTreeMap<&str, usize> {
    let mut occurrences = BTreeMap::new();
    for place in &reference.places {
        *occurrences
            .entry(place.split('#').next().unwrap_or_default())
            .or_default() += 1;
    }
    occurrences
}

/// The differences between the simulated runs of some seeds and the real one.
fn differences(scenario: &Scenario, simulated: &[&Reference], real: &Reference) -> Vec<String> {
    let mut wrong = Vec::new();
    for (when, expected, found) in [
        (
            "before the first step",
            &simulated[0].ends[0],
            &real.ends[0],
        ),
        ("at the end", &simulated[0].ends[1], &real.ends[1]),
    ] {
        if expected != found {
            let difference = difference(expected, found);
            wrong.push(format!(
                "{} without a fault, {when}, simulated is real:\n    {difference}",
                scenario.name
            ));
        }
    }
    let counts: Vec<_> = simulated
        .iter()
        .map(|reference| occurrences(reference))
        .collect();
    let real = occurrences(real);
    let whats: BTreeSet<&str> = counts
        .iter()
        .flat_map(BTreeMap::keys)
        .chain(real.keys())
        .copied()
        .collect();
    for what in whats {
        let of = |counts: &BTreeMap<&str, usize>| counts.get(what).copied().unwrap_or_default();
        let (least, most) = (
            counts.iter().map(of).min().unwrap_or_default(),
            counts.iter().map(of).max().unwrap_or_default(),
        );
        // The number of changes per event depends on the load of the machine. Only the occurrence is compared.
        let found = of(&real);
        if found > 2 * most || found == 0 && least > 0 {
            let name = scenario.name;
            wrong.push(format!(
                "{name} without a fault: {what} occurs {least} to {most} times simulated, {found} times on the real server"
            ));
        }
    }
    wrong
}
