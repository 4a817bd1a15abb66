//! Runs on an API server in memory, on virtual time, with production timings and seeded latencies. A seed and a case repeat a
//! run exactly.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `FAULTS_ONLY` | | parts of scenario names, separated by commas |
//! | `FAULTS_SEED` | 1 | the first seed of the latencies |
//! | `FAULTS_SEEDS` | 1; 20 with `FAULTS_ALL=1` | number of seeds |
//! | `FAULTS_SAMPLE` | | any text; selects some of the cases of each place |
//! | `FAULTS_SAMPLE_OF` | 3 | a sample has one case of this many |
//! | `FAULTS_CASE` | | only this case, with each request and event and its virtual time |
//! | `FAULTS_MINUTES` | | runs for this time with three faults at random places each, instead of all cases |
//! | `FAULTS_THREADS` | the number of cores | concurrent runs |

use super::run::Run;
use super::{Case, Controller, Reference, SAMPLE_OF, Scenario, Verdict, number, selected};
use crate::components::Cluster;
use crate::fault::Fault;
use crate::memory::{self, Server};
use crate::timings::{self, Timings};
use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The namespace of each run. No other text contains it.
pub const NAMESPACE: &str = "simulated-namespace";

/// Debug builds need much stack.
const STACK_SIZE: usize = 16 << 20;

/// The calls to the in-memory API server.
#[derive(Debug, Default)]
pub struct Calls {
    /// All of them, one line for each kind of call.
    pub seen: BTreeSet<String>,
    /// The calls that it does not implement.
    pub unknown: BTreeSet<String>,
}

