//! What happens to a VM, step after step, and one run of it with at most one fault.

use crate::cluster::Cluster;
use crate::fault::Fault;
use crate::judge::{self, Content, content};
use crate::run::Run;
use std::time::Duration;

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An operator starts; one that runs is ended before.
    Operator,
    /// The VM is made.
    Create,
    /// The VM's machine is changed by that merge patch.
    Machine(&'static str),
    /// The VM's spec is changed by that merge patch.
    Spec(&'static str),
    /// QEMU crashes.
    Crash,
    /// The guest powers itself off.
    PowerOff,
    /// Somebody deletes the pod.
    PodDeleted,
    /// Somebody changes the display password.
    Password,
    /// A VM is there with all that the reference makes for it, and its pod runs.
    Adopt,
    /// All that an earlier VM of the name had is there, which the garbage collector has missed.
    Leftovers,
    /// The VM is deleted.
    Delete,
}

pub struct Scenario {
    pub name: &'static str,
    /// The spec of the VM.
    pub spec: &'static str,
    /// What comes before.
    pub before: &'static [Step],
    /// In which the faults happen.
    pub steps: &'static [Step],
    /// Reason of `Ready` at the end; empty: there is no VM.
    pub ready: &'static str,
    /// An object at the end, and words in its JSON: that it is about what its name says.
    pub says: Option<(&'static str, &'static str)>,
}

/// How a run without a fault went.
pub struct Reference {
    /// After what comes before, and at the end.
    ends: [Content; 2],
    /// Every place where something can go wrong.
    pub places: Vec<String>,
}

/// How a run with a fault went.
#[derive(Debug)]
pub enum Verdict {
    Same,
    /// The place was not passed this time.
    NotReached,
    /// It ends differently; in these words.
    Differs(String),
    /// What must never happen has happened, however it ends.
    Broken(String),
}

impl Verdict {
    fn new(end: Result<(), String>, broken: &[String], is_reached: bool) -> Self {
        match end {
            Ok(()) if !broken.is_empty() => Self::Broken(broken.join("; ")),
            Ok(()) if is_reached => Self::Same,
            Ok(()) => Self::NotReached,
            Err(difference) if broken.is_empty() => Self::Differs(format!("it ends differently:\n    {difference}")),
            Err(difference) => {
                Self::Broken(format!("{}; and it ends differently:\n    {difference}", broken.join("; ")))
            }
        }
    }

    /// What went wrong, if anything did.
    pub fn wrong(&self) -> Option<&str> {
        match self {
            Self::Same | Self::NotReached => None,
            Self::Differs(why) | Self::Broken(why) => Some(why),
        }
    }

    /// Of a run that was impatient: another end may be the machine's load, and the run is repeated. What must never happen
    /// must not happen under load either.
    async fn or_with_patience(self, again: impl AsyncFnOnce() -> Self) -> Self {
        match self {
            Self::Differs(_) => again().await,
            verdict => verdict,
        }
    }
}

/// How long a reconcile may take that meets nothing that hangs. The machine is loaded, and a run without a fault must pass
/// the same places each time.
const PATIENT: Duration = Duration::from_secs(2);
/// The same where something hangs: that is what it costs. On a loaded machine a reconcile that is only slow fails too, again
/// and again: a run that ends differently is repeated with patience, as what hangs is its fault and the machine's load is not.
const IMPATIENT: Duration = Duration::from_millis(150);
impl Scenario {
    /// A run without a fault.
    pub async fn reference(&self, cluster: &Cluster) -> Reference {
        let mut run = Run::new(cluster, format!("{}-reference", self.name), PATIENT).await;
        for step in self.before {
            run.step(*step, self.spec).await;
            run.rest().await;
        }
        let before = content(cluster, &run.namespace);
        run.arm(Vec::new()).await;
        for step in self.steps {
            run.step(*step, self.spec).await;
        }
        let end = run.rest().await;
        let mut places = run.layer.places();
        run.layer.disarm();
        places.sort();
        places.dedup();
        let ready = judge::ready(end.get("VirtualMachine/vm"));
        assert_eq!(ready, self.ready, "{}: {end:#?}", self.name);
        if let Some((object, words)) = self.says {
            let found = end.get(object).map(ToString::to_string).unwrap_or_default();
            assert!(found.contains(words), "{}: {object} does not say {words}: {found}", self.name);
        }
        let broken = run.end(true).await;
        assert!(broken.is_empty(), "{}: {broken:?}", self.name);
        Reference { ends: [before, end], places }
    }

    /// A run with faults.
    pub async fn with_faults(
        &self,
        cluster: &Cluster,
        run: &str,
        reference: &Reference,
        faults: Vec<(String, Fault)>,
    ) -> Verdict {
        let hangs = faults.iter().any(|(_, fault)| matches!(fault, Fault::Hangs { .. }));
        if !hangs {
            return self.once(cluster, run, reference, faults, PATIENT).await;
        }
        let first = self.once(cluster, run, reference, faults.clone(), IMPATIENT).await;
        first
            .or_with_patience(async || self.once(cluster, &format!("{run}-patient"), reference, faults, PATIENT).await)
            .await
    }

    async fn once(
        &self,
        cluster: &Cluster,
        run: &str,
        reference: &Reference,
        faults: Vec<(String, Fault)>,
        deadline: Duration,
    ) -> Verdict {
        let mut run = Run::new(cluster, format!("{}-{run}", self.name), deadline).await;
        for step in self.before {
            run.step(*step, self.spec).await;
            if *step != Step::Operator {
                let is_last = self.before.last() == Some(step);
                if let Err(difference) = run.wait_for_rest_of(&reference.ends[0], is_last).await {
                    let broken = run.end(false).await;
                    return Verdict::new(Err(format!("before the fault: {difference}")), &broken, false);
                }
            }
        }
        let told_instead = faults.iter().any(|(place, fault)| is_final(place, *fault));
        run.arm(faults).await;
        for step in self.steps {
            run.step(*step, self.spec).await;
        }
        let end = match told_instead {
            true => run.become_refused().await,
            false => run.become_like(&reference.ends[1]).await,
        };
        let is_reached = !run.layer.waits_for_fault();
        let broken = run.end(end.is_ok()).await;
        Verdict::new(end, &broken, is_reached)
    }
}

/// What the API server refuses to change on a pod or a claim is told in a condition, and asked for again when the VM
/// changes: where it is refused for good, as it mostly is, a settled VM would cost requests for ever.
pub fn is_final(place: &str, fault: Fault) -> bool {
    let is_asked_once = place.contains("pods/vm/resize") || place.starts_with("PATCH persistentvolumeclaims/");
    // A claim that is not found is a matter of the next look at it.
    let codes: &[u16] = if place.contains("/resize") { &[403, 404, 422] } else { &[403, 422] };
    is_asked_once && matches!(fault, Fault::Refused(code) if codes.contains(&code))
}

mod tests {
    use super::Verdict;

    fn differs() -> Result<(), String> {
        Err("a is b".to_owned())
    }

    #[test]
    fn what_must_never_happen_counts_whatever_the_end_is() {
        let broken = ["2 pods are alive".to_owned()];
        let told = |end| Verdict::new(end, &broken, true).wrong().map(ToOwned::to_owned);
        assert_eq!(told(Ok(())).unwrap(), "2 pods are alive");
        assert_eq!(told(differs()).unwrap(), "2 pods are alive; and it ends differently:\n    a is b");
    }

    #[tokio::test]
    async fn only_a_different_end_is_tried_again_with_patience() {
        let again = async |first: Verdict| first.or_with_patience(async || Verdict::Same).await;
        assert!(matches!(again(Verdict::new(differs(), &[], true)).await, Verdict::Same));
        let broken = ["2 pods are alive".to_owned()];
        for end in [Ok(()), differs()] {
            assert!(matches!(again(Verdict::new(end, &broken, true)).await, Verdict::Broken(_)));
        }
        assert!(matches!(again(Verdict::new(Ok(()), &[], false)).await, Verdict::NotReached));
    }
}
