//! (pure) The actions of the pool controller. Each is one write with a precondition.

pub use crate::api::pool::Why;

use crate::api::pool::VmAssignmentStatus;
use crate::controllers::pool::facts::Held;
use crate::k8s::live::Version;
use k8s_openapi::jiff::Timestamp;

/// The actions that are due.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Independent writes. No object is in two of them.
    pub actions: Vec<Action>,
    /// The time of the next deadline.
    pub deadline: Option<Timestamp>,
}

/// A write.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Creates the assignment for a VM that the Java VM-Operator has assigned to the user.
    Create {
        /// Name of the user.
        user: String,
    },
    /// Makes the pool the owner of an assignment, so that it is deleted with the pool.
    Own {
        /// The assignment.
        assignment: Version,
    },
    /// Writes the status of an assignment.
    Report {
        /// The assignment in the version of the decision.
        assignment: Version,
        /// Name of the user.
        user: String,
        /// The new status.
        status: VmAssignmentStatus,
        /// The change that events and metrics report.
        change: Option<Change>,
    },
    /// Writes `status.assignment` of a VM.
    Assign {
        /// The VM in the version of the decision.
        vm: Version,
        /// The new content.
        held: Held,
    },
    /// Changes the desired state of a VM.
    Change {
        /// The VM in the version of the decision.
        vm: Version,
        /// The change.
        spec: SpecChange,
        /// The cause, for an event.
        why: Why,
    },
    /// Clears `status.assignment` of a VM.
    Free {
        /// The VM in the version of the decision.
        vm: Version,
        /// Name of the user who had the VM.
        user: String,
        /// The restart request that has to be fulfilled before the next user gets the VM.
        restart: Option<i64>,
        /// The cause.
        why: Why,
        /// The condition at the time of the write.
        check: Check,
    },
    /// Deletes an assignment.
    Delete {
        /// The assignment.
        assignment: Version,
        /// Name of the user.
        user: String,
        /// The cause.
        why: Why,
        /// The condition at the time of the write.
        check: Check,
    },
}

/// A change of an assignment that is reported by an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The user has the VM.
    Assigned,
    /// The user waits.
    Waiting,
}

/// A change of the spec of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecChange {
    /// `spec.vm.state: Running`.
    Start,
    /// `spec.vm.state: Stopped`.
    Stop,
    /// `spec.vm.restartRequest`.
    Restart(i64),
}

/// A fact that is read from the API server before a write, because a store can be outdated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// The preconditions of the write are sufficient.
    None,
    /// The assignment with that name and UID does not exist, or is being deleted. A UID never returns.
    AssignmentGone {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// The assignment has that version.
    AssignmentIs(Version),
    /// The VM with that name and UID does not exist, is being deleted, or no longer concerns pools.
    VmGone {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// The VM has that version.
    VmIs(Version),
}
