//! (pure) Why no node takes a pod, in the scheduler's words. Those of Kubernetes 1.34, and of earlier ones where they
//! were others.

use super::Problem;
use super::starting::{Finding, GRACE, GRACE_STATIC, lasting};
use crate::api::conditions::ReadyReason as Reason;
use crate::api::names;
use crate::operator::views::{ClaimView, PodConditionView};
use crate::operator::vm::observe::Observed;
use k8s_openapi::jiff::Timestamp;

/// A node on which the pod's volumes are not.
const ELSEWHERE: [&str; 2] = ["PersistentVolume's node affinity", "volume node affinity conflict"];
/// A node that the pod would not get whatever room there were. The scheduler asks for these before it asks for room.
const NEVER: [&str; 6] = [
    "untolerated taint",
    "had taint",
    "were unschedulable",
    "didn't match Pod's node affinity/selector",
    "didn't match the requested node name",
    "didn't satisfy plugin",
];
/// A claim has no volume, or is not there.
const NO_VOLUME: [&str; 4] =
    ["unbound immediate", "available persistent volumes to bind", "bound to non-existent", "not found"];

/// What the scheduler says of the nodes:
/// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint {a: b}. preemption: …`.
struct Refusals<'a> {
    nodes: u32,
    /// How many nodes, and why. One that lacks several resources is counted for each.
    why: Vec<(u32, &'a str)>,
}

impl<'a> Refusals<'a> {
    fn of(words: &'a str) -> Option<Self> {
        let (nodes, why) = words.strip_prefix("0/")?.split_once(" nodes are available: ")?;
        let why = why.split(". ").next().unwrap_or(why).trim_end_matches('.');
        let counted = |one: &'a str| {
            let (count, why) = one.trim().split_once(' ')?;
            Some((count.parse().ok()?, why))
        };
        let why: Vec<(u32, &str)> = why.split(", ").filter_map(counted).collect();
        Some(Self { nodes: nodes.parse().ok()?, why }).filter(|it| !it.why.is_empty())
    }

    fn count(&self, is: impl Fn(&str) -> bool) -> u32 {
        self.why.iter().filter(|(_, why)| is(why)).map(|(count, _)| *count).sum()
    }

    /// Whether it is this for which each node is refused that the pod may get at all.
    fn is_all(&self, is: impl Fn(&str) -> bool) -> bool {
        self.count(&is) > 0 && self.count(is) + self.count(|why| has(why, &NEVER)) >= self.nodes
    }
}

fn has(words: &str, any: &[&str]) -> bool {
    any.iter().any(|one| words.contains(one))
}

/// Whether no node takes the pod for this. Where the words count no nodes, they say nothing to the contrary.
fn is_why(words: &str, is: impl Fn(&str) -> bool) -> bool {
    is(words) && Refusals::of(words).is_none_or(|refusals| refusals.is_all(is))
}

/// No node takes the pod. What does not go away by itself is told at once; a claim that gets its volume is waited for.
pub(super) fn unscheduled(observed: &Observed, pod: &str, condition: &PodConditionView) -> Finding {
    let words = condition.message.as_deref().unwrap_or("no details given");
    let problem = |reason, what: &str| Problem::new(reason, &format!("{what} ({words})"), pod);
    if words.contains("binding volumes") || is_why(words, |why| has(why, &ELSEWHERE)) {
        return Finding::Now(problem(Reason::VolumeBindingFailed, "its volumes keep the pod from every node"));
    }
    if words.contains("ReadWriteOncePod") {
        return Finding::Now(in_use(observed, words));
    }
    let named = named_claim(words);
    if let Some(claim) = named.filter(|_| words.contains("is being deleted")) {
        let what = format!(
            "claim {claim:?} is being deleted, and its data with it ({words}); where it was meant to go, it is made anew, \
             empty, once nothing uses it: see kubectl describe pvc {claim}"
        );
        return Finding::Now(Problem { reason: Reason::Unschedulable, message: what });
    }
    let is_about_a_claim = named.is_some() || words.to_lowercase().contains("persistent");
    if is_about_a_claim && has(words, &NO_VOLUME) {
        let since = condition.last_transition_time.as_ref().map(|t| t.0);
        return no_volume(observed, pod, words, since);
    }
    let (reason, what) = unfit(words);
    Finding::Now(problem(reason, &what))
}

/// The claim that the scheduler names.
fn named_claim(words: &str) -> Option<&str> {
    let (_, rest) = words.split_once("persistentvolumeclaim \"")?;
    rest.split('"').next().filter(|name| !name.is_empty())
}

fn is(claim: &ClaimView, name: &str) -> bool {
    claim.metadata.name.as_deref() == Some(name)
}

/// A claim that only one pod may use is used by another.
fn in_use(observed: &Observed, words: &str) -> Problem {
    let alone = |claim: &&ClaimView| claim.spec.access_modes.iter().any(|mode| mode == "ReadWriteOncePod");
    let names: Vec<&str> = claims(observed).filter(alone).filter_map(|claim| claim.metadata.name.as_deref()).collect();
    let message = format!(
        "a claim that only one pod may use (ReadWriteOncePod) is used by another ({words}); end that pod: see kubectl \
         describe pvc {}",
        names.join(" ")
    );
    Problem { reason: Reason::Unschedulable, message: message.trim_end().to_owned() }
}

