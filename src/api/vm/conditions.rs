//! The condition types of VMs and their reasons.

mod ready;

pub use ready::ReadyReason;

use crate::api::conditions::{self, Reason, find};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use strum::IntoStaticStr;

listed! {
/// The condition types with their documentation.
TYPES {
/// Condition: the VM is in the state of `spec.vm.state`. Written by the operator.
pub const READY: &str = "Ready";
/// Condition: QEMU runs the guest. Reported by the runner.
pub const RUNNING: &str = "Running";
/// Condition: the guest agent has answered since the last boot of the guest. Reported by the runner.
pub const BOOTED: &str = "Booted";
/// Condition: the desktop agent in the guest is connected. Reported by the runner.
pub const VMOP_AGENT_CONNECTED: &str = "VmopAgentConnected";
/// Condition: the user of `spec.vm.display.loggedInUser` is logged in to the guest. Reported by the runner.
pub const USER_LOGGED_IN: &str = "UserLoggedIn";
/// Condition: a SPICE client or a browser is connected to a console of the VM. Reported by the runner.
pub const CONSOLE_CONNECTED: &str = "ConsoleConnected";
/// Condition: the guest runs with hardware acceleration (KVM). Reported by the runner while the VM runs.
pub const ACCELERATED: &str = "Accelerated";
/// Condition: the guest has the configured number of CPUs. Reported by the runner while the VM runs.
pub const CPUS_IN_SYNC: &str = "CpusInSync";
/// Condition: the guest has the configured size of memory. Reported by the runner while the VM runs.
pub const MEMORY_IN_SYNC: &str = "MemoryInSync";
/// Condition: no disk has paused the guest or returned an error to it. Reported by the runner while the VM runs.
pub const STORAGE_HEALTHY: &str = "StorageHealthy";
/// Condition: each CD drive contains the configured CD image. Reported by the runner while a VM with CD drives runs.
pub const MEDIA_READY: &str = "MediaReady";
/// Condition: the TPM of the VM runs. Reported by the runner while a VM with a TPM runs.
pub const TPM_HEALTHY: &str = "TpmHealthy";
/// Condition: the user data from a Secret have a header that cloud-init or cloudbase-init knows. Reported by the runner while it is false,
/// otherwise absent.
pub const USER_DATA_RECOGNIZED: &str = "UserDataRecognized";
/// Condition: QEMU answers commands. Reported by the runner while the VM runs.
pub const QEMU_RESPONSIVE: &str = "QemuResponsive";
/// Condition: the running VM has the values of its configuration file. Reported by the runner while the VM runs.
pub const CONFIG_IN_SYNC: &str = "ConfigInSync";

/// Condition: the pod has the CPU and memory resources that the operator has requested. Written by the operator while it is
/// false, otherwise absent.
pub const RESOURCES_IN_SYNC: &str = "ResourcesInSync";
/// Condition: the PVCs of the disks have the configuration of the VM. Written by the operator while it is false, otherwise
/// absent.
pub const DISKS_IN_SYNC: &str = "DisksInSync";
/// Condition: at most one disk of the VM has no name. Written by the operator while it is false, otherwise absent.
pub const DISKS_NAMED: &str = "DisksNamed";
/// Condition: the memory limit of the pod is at least the memory of guest and QEMU. Written by the operator while it is false,
/// otherwise absent.
pub const MEMORY_LIMIT_SUFFICIENT: &str = "MemoryLimitSufficient";
/// Condition: a field of the VM has no effect. Written by the operator while it is true, otherwise absent.
pub const IGNORED_FIELD: &str = "IgnoredField";
/// Condition: the VM's Service of type `LoadBalancer` has the configured content. Written by the operator while it is false,
/// otherwise absent.
pub const SERVICE_IN_SYNC: &str = "ServiceInSync";
/// Condition: the VM has changes that take effect at the next start. Written by the operator while it is true, otherwise
/// absent.
pub const RESTART_REQUIRED: &str = "RestartRequired";
/// Condition: the runner can read and write the volumes of the VM. Written by the operator while it is false, otherwise
/// absent.
pub const DATA_ACCESSIBLE: &str = "DataAccessible";
/// Condition: each CD image that the VM names by URL is in the image repository. Written by the operator while a VM with
/// such an image has the desired state `Running`.
pub const MEDIA_FETCHED: &str = "MediaFetched";
}}

