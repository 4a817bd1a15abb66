//! (pure) The reason for the end of a VM's pod: the runner's termination message, else the status from Kubernetes.
//!
//! | pod | reason |
//! |---|---|
//! | QEMU was killed, and the kubelet reports `OOMKilled` | `OOMKilled` with the runner's message |
//! | a termination message of the runner, unless it is `Stopped` and another row of this table names a cause | the reason in the message |
//! | condition `DisruptionTarget` | `Preempted`, `Evicted`, `NodeLost` |
//! | status reason `Terminated` or `NodeShutdown` | `NodeShutdown`: the node was shut down gracefully |
//! | the kubelet found the container dead, or not at all (`Unknown`, `ContainerStatusUnknown`) | `NodeRebooted` |
//! | another reason of the kubelet (`OOMKilled`, `Evicted`, `UnexpectedAdmissionError`, `StartError` …) | the same |
//! | an exited container with no termination message, or an invalid one | `RunnerKilled` |
//! | none of these | `PodFailed`: its container never ran |

use crate::api::runner::outcome::{EndReason, Outcome};
use crate::k8s::views::{PodConditionType, PodView, TerminatedView};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// A VM that ran this long resets the backoff of its next start.
pub const BACKOFF_RESET_UPTIME: SignedDuration = SignedDuration::from_mins(10);

/// Reason and message of the exit of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// In CamelCase.
    pub reason: String,
    /// Details for users.
    pub message: String,
    /// Whether the guest powered itself off.
    pub by_guest: bool,
    /// Whether it had run for [`BACKOFF_RESET_UPTIME`].
    pub resets_backoff: bool,
    /// The time of the end.
    pub at: Option<Timestamp>,
}

impl End {
    /// The end of this pod.
    #[must_use]
    pub fn of(pod: &PodView) -> Self {
        let terminated = pod
            .container()
            .and_then(|container| container.state.terminated.as_ref());
        let outcome = terminated.and_then(|t| Outcome::parse(t.message.as_deref()?));
        // A runner that was stopped does not know the cause.
        let is_stopped = outcome
            .as_ref()
            .is_none_or(|outcome| outcome.reason == EndReason::Stopped);
        let has_oom_kill = terminated.is_some_and(|t| t.reason.as_deref() == Some(OOM_KILLED));
        let (reason, message) = match (&outcome, stopped_by_cluster(pod).filter(|_| is_stopped)) {
            (_, Some(end)) => end,
            // The kernel has killed QEMU, but not the runner.
            (Some(outcome), None)
                if has_oom_kill && !is_stopped && outcome.qemu_exit == Some(SIGKILL_STATUS) =>
            {
                (OOM_KILLED.to_owned(), outcome.message.clone())
            }
            (Some(outcome), None) => (
                <&str>::from(outcome.reason).to_owned(),
                outcome.message.clone(),
            ),
            (None, None) => match terminated {
                Some(terminated) => without_outcome(pod, terminated),
                None => (
                    "PodFailed".to_owned(),
                    message(
                        pod,
                        None,
                        "the pod was stopped before its container started",
                    ),
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
            resets_backoff: ran.is_some_and(|ran| ran >= BACKOFF_RESET_UPTIME),
            at: finished,
        }
    }
}

/// The kubelet's reason of a container in which the kernel has killed a process for lack of memory.
const OOM_KILLED: &str = "OOMKilled";
/// The exit status of a QEMU that was killed.
const SIGKILL_STATUS: i32 = -9;

/// Reason and message of a pod that the cluster has stopped, not the VM and not the operator.
pub fn stopped_by_cluster(pod: &PodView) -> Option<(String, String)> {
    let end = |reason: &str, default: &str| (reason.to_owned(), message(pod, None, default));
    match pod.status.reason.as_deref() {
        Some("Terminated" | "NodeShutdown" | "Shutdown") => {
            return Some(end("NodeShutdown", "the node of the pod was shut down"));
        }
        Some(reason) => {
            return Some(end(
                reason,
                "Kubernetes does not report why the pod has failed",
            ));
        }
        None => {}
    }
    let target = pod.condition(PodConditionType::DisruptionTarget)?;
    let reason = match target.reason.as_deref()? {
        "PreemptionByScheduler" => "Preempted",
        "DeletionByPodGC" => "NodeLost",
        // EvictionByEvictionAPI, DeletionByTaintManager, TerminationByKubelet
        _ => "Evicted",
    };
    Some((
        reason.to_owned(),
        target.message.as_deref().unwrap_or_default().to_owned(),
    ))
}

/// Reason and message of an exited container without an outcome of the runner.
fn without_outcome(pod: &PodView, terminated: &TerminatedView) -> (String, String) {
    let code = terminated.exit_code;
    match terminated.reason.as_deref() {
        Some("ContainerStatusUnknown" | "Unknown") => {
            let default =
                "the kubelet no longer found the pod's container; the node has probably rebooted";
            (
                "NodeRebooted".to_owned(),
                message(pod, terminated.message.as_deref(), default),
            )
        }
        Some(reason) if !matches!(reason, "Error" | "Completed") => {
            let default = match reason {
                OOM_KILLED => {
                    "the kernel killed a process of the pod because the pod ran out of memory; raise the memory limit in \
                     spec.resources of the VM, or remove spec.resources"
                }
                _ => "the kubelet does not report why the container has exited",
            };
            (
                reason.to_owned(),
                message(pod, terminated.message.as_deref(), default),
            )
        }
        _ => {
            let default = format!(
                "the runner exited with code {code} and wrote no termination message; see the log of the exited pod"
            );
            (
                "RunnerKilled".to_owned(),
                message(pod, terminated.message.as_deref(), &default),
            )
        }
    }
}

/// The first text that is not empty: the pod's message, the container's message, or the default.
fn message(pod: &PodView, container: Option<&str>, default: &str) -> String {
    let mut texts = [pod.status.message.as_deref(), container]
        .into_iter()
        .flatten()
        .map(str::trim);
    texts
        .find(|text| !text.is_empty())
        .unwrap_or(default)
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
        for (status, reason, text) in [
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
                "does not report why the pod",
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
            (
                killed("StartError", 128),
                "StartError",
                "does not report why the container",
            ),
            (killed("Error", 137), "RunnerKilled", "code 137"),
            (ended("garbled {", 5), "RunnerKilled", "garbled {"),
            (
                failed(json!({})),
                "PodFailed",
                "before its container started",
            ),
        ] {
            let End {
                reason: found,
                message,
                by_guest,
                ..
            } = end(status.clone());
            assert_eq!((found.as_str(), by_guest), (reason, false), "{status}");
            assert!(message.contains(text), "{status}: {message}");
        }
    }

    #[test]
    fn runner_exit_reason_takes_precedence_except_after_a_requested_stop() {
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
        let killed = r#"{"reason":"StartFailed","message":"limit","qemuExit":-9}"#;
        let mut status = ended(killed, 5);
        assert_eq!(end(status.clone()).reason, "StartFailed");
        status["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled".into();
        let End {
            reason, message, ..
        } = end(status);
        assert_eq!((&*reason, &*message), ("OOMKilled", "limit"));
        let disk = r#"{"reason":"DiskInUse","message":"/dev/system-disk is in use"}"#;
        assert_eq!(end(ended(disk, 5)).reason, "DiskInUse");
    }
}
