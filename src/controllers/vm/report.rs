//! (client) Status and events: computed by pure functions, written where they differ from what is there.

use crate::api::VirtualMachine;
use crate::api::conditions::{self, ConditionReason, ReadyReason, Wanted};
use crate::api::diagnosis::Diagnosis;
use crate::api::vm::{POD_DELETED, Restarts, State, VirtualMachineStatus, names};
use crate::controllers::vm::context::Context;
use crate::controllers::vm::decide::{self, Decision, DeleteReason, WaitFor};
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::ownership::{next_step, orphan_next_step, owner};
use crate::controllers::vm::pod::restart;
use crate::controllers::vm::views::{PodView, VmView};
use crate::k8s::error::Error;
use crate::k8s::events;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::events::EventType;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

/// Refusals of the API server. The words of a webhook may be others each time, and each write of the status is followed by
/// another look at the VM: they are told anew after a minute at the earliest.
const REFUSALS: [ConditionReason; 6] = [
    ConditionReason::Ready(ReadyReason::QuotaExceeded),
    ConditionReason::Ready(ReadyReason::PolicyRefused),
    ConditionReason::Ready(ReadyReason::NotAuthorized),
    ConditionReason::Ready(ReadyReason::Rejected),
    ConditionReason::Rejected,
    ConditionReason::ResizeRefused,
];

/// Writes status and events. `notes` are conditions besides `Ready`; without, those that are there stay. `created` says
/// whether the VM's pod was made.
///
/// # Errors
/// If the status cannot be written. Events are best effort.
pub async fn report(
    observed: &Observed,
    decision: &Decision,
    problem: Option<Diagnosis>,
    notes: Option<&[Wanted]>,
    created: bool,
    ctx: &Context,
) -> Result<(), Error> {
    if *decision == Decision::StopBySpec {
        // The spec has just changed: what can be said of the VM now follows from the new one.
        return Ok(());
    }
    let vm = &observed.vm;
    let ready = ready(observed, decision, problem);
    let restarts = restarts(observed, decision);
    let restart_request = restart::carried_out(observed, created);
    let words_stay = ctx
        .states
        .keeps_message(&observed.key(), (ctx.cluster.instant)());
    let told = Told {
        ready: &ready,
        notes,
        restarts: restarts.as_ref(),
        restart_request,
        words_stay,
    };
    let Some(status) = operator_fields(vm, &told, observed.now) else {
        return Ok(());
    };
    let before =
        present(vm).and_then(|status| conditions::find(&status.conditions, conditions::READY));
    let is_news = before.is_none_or(|before| before.reason != ready.reason.as_str());
    ctx.writer()
        .apply_status::<VirtualMachine, VmView>(
            &ctx.vms,
            &vm.name_any(),
            names::MANAGER_OPERATOR,
            &status,
        )
        .await?;
    let reasons = [ready.reason.into()]
        .into_iter()
        .chain(notes.into_iter().flatten().map(|note| note.reason));
    if reasons.into_iter().any(|reason| REFUSALS.contains(&reason)) {
        ctx.states
            .rejection_reported(&observed.key(), (ctx.cluster.instant)());
    }
    if is_news {
        publish(vm, &ready, ctx).await;
    }
    Ok(())
}

/// Takes back what a runner told of a VM that does not run any more. It comes before everything else: once there is a
/// new pod, nobody can tell its words from the old one's. Gives the observation with the VM as it is afterwards.
///
/// # Errors
/// If the status cannot be written.
pub async fn take_back(observed: Observed, ctx: &Context) -> Result<Observed, Error> {
    if stopped_runner_fields(&observed).is_none() {
        return Ok(observed);
    }
    let observed = looked_for_pod(observed, ctx).await?;
    let Some(stopped) = stopped_runner_fields(&observed) else {
        return Ok(observed);
    };
    let vm = ctx
        .writer()
        .apply_status::<VirtualMachine, VmView>(
            &ctx.vms,
            &observed.name(),
            names::MANAGER_RUNNER,
            &stopped,
        )
        .await?;
    Ok(Observed { vm, ..observed })
}