/// Beginning of the message of [`MEDIA_READY`] about a drive. The number of the drive among the CD drives and a colon follow.
pub const CD_DRIVE_PREFIX: &str = "CD drive ";

/// Additional conditions of the operator, which are absent while there is nothing to report.
pub const ADDITIONAL: [&str; 9] = [
    RESOURCES_IN_SYNC,
    DISKS_IN_SYNC,
    SERVICE_IN_SYNC,
    IGNORED_FIELD,
    RESTART_REQUIRED,
    MEDIA_FETCHED,
    DATA_ACCESSIBLE,
    DISKS_NAMED,
    MEMORY_LIMIT_SUFFICIENT,
];

/// The conditions that every VM has from its creation. Clients of the Java VM-Operator rely on their presence.
pub const INITIAL: [&str; 5] = [
    RUNNING,
    BOOTED,
    VMOP_AGENT_CONNECTED,
    USER_LOGGED_IN,
    CONSOLE_CONNECTED,
];

/// The conditions that a runner reports.
pub const OF_RUNNER: [&str; 14] = [
    RUNNING,
    BOOTED,
    VMOP_AGENT_CONNECTED,
    USER_LOGGED_IN,
    CONSOLE_CONNECTED,
    ACCELERATED,
    CPUS_IN_SYNC,
    MEMORY_IN_SYNC,
    STORAGE_HEALTHY,
    MEDIA_READY,
    TPM_HEALTHY,
    USER_DATA_RECOGNIZED,
    QEMU_RESPONSIVE,
    CONFIG_IN_SYNC,
];

/// Declares the reasons of all conditions except [`READY`]: name, condition types, meaning, and, for failed downloads of CD
/// images, the next step. `docs/reference.md` contains the meaning. A reason without one of the first three does not compile.
macro_rules! condition_reasons {
    ($($(#[doc = $meaning:literal])+ $reason:ident: $($condition:ident),+ $(=> $next_step:literal)?;)*) => {
        /// Reason of a condition.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
        pub enum ConditionReason {
            $($(#[doc = $meaning])+ $reason,)*
            /// A reason of [`READY`], which [`MEDIA_FETCHED`] can have too.
            #[strum(transparent)]
            Ready(ReadyReason),
        }

        impl ConditionReason {
            /// All reasons except those of [`READY`].
            pub const ALL: &[Self] = &[$(Self::$reason),*];

            /// The text of the reason in a condition.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                self.into()
            }

            /// The condition types that can have this reason.
            #[must_use]
            pub const fn conditions(self) -> &'static [&'static str] {
                match self {
                    $(Self::$reason => &[$($condition),+],)*
                    Self::Ready(_) => &[READY, MEDIA_FETCHED],
                }
            }

            /// The meaning of the reason. Empty for reasons of [`READY`], which are in `docs/troubleshooting.md`.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$reason => concat!($($meaning),+),)*
                    Self::Ready(_) => "",
                }
            }

            /// The next step after a failed download. Empty for reasons of other conditions than [`MEDIA_FETCHED`].
            #[must_use]
            pub const fn next_step(self) -> &'static str {
                match self {
                    $(Self::$reason => concat!($($next_step)?),)*
                    Self::Ready(_) => "",
                }
            }
        }
    };
}

