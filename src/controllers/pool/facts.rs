//! (pure) The facts that decisions about a pool depend on.

use crate::api::pool::{OnExpiry, OnRelease, Queued, Retention, VmAssignmentStatus};
use crate::k8s::live::Version;
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeMap;

/// A pool with its members and assignments.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The pool.
    pub pool: Pool,
    /// The rules of all pools of the namespace, by name.
    pub rules: BTreeMap<String, Rules>,
    /// The members of the pool, and other VMs that its assignments refer to.
    pub vms: Vec<Vm>,
    /// The assignments of the pool, and assignments of other pools that refer to these VMs.
    pub assignments: Vec<AssignmentFacts>,
    /// The operator's time.
    pub now: Timestamp,
}

/// A pool.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Its identity.
    pub id: Version,
    /// Number of free members that are kept running.
    pub prewarm: usize,
    /// Whether the agent in the guest logs the user in.
    pub login: bool,
    /// Whether the pool is being deleted.
    pub is_ending: bool,
}

/// The rules of a pool that other pools respect.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// The retention of assignments. Without a valid one, they do not expire.
    pub retention: Option<Retention>,
    /// Action on a VM at the end of its assignment.
    pub on_release: OnRelease,
    /// Action on an expired assignment.
    pub on_expiry: OnExpiry,
}

/// A VM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct Vm {
    /// Its identity.
    pub id: Version,
    /// Whether its spec names the pool.
    pub is_member: bool,
    /// Whether it is being deleted.
    pub is_ending: bool,
    /// Whether its desired state is `Running`, and no shutdown by the guest keeps it stopped.
    pub wants_running: bool,
    /// Whether its desired state is `Running`, whatever the guest has done.
    pub state_is_running: bool,
    /// Whether its guest runs.
    pub is_running: bool,
    /// Whether it has no pod, and none is requested.
    pub is_stopped: bool,
    /// The reason why it does not run, if it is a problem.
    pub problem: Option<String>,
    /// The last restart request of the spec.
    pub restart_request: i64,
    /// Whether a requested or needed restart has not been carried out.
    pub is_restarting: bool,
    /// Whether a console is connected.
    pub is_connected: bool,
    /// Start or end of the last console connection.
    pub connection_changed: Option<Timestamp>,
    /// The user that has the VM, as its status says.
    pub held: Option<Held>,
    /// The restart request that has to be fulfilled before the next user gets the VM.
    pub restart_needed: Option<i64>,
}

/// `status.assignment` of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Held {
    /// Name of the pool.
    pub pool: String,
    /// Name of the user.
    pub user: String,
    /// UID of the assignment. None in an assignment by the Java VM-Operator.
    pub assignment: Option<String>,
    /// Time of the assignment.
    pub since: Option<Timestamp>,
    /// Whether the agent in the guest logs the user in.
    pub login: bool,
}

/// An assignment.
#[derive(Clone, Debug, PartialEq)]
pub struct AssignmentFacts {
    /// Its identity.
    pub id: Version,
    /// Name of the pool.
    pub pool: String,
    /// Name of the user.
    pub user: String,
    /// Time of its creation.
    pub created: Timestamp,
    /// Whether it is being deleted, or belongs to a previous pool with the same name.
    pub is_ending: bool,
    /// Whether its name belongs to pool and user.
    pub is_named_well: bool,
    /// Whether it has the pool as its owner.
    pub has_owner: bool,
    /// Whether the operator has created it for an assignment by the Java VM-Operator.
    pub is_adopted: bool,
    /// The condition `Bound` is true.
    pub is_bound: bool,
    /// Its status.
    pub status: VmAssignmentStatus,
}

impl AssignmentFacts {
    /// The assignment in the queue of its pool.
    #[must_use]
    pub fn queued(&self) -> Queued<'_> {
        let (created, name) = (self.created, self.id.name.as_str());
        Queued { created, name }
    }

    /// Whether it waits for a VM.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        Queued::waits(self.is_named_well, self.status.vm.as_ref())
    }

    /// Whether its status names that VM.
    #[must_use]
    pub fn names(&self, vm: &Vm) -> bool {
        self.status
            .vm
            .as_ref()
            .is_some_and(|named| named.uid == vm.id.uid)
    }

    /// Whether the VM names this assignment.
    #[must_use]
    pub fn is_named_by(&self, vm: &Vm) -> bool {
        let is_same = |held: &Held| {
            held.assignment.as_ref() == Some(&self.id.uid)
                && held.pool == self.pool
                && held.user == self.user
        };
        vm.held.as_ref().is_some_and(is_same)
    }
}

