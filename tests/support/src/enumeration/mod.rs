//! Fault enumeration: the scenarios of a controller, each with one fault at one place, for each place and each fault
//! that is possible there. Each run must end with the same objects as the run without a fault, and the controller's
//! judge must accept its history.
//!
//! A *place* is a request, a list, a watch or an event between controller and API server, for example `POST pods/vm#0` or
//! `EVENT vms#2`, or a call to another service, for example `CALL TerminateInstances#0`: [`layer`](crate::layer). The faults
//! are in [`fault`](crate::fault).
//!
//! [`simulated`] runs the cases on an API server in memory, on virtual time, and repeats a run by its seed. [`real`] runs
//! them on a real API server.
//!
//! # How a new controller gets the enumeration
//!
//! 1. Write a `const` [`Controller`]: its start, the kinds that it watches, the condition for a settled object, and the
//!    invariants of a history. [`vms::CONTROLLER`](crate::vms::CONTROLLER) is the example.
//! 2. Write its list of [`Scenario`]s: the steps before the faults, the steps with the faults, and the reason of `Ready` at the
//!    end. A step that is special to the controller is a function ([`Step::Act`]).
//! 3. Name the kinds that the controller watches or creates in [`Controller::kinds`], beside Kubernetes' own. Extend
//!    [`components`](crate::components) with the reaction of other components. [`install`](crate::install) creates the definitions on a
//!    real API server. New kinds of calls are listed in `compared.txt`, with a comparison of both servers.
//! 4. Call [`simulated::check`] in a test without a cluster, and [`real::check`] in one with an API server.

pub mod real;
pub mod run;
pub mod simulated;
mod verdict;

pub use verdict::{Reference, Verdict};

use crate::components::{Cluster, Entry, Kind};
use crate::fault::Fault;
use crate::final_state::Content;
use crate::layer::Layer;
use crate::timings::{self, Timings};
use futures::future::BoxFuture;
use futures::{FutureExt, Stream};
use kube::runtime::reflector::ObjectRef;
use run::Run;
use serde_json::{Value, json};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use tokio::task::JoinHandle;
use vm_operator::k8s;
use vm_operator::k8s::controller::Reconciler;
use vm_operator::k8s::tasks::Tasks;

/// A controller under test.
pub struct Controller {
    /// The kinds that the run needs besides Kubernetes' own, the controller's own kind first.
    pub kinds: &'static [Kind],
    /// The name of the object of that kind in each scenario.
    pub name: &'static str,
    /// Plural names of the kinds that it watches, its own one first.
    pub follows: &'static [&'static str],
    /// Its definitions as YAML.
    pub definitions: fn() -> Vec<String>,
    /// Creates the cluster-scoped objects that its scenarios need.
    pub prepare: for<'a> fn(&'a kube::Client) -> BoxFuture<'a, ()>,
    /// Starts the controller in a namespace.
    pub start: fn(&Layer, &str, &Timings) -> Started,
    /// Whether it has reported on the newest generation of its object in that namespace, and the object is either
    /// healthy or stopped.
    pub is_settled: fn(&Cluster, &str) -> bool,
    /// Whether it reports the fault at that place in its object's status, instead of retrying.
    pub is_reported: fn(&str, Fault) -> bool,
    /// Whether the status contains the given message.
    pub reports: fn(&Cluster, &str, &str) -> bool,
    /// The violations of the history of a run.
    pub judge: fn(&History) -> Vec<String>,
}

impl Controller {
    /// The name of its own kind.
    ///
    /// # Panics
    /// It has no kind.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kinds[0].kind
    }
}

/// Creates a namespace.
///
/// # Panics
/// The API server rejects it.
pub async fn create_namespace(client: &kube::Client, name: &str) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let request =
        http::Request::post("/api/v1/namespaces").header("Content-Type", "application/json");
    let request = request.body(namespace.to_string().into_bytes()).unwrap();
    client.request::<Value>(request).await.unwrap();
}

/// The cluster as a controller under test sees it.
#[must_use]
pub fn cluster(
    layer: &Layer,
    namespace: &str,
    timings: &Timings,
    manager: k8s::cluster::Manager,
) -> k8s::cluster::Cluster {
    let client = layer.client(namespace, timings.deadlines());
    let mut cluster = k8s::cluster::Cluster::new(client, manager);
    (cluster.now, cluster.instant) = (timings::now, timings::instant);
    cluster.jitter = timings::chance;
    if let Some(shortened) = timings.shortened {
        cluster.first_backoff = shortened.backoff;
        cluster.jitter = || 0.0;
        cluster.deadline = shortened.deadline;
        cluster.watch_backoff_max = shortened.watch_backoff_max;
    }
    cluster
}