condition_reasons! {
    /// The VM has been created, and has not run yet.
    Creation: RUNNING, BOOTED, VMOP_AGENT_CONNECTED, USER_LOGGED_IN, CONSOLE_CONNECTED;
    /// QEMU is being started.
    RunnerStarted: RUNNING, BOOTED;
    /// QEMU runs the guest.
    VmStarted: RUNNING, BOOTED;
    /// The guest agent has answered since the last boot.
    VmBooted: RUNNING, BOOTED;
    /// The guest is being shut down.
    VmTerminating: RUNNING, BOOTED;
    /// The VM does not run.
    VmStopped: RUNNING, BOOTED, VMOP_AGENT_CONNECTED, USER_LOGGED_IN, CONSOLE_CONNECTED;

    /// The desktop agent in the guest is connected.
    VmopAgentStarted: VMOP_AGENT_CONNECTED;
    /// The desktop agent in the guest is not connected.
    VmopAgentDisconnected: VMOP_AGENT_CONNECTED, USER_LOGGED_IN;
    /// The VM has no `spec.vm.display.loggedInUser`.
    NotRequested: USER_LOGGED_IN;
    /// The login of the user is in progress.
    Processing: USER_LOGGED_IN;
    /// The desktop agent has reported that the user is logged in.
    LoggedIn: USER_LOGGED_IN;
    /// The desktop agent could not log the user in; the message contains its answer.
    LoginFailed: USER_LOGGED_IN;
    /// A SPICE client or a browser is connected.
    Connected: CONSOLE_CONNECTED;
    /// Neither a SPICE client nor a browser is connected.
    Disconnected: CONSOLE_CONNECTED;

    /// The guest runs with KVM.
    Kvm: ACCELERATED;
    /// The guest is emulated (TCG), as configured.
    TcgRequested: ACCELERATED;
    /// The guest is emulated: the pod has no usable /dev/kvm.
    KvmNotAvailable: ACCELERATED;
    /// The guest is emulated: KVM does not execute the first instructions of a guest; the message names the step.
    KvmDoesNotWork: ACCELERATED;
    /// The guest is emulated: the KVM check did not end in time. The next start checks again.
    KvmCheckTimedOut: ACCELERATED;
    /// The guest is emulated: QEMU was started with KVM before, and KVM failed within 120 s.
    KvmFailed: ACCELERATED;
    /// QEMU chooses the accelerator.
    Unset: ACCELERATED;

    /// CPUs, memory or CD images of the guest are as configured.
    AsConfigured: CPUS_IN_SYNC, MEMORY_IN_SYNC, MEDIA_READY;
    /// QEMU has paused the guest because of a disk, so the guest applies no change.
    GuestPaused: CPUS_IN_SYNC;
    /// The guest does not release a CPU; the message contains the guest's reason.
    RefusedByGuest: CPUS_IN_SYNC;
    /// The guest or the CD drive has not applied the change yet; the message names the cause.
    NotFollowed: CPUS_IN_SYNC, MEMORY_IN_SYNC, MEDIA_READY;

    /// The running VM has the values of its configuration file.
    Applied: CONFIG_IN_SYNC;
    /// The configuration file is invalid; the running VM retains its present configuration.
    InvalidConfig: CONFIG_IN_SYNC;
    /// The display does not have the configured password or password expiry; the message names the cause.
    PasswordNotSet: CONFIG_IN_SYNC;
    /// The QMP connection is closed. The guest continues, and changes take effect only at the next start.
    MonitorLost: CONFIG_IN_SYNC, QEMU_RESPONSIVE;
    /// The change takes effect at the next start.
    RestartNeeded: CONFIG_IN_SYNC;

    /// QEMU answers commands.
    Responsive: QEMU_RESPONSIVE;
    /// QEMU has not answered two commands in a row, which have 10 s each. The guest probably hangs.
    QemuSilent: QEMU_RESPONSIVE;

    /// No disk has reported an error since the guest's boot.
    Healthy: STORAGE_HEALTHY;
    /// The storage of a disk is full; the guest is paused until the storage has space.
    DiskFull: STORAGE_HEALTHY;
    /// A read or write of a disk failed. The message says whether the guest is paused or has received the error.
    DiskError: STORAGE_HEALTHY;

    /// A CD image is not in the image repository.
    ImageMissing: MEDIA_READY;
    /// A CD image cannot be read, or QEMU cannot use it.
    ImageNotReadable: MEDIA_READY;
    /// The path of a CD image leads out of the image repository.
    OutsideRepository: MEDIA_READY;
    /// A CD image is not a regular file.
    NotAFile: MEDIA_READY;
    /// The runner's configuration names a CD image by URL. The operator or `vm-runner fetch` must download it first.
    UrlNotSupported: MEDIA_READY;
    /// The guest has locked its CD drive; the CD image changes when the guest unlocks the drive.
    GuestHoldsMedium: MEDIA_READY;

    /// The TPM of the VM runs.
    Runs: TPM_HEALTHY;
    /// The TPM process has exited. The guest continues without a TPM until the next start. This reason is also an event.
    TpmEnded: TPM_HEALTHY;

    /// The user data begin with no header of cloud-init or cloudbase-init, so both ignore them. The message names Secret, key and headers.
    UnknownHeader: USER_DATA_RECOGNIZED;

    /// The node can never provide the requested resources of the pod.
    Infeasible: RESOURCES_IN_SYNC;
    /// The node cannot provide the requested resources of the pod now; the kubelet retries.
    Deferred: RESOURCES_IN_SYNC;
    /// The API server rejects the resize of the pod; the operator retries every 5 to 6 minutes.
    ResizeRefused: RESOURCES_IN_SYNC;
    /// The pod does not have the resources that the operator has requested.
    Differs: RESOURCES_IN_SYNC;

    /// The configured size of a disk is smaller than its PVC; volumes cannot shrink.
    ShrinkRefused: DISKS_IN_SYNC;
    /// A PVC exists with another storage class, volume mode or access mode, which are immutable.
    ClaimImmutable: DISKS_IN_SYNC;
    /// The API server rejects a larger size or another volume attributes class of a disk's PVC. The operator retries every
    /// 5 to 6 minutes.
    ExpansionRefused: DISKS_IN_SYNC;

    /// An object of another owner has the name that an object of this VM needs.
    NameTaken: SERVICE_IN_SYNC, MEDIA_FETCHED => "look at the pod that has the name of the download pod. If no VM owns \
        the pod, delete it. If a VM owns the pod, stop that VM until the download is complete";
    /// The API server rejects the Service, or labels or annotations of a disk's PVC; the existing object is unchanged.
    Rejected: SERVICE_IN_SYNC, DISKS_IN_SYNC;
    /// Several disks have no name, so that their PVCs depend on their order; the message has the names that keep the PVCs.
    UnnamedDisks: DISKS_NAMED;
    /// The guest and QEMU can use more memory than spec.resources.limits.memory, and the kernel then kills QEMU.
    LimitTooLow: MEMORY_LIMIT_SUFFICIENT;
    /// Fields of the VM have no effect; the message names them.
    NoEffect: IGNORED_FIELD;
    /// Changes of fields take effect at the next start; the message names the fields.
    SpecChanged: RESTART_REQUIRED;
    /// The runner cannot read or write a volume of the VM. The message contains user ID, path and the command to correct it.
    DataNotAccessible: DATA_ACCESSIBLE;
    /// A disk image or the runner data of earlier starts does not exist. The message contains the path and the way to
    /// accept the loss.
    DataMissing: DATA_ACCESSIBLE;

    /// Each CD image is in the image repository.
    Fetched: MEDIA_FETCHED;
    /// The download of a CD image is in progress; the message contains the progress.
    Fetching: MEDIA_FETCHED => "no action; wait for the download";
    /// The operator's configuration does not allow the scheme of the URL or of a redirect.
    SchemeNotAllowed: MEDIA_FETCHED => "use a URL with an allowed scheme. To allow https or http, add the scheme to \
        imageRepository.fetch.schemes in the operator's ConfigMap. A redirect from https to http is never allowed";
    /// The URL or the URL of a redirect is invalid.
    InvalidUrl: MEDIA_FETCHED => "correct the URL";
    /// The server did not answer completely: the cause is name resolution, connection, TLS or a timeout.
    ServerUnreachable: MEDIA_FETCHED =>
        "check that the download pods can reach the server: DNS, routes, NetworkPolicies. If a proxy is necessary, set \
            imageRepository.fetch.httpsProxy. If a private certificate authority issued the server's certificate, set \
            imageRepository.fetch.authorities. The operator retries";
    /// The server does not have the file or denies access.
    ServerRefused: MEDIA_FETCHED => "if the message names no other step, correct the URL, or provide the file on the \
        server. The operator retries";
    /// The server reports a temporary failure.
    ServerFailed: MEDIA_FETCHED => "the operator retries";
    /// The CD image is larger than imageRepository.fetch.maxSize.
    TooLarge: MEDIA_FETCHED => "raise imageRepository.fetch.maxSize in the operator's ConfigMap";
    /// The checksum of the file differs from the checksum in the VM.
    ChecksumMismatch: MEDIA_FETCHED => "compare the checksum in the VM with the checksum that the publisher of the image states. \
        Then correct spec.vm.disks[].cdrom.checksum or the URL";
    /// The volume of the image repository is mounted read-only or belongs to another user.
    RepositoryNotWritable: MEDIA_FETCHED =>
        "make the PVC vmop-image-repository writable for pods. Its access mode must be ReadWriteOnce or ReadWriteMany. Its \
            volume must support fsGroup, or be writable for group 107. The operator retries";
    /// The image repository has no space for the CD image.
    RepositoryFull: MEDIA_FETCHED => "delete CD images that are no longer needed from the PVC vmop-image-repository, \
        or enlarge the PVC; the operator retries";
    /// The download takes longer than imageRepository.fetch.deadline.
    DeadlineExceeded: MEDIA_FETCHED =>
        "the operator retries. It resumes the download if the server supports HTTP range requests and sends an ETag or \
            Last-Modified. If this reason repeats, raise imageRepository.fetch.deadline in the operator's ConfigMap";
    /// The download pod received a request to stop.
    Interrupted: MEDIA_FETCHED => "the operator retries";
    /// The download pod has exited without a result: out of memory, eviction or loss of the node.
    FetchPodFailed: MEDIA_FETCHED => "the operator retries";
    /// The PVC vmop-image-repository does not exist or is being deleted.
    RepositoryMissing: MEDIA_FETCHED => "create the PVC vmop-image-repository, or set imageRepository.create in the \
        operator's ConfigMap to true";
}

