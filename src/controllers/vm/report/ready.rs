//! (pure) The condition `Ready`: its reason and its message.

use crate::api::conditions::find;
use crate::api::runner::outcome::EndReason;
use crate::api::vm::conditions::{self, DesiredCondition, ReadyReason};
use crate::api::vm::diagnosis::Diagnosis;
use crate::api::vm::{POD_DELETED, Restarts, State};
use crate::controllers::vm::decide::{self, Decision, DeleteReason, WaitFor};
use crate::controllers::vm::import;
use crate::controllers::vm::observe::{Observed, since};
use crate::controllers::vm::ownership::{next_step, user};
use crate::controllers::vm::views::exit::BACKOFF_RESET_UPTIME;
use crate::k8s::ownership::removal_of_orphan;
use kube::ResourceExt;
use std::time::Duration;

/// The desired condition `Ready`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The state of the VM, or its blocking condition.
    pub reason: ReadyReason,
    /// The message for users.
    pub message: String,
}

impl Ready {
    pub(super) fn wanted(&self) -> DesiredCondition {
        let (status, reason) = (self.reason.is_ready(), self.reason.into());
        DesiredCondition {
            type_: conditions::READY,
            status,
            reason,
            message: self.message.clone(),
        }
    }
}

/// The desired condition `Ready`: the blocking condition if there is one, otherwise the state of the VM.
#[must_use]
pub fn ready(observed: &Observed, decision: &Decision, problem: Option<Diagnosis>) -> Ready {
    let name = observed.name();
    let (reason, message) = match (problem, decision) {
        (
            _,
            Decision::Delete {
                why: why @ DeleteReason::Outdated,
                ..
            },
        )
        | (None, Decision::Delete { why, .. }) => deleting(*why, observed, &name),
        (Some(problem), _) => (problem.reason, problem.to_string()),
        (None, Decision::Wait(WaitFor::PodEnd)) => stopping(observed, &name),
        (None, Decision::Remember(restarts)) if restarts.reason == POD_DELETED => {
            stopping(observed, &name)
        }
        (None, Decision::Remember(restarts)) => (
            ReadyReason::RestartBackoff,
            restart_delayed(observed, &name, restarts),
        ),
        (None, Decision::Wait(WaitFor::Pause { .. })) => {
            let message = past_exit(observed).map(|past| restart_delayed(observed, &name, past));
            (ReadyReason::RestartBackoff, message.unwrap_or_default())
        }
        (None, Decision::Wait(WaitFor::Medium { until })) => (
            ReadyReason::Starting,
            format!(
                "the VM starts when its CD image is downloaded, or at {until} with an empty CD drive"
            ),
        ),
        (None, Decision::Wait(WaitFor::Correction)) => refused_import(observed),
        (None, Decision::Wait(WaitFor::OtherPod)) => {
            (ReadyReason::Starting, name_in_use(observed, &name))
        }
        (None, Decision::Keep) if observed.is_being_deleted() => {
            (ReadyReason::Deleting, deleting_vm(observed))
        }
        (None, Decision::StopAfterShutdown) => (ReadyReason::Stopped, AFTER_SHUTDOWN.to_owned()),
        _ if observed.desired_state() == State::Stopped => {
            (ReadyReason::Stopped, stopped(observed).to_owned())
        }
        _ if observed.is_running() => (ReadyReason::Running, running(observed)),
        _ => starting(observed, &name, format!("pod {name:?} is starting")),
    };
    Ready { reason, message }
}

/// The message of a VM that stays stopped after a shutdown by the guest, although `spec.vm.state` is `Running`.
const AFTER_SHUTDOWN: &str = "the VM remains stopped, because its guest has shut down and spec.guestShutdownStops is true; to \
    start the VM, change its spec, for example increase spec.vm.restartRequest";

fn stopped(observed: &Observed) -> &'static str {
    match observed.vm.spec.vm.state {
        State::Running => AFTER_SHUTDOWN,
        State::Stopped => "the VM is stopped",
    }
}