/// A started controller.
pub struct Started {
    /// The task of the controller, which stops when it is aborted.
    pub task: JoinHandle<()>,
    /// The work that the controller still has to do, as far as it is observable.
    pub busy_reason: Box<dyn Fn() -> Option<String> + Send + Sync>,
}

/// Runs the loop of a controller on its changes. `tasks` are its watches.
///
/// # Panics
/// A watch ends.
pub async fn operate<R: Reconciler>(
    controller: Arc<R>,
    changes: impl Stream<Item = ObjectRef<R::Object>> + Send + 'static,
    mut tasks: Tasks,
) {
    let never = std::future::pending().boxed().shared();
    tokio::select! {
        () = k8s::controller::run(controller, changes, never) => {}
        ended = tasks.ended() => panic!("{ended}"),
    }
}

/// Starts [`operate`].
#[must_use]
pub fn started<R: Reconciler>(
    controller: Arc<R>,
    changes: impl Stream<Item = ObjectRef<R::Object>> + Send + 'static,
    tasks: Tasks,
) -> Started {
    let task = tokio::spawn(operate(controller.clone(), changes, tasks));
    let busy_reason = move || {
        let is_failing = controller.states().failing() > 0;
        is_failing.then(|| "the last reconcile has failed".to_owned())
    };
    Started {
        task,
        busy_reason: Box::new(busy_reason),
    }
}

/// The course of a run, by which [`Controller::judge`] finds violations of the invariants.
pub struct History {
    /// Each state of each object, in order.
    pub history: Vec<Entry>,
    /// The number of pods that the scenario itself has deleted.
    pub deleted_by_others: usize,
    /// Whether the run ended as expected.
    pub ended_as_expected: bool,
}

/// A step of a scenario.
#[derive(Clone, Copy)]
pub enum Step {
    /// Starts the controller. A running one is killed before.
    Start,
    /// Creates the controller's object with the scenario's spec.
    Create,
    /// Changes the controller's object by that merge patch.
    Patch(&'static str),
    /// Deletes the controller's object.
    Delete,
    /// Any other action.
    Act(for<'a> fn(&'a mut Run, &'a Scenario) -> BoxFuture<'a, ()>),
}

/// A sequence of steps.
pub struct Scenario {
    /// The name in the output and in `FAULTS_ONLY` and `FAULTS_CASE`.
    pub name: &'static str,
    /// The spec of the controller's object, as JSON.
    pub spec: &'static str,
    /// The steps before the faults.
    pub before: &'static [Step],
    /// The steps with the faults.
    pub steps: &'static [Step],
    /// The reason of `Ready` at the end. Empty if the object is deleted.
    pub ready: &'static str,
    /// An object at the end and a part of its JSON. It proves that the scenario matches its name.
    pub says: Option<(&'static str, &'static str)>,
}

impl Scenario {
    /// Whether a run without a fault has ended as the scenario requires.
    fn verify(&self, controller: &Controller, end: &Content) -> Result<(), String> {
        let ready = crate::final_state::ready(end.get(&format!(
            "{}/{}",
            controller.kind(),
            controller.name
        )));
        if ready != self.ready {
            return Err(format!(
                "Ready has the reason {ready:?} instead of {:?}: {end:#?}",
                self.ready
            ));
        }
        if let Some((object, part)) = self.says {
            let found = end.get(object).map(ToString::to_string).unwrap_or_default();
            if !found.contains(part) {
                return Err(format!("{object} does not contain {part}: {found}"));
            }
        }
        Ok(())
    }
}

/// A scenario with faults at places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The scenario's name.
    pub scenario: String,
    /// The faults, each with its place.
    pub faults: Vec<(String, Fault)>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.scenario)?;
        for (n, (place, fault)) in self.faults.iter().enumerate() {
            let separator = if n == 0 { "" } else { " + " };
            write!(f, "{separator}{fault:?} at {place}")?;
        }
        Ok(())
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (scenario, faults) = text
            .split_once(": ")
            .ok_or("a case is SCENARIO: FAULT at PLACE")?;
        let fault = |text: &str| {
            let (fault, place) = text
                .split_once(" at ")
                .ok_or_else(|| format!("{text}: no place"))?;
            let known = Fault::at(place)
                .iter()
                .find(|known| format!("{known:?}") == fault);
            Ok((
                place.to_owned(),
                *known.ok_or_else(|| format!("{fault}: no fault at {place}"))?,
            ))
        };
        let faults = faults
            .split(" + ")
            .filter(|text| !text.is_empty())
            .map(fault)
            .collect::<Result<_, String>>()?;
        Ok(Self {
            scenario: scenario.to_owned(),
            faults,
        })
    }
}

