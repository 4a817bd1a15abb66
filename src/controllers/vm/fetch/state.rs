//! (pure) The state of an image's download, and the next step of the operator.
//!
//! | observed | step | reported state |
//! |---|---|---|
//! | annotation of the PVC | remove an exited pod | downloaded |
//! | no image repository, or a scheme that is not allowed | – | the cause |
//! | no download pod | create the pod | in progress |
//! | a pod that does not start | – | the cause, as for a VM's pod |
//! | a running pod | – | the progress; until it exceeds that of the previous attempt, the error of that attempt |
//! | a successful pod | annotate the PVC, remove the pod | downloaded |
//! | a failed pod | retry after the backoff, or after a change of the configuration | the cause |

use crate::api::hex;
use crate::api::runner::fetch::{FetchOutcome, FetchReason, Progress};
use crate::api::vm::conditions::{ConditionReason, ReadyReason};
use crate::api::vm::diagnosis::Diagnosis;
use crate::api::vm::{State as DesiredState, names};
use crate::controllers::vm::diagnose;
use crate::controllers::vm::fetch::condition::condition_reason;
use crate::controllers::vm::images::{ObservedDownload, RemoteImage, is_download_pod};
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::ownership::owner;
use crate::controllers::vm::views::exit::End;
use crate::k8s::retry::pause;
use crate::k8s::views::{ClaimView, PodView};
use crate::settings;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::time::Duration;

/// An image with the state of its download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The image.
    pub remote: RemoteImage,
    /// The state that the VM's conditions report.
    pub state: State,
    /// The next step of the operator.
    pub step: Step,
    /// The time until the next reconcile, if no change triggers one before.
    pub recheck: Option<Duration>,
}

/// The reported state of a download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The image is in the image repository.
    Fetched,
    /// The download is in progress.
    Fetching(Option<Progress>),
    /// The download has failed.
    Failed(Diagnosis<ConditionReason>),
    /// The image is not needed, because the desired state of the VM is not `Running`.
    NotWanted,
}

/// The next step of the operator for an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// No step.
    None,
    /// Create the download pod for the first attempt.
    Create(Attempt),
    /// Replace the pod with this UID by one for the next attempt.
    Retry(String, Attempt),
    /// Annotate the PVC, then remove the pod with this UID.
    Record(String),
    /// Remove the pod with this UID.
    Remove(String),
}

/// An attempt to download an image, which an annotation of the download pod records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Number of the attempt, from 1.
    pub number: u32,
    /// Hash of the configuration that the pod was created with.
    pub settings: String,
    /// Outcome of the previous attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<FetchOutcome>,
}

/// Interval between reads of a download pod's log. It is not shorter than the interval between writes of the status.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Delay of the next reconcile after a step, in case that the API server rejected the pod or no watch reports the result.
const RECHECK_DELAY: Duration = Duration::from_secs(60);

/// Determines state and next step of an image's download.
#[must_use]
pub fn download_state(
    remote: RemoteImage,
    observed: &Observed,
    settings: &settings::Reconciler,
) -> Fetch {
    let seen = observed
        .fetches
        .get(&remote.pod_name())
        .cloned()
        .unwrap_or_default();
    let repository = observed.image_repository.as_deref();
    let (state, step, recheck) = next_state(&remote, &seen, repository, observed, settings);
    Fetch {
        remote,
        state,
        step,
        recheck,
    }
}

type StateAndStep = (State, Step, Option<Duration>);

fn failed(
    reason: impl Into<ConditionReason>,
    problem: impl Into<String>,
    next_step: impl Into<String>,
) -> StateAndStep {
    let diagnosis = Diagnosis::new(reason, problem, next_step);
    (State::Failed(diagnosis), Step::None, None)
}