/// The state of a VM that starts. It retains the cause of the last exit, because a start that fails again takes longer
/// than the delay between two starts.
fn starting(observed: &Observed, name: &str, message: String) -> (ReadyReason, String) {
    if let Some(message) = import::message(observed) {
        return importing(observed, message);
    }
    match past_exit(observed).filter(|_| !observed.has_changed_spec()) {
        Some(past) if is_failure(past) => {
            (ReadyReason::RestartBackoff, restart_in_progress(name, past))
        }
        Some(past) => {
            let cause = cause(past);
            (
                ReadyReason::Starting,
                format!("{message}; cause of the last stop: {cause}"),
            )
        }
        None => (ReadyReason::Starting, message),
    }
}

/// The state of a VM whose disk is being filled, with the cause of the last failure.
fn importing(observed: &Observed, message: String) -> (ReadyReason, String) {
    let past = past_exit(observed).filter(|_| !observed.has_changed_spec());
    let message = match past {
        Some(past) => format!("{message}; cause of the last failure: {}", cause(past)),
        None => message,
    };
    (ReadyReason::ImportingDisk, message)
}

/// The state of a VM with an image that cannot be imported.
fn refused_import(observed: &Observed) -> (ReadyReason, String) {
    let problem = observed.own_pod().and_then(|pod| import::refusal(pod));
    let shown = problem.map(|problem| (problem.reason, problem.to_string()));
    shown.unwrap_or((ReadyReason::ImportFailed, String::new()))
}

fn past_exit(observed: &Observed) -> Option<&Restarts> {
    observed.vm.status.as_ref()?.restarts.as_ref()
}

/// The time until a running VM has recovered from its last failure. Until then, its next exit continues the row of failures.
pub(in crate::controllers::vm) fn recovery(observed: &Observed) -> Option<Duration> {
    past_exit(observed).filter(|past| is_failure(past) && observed.is_running())?;
    let running = find(observed.conditions(), conditions::RUNNING)?;
    let uptime = since(running.last_transition_time.0, observed.now);
    let reset = Duration::try_from(BACKOFF_RESET_UPTIME).unwrap_or_default();
    Some(reset.saturating_sub(uptime)).filter(|left| !left.is_zero())
}

/// Whether the exit is not an ordinary one: the guest has powered itself off, or another client, such as a drain, has
/// deleted the pod.
fn is_failure(past: &Restarts) -> bool {
    let is_ordinary =
        [POD_DELETED, EndReason::GuestShutdown.into()].contains(&past.reason.as_str());
    past.attempts > 1 || !is_ordinary
}

/// The message of a running VM. It contains the reason for an emulation that is not configured, the problem of a CD image, and
/// the cause of a recent failure.
fn running(observed: &Observed) -> String {
    let status = observed.vm.status.as_ref();
    let emulation = status.and_then(|status| conditions::emulation(&status.conditions));
    let media = status.and_then(|status| find(&status.conditions, conditions::MEDIA_READY));
    let media = media.filter(|it| it.status == "False");
    let failure = past_exit(observed).filter(|_| recovery(observed).is_some());
    let failure = failure.map(|past| {
        let (cause, attempts) = (cause(past), past.attempts);
        format!("consecutive restarts: {attempts}; cause of the last stop: {cause}")
    });
    ["the VM is running".to_owned()]
        .into_iter()
        .chain(emulation.map(str::to_owned))
        .chain(media.map(|it| it.message.clone()))
        .chain(failure)
        .collect::<Vec<_>>()
        .join("; ")
}

fn stopping(observed: &Observed, name: &str) -> (ReadyReason, String) {
    let has_ended = observed.own_pod().is_some_and(|pod| pod.has_ended());
    if has_ended && observed.desired_state() == State::Running {
        return starting(observed, name, exited(name));
    }
    let message = if has_ended {
        format!("pod {name:?} has exited and is being deleted")
    } else {
        format!("pod {name:?} is stopping{}", shutdown_time(observed, name))
    };
    let deletion = if observed.is_being_deleted() {
        format!("; {}", deleting_vm(observed))
    } else {
        String::new()
    };
    (ReadyReason::Stopping, message + &deletion)
}

/// The state of a VM object with a deletion time.
fn deleting_vm(observed: &Observed) -> String {
    match observed.vm.finalizers() {
        [] => "the VM object is being deleted".to_owned(),
        finalizers => format!(
            "finalizers delay the deletion of the VM object: {}. Check the controllers that remove these finalizers",
            finalizers.join(", ")
        ),
    }
}

