//! (pure) The end of assignments.
//!
//! With `onRelease: Stop` the VM is stopped first. Then `status.assignment` of the VM is cleared, and the user has lost
//! the VM. With `onRelease: Restart` that write also has the number of the restart request that follows. Nobody gets
//! the VM before it is fulfilled. A `VmAssignment` that no longer has its VM is deleted.

use crate::api::pool::names;
use crate::api::pool::{OnExpiry, OnRelease};
use crate::controllers::pool::action::{Action, Check, SpecChange, Why};
use crate::controllers::pool::facts::{AssignmentFacts, Facts, Held, Vm};

/// The next step of the end of the VM's assignment, if it has to end. `has_demand` says whether users wait.
pub(super) fn end(facts: &Facts, vm: &Vm, has_demand: bool) -> Option<Action> {
    let held = vm.held.as_ref().filter(|_| !vm.is_ending)?;
    if held.pool != facts.pool.id.name {
        return None;
    }
    let assignments = facts.assignments.iter();
    let Some(uid) = &held.assignment else {
        // The user keeps another VM.
        let mut own = assignments
            .filter(|assignment| assignment.pool == held.pool && assignment.user == held.user);
        let other =
            own.find(|assignment| assignment.status.vm.is_some() && !assignment.names(vm))?;
        let check = Check::AssignmentIs(other.id.clone());
        return Some(release(facts, vm, held, Why::Duplicate, check, has_demand));
    };
    let assignment = assignments
        .clone()
        .find(|assignment| assignment.id.uid == *uid);
    match assignment.filter(|assignment| !assignment.is_ending) {
        None => {
            let name = names::assignment(&held.pool, &held.user);
            let uid = uid.clone();
            let check = Check::AssignmentGone { name, uid };
            let why = Why::Released;
            Some(release(facts, vm, held, why, check, has_demand))
        }
        // The user has another VM, and never had this one. Only an assignment that is bound never changes its VM.
        Some(assignment) if assignment.is_bound && !assignment.names(vm) => Some(Action::Free {
            vm: vm.id.clone(),
            user: held.user.clone(),
            restart: None,
            why: Why::Duplicate,
            check: Check::AssignmentIs(assignment.id.clone()),
        }),
        Some(_) if facts.own_rules().on_expiry == OnExpiry::Release && facts.is_expired(vm) => {
            expire(facts, vm, Why::Expired)
        }
        Some(_) => None,
    }
}

/// The next step of the end of an expired assignment. It can be one of another pool.
pub(super) fn expire(facts: &Facts, vm: &Vm, why: Why) -> Option<Action> {
    let held = vm.held.as_ref()?;
    // A console connection since then would have changed the assignment's last use.
    let holder = facts.holder(vm).map(|assignment| assignment.id.clone());
    let check = holder.map_or(Check::None, Check::AssignmentIs);
    Some(release(facts, vm, held, why, check, why == Why::Reclaimed))
}

/// The next step of the end of the VM's assignment.
fn release(
    facts: &Facts,
    vm: &Vm,
    held: &Held,
    why: Why,
    check: Check,
    has_demand: bool,
) -> Action {
    let on_release = facts.rules_of(held).unwrap_or_default().on_release;
    let id = vm.id.clone();
    if on_release == OnRelease::Stop && vm.state_is_running && !has_demand {
        let spec = SpecChange::Stop;
        return Action::Change { vm: id, spec, why };
    }
    let restarts = on_release == OnRelease::Restart && !vm.is_stopped;
    Action::Free {
        vm: id,
        user: held.user.clone(),
        restart: restarts.then(|| vm.restart_request.saturating_add(1)),
        why,
        check,
    }
}

/// The restart of a VM that a user has lost.
#[must_use]
pub fn restart(vm: &Vm) -> Option<Action> {
    let request = vm.restart_needed?;
    let is_due = vm.held.is_none() && !vm.is_ending && vm.restart_request < request;
    let (spec, why) = (SpecChange::Restart(request), Why::Released);
    let vm = vm.id.clone();
    is_due.then_some(Action::Change { vm, spec, why })
}

/// Deletes the assignment.
pub(super) fn delete(assignment: &AssignmentFacts, why: Why, check: Check) -> Action {
    Action::Delete {
        assignment: assignment.id.clone(),
        user: assignment.user.clone(),
        why,
        check,
    }
}