/// A sample has one case of this many, unless `FAULTS_SAMPLE_OF` says otherwise.
const SAMPLE_OF: u64 = 3;

fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    })
}

impl Case {
    /// A number that depends only on the case.
    #[must_use]
    pub fn hash(&self) -> u64 {
        fnv1a(&self.to_string())
    }

    /// Whether the sample contains the case. The scenario, the place and the sample's name select one of each `of` faults that are
    /// possible at the place.
    fn is_in_sample(&self, sample: &str, of: u64) -> bool {
        self.faults.iter().any(|(place, fault)| {
            let first = fnv1a(&format!("{sample} {} {place}", self.scenario)) % of;
            let mut faults = (0..).zip(Fault::at(place));
            faults.any(|(n, possible)| possible == fault && n % of == first)
        })
    }

    /// All cases of a scenario, each with one fault at one place.
    fn all<'a>(
        scenario: &'a Scenario,
        reference: &'a Reference,
    ) -> impl Iterator<Item = Self> + 'a {
        let faults = |place: &'a String| {
            Fault::at(place)
                .iter()
                .map(move |fault| (place.clone(), *fault))
        };
        let faults = reference.places.iter().flat_map(faults);
        faults.map(|fault| Self {
            scenario: scenario.name.to_owned(),
            faults: vec![fault],
        })
    }

    /// Three faults at places that the number selects, without faults that are reported instead of repaired.
    fn at_random(
        controller: &Controller,
        scenarios: &[(&Scenario, Reference)],
        seed: u64,
        number: u64,
    ) -> Self {
        let mut random =
            fastrand::Rng::with_seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number);
        let (scenario, reference) = &scenarios[random.usize(..scenarios.len())];
        let mut faults = Vec::new();
        while faults.len() < 3 {
            let place = &reference.places[random.usize(..reference.places.len())];
            let fault = Fault::at(place)[random.usize(..Fault::at(place).len())];
            if !(controller.is_reported)(place, fault) {
                faults.push((place.clone(), fault));
            }
        }
        Self {
            scenario: scenario.name.to_owned(),
            faults,
        }
    }
}

/// The value of a numeric environment variable.
///
/// # Panics
/// The variable is not a number.
#[must_use]
pub fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is no number"))
    })
}

/// The scenarios that `FAULTS_ONLY` selects by parts of their names, separated by commas. The default is all.
///
/// # Panics
/// No scenario matches.
#[must_use]
pub fn selected(scenarios: &'static [Scenario]) -> Vec<&'static Scenario> {
    let only = std::env::var("FAULTS_ONLY").unwrap_or_default();
    let is_selected =
        |scenario: &&Scenario| only.split(',').any(|part| scenario.name.contains(part));
    let selected: Vec<_> = scenarios.iter().filter(is_selected).collect();
    assert!(!selected.is_empty(), "FAULTS_ONLY selects no scenario");
    selected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sample_has_its_share_of_the_cases_of_each_place_and_samples_differ() {
        for of in [3, 12] {
            check_samples(of);
        }
    }

    fn check_samples(of: usize) {
        for place in [
            "EVENT vms#0",
            "LIST vms#0",
            "WATCH vms#0",
            "POST pods/vm#0",
            "CALL Act#0",
        ] {
            let case = |fault: &Fault| Case {
                scenario: "create".to_owned(),
                faults: vec![(place.to_owned(), *fault)],
            };
            let cases: Vec<_> = Fault::at(place).iter().map(case).collect();
            let mut never = cases.clone();
            for sample in (0..100).map(|sample| sample.to_string()) {
                let is_selected = |case: &Case| case.is_in_sample(&sample, of as u64);
                let share = cases.len() / of..=cases.len().div_ceil(of);
                let selected = cases.iter().filter(|case| is_selected(case));
                assert!(share.contains(&selected.count()), "{place}");
                never.retain(|case| !is_selected(case));
            }
            assert!(never.is_empty(), "{never:?}");
        }
    }

    #[test]
    fn printed_case_can_be_parsed() {
        for faults in [
            vec![("EVENT pods#1".to_owned(), Fault::Twice)],
            vec![
                ("POST pods/vm#0".to_owned(), Fault::Refused(403)),
                ("LIST vms#0".to_owned(), Fault::Stale),
            ],
            vec![(
                "PATCH vms/vm/status#3".to_owned(),
                Fault::KilledBehind { all: true },
            )],
        ] {
            let case = Case {
                scenario: "crash".to_owned(),
                faults,
            };
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        for wrong in ["crash", "crash: Twice", "crash: Twice at POST pods/vm#0"] {
            assert!(wrong.parse::<Case>().is_err(), "{wrong}");
        }
    }
}
