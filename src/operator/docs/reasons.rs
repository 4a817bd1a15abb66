//! (pure) The reasons of conditions, and what they mean. Those of `Ready` are in `docs/troubleshooting.md`.

/// Reasons by condition: reason, and what it means.
pub const REASONS: &[(&str, &[(&str, &str)])] = &[
    (
        "Running",
        &[
            ("Creation", "the VM has been made and nothing was done yet; also of the four conditions that follow"),
            ("RunnerStarted", "QEMU is being started"),
            ("VmStarted", "QEMU runs the guest"),
            ("VmBooted", "the guest's agent has answered"),
            (
                "GuestPaused",
                "somebody has paused the guest, a debugger or another client of QEMU; the message says how",
            ),
            ("VmTerminating", "the guest is being shut down"),
            ("VmStopped", "the machine does not run; also of the four conditions that follow"),
        ],
    ),
    (
        "Booted",
        &[("VmBooted", "the guest's agent has answered since the last boot; otherwise the reason of `Running`")],
    ),
    (
        "VmopAgentConnected",
        &[
            ("VmopAgentStarted", "the desktop's agent in the guest is connected"),
            ("VmopAgentDisconnected", "the desktop's agent in the guest is not connected"),
        ],
    ),
    (
        "UserLoggedIn",
        &[
            ("NotRequested", "no user is to be logged in"),
            ("VmopAgentDisconnected", "a user is to be logged in, and there is no agent to do it"),
            ("Processing", "the user is being logged in"),
            ("LoggedIn", "the user is logged in, as the agent has said"),
            ("LoginFailed", "the agent could not log the user in; the message is its answer"),
        ],
    ),
    ("ConsoleConnected", &[("Connected", "a SPICE client is connected"), ("Disconnected", "none is")]),
    (
        "Accelerated",
        &[
            ("Kvm", "the processor runs the guest"),
            ("TcgRequested", "the guest is emulated, as configured"),
            ("KvmNotAvailable", "the guest is emulated: the pod has no /dev/kvm that it can open and that is KVM's"),
            ("KvmDoesNotWork", "the guest is emulated: KVM was tried, and has run no guest"),
            ("CpuModelRefused", "the guest is emulated: KVM works, but not with `cpuModel`; the message names others"),
            ("Unset", "the accelerator is left to QEMU"),
        ],
    ),
    (
        "CpusInSync",
        &[
            ("AsConfigured", "as it should be"),
            ("RefusedByGuest", "the guest keeps a CPU that it was asked for; the message has what it says about it"),
            ("NotFollowed", "the guest has not followed; the message says why"),
        ],
    ),
    (
        "MemoryInSync",
        &[("AsConfigured", "as it should be"), ("NotFollowed", "the guest has not followed; the message says why")],
    ),
    (
        "ConfigInSync",
        &[
            ("Applied", "the machine is as its configuration file says"),
            ("InvalidConfig", "the file cannot be used; the machine stays as it is"),
            (
                "PasswordNotSet",
                "the display has not the password that it should have, or not until when; the message says why",
            ),
            ("MonitorLost", "QEMU's monitor has been lost for half a minute; the guest goes on, changes wait"),
            ("RestartNeeded", "what has changed takes effect at the next start"),
        ],
    ),
    (
        "StorageHealthy",
        &[
            ("Healthy", "no disk has given an error since the guest boots, or for an hour"),
            ("DiskFull", "there is no room left for a disk; the guest waits until there is"),
            ("DiskError", "a disk cannot be read or written; the message says whether the guest waits or was told"),
        ],
    ),
    (
        "MediaReady",
        &[
            ("AsConfigured", "each drive has its medium"),
            ("ImageMissing", "an image is not in the image repository"),
            ("ImageNotReadable", "an image cannot be read, or QEMU cannot use it"),
            ("OutsideRepository", "an image's path leads out of the image repository"),
            ("NotAFile", "an image is no regular file"),
            (
                "UrlNotSupported",
                "an image is named by a URL; the operator fetches it first, and so does `vm-runner fetch` where there is none",
            ),
            ("NoSuchDrive", "the machine was started without that drive"),
            ("GuestHoldsMedium", "the guest has locked its drive; the medium changes when it lets go"),
            ("NotFollowed", "the drive has not followed; the message says why"),
        ],
    ),
    (
        "TpmHealthy",
        &[
            ("Runs", "the machine's TPM runs"),
            ("TpmEnded", "it has ended; the guest runs on without it until the VM is started anew; also an event"),
        ],
    ),
    (
        "FirmwareVariablesKept",
        &[(
            "PutAside",
            "the firmware begins with fresh variables; those that fit no firmware of the image are kept beside",
        )],
    ),
    (
        "ResourcesInSync",
        &[
            ("Infeasible", "the node has not enough for what the pod should have, and never will"),
            ("Deferred", "the node has not enough at the moment; the kubelet tries again"),
            (
                "ResizeRefused",
                "the API server refuses to change the pod's resources; it is asked again every 5 to 6 minutes",
            ),
            ("Differs", "the pod has other resources than the operator asked for"),
        ],
    ),
    (
        "DisksInSync",
        &[
            ("ShrinkRefused", "a disk should become smaller, which no volume can"),
            (
                "ClaimImmutable",
                "a disk's claim was there with another storage class or volume mode than the VM says, and keeps it",
            ),
            (
                "ExpansionRefused",
                "the API server refuses to enlarge a disk's claim, or to change its attributes class; it is asked again every 5 to 6 minutes",
            ),
        ],
    ),
    (
        "ServiceInSync",
        &[
            (
                "NameTaken",
                "a service of somebody else's has the VM's name, or one of an earlier VM of this name has not gone yet",
            ),
            ("Rejected", "the API server refuses the service; one that is there stays as it was"),
        ],
    ),
    ("IgnoredField", &[("NoEffect", "the message names the fields that change nothing")]),
    (
        "MediaFetched",
        &[
            ("Fetched", "each image is in the image repository"),
            ("Fetching", "an image is on its way; the message says how far"),
            ("RepositoryMissing", "there is no claim vmop-image-repository, or it is being deleted"),
            (
                "FetchPodFailed",
                "the pod that fetches an image has ended without a word; what else there is stands in troubleshooting.md",
            ),
        ],
    ),
    (
        "DataAccessible",
        &[(
            "DataNotAccessible",
            "something cannot be read or written; the message has uid, path and the command that helps",
        )],
    ),
    ("RestartRequired", &[("SpecChanged", "the message names the fields that take effect at the next start")]),
];
