//! (pure) The status of assignments.

use crate::api::conditions::{DesiredCondition, Reason};
use crate::api::pool::names;
use crate::api::pool::{AssignedVm, BOUND, BoundReason, VmAssignmentStatus};
use crate::controllers::pool::action::{Action, Change};
use crate::controllers::pool::facts::{AssignmentFacts, Facts, Vm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

/// The queue positions that a status names. A change of later positions causes no write.
const POSITION_MAX: usize = 5;

/// A write of the status, if it differs from the present one.
fn report(
    assignment: &AssignmentFacts,
    status: VmAssignmentStatus,
    change: Option<Change>,
) -> Option<Action> {
    (status != assignment.status).then(|| Action::Report {
        assignment: assignment.id.clone(),
        user: assignment.user.clone(),
        status,
        change,
    })
}

/// The condition `Bound`.
fn bound_condition(
    facts: &Facts,
    assignment: &AssignmentFacts,
    is_true: bool,
    reason: BoundReason,
    message: String,
) -> Vec<Condition> {
    let bound = DesiredCondition {
        type_: BOUND,
        status: is_true,
        reason,
        message,
    };
    vec![bound.at(&assignment.status.conditions, None, facts.now)]
}

/// The status of an assignment without a VM.
fn without_vm(
    facts: &Facts,
    assignment: &AssignmentFacts,
    reason: BoundReason,
    message: String,
) -> VmAssignmentStatus {
    VmAssignmentStatus {
        conditions: bound_condition(facts, assignment, false, reason, message),
        ..VmAssignmentStatus::default()
    }
}

/// Reports an assignment with a name that does not belong to its pool and user.
pub(super) fn name_mismatch(facts: &Facts, assignment: &AssignmentFacts) -> Option<Action> {
    let name = names::assignment(&assignment.pool, &assignment.user);
    let message = format!(
        "the VmAssignment has the wrong name; for its pool and user, the name must be {name}. Delete the VmAssignment, \
            and create a new one: vm-operator assignment POOL USER | kubectl apply -f -"
    );
    let status = without_vm(facts, assignment, BoundReason::NameMismatch, message);
    report(assignment, status, None)
}

/// Reserves the VM.
pub(super) fn reserve(facts: &Facts, assignment: &AssignmentFacts, vm: &Vm) -> Action {
    let message = format!("VM {} is being assigned", vm.id.name);
    let status = VmAssignmentStatus {
        vm: Some(AssignedVm {
            name: vm.id.name.clone(),
            uid: vm.id.uid.clone(),
        }),
        ..without_vm(facts, assignment, BoundReason::Binding, message)
    };
    Action::Report {
        assignment: assignment.id.clone(),
        user: assignment.user.clone(),
        status,
        change: None,
    }
}

/// Reports that the assignment waits at that position of the queue, or for that restart.
pub(super) fn waiting(
    facts: &Facts,
    assignment: &AssignmentFacts,
    position: usize,
    restarting: Option<&Vm>,
) -> Option<Action> {
    let message = match restarting {
        Some(vm) => format!(
            "VM {} restarts; after the restart, the user gets the VM",
            vm.id.name
        ),
        None if position <= POSITION_MAX => format!(
            "no VM of the pool is available; the user has position {position} in the queue; see kubectl describe vmpool {}",
            facts.pool.id.name
        ),
        None => format!(
            "no VM of the pool is available; at least {POSITION_MAX} users wait before this user; see kubectl describe vmpool {}",
            facts.pool.id.name
        ),
    };
    let status = without_vm(facts, assignment, BoundReason::Waiting, message);
    let is_new = assignment
        .status
        .conditions
        .iter()
        .all(|present| present.reason != BoundReason::Waiting.as_str());
    report(assignment, status, is_new.then_some(Change::Waiting))
}

/// Reports that the user has the VM.
pub(super) fn bound(facts: &Facts, assignment: &AssignmentFacts, vm: &Vm) -> Action {
    Action::Report {
        assignment: assignment.id.clone(),
        user: assignment.user.clone(),
        status: status_of_bound(facts, assignment, vm),
        change: Some(Change::Assigned),
    }
}

/// Reports the last use and the expiry of an assignment, if they have changed.
pub(super) fn used(facts: &Facts, assignment: &AssignmentFacts, vm: &Vm) -> Option<Action> {
    report(assignment, status_of_bound(facts, assignment, vm), None)
}

fn status_of_bound(facts: &Facts, assignment: &AssignmentFacts, vm: &Vm) -> VmAssignmentStatus {
    let seconds = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time);
    let mut message = format!("the user has VM {}", vm.id.name);
    if facts.pool.login && !names::is_login_allowed(&assignment.user) {
        message += "; the desktop agent in the guest does not log the user in, because the user name is invalid. Replace the \
            VmAssignment by one with a valid user name: at most 64 letters, digits, dots, dashes, underscores and at signs. The \
            name must start with a letter, a digit or an underscore, and must not be root";
    }
    VmAssignmentStatus {
        vm: assignment.status.vm.clone(),
        last_used: facts.last_use(vm).map(seconds).map(Time),
        expires: facts.expiry(vm).map(Time),
        conditions: bound_condition(facts, assignment, true, BoundReason::Assigned, message),
    }
}
