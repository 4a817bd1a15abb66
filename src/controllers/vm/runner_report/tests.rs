use crate::api::VmReportStatus;
use crate::api::conditions::{find, is_true};
use crate::api::report::GUEST_IPS_MAX;
use crate::api::vm::conditions;
use crate::api::vm::{ConsoleConnection, ConsoleProtocol};
use crate::controllers::vm::fixtures::{alone, now, pod, seen_running, vm, with_pod};
use crate::controllers::vm::observe::RunnerEvent;
use crate::controllers::vm::runner_report::events::changes;
use crate::controllers::vm::runner_report::*;
use crate::k8s::views::PodView;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::SignedDuration;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

fn at(seconds: i64) -> Timestamp {
    now()
        .checked_add(SignedDuration::from_secs(seconds))
        .unwrap()
}

fn condition(type_: &str, status: &str, reason: &str) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        observed_generation: Some(3),
        last_transition_time: Time(at(-60)),
        reason: reason.to_owned(),
        message: format!("the message of {reason}"),
    }
}

fn running(reason: &str) -> VmReportStatus {
    let initial = conditions::INITIAL.map(|type_| match type_ {
        conditions::RUNNING => condition(type_, "True", reason),
        _ => condition(type_, "False", "VmStarted"),
    });
    VmReportStatus {
        runner_version: "1.0".to_owned(),
        cpus: 2,
        ram: "1Gi".to_owned(),
        conditions: initial.into(),
        ..VmReportStatus::default()
    }
}

/// The pod of a VM, with that account.
fn pod_with(account: &str) -> PodView {
    let mut pod = pod(json!({"phase": "Running", "podIP": "10.1.2.3"}));
    pod.spec.service_account_name = Some(account.to_owned());
    pod.spec.node_name = Some("node1".to_owned());
    pod
}

fn reporting(report: VmReportStatus) -> Observed {
    let view = json!({"metadata": {"name": "pod-uid", "namespace": "ns"}, "spec": {"vm": "vm"}, "status": report});
    Observed {
        report: Some(Arc::new(serde_json::from_value(view).unwrap())),
        ..with_pod(vm(json!({"state": "Running"})), pod_with("vm-reporter"))
    }
}

fn status(report: VmReportStatus) -> VirtualMachineStatus {
    reported_status(&reporting(report)).unwrap()
}

fn reasons(events: &[RunnerEvent]) -> Vec<&str> {
    events.iter().map(|event| event.reason).collect()
}

#[test]
fn node_and_address_of_the_pod_come_from_the_pod() {
    let status = status(running("VmStarted"));
    assert_eq!(
        (status.node_name.as_deref(), status.pod_ip.as_deref()),
        (Some("node1"), Some("10.1.2.3"))
    );
    assert_eq!((status.cpus, status.ram.as_str()), (2, "1Gi"));
    assert!(is_true(&status.conditions, conditions::RUNNING));
}

