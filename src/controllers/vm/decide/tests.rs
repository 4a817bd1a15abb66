//! Tests of the module's table, by row and in all combinations.

mod imports;
mod table;

use crate::api::VirtualMachine;
use crate::controllers::vm::decide::*;
use crate::controllers::vm::fixtures::{alone, ended, now, pod, seen_running, vm, with_pod};
use crate::k8s::store::packed_map::PackedMap;
use proptest::prelude::*;
use serde_json::{Value, json};

const CRASHED: &str = r#"{"reason":"QemuCrashed","message":"signal 9","qemuExit":-9}"#;
const POWERED_OFF: &str = r#"{"reason":"GuestShutdown","byGuest":true}"#;

fn running() -> VirtualMachine {
    vm(json!({"state": "Running"}))
}

fn with_past(attempts: u32, pod_uid: &str, seconds_ago: i64) -> VirtualMachine {
    let mut vm = running();
    let time = Time(
        now()
            .checked_sub(SignedDuration::from_secs(seconds_ago))
            .unwrap(),
    );
    let (reason, message) = ("QemuCrashed".to_owned(), String::new());
    let past = Restarts {
        attempts,
        pod_uid: pod_uid.to_owned(),
        reason,
        message,
        time,
    };
    vm.status.as_mut().unwrap().restarts = Some(past);
    vm
}

fn delete(why: DeleteReason) -> Decision {
    Decision::Delete {
        uid: "pod-uid".to_owned(),
        why,
    }
}

#[test]
fn a_vm_that_should_run_gets_a_pod_and_keeps_it() {
    assert_eq!(decide(&alone(running()), true), Decision::Create);
    for phase in ["Pending", "Running", "Unknown", ""] {
        assert_eq!(
            decide(&with_pod(running(), pod(json!({"phase": phase}))), true),
            Decision::Keep,
            "{phase}"
        );
    }
}

#[test]
fn vm_with_invalid_spec_gets_no_new_pod_and_retains_its_existing_pod() {
    assert_eq!(
        decide(&alone(running()), false),
        Decision::Wait(WaitFor::ValidSpec)
    );
    assert_eq!(
        decide(
            &with_pod(running(), pod(json!({"phase": "Running"}))),
            false
        ),
        Decision::Keep
    );
}

#[test]
fn a_stopped_vm_has_no_pod_whatever_its_spec() {
    let stopped = || vm(json!({"state": "Stopped"}));
    for valid in [true, false] {
        assert_eq!(decide(&alone(stopped()), valid), Decision::Keep);
        for status in [json!({"phase": "Running"}), ended(CRASHED, 5)] {
            assert_eq!(
                decide(&with_pod(stopped(), pod(status)), valid),
                delete(DeleteReason::Stop)
            );
        }
    }
}

#[test]
fn terminating_pod_is_awaited() {
    let mut ending = pod(json!({"phase": "Running"}));
    ending.metadata.deletion_timestamp = Some(Time(now()));
    for state in ["Running", "Stopped"] {
        let observed = with_pod(vm(json!({"state": state})), ending.clone());
        let observed = Observed {
            deleted_by_operator: true,
            ..observed
        };
        assert_eq!(decide(&observed, true), Decision::Wait(WaitFor::PodEnd));
    }
}

#[test]
fn a_namesakes_pod_is_never_adopted_nor_ended_by_a_decision() {
    let mut foreign = pod(ended(CRASHED, 5));
    foreign.metadata.owner_references.as_mut().unwrap()[0].uid = "another".to_owned();
    for valid in [true, false] {
        assert_eq!(
            decide(&with_pod(running(), foreign.clone()), valid),
            Decision::Wait(WaitFor::OtherPod)
        );
        // A VM that should not run needs no pod.
        assert_eq!(
            decide(
                &with_pod(vm(json!({"state": "Stopped"})), foreign.clone()),
                valid
            ),
            Decision::Keep
        );
    }
}

#[test]
fn an_end_is_remembered_before_the_pod_goes_and_the_pod_stays_until_the_pause_is_over() {
    let Decision::Remember(past) = decide(&with_pod(running(), pod(ended(CRASHED, 5))), true)
    else {
        panic!()
    };
    assert_eq!(
        (past.attempts, past.reason.as_str(), past.message.as_str()),
        (1, "QemuCrashed", "signal 9")
    );
    assert_eq!(past.time.0, now());
    let later = |ago| {
        decide(
            &with_pod(with_past(3, "pod-uid", ago), pod(ended(CRASHED, 5))),
            true,
        )
    };
    let until = now().checked_add(SignedDuration::from_secs(1)).unwrap();
    assert_eq!(later(3), Decision::Wait(WaitFor::Pause { until }));
    assert_eq!(later(4), delete(DeleteReason::Ended));
}