/// The observation with the pod that there is after all. Lists and watches may be old: what they say of a pod's end may be
/// of the one before. And a runner whose words are taken back does not repeat them: nobody would learn that the VM runs.
async fn looked_for_pod(observed: Observed, ctx: &Context) -> Result<Observed, Error> {
    let (name, writing) = (observed.name(), ctx.caches.pods.writing());
    let Some(pod) = ctx.writer().find::<Pod, PodView>(&name).await? else {
        return Ok(observed);
    };
    Ok(Observed {
        pod: Some(writing.answered(pod)),
        ..observed
    })
}

fn present(vm: &VirtualMachine) -> Option<&VirtualMachineStatus> {
    vm.status.as_ref()
}

/// The condition `Ready`, as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// State of the VM, or what is in its way.
    pub reason: ReadyReason,
    /// What a user should know.
    pub message: String,
}

impl Ready {
    fn wanted(&self) -> Wanted {
        let (status, reason) = (self.reason.is_ready(), self.reason.into());
        Wanted {
            type_: conditions::READY,
            status,
            reason,
            message: self.message.clone(),
        }
    }
}

/// What the VM's state is called.
#[must_use]
pub fn ready(observed: &Observed, decision: &Decision, problem: Option<Diagnosis>) -> Ready {
    let name = observed.name();
    let stopping = || {
        (
            ReadyReason::Stopping,
            format!("pod {name:?} is ending{}", time_to_end(observed, &name)),
        )
    };
    let (reason, message) = match (problem, decision) {
        (
            _,
            Decision::Delete {
                why: DeleteReason::Outdated,
                ..
            },
        ) => {
            let what = format!(
                "pod {name:?} has not run yet and is made anew, as what it is made of has changed"
            );
            (ReadyReason::Starting, what)
        }
        (Some(problem), _) => (problem.reason, problem.to_string()),
        (
            None,
            Decision::Delete {
                why: DeleteReason::Ended,
                ..
            },
        ) => (
            ReadyReason::Starting,
            format!("pod {name:?} has ended; a new one follows"),
        ),
        (
            None,
            Decision::Delete {
                why: DeleteReason::Restart,
                ..
            },
        ) => {
            let what = format!(
                "pod {name:?} is ending, as spec.vm.restartRequest asks; a new one follows"
            );
            (ReadyReason::Stopping, what)
        }
        (
            None,
            Decision::Wait(WaitFor::PodEnd)
            | Decision::Delete {
                why: DeleteReason::Stop,
                ..
            },
        ) => stopping(),
        (None, Decision::Remember(restarts)) if restarts.reason == POD_DELETED => stopping(),
        (None, Decision::Wait(WaitFor::Medium { until })) => (
            ReadyReason::Starting,
            format!("the start waits for an image, until {until} at the latest"),
        ),
        (None, Decision::Wait(WaitFor::OtherPod)) => {
            let message = match observed.earlier_pod() {
                None => format!("pod {name:?}, which is not this VM's, is ending"),
                Some(pod) => {
                    let is_alive = pod.has_begun() && !pod.has_ended();
                    let next = match is_alive && pod.metadata.deletion_timestamp.is_some() {
                        true => format!(
                            "it is ending, and its guest has time to shut down; {}",
                            pull_its_plug(&name)
                        ),
                        false => orphan_next_step(pod, &observed.vm).unwrap_or_else(|| {
                            next_step(owner(pod, &name).as_deref(), "pod", &name)
                        }),
                    };
                    format!("pod {name:?} is left from an earlier VM of this name; {next}")
                }
            };
            (ReadyReason::Starting, message)
        }
        (None, Decision::Remember(restarts)) => {
            (ReadyReason::RestartBackoff, ended(&name, restarts))
        }
        (None, Decision::Wait(WaitFor::Pause { .. })) => {
            let past = present(&observed.vm).and_then(|status| status.restarts.as_ref());
            (
                ReadyReason::RestartBackoff,
                past.map(|past| ended(&name, past)).unwrap_or_default(),
            )
        }
        _ if observed.vm.spec.vm.state == State::Stopped => {
            (ReadyReason::Stopped, "the VM is stopped".to_owned())
        }
        _ if observed.is_running() => (ReadyReason::Running, "the VM is running".to_owned()),
        _ => (ReadyReason::Starting, format!("pod {name:?} is on its way")),
    };
    Ready { reason, message }
}

