//! (pure) What keeps a pod from starting: its node, its claims, its volumes, its container.

use super::Problem;
use crate::api::conditions::ReadyReason as Reason;
use crate::operator::views::{ClaimView, PodConditionView, PodView};
use crate::operator::vm::observe::Observed;
use crate::operator::warnings::Warning;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::time::Duration;

/// Volumes that are made for claims take seconds, in a cloud half a minute, and meanwhile no node takes the pod: only what
/// lasts longer is a problem. The times that this is compared with are whole seconds, so it is up to one second less.
pub const GRACE: SignedDuration = SignedDuration::from_secs(30);
/// What is waited for without being a problem yet is told from then on, as part of the start. Each word before that would be
/// a write and an event for every VM of a node that starts many.
pub const GRACE_TOLD: SignedDuration = SignedDuration::from_secs(10);
/// The same where no volume is made, but one that is there has to be found.
pub const GRACE_STATIC: SignedDuration = SignedDuration::from_secs(10);
/// A warning that nobody knows is passed on where the pod has not started that long after it.
pub const GRACE_UNKNOWN: SignedDuration = SignedDuration::from_secs(10);

/// A problem, or the time when there will be more to tell if it lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    Now(Problem),
    /// What the start waits for, which becomes a problem after that time.
    Waiting(Problem, Duration),
    After(Duration),
}

/// What is in the way of a pod that has not started.
pub(super) fn explain(observed: &Observed, pod: &PodView) -> Option<Finding> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    if let Some(problem) = waiting_container(pod) {
        return Some(Finding::Now(problem));
    }
    if pod.status.phase != "Pending" || pod.container().is_some_and(|c| c.state.terminated.is_some()) {
        return None;
    }
    match unschedulable(pod) {
        Some(condition) => unscheduled(observed, condition),
        None => warned(observed, name),
    }
}

fn waiting_container(pod: &PodView) -> Option<Problem> {
    let container = pod.status.container_statuses.iter().find(|c| c.state.waiting.is_some())?;
    let waiting = container.state.waiting.as_ref()?;
    let words = waiting.message.as_deref().unwrap_or("no details given");
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    match waiting.reason.as_deref()? {
        why @ ("ErrImagePull"
        | "ImagePullBackOff"
        | "ErrImageNeverPull"
        | "InvalidImageName"
        | "RegistryUnavailable"
        | "SignatureValidationFailed"
        | "ImageInspectError") => {
            let what = format!("image {:?} cannot be had ({why}: {words})", container.image);
            Some(Problem::new(Reason::ImagePullFailed, &what, name))
        }
        why @ ("CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" | "CrashLoopBackOff") => {
            let what = format!("the container cannot be started ({why}: {words})");
            Some(Problem::new(Reason::ContainerFailed, &what, name))
        }
        _ => None,
    }
}

fn unschedulable(pod: &PodView) -> Option<&PodConditionView> {
    pod.status.conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "False")
}

fn lasting(problem: Problem, since: Option<Timestamp>, now: Timestamp, grace: SignedDuration) -> Finding {
    let Some(since) = since else { return Finding::Now(problem) };
    // The API server's clock may be ahead of ours: never wait for longer than twice the grace.
    let left = |grace: SignedDuration| match Duration::try_from(grace - now.duration_since(since)) {
        Ok(left) if !left.is_zero() => Some(left.min(grace.unsigned_abs() * 2)),
        _ => None,
    };
    match (left(GRACE_TOLD), left(grace)) {
        (_, None) => Finding::Now(problem),
        (Some(left), Some(_)) => Finding::After(left),
        (None, Some(left)) => Finding::Waiting(Problem { reason: Reason::Starting, ..problem }, left),
    }
}

/// No node takes the pod. What does not go away by itself is told at once; a claim that gets its volume is waited for.
fn unscheduled(observed: &Observed, condition: &PodConditionView) -> Option<Finding> {
    let words = condition.message.as_deref().unwrap_or("no details given");
    let vm = observed.name();
    let now = |reason, what: String| Some(Finding::Now(Problem::new(reason, &what, &vm)));
    if words.contains("node affinity conflict") || words.contains("binding volumes") {
        return now(Reason::VolumeBindingFailed, format!("its volumes keep the pod from every node ({words})"));
    }
    if !words.to_lowercase().contains("persistent") {
        let (reason, what) = unfit(words);
        return now(reason, format!("{what} ({words})"));
    }
    let Some(claim) = without_volume(observed).into_iter().next() else {
        let missing = Problem::new(Reason::ClaimPending, &format!("a claim of the pod is missing ({words})"), &vm);
        return Some(lasting(missing, since(condition), observed.now, GRACE));
    };
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    if claim.status.phase == "Lost" {
        let what = format!("claim {name:?} has lost its volume ({words})");
        return Some(Finding::Now(Problem::new(Reason::ClaimLost, &what, name)));
    }
    if let Some(warning) = observed.claim_warnings.get(name).filter(|warning| warning.reason == "ProvisioningFailed") {
        let what = format!("claim {name:?} gets no volume ({})", warning.note);
        return Some(Finding::Now(Problem::new(Reason::ProvisioningFailed, &what, name)));
    }
    let what = format!("claim {name:?} has no volume ({words})");
    let grace = if claim.spec.storage_class_name.as_deref() == Some("") { GRACE_STATIC } else { GRACE };
    Some(lasting(Problem::new(Reason::ClaimPending, &what, name), since(condition), observed.now, grace))
}