/// Runs the controller's scenarios with all cases, and prints a table.
///
/// # Panics
/// A run fails.
pub fn check(controller: &'static Controller, scenarios: &'static [Scenario]) {
    let scenarios = selected(scenarios);
    let is_exhaustive = std::env::var("FAULTS_ALL").is_ok_and(|value| value == "1");
    let first = number("FAULTS_SEED").unwrap_or(1);
    let seeds = number("FAULTS_SEEDS").unwrap_or(if is_exhaustive { 20 } else { 1 });
    let mut simulation = Simulation::new(controller);
    if let Ok(case) = std::env::var("FAULTS_CASE") {
        let case: Case = case
            .parse()
            .unwrap_or_else(|why| panic!("FAULTS_CASE: {why}"));
        return simulation.one(&scenarios, first, &case);
    }
    let wrong: Vec<String> = match number("FAULTS_MINUTES") {
        Some(minutes) => simulation.at_random(&scenarios, first, Duration::from_secs(60 * minutes)),
        None => (first..first + seeds)
            .flat_map(|seed| simulation.all(&scenarios, seed))
            .collect(),
    };
    let Calls { seen, unknown } = simulation.calls();
    assert!(
        unknown.is_empty(),
        "calls that the in-memory API server does not know: {unknown:#?}"
    );
    let compared: BTreeSet<&str> = memory::COMPARED.lines().collect();
    // The kinds of the generic tests make no calls that a product would send to a real server.
    let is_made_up = controller.kinds[0].is_made_up();
    let is_compared = |call: &&String| is_made_up || compared.contains(&***call);
    let others: Vec<_> = seen.iter().filter(|call| !is_compared(call)).collect();
    assert!(
        others.is_empty(),
        "tests/api/apiserver/conformance.rs has no call of these kinds, so nothing shows that the in-memory API server answers \
         them as a real one does: {others:#?}. Add calls there, and the kinds to tests/support/src/memory/compared.txt"
    );
    assert!(
        wrong.is_empty(),
        "{} runs are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Simulated runs of a controller.
pub struct Simulation {
    controller: &'static Controller,
    timings: Timings,
    /// A server with the definitions.
    definitions: Server,
    calls: Mutex<Calls>,
}

impl Simulation {
    /// A simulation without runs yet.
    #[must_use]
    pub fn new(controller: &'static Controller) -> Self {
        let definitions = Server::new(0);
        for definition in (controller.definitions)() {
            definitions.install_crd(&definition);
        }
        Self {
            controller,
            timings: Timings::simulated(),
            definitions,
            calls: Mutex::default(),
        }
    }

    /// The calls to the API server so far.
    ///
    /// # Panics
    /// A run has panicked while it held the lock.
    pub fn calls(&self) -> Calls {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    /// One run on its own runtime and its own server.
    fn run<T>(&self, seed: u64, work: impl AsyncFnOnce(Run, &Server) -> T) -> T {
        // kube's delays between watches are partly random.
        fastrand::seed(seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let server = Server::new(seed);
            timings::follow_virtual_clock(server.now());
            server.install_crds_of(&self.definitions);
            server.create_namespace(NAMESPACE);
            let client = server.client(NAMESPACE);
            (self.controller.prepare)(&client).await;
            let kinds = self.controller.kinds;
            let cluster = Cluster::start_single(client, NAMESPACE, kinds).await;
            let run = Run::new(
                self.controller,
                &cluster,
                NAMESPACE.to_owned(),
                self.timings,
            )
            .await;
            let result = work(run, &server).await;
            let mut calls = self.calls.lock().unwrap();
            calls.seen.extend(server.calls_seen().into_keys());
            calls.unknown.extend(server.unknown_calls());
            result
        })
    }

    /// A run without a fault.
    ///
    /// # Errors
    /// The run does not end as the scenario requires.
    pub fn reference(&self, seed: u64, scenario: &Scenario) -> Result<Reference, String> {
        let run = || self.run(seed, async |run, _| run.reference(scenario).await);
        catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|panic| Err(format!("{}: {}", scenario.name, text(&*panic))))
    }

    /// Runs the scenario with these faults. A panic is a broken run.
    pub fn with_faults(
        &self,
        seed: u64,
        scenario: &Scenario,
        reference: &Reference,
        faults: &[(String, Fault)],
    ) -> Verdict {
        let run = || {
            self.run(seed, async |run, _| {
                run.with_faults(scenario, reference, faults.to_vec()).await
            })
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Verdict::Broken(text(&*panic)))
    }

    /// The complete history of a run with faults, see [`Server::history`].
    pub fn history(
        &self,
        seed: u64,
        scenario: &Scenario,
        reference: &Reference,
        case: &Case,
    ) -> Vec<String> {
        self.run(seed, async |run, server| {
            run.with_faults(scenario, reference, case.faults.clone())
                .await;
            server.history()
        })
    }

    /// The runs without a fault of these scenarios.
    ///
    /// # Panics
    /// A run does not end as the scenario requires.
    pub fn references(
        &self,
        scenarios: &[&'static Scenario],
        seed: u64,
    ) -> Vec<(&'static Scenario, Reference)> {
        let references = in_parallel(scenarios, |scenario| self.reference(seed, scenario));
        let reference =
            |reference: Result<Reference, String>| reference.unwrap_or_else(|why| panic!("{why}"));
        scenarios
            .iter()
            .copied()
            .zip(references.into_iter().map(reference))
            .collect()
    }

    /// All cases of these scenarios.
    ///
    /// # Panics
    /// A run without a fault does not end as its scenario requires.
    pub fn cases(
        &self,
        scenarios: &[&'static Scenario],
        seed: u64,
    ) -> Vec<(&'static Scenario, Reference, Vec<Case>)> {
        let references = self.references(scenarios, seed).into_iter();
        let cases = |(scenario, reference)| {
            let cases = Case::all(scenario, &reference).collect();
            (scenario, reference, cases)
        };
        references.map(cases).collect()
    }

    fn all(&self, scenarios: &[&'static Scenario], seed: u64) -> Vec<String> {
        let began = Instant::now();
        let references = self.references(scenarios, seed);
        let cases = references.iter().flat_map(|(scenario, reference)| {
            Case::all(scenario, reference).map(move |case| (*scenario, reference, case))
        });
        let mut cases: Vec<_> = cases.collect();
        let all = cases.len();
        if let Ok(sample) = std::env::var("FAULTS_SAMPLE") {
            let of = number("FAULTS_SAMPLE_OF").unwrap_or(SAMPLE_OF);
            cases.retain(|(_, _, case)| case.is_in_sample(&sample, of));
            println!(
                "{} of {all} cases, FAULTS_SAMPLE={sample} FAULTS_SAMPLE_OF={of} repeats them",
                cases.len()
            );
        }
        let verdicts = in_parallel(&cases, |(scenario, reference, case)| {
            let began = Instant::now();
            let verdict = self.with_faults(seed, scenario, reference, &case.faults);
            (verdict, began.elapsed())
        });
        let mut wrong = Vec::new();
        let mut kinds = BTreeSet::new();
        println!(
            "{:<20} {:>7} {:>7} {:>7} {:>7}",
            "scenario", "places", "runs", "same", "ms/run"
        );
        let (mut places, mut same) = (0, 0);
        for (scenario, reference) in &references {
            let of_scenario = cases
                .iter()
                .zip(&verdicts)
                .filter(|((of, ..), _)| of.name == scenario.name);
            let (mut runs, mut of_same, mut took) = (0, 0, Duration::ZERO);
            for ((_, _, case), (verdict, duration)) in of_scenario {
                runs += 1;
                took += *duration;
                kinds.extend(case.faults.iter().map(|(_, fault)| *fault));
                match verdict {
                    Verdict::Same => of_same += 1,
                    Verdict::NotReached => {
                        let why = "the place was not passed, though the run is the same until then";
                        wrong.push(failure(seed, case, why));
                    }
                    Verdict::Differs(why) | Verdict::Broken(why) => {
                        wrong.push(failure(seed, case, why))
                    }
                }
            }
            let per_run = took.as_secs_f64() * 1000.0 / f64::from(runs.max(1));
            println!(
                "{:<20} {:>7} {runs:>7} {of_same:>7} {per_run:>7.1}",
                scenario.name,
                reference.places.len()
            );
            places += reference.places.len();
            same += of_same;
        }
        let (runs, took) = (cases.len(), began.elapsed().as_secs_f64());
        println!(
            "seed {seed}: {} scenarios × {places} places in them × the faults possible there, of {}: {runs} runs, {same} with the \
             same end, in {took:.1} s on {} threads, {:.1} ms per run",
            references.len(),
            kinds.len(),
            threads(),
            took * 1000.0 / runs as f64
        );
        wrong
    }

    /// Runs with several faults at places that the seed selects.
    fn at_random(&self, scenarios: &[&'static Scenario], seed: u64, time: Duration) -> Vec<String> {
        let references = self.references(scenarios, seed);
        let (began, next) = (Instant::now(), AtomicUsize::new(0));
        let workers: Vec<usize> = (0..threads()).collect();
        let verdicts = in_parallel(&workers, |_| {
            let mut verdicts = Vec::new();
            while began.elapsed() < time {
                let number = next.fetch_add(1, Ordering::Relaxed) as u64;
                let case = Case::at_random(self.controller, &references, seed, number);
                let (scenario, reference) = references
                    .iter()
                    .find(|(of, _)| of.name == case.scenario)
                    .unwrap();
                let verdict = self.with_faults(seed, scenario, reference, &case.faults);
                verdicts.push((case, verdict));
            }
            verdicts
        });
        let verdicts: Vec<_> = verdicts.into_iter().flatten().collect();
        let whole = verdicts
            .iter()
            .filter(|(_, verdict)| *verdict == Verdict::Same)
            .count();
        println!(
            "{} runs with up to 3 faults each, seed {seed}; in {whole} all three happened",
            verdicts.len()
        );
        let wrong = verdicts
            .iter()
            .filter_map(|(case, verdict)| Some(failure(seed, case, verdict.wrong()?)));
        let never = (whole == 0).then(|| "in no run all faults happened".to_owned());
        wrong.chain(never).collect()
    }

    /// One case, with a trace of all requests and events.
    fn one(&mut self, scenarios: &[&'static Scenario], seed: u64, case: &Case) {
        let scenario = scenarios
            .iter()
            .find(|scenario| scenario.name == case.scenario);
        let scenario = scenario.unwrap_or_else(|| panic!("there is no scenario {}", case.scenario));
        let reference = self
            .reference(seed, scenario)
            .unwrap_or_else(|why| panic!("{why}"));
        self.timings.traces = true;
        let verdict = self.with_faults(seed, scenario, &reference, &case.faults);
        println!("seed {seed}: {case}: {verdict:?}");
        assert_eq!(verdict, Verdict::Same);
    }
}

fn failure(seed: u64, case: &Case, why: &str) -> String {
    format!(
        "{case}: {why}\n    repeat: FAULTS_SEED={seed} FAULTS_CASE='{case}' cargo test --test check every_fault -- --nocapture"
    )
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    format!(
        "panic: {}",
        text.or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default()
    )
}

fn threads() -> usize {
    let cores = || std::thread::available_parallelism().map_or(2, Into::into);
    number("FAULTS_THREADS")
        .and_then(|threads| threads.try_into().ok())
        .unwrap_or_else(cores)
}

/// The results in the order of the items.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads().min(items.len()) {
            let work = || {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(n) else { return };
                    let result = work(item);
                    results.lock().unwrap().push((n, result));
                }
            };
            std::thread::Builder::new()
                .stack_size(STACK_SIZE)
                .spawn_scoped(scope, work)
                .unwrap();
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_by_key(|(n, _)| *n);
    results.into_iter().map(|(_, result)| result).collect()
}
