//! Condition types and reasons, and the one way to change a condition.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

listed! {
/// The types of conditions, and what they say.
TYPES {
/// Condition: the VM is in the state that its spec asks for. Written by the operator.
pub const READY: &str = "Ready";
/// Condition: QEMU runs and the guest was started. Written by the runner.
pub const RUNNING: &str = "Running";
/// Condition: the guest's agent has answered since the guest's last boot. Written by the runner.
pub const BOOTED: &str = "Booted";
/// Condition: the desktop agent in the guest is connected. Written by the runner.
pub const VMOP_AGENT_CONNECTED: &str = "VmopAgentConnected";
/// Condition: the wanted user is logged in in the guest. Written by the runner.
pub const USER_LOGGED_IN: &str = "UserLoggedIn";
/// Condition: a SPICE client is connected. Written by the runner.
pub const CONSOLE_CONNECTED: &str = "ConsoleConnected";
/// Condition: the processor runs the guest, not emulation. Written by the runner while the machine runs.
pub const ACCELERATED: &str = "Accelerated";
/// Condition: the guest has as many CPUs as configured. Written by the runner while the machine runs.
pub const CPUS_IN_SYNC: &str = "CpusInSync";
/// Condition: the guest has as much memory as configured. Written by the runner while the machine runs.
pub const MEMORY_IN_SYNC: &str = "MemoryInSync";
/// Condition: no disk keeps the guest from running, or has given it an error. Written by the runner while the machine runs.
pub const STORAGE_HEALTHY: &str = "StorageHealthy";
/// Condition: each CD drive has the medium that it should have. Written by the runner while a machine with CD drives runs.
pub const MEDIA_READY: &str = "MediaReady";
/// Condition: the machine's TPM runs. Written by the runner while a machine with a TPM runs.
pub const TPM_HEALTHY: &str = "TpmHealthy";
/// Condition: the firmware has the variables that it had before. Written by the runner while a machine runs that had to
/// begin with others.
pub const FIRMWARE_VARIABLES_KEPT: &str = "FirmwareVariablesKept";
/// Condition: the machine is as its configuration file says. Written by the runner while the machine runs.
pub const CONFIG_IN_SYNC: &str = "ConfigInSync";

/// Condition: the pod has the CPU and memory requests that belong to the machine's size. Written by the operator while
/// it is false, and then absent.
pub const RESOURCES_IN_SYNC: &str = "ResourcesInSync";
/// Condition: the disks' claims are as the VM says. Written by the operator while it is false, and then absent.
pub const DISKS_IN_SYNC: &str = "DisksInSync";
/// Condition: a field of the VM is accepted and has no effect. Written by the operator while it is so.
pub const IGNORED_FIELD: &str = "IgnoredField";
/// Condition: the VM's load balancer service is as it should be. Written by the operator while it is false, and then
/// absent.
pub const SERVICE_IN_SYNC: &str = "ServiceInSync";
/// Condition: the VM has changed in a way that a running machine cannot follow. Written by the operator while it is true,
/// and then absent.
pub const RESTART_REQUIRED: &str = "RestartRequired";
/// Condition: what the VM needs of its volumes can be read and written by the runner. Written by the operator while it is
/// false, and then absent.
pub const DATA_ACCESSIBLE: &str = "DataAccessible";
/// Condition: each CD image that the VM names by URL is in the image repository. Written by the operator while a VM that
/// should run names one.
pub const MEDIA_FETCHED: &str = "MediaFetched";
}}

/// Conditions of the operator that are there only while there is something to tell.
pub const NOTES: [&str; 7] = [
    RESOURCES_IN_SYNC,
    DISKS_IN_SYNC,
    SERVICE_IN_SYNC,
    IGNORED_FIELD,
    RESTART_REQUIRED,
    MEDIA_FETCHED,
    DATA_ACCESSIBLE,
];