impl From<ReadyReason> for ConditionReason {
    fn from(reason: ReadyReason) -> Self {
        Self::Ready(reason)
    }
}

/// The default conditions of the CRD that the Java VM-Operator has too.
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

/// Gives the default conditions of the CRD the time of the VM's creation. A default is a constant, so its time is in 1970.
pub fn date_defaults(conditions: &mut [Condition], created: Timestamp) {
    let is_own = |type_: &str| type_ == READY || INITIAL.contains(&type_);
    let is_default = |it: &&mut Condition| {
        is_own(&it.type_) && it.last_transition_time.0 == Timestamp::UNIX_EPOCH
    };
    for condition in conditions.iter_mut().filter(is_default) {
        condition.last_transition_time = Time(created);
        if condition.reason == ConditionReason::Creation.as_str() {
            condition.message = "the VM has not run yet".to_owned();
        }
    }
}

/// A desired condition of a VM.
pub type DesiredCondition = conditions::DesiredCondition<ConditionReason>;

impl Reason for ConditionReason {
    fn as_str(self) -> &'static str {
        self.as_str()
    }

    fn is_of(self, type_: &str) -> bool {
        self.conditions().contains(&type_)
    }
}

/// The message of a VM with an emulated guest, although acceleration was requested.
#[must_use]
pub fn emulation(conditions: &[Condition]) -> Option<&str> {
    // The configuration requests emulation, or leaves the choice to QEMU.
    let as_configured = [ConditionReason::TcgRequested, ConditionReason::Unset];
    find(conditions, ACCELERATED)
        .filter(|c| c.status == "False")
        .filter(|c| {
            as_configured
                .iter()
                .all(|reason| c.reason != reason.as_str())
        })
        .map(|c| c.message.as_str())
}