#[test]
fn addresses_that_other_hosts_cannot_use_are_not_copied() {
    let mut report = running("VmStarted");
    let many = (0..100).map(|n| format!("10.0.0.{n}"));
    report.guest_ips = [
        "127.0.0.1",
        "::1",
        "169.254.1.1",
        "fe80::1",
        "224.0.0.1",
        "0.0.0.0",
        "example.org",
        "10.0.0.1:80",
        "2001:DB8::0001",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain(many)
    .collect();
    let addresses = status(report).guest_ips;
    assert_eq!(addresses.len(), GUEST_IPS_MAX);
    assert_eq!(addresses.first().map(String::as_str), Some("2001:db8::1"));
    assert_eq!(addresses.get(1).map(String::as_str), Some("10.0.0.0"));
}

#[test]
fn a_report_changes_no_condition_of_the_operator_and_no_field_of_others() {
    let mut report = running("VmStarted");
    report.conditions.extend([
        condition("Ready", "True", "Running"),
        condition("RestartRequired", "True", "SpecChanged"),
        condition("Invented", "True", "Invented"),
    ]);
    let mut observed = reporting(report);
    let vm = Arc::make_mut(&mut observed.vm);
    let present = vm.status.as_mut().unwrap();
    present.console_user = "anna".to_owned();
    present.assignment.user = Some("berta".to_owned());
    present
        .conditions
        .push(condition("Ready", "False", "Starting"));
    let copied = reported_status(&observed).unwrap();
    let types: Vec<_> = copied.conditions.iter().map(|c| c.type_.as_str()).collect();
    assert_eq!(types, [conditions::INITIAL.as_slice(), &["Ready"]].concat());
    assert_eq!(
        find(&copied.conditions, "Ready").unwrap().reason,
        "Starting"
    );
    let present = observed.vm.status.as_ref().unwrap();
    assert_eq!(copied.assignment, present.assignment);
    assert_eq!(copied.console_user, present.console_user);
    assert_eq!(copied.restarts, present.restarts);
    assert_eq!(copied.observed_generation, present.observed_generation);
}

#[test]
fn initial_conditions_that_a_report_leaves_out_are_retained() {
    let mut report = running("VmStarted");
    report.conditions.truncate(1);
    let copied = status(report);
    assert_eq!(copied.conditions.len(), conditions::INITIAL.len());
}

#[test]
fn no_time_is_later_than_the_operators_clock_and_an_unchanged_status_keeps_its_time() {
    let mut report = running("VmStarted");
    report.conditions[0].last_transition_time = Time(at(3600));
    let mut observed = reporting(report);
    let first = reported_status(&observed).unwrap();
    let time = |status: &VirtualMachineStatus| status.conditions[0].last_transition_time.0;
    assert_eq!(time(&first), now());
    Arc::make_mut(&mut observed.vm).status = Some(first.clone());
    observed.now = at(10);
    assert_eq!(reported_status(&observed), Some(first));
}

#[test]
fn texts_and_numbers_of_a_report_are_limited() {
    let mut report = running("VmStarted");
    let long = "x\n".repeat(2000);
    report.conditions[0].message.clone_from(&long);
    report.conditions[0].observed_generation = Some(99);
    report.conditions[1].reason = "not a reason".to_owned();
    report.ram = "lots".to_owned();
    report.cpus = -7;
    report.boots = -1;
    report.runner_version.clone_from(&long);
    report.console_client.clone_from(&long);
    report.logged_in_user = Some(long.clone());
    let console = ConsoleConnection {
        user: long.clone(),
        client: long.clone(),
        protocol: ConsoleProtocol::Screen,
        since: Time(at(3600)),
    };
    report.consoles = vec![console; 9];
    report.console_key.clone_from(&long);
    report.osinfo = (0..100)
        .map(|n| (format!("{n}{long}"), long.clone()))
        .collect();
    let copied = status(report);
    assert_eq!(
        (copied.ram.as_str(), copied.cpus, copied.boots),
        ("0", 0, None)
    );
    assert_eq!(copied.conditions[0].observed_generation, Some(3));
    assert_eq!(copied.conditions[1].reason, "Creation");
    let size = json!(copied).to_string().len();
    assert!(size < 10_240, "{size}");
    assert!(!json!(copied).to_string().contains("\\n"));
    assert_eq!(
        (copied.consoles.len(), copied.consoles[0].since.0),
        (4, now())
    );
}

#[test]
fn newest_known_user_of_a_console_is_the_console_user_while_connected() {
    let connected = |users: &[&str]| {
        let consoles = users.iter().map(|user| ConsoleConnection {
            user: (*user).to_owned(),
            client: "192.0.2.1".to_owned(),
            protocol: ConsoleProtocol::Spice,
            since: Time(at(-60)),
        });
        let report = VmReportStatus {
            consoles: consoles.collect(),
            ..running("VmBooted")
        };
        reporting(report)
    };
    let copied = |observed: &Observed| reported_status(observed).unwrap();
    let first = copied(&connected(&["", "alice", "bob"]));
    assert_eq!(first.console_user, "alice");
    let mut next = connected(&[""]);
    assert_eq!(copied(&next).console_user, "");
    Arc::make_mut(&mut next.vm).status = Some(first.clone());
    assert_eq!(copied(&next).console_user, "");
    // Another front end has written the field.
    let other = VirtualMachineStatus {
        console_user: "carol".to_owned(),
        ..first
    };
    Arc::make_mut(&mut next.vm).status = Some(other);
    assert_eq!(copied(&next).console_user, "carol");
}

#[test]
fn a_pod_without_a_report_and_one_that_has_ended_change_nothing() {
    let report = || running("VmStarted");
    let earlier = Observed {
        report: reporting(report()).report,
        ..with_pod(vm(json!({})), pod_with("vm-runner"))
    };
    assert_eq!(reported_status(&earlier), None);
    let mut ended = reporting(report());
    let mut pod = pod_with("vm-reporter");
    pod.status.phase = "Failed".to_owned();
    ended.pod = Some(Arc::new(pod));
    assert_eq!(reported_status(&ended), None);
    let gone = Observed {
        report: reporting(report()).report,
        ..alone(seen_running(vm(json!({}))))
    };
    assert_eq!(reported_status(&gone), None);
}

#[test]
fn each_phase_boot_and_connection_is_an_event_and_an_equal_status_is_none() {
    let before = vm(json!({})).status.unwrap();
    let started = status(running("VmStarted"));
    assert_eq!(reasons(&changes(&before, &started)), ["VmStarted"]);
    assert_eq!(changes(&started, &started), []);
    let booted = status(VmReportStatus {
        boots: 1,
        console_connections: 2,
        console_client: "10.0.0.9".to_owned(),
        ..running("VmBooted")
    });
    let events = changes(&started, &booted);
    assert_eq!(reasons(&events), ["VmBooted", "ConsoleConnected"]);
    assert!(events[1].note.contains("10.0.0.9"));
    assert_eq!(
        reasons(&changes(&before, &booted)),
        ["VmStarted", "VmBooted", "ConsoleConnected"]
    );
    // The agent ends and starts again, without a boot.
    let silent = VirtualMachineStatus {
        conditions: started.conditions.clone(),
        ..booted.clone()
    };
    assert_eq!(changes(&booted, &silent), []);
    assert_eq!(changes(&silent, &booted), []);
    let again = VirtualMachineStatus {
        boots: Some(2),
        resets: Some(1),
        console_client: String::new(),
        ..booted.clone()
    };
    assert_eq!(
        reasons(&changes(&booted, &again)),
        ["VmStarted", "VmBooted", "ConsoleDisconnected"]
    );
    let stopping = status(running("VmTerminating"));
    assert_eq!(reasons(&changes(&started, &stopping)), ["VmTerminating"]);
}

#[test]
fn a_tpm_that_has_ended_is_a_warning_once() {
    let mut report = running("VmBooted");
    let before = status(report.clone());
    report
        .conditions
        .push(condition(conditions::TPM_HEALTHY, "False", "TpmEnded"));
    let after = status(report);
    let events = changes(&before, &after);
    assert_eq!(reasons(&events), ["TpmEnded"]);
    assert!(events[0].is_warning);
    assert_eq!(changes(&after, &after), []);
}

#[test]
fn unconfigured_emulation_is_published_once_as_a_warning() {
    let with = |reason: &str| {
        let mut report = running("VmStarted");
        report
            .conditions
            .push(condition(conditions::ACCELERATED, "False", reason));
        status(report)
    };
    let before = status(running("VmStarted"));
    let events = changes(&before, &with("KvmDoesNotWork"));
    assert_eq!(reasons(&events), ["KvmDoesNotWork"]);
    assert!(events[0].is_warning);
    let after = with("KvmDoesNotWork");
    assert_eq!(changes(&after, &after), []);
    assert_eq!(changes(&before, &with("TcgRequested")), []);
}

#[test]
fn memory_is_not_in_sync_while_the_runner_has_a_smaller_size_than_the_vm() {
    let is_in_sync = |current: Option<&str>, configured: &str| {
        let in_sync = condition(conditions::MEMORY_IN_SYNC, "True", "AsConfigured");
        let mut observed = reporting(VmReportStatus {
            conditions: vec![in_sync],
            ..running("VmBooted")
        });
        let machine = json!({"maximumRam": "2Gi", "currentRam": current});
        Arc::make_mut(&mut observed.vm).spec.vm = serde_json::from_value(machine).unwrap();
        let config = json!({"/Runner": {"vm": {"currentRam": configured}}}).to_string();
        let config_map = json!({"metadata": {}, "data": {"config.yaml": config}});
        observed.config_map = serde_json::from_value(config_map).ok().map(Arc::new);
        let status = reported_status(&observed).unwrap();
        // Another reconcile causes no write.
        Arc::make_mut(&mut observed.vm).status = Some(status.clone());
        assert_eq!(reported_status(&observed).unwrap(), status);
        is_true(&status.conditions, conditions::MEMORY_IN_SYNC)
    };
    assert!(is_in_sync(Some("1Gi"), "1 GiB"));
    assert!(!is_in_sync(Some("2Gi"), "1 GiB"));
    // Without a size in the VM, the guest shall have all its memory.
    assert!(!is_in_sync(None, "1 GiB"));
    assert!(is_in_sync(None, "2 GiB"));
}

#[test]
fn a_runner_that_has_ended_leaves_no_counter_for_the_next_pod() {
    let mut report = VmReportStatus {
        boots: 1,
        ..running("VmStopped")
    };
    report.conditions[0].status = "False".to_owned();
    let copied = status(report);
    assert_eq!(
        (copied.boots, copied.node_name, copied.pod_ip),
        (None, None, None)
    );
}
