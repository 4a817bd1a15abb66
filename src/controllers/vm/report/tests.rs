use crate::api::vm::conditions::ConditionReason;
use crate::controllers::vm::decide::decide;
use crate::controllers::vm::fixtures::{alone, ended, now, pod, seen_running, vm, with_pod};
use crate::controllers::vm::report::*;
use crate::controllers::vm::runner_report::stopped_runner_status;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

fn reason(observed: &Observed, problem: Option<Diagnosis>) -> (&'static str, bool) {
    let ready = ready(observed, &decide(observed, true), problem);
    (ready.reason.as_str(), ready.reason.is_ready())
}

#[test]
fn ready_condition_reason_matches_the_vm_state() {
    let running = || vm(json!({"state": "Running"}));
    let alive = || pod(json!({"phase": "Running"}));
    assert_eq!(reason(&alone(running()), None), ("Starting", false));
    assert_eq!(
        reason(&with_pod(running(), alive()), None),
        ("Starting", false)
    );
    assert_eq!(
        reason(&with_pod(seen_running(running()), alive()), None),
        ("Running", true)
    );
    assert_eq!(
        reason(&alone(vm(json!({"state": "Stopped"}))), None),
        ("Stopped", true)
    );
    assert_eq!(
        reason(&with_pod(vm(json!({"state": "Stopped"})), alive()), None),
        ("Stopping", false)
    );
    let crashed = with_pod(seen_running(running()), pod(ended("", 5)));
    assert_eq!(reason(&crashed, None), ("RestartBackoff", false));
    let problem = Diagnosis::documented(ReadyReason::ImagePullFailed, "", "");
    assert_eq!(
        reason(&with_pod(running(), alive()), Some(problem)),
        ("ImagePullFailed", false)
    );
}

