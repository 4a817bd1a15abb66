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

/// The conditions that every VM has from its creation on; clients of the reference rely on their presence.
pub const INITIAL: [&str; 5] = [RUNNING, BOOTED, VMOP_AGENT_CONNECTED, USER_LOGGED_IN, CONSOLE_CONNECTED];
/// Declares a closed list: an enum, all its values, and their names as they are in the API.
macro_rules! closed_list {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The reason as it is in the condition.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),* }
            }
        }
    };
}

closed_list! {
/// Reasons of [`READY`]: what state a VM is in, or what is in its way. Event reasons are the same.
ReadyReason {
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
}}

impl ReadyReason {
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

/// Declares the reasons of the conditions besides [`READY`]: their names, the conditions that have them, and their meaning,
/// which is in `docs/reference.md`. A reason without one of these does not compile.
macro_rules! condition_reasons {
    ($($(#[doc = $meaning:literal])+ $reason:ident: $($condition:ident),+;)*) => {
        /// Reason of a condition.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ConditionReason {
            $($(#[doc = $meaning])+ $reason,)*
            /// A reason of [`READY`], also where it is why an image is not fetched.
            Ready(ReadyReason),
        }

        impl ConditionReason {
            /// All of them except those of [`READY`].
            pub const ALL: &[Self] = &[$(Self::$reason),*];

            /// The reason as it is in the condition.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$reason => stringify!($reason),)*
                    Self::Ready(reason) => reason.as_str(),
                }
            }

            /// The types of the conditions that have this reason.
            #[must_use]
            pub const fn conditions(self) -> &'static [&'static str] {
                match self {
                    $(Self::$reason => &[$($condition),+],)*
                    Self::Ready(_) => &[READY, MEDIA_FETCHED],
                }
            }

            /// What the reason means. Those of [`READY`] are in `docs/troubleshooting.md`.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$reason => concat!($($meaning),+),)*
                    Self::Ready(_) => "",
                }
            }
        }
    };
}

