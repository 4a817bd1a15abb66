//! (pure) How a VM's pod ended: by the runner's own word if there is one, else by what Kubernetes knows.
//!
//! | seen in the pod | reason |
//! |---|---|
//! | a termination message of the runner | the runner's, unless it was only asked to end and somebody else did that |
//! | condition `DisruptionTarget` | `Preempted`, `Evicted`, `NodeLost`: whoever ended it |
//! | status reason `Terminated` or `NodeShutdown` | `NodeShutdown`: the node went down in an orderly way |
//! | the kubelet found the container dead or not at all (`Unknown`, `ContainerStatusUnknown`) | `NodeRebooted` |
//! | another reason of the kubelet (`OOMKilled`, `Evicted`, `UnexpectedAdmissionError`, `StartError` …) | the same |
//! | a container that ended and left no word, or a garbled one | `RunnerKilled` |
//! | nothing of the above | `PodFailed`: its container never ran |

use crate::api::runner::outcome::{EndReason, Outcome};
use crate::controllers::vm::views::{PodView, TerminatedView};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// A VM that ran that long has run well: the pause before its next start is short again.
pub const RAN_WELL: SignedDuration = SignedDuration::from_mins(10);

/// How a pod ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// CamelCase.
    pub reason: String,
    /// What is known of it.
    pub message: String,
    /// Whether the guest powered itself off.
    pub by_guest: bool,
    /// Whether it had run for [`RAN_WELL`].
    pub ran_well: bool,
    /// When.
    pub at: Option<Timestamp>,
}

impl End {
    /// How that pod ended.
    #[must_use]
    pub fn of(pod: &PodView) -> Self {
        let terminated = pod
            .container()
            .and_then(|container| container.state.terminated.as_ref());
        let outcome = terminated.and_then(|t| Outcome::parse(t.message.as_deref()?));
        let asked = outcome
            .as_ref()
            .is_none_or(|outcome| outcome.reason == EndReason::Stopped);
        let (reason, message) = match (&outcome, by_others(pod).filter(|_| asked)) {
            (_, Some(end)) => end,
            (Some(outcome), None) => (format!("{:?}", outcome.reason), outcome.message.clone()),
            (None, None) => match terminated {
                Some(terminated) => without_word(pod, terminated),
                None => (
                    "PodFailed".to_owned(),
                    words(pod, None, "the pod ended before its container had started"),
                ),
            },
        };
        let time = |field: fn(&TerminatedView) -> &Option<Time>| {
            terminated.and_then(|t| field(t).as_ref()).map(|t| t.0)
        };
        let (started, finished) = (time(|t| &t.started_at), time(|t| &t.finished_at));
        let ran = started
            .zip(finished)
            .map(|(started, finished)| finished.duration_since(started));
        Self {
            reason,
            message,
            by_guest: outcome.is_some_and(|o| o.by_guest && o.reason == EndReason::GuestShutdown),
            ran_well: ran.is_some_and(|ran| ran >= RAN_WELL),
            at: finished,
        }
    }
}

/// Who ended the pod, if it was neither the VM nor its operator.
pub fn by_others(pod: &PodView) -> Option<(String, String)> {
    let told = |reason: &str, otherwise: &str| (reason.to_owned(), words(pod, None, otherwise));
    match pod.status.reason.as_deref() {
        Some("Terminated" | "NodeShutdown" | "Shutdown") => {
            return Some(told("NodeShutdown", "its node was shut down"));
        }
        Some(reason) => return Some(told(reason, "Kubernetes gives no details")),
        None => {}
    }
    let target = pod
        .status
        .conditions
        .iter()
        .find(|c| c.type_ == "DisruptionTarget" && c.status == "True")?;
    let reason = match target.reason.as_deref()? {
        "PreemptionByScheduler" => "Preempted",
        "DeletionByPodGC" => "NodeLost",
        // EvictionByEvictionAPI, DeletionByTaintManager, TerminationByKubelet
        _ => "Evicted",
    };
    Some((
        reason.to_owned(),
        target.message.clone().unwrap_or_default(),
    ))
}

