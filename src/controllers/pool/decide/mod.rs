//! (pure) Decides which writes are due. The function sees the objects and the time, and remembers nothing, so that a crash between two
//! writes has no effect.
//!
//! The assignment of a VM is a sequence of writes. Each is decided from the result of the previous one:
//!
//! 1. the status of the assignment names the VM (reservation);
//! 2. `status.assignment` of the VM names the assignment;
//! 3. the VM is started, if it is stopped;
//! 4. the condition `Bound` of the assignment becomes true.
//!
//! | file | content |
//! |---|---|
//! | `queue` | candidates for waiting assignments, and their order |
//! | `release` | the end of assignments |
//! | `status` | the status of assignments |

mod queue;
mod release;
pub mod status;

pub use release::restart;

use crate::controllers::pool::action::{Action, Check, Decision, SpecChange, Why};
use crate::controllers::pool::facts::{AssignmentFacts, Facts, Held, Vm};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use queue::Candidates;
use std::collections::BTreeSet;

/// An assignment without a VM is deleted after this time, unless a VM restarts for it.
pub const WAIT_MAX: SignedDuration = SignedDuration::from_mins(30);

/// The maximum number of VMs that are started at the same time for `spec.prewarm`.
const PREWARM_STARTS: usize = 5;

/// Decides which writes are due for the pool.
#[must_use]
pub fn decide(facts: &Facts) -> Decision {
    let mut actions = Actions::default();
    let queue = facts.queue();
    let has_demand = queue.iter().any(|assignment| assignment.is_waiting());
    for vm in facts.vms_by_name() {
        actions.extend(release::end(facts, vm, has_demand));
        actions.extend(release::restart(vm));
    }
    actions.extend(adopt(facts, &queue));
    let mut candidates = Candidates::new(facts);
    let mut position = 0;
    for assignment in queue {
        let step = match actions.of_assignment(facts, assignment) {
            Step::Done(action) => action,
            Step::NeedsVm => actions.wait(facts, assignment, &mut candidates, &mut position),
        };
        actions.extend(step);
    }
    for vm in candidates.needed_restarts() {
        actions.extend(release::expire(facts, vm, Why::Reclaimed));
    }
    actions.prewarm(facts);
    Decision {
        actions: actions.all,
        deadline: deadline(facts),
    }
}

/// Creates the assignments of users that have a VM from the Java VM-Operator.
fn adopt(facts: &Facts, queue: &[&AssignmentFacts]) -> Vec<Action> {
    let held = facts.vms.iter().filter(|vm| !vm.is_ending);
    let by_java = held.filter_map(|vm| vm.held.as_ref()).filter(|held| {
        held.assignment.is_none() && held.pool == facts.pool.id.name && !held.user.is_empty()
    });
    let has_assignment = |user: &str| queue.iter().any(|assignment| assignment.user == user);
    let users: BTreeSet<&String> = by_java
        .map(|held| &held.user)
        .filter(|user| !has_assignment(user) && !facts.pool.is_ending)
        .collect();
    users
        .into_iter()
        .map(|user| Action::Create { user: user.clone() })
        .collect()
}

/// The next step of an assignment.
#[allow(clippy::large_enum_variant, reason = "it is used at once")]
enum Step {
    /// This write is due, if any.
    Done(Option<Action>),
    /// It needs a VM.
    NeedsVm,
}

/// The actions so far.
#[derive(Default)]
struct Actions {
    all: Vec<Action>,
    /// Names of VMs in these actions.
    vms: BTreeSet<String>,
}

impl Actions {
    fn extend(&mut self, actions: impl IntoIterator<Item = Action>) {
        for action in actions {
            if let Action::Assign { vm, .. } | Action::Change { vm, .. } | Action::Free { vm, .. } =
                &action
                && !self.vms.insert(vm.name.clone())
            {
                continue;
            }
            self.all.push(action);
        }
    }

    /// The next step of an assignment.
    fn of_assignment(&self, facts: &Facts, assignment: &AssignmentFacts) -> Step {
        if facts.pool.is_ending {
            return Step::Done(Some(release::delete(
                assignment,
                Why::PoolDeleted,
                Check::None,
            )));
        }
        if !assignment.is_named_well {
            return Step::Done(status::name_mismatch(facts, assignment));
        }
        if !assignment.has_owner {
            let assignment = assignment.id.clone();
            return Step::Done(Some(Action::Own { assignment }));
        }
        let Some(named) = &assignment.status.vm else {
            return Step::NeedsVm;
        };
        let vm = facts.vms.iter().find(|vm| assignment.names(vm));
        match vm.filter(|vm| !vm.is_ending) {
            None if assignment.is_bound => {
                let (name, uid) = (named.name.clone(), named.uid.clone());
                let check = Check::VmGone { name, uid };
                Step::Done(Some(release::delete(assignment, Why::VmDeleted, check)))
            }
            None => Step::NeedsVm,
            Some(vm) if assignment.is_named_by(vm) && assignment.is_bound => {
                Step::Done(status::used(facts, assignment, vm).or_else(|| relogin(facts, vm)))
            }
            Some(vm) if assignment.is_named_by(vm) => Step::Done(Some(bind(facts, assignment, vm))),
            Some(vm) if assignment.is_bound => {
                let why = if vm.held.is_some() {
                    Why::Reclaimed
                } else {
                    Why::Expired
                };
                let check = Check::VmIs(vm.id.clone());
                Step::Done(Some(release::delete(assignment, why, check)))
            }
            Some(vm)
                if queue::is_adoptable(facts, vm, assignment) || queue::is_usable(facts, vm) =>
            {
                Step::Done(Some(assign(facts, assignment, vm)))
            }
            Some(_) => Step::NeedsVm,
        }
    }

