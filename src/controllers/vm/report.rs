//! (client) Status and events of a VM. Pure functions compute them; only differences are written.

mod ready;
mod shutdown_notice;
mod volumes;

pub(super) use ready::recovery;
pub use ready::{Ready, ready};
pub use shutdown_notice::publish_shutdown;

use crate::api::VirtualMachine;
use crate::api::conditions::find;
use crate::api::vm::conditions::{self, ConditionReason, DesiredCondition, ReadyReason};
use crate::api::vm::diagnosis::Diagnosis;
use crate::api::vm::{GuestShutdown, Restarts, State, UsedVolume, VirtualMachineStatus};
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::decide::{Decision, DeleteReason};
use crate::controllers::vm::observe::{self, Observed, ReportCopy};
use crate::controllers::vm::pod::restart;
use crate::controllers::vm::runner_report;
use crate::controllers::vm::status;
use crate::k8s::error::Error;
use crate::k8s::events;
use crate::settings::GuestShutdownRecord;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kube::runtime::events::EventType;

/// Rejections by the API server. The message of a webhook can differ at each request, and each write of the status triggers a
/// reconcile. Therefore a reported message is retained for at least a minute.
const REJECTIONS: [ConditionReason; 6] = [
    ConditionReason::Ready(ReadyReason::QuotaExceeded),
    ConditionReason::Ready(ReadyReason::PolicyRefused),
    ConditionReason::Ready(ReadyReason::NotAuthorized),
    ConditionReason::Ready(ReadyReason::Rejected),
    ConditionReason::Rejected,
    ConditionReason::ResizeRefused,
];

/// Writes the status, and publishes the event of a new reason. `notes` are the additional conditions; with `None`, present ones
/// are retained. `created` is whether the VM's pod was created.
///
/// # Errors
/// If the status cannot be written. Events are best effort.
pub async fn report(
    observed: &Observed,
    decision: &Decision,
    problem: Option<Diagnosis>,
    notes: Option<&[DesiredCondition]>,
    created: bool,
    ctx: &VmController,
) -> Result<(), Error> {
    let records = ctx.settings.reconciler.guest_shutdown_record;
    if *decision == Decision::StopAfterShutdown && records == GuestShutdownRecord::Spec {
        // The spec has just changed, so its next reconcile reports the state.
        return Ok(());
    }
    let vm = &observed.vm;
    let ready = ready(observed, decision, problem);
    let restarts = restarts(observed, decision);
    let volumes = volumes::with_import(volumes::retained(observed), decision);
    let fields = OperatorFields {
        ready: &ready,
        notes,
        restarts: restarts.as_ref(),
        guest_shutdown: guest_shutdown(vm, decision),
        restart_request: restart::carried_out(observed, created),
        volumes: &volumes,
        records_volumes: !observed.recorded.is_empty()
            || matches!(observed.copy, ReportCopy::Due(..)),
        retain_rejections: ctx
            .states
            .keeps_message(&observed.key(), (ctx.scope.cluster.instant)()),
    };
    let Some(status) = operator_status(vm, &fields, observed.now) else {
        return runner_report::copy(observed, ctx).await;
    };
    let is_new = !has_reason(observed, ready.reason);
    runner_report::write(observed, &status, ctx).await?;
    let mut reasons = notes.into_iter().flatten().map(|note| note.reason);
    if REJECTIONS.contains(&ready.reason.into()) || reasons.any(|it| REJECTIONS.contains(&it)) {
        ctx.states
            .rejection_reported(&observed.key(), (ctx.scope.cluster.instant)());
    }
    // A start is one event. Each exit is an event, also if the reason remains that of the previous exit.
    let is_announced =
        ready.reason == ReadyReason::Running && runner_report::announces_start(observed);
    if is_new && !is_announced || matches!(decision, Decision::Remember(_)) {
        publish(vm, &ready, ctx).await;
    }
    Ok(())
}