fn next_state(
    remote: &RemoteImage,
    seen: &ObservedDownload,
    repository: Option<&ClaimView>,
    observed: &Observed,
    settings: &settings::Reconciler,
) -> StateAndStep {
    let pod = seen.pod.as_deref();
    let recorded =
        repository.is_some_and(|claim| claim.annotations().contains_key(&remote.annotation()));
    if recorded {
        let exited = pod.filter(|pod| is_download_pod(pod) && has_exited(pod));
        let step = exited
            .and_then(ResourceExt::uid)
            .map_or(Step::None, Step::Remove);
        return (State::Fetched, step, None);
    }
    if observed.desired_state() != DesiredState::Running {
        return (State::NotWanted, Step::None, None);
    }
    if let Some(why) = repository_problem(repository, settings) {
        return why;
    }
    let Some(pod) = pod else {
        return first_attempt(remote, settings);
    };
    if !is_download_pod(pod) {
        let name = pod.name_any();
        let next = match owner(pod, "") {
            Some(owner) => {
                format!("stop {owner}, which owns pod {name:?}, until the download is complete")
            }
            None => format!("delete the existing pod (kubectl delete pod {name})"),
        };
        let problem = format!(
            "the operator cannot create the download pod {name:?}, because another pod has this name"
        );
        return failed(ConditionReason::NameTaken, problem, next);
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return (State::Fetching(None), Step::None, None);
    }
    match has_exited(pod) {
        true => exited_download(remote, pod, repository, seen.ended_for, settings),
        false => running_download(remote, seen, pod, observed, settings),
    }
}

fn has_exited(pod: &PodView) -> bool {
    pod.has_ended() && pod.metadata.deletion_timestamp.is_none()
}

/// The state if the image repository does not exist or has no volume.
fn repository_problem(
    repository: Option<&ClaimView>,
    settings: &settings::Reconciler,
) -> Option<StateAndStep> {
    let name = names::IMAGE_REPOSITORY_CLAIM;
    let missing = ConditionReason::RepositoryMissing;
    match repository {
        None if settings.image_repository.create => None,
        None => Some(failed(
            missing,
            format!("the image repository, PVC {name:?}, does not exist"),
            "create the PVC, or set imageRepository.create in the operator's ConfigMap to true",
        )),
        Some(claim) if claim.metadata.deletion_timestamp.is_some() => Some(failed(
            missing,
            format!("the image repository, PVC {name:?}, is being deleted"),
            "wait until the pods that use the PVC have exited, and create the PVC again",
        )),
        Some(claim) if claim.status.phase == "Lost" => Some(failed(
            ReadyReason::ClaimLost,
            format!("the image repository, PVC {name:?}, has lost its volume (phase Lost)"),
            "recover the volume, or delete the PVC and create a new PVC",
        )),
        Some(_) => None,
    }
}

/// Hash of the configuration that a download depends on.
fn settings_hash(settings: &settings::Reconciler) -> String {
    let text = format!(
        "{:?} {:?} {:?}",
        settings.image_repository.fetch, settings.runner_image, settings.pod_defaults
    );
    hex(Sha256::digest(text).iter().take(4))
}

fn scheme_problem(remote: &RemoteImage, settings: &settings::Reconciler) -> Option<StateAndStep> {
    let (scheme, _) = remote.url.split_once("://")?;
    let allowed = &settings.image_repository.fetch.schemes;
    if allowed.iter().any(|one| one.eq_ignore_ascii_case(scheme)) {
        return None;
    }
    let (problem, next_step) = match allowed.as_slice() {
        [] => (
            "the operator's ConfigMap does not allow CD images by URL (imageRepository.fetch.schemes is empty)"
                .to_owned(),
            "copy the CD image into the PVC vmop-image-repository, and use the path of the image in the PVC instead of \
             the URL".to_owned(),
        ),
        allowed => (
            format!(
                "the operator's ConfigMap does not allow the URL scheme {scheme:?} (imageRepository.fetch.schemes)"
            ),
            format!("use a URL with the scheme {}", allowed.join(" or ")),
        ),
    };
    Some(failed(
        ConditionReason::SchemeNotAllowed,
        problem,
        next_step,
    ))
}

fn first_attempt(remote: &RemoteImage, settings: &settings::Reconciler) -> StateAndStep {
    if let Some(why) = scheme_problem(remote, settings) {
        return why;
    }
    let attempt = Attempt {
        number: 1,
        settings: settings_hash(settings),
        last: None,
    };
    (
        State::Fetching(None),
        Step::Create(attempt),
        Some(RECHECK_DELAY),
    )
}

fn attempt(pod: &PodView) -> Option<Attempt> {
    serde_json::from_str(pod.annotations().get(names::ANNOTATION_FETCH_TRY)?).ok()
}