/// Why no node is fit for the pod, in the scheduler's words.
fn unfit(words: &str) -> (Reason, String) {
    let lacking = |kind: &str| {
        let mut names = words.split_whitespace().map(|word| word.trim_end_matches(['.', ',']));
        names.find(|word| word.contains('/') && word.ends_with(kind)).filter(|_| words.contains("Insufficient"))
    };
    if let Some(device) = lacking("/kvm") {
        let what = format!("no node has the resource {device:?} for hardware acceleration");
        return (Reason::AcceleratorResourceMissing, what);
    }
    if let Some(device) = lacking("tun") {
        return (Reason::TapResourceMissing, format!("no node has the resource {device:?} for tap networks"));
    }
    let what = match words.contains("free ports") {
        true => "no node has the VM's ports free, which are the node's own where it has tap networks",
        false => "no node takes the pod",
    };
    (Reason::Unschedulable, what.to_owned())
}

fn since(condition: &PodConditionView) -> Option<Timestamp> {
    condition.last_transition_time.as_ref().map(|t| t.0)
}

/// Claims without a volume, the likeliest culprit first: one that is known to get none, then one that has lost its
/// volume or must find one that is there already; one whose class makes volumes often only waits for the pod to get a
/// node.
fn without_volume(observed: &Observed) -> Vec<&ClaimView> {
    let has_cd_drive = observed.vm.spec.vm.disks.iter().any(|disk| disk.cdrom.is_some());
    let repository = observed.image_repository.as_ref().filter(|_| has_cd_drive);
    let claims = observed.claims.values().chain(repository).map(AsRef::as_ref);
    let mut claims: Vec<&ClaimView> = claims.filter(|claim| claim.status.phase != "Bound").collect();
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

/// The pod has a node, and Kubernetes warns of something.
fn warned(observed: &Observed, pod: &str) -> Option<Finding> {
    let Warning { reason, note, at } = observed.pod_warning.as_deref()?;
    let problem = |reason, what: &str| Problem::new(reason, &format!("{what} ({note})"), pod);
    let known = match reason.as_str() {
        "FailedMount" | "FailedMapVolume" if note.contains("volumeMode") => {
            problem(Reason::ClaimWrongMode, "a claim has the wrong volume mode")
        }
        "FailedAttachVolume" => problem(Reason::VolumeAttachFailed, "a volume cannot be attached to the node"),
        "FailedMount" if is_about_a_secret(note) => problem(Reason::SecretMissing, &missing_secret(observed, note)),
        "FailedMount" => problem(Reason::VolumeMountFailed, "a volume cannot be mounted on the node"),
        "FailedMapVolume" => problem(Reason::VolumeMountFailed, "a volume cannot be mapped on the node"),
        "FailedCreatePodSandBox" => problem(Reason::SandboxFailed, "the pod cannot be set up on the node"),
        other => {
            let what = format!("Kubernetes warns of pod {pod:?}: {other}");
            return Some(lasting(problem(Reason::PodWarning, &what), Some(*at), observed.now, GRACE_UNKNOWN));
        }
    };
    Some(Finding::Now(known))
}

/// In the kubelet's words.
fn is_about_a_secret(note: &str) -> bool {
    note.contains("non-existent secret key") || note.contains("secret \"") && note.contains("not found")
}

/// Which keys of which secrets the VM asks for: the kubelet names only one of the two.
fn missing_secret(observed: &Observed, note: &str) -> String {
    let seed = observed.vm.spec.cloud_init.as_ref().filter(|_| note.contains("volume \"seed\""));
    let sources = [
        ("userDataFrom", seed.and_then(|seed| seed.user_data_from.as_ref())),
        ("networkConfigFrom", seed.and_then(|seed| seed.network_config_from.as_ref())),
    ];
    let named = sources.into_iter().filter_map(|(field, source)| {
        let key = &source?.secret_key_ref;
        Some(format!("spec.cloudInit.{field} asks for key {:?} of secret {:?}", key.key, key.name))
    });
    let named: Vec<String> = named.collect();
    if named.is_empty() { "a secret of the VM is missing".to_owned() } else { named.join(", ") }
}
