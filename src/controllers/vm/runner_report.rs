//! (client) The reports of runners. The operator creates the report of each pod, and copies checked fields into the VM's status.
//!
//! A report is a claim of a program that a guest may control. Therefore the node and the pod's address come from the pod, texts are
//! limited, and no time is later than the operator's clock. `consoleUser` follows the reported connections. The fields `assignment` and `restarts` and
//! the conditions of the operator are never copied. The guest's addresses are the guest's claim, and no decision
//! depends on them.
//!
//! Only the report of the VM's present pod counts. Pods of the Java VM-Operator have none: their runners write to the VM.

mod checks;
mod events;
mod reset;

pub use reset::{reset_stopped_runner, stopped_runner_status};

use crate::api::report;
use crate::api::vm::conditions::ConditionReason;
use crate::api::vm::{VirtualMachineStatus, names};
use crate::api::{VirtualMachine, VmReport, VmReportSpec};
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::observe::{Observed, ReportCopy, RunnerEvent};
use crate::controllers::vm::status;
use crate::controllers::vm::views::ReportView;
use crate::k8s;
use crate::k8s::error::Error;
use crate::k8s::ownership::owns;
use kube::runtime::events::EventType;
use kube::{Resource, ResourceExt};
use std::sync::Arc;
use std::time::Duration;

/// Minimum time between two copies for a VM, however often its runner reports.
const COPY_SPACING: Duration = Duration::from_secs(1);
/// Minimum time between two copies that change only the guest's memory. A balloon changes its size in many steps for about a minute.
const MEMORY_COPY_SPACING: Duration = Duration::from_secs(15);

/// Creates the report of the VM's pod if there is none. The garbage collector deletes it after the pod.
///
/// # Errors
/// If the request fails.
pub async fn create_missing(observed: &Observed, ctx: &VmController) -> Result<(), Error> {
    // With the response to the creation of the pod in this reconcile.
    let Some(pod) = ctx.caches.pods.get(&observed.key()) else {
        return Ok(());
    };
    let is_reporting = owns(&*observed.vm, &*pod)
        && pod.has_report()
        && !pod.has_ended()
        && pod.metadata.deletion_timestamp.is_none();
    let uid = pod.uid().unwrap_or_default();
    if !is_reporting || ctx.caches.reports.get(&ctx.scope.key(&uid)).is_some() {
        return Ok(());
    }
    let vm = observed.name();
    let mut report = VmReport::new(&uid, VmReportSpec { vm: vm.clone() });
    report.metadata.labels = Some(names::labels(&vm));
    report.metadata.owner_references = Some(vec![report::owner(&vm, &uid)]);
    ctx.scope
        .writer()
        .create_or_get::<VmReport, ReportView>(&ctx.caches.reports, &report)
        .await
        .map(drop)
}

/// The observation of a VM with the report of its pod in its status, if the report may be copied now.
#[must_use]
pub fn take(observed: Observed, ctx: &VmController) -> Observed {
    let report = report_of_pod(&observed, ctx);
    let observed = Observed { report, ..observed };
    let Some(status) = reported_status(&observed) else {
        return observed;
    };
    let present = observed.vm.status.clone().unwrap_or_default();
    if status == present {
        return observed;
    }
    let is_memory = VirtualMachineStatus {
        ram: present.ram.clone(),
        ..status.clone()
    } == present;
    let spacing = if is_memory {
        MEMORY_COPY_SPACING
    } else {
        COPY_SPACING
    };
    let now = (ctx.scope.cluster.instant)();
    let delay = ctx.states.report_delay(&observed.key(), spacing, now);
    if !delay.is_zero() {
        return Observed {
            copy: ReportCopy::Later(delay),
            ..observed
        };
    }
    let events = events::changes(&present, &status);
    let copy = ReportCopy::Due(observed.vm.clone(), events);
    let vm = Arc::new(VirtualMachine {
        status: Some(status),
        ..VirtualMachine::clone(&observed.vm)
    });
    Observed {
        copy,
        vm,
        ..observed
    }
}

/// The time until a report is copied that this reconcile has not copied. The response to a creation can be a report of
/// a runner, and the watch does not report it again. `observed` has the pod after all writes.
pub fn recheck(mut observed: Observed, ctx: &VmController) -> Option<Duration> {
    if let Some(delay) = observed.copy.delay() {
        return Some(delay);
    }
    observed.report = report_of_pod(&observed, ctx);
    let reported = reported_status(&observed)?;
    (Some(&reported) != observed.vm.status.as_ref()).then_some(COPY_SPACING)
}

/// The report of the VM's pod.
fn report_of_pod(observed: &Observed, ctx: &VmController) -> Option<Arc<ReportView>> {
    let uid = observed.own_pod()?.uid()?;
    ctx.caches.reports.get(&ctx.scope.key(&uid))
}

/// Copies the report into the VM's status without another change, if that is due.
///
/// # Errors
/// If the status cannot be written.
pub async fn copy(observed: &Observed, ctx: &VmController) -> Result<(), Error> {
    if matches!(observed.copy, ReportCopy::Due(..)) {
        write(observed, &status::present(&observed.vm), ctx).await?;
    }
    Ok(())
}

/// Whether the copy of the report publishes the event of a start.
#[must_use]
pub fn announces_start(observed: &Observed) -> bool {
    let reason = ConditionReason::VmStarted.as_str();
    let is_start = |it: &RunnerEvent| it.reason == reason && it.note != events::RESET_NOTE;
    matches!(&observed.copy, ReportCopy::Due(_, events) if events.iter().any(is_start))
}

/// Writes a status of the observed VM. If the report is due, the status contains it, and its events follow. So the report and the condition
/// `Ready` that results from it are one write. Returns the VM as written.
///
/// # Errors
/// If the status cannot be written. Events are best effort.
pub async fn write(
    observed: &Observed,
    status: &VirtualMachineStatus,
    ctx: &VmController,
) -> Result<Arc<VirtualMachine>, Error> {
    let ReportCopy::Due(stored, events) = &observed.copy else {
        return status::write(&observed.vm, status, ctx).await;
    };
    let written = status::write(stored, status, ctx).await?;
    let now = (ctx.scope.cluster.instant)();
    ctx.states.report_copied(&observed.key(), now);
    for event in events {
        if event.note == events::RESET_NOTE && !ctx.states.reports_reset(&observed.key(), now) {
            continue;
        }
        let type_ = if event.is_warning {
            EventType::Warning
        } else {
            EventType::Normal
        };
        k8s::events::publish(
            &ctx.scope.cluster,
            &stored.object_ref(&()),
            type_,
            event.reason,
            &event.note,
        )
        .await;
    }
    Ok(written)
}

/// The VM's status with the report of its present pod. None without such a report.
fn reported_status(observed: &Observed) -> Option<VirtualMachineStatus> {
    let pod = observed
        .own_pod()
        .filter(|pod| pod.has_report() && !pod.has_ended())?;
    let report = observed.report.as_ref()?.status.as_ref()?;
    let present = observed.vm.status.clone().unwrap_or_default();
    let generation = observed.vm.metadata.generation;
    let mut status = checks::merged(present, report, pod, generation, observed.now);
    checks::compare_memory(&mut status, observed);
    Some(status)
}

#[cfg(test)]
mod tests;
