//! Condition types and reasons, and the one way to change a condition.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use strum::{EnumMessage, IntoStaticStr, VariantArray};

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
pub const INITIAL: [&str; 5] = [
    RUNNING,
    BOOTED,
    VMOP_AGENT_CONNECTED,
    USER_LOGGED_IN,
    CONSOLE_CONNECTED,
];

/// Reasons of [`READY`]: the state of a VM, or its blocking condition. Event reasons are the same. The comment is the cause,
/// `detailed_message` the place where Kubernetes publishes it, and `message` the next step, in which `{}` is the name of the
/// object that the condition's message names. Messages and `docs/troubleshooting.md` take them from here, in the order in
/// which a VM meets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EnumMessage, IntoStaticStr, VariantArray)]
pub enum ReadyReason {
    /// Wanted and running.
    Running,
    /// Not wanted and not there.
    Stopped,
    /// All objects are created; the pod or QEMU is starting.
    Starting,
    /// The guest is being shut down.
    Stopping,
    /// A field of the VM cannot be used; nothing is made or changed.
    #[strum(
        detailed_message = "our own check of the spec",
        message = "correct the field that the message names"
    )]
    InvalidSpec,
    /// An object that is not this VM's has the name of one of its own.
    #[strum(
        detailed_message = "the object's labels and owner",
        message = "give the VM or its disk another name, or remove the object: not where it is the operator's own or another VM's, \
            which the message says"
    )]
    NameTaken,
    /// A quota of the namespace leaves no room for an object of the VM.
    #[strum(
        detailed_message = "the API server's answer, `exceeded quota`",
        message = "raise the quota (kubectl describe quota), or make the VM smaller"
    )]
    QuotaExceeded,
    /// Pod Security or an admission policy refuses an object of the VM.
    #[strum(
        detailed_message = "the API server's answer, `violates PodSecurity` or `denied the request`",
        message = "correct the VM, or the policy that the message names, or let the namespace admit what the VM needs"
    )]
    PolicyRefused,
    /// The operator may not see, make or change an object.
    #[strum(
        detailed_message = "the API server's answer, `cannot … resource`",
        message = "apply the overlay again with which the operator was installed (kubectl apply -k OVERLAY)"
    )]
    NotAuthorized,
    /// The API server refuses an object of the VM for another cause.
    #[strum(
        detailed_message = "the API server's answer",
        message = "correct the VM, or what the message names"
    )]
    Rejected,
    /// No node offers the resource by which a pod gets /dev/kvm.
    #[strum(
        detailed_message = "pod condition `PodScheduled`, `Insufficient …/kvm`",
        message = "install the device plugin on nodes that have /dev/kvm (kubectl apply -k deploy/device-plugin), or set \
            accelerator.policy to tcg in the operator's ConfigMap"
    )]
    AcceleratorResourceMissing,
    /// No node offers the resource by which a pod gets /dev/net/tun, which tap networks need.
    #[strum(
        detailed_message = "pod condition `PodScheduled`, `Insufficient …/tun`",
        message = "install the device plugin on the nodes (kubectl apply -k deploy/device-plugin), or set tap.hostPath to true in \
            the operator's ConfigMap"
    )]
    TapResourceMissing,
    /// No node takes the pod: CPU, memory, taints, node selection, a volume on another node, a claim that does not exist,
    /// is being deleted or is used by another pod alone, or, with tap networks, a port that another pod on the node has.
    #[strum(
        detailed_message = "pod condition `PodScheduled`",
        message = "make room, let the pod run where its volumes are, or change spec.vm, spec.resources or the node selection: see \
            kubectl describe pod {}"
    )]
    Unschedulable,
    /// A claim has had no volume for 10 s.
    #[strum(
        detailed_message = "pod condition `PodScheduled` and the claim's phase",
        message = "provide a volume that fits it; or correct class, selector or size in the VM (of the image repository: in its \
            manifest) and delete the claim while its phase is Pending, as it holds nothing until then; it is created again: \
            see kubectl describe pvc {}"
    )]
    ClaimPending,
    /// A claim has lost its volume, and with it the data.
    #[strum(
        detailed_message = "the claim's phase `Lost`",
        message = "bring the volume back, or restore the data into a new claim: see kubectl describe pvc {}"
    )]
    ClaimLost,
    /// The storage class of a claim does not exist or makes no volume.
    #[strum(
        detailed_message = "event `ProvisioningFailed` of the claim",
        message = "correct the class's provisioner; or correct the storage class in the VM (of the image repository: in its \
            manifest) and delete the claim while its phase is Pending, as it holds nothing until then; it is created again: \
            see kubectl describe pvc {}"
    )]
    ProvisioningFailed,
    /// A volume cannot be attached to the node, often because another node still has it.
    #[strum(
        detailed_message = "event `FailedAttachVolume` of the pod",
        message = "wait until the other node has let it go, or see what holds it: kubectl get volumeattachments"
    )]
    VolumeAttachFailed,
    /// A claim's volume mode does not fit its use: disks are block devices.
    #[strum(
        detailed_message = "event `FailedMount` of the pod, `volumeMode`",
        message = "give the disk a claim with volumeMode Block: see kubectl describe pod {}"
    )]
    ClaimWrongMode,
    /// A secret that the VM needs is missing, or lacks a key.
    #[strum(
        detailed_message = "event `FailedMount` of the pod, `secret`",
        message = "create the secret, or the key in it, that spec.cloudInit names; the VM then starts by itself, up to two minutes \
            later"
    )]
    SecretMissing,
    /// A volume cannot be mounted or mapped on the node.
    #[strum(
        detailed_message = "events `FailedMount` and `FailedMapVolume` of the pod",
        message = "correct what the message names on the node or in the storage: see kubectl describe pod {}"
    )]
    VolumeMountFailed,
    /// The container runtime or the network plugin cannot set the pod up.
    #[strum(
        detailed_message = "event `FailedCreatePodSandBox` of the pod",
        message = "repair the node's container runtime or network plugin: see kubectl describe pod {}"
    )]
    SandboxFailed,
    /// The runner's image cannot be pulled.
    #[strum(
        detailed_message = "the container's state `ErrImagePull`, `ImagePullBackOff`, `ErrImageNeverPull`, `InvalidImageName`",
        message = "correct spec.image, or runnerImage in the operator's ConfigMap, or load the image where the node finds it"
    )]
    ImagePullFailed,
    /// The container cannot be created or started.
    #[strum(
        detailed_message = "the container's state `CreateContainerConfigError`, `CreateContainerError`, `RunContainerError`",
        message = "see kubectl describe pod {}"
    )]
    ContainerFailed,
    /// Kubernetes warns of something else while the pod does not start.
    #[strum(
        detailed_message = "any other warning of the pod, passed on as it is",
        message = "see kubectl describe pod {}"
    )]
    PodWarning,
    /// The VM has ended by itself; it starts again after 1 s, 2 s, 4 s … 5 min. Or others delete its pod again and again.
    #[strum(
        detailed_message = "the end of the pod: see the table below",
        message = "nothing, if the guest has powered itself off; else correct what the message names"
    )]
    RestartBackoff,
    /// The pod's node does not answer; the guest may still run there, so that it is started nowhere else.
    #[strum(
        detailed_message = "pod phase `Unknown`, condition `Ready` without a reason, `DisruptionTarget` by the taint manager, or no \
            container's state 2 min after the pod got its node",
        message = "bring the node back; if it is off for sure, let its volumes go: kubectl taint node {} \
            node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )]
    NodeUnreachable,
    /// The pod runs, and its runner has not reported the VM's state for two minutes: it does not reach the API server, or
    /// may not write there.
    #[strum(
        detailed_message = "condition `Ready` of the pod, and none of the runner's conditions of the VM",
        message = "see kubectl logs {}; let the pod reach the API server (NetworkPolicy), and the runner write (Role vm-runner: \
            apply the overlay again with which the operator was installed)"
    )]
    RunnerSilent,
    /// The pod has had its time to end and is still there.
    #[strum(
        detailed_message = "the pod's deletion time",
        message = "see what holds it: kubectl describe pod {}; if its container runs, switch that off: kubectl exec {} -- vm-runner \
            power-off; deleting the pod by force may corrupt disks, as its guest may still run"
    )]
    TerminationOverdue,
    /// An image given by URL, from which the VM boots, cannot be fetched.
    #[strum(
        detailed_message = "condition `MediaFetched`: see the table below",
        message = "correct what the message names; after imageRepository.fetch.startDeadline the VM starts with the drive empty"
    )]
    MediaFetchFailed,
}

