//! (pure) The VMs that waiting assignments can get, and those that `spec.prewarm` counts.

use crate::api::pool::OnRelease;
use crate::controllers::pool::facts::{AssignmentFacts, Facts, Held, Vm};
use std::cmp::Reverse;
use std::collections::VecDeque;

/// Whether a user can get the VM, as far as the VM itself is concerned.
fn is_available(vm: &Vm) -> bool {
    vm.is_member && !vm.is_ending && vm.problem.is_none() && !vm.is_connected && !vm.is_restarting
}

/// Whether no user has the VM, and no user is about to get it.
pub(super) fn is_free(facts: &Facts, vm: &Vm) -> bool {
    is_available(vm) && vm.held.is_none() && !facts.is_reserved(vm)
}

/// Whether an assignment that has reserved the VM can get it.
pub(super) fn is_usable(facts: &Facts, vm: &Vm) -> bool {
    is_available(vm) && (vm.held.is_none() || is_expired(facts, vm, false))
}

/// Whether the VM is a member without a user, or becomes one because this decision ends its assignment (`is_freed`).
fn is_unassigned(vm: &Vm, is_freed: bool) -> bool {
    vm.is_member && !vm.is_ending && (vm.held.is_none() || is_freed)
}

/// Whether a restart without a user is in progress. A user can get the VM after it, unless the VM has a problem.
fn is_restarting_free(vm: &Vm) -> bool {
    vm.is_restarting && is_unassigned(vm, false)
}

/// Whether the VM will run without a user: after its restart, or because this decision ends its assignment (`is_freed`).
pub(super) fn will_be_free(facts: &Facts, vm: &Vm, is_freed: bool) -> bool {
    let can_run = vm.problem.is_none() && vm.wants_running && !facts.is_reserved(vm);
    can_run && is_unassigned(vm, is_freed) && (is_freed || vm.is_restarting)
}

/// Whether a problem prevents the VM from running for the next user.
pub(super) fn is_blocked(vm: &Vm, is_freed: bool) -> bool {
    is_unassigned(vm, is_freed) && vm.wants_running && vm.problem.is_some()
}

/// Whether the VM has an expired assignment, and whether its pool restarts the VM before the next user gets it.
fn is_expired(facts: &Facts, vm: &Vm, restarts: bool) -> bool {
    let rules = vm.held.as_ref().and_then(|held| facts.rules_of(held));
    let on_release = rules.map(|rules| rules.on_release).unwrap_or_default();
    (on_release == OnRelease::Restart && !vm.is_stopped) == restarts && facts.is_expired(vm)
}

/// Whether the VM is already assigned to the user: by the Java VM-Operator, or for this assignment, if its status has lost the VM.
pub(super) fn is_adoptable(facts: &Facts, vm: &Vm, assignment: &AssignmentFacts) -> bool {
    let by_java = |held: &Held| {
        held.assignment.is_none() && held.pool == facts.pool.id.name && held.user == assignment.user
    };
    assignment.is_named_by(vm) || vm.held.as_ref().is_some_and(by_java)
}

/// The VM that the user already has: the VM that names the assignment, else a VM with a connected console, else the VM
/// that was used last.
pub(super) fn adoptable<'a>(facts: &'a Facts, assignment: &AssignmentFacts) -> Option<&'a Vm> {
    let vms = facts.vms.iter().filter(|vm| !vm.is_ending);
    vms.filter(|vm| is_adoptable(facts, vm, assignment))
        .max_by_key(|vm| {
            let is_named = assignment.is_named_by(vm);
            let name = Reverse(&vm.id.name);
            (is_named, vm.is_connected, facts.last_use(vm), name)
        })
}

/// The VMs that the next assignments of the queue get, in this order.
pub(super) struct Candidates<'a> {
    /// Free VMs, then those with an expired assignment.
    ready: VecDeque<&'a Vm>,
    /// Free VMs with a restart in progress.
    restarting: VecDeque<&'a Vm>,
    /// VMs with an expired assignment, which have to be restarted before the next user gets them.
    expired: VecDeque<&'a Vm>,
    /// Number of VMs without a user that a problem prevents from restarting.
    stuck: usize,
    /// The VMs of `expired` that are needed.
    to_restart: Vec<&'a Vm>,
}

impl<'a> Candidates<'a> {
    pub(super) fn new(facts: &'a Facts) -> Self {
        let mut free: Vec<&Vm> = Vec::new();
        let (mut restarting, mut replaceable, mut expired) = (Vec::new(), Vec::new(), Vec::new());
        let mut stuck = 0;
        for vm in facts.vms_by_name() {
            if is_free(facts, vm) {
                free.push(vm);
            } else if facts.is_reserved(vm) {
                // An assignment of this or another pool gets it.
            } else if is_restarting_free(vm) {
                match vm.problem {
                    None => restarting.push(vm),
                    Some(_) => stuck += 1,
                }
            } else if is_available(vm) && is_expired(facts, vm, false) {
                replaceable.push(vm);
            } else if is_available(vm) && is_expired(facts, vm, true) {
                expired.push(vm);
            }
        }
        // The names are in order already, and the sorts are stable.
        free.sort_by_key(|vm| (!vm.is_running, vm.connection_changed));
        replaceable.sort_by_key(|vm| facts.last_use(vm));
        expired.sort_by_key(|vm| facts.last_use(vm));
        Self {
            ready: free.into_iter().chain(replaceable).collect(),
            restarting: restarting.into(),
            expired: expired.into(),
            stuck,
            to_restart: Vec::new(),
        }
    }

    /// The VM for the next assignment.
    pub(super) fn next(&mut self) -> Option<&'a Vm> {
        self.ready.pop_front()
    }

    /// The VM with the restart that the assignment at that position of the queue awaits. A problem that prevents all restarts costs each
    /// user who waits at most one running VM.
    pub(super) fn next_restarting(&mut self, position: usize) -> Option<&'a Vm> {
        let restarting = self.restarting.pop_front();
        restarting.or_else(|| {
            let vm = self.expired.pop_front_if(|_| self.stuck <= position)?;
            self.to_restart.push(vm);
            Some(vm)
        })
    }

    /// The VMs that have to be restarted for waiting assignments.
    pub(super) fn needed_restarts(self) -> Vec<&'a Vm> {
        self.to_restart
    }
}
