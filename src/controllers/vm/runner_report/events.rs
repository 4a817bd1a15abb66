//! (pure) Events about changes that a runner has reported.

use crate::api::conditions::find;
use crate::api::vm::VirtualMachineStatus;
use crate::api::vm::conditions::{self, ConditionReason};
use crate::controllers::vm::observe::RunnerEvent;

/// The note of the event about a reset of the guest.
pub(super) const RESET_NOTE: &str = "the guest was reset";

/// The events about the changes from one status to the next. Each is about a value in the status, so that a restart of the operator
/// repeats none.
pub(super) fn changes(
    before: &VirtualMachineStatus,
    after: &VirtualMachineStatus,
) -> Vec<RunnerEvent> {
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
            "" => "a console client has connected".to_owned(),
            host => format!("a console client has connected from {host}"),
        };
        events.push(event("ConsoleConnected", note));
    }
    if !before.console_client.is_empty() && after.console_client.is_empty() {
        let host = &before.console_client;
        let note = format!("the console client at {host} has disconnected");
        events.push(event("ConsoleDisconnected", note));
    }
    let ended = |status: &VirtualMachineStatus| {
        find(&status.conditions, conditions::TPM_HEALTHY)
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
    let accelerated = find(&after.conditions, conditions::ACCELERATED)?;
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

/// The event of a new phase of the guest. Repeated starts and ends of the guest agent cause none.
fn phase_change(
    before: &VirtualMachineStatus,
    after: &VirtualMachineStatus,
) -> Option<RunnerEvent> {
    use ConditionReason::{RunnerStarted, VmBooted, VmStarted, VmStopped, VmTerminating};
    let after_reset = after.resets > before.resets;
    let before = find(&before.conditions, conditions::RUNNING);
    let before = before.map_or("", |running| running.reason.as_str());
    let after = find(&after.conditions, conditions::RUNNING).cloned()?;
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
        _ if after_reset => Some(started(RESET_NOTE.to_owned())),
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