impl ReadyReason {
    /// The reason as it is in the condition.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether the VM is as its spec wants it.
    #[must_use]
    pub fn is_ready(self) -> bool {
        matches!(self, Self::Running | Self::Stopped)
    }

    /// Whether somebody should look at it.
    #[must_use]
    pub fn is_problem(self) -> bool {
        !matches!(
            self,
            Self::Running | Self::Stopped | Self::Starting | Self::Stopping
        )
    }
}

/// Declares the reasons of the conditions besides [`READY`]: their names, the conditions that have them, their meaning, which
/// is in `docs/reference.md`, and the next step where an image is not fetched. A reason without one of the first three does
/// not compile.
macro_rules! condition_reasons {
    ($($(#[doc = $meaning:literal])+ $reason:ident: $($condition:ident),+ $(=> $next_step:literal)?;)*) => {
        /// Reason of a condition.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
        pub enum ConditionReason {
            $($(#[doc = $meaning])+ $reason,)*
            /// A reason of [`READY`], also where it is why an image is not fetched.
            #[strum(transparent)]
            Ready(ReadyReason),
        }

        impl ConditionReason {
            /// All of them except those of [`READY`].
            pub const ALL: &[Self] = &[$(Self::$reason),*];

            /// The reason as it is in the condition.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                self.into()
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

            /// The next step where an image is not fetched for this reason, if it is one of `MediaFetched`.
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
    /// The guest has locked its CD drive; the image changes when the guest unlocks it.
    GuestHoldsMedium: MEDIA_READY;

    /// The machine's TPM runs.
    Runs: TPM_HEALTHY;
    /// The TPM has exited; the guest continues without a TPM until the VM's next start. Also an event.
    TpmEnded: TPM_HEALTHY;

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
    NameTaken: SERVICE_IN_SYNC, MEDIA_FETCHED => "remove that pod, or, where it is a VM's, give that VM another name";
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
    Fetching: MEDIA_FETCHED => "nothing";
    /// The settings do not allow the scheme of the URL or of a redirect.
    SchemeNotAllowed: MEDIA_FETCHED => "use another URL, or allow it in imageRepository.fetch.schemes";
    /// The URL, or the URL of a redirect, cannot be used.
    InvalidUrl: MEDIA_FETCHED => "correct the URL";
    /// The server did not answer completely: name resolution, connection, TLS or timeout.
    ServerUnreachable: MEDIA_FETCHED =>
        "correct the network, or the NetworkPolicy of the fetch pods; behind a proxy, or with a certificate authority of your \
        own, see imageRepository.fetch.httpsProxy and .authorities; it is tried again";
    /// The server does not have the file or denies access.
    ServerRefused: MEDIA_FETCHED => "correct the URL, or put the file there; it is tried again";
    /// The server cannot answer at the moment.
    ServerFailed: MEDIA_FETCHED => "nothing; it is tried again";
    /// The image is larger than imageRepository.fetch.maxSize.
    TooLarge: MEDIA_FETCHED => "raise maxSize in the operator's ConfigMap";
    /// The file has another checksum than the VM names.
    ChecksumMismatch: MEDIA_FETCHED => "correct cdrom.checksum or the URL";
    /// The volume of the image repository is mounted read-only or belongs to another user.
    RepositoryNotWritable: MEDIA_FETCHED =>
        "give the claim vmop-image-repository an access mode with which pods can write (ReadWriteMany), and a volume that \
        fsGroup 107 applies to or that belongs to group 107";
    /// The image repository has no space for the image.
    RepositoryFull: MEDIA_FETCHED => "remove files, or enlarge the claim vmop-image-repository; it is tried again";
    /// The fetch takes longer than imageRepository.fetch.deadline.
    DeadlineExceeded: MEDIA_FETCHED =>
        "nothing: it is tried again, and goes on where it has ended if the server allows that; else raise deadline in the \
        operator's ConfigMap";
    /// The fetch pod was asked to stop.
    Interrupted: MEDIA_FETCHED => "nothing; it is tried again";
    /// The fetch pod has ended without a result: out of memory, eviction or loss of the node.
    FetchPodFailed: MEDIA_FETCHED => "nothing; it is tried again";
    /// The claim vmop-image-repository does not exist or is being deleted.
    RepositoryMissing: MEDIA_FETCHED => "make it, or let the operator make it (imageRepository.create)";
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
        debug_assert!(
            self.reason.conditions().contains(&self.type_),
            "{self:?} is not in the documentation"
        );
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
        let wanted = |status| Wanted {
            type_: RUNNING,
            status,
            reason: ConditionReason::VmStarted,
            message: String::new(),
        };
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let first = wanted(false).at(&initial(), Some(2), at(10));
        assert_eq!(first.last_transition_time.0, Timestamp::UNIX_EPOCH);
        let second = wanted(true).at(&[first], Some(2), at(20));
        assert_eq!(second.last_transition_time.0, at(20));
        assert_eq!(
            wanted(true)
                .at(&[second], Some(3), at(30))
                .last_transition_time
                .0,
            at(20)
        );
    }
}