listed! {
/// Reasons of the operator's conditions besides [`READY`], and what they say.
REASONS {
/// Reason: the node has not enough for what the pod should have, and never will.
pub const REASON_INFEASIBLE: &str = "Infeasible";
/// Reason: the node has not enough for what the pod should have at the moment; the kubelet tries again.
pub const REASON_DEFERRED: &str = "Deferred";
/// Reason: the API server refuses to change the pod's resources.
pub const REASON_RESIZE_REFUSED: &str = "ResizeRefused";
/// Reason: a disk should become smaller, which no volume can.
pub const REASON_SHRINK_REFUSED: &str = "ShrinkRefused";
/// Reason: a disk's claim is there already, and should have what no claim gets later.
pub const REASON_CLAIM_IMMUTABLE: &str = "ClaimImmutable";
/// Reason: the API server refuses to enlarge a disk's claim, or to change its attributes class.
pub const REASON_EXPANSION_REFUSED: &str = "ExpansionRefused";
/// Reason: nothing of what is made depends on the field.
pub const REASON_NO_EFFECT: &str = "NoEffect";
/// Reason: fields of the spec have changed since the pod was made.
pub const REASON_SPEC_CHANGED: &str = "SpecChanged";
/// Reason: an object of somebody else's has the name.
pub const REASON_NAME_TAKEN: &str = "NameTaken";
/// Reason: the API server refuses the object.
pub const REASON_REJECTED: &str = "Rejected";
/// Reason: the pod has other resources than the operator asked for.
pub const REASON_DIFFERS: &str = "Differs";
/// Reason: the runner cannot read or write something; the message says what, as whom, and the command that helps.
pub const REASON_DATA_NOT_ACCESSIBLE: &str = "DataNotAccessible";
/// Reason: each image is in the image repository.
pub const REASON_FETCHED: &str = "Fetched";
/// Reason: an image is on its way.
pub const REASON_FETCHING: &str = "Fetching";
/// Reason: there is no image repository, and the operator must not make it, or it is being deleted.
pub const REASON_REPOSITORY_MISSING: &str = "RepositoryMissing";
/// Reason: the pod that fetches an image has ended without a word of its program.
pub const REASON_FETCH_POD_FAILED: &str = "FetchPodFailed";
}}

/// The conditions that every VM has from its creation on; clients of the reference rely on their presence.
pub const INITIAL: [&str; 5] = [RUNNING, BOOTED, VMOP_AGENT_CONNECTED, USER_LOGGED_IN, CONSOLE_CONNECTED];
/// Reason of the initial conditions.
pub const REASON_CREATION: &str = "Creation";
/// Reason of the runner's conditions where the VM does not run.
pub const REASON_VM_STOPPED: &str = "VmStopped";

/// Reasons of [`READY`]: what state a VM is in, or what is in its way. Event reasons are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadyReason {
    /// Wanted and running.
    Running,
    /// Not wanted and not there.
    Stopped,
    /// Everything is made; the pod or QEMU is on its way.
    Starting,
    /// The guest is being shut down.
    Stopping,
    /// The VM ended by itself and is started again after a pause.
    RestartBackoff,
    /// A field of the spec cannot be used.
    InvalidSpec,
    /// The whole VM cannot be read.
    Unreadable,
    /// An image of the pod cannot be had.
    ImagePullFailed,
    /// The container cannot be made from its image.
    ContainerFailed,
    /// No node takes the pod.
    Unschedulable,
    /// A claim of the VM has no volume.
    ClaimPending,
    /// A claim of the VM has lost its volume.
    ClaimLost,
    /// A claim's volume is a file system where a block device is needed, or the other way round.
    ClaimWrongMode,
    /// The storage class makes no volume for a claim.
    ProvisioningFailed,
    /// A volume cannot be bound to the node that was chosen.
    VolumeBindingFailed,
    /// A volume cannot be attached to the node.
    VolumeAttachFailed,
    /// A volume cannot be mounted or mapped on the node.
    VolumeMountFailed,
    /// A secret that the VM names is missing, or lacks a key.
    SecretMissing,
    /// The pod's network or sandbox cannot be made.
    SandboxFailed,
    /// No node offers the device for hardware acceleration.
    AcceleratorResourceMissing,
    /// No node offers the device for taps.
    TapResourceMissing,
    /// The pod's node does not answer.
    NodeUnreachable,
    /// The pod runs and its runner tells nothing.
    RunnerSilent,
    /// The pod has had its time to end and is still there.
    TerminationOverdue,
    /// Kubernetes warns of something else while the pod does not start.
    PodWarning,
    /// A quota of the namespace is used up.
    QuotaExceeded,
    /// A policy of the cluster refuses an object.
    PolicyRefused,
    /// The operator may not do what it has to.
    NotAuthorized,
    /// A pod that is not this VM's has its name.
    NameTaken,
    /// The API server refuses an object of the VM.
    Rejected,
    /// An image that the VM boots from cannot be fetched.
    MediaFetchFailed,
}