impl Facts {
    /// The assignments of the pool that are not being deleted, the oldest first.
    #[must_use]
    pub fn queue(&self) -> Vec<&AssignmentFacts> {
        let mut own: Vec<_> = self
            .assignments
            .iter()
            .filter(|assignment| assignment.pool == self.pool.id.name && !assignment.is_ending)
            .collect();
        own.sort_by_key(|assignment| assignment.queued());
        own
    }

    /// The VMs in the order of their names.
    #[must_use]
    pub fn vms_by_name(&self) -> Vec<&Vm> {
        let mut vms: Vec<_> = self.vms.iter().collect();
        vms.sort_by_key(|vm| &vm.id.name);
        vms
    }

    /// The rules of the pool.
    #[must_use]
    pub fn own_rules(&self) -> Rules {
        self.rules
            .get(&self.pool.id.name)
            .copied()
            .unwrap_or_default()
    }

    /// The rules of the pool that has assigned the VM.
    #[must_use]
    pub fn rules_of(&self, held: &Held) -> Option<Rules> {
        self.rules.get(&held.pool).copied()
    }

    /// The assignment that the VM names.
    #[must_use]
    pub fn holder(&self, vm: &Vm) -> Option<&AssignmentFacts> {
        self.assignments
            .iter()
            .find(|assignment| assignment.is_named_by(vm))
    }

    /// Whether an assignment of any pool is about to get the VM.
    #[must_use]
    pub fn is_reserved(&self, vm: &Vm) -> bool {
        self.assignments.iter().any(|assignment| {
            assignment.names(vm) && !assignment.is_bound && !assignment.is_named_by(vm)
        })
    }

    /// The last use of the VM by its holder: the assignment, or the start or end of a console connection since. It is not later than
    /// the operator's time, and not earlier than the recorded use.
    #[must_use]
    pub fn last_use(&self, vm: &Vm) -> Option<Timestamp> {
        let held = vm.held.as_ref()?;
        let recorded = self
            .holder(vm)
            .and_then(|assignment| assignment.status.last_used.as_ref());
        let recorded = recorded.map(|time| time.0);
        let since = held.since.map(|since| since.min(self.now));
        let connection = vm.connection_changed.filter(|time| Some(*time) >= since);
        let observed = connection.map(|time| time.min(self.now));
        recorded.max(since).max(observed)
    }

    /// The time from which another user can get the VM. None while a console is connected, and for an invalid retention.
    #[must_use]
    pub fn expiry(&self, vm: &Vm) -> Option<Timestamp> {
        let held = vm.held.as_ref().filter(|_| !vm.is_connected)?;
        let retention = self.rules_of(held)?.retention?;
        let end = retention.end(self.last_use(vm).unwrap_or(Timestamp::UNIX_EPOCH));
        Some(whole_seconds(end))
    }

    /// Whether another user can get the VM although it is assigned.
    #[must_use]
    pub fn is_expired(&self, vm: &Vm) -> bool {
        let Some(held) = vm.held.as_ref().filter(|_| !vm.is_connected) else {
            return false;
        };
        match &held.assignment {
            // An assignment by the Java VM-Operator from a pool that does not exist.
            None if self.rules_of(held).is_none() => true,
            Some(_)
                if !self
                    .holder(vm)
                    .is_some_and(|assignment| assignment.is_bound) =>
            {
                false
            }
            _ => self.expiry(vm).is_some_and(|expiry| expiry <= self.now),
        }
    }
}

/// The first whole second that is not before that time. Objects contain whole seconds.
fn whole_seconds(time: Timestamp) -> Timestamp {
    let rest = i64::from(time.subsec_nanosecond() > 0);
    Timestamp::from_second(time.as_second().saturating_add(rest)).unwrap_or(time)
}
