//! The VMs without a user that `spec.prewarm` keeps running.

use super::world::{HeldS, Objects, PoolRules, VmS};
use super::{FIRST, SECOND};
use vm_operator::controllers::pool::action::{Action, Why};
use vm_operator::controllers::pool::decide::decide;
use vm_operator::controllers::pool::facts::{Facts, Vm};

/// A pool with `members` VMs. The guest of each VM has shut down.
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

/// A running VM. Its assignment no longer exists.
fn vm_with_removed_assignment() -> Vm {
    let held = HeldS {
        assignment: 9,
        ..HeldS::default()
    };
    let objects = Objects::of_one_pool(VmS {
        runs: true,
        held: Some(held),
        ..VmS::default()
    });
    objects.facts(0, &[FIRST, SECOND], 1).vms.remove(0)
}

/// The names of the VMs that the pool starts. It changes no other VM.
fn started(facts: &Facts) -> Vec<String> {
    let mut names = Vec::new();
    for action in decide(facts).actions {
        if let Action::Change { vm, why, .. } = action {
            assert_eq!(why, Why::Prewarmed);
            names.push(vm.name);
        }
    }
    names
}

fn starts(facts: &Facts) -> usize {
    started(facts).len()
}

/// Applies the requested starts to the facts, as if the VM controller had not seen them yet, and returns their number.
fn apply_starts(facts: &mut Facts) -> usize {
    let names = started(facts);
    let is_started = |vm: &&mut Vm| names.contains(&vm.id.name);
    for vm in facts.vms.iter_mut().filter(is_started) {
        (vm.wants_running, vm.is_restarting, vm.is_stopped) = (true, true, false);
    }
    names.len()
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
fn vm_with_removed_assignment_counts_in_the_same_decision() {
    let mut facts = facts(1, 2);
    facts.vms[0] = vm_with_removed_assignment();
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

#[test]
fn vm_with_removed_assignment_and_a_problem_counts_for_the_limit() {
    let mut facts = facts(1, 3);
    facts.vms[0] = vm_with_removed_assignment();
    facts.vms[1].wants_running = true;
    for vm in &mut facts.vms[..2] {
        vm.problem = Some("Unschedulable".to_owned());
    }
    assert_eq!(starts(&facts), 0);
    facts.vms[1].problem = None;
    facts.vms[1].wants_running = false;
    assert_eq!(starts(&facts), 1);
}

#[test]
fn vm_that_still_shuts_down_after_its_user_is_not_started() {
    let mut facts = facts(1, 2);
    for vm in &mut facts.vms {
        vm.state_is_running = false;
    }
    facts.vms[0].is_running = true;
    let names = started(&facts);
    assert_eq!(names, ["vm1"]);
    facts.vms.remove(1);
    assert_eq!(starts(&facts), 0);
    facts.vms[0].is_running = false;
    assert_eq!(starts(&facts), 1);
}

#[test]
fn pool_that_is_being_deleted_starts_no_vm() {
    let mut facts = facts(1, 1);
    assert_eq!(starts(&facts), 1);
    facts.pool.is_ending = true;
    assert_eq!(starts(&facts), 0);
}