#[test]
fn a_pod_that_others_delete_counts_as_an_end_unless_its_vm_has_run_well() {
    let deleted = |vm: VirtualMachine| {
        let mut ending = pod(json!({"phase": "Running"}));
        ending.metadata.deletion_timestamp = Some(Time(now()));
        match decide(&with_pod(vm, ending), true) {
            Decision::Remember(past) => (past.attempts, past.reason),
            other => panic!("{other:?}"),
        }
    };
    let ran = |seconds| {
        let mut vm = seen_running(with_past(4, "earlier", 3600));
        let since = now()
            .checked_sub(SignedDuration::from_secs(seconds))
            .unwrap();
        vm.status.as_mut().unwrap().conditions[0].last_transition_time = Time(since);
        vm
    };
    assert_eq!(deleted(running()), (1, POD_DELETED.to_owned()));
    assert_eq!((deleted(ran(599)).0, deleted(ran(600)).0), (5, 1));
}

#[test]
fn consecutive_failures_are_counted_and_a_long_run_resets_the_count() {
    let attempts = |ran| match decide(
        &with_pod(with_past(4, "earlier", 60), pod(ended(CRASHED, ran))),
        true,
    ) {
        Decision::Remember(past) => past.attempts,
        other => panic!("{other:?}"),
    };
    assert_eq!((attempts(599), attempts(600)), (5, 1));
}

#[test]
fn a_shutdown_by_the_guest_stops_the_vm_only_where_that_is_wanted() {
    let mut stops = running();
    stops.spec.guest_shutdown_stops = true;
    assert_eq!(
        decide(&with_pod(stops.clone(), pod(ended(POWERED_OFF, 5))), true),
        Decision::StopAfterShutdown
    );
    // A crash never counts as a shutdown by the guest, after which the VM would stay stopped.
    assert!(matches!(
        decide(&with_pod(stops, pod(ended(CRASHED, 5))), true),
        Decision::Remember(_)
    ));
    let observed = with_pod(running(), pod(ended(POWERED_OFF, 5)));
    let Decision::Remember(past) = decide(&observed, true) else {
        panic!()
    };
    assert_eq!((past.attempts, past.reason.as_str()), (1, "GuestShutdown"));
}