fn time_to_end(observed: &Observed, name: &str) -> String {
    // What has ended meanwhile gets another status at once, and this one stays as it is: it is not worth a write.
    if !observed.has_begun() {
        return String::new();
    }
    let seconds = observed.vm.spec.vm.powerdown_timeout;
    format!(
        "; the guest has {seconds} s to shut down; {}",
        pull_its_plug(name)
    )
}

/// For guests that do not shut down.
fn pull_its_plug(pod: &str) -> String {
    format!("to end it as pulling its plug does: kubectl exec {pod} -- vm-runner power-off")
}

fn ended(name: &str, restarts: &Restarts) -> String {
    let Restarts {
        attempts,
        reason,
        message,
        ..
    } = restarts;
    let pause = decide::pause(restarts).as_secs();
    if reason == POD_DELETED {
        let why = if message.is_empty() {
            "nobody says why"
        } else {
            message
        };
        let until = decide::pause_ends(restarts);
        return format!(
            "pod {name:?} was deleted, not by its operator ({why}); start {attempts} in a row is tried at {until}, after \
             {pause} s; if that happens again and again, stop what deletes it, such as a NoExecute taint, a descheduler or a \
             webhook; raise spec.vm.restartRequest to start at once"
        );
    }
    let message = if message.is_empty() {
        String::new()
    } else {
        format!(": {message}")
    };
    format!("the VM ended ({reason}{message}); start {attempts} in a row is tried after {pause} s")
}

/// Past ends that stay in the status: the new one, or the old ones while the VM should run. A VM that was stopped
/// starts without a pause.
#[must_use]
pub fn restarts(observed: &Observed, decision: &Decision) -> Option<Restarts> {
    match decision {
        Decision::Remember(restarts) => Some(restarts.clone()),
        _ if observed.vm.spec.vm.state == State::Stopped => None,
        _ => present(&observed.vm).and_then(|status| status.restarts.clone()),
    }
}

/// The condition of a VM whose runner could not read or write what it needs, until a runner has come further.
#[must_use]
pub fn data_not_accessible(observed: &Observed, decision: &Decision) -> Option<Wanted> {
    let last = restarts(observed, decision).filter(|_| !observed.is_running())?;
    let reason = ConditionReason::DataNotAccessible;
    (last.reason == reason.as_str()).then_some(Wanted {
        type_: conditions::DATA_ACCESSIBLE,
        status: false,
        reason,
        message: last.message,
    })
}

/// What the operator tells in a VM's status.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// The VM's state.
    pub ready: &'a Ready,
    /// Conditions besides; without, those that are there stay.
    pub notes: Option<&'a [Wanted]>,
    /// Past ends.
    pub restarts: Option<&'a Restarts>,
    /// The restart that was carried out last.
    pub restart_request: Option<i64>,
    /// Whether a refusal keeps the words that it was told with, where nothing else of it has changed.
    pub words_stay: bool,
}

