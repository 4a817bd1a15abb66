//! (pure) What is to be done about an image, and what there is to tell.
//!
//! | seen | to do | told |
//! |---|---|---|
//! | the claim's annotation | remove a pod that has ended | there |
//! | no repository, or a scheme that is not allowed | – | why |
//! | no pod | create it | on its way |
//! | a pod that does not start | – | why, as of a VM's pod |
//! | a pod that runs | – | how far it is; until there is more than before, how the last try ended |
//! | a pod that has succeeded | annotate the claim, remove the pod | there |
//! | one that has failed | after the pause the next try, or none before the settings change | why |

use crate::api::conditions::{ConditionReason, ReadyReason};
use crate::api::diagnosis::Diagnosis;
use crate::api::hex;
use crate::api::runner::fetch::{FetchOutcome, FetchReason, Progress};
use crate::api::vm::{State as Wanted, names};
use crate::controllers::vm::diagnose;
use crate::controllers::vm::images::{ObservedDownload, RemoteImage, is_download_pod};
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::ownership::owner;
use crate::controllers::vm::views::exit::End;
use crate::controllers::vm::views::{ClaimView, PodView};
use crate::k8s::retry::pause;
use crate::settings;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::time::Duration;

/// An image, and what is to be done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The image.
    pub remote: RemoteImage,
    /// What there is to tell.
    pub state: State,
    /// What is to be done.
    pub step: Step,
    /// When to look again, if nothing changes before.
    pub recheck: Option<Duration>,
}

/// What there is to tell of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is in the repository.
    Fetched,
    /// It is on its way.
    Fetching(Option<Progress>),
    /// It is not there, for this reason.
    Failed(Diagnosis<ConditionReason>),
    /// The VM should not run, and so nobody waits for it.
    NotWanted,
}

/// What is to be done about an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    None,
    /// A first try.
    Create(Attempt),
    /// Another try, in the place of the pod with that UID.
    Retry(String, Attempt),
    /// The claim's annotation, then the removal of the pod with that UID.
    Record(String),
    /// The removal of the pod with that UID.
    Remove(String),
}

/// What a fetch pod is told of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Counts from 1.
    pub number: u32,
    /// Hash of the settings that it was made by.
    pub settings: String,
    /// How the one before ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<FetchOutcome>,
}

/// How often the log of a fetch pod is read: no more often than the status is written.
pub const PROGRESS_PAUSE: Duration = Duration::from_secs(5);
/// When a refused pod is tried again, and a safety net for what was just done.
const RECHECK: Duration = Duration::from_secs(60);

/// Looks at an image.
#[must_use]
pub fn look(remote: RemoteImage, observed: &Observed, settings: &settings::Reconciler) -> Fetch {
    let seen = observed
        .fetches
        .get(&remote.pod_name())
        .cloned()
        .unwrap_or_default();
    let repository = observed.image_repository.as_deref();
    let (state, step, recheck) = looked(&remote, &seen, repository, observed, settings);
    Fetch {
        remote,
        state,
        step,
        recheck,
    }
}

type Look = (State, Step, Option<Duration>);

fn failed(
    reason: impl Into<ConditionReason>,
    problem: impl Into<String>,
    next_step: impl Into<String>,
) -> Look {
    let diagnosis = Diagnosis::new(reason, problem, next_step);
    (State::Failed(diagnosis), Step::None, None)
}

fn looked(
    remote: &RemoteImage,
    seen: &ObservedDownload,
    repository: Option<&ClaimView>,
    observed: &Observed,
    settings: &settings::Reconciler,
) -> Look {
    let pod = seen.pod.as_deref();
    let recorded =
        repository.is_some_and(|claim| claim.annotations().contains_key(&remote.annotation()));
    if recorded {
        let left = pod.filter(|pod| is_download_pod(pod) && is_over(pod));
        let step = left
            .and_then(ResourceExt::uid)
            .map_or(Step::None, Step::Remove);
        return (State::Fetched, step, None);
    }
    if observed.desired_state() != Wanted::Running {
        return (State::NotWanted, Step::None, None);
    }
    if let Some(why) = repository_problem(repository, settings) {
        return why;
    }
    let Some(pod) = pod else {
        return first(remote, settings);
    };
    if !is_download_pod(pod) {
        let name = pod.name_any();
        let next = match owner(pod, "") {
            Some(owner) => format!("give {owner} another name"),
            None => format!("delete it (kubectl delete pod {name})"),
        };
        let problem = format!("pod {name:?} exists and is not a download pod");
        return failed(ConditionReason::NameTaken, problem, next);
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return (State::Fetching(None), Step::None, None);
    }
    match is_over(pod) {
        true => after_end(remote, pod, repository, seen.ended_for, settings),
        false => under_way(remote, seen, pod, observed, settings),
    }
}