/// A claim has no volume, by the scheduler's words.
fn no_volume(observed: &Observed, pod: &str, words: &str, since: Option<Timestamp>) -> Finding {
    let lasting = |problem, grace| lasting(problem, since, observed.now, grace);
    let named = named_claim(words);
    let Some(claim) = without_volume(observed).into_iter().find(|claim| named.is_none_or(|name| is(claim, name)))
    else {
        return lasting(missing(named.filter(|_| words.contains("not found")), pod, words), GRACE);
    };
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    if claim.status.phase == "Lost" {
        let what = format!("claim {name:?} has lost its volume ({words})");
        return Finding::Now(Problem::new(Reason::ClaimLost, &what, name));
    }
    if let Some(warning) = observed.claim_warnings.get(name).filter(|warning| warning.reason == "ProvisioningFailed") {
        let what = format!("claim {name:?} gets no volume ({})", warning.note);
        return Finding::Now(of_claim(Reason::ProvisioningFailed, &what, claim));
    }
    let what = format!("claim {name:?} has no volume ({words})");
    let grace = if claim.spec.storage_class_name.as_deref() == Some("") { GRACE_STATIC } else { GRACE };
    lasting(of_claim(Reason::ClaimPending, &what, claim), grace)
}

/// The scheduler misses a claim, and all that the operator knows of have their volumes.
fn missing(named: Option<&str>, pod: &str, words: &str) -> Problem {
    let message = match named {
        Some(claim) if claim == names::IMAGE_REPOSITORY_CLAIM => format!(
            "claim {claim:?}, the image repository, is not there ({words}); make it, or set imageRepository.create in the \
             operator's ConfigMap to true"
        ),
        Some(claim) => format!("claim {claim:?} is not there ({words}); see kubectl get pvc {claim}"),
        None => {
            format!("a claim of the pod has no volume, and none of the VM's ({words}); see kubectl describe pod {pod}")
        }
    };
    Problem { reason: Reason::ClaimPending, message }
}

/// A claim's problem. Only one that waits for its first volume holds nothing, and may be told to be deleted.
fn of_claim(reason: Reason, what: &str, claim: &ClaimView) -> Problem {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let next_step = match claim.status.phase.as_str() {
        "Pending" if name == names::IMAGE_REPOSITORY_CLAIM => {
            "provide a volume that fits it, or mend its class; or correct class, access modes or size (imageRepository in the \
             operator's ConfigMap, where the operator has made it) and make it anew, as it holds nothing yet"
        }
        "Pending" => return Problem::new(reason, what, name),
        _ => "provide a volume that fits it",
    };
    Problem { reason, message: format!("{what}; {next_step}: see kubectl describe pvc {name}") }
}

/// Why no node is fit for the pod.
fn unfit(words: &str) -> (Reason, String) {
    let lacking = |kind: &'static str| {
        let mut names = words.split_whitespace().map(|word| word.trim_end_matches(['.', ',']));
        let name = names.find(|word| word.contains('/') && word.ends_with(kind))?;
        is_why(words, |why| why.contains("Insufficient") && why.contains(name)).then_some(name)
    };
    if let Some(device) = lacking("/kvm") {
        let what = format!("no node has the resource {device:?} for hardware acceleration");
        return (Reason::AcceleratorResourceMissing, what);
    }
    if let Some(device) = lacking("tun") {
        return (Reason::TapResourceMissing, format!("no node has the resource {device:?} for tap networks"));
    }
    let what = match is_why(words, |why| why.contains("free ports")) {
        true => "no node has the VM's ports free, which are the node's own where it has tap networks",
        false => "no node takes the pod",
    };
    (Reason::Unschedulable, what.to_owned())
}

/// The claims that the pod uses.
fn claims(observed: &Observed) -> impl Iterator<Item = &ClaimView> {
    let repository = observed.image_repository.as_ref().filter(|_| observed.has_cd_drive());
    observed.claims.values().chain(repository).map(AsRef::as_ref)
}

/// Claims without a volume, the likeliest culprit first: one that is known to get none, then one that has lost its
/// volume or must find one that is there already; one whose class makes volumes often only waits for the pod to get a
/// node.
fn without_volume(observed: &Observed) -> Vec<&ClaimView> {
    let mut claims: Vec<&ClaimView> = claims(observed).filter(|claim| claim.status.phase != "Bound").collect();
    let warned =
        |claim: &ClaimView| claim.metadata.name.as_ref().is_some_and(|name| observed.claim_warnings.contains_key(name));
    claims.sort_by_key(|claim| match (claim.status.phase.as_str(), claim.spec.storage_class_name.as_deref()) {
        ("Lost", _) => 0,
        _ if warned(claim) => 1,
        (_, Some("")) => 2,
        _ => 3,
    });
    claims
}