#[test]
fn a_running_vm_that_is_emulated_although_acceleration_is_requested_has_the_cause_in_ready() {
    let message = |reason: &str, status: &str| {
        let mut vm = seen_running(vm(json!({"state": "Running"})));
        let condition = json!({"type": "Accelerated", "status": status, "reason": reason, "message": "the guest is emulated: cause",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let conditions = &mut vm.status.as_mut().unwrap().conditions;
        conditions.push(serde_json::from_value(condition).unwrap());
        let observed = with_pod(vm, pod(json!({"phase": "Running"})));
        ready(&observed, &decide(&observed, true), None).message
    };
    for reason in [
        "KvmNotAvailable",
        "KvmDoesNotWork",
        "KvmCheckTimedOut",
        "KvmFailed",
        "CpuModelRefused",
    ] {
        assert_eq!(
            message(reason, "False"),
            "the VM is running; the guest is emulated: cause",
            "{reason}"
        );
    }
    for (reason, status) in [
        ("TcgRequested", "False"),
        ("Unset", "False"),
        ("Kvm", "True"),
    ] {
        assert_eq!(message(reason, status), "the VM is running", "{reason}");
    }
}

#[test]
fn a_running_vm_without_its_cd_image_has_the_cause_in_ready() {
    let mut vm = seen_running(vm(json!({"state": "Running"})));
    let condition = json!({"type": "MediaReady", "status": "False", "reason": "ImageMissing", "message": "CD drive 0: cause",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let conditions = &mut vm.status.as_mut().unwrap().conditions;
    conditions.push(serde_json::from_value(condition).unwrap());
    let observed = with_pod(vm, pod(json!({"phase": "Running"})));
    let ready = ready(&observed, &decide(&observed, true), None);
    assert_eq!(ready.message, "the VM is running; CD drive 0: cause");
}

#[test]
fn stopping_message_contains_the_power_off_command() {
    let stopped = || vm(json!({"state": "Stopped"}));
    let message = |observed: Observed| ready(&observed, &decide(&observed, true), None).message;
    let has_command =
        |observed: Observed| message(observed).contains("kubectl exec vm -- vm-runner power-off");
    let waits = || pod(json!({"phase": "Pending"}));
    assert!(has_command(with_pod(
        stopped(),
        pod(json!({"phase": "Running"}))
    )));
    assert!(
        !has_command(with_pod(stopped(), waits())),
        "no container is running"
    );
    assert!(
        has_command(with_pod(seen_running(stopped()), waits())),
        "the runner reports before the kubelet"
    );
}

#[test]
fn inaccessible_data_is_reported_until_the_guest_runs_or_is_stopped() {
    let message =
        "/d is not writable by uid 107: Permission denied; run once as root: chown -R 107:107 /d";
    let missing = json!({"reason": "DataMissing", "message": "disk.img"}).to_string();
    let missing = with_pod(vm(json!({"state": "Running"})), pod(ended(&missing, 5)));
    let reported = data_not_accessible(&missing, &decide(&missing, true)).unwrap();
    assert_eq!(
        (reported.type_, reported.reason.as_str()),
        ("DataAccessible", "DataMissing")
    );
    let outcome = json!({"reason": "DataNotAccessible", "message": message}).to_string();
    let failed = with_pod(vm(json!({"state": "Running"})), pod(ended(&outcome, 5)));
    let reported = data_not_accessible(&failed, &decide(&failed, true)).unwrap();
    assert_eq!(
        (reported.type_, reported.status, reported.message.as_str()),
        ("DataAccessible", false, message)
    );
    // The same exit, in the status while the next pod starts.
    let remember = |mut vm: VirtualMachine| {
        let Decision::Remember(restarts) = decide(&failed, true) else {
            panic!("{:?}", decide(&failed, true))
        };
        vm.status.as_mut().unwrap().restarts = Some(restarts);
        vm
    };
    let reported =
        |observed: &Observed| data_not_accessible(observed, &decide(observed, true)).is_some();
    let alive = || pod(json!({"phase": "Running"}));
    assert!(reported(&with_pod(
        remember(vm(json!({"state": "Running"}))),
        alive()
    )));
    assert!(!reported(&with_pod(
        remember(seen_running(vm(json!({"state": "Running"})))),
        alive()
    )));
    assert!(!reported(&with_pod(
        remember(vm(json!({"state": "Stopped"}))),
        alive()
    )));
    let crashed = with_pod(vm(json!({"state": "Running"})), pod(ended("", 5)));
    assert!(!reported(&crashed));
}

#[test]
fn a_dead_vm_never_stays_running() {
    let running = || seen_running(vm(json!({"state": "Running"})));
    assert_eq!(
        stopped_runner_status(&with_pod(running(), pod(json!({"phase": "Running"})))),
        None
    );
    for observed in [alone(running()), with_pod(running(), pod(ended("", 5)))] {
        let status = stopped_runner_status(&observed).unwrap();
        assert_eq!(status.cpus, 0);
        assert_eq!(status.conditions[0].status, "False");
    }
    assert_eq!(
        stopped_runner_status(&alone(vm(json!({"state": "Running"})))),
        None
    );
}

fn fields<'a>(ready: &'a Ready, notes: Option<&'a [DesiredCondition]>) -> OperatorFields<'a> {
    OperatorFields {
        ready,
        notes,
        restarts: None,
        guest_shutdown: None,
        restart_request: None,
        volumes: &[],
        records_volumes: true,
        retain_rejections: false,
    }
}

#[test]
fn unchanged_status_is_not_written() {
    let mut vm = vm(json!({}));
    let ready = ready(&alone(vm.clone()), &Decision::Keep, None);
    let reported = fields(&ready, Some(&[]));
    vm.status = operator_status(&vm, &reported, now());
    assert_eq!(vm.status.as_ref().unwrap().observed_generation, Some(3));
    let later = now()
        .checked_add(k8s_openapi::jiff::SignedDuration::from_secs(60))
        .unwrap();
    assert_eq!(operator_status(&vm, &reported, later), None);
    vm.metadata.generation = Some(4);
    assert!(operator_status(&vm, &reported, later).is_some());
}

#[test]
fn additional_condition_is_retained_while_it_is_reported_or_unknown() {
    let mut vm = vm(json!({}));
    let ready = ready(&alone(vm.clone()), &Decision::Keep, None);
    let note = [DesiredCondition {
        type_: conditions::ADDITIONAL[0],
        status: false,
        reason: ConditionReason::Deferred,
        message: "m".to_owned(),
    }];
    let reported = |notes| fields(&ready, notes);
    // A condition of another program is retained.
    let foreign = Condition {
        type_: "Foreign".to_owned(),
        ..note[0].at(&[], None, now())
    };
    vm.metadata.creation_timestamp = Some(Time(now()));
    vm.status.as_mut().unwrap().conditions.push(foreign);
    let types = |vm: &VirtualMachine| -> Vec<String> {
        let conditions = &vm.status.as_ref().unwrap().conditions;
        conditions.iter().map(|it| it.type_.clone()).collect()
    };
    let before = types(&vm);
    vm.status = operator_status(&vm, &reported(Some(&note)), now());
    let added = ["Ready", conditions::ADDITIONAL[0]].map(str::to_owned);
    assert_eq!(types(&vm), [&before[..], &added].concat());
    // Default conditions have the time of the creation.
    let first = &vm.status.as_ref().unwrap().conditions[0];
    assert_eq!(
        (first.last_transition_time.0, first.message.as_str()),
        (now(), "the VM has not run yet")
    );
    assert_eq!(operator_status(&vm, &reported(Some(&note)), now()), None);
    assert_eq!(operator_status(&vm, &reported(None), now()), None);
    vm.status = operator_status(&vm, &reported(Some(&[])), now());
    assert_eq!(types(&vm), [&before[..], &added[..1]].concat());
}