fn is_over(pod: &PodView) -> bool {
    pod.has_ended() && pod.metadata.deletion_timestamp.is_none()
}

/// What keeps the repository from being written at all.
fn repository_problem(
    repository: Option<&ClaimView>,
    settings: &settings::Reconciler,
) -> Option<Look> {
    let name = names::IMAGE_REPOSITORY_CLAIM;
    let missing = ConditionReason::RepositoryMissing;
    match repository {
        None if settings.image_repository.create => None,
        None => Some(failed(
            missing,
            format!("PVC {name:?} does not exist"),
            "create it, or set imageRepository.create in the operator's ConfigMap to true",
        )),
        Some(claim) if claim.metadata.deletion_timestamp.is_some() => Some(failed(
            missing,
            format!("PVC {name:?} is being deleted"),
            "wait until its pods have exited, and create it again",
        )),
        Some(claim) if claim.status.phase == "Lost" => Some(failed(
            ReadyReason::ClaimLost,
            format!("PVC {name:?} has lost its volume"),
            "recover the volume, or create the PVC again",
        )),
        Some(_) => None,
    }
}

/// The settings that a fetch depends on.
fn settings_hash(settings: &settings::Reconciler) -> String {
    let said = format!(
        "{:?} {:?} {:?}",
        settings.image_repository.fetch, settings.runner_image, settings.pod_defaults
    );
    hex(Sha256::digest(said).iter().take(4))
}

fn scheme_problem(remote: &RemoteImage, settings: &settings::Reconciler) -> Option<Look> {
    let (scheme, _) = remote.url.split_once("://")?;
    let allowed = &settings.image_repository.fetch.schemes;
    if allowed.iter().any(|one| one.eq_ignore_ascii_case(scheme)) {
        return None;
    }
    let (problem, next_step) = match allowed.as_slice() {
        [] => (
            "the operator's ConfigMap allows no URL (imageRepository.fetch.schemes)".to_owned(),
            "put the file into the image repository and name it by its path".to_owned(),
        ),
        allowed => (
            format!(
                "the operator's ConfigMap does not allow {scheme:?} (imageRepository.fetch.schemes)"
            ),
            format!("use {}", allowed.join(" or ")),
        ),
    };
    Some(failed(
        ConditionReason::SchemeNotAllowed,
        problem,
        next_step,
    ))
}

fn first(remote: &RemoteImage, settings: &settings::Reconciler) -> Look {
    if let Some(why) = scheme_problem(remote, settings) {
        return why;
    }
    let attempt = Attempt {
        number: 1,
        settings: settings_hash(settings),
        last: None,
    };
    (State::Fetching(None), Step::Create(attempt), Some(RECHECK))
}

fn attempt(pod: &PodView) -> Option<Attempt> {
    serde_json::from_str(pod.annotations().get(names::ANNOTATION_FETCH_TRY)?).ok()
}

fn under_way(
    remote: &RemoteImage,
    seen: &ObservedDownload,
    pod: &PodView,
    observed: &Observed,
    settings: &settings::Reconciler,
) -> Look {
    let (problem, recheck) = diagnose::of_fetch(observed, pod);
    if let Some(problem) = problem {
        if let Some(retry) = retry_with_changed_settings(remote, pod, settings) {
            return retry;
        }
        let diagnosis = Diagnosis {
            problem: format!(
                "pod {:?} does not start: {}",
                pod.name_any(),
                problem.problem
            ),
            ..problem
        };
        return (State::Failed(diagnosis.into()), Step::None, recheck);
    }
    let last = attempt(pod).and_then(|attempt| attempt.last);
    let runs = pod.status.phase == "Running";
    let recheck = if runs { Some(PROGRESS_PAUSE) } else { recheck };
    // While the next try has come no farther than the last one, how that ended is the news.
    let farther = |last: &FetchOutcome| {
        seen.progress
            .is_some_and(|progress| progress.bytes > last.bytes)
    };
    match last.filter(|last| !farther(last)) {
        Some(last) => (told(&last), Step::None, recheck),
        None => (State::Fetching(seen.progress), Step::None, recheck),
    }
}