/// Records the PVCs of a pod that is about to be created. The write has the version of the VM as a precondition, and reports the start,
/// so that a new VM needs no further write. `observed` gets the VM as written.
///
/// # Errors
/// If the status cannot be written.
pub async fn record_volumes(
    observed: &mut Observed,
    mounted: Vec<UsedVolume>,
    ctx: &VmController,
) -> Result<(), Error> {
    let present = observed.recorded.iter().map(|it| &it.volume);
    if mounted
        .iter()
        .all(|volume| present.clone().any(|it| it.is_same(volume)))
    {
        return Ok(());
    }
    let volumes = volumes::with_mounted(volumes::retained(observed), mounted);
    write_start(observed, &volumes, ctx).await.map(drop)
}

/// Reports the start of a VM whose pod is about to be created, if the creation itself adds nothing to that status. The write has the version of
/// the VM as a precondition, so its success proves that the VM is current. `observed` gets the VM as written. Returns whether there was
/// a write.
///
/// # Errors
/// If the status cannot be written: with the code 409 if the VM has changed.
pub async fn report_start(observed: &mut Observed, ctx: &VmController) -> Result<bool, Error> {
    use ReadyReason::{RestartBackoff, Stopped, Stopping};
    // After a rejection, each attempt would report the start and then the rejection.
    let mut before = [Stopped, Stopping, RestartBackoff].into_iter();
    let is_from = before.any(|reason| has_reason(observed, reason));
    let [with_pod, without] = [true, false].map(|created| restart::carried_out(observed, created));
    if !is_from || with_pod != without {
        return Ok(false);
    }
    let volumes = volumes::retained(observed);
    write_start(observed, &volumes, ctx).await
}

/// Writes the status of a VM whose pod is about to be created, if it differs.
async fn write_start(
    observed: &mut Observed,
    volumes: &[UsedVolume],
    ctx: &VmController,
) -> Result<bool, Error> {
    let vm = &observed.vm;
    let ready = ready(observed, &Decision::Create, None);
    let restarts = restarts(observed, &Decision::Create);
    let fields = OperatorFields {
        ready: &ready,
        notes: None,
        restarts: restarts.as_ref(),
        guest_shutdown: guest_shutdown(vm, &Decision::Create),
        restart_request: restart::carried_out(observed, false),
        volumes,
        records_volumes: true,
        retain_rejections: false,
    };
    let is_new = !has_reason(observed, ready.reason);
    let Some(status) = operator_status(vm, &fields, observed.now) else {
        return Ok(false);
    };
    let written = runner_report::write(observed, &status, ctx).await?;
    if is_new {
        publish(vm, &ready, ctx).await;
    }
    observed.recorded = observe::recorded(&written, ctx);
    (observed.vm, observed.copy) = (written, ReportCopy::None);
    Ok(true)
}

/// Whether the present condition `Ready` has that reason.
fn has_reason(observed: &Observed, reason: ReadyReason) -> bool {
    let ready = find(observed.conditions(), conditions::READY);
    ready.is_some_and(|ready| ready.reason == reason.as_str())
}

/// The past exits that the status retains: a new one, or the present ones while the desired state is `Running`. A stopped VM
/// starts without a delay. So does a VM after a restart request, or after a change of its spec while it did not run.
#[must_use]
pub fn restarts(observed: &Observed, decision: &Decision) -> Option<Restarts> {
    match decision {
        Decision::Remember(restarts) => Some(restarts.clone()),
        // A completed import ends the row of its failures.
        Decision::RecordImport { .. }
        | Decision::Delete {
            why: DeleteReason::Restart,
            ..
        } => None,
        _ if observed.desired_state() == State::Stopped => None,
        _ if observed.has_changed_spec() && !observed.is_running() => None,
        _ => observed.vm.status.as_ref()?.restarts.clone(),
    }
}

/// The shutdown by the guest that the status records: a new one, or the present one while the spec has not changed since.
fn guest_shutdown(vm: &VirtualMachine, decision: &Decision) -> Option<GuestShutdown> {
    let generation = vm.metadata.generation?;
    if *decision == Decision::StopAfterShutdown {
        return Some(GuestShutdown { generation });
    }
    let present = vm.status.as_ref()?.guest_shutdown;
    present.filter(|shutdown| shutdown.generation == generation)
}

