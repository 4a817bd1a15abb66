//! (pure) What keeps a pod from starting: its volumes, its container; and, in [`scheduling`], its node and its claims.

use super::{Problem, ending, scheduling};
use crate::api::conditions::{self, ConditionReason, ReadyReason as Reason};
use crate::operator::views::{PodConditionView, PodView};
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

/// A kubelet tells of a pod's containers seconds after it has got the pod, before it mounts anything.
pub const GRACE_NODE: SignedDuration = SignedDuration::from_secs(120);
/// A runner's first word comes as soon as it has read its configuration.
pub const GRACE_RUNNER: SignedDuration = SignedDuration::from_secs(60);

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
        Some(condition) => Some(scheduling::unscheduled(observed, name, condition)),
        None => warned(observed, pod, name).or_else(|| node_says_nothing(observed, pod)),
    }
}

/// The pod has a node, whose kubelet has not taken it up.
fn node_says_nothing(observed: &Observed, pod: &PodView) -> Option<Finding> {
    let since = pod.condition("PodScheduled").filter(|_| pod.status.container_statuses.is_empty()).and_then(since)?;
    let problem = || ending::node_problem(observed, pod, "does not answer and has not begun to start the pod");
    Some(overdue(problem, since, observed.now, GRACE_NODE))
}

/// The pod is ready, and its runner has told nothing: neither of this start nor, just now, of the machine's end.
pub(super) fn runner_says_nothing(observed: &Observed, pod: &PodView) -> Option<Finding> {
    let running = conditions::find(observed.conditions(), conditions::RUNNING);
    if running.is_some_and(|it| {
        ![ConditionReason::Creation, ConditionReason::VmStopped].iter().any(|reason| it.reason == reason.as_str())
    }) || pod.status.phase != "Running"
        || pod.has_ended()
    {
        return None;
    }
    let ready = pod.condition("Ready").and_then(since)?;
    let since = running.map_or(ready, |running| ready.max(running.last_transition_time.0));
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let problem = || {
        let what = format!("pod {name:?} runs, and its runner has told nothing for {} s", GRACE_RUNNER.as_secs());
        Problem::new(Reason::RunnerSilent, &what, name)
    };
    Some(overdue(problem, since, observed.now, GRACE_RUNNER))
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

/// How much of the grace is left. A time that lies ahead by more than the grace was noted by a clock that was wrong, and
/// is not waited for; so nobody waits for longer than twice the grace.
fn left(since: Timestamp, now: Timestamp, grace: SignedDuration) -> Option<Duration> {
    let passed = now.duration_since(since);
    let left = Duration::try_from(grace - passed).ok()?;
    (!left.is_zero() && -passed <= grace).then_some(left)
}

fn overdue(problem: impl FnOnce() -> Problem, since: Timestamp, now: Timestamp, grace: SignedDuration) -> Finding {
    left(since, now, grace).map_or_else(|| Finding::Now(problem()), Finding::After)
}

pub(super) fn lasting(problem: Problem, since: Option<Timestamp>, now: Timestamp, grace: SignedDuration) -> Finding {
    let Some(since) = since else { return Finding::Now(problem) };
    match (left(since, now, grace), left(since, now, GRACE_TOLD.min(grace))) {
        (None, _) => Finding::Now(problem),
        (Some(_), Some(left)) => Finding::After(left),
        (Some(left), None) => Finding::Waiting(Problem { reason: Reason::Starting, ..problem }, left),
    }
}

fn since(condition: &PodConditionView) -> Option<Timestamp> {
    condition.last_transition_time.as_ref().map(|t| t.0)
}

/// Warnings of what is done before the first container: they are over when that is done.
const BEFORE_CONTAINERS: [&str; 4] = ["FailedMount", "FailedMapVolume", "FailedAttachVolume", "FailedCreatePodSandBox"];

/// The pod has a node, and Kubernetes warns of something.
fn warned(observed: &Observed, view: &PodView, pod: &str) -> Option<Finding> {
    let Warning { reason, note, at } = observed.pod_warning.as_deref()?;
    if view.condition("PodReadyToStartContainers").is_some() && BEFORE_CONTAINERS.contains(&reason.as_str()) {
        return None;
    }
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