impl ReadyReason {
    /// All of them.
    pub const ALL: [Self; 31] = [
        Self::Running,
        Self::Stopped,
        Self::Starting,
        Self::Stopping,
        Self::RestartBackoff,
        Self::InvalidSpec,
        Self::Unreadable,
        Self::ImagePullFailed,
        Self::ContainerFailed,
        Self::Unschedulable,
        Self::ClaimPending,
        Self::ClaimLost,
        Self::ClaimWrongMode,
        Self::ProvisioningFailed,
        Self::VolumeBindingFailed,
        Self::VolumeAttachFailed,
        Self::VolumeMountFailed,
        Self::SecretMissing,
        Self::SandboxFailed,
        Self::AcceleratorResourceMissing,
        Self::TapResourceMissing,
        Self::NodeUnreachable,
        Self::RunnerSilent,
        Self::TerminationOverdue,
        Self::PodWarning,
        Self::QuotaExceeded,
        Self::PolicyRefused,
        Self::NotAuthorized,
        Self::NameTaken,
        Self::Rejected,
        Self::MediaFetchFailed,
    ];

    /// The reason as it stands in the condition.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Stopped => "Stopped",
            Self::Starting => "Starting",
            Self::Stopping => "Stopping",
            Self::RestartBackoff => "RestartBackoff",
            Self::InvalidSpec => "InvalidSpec",
            Self::Unreadable => "Unreadable",
            Self::ImagePullFailed => "ImagePullFailed",
            Self::ContainerFailed => "ContainerFailed",
            Self::Unschedulable => "Unschedulable",
            Self::ClaimPending => "ClaimPending",
            Self::ClaimLost => "ClaimLost",
            Self::ClaimWrongMode => "ClaimWrongMode",
            Self::ProvisioningFailed => "ProvisioningFailed",
            Self::VolumeBindingFailed => "VolumeBindingFailed",
            Self::VolumeAttachFailed => "VolumeAttachFailed",
            Self::VolumeMountFailed => "VolumeMountFailed",
            Self::SecretMissing => "SecretMissing",
            Self::SandboxFailed => "SandboxFailed",
            Self::AcceleratorResourceMissing => "AcceleratorResourceMissing",
            Self::TapResourceMissing => "TapResourceMissing",
            Self::NodeUnreachable => "NodeUnreachable",
            Self::RunnerSilent => "RunnerSilent",
            Self::TerminationOverdue => "TerminationOverdue",
            Self::PodWarning => "PodWarning",
            Self::QuotaExceeded => "QuotaExceeded",
            Self::PolicyRefused => "PolicyRefused",
            Self::NotAuthorized => "NotAuthorized",
            Self::NameTaken => "NameTaken",
            Self::Rejected => "Rejected",
            Self::MediaFetchFailed => "MediaFetchFailed",
        }
    }

    /// Whether the VM is as its spec wants it.
    #[must_use]
    pub fn is_ready(self) -> bool {
        matches!(self, Self::Running | Self::Stopped)
    }

    /// Whether somebody should look at it.
    #[must_use]
    pub fn is_problem(self) -> bool {
        !matches!(self, Self::Running | Self::Stopped | Self::Starting | Self::Stopping)
    }
}

/// The conditions as the CRD's default has them.
#[must_use]
pub fn initial() -> Vec<Condition> {
    INITIAL
        .map(|type_| Condition {
            type_: type_.to_owned(),
            status: "False".to_owned(),
            observed_generation: Some(1),
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
            reason: REASON_CREATION.to_owned(),
            message: "Creation of CR".to_owned(),
        })
        .into()
}

/// A condition as it should be, without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The condition's type.
    pub type_: &'static str,
    /// Whether it holds.
    pub status: bool,
    /// CamelCase reason, one of a closed list.
    pub reason: &'static str,
    /// What a user should know.
    pub message: String,
}

impl Wanted {
    /// The condition to write, at `now`, where `present` are the object's conditions: the transition time is kept
    /// where the status is unchanged.
    #[must_use]
    pub fn at(&self, present: &[Condition], generation: Option<i64>, now: Timestamp) -> Condition {
        let status = if self.status { "True" } else { "False" };
        let before = find(present, self.type_).filter(|c| c.status == status);
        Condition {
            type_: self.type_.to_owned(),
            status: status.to_owned(),
            observed_generation: generation,
            last_transition_time: before.map_or(Time(now), |c| c.last_transition_time.clone()),
            reason: self.reason.to_owned(),
            message: self.message.clone(),
        }
    }
}

/// The condition of that type.
#[must_use]
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether the condition of that type is present and `True`.
#[must_use]
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|c| c.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_changes_with_the_status_only() {
        let wanted = |status| Wanted { type_: RUNNING, status, reason: "X", message: String::new() };
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let first = wanted(false).at(&initial(), Some(2), at(10));
        assert_eq!(first.last_transition_time.0, Timestamp::UNIX_EPOCH);
        let second = wanted(true).at(&[first], Some(2), at(20));
        assert_eq!(second.last_transition_time.0, at(20));
        assert_eq!(wanted(true).at(&[second], Some(3), at(30)).last_transition_time.0, at(20));
    }
}