condition_reasons! {
    /// The VM has been created, and the operator has not processed it yet.
    Creation: RUNNING, BOOTED, VMOP_AGENT_CONNECTED, USER_LOGGED_IN, CONSOLE_CONNECTED;
    /// QEMU is being started.
    RunnerStarted: RUNNING, BOOTED;
    /// QEMU runs the guest.
    VmStarted: RUNNING, BOOTED;
    /// The guest's agent has answered since the last boot.
    VmBooted: RUNNING, BOOTED;
    /// The guest is being shut down.
    VmTerminating: RUNNING, BOOTED;
    /// The VM does not run.
    VmStopped: RUNNING, BOOTED, VMOP_AGENT_CONNECTED, USER_LOGGED_IN, CONSOLE_CONNECTED;

    /// The desktop agent in the guest is connected.
    VmopAgentStarted: VMOP_AGENT_CONNECTED;
    /// The desktop agent in the guest is not connected.
    VmopAgentDisconnected: VMOP_AGENT_CONNECTED, USER_LOGGED_IN;
    /// The VM names no user to log in.
    NotRequested: USER_LOGGED_IN;
    /// The user is being logged in.
    Processing: USER_LOGGED_IN;
    /// The desktop agent has reported that the user is logged in.
    LoggedIn: USER_LOGGED_IN;
    /// The desktop agent could not log the user in; the message is its answer.
    LoginFailed: USER_LOGGED_IN;
    /// A SPICE client is connected.
    Connected: CONSOLE_CONNECTED;
    /// No SPICE client is connected.
    Disconnected: CONSOLE_CONNECTED;

    /// The processor runs the guest.
    Kvm: ACCELERATED;
    /// The guest is emulated, as configured.
    TcgRequested: ACCELERATED;
    /// The guest is emulated: the pod has no /dev/kvm that it can open and that belongs to KVM.
    KvmNotAvailable: ACCELERATED;
    /// The guest is emulated: a test run of KVM failed.
    KvmDoesNotWork: ACCELERATED;
    /// The guest is emulated: KVM works, but not with `cpuModel`; the message names models that work.
    CpuModelRefused: ACCELERATED;
    /// QEMU chooses the accelerator.
    Unset: ACCELERATED;

    /// The guest has the configured CPUs, memory or CD images.
    AsConfigured: CPUS_IN_SYNC, MEMORY_IN_SYNC, MEDIA_READY;
    /// The guest keeps a CPU that it was asked to release; the message has the guest's reason.
    RefusedByGuest: CPUS_IN_SYNC;
    /// The guest, or the CD drive, has not followed the change; the message has the cause.
    NotFollowed: CPUS_IN_SYNC, MEMORY_IN_SYNC, MEDIA_READY;

    /// The machine has the values of its configuration file.
    Applied: CONFIG_IN_SYNC;
    /// The configuration file cannot be used; the machine keeps its present configuration.
    InvalidConfig: CONFIG_IN_SYNC;
    /// The display has another password or password expiry than configured; the message has the cause.
    PasswordNotSet: CONFIG_IN_SYNC;
    /// The connection to QMP has ended; the guest continues, and changes reach it at its next start only.
    MonitorLost: CONFIG_IN_SYNC;
    /// The change takes effect at the next start.
    RestartNeeded: CONFIG_IN_SYNC;

    /// No disk has reported an error since the guest's boot.
    Healthy: STORAGE_HEALTHY;
    /// The storage of a disk is full; the guest is paused until there is space.
    DiskFull: STORAGE_HEALTHY;
    /// A disk cannot be read or written; the message says whether the guest is paused or has received the error.
    DiskError: STORAGE_HEALTHY;

    /// An image is not in the image repository.
    ImageMissing: MEDIA_READY;
    /// An image cannot be read, or QEMU cannot use it.
    ImageNotReadable: MEDIA_READY;
    /// The path of an image leads out of the image repository.
    OutsideRepository: MEDIA_READY;
    /// An image is not a regular file.
    NotAFile: MEDIA_READY;
    /// The runner's configuration names an image by URL, which the operator or `vm-runner fetch` must fetch first.
    UrlNotSupported: MEDIA_READY;
    /// The machine was started without the CD drive.
    NoSuchDrive: MEDIA_READY;
    /// The guest has locked its CD drive; the image changes when the guest unlocks it.
    GuestHoldsMedium: MEDIA_READY;

    /// The machine's TPM runs.
    Runs: TPM_HEALTHY;
    /// The TPM has exited; the guest continues without a TPM until the VM's next start. Also an event.
    TpmEnded: TPM_HEALTHY;
    /// The firmware starts with new variables; the previous ones do not fit any firmware of the image and are kept in a file.
    PutAside: FIRMWARE_VARIABLES_KEPT;

    /// The node can never provide the resources that are requested for the pod.
    Infeasible: RESOURCES_IN_SYNC;
    /// The node cannot provide the resources that are requested for the pod now; the kubelet retries.
    Deferred: RESOURCES_IN_SYNC;
    /// The API server rejects the resize of the pod; the operator retries every 5 to 6 minutes.
    ResizeRefused: RESOURCES_IN_SYNC;
    /// The pod has other resources than the operator requested.
    Differs: RESOURCES_IN_SYNC;

    /// A disk is configured smaller than its claim, and volumes cannot shrink.
    ShrinkRefused: DISKS_IN_SYNC;
    /// The claim of a disk exists with another storage class or volume mode, which cannot be changed.
    ClaimImmutable: DISKS_IN_SYNC;
    /// The API server rejects a larger size or another attributes class of a disk's claim; the operator retries every 5 to 6
    /// minutes.
    ExpansionRefused: DISKS_IN_SYNC;

    /// An object that does not belong to the VM has the name that the VM's object needs.
    NameTaken: SERVICE_IN_SYNC, MEDIA_FETCHED;
    /// The API server rejects the service; an existing service is unchanged.
    Rejected: SERVICE_IN_SYNC;
    /// The message names fields that have no effect.
    NoEffect: IGNORED_FIELD;
    /// The message names the fields whose changes take effect at the next start.
    SpecChanged: RESTART_REQUIRED;
    /// The runner cannot read or write a volume of the VM; the message has user ID, path and the command that helps.
    DataNotAccessible: DATA_ACCESSIBLE;

    /// Each image is in the image repository.
    Fetched: MEDIA_FETCHED;
    /// An image is being fetched; the message has the progress.
    Fetching: MEDIA_FETCHED;
    /// The settings do not allow the scheme of the URL or of a redirect.
    SchemeNotAllowed: MEDIA_FETCHED;
    /// The URL, or the URL of a redirect, cannot be used.
    InvalidUrl: MEDIA_FETCHED;
    /// The server did not answer completely: name resolution, connection, TLS or timeout.
    ServerUnreachable: MEDIA_FETCHED;
    /// The server does not have the file or denies access.
    ServerRefused: MEDIA_FETCHED;
    /// The server cannot answer at the moment.
    ServerFailed: MEDIA_FETCHED;
    /// The image is larger than imageRepository.fetch.maxSize.
    TooLarge: MEDIA_FETCHED;
    /// The file has another checksum than the VM names.
    ChecksumMismatch: MEDIA_FETCHED;
    /// The volume of the image repository is mounted read-only or belongs to another user.
    RepositoryNotWritable: MEDIA_FETCHED;
    /// The image repository has no space for the image.
    RepositoryFull: MEDIA_FETCHED;
    /// The fetch takes longer than imageRepository.fetch.deadline.
    DeadlineExceeded: MEDIA_FETCHED;
    /// The fetch pod was asked to stop.
    Interrupted: MEDIA_FETCHED;
    /// The fetch pod has ended without a result: out of memory, eviction or loss of the node.
    FetchPodFailed: MEDIA_FETCHED;
    /// The claim vmop-image-repository does not exist or is being deleted.
    RepositoryMissing: MEDIA_FETCHED;
}

impl From<ReadyReason> for ConditionReason {
    fn from(reason: ReadyReason) -> Self {
        Self::Ready(reason)
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
            reason: ConditionReason::Creation.as_str().to_owned(),
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
    /// The reason for its status.
    pub reason: ConditionReason,
    /// What a user should know.
    pub message: String,
}

impl Wanted {
    /// The condition to write, at `now`, where `present` are the object's conditions: the transition time is kept
    /// where the status is unchanged.
    #[must_use]
    pub fn at(&self, present: &[Condition], generation: Option<i64>, now: Timestamp) -> Condition {
        debug_assert!(self.reason.conditions().contains(&self.type_), "{self:?} is not in the documentation");
        let status = if self.status { "True" } else { "False" };
        let before = find(present, self.type_).filter(|c| c.status == status);
        Condition {
            type_: self.type_.to_owned(),
            status: status.to_owned(),
            observed_generation: generation,
            last_transition_time: before.map_or(Time(now), |c| c.last_transition_time.clone()),
            reason: self.reason.as_str().to_owned(),
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
        let wanted =
            |status| Wanted { type_: RUNNING, status, reason: ConditionReason::VmStarted, message: String::new() };
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let first = wanted(false).at(&initial(), Some(2), at(10));
        assert_eq!(first.last_transition_time.0, Timestamp::UNIX_EPOCH);
        let second = wanted(true).at(&[first], Some(2), at(20));
        assert_eq!(second.last_transition_time.0, at(20));
        assert_eq!(wanted(true).at(&[second], Some(3), at(30)).last_transition_time.0, at(20));
    }
}
