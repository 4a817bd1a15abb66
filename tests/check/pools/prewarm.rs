//! The VMs without a user that `spec.prewarm` keeps running.

use super::world::{HeldS, Objects, PoolRules, VmS};
use super::{FIRST, SECOND};
use vm_operator::controllers::pool::action::{Action, Why};
use vm_operator::controllers::pool::decide::decide;
use vm_operator::controllers::pool::facts::Facts;

/// A pool with that many members, which their guests have shut down.
fn facts(prewarm: usize, members: usize) -> Facts {
    let objects = Objects::of_one_pool(VmS::default());
    let rules = PoolRules { prewarm, ..FIRST };
    let mut facts = objects.facts(0, &[rules, SECOND], 1);
    let mut vm = facts.vms.remove(0);
    (vm.state_is_running, vm.is_stopped) = (true, true);
    let named = |index: usize| {
        let mut vm = vm.clone();
        (vm.id.name, vm.id.uid) = (format!("vm{index}"), format!("{index}"));
        vm
    };
    facts.vms = (0..members).map(named).collect();
    facts
}

/// Applies the requested starts to the facts, as if the VM controller had not seen them yet, and returns their number.
fn apply_starts(facts: &mut Facts) -> usize {
    let mut starts = 0;
    for action in decide(facts).actions {
        let Action::Change { vm, why, .. } = action else {
            continue;
        };
        assert_eq!(why, Why::Prewarmed);
        let mut vms = facts.vms.iter_mut();
        let vm = vms.find(|known| known.id == vm).unwrap();
        (vm.wants_running, vm.is_restarting, vm.is_stopped) = (true, true, false);
        starts += 1;
    }
    starts
}

#[test]
fn vms_that_their_guests_have_shut_down_are_started_up_to_the_number() {
    let mut facts = facts(2, 5);
    assert_eq!(apply_starts(&mut facts), 2);
    assert_eq!(apply_starts(&mut facts), 0);
}

#[test]
fn at_most_five_vms_start_at_the_same_time() {
    let mut facts = facts(8, 9);
    assert_eq!(apply_starts(&mut facts), 5);
    assert_eq!(apply_starts(&mut facts), 0);
    for vm in &mut facts.vms[..2] {
        (vm.is_running, vm.is_restarting) = (true, false);
    }
    assert_eq!(apply_starts(&mut facts), 2);
    assert_eq!(apply_starts(&mut facts), 0);
}

#[test]
fn full_cluster_does_not_lead_to_the_start_of_all_members() {
    let mut facts = facts(2, 9);
    let mut starts = 0;
    for _ in 0..9 {
        starts += apply_starts(&mut facts);
        for vm in facts.vms.iter_mut().filter(|vm| vm.wants_running) {
            vm.is_restarting = false;
            vm.problem = Some("Unschedulable".to_owned());
        }
    }
    assert_eq!(starts, 4);
    for vm in facts.vms.iter_mut().filter(|vm| vm.wants_running) {
        vm.problem = None;
    }
    assert_eq!(apply_starts(&mut facts), 0);
}

#[test]
fn vm_of_a_user_who_has_left_counts_from_the_same_decision_on() {
    let mut facts = facts(1, 2);
    // The assignment 9 does not exist.
    let held = HeldS {
        claim: 9,
        ..HeldS::default()
    };
    let objects = Objects::of_one_pool(VmS {
        runs: true,
        held: Some(held),
        ..VmS::default()
    });
    facts.vms[0] = objects.facts(0, &[FIRST, SECOND], 1).vms.remove(0);
    let actions = decide(&facts).actions;
    assert!(
        matches!(
            actions[..],
            [Action::Free {
                why: Why::Released,
                ..
            }]
        ),
        "{actions:?}"
    );
}