fn running_download(
    remote: &RemoteImage,
    seen: &ObservedDownload,
    pod: &PodView,
    observed: &Observed,
    settings: &settings::Reconciler,
) -> StateAndStep {
    let (problem, recheck) = diagnose::of_fetch(observed, pod);
    if let Some(problem) = problem {
        if let Some(retry) = retry_with_changed_settings(remote, pod, settings) {
            return retry;
        }
        let diagnosis = Diagnosis {
            problem: format!(
                "download pod {:?} does not start: {}",
                pod.name_any(),
                problem.problem
            ),
            ..problem
        };
        return (State::Failed(diagnosis.into()), Step::None, recheck);
    }
    let last = attempt(pod).and_then(|attempt| attempt.last);
    let runs = pod.status.phase == "Running";
    let recheck = if runs {
        Some(PROGRESS_INTERVAL)
    } else {
        recheck
    };
    // Until this attempt has more bytes than the previous one, the error of the previous one is reported.
    let has_more_bytes = |last: &FetchOutcome| {
        seen.progress
            .is_some_and(|progress| progress.bytes > last.bytes)
    };
    match last.filter(|last| !has_more_bytes(last)) {
        Some(last) => (failed_state(&last), Step::None, recheck),
        None => (State::Fetching(seen.progress), Step::None, recheck),
    }
}

/// Starts again if the settings differ from those with which the pod was created.
fn retry_with_changed_settings(
    remote: &RemoteImage,
    pod: &PodView,
    settings: &settings::Reconciler,
) -> Option<StateAndStep> {
    let now = settings_hash(settings);
    if attempt(pod).is_some_and(|before| before.settings == now) {
        return None;
    }
    let first = Attempt {
        number: 1,
        settings: now,
        last: None,
    };
    let uid = pod.uid().unwrap_or_default();
    let retry = (
        State::Fetching(None),
        Step::Retry(uid, first),
        Some(RECHECK_DELAY),
    );
    Some(scheme_problem(remote, settings).unwrap_or(retry))
}

/// The reported state of a failed attempt.
fn failed_state(outcome: &FetchOutcome) -> State {
    let reason = condition_reason(outcome.reason);
    State::Failed(Diagnosis::new(reason, &outcome.message, reason.next_step()))
}

fn retries(outcome: &FetchOutcome) -> bool {
    // Without a termination message the kubelet or the node stopped the pod, so a retry can succeed.
    outcome.reason.may_retry() || outcome.reason == FetchReason::Unknown
}

fn exited_download(
    remote: &RemoteImage,
    pod: &PodView,
    repository: Option<&ClaimView>,
    ended_for: Option<Duration>,
    settings: &settings::Reconciler,
) -> StateAndStep {
    let uid = pod.uid().unwrap_or_default();
    let End {
        reason, message, ..
    } = End::of(pod);
    let outcome = pod
        .termination_message()
        .and_then(FetchOutcome::parse)
        .unwrap_or_else(|| FetchOutcome {
            reason: FetchReason::Unknown,
            message: format!(
                "download pod {:?} has exited without a result ({reason}: {message})",
                pod.name_any()
            ),
            bytes: 0,
        });
    match repository {
        Some(_) if outcome.reason.is_success() => {
            return (State::Fetched, Step::Record(uid), Some(RECHECK_DELAY));
        }
        // The PVC exists, because its pod ran, but the watch has not reported it yet.
        None if outcome.reason.is_success() => {
            return (State::Fetching(None), Step::None, Some(RECHECK_DELAY));
        }
        _ => {}
    }
    if let Some(retry) = retry_with_changed_settings(remote, pod, settings) {
        return retry;
    }
    let (before, settings_now) = (attempt(pod), settings_hash(settings));
    let state = failed_state(&outcome);
    if !retries(&outcome) {
        return (state, Step::None, None);
    }
    let number = before.map_or(1, |before| before.number);
    let left = ended_for.map_or(Duration::ZERO, |ended_for| {
        pause(number).saturating_sub(ended_for)
    });
    match left {
        left if !left.is_zero() => (state, Step::None, Some(left)),
        _ => {
            let next = Attempt {
                number: number.saturating_add(1),
                settings: settings_now,
                last: Some(outcome),
            };
            (state, Step::Retry(uid, next), Some(RECHECK_DELAY))
        }
    }
}