/// The operator's part of the status, if it differs from what is there.
#[must_use]
pub fn operator_fields(vm: &VirtualMachine, told: &Told<'_>, now: Timestamp) -> Option<Value> {
    let Told {
        ready,
        notes,
        restarts,
        restart_request,
        words_stay,
    } = *told;
    let present_conditions = present(vm)
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let at = |wanted: &Wanted| {
        let next = wanted.at(present_conditions, vm.metadata.generation, now);
        let same = |before: &&Condition| {
            Condition {
                message: next.message.clone(),
                ..(*before).clone()
            } == next
        };
        let stays = words_stay && REFUSALS.contains(&wanted.reason);
        let before = conditions::find(present_conditions, wanted.type_)
            .filter(|_| stays)
            .filter(same);
        before.cloned().unwrap_or(next)
    };
    let noted: Vec<Condition> = conditions::ADDITIONAL
        .iter()
        .filter_map(|type_| conditions::find(present_conditions, type_).cloned())
        .collect();
    let notes: Vec<Condition> =
        notes.map_or_else(|| noted.clone(), |notes| notes.iter().map(at).collect());
    let conditions: Vec<Condition> = [at(&ready.wanted())].into_iter().chain(notes).collect();
    let same = present(vm).is_some_and(|status| {
        status.observed_generation == vm.metadata.generation
            && status.restarts.as_ref() == restarts
            && status.observed_restart_request == restart_request
    });
    let all_there = conditions
        .iter()
        .all(|wanted| conditions::find(present_conditions, &wanted.type_) == Some(wanted));
    // One that is not told any more is taken away by leaving it out.
    if same && all_there && noted.len() == conditions.len() - 1 {
        return None;
    }
    let status = json!({
        "observedGeneration": vm.metadata.generation,
        "restarts": restarts,
        "observedRestartRequest": restart_request,
        "conditions": conditions,
    });
    Some(apply_body(vm, without_nulls(status)))
}

/// The runner's part of the status as it is where nothing runs, if there is no pod of this VM that could tell, and
/// what the runner told last says otherwise. A runner that was killed cannot tell itself.
#[must_use]
pub fn stopped_runner_fields(observed: &Observed) -> Option<Value> {
    let status = present(&observed.vm)?;
    if observed.own_pod().is_some_and(|pod| !pod.has_ended()) {
        return None;
    }
    // Every runner writes these from its first word on, and nobody else's hold on a field can keep them as they are.
    let looks_alive = conditions::INITIAL
        .iter()
        .any(|type_| conditions::is_true(&status.conditions, type_))
        || status.cpus != 0
        || !status.console_client.is_empty();
    looks_alive.then(|| {
        let stopped = |type_: &'static str| -> Condition {
            let message = "the VM is not running".to_owned();
            let wanted = Wanted {
                type_,
                status: false,
                reason: ConditionReason::VmStopped,
                message,
            };
            wanted.at(
                &status.conditions,
                observed.vm.metadata.generation,
                observed.now,
            )
        };
        let conditions = conditions::INITIAL.map(stopped);
        apply_body(
            &observed.vm,
            json!({"cpus": 0, "ram": "0", "consoleClient": "", "conditions": conditions}),
        )
    })
}

/// With the version that it was computed from: neither a VM of the same name that came later nor one that has changed
/// since is written to. (The UID would not do: the API server does not look at it in a write to a status.)
fn apply_body(vm: &VirtualMachine, status: Value) -> Value {
    json!({
        "apiVersion": VirtualMachine::api_version(&()),
        "kind": VirtualMachine::kind(&()),
        "metadata": {"name": vm.name_any(), "resourceVersion": vm.resource_version()},
        "status": status,
    })
}

fn without_nulls(mut value: Value) -> Value {
    if let Some(map) = value.as_object_mut() {
        map.retain(|_, v| !v.is_null());
    }
    value
}

async fn publish(vm: &VirtualMachine, ready: &Ready, ctx: &Context) {
    let type_ = if ready.reason.is_problem() {
        EventType::Warning
    } else {
        EventType::Normal
    };
    events::publish(
        &ctx.cluster,
        &vm.object_ref(&()),
        type_,
        ready.reason.as_str(),
        &ready.message,
    )
    .await;
}

#[cfg(test)]
mod tests;
