//! (pure) The VM's status with the checked fields of a report.

use crate::api::VmReportStatus;
use crate::api::conditions::find;
use crate::api::quantity::Bytes;
use crate::api::report::{
    self, CONSOLE_KEY_MAX, CONSOLES_MAX, GUEST_IPS_MAX, HOST_MAX, MESSAGE_MAX, OSINFO_TEXT_MAX,
    USER_MAX, plain_text,
};
use crate::api::vm::ConsoleConnection;
use crate::api::vm::VirtualMachineStatus;
use crate::api::vm::conditions::{self, ConditionReason, DesiredCondition};
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::plan::wanted_ram;
use crate::k8s::views::PodView;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The status with the checked fields of a report.
pub(super) fn merged(
    mut present: VirtualMachineStatus,
    report: &VmReportStatus,
    pod: &PodView,
    generation: Option<i64>,
    now: Timestamp,
) -> VirtualMachineStatus {
    let conditions = merged_conditions(&present.conditions, &report.conditions, generation, now);
    let running = find(&conditions, conditions::RUNNING);
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
    present.console_client = plain_text(&report.console_client, HOST_MAX);
    present.logged_in_user = report
        .logged_in_user
        .as_deref()
        .map(|user| plain_text(user, USER_MAX));
    present.display_password_serial = report.display_password_serial.max(-1);
    present.boots = count(report.boots);
    present.resets = count(report.resets);
    present.console_connections = count(report.console_connections);
    let consoles = consoles(&report.consoles, &present.consoles, now);
    present.console_user = console_user(&present, &consoles);
    present.consoles = consoles;
    let key = plain_text(&report.console_key, CONSOLE_KEY_MAX);
    present.console_key = Some(key).filter(|key| is_alive && !key.is_empty());
    present.osinfo = osinfo(&report.osinfo);
    present.conditions = conditions;
    present
}

/// Sets `MemoryInSync` to `False` while the guest has less memory than the VM's spec. The runner receives a larger size after the pod has the
/// memory. Until then, its report is about the smaller size.
pub(super) fn compare_memory(status: &mut VirtualMachineStatus, observed: &Observed) {
    let (Some(wanted), Ok(present)) = (wanted_ram(observed), status.ram.parse::<Bytes>()) else {
        return;
    };
    // The balloon differs from its target by less than 1 MiB, which also has a rounded maximum.
    if present.0.saturating_add(2 << 20) > wanted.0 {
        return;
    }
    let is_in_sync =
        |it: &&mut Condition| it.type_ == conditions::MEMORY_IN_SYNC && it.status == "True";
    let Some(condition) = status.conditions.iter_mut().find(is_in_sync) else {
        return;
    };
    let waits = DesiredCondition {
        type_: conditions::MEMORY_IN_SYNC,
        status: false,
        reason: ConditionReason::NotFollowed,
        message: format!(
            "the guest does not have {} of memory (spec.vm.currentRam) yet. It gets more memory after the node has allocated the \
             memory to the VM's pod; the condition ResourcesInSync has the cause of a delay",
            wanted.to_quantity()
        ),
    };
    *condition = waits.at(
        observed.conditions(),
        condition.observed_generation,
        observed.now,
    );
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

/// The connections with limited texts, and not from the future.
fn consoles(
    reported: &[ConsoleConnection],
    present: &[ConsoleConnection],
    now: Timestamp,
) -> Vec<ConsoleConnection> {
    let checked = |console: &ConsoleConnection| {
        let mut checked = ConsoleConnection {
            user: plain_text(&console.user, USER_MAX),
            client: plain_text(&console.client, HOST_MAX),
            protocol: console.protocol,
            since: console.since.clone(),
        };
        if console.since.0 > now {
            // While the node's clock is ahead, the time of the first copy remains, so that there is no other copy.
            let is_same = |before: &&ConsoleConnection| {
                (&before.user, &before.client, before.protocol)
                    == (&checked.user, &checked.client, checked.protocol)
            };
            let before = present.iter().find(is_same);
            checked.since = before.map_or(Time(now), |before| before.since.clone());
        }
        checked
    };
    reported.iter().take(CONSOLES_MAX).map(checked).collect()
}

/// The newest connected user that the runner knows. A user that it has reported before is removed at the disconnection. A user that
/// another program has written remains.
pub(super) fn console_user(
    present: &VirtualMachineStatus,
    consoles: &[ConsoleConnection],
) -> String {
    let newest = |consoles: &[ConsoleConnection]| {
        let mut users = consoles.iter().map(|console| &console.user);
        users.find(|user| !user.is_empty()).cloned()
    };
    let was_reported = newest(&present.consoles).is_some_and(|user| user == present.console_user);
    let other = (!was_reported).then(|| present.console_user.clone());
    newest(consoles).or(other).unwrap_or_default()
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
pub(super) fn merged_conditions(
    present: &[Condition],
    reported: &[Condition],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let checked = |type_: &str| {
        let reported = find(reported, type_)?;
        checked_condition(reported, find(present, type_), generation, now)
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
        if find(present, type_).is_none() {
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