/// The state of a VM while its pod is deleted for that reason.
fn deleting(why: DeleteReason, observed: &Observed, name: &str) -> (ReadyReason, String) {
    match why {
        DeleteReason::Stop => stopping(observed, name),
        DeleteReason::Ended => starting(observed, name, exited(name)),
        DeleteReason::Restart => (
            ReadyReason::Stopping,
            format!(
                "pod {name:?} is stopping for the restart that spec.vm.restartRequest requests; the operator then creates a \
                 new pod"
            ),
        ),
        DeleteReason::OtherClaim => (
            ReadyReason::Starting,
            format!(
                "a PVC of pod {name:?} is gone or belongs to another VM, and the pod has not started; the operator replaces the pod"
            ),
        ),
        DeleteReason::Outdated => (
            ReadyReason::Starting,
            format!(
                "the configuration of the VM has changed before pod {name:?} has started the VM; the operator replaces the pod"
            ),
        ),
    }
}

fn exited(name: &str) -> String {
    format!("pod {name:?} has exited; the operator creates a new pod")
}

/// The message of a VM that waits for the end of a pod that has its name and another owner.
fn name_in_use(observed: &Observed, name: &str) -> String {
    let Some(pod) = observed.previous_vm_pod() else {
        return format!(
            "pod {name:?} has the name of the VM's pod, but does not belong to the VM; the VM starts when the deletion of this \
             pod is complete"
        );
    };
    let is_alive = pod.has_started() && !pod.has_ended();
    let next = if is_alive && pod.metadata.deletion_timestamp.is_some() {
        let power_off = power_off(name);
        format!("the pod is stopping, and its guest has time to shut down; {power_off}")
    } else {
        removal_of_orphan(pod, &*observed.vm)
            .unwrap_or_else(|| next_step(user(pod, name).as_deref(), "pod", name))
    };
    format!("pod {name:?} belongs to a previous VM with the same name; {next}")
}

/// The time that the guest has to shut down. Empty if the guest has not run.
fn shutdown_time(observed: &Observed, name: &str) -> String {
    if !observed.has_started() {
        return String::new();
    }
    let seconds = observed.vm.spec.vm.powerdown_timeout;
    let power_off = power_off(name);
    format!("; the guest has {seconds} s to shut down; {power_off}")
}

/// The next step for a guest that does not shut down.
fn power_off(pod: &str) -> String {
    format!(
        "to power the VM off at once (unsaved data is lost): kubectl exec {pod} -- vm-runner power-off"
    )
}

/// The message of a VM that starts again after a delay.
fn restart_delayed(observed: &Observed, name: &str, restarts: &Restarts) -> String {
    let Restarts {
        attempts,
        reason,
        message,
        ..
    } = restarts;
    let delay = decide::pause(restarts).as_secs();
    if reason == POD_DELETED {
        let cause = match message.as_str() {
            "" => "unknown cause",
            message => message,
        };
        let until = decide::pause_ends(restarts);
        return format!(
            "pod {name:?} was deleted, but not by the operator ({cause}); the operator creates the pod again at {until}, {delay} s \
             after the deletion (consecutive restarts: {attempts}). If this happens repeatedly, remove the cause, such as a \
             NoExecute taint of the node or a descheduler. To start the VM now, increase spec.vm.restartRequest"
        );
    }
    let cause = cause(restarts);
    if let Some(due) = import::due(observed) {
        return format!(
            "the import of the image onto PVC {:?} has failed ({cause}); the operator tries again after {delay} s (consecutive \
             failures: {attempts})",
            due.claim
        );
    }
    format!(
        "the VM has stopped ({cause}); the operator starts it again after {delay} s (consecutive restarts: {attempts})"
    )
}

/// The message of a VM while it starts after a failure.
fn restart_in_progress(name: &str, restarts: &Restarts) -> String {
    let (cause, attempts) = (cause(restarts), restarts.attempts);
    format!(
        "the VM has stopped ({cause}); the operator starts it again as pod {name:?} (consecutive restarts: {attempts})"
    )
}

/// The reason of the exit, with its message.
fn cause(restarts: &Restarts) -> String {
    match restarts.message.as_str() {
        "" => restarts.reason.clone(),
        message => format!("{}: {message}", restarts.reason),
    }
}
