//! (client) The reports of runners. The operator creates the report of each pod, and copies checked fields into the VM's status.
//!
//! A report is a claim of a program that a guest may control. Therefore the node and the pod's address come from the pod, texts are
//! limited, and no time is later than the operator's clock. The fields `assignment`, `consoleUser` and `restarts` and the conditions of
//! the operator are never copied. The guest's addresses are the guest's claim, and no decision depends on them.
//!
//! Only the report of the VM's present pod counts. Pods of earlier versions have none: their runners write to the VM.

use crate::api::conditions::{self, ConditionReason};
use crate::api::quantity::Bytes;
use crate::api::report::{self, GUEST_IPS_MAX, MESSAGE_MAX, OSINFO_TEXT_MAX, USER_MAX, plain_text};
use crate::api::vm::{VirtualMachineStatus, names};
use crate::api::{VirtualMachine, VmReport, VmReportSpec, VmReportStatus};
use crate::controllers::vm::context::Context;
use crate::controllers::vm::observe::{Observed, ReportCopy, RunnerEvent, owns};
use crate::controllers::vm::views::{PodView, ReportView, VmView};
use crate::k8s::error::Error;
use crate::k8s::events;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::runtime::events::EventType;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Minimum time between two copies for a VM, however often its runner reports.
const COPY_SPACING: Duration = Duration::from_secs(1);
/// The same if only the guest's memory has changed: a balloon takes a minute to move.
const MEMORY_COPY_SPACING: Duration = Duration::from_secs(15);

/// The fields of the VM's status that a report has.
const COPIED: [&str; 14] = [
    "observedResetRequest",
    "runnerVersion",
    "cpus",
    "ram",
    "nodeName",
    "podIP",
    "guestIPs",
    "consoleClient",
    "loggedInUser",
    "displayPasswordSerial",
    "osinfo",
    "boots",
    "resets",
    "consoleConnections",
];

/// Creates the report of the VM's pod if there is none. The garbage collector deletes it after the pod.
///
/// # Errors
/// If the request fails.
pub async fn create_missing(observed: &Observed, ctx: &Context) -> Result<(), Error> {
    // With the response to the creation of the pod in this reconcile.
    let Some(pod) = ctx.caches.pods.get(&observed.key()) else {
        return Ok(());
    };
    let is_reporting = owns(&observed.vm, &pod)
        && pod.has_report()
        && !pod.has_ended()
        && pod.metadata.deletion_timestamp.is_none();
    let uid = pod.uid().unwrap_or_default();
    if !is_reporting || ctx.caches.reports.get(&ctx.key(&uid)).is_some() {
        return Ok(());
    }
    let vm = observed.name();
    let mut report = VmReport::new(&uid, VmReportSpec { vm: vm.clone() });
    report.metadata.labels = Some(names::labels(&vm));
    report.metadata.owner_references = Some(vec![report::owner(&vm, &uid)]);
    ctx.writer()
        .create_or_get::<VmReport, ReportView>(&ctx.caches.reports, &report)
        .await
        .map(drop)
}