#[test]
fn a_clock_that_is_ahead_does_not_delay_the_next_start() {
    let mut status = ended(CRASHED, 5);
    let ahead = now().checked_add(SignedDuration::from_hours(1)).unwrap();
    status["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = json!(ahead);
    let Decision::Remember(past) = decide(&with_pod(running(), pod(status)), true) else {
        panic!()
    };
    assert_eq!(past.time.0, now());
}

#[test]
fn a_clock_that_was_ahead_and_is_set_right_delays_nothing() {
    for attempts in [1, 20] {
        let vm = with_past(attempts, "pod-uid", -3600);
        assert_eq!(decide(&alone(vm.clone()), true), Decision::Create);
        assert_eq!(
            decide(&with_pod(vm, pod(ended(CRASHED, 5))), true),
            delete(DeleteReason::Ended)
        );
    }
}

#[test]
fn pod_that_never_ran_is_deleted_if_its_template_changes() {
    let state = |state: Value| json!({"phase": "Pending", "containerStatuses": [{"name": "vm", "state": state}]});
    let waits = json!({"waiting": {"reason": "ErrImagePull"}});
    let runs = json!({"running": {}});
    let cases = [
        (json!({"phase": "Pending"}), true),
        (json!({}), true),
        (state(waits), true),
        // Another container keeps the pod pending.
        (state(runs), false),
        (json!({"phase": "Running"}), false),
        (json!({"phase": "Unknown"}), false),
    ];
    for (status, goes) in cases {
        let mut pod = pod(status.clone());
        pod.metadata.annotations = hash_before();
        let observed = with_pod(running(), pod.clone());
        let decided = |template_hash: Option<&str>| {
            decide(&observed, true).unless_outdated(&observed, || template_hash.map(str::to_owned))
        };
        let expected = if goes {
            delete(DeleteReason::Outdated)
        } else {
            Decision::Keep
        };
        assert_eq!(
            (decided(Some("now")), decided(Some("before"))),
            (expected, Decision::Keep),
            "{status}"
        );
        assert_eq!(
            decided(None),
            Decision::Keep,
            "an invalid spec has no template"
        );
        // The runner reports that the guest runs before the kubelet does.
        let reported = with_pod(seen_running(running()), pod.clone());
        assert_eq!(
            decide(&reported, true).unless_outdated(&reported, || Some("now".to_owned())),
            Decision::Keep,
            "{status}"
        );
        // Pods of the Java VM-Operator have no hash.
        pod.metadata.annotations = PackedMap::default();
        let observed = with_pod(running(), pod);
        assert_eq!(
            decide(&observed, true).unless_outdated(&observed, || Some("now".to_owned())),
            Decision::Keep
        );
    }
}

fn hash_before() -> PackedMap {
    let name = names::ANNOTATION_TEMPLATE_HASH.to_owned();
    [(name, "before".to_owned())].into_iter().collect()
}

#[test]
fn template_hash_is_computed_only_for_a_replaceable_pod() {
    let with_hash = |status: Value| {
        let mut pod = pod(status);
        pod.metadata.annotations = hash_before();
        pod
    };
    let calls = |observed: &Observed| {
        let mut calls = 0;
        let _ = decide(observed, true).unless_outdated(observed, || {
            calls += 1;
            None
        });
        calls
    };
    let stopped = || vm(json!({"state": "Stopped"}));
    for settled in [
        with_pod(running(), with_hash(json!({"phase": "Running"}))),
        with_pod(running(), with_hash(ended(CRASHED, 5))),
        with_pod(running(), pod(json!({"phase": "Pending"}))),
        with_pod(stopped(), with_hash(json!({"phase": "Pending"}))),
        alone(running()),
        alone(stopped()),
    ] {
        assert_eq!(calls(&settled), 0, "{settled:?}");
    }
    assert_eq!(
        calls(&with_pod(running(), with_hash(json!({"phase": "Pending"})))),
        1
    );
}

#[test]
fn an_injected_container_neither_keeps_a_dead_vm_alive_nor_ends_a_living_one() {
    let terminated = json!({"terminated": {"exitCode": 0}});
    let containers = |vm: Value, other: Value| json!([{"name": "other", "state": other}, {"name": "vm", "state": vm}]);
    let status = |containers| json!({"phase": "Running", "containerStatuses": containers});
    let dead = pod(status(containers(terminated.clone(), json!({}))));
    assert!(matches!(
        decide(&with_pod(running(), dead), true),
        Decision::Remember(_)
    ));
    let alive = pod(status(containers(json!({}), terminated)));
    assert_eq!(decide(&with_pod(running(), alive), true), Decision::Keep);
}

#[test]
fn a_guest_that_powers_itself_off_again_and_again_waits_longer_and_longer() {
    let mut machine = running();
    let mut pauses = Vec::new();
    for n in 0..4 {
        let mut off = pod(ended(POWERED_OFF, 5));
        off.metadata.uid = Some(format!("pod-{n}"));
        let Decision::Remember(past) = decide(&with_pod(machine.clone(), off), true) else {
            panic!()
        };
        pauses.push(due(&past, now()).duration_since(now()).as_secs());
        machine.status.as_mut().unwrap().restarts = Some(past);
    }
    assert_eq!(pauses, [1, 2, 4, 8]);
}

#[test]
fn a_changed_vm_keeps_its_pod_until_its_next_start() {
    let mut changed = running();
    changed.metadata.generation = Some(99);
    changed.spec.image = serde_json::from_value(json!({"source": "another:2"})).unwrap();
    changed.spec.vm.maximum_ram = "64Gi".to_owned();
    assert_eq!(
        decide(&with_pod(changed, pod(json!({"phase": "Running"}))), true),
        Decision::Keep
    );
}

proptest! {
    /// A pod is created only if there is none, and deleted only if it belongs to this VM.
    #[test]
    fn never_two_pods_and_never_anothers_pod(
        wanted in prop::sample::select(vec!["Running", "Stopped"]),
        phase in prop::sample::select(vec!["", "Pending", "Running", "Succeeded", "Failed", "Unknown"]),
        present: bool, own: bool, ending: bool, valid: bool, stops: bool, by_guest: bool,
        past in prop::option::of((0u32..40, 0i64..1000, prop::sample::select(vec!["pod-uid", "earlier"]))),
    ) {
        let mut machine = past.map_or_else(running, |(attempts, ago, uid)| with_past(attempts, uid, ago));
        machine.spec.vm.state = if wanted == "Running" { State::Running } else { State::Stopped };
        machine.spec.guest_shutdown_stops = stops;
        let mut status = ended(if by_guest { POWERED_OFF } else { CRASHED }, 5);
        status["phase"] = phase.into();
        if !matches!(phase, "Succeeded" | "Failed") { status["containerStatuses"] = json!([]); }
        let mut it = pod(status);
        if !own { it.metadata.owner_references = None; }
        if ending { it.metadata.deletion_timestamp = Some(Time(now())); }
        let observed = if present { with_pod(machine, it) } else { alone(machine) };
        match decide(&observed, valid) {
            Decision::Create => prop_assert!(!present && valid && wanted == "Running"),
            Decision::Delete { uid, .. } => prop_assert!(present && own && !ending && uid == "pod-uid"),
            Decision::StopAfterShutdown => prop_assert!(stops && by_guest && own && wanted == "Running"),
            Decision::Remember(_) => prop_assert!(present && own && wanted == "Running"),
            Decision::RecordImport { .. } => prop_assert!(false, "the pod imports nothing"),
            Decision::Keep | Decision::Wait(_) => {}
        }
    }
}