/// The condition of a VM until it runs, if its runner cannot access its volumes or misses files in them.
#[must_use]
pub fn data_not_accessible(observed: &Observed, decision: &Decision) -> Option<DesiredCondition> {
    let last = restarts(observed, decision).filter(|_| !observed.is_running())?;
    let reasons = [
        ConditionReason::DataNotAccessible,
        ConditionReason::DataMissing,
    ];
    let reason = reasons.into_iter().find(|it| last.reason == it.as_str())?;
    Some(DesiredCondition {
        type_: conditions::DATA_ACCESSIBLE,
        status: false,
        reason,
        message: last.message,
    })
}

/// The operator's fields of the status.
#[derive(Clone, Copy, Debug)]
pub struct OperatorFields<'a> {
    /// The condition `Ready`.
    pub ready: &'a Ready,
    /// The additional conditions. With `None`, present ones are retained.
    pub notes: Option<&'a [DesiredCondition]>,
    /// Past exits.
    pub restarts: Option<&'a Restarts>,
    /// The shutdown by the guest that keeps the VM stopped.
    pub guest_shutdown: Option<GuestShutdown>,
    /// The last restart request that was carried out.
    pub restart_request: Option<i64>,
    /// The PVCs that pods of the VM have mounted.
    pub volumes: &'a [UsedVolume],
    /// Whether a difference of the volumes alone is written. An upgrade of the operator writes no status of all running VMs.
    pub records_volumes: bool,
    /// Whether a rejection retains its message if only the message differs.
    pub retain_rejections: bool,
}

/// The VM's status with the operator's fields, if one of them differs from the present status.
#[must_use]
pub fn operator_status(
    vm: &VirtualMachine,
    fields: &OperatorFields<'_>,
    now: Timestamp,
) -> Option<VirtualMachineStatus> {
    let present = status::present(vm);
    let generation = vm.metadata.generation;
    let next = VirtualMachineStatus {
        observed_generation: generation,
        restarts: fields.restarts.cloned(),
        guest_shutdown: fields.guest_shutdown,
        observed_restart_request: fields.restart_request,
        conditions: next_conditions(&present.conditions, fields, generation, now),
        ..present.clone()
    };
    let is_recorded = present.volumes == fields.volumes || !fields.records_volumes;
    if next == present && is_recorded {
        return None;
    }
    Some(VirtualMachineStatus {
        volumes: fields.volumes.to_vec(),
        ..next
    })
}

/// The list with the operator's conditions. The order, and the conditions of runners and of other programs, are retained.
fn next_conditions(
    present: &[Condition],
    fields: &OperatorFields<'_>,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let at = |wanted: &DesiredCondition| {
        let next = wanted.at(present, generation, now);
        let same = |before: &&Condition| {
            Condition {
                message: next.message.clone(),
                ..(*before).clone()
            } == next
        };
        let is_retained = fields.retain_rejections && REJECTIONS.contains(&wanted.reason);
        let before = find(present, wanted.type_)
            .filter(|_| is_retained)
            .filter(same);
        before.cloned().unwrap_or(next)
    };
    let ready = fields.ready.wanted();
    let notes = fields.notes.into_iter().flatten();
    let wanted: Vec<&DesiredCondition> = [&ready].into_iter().chain(notes).collect();
    // Without a note, an additional condition is removed.
    let is_removed = |condition: &Condition| {
        fields.notes.is_some() && conditions::ADDITIONAL.contains(&condition.type_.as_str())
    };
    let mut next = Vec::new();
    for condition in present {
        match wanted
            .iter()
            .copied()
            .find(|it| it.type_ == condition.type_)
        {
            Some(wanted) => next.push(at(wanted)),
            None if is_removed(condition) => {}
            None => next.push(condition.clone()),
        }
    }
    let is_absent = |wanted: &&DesiredCondition| find(present, wanted.type_).is_none();
    next.extend(wanted.into_iter().filter(is_absent).map(at));
    next
}

async fn publish(vm: &VirtualMachine, ready: &Ready, ctx: &VmController) {
    let type_ = if ready.reason.is_problem() {
        EventType::Warning
    } else {
        EventType::Normal
    };
    events::publish(
        &ctx.scope.cluster,
        &vm.object_ref(&()),
        type_,
        ready.reason.as_str(),
        &ready.message,
    )
    .await;
}

#[cfg(test)]
mod tests;