/// The observation of a VM whose status contains the report of its pod, if the report may be copied now.
#[must_use]
pub fn take(observed: Observed, ctx: &Context) -> Observed {
    let report = find(&observed, ctx);
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
    let now = (ctx.cluster.instant)();
    let delay = ctx.states.report_delay(&observed.key(), spacing, now);
    if !delay.is_zero() {
        return Observed {
            copy: ReportCopy::Later(delay),
            ..observed
        };
    }
    let copy = ReportCopy::Due(changes(&present, &status));
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

/// The time until a report is copied that this reconcile has not copied. The response to a creation can be a report of a runner, and
/// the watch does not report it again. `observed` has the pod after all writes.
pub fn recheck(mut observed: Observed, ctx: &Context) -> Option<Duration> {
    if let Some(delay) = observed.copy.delay() {
        return Some(delay);
    }
    observed.report = find(&observed, ctx);
    let reported = reported_status(&observed)?;
    (Some(&reported) != observed.vm.status.as_ref()).then_some(COPY_SPACING)
}

/// The report of the VM's pod.
fn find(observed: &Observed, ctx: &Context) -> Option<Arc<ReportView>> {
    let uid = observed.own_pod()?.uid()?;
    ctx.caches.reports.get(&ctx.key(&uid))
}

/// Writes the report into the VM's status if that is due, and publishes its events. Returns the VM as written. `ready` is the
/// new condition `Ready`.
///
/// The write includes the condition `Ready`, so that a start takes one write less. The field manager owns the condition from
/// then on, and each of its writes must include it.
///
/// # Errors
/// If the status cannot be written. Events are best effort.
pub async fn copy(
    observed: &Observed,
    ready: Option<&Value>,
    ctx: &Context,
) -> Result<Arc<VirtualMachine>, Error> {
    let vm = &observed.vm;
    let (ReportCopy::Due(events), Some(status)) = (&observed.copy, &vm.status) else {
        return Ok(vm.clone());
    };
    let body = apply_body(vm, copied_fields(status, ready));
    let written = ctx
        .writer()
        .apply_status::<VirtualMachine, VmView>(
            &ctx.vms,
            &vm.name_any(),
            names::MANAGER_RUNNER,
            &body,
        )
        .await?;
    let now = (ctx.cluster.instant)();
    ctx.states.report_copied(&observed.key(), now);
    for event in events {
        let type_ = if event.is_warning {
            EventType::Warning
        } else {
            EventType::Normal
        };
        events::publish(
            &ctx.cluster,
            &vm.object_ref(&()),
            type_,
            event.reason,
            &event.note,
        )
        .await;
    }
    Ok(written)
}

/// The body of a write to the VM's status. The resource version prevents a write to a later VM with the same name, or to a VM that
/// has changed. The API server does not compare the UID in a write to a status.
pub(super) fn apply_body(vm: &VirtualMachine, status: Value) -> Value {
    json!({
        "apiVersion": VirtualMachine::api_version(&()),
        "kind": VirtualMachine::kind(&()),
        "metadata": {"name": vm.name_any(), "resourceVersion": vm.resource_version()},
        "status": status,
    })
}

/// The fields of the status that the report's field manager owns.
fn copied_fields(status: &VirtualMachineStatus, ready: Option<&Value>) -> Value {
    let reported = conditions::OF_RUNNER
        .iter()
        .filter_map(|type_| conditions::find(&status.conditions, type_))
        .map(|condition| json!(condition));
    let present = conditions::find(&status.conditions, conditions::READY);
    let ready = ready
        .cloned()
        .or_else(|| present.map(|present| json!(present)));
    let conditions: Value = reported.chain(ready).collect();
    let mut fields = serde_json::to_value(status).unwrap_or_default();
    if let Some(fields) = fields.as_object_mut() {
        fields.retain(|name, _| COPIED.contains(&name.as_str()));
        fields.insert("conditions".to_owned(), conditions);
    }
    fields
}

/// The VM's status with the report of its present pod. None without such a report.
fn reported_status(observed: &Observed) -> Option<VirtualMachineStatus> {
    let pod = observed
        .own_pod()
        .filter(|pod| pod.has_report() && !pod.has_ended())?;
    let report = observed.report.as_ref()?.status.as_ref()?;
    let present = observed.vm.status.clone().unwrap_or_default();
    let generation = observed.vm.metadata.generation;
    Some(merged(present, report, pod, generation, observed.now))
}

/// The status with the checked fields of a report.
fn merged(
    mut present: VirtualMachineStatus,
    report: &VmReportStatus,
    pod: &PodView,
    generation: Option<i64>,
    now: Timestamp,
) -> VirtualMachineStatus {
    let conditions = merged_conditions(&present.conditions, &report.conditions, generation, now);
    let running = conditions::find(&conditions, conditions::RUNNING);
    // The fields of a guest that has ended are removed, as its runner removes them.
    let is_alive =
        running.is_none_or(|running| running.reason != ConditionReason::VmStopped.as_str());
    let count = |number: i64| Some(number).filter(|number| is_alive && *number > 0);
    let size: Option<Bytes> = report.ram.parse().ok();
    present.observed_reset_request = report.observed_reset_request.filter(|_| is_alive);
    present.runner_version = Some(plain_text(&report.runner_version, 32));
    present.cpus = report.cpus.max(0);
    present.ram = size.map_or_else(|| "0".to_owned(), |_| report.ram.clone());
    present.node_name = pod.spec.node_name.clone().filter(|_| is_alive);
    present.pod_ip = pod.status.pod_ip.clone().filter(|_| is_alive);
    present.guest_ips = guest_ips(&report.guest_ips);
    present.console_client = plain_text(&report.console_client, 64);
    present.logged_in_user = report
        .logged_in_user
        .as_deref()
        .map(|user| plain_text(user, USER_MAX));
    present.display_password_serial = report.display_password_serial.max(-1);
    present.boots = count(report.boots);
    present.resets = count(report.resets);
    present.console_connections = count(report.console_connections);
    present.osinfo = osinfo(&report.osinfo);
    present.conditions = conditions;
    present
}

/// The addresses that other hosts can use.
fn guest_ips(reported: &[String]) -> Vec<String> {
    let addresses = reported.iter().filter_map(|text| text.parse().ok());
    let usable = addresses.filter(|address: &IpAddr| report::is_usable(address));
    usable
        .take(GUEST_IPS_MAX)
        .map(|address| address.to_string())
        .collect()
}

fn osinfo(reported: &BTreeMap<String, String>) -> Option<serde_json::Map<String, Value>> {
    let entries = reported.iter().take(report::OSINFO_ENTRIES_MAX);
    let entries = entries.map(|(name, text)| {
        (
            plain_text(name, report::OSINFO_NAME_MAX),
            plain_text(text, OSINFO_TEXT_MAX).into(),
        )
    });
    Some(entries.collect()).filter(|entries: &serde_json::Map<_, _>| !entries.is_empty())
}

/// The conditions of the status, with those of the runner as reported. The order of present conditions is retained, so that equal
/// conditions make no difference.
fn merged_conditions(
    present: &[Condition],
    reported: &[Condition],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let checked = |type_: &str| {
        let reported = conditions::find(reported, type_)?;
        checked_condition(reported, conditions::find(present, type_), generation, now)
    };
    let is_of_runner = |type_: &str| conditions::OF_RUNNER.contains(&type_);
    let mut merged: Vec<Condition> = Vec::new();
    for condition in present {
        let type_ = condition.type_.as_str();
        match checked(type_).filter(|_| is_of_runner(type_)) {
            Some(checked) => merged.push(checked),
            // Clients rely on the presence of the initial conditions.
            None if !is_of_runner(type_) || conditions::INITIAL.contains(&type_) => {
                merged.push(condition.clone());
            }
            None => {}
        }
    }
    for type_ in conditions::OF_RUNNER {
        if conditions::find(present, type_).is_none() {
            merged.extend(checked(type_));
        }
    }
    merged
}

/// The reported condition with limited texts, generation and time. The transition time of an unchanged status is retained.
fn checked_condition(
    reported: &Condition,
    present: Option<&Condition>,
    generation: Option<i64>,
    now: Timestamp,
) -> Option<Condition> {
    let is_valid = matches!(reported.status.as_str(), "True" | "False")
        && !reported.reason.is_empty()
        && reported.reason.len() <= 32
        && reported.reason.chars().all(|c| c.is_ascii_alphabetic());
    if !is_valid {
        return None;
    }
    let unchanged = present.filter(|present| present.status == reported.status);
    let time = unchanged.map_or_else(
        || reported.last_transition_time.0.min(now),
        |present| present.last_transition_time.0,
    );
    Some(Condition {
        last_transition_time: Time(time),
        message: plain_text(&reported.message, MESSAGE_MAX),
        observed_generation: reported.observed_generation.min(generation),
        ..reported.clone()
    })
}

/// The events about the changes from one status to the next. Each is about a value in the status, so that a restart of the operator
/// repeats none.
fn changes(before: &VirtualMachineStatus, after: &VirtualMachineStatus) -> Vec<RunnerEvent> {
    let event = |reason, note: String| RunnerEvent {
        reason,
        note,
        is_warning: false,
    };
    let mut events = Vec::new();
    events.extend(phase_change(before, after));
    if after.boots > before.boots {
        let note = "the guest agent has answered".to_owned();
        events.push(event(ConditionReason::VmBooted.as_str(), note));
    }
    if after.console_connections > before.console_connections {
        let note = match after.console_client.as_str() {
            "" => "a console was connected".to_owned(),
            host => format!("a console is connected from {host}"),
        };
        events.push(event("ConsoleConnected", note));
    }
    if !before.console_client.is_empty() && after.console_client.is_empty() {
        let host = &before.console_client;
        let note = format!("the console from {host} is disconnected");
        events.push(event("ConsoleDisconnected", note));
    }
    let ended = |status: &VirtualMachineStatus| {
        conditions::find(&status.conditions, conditions::TPM_HEALTHY)
            .filter(|tpm| tpm.reason == ConditionReason::TpmEnded.as_str())
            .map(|tpm| tpm.message.clone())
    };
    if let (None, Some(note)) = (ended(before), ended(after)) {
        events.push(RunnerEvent {
            is_warning: true,
            ..event(ConditionReason::TpmEnded.as_str(), note)
        });
    }
    events.extend(emulation(before, after));
    events
}

/// The event of a guest that is emulated, although acceleration was requested.
fn emulation(before: &VirtualMachineStatus, after: &VirtualMachineStatus) -> Option<RunnerEvent> {
    use ConditionReason::{KvmCheckTimedOut, KvmDoesNotWork, KvmFailed, KvmNotAvailable};
    let note = conditions::emulation(&after.conditions)?.to_owned();
    let accelerated = conditions::find(&after.conditions, conditions::ACCELERATED)?;
    let mut reasons = [KvmNotAvailable, KvmDoesNotWork, KvmCheckTimedOut, KvmFailed].into_iter();
    let reason = reasons.find(|it| it.as_str() == accelerated.reason)?;
    conditions::emulation(&before.conditions)
        .is_none()
        .then_some(RunnerEvent {
            reason: reason.as_str(),
            note,
            is_warning: true,
        })
}

/// The event of a new phase of the guest. A guest whose agent starts and ends repeatedly causes none.
fn phase_change(
    before: &VirtualMachineStatus,
    after: &VirtualMachineStatus,
) -> Option<RunnerEvent> {
    use ConditionReason::{RunnerStarted, VmBooted, VmStarted, VmStopped, VmTerminating};
    let after_reset = after.resets > before.resets;
    let before = conditions::find(&before.conditions, conditions::RUNNING);
    let before = before.map_or("", |running| running.reason.as_str());
    let after = conditions::find(&after.conditions, conditions::RUNNING).cloned()?;
    let is = |reason: &str, all: &[ConditionReason]| all.iter().any(|it| it.as_str() == reason);
    let ran = is(before, &[VmStarted, VmBooted]);
    let phases = [RunnerStarted, VmStarted, VmBooted, VmTerminating, VmStopped];
    let reason = phases.into_iter().find(|it| it.as_str() == after.reason)?;
    let started = |note: String| RunnerEvent {
        reason: VmStarted.as_str(),
        note,
        is_warning: false,
    };
    match reason {
        _ if after_reset => Some(started("the guest was reset".to_owned())),
        VmStarted | VmBooted if ran => None,
        VmStarted | VmBooted => Some(started("QEMU runs the guest".to_owned())),
        _ if before == after.reason => None,
        _ => Some(RunnerEvent {
            reason: reason.as_str(),
            note: after.message,
            is_warning: false,
        }),
    }
}

#[cfg(test)]
mod tests;