    /// Reserves a VM for the assignment, or reports that it waits.
    fn wait(
        &self,
        facts: &Facts,
        assignment: &AssignmentFacts,
        candidates: &mut Candidates<'_>,
        position: &mut usize,
    ) -> Option<Action> {
        let adopted = queue::adoptable(facts, assignment);
        if let Some(vm) = adopted.or_else(|| candidates.next()) {
            return Some(status::reserve(facts, assignment, vm));
        }
        let restarting = candidates.next_restarting(*position + 1);
        if restarting.is_none() && facts.now.duration_since(assignment.created) >= WAIT_MAX {
            let check = Check::AssignmentIs(assignment.id.clone());
            return Some(release::delete(assignment, Why::WaitedTooLong, check));
        }
        *position += 1;
        status::waiting(facts, assignment, *position, restarting)
    }

    /// Starts unassigned members until `spec.prewarm` of them run. A VM that restarts counts as running: otherwise one VM
    /// too many would run after its restart.
    fn prewarm(&mut self, facts: &Facts) {
        if facts.pool.is_ending {
            return;
        }
        let is_freed = |vm: &Vm| {
            let frees =
                |action: &Action| matches!(action, Action::Free { vm: id, .. } if *id == vm.id);
            self.all.iter().any(frees)
        };
        let (running, stopped): (Vec<&Vm>, Vec<&Vm>) = facts
            .vms_by_name()
            .into_iter()
            .filter(|vm| queue::is_free(facts, vm) && !self.vms.contains(&vm.id.name))
            .partition(|vm| vm.wants_running);
        let vms = || facts.vms.iter();
        let becoming_free = vms().filter(|vm| queue::will_be_free(facts, vm, is_freed(vm)));
        let counted: Vec<&Vm> = running.into_iter().chain(becoming_free).collect();
        let is_starting = |vm: &&&Vm| vm.is_restarting || !vm.is_running;
        let starting = counted.iter().filter(is_starting).count();
        let blocked = vms()
            .filter(|vm| queue::is_blocked(vm, is_freed(vm)))
            .count();
        // Each blocked VM is replaced by another one, but not more than `prewarm` of them: on a full cluster, the
        // replacements have the same problem, and all members would be started.
        let prewarm = facts.pool.prewarm;
        let missing = prewarm.saturating_sub(counted.len() + blocked.saturating_sub(prewarm));
        let allowed = missing.min(PREWARM_STARTS.saturating_sub(starting));
        // A guest that is still shutting down may have the session of the previous user.
        let stopped = stopped.into_iter().filter(|vm| !vm.is_running);
        self.extend(stopped.take(allowed).map(|vm| start(vm, Why::Prewarmed)));
    }
}

/// Gives the VM to the user of the assignment. An assignment by the Java VM-Operator keeps its time.
fn assign(facts: &Facts, assignment: &AssignmentFacts, vm: &Vm) -> Action {
    let adopted = vm
        .held
        .as_ref()
        .filter(|_| queue::is_adoptable(facts, vm, assignment));
    let held = Held {
        pool: assignment.pool.clone(),
        user: assignment.user.clone(),
        assignment: Some(assignment.id.uid.clone()),
        since: adopted.and_then(|held| held.since).or(Some(facts.now)),
        login: facts.pool.login,
    };
    let vm = vm.id.clone();
    Action::Assign { vm, held }
}

/// Starts the VM, or reports that the user has it.
fn bind(facts: &Facts, assignment: &AssignmentFacts, vm: &Vm) -> Action {
    if !vm.wants_running && !assignment.is_adopted {
        return start(vm, Why::Assigned);
    }
    status::bound(facts, assignment, vm)
}

fn start(vm: &Vm, why: Why) -> Action {
    // After a shutdown by the guest, only a change of the spec starts the VM.
    let spec = if vm.state_is_running {
        SpecChange::Restart(vm.restart_request.saturating_add(1))
    } else {
        SpecChange::Start
    };
    let vm = vm.id.clone();
    Action::Change { vm, spec, why }
}

/// Changes the login of the guest after a change of the pool.
fn relogin(facts: &Facts, vm: &Vm) -> Option<Action> {
    let held = vm.held.as_ref()?;
    (held.login != facts.pool.login).then(|| Action::Assign {
        vm: vm.id.clone(),
        held: Held {
            login: facts.pool.login,
            ..held.clone()
        },
    })
}

/// The next time at which the decision can change without a change of an object.
fn deadline(facts: &Facts) -> Option<Timestamp> {
    let expiries = facts.vms.iter().filter_map(|vm| facts.expiry(vm));
    let queue = facts.queue().into_iter();
    let waiting = queue.filter(|assignment| assignment.status.vm.is_none());
    let ends = waiting.filter_map(|assignment| assignment.created.checked_add(WAIT_MAX).ok());
    expiries.chain(ends).filter(|time| *time > facts.now).min()
}