/// What the kubelet says of a container whose runner left no word.
fn without_word(pod: &PodView, terminated: &TerminatedView) -> (String, String) {
    let code = terminated.exit_code;
    match terminated.reason.as_deref() {
        Some("ContainerStatusUnknown" | "Unknown") => {
            let otherwise =
                "the kubelet found no container of it any more, as after a reboot of the node";
            (
                "NodeRebooted".to_owned(),
                words(pod, terminated.message.as_deref(), otherwise),
            )
        }
        Some(reason) if !matches!(reason, "Error" | "Completed") => {
            let otherwise = match reason {
                "OOMKilled" => {
                    "the kernel ended a process of the pod for want of memory; raise the memory in spec.resources, or \
                     leave spec.resources out"
                }
                _ => "the kubelet gives no details",
            };
            (
                reason.to_owned(),
                words(pod, terminated.message.as_deref(), otherwise),
            )
        }
        _ => {
            let otherwise = format!("the runner ended with code {code} and left no word");
            (
                "RunnerKilled".to_owned(),
                words(pod, terminated.message.as_deref(), &otherwise),
            )
        }
    }
}

fn words(pod: &PodView, containers: Option<&str>, otherwise: &str) -> String {
    let words = [pod.status.message.as_deref(), containers]
        .into_iter()
        .flatten()
        .map(str::trim);
    words
        .into_iter()
        .find(|text| !text.is_empty())
        .unwrap_or(otherwise)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::vm::fixtures::{ended, pod};
    use serde_json::{Value, json};

    fn end(status: Value) -> End {
        End::of(&pod(status))
    }

    fn container(terminated: Value) -> Value {
        json!([{"name": "vm", "state": {"terminated": terminated}}])
    }

    #[test]
    fn each_end_without_the_runners_word_has_its_own_reason() {
        let failed = |status: Value| {
            let mut all = json!({"phase": "Failed"});
            all.as_object_mut()
                .unwrap()
                .extend(status.as_object().unwrap().clone());
            all
        };
        let target = |reason: &str| {
            let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "why"});
            failed(
                json!({"conditions": [condition], "containerStatuses": container(json!({"exitCode": 137}))}),
            )
        };
        let killed = |reason: &str, code: i32| {
            failed(
                json!({"containerStatuses": container(json!({"exitCode": code, "reason": reason}))}),
            )
        };
        for (status, reason, words) in [
            (
                failed(json!({"reason": "Evicted", "message": "low on memory"})),
                "Evicted",
                "low on memory",
            ),
            (
                failed(json!({"reason": "UnexpectedAdmissionError", "message": "no kvm"})),
                "UnexpectedAdmissionError",
                "kvm",
            ),
            (
                failed(json!({"reason": "NodeLost"})),
                "NodeLost",
                "no details",
            ),
            (
                failed(json!({"reason": "Terminated", "message": "imminent node shutdown"})),
                "NodeShutdown",
                "imminent",
            ),
            (
                failed(json!({"reason": "NodeShutdown"})),
                "NodeShutdown",
                "shut down",
            ),
            (target("PreemptionByScheduler"), "Preempted", "why"),
            (target("EvictionByEvictionAPI"), "Evicted", "why"),
            (target("DeletionByTaintManager"), "Evicted", "why"),
            (target("TerminationByKubelet"), "Evicted", "why"),
            (target("DeletionByPodGC"), "NodeLost", "why"),
            (killed("OOMKilled", 137), "OOMKilled", "raise the memory"),
            (
                killed("ContainerStatusUnknown", 137),
                "NodeRebooted",
                "reboot",
            ),
            (killed("Unknown", 255), "NodeRebooted", "reboot"),
            (killed("StartError", 128), "StartError", "no details"),
            (killed("Error", 137), "RunnerKilled", "code 137"),
            (ended("garbled {", 5), "RunnerKilled", "garbled {"),
            (
                failed(json!({})),
                "PodFailed",
                "before its container had started",
            ),
        ] {
            let End {
                reason: told,
                message,
                by_guest,
                ..
            } = end(status.clone());
            assert_eq!((told.as_str(), by_guest), (reason, false), "{status}");
            assert!(message.contains(words), "{status}: {message}");
        }
    }

    #[test]
    fn the_runners_word_counts_unless_it_was_only_asked_to_end() {
        let mut evicted = ended(r#"{"reason":"Stopped"}"#, 5);
        assert_eq!(end(evicted.clone()).reason, "Stopped");
        evicted["reason"] = "Evicted".into();
        assert_eq!(end(evicted).reason, "Evicted");
        let mut crashed = ended(r#"{"reason":"QemuCrashed","message":"signal 9"}"#, 5);
        crashed["reason"] = "Evicted".into();
        assert_eq!(
            (
                end(crashed.clone()).reason.as_str(),
                end(crashed).message.as_str()
            ),
            ("QemuCrashed", "signal 9")
        );
        let disk = r#"{"reason":"DiskInUse","message":"/dev/system-disk is in use"}"#;
        assert_eq!(end(ended(disk, 5)).reason, "DiskInUse");
    }
}