/// Starts again if the settings differ from those with which the pod was created.
fn retry_with_changed_settings(
    remote: &RemoteImage,
    pod: &PodView,
    settings: &settings::Reconciler,
) -> Option<Look> {
    let now = settings_hash(settings);
    if attempt(pod).is_some_and(|before| before.settings == now) {
        return None;
    }
    let again = Attempt {
        number: 1,
        settings: now,
        last: None,
    };
    let uid = pod.uid().unwrap_or_default();
    let retry = (
        State::Fetching(None),
        Step::Retry(uid, again),
        Some(RECHECK),
    );
    Some(scheme_problem(remote, settings).unwrap_or(retry))
}

/// What an end is called and says.
fn told(outcome: &FetchOutcome) -> State {
    let (reason, again) = (condition_reason(outcome.reason), retries(outcome));
    let next = match again {
        true => "the operator retries after 1 s, 2 s, 4 s … 5 min".to_owned(),
        false => reason.next_step().to_owned(),
    };
    State::Failed(Diagnosis::new(reason, &outcome.message, next))
}

fn retries(outcome: &FetchOutcome) -> bool {
    // Without a word it was not the program that ended the fetch.
    outcome.reason.may_retry() || outcome.reason == FetchReason::Unknown
}

fn after_end(
    remote: &RemoteImage,
    pod: &PodView,
    repository: Option<&ClaimView>,
    ended_for: Option<Duration>,
    settings: &settings::Reconciler,
) -> Look {
    let uid = pod.uid().unwrap_or_default();
    let End {
        reason, message, ..
    } = End::of(pod);
    let words = pod
        .container()
        .and_then(|container| container.state.terminated.as_ref()?.message.as_deref());
    let outcome = words
        .and_then(FetchOutcome::parse)
        .unwrap_or_else(|| FetchOutcome {
            reason: FetchReason::Unknown,
            message: format!(
                "pod {:?} has exited without a result ({reason}: {message})",
                pod.name_any()
            ),
            bytes: 0,
        });
    match repository {
        Some(_) if outcome.reason.is_success() => {
            return (State::Fetched, Step::Record(uid), Some(RECHECK));
        }
        // The claim is there, as its pod was, and will be seen.
        None if outcome.reason.is_success() => {
            return (State::Fetching(None), Step::None, Some(RECHECK));
        }
        _ => {}
    }
    if let Some(retry) = retry_with_changed_settings(remote, pod, settings) {
        return retry;
    }
    let (before, settings_now) = (attempt(pod), settings_hash(settings));
    let state = told(&outcome);
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
            let again = Attempt {
                number: number.saturating_add(1),
                settings: settings_now,
                last: Some(outcome),
            };
            (state, Step::Retry(uid, again), Some(RECHECK))
        }
    }
}

/// The condition's reason for the end of a fetch.
fn condition_reason(reason: FetchReason) -> ConditionReason {
    match reason {
        FetchReason::Fetched | FetchReason::AlreadyThere => ConditionReason::Fetched,
        FetchReason::SchemeNotAllowed => ConditionReason::SchemeNotAllowed,
        FetchReason::InvalidUrl => ConditionReason::InvalidUrl,
        FetchReason::ServerUnreachable => ConditionReason::ServerUnreachable,
        FetchReason::ServerRefused => ConditionReason::ServerRefused,
        FetchReason::ServerFailed => ConditionReason::ServerFailed,
        FetchReason::TooLarge => ConditionReason::TooLarge,
        FetchReason::ChecksumMismatch => ConditionReason::ChecksumMismatch,
        FetchReason::RepositoryNotWritable => ConditionReason::RepositoryNotWritable,
        FetchReason::RepositoryFull => ConditionReason::RepositoryFull,
        FetchReason::DeadlineExceeded => ConditionReason::DeadlineExceeded,
        FetchReason::Interrupted => ConditionReason::Interrupted,
        FetchReason::Unknown => ConditionReason::FetchPodFailed,
    }
}
