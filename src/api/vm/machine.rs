//! `spec.vm`: the machine itself.

use crate::api::vm::memory::Memory;
use k8s_openapi::api::core::v1::{TypedLocalObjectReference, TypedObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Machine {
    /// The wanted state.
    pub state: State,
    /// Each increase resets the running machine once, as its reset button would. A start counts as a reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_request: Option<i64>,
    /// Each increase shuts the guest down and starts the VM again, once, with a new pod. Where the VM is stopped, its
    /// next start is enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_request: Option<i64>,
    /// SMBIOS UUID. Absent: made at the first start and kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_uuid: Option<String>,
    /// Whether the machine has a TPM 2.0.
    pub use_tpm: bool,
    /// The firmware.
    pub firmware: Firmware,
    /// Whether the firmware shows its boot menu.
    pub boot_menu: bool,
    /// Seconds that the guest has to shut down.
    pub powerdown_timeout: i64,
    /// CPU model, as QEMU names it.
    pub cpu_model: String,
    /// How many CPUs the machine can have; raised to `currentCpus` if that is more. Absent: `cpuTopology`'s product, else `currentCpus`, else 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum_cpus: Option<i64>,
    /// CPU topology.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_topology: Option<CpuTopology>,
    /// How many CPUs the machine has. Absent: the maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_cpus: Option<i64>,
    /// Size of the memory: `8Gi`, `1G`, `4 GiB`.
    pub maximum_ram: String,
    /// What the balloon leaves to the guest. Absent: the maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_ram: Option<String>,
    /// What the memory is made of. Absent: the pod's ordinary memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Start of the clock: `utc`, `localtime` or a date.
    pub rtc_base: String,
    /// What drives the clock: `rt`, `host` or `vm`.
    pub rtc_clock: String,
    /// Network interfaces.
    pub networks: Vec<Network>,
    /// Disks and CD drives.
    pub disks: Vec<Disk>,
    /// The display.
    pub display: Display,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            state: State::Stopped,
            reset_request: None,
            restart_request: None,
            machine_uuid: None,
            use_tpm: false,
            firmware: Firmware::Uefi,
            boot_menu: false,
            powerdown_timeout: 900,
            cpu_model: "host".to_owned(),
            maximum_cpus: None,
            cpu_topology: None,
            current_cpus: None,
            maximum_ram: "1G".to_owned(),
            current_ram: None,
            memory: None,
            rtc_base: "utc".to_owned(),
            rtc_clock: "rt".to_owned(),
            networks: Vec::new(),
            disks: Vec::new(),
            display: Display {
                outputs: 1,
                logged_in_user: None,
                spice: Some(Spice::default()),
            },
        }
    }
}

/// The state that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum State {
    Stopped,
    Running,
}

/// The firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Firmware {
    /// SeaBIOS.
    #[serde(rename = "bios")]
    Bios,
    /// UEFI.
    #[serde(rename = "uefi")]
    Uefi,
    /// UEFI with variables of 4 MiB.
    #[serde(rename = "uefi-4m")]
    Uefi4m,
    /// UEFI with Secure Boot.
    #[serde(rename = "secure")]
    Secure,
    /// UEFI with Secure Boot and variables of 4 MiB.
    #[serde(rename = "secure-4m")]
    Secure4m,
}

impl Firmware {
    /// The name in the object and in the runner's configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bios => "bios",
            Self::Uefi => "uefi",
            Self::Uefi4m => "uefi-4m",
            Self::Secure => "secure",
            Self::Secure4m => "secure-4m",
        }
    }

    /// Whether it is that of Secure Boot.
    #[must_use]
    pub fn is_secure(self) -> bool {
        matches!(self, Self::Secure | Self::Secure4m)
    }
}

/// CPU topology; the product is the maximum number of CPUs, 0 counting as 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CpuTopology {
    /// Sockets; 0: QEMU decides.
    pub sockets: i64,
    /// Dies in each socket; 0: not given.
    pub dies_per_socket: i64,
    /// Cores in each die; 0: QEMU decides.
    pub cores_per_die: i64,
    /// Threads of each core; 0: QEMU decides.
    pub threads_per_core: i64,
}

impl Default for CpuTopology {
    fn default() -> Self {
        Self {
            sockets: 1,
            dies_per_socket: 0,
            cores_per_die: 0,
            threads_per_core: 0,
        }
    }
}

/// A network interface: `tap` or `user`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// An interface on a bridge of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tap: Option<TapNetwork>,
    /// An interface behind the pod's own address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserNetwork>,
}

/// An interface on a bridge of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TapNetwork {
    /// QEMU's device model.
    #[serde(default = "virtio_net")]
    pub device: String,
    /// Name of the bridge.
    #[serde(default = "br0")]
    pub bridge: String,
    /// MAC address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
}

/// An interface behind the pod's own address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserNetwork {
    /// QEMU's device model.
    #[serde(default = "virtio_net")]
    pub device: String,
    /// The network that the guest sees, in CIDR notation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net: Option<String>,
    /// Ports of the pod that lead into the guest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forward: Vec<Forward>,
}

/// A port of the pod that leads to one of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Forward {
    /// Port of the pod. Ports below 1024 need a privilege that the pod does not have.
    pub port: i32,
    /// Port of the guest.
    pub guest_port: i32,
    /// The protocol.
    #[serde(default)]
    pub protocol: Protocol,
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum Protocol {
    #[default]
    TCP,
    UDP,
}

fn virtio_net() -> String {
    "virtio-net".to_owned()
}

fn br0() -> String {
    "br0".to_owned()
}

/// A disk (`volumeClaimTemplate`) or a CD drive (`cdrom`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// The claim that holds the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_template: Option<ClaimTemplate>,
    /// The CD in the drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdrom: Option<Cdrom>,
    /// Place in the boot order, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootindex: Option<i64>,
}

/// A CD drive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cdrom {
    /// Path of the image in the image repository, or the URL (https, http) from which it is fetched into it, once for all
    /// VMs; empty for no medium.
    pub image: String,
    /// What an image that is fetched must be: `sha256:` and 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
}

/// A claim to be made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimTemplate {
    /// Name, labels and annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ClaimMetadata>,
    /// The claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<ClaimSpec>,
}

/// Name, labels and annotations of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimMetadata {
    /// The disk's name; the claim is named `<vm>-<name>-disk`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// More labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// A claim. The meaning is that of Kubernetes' `PersistentVolumeClaimSpec`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    /// How many nodes may mount the volume.
    pub access_modes: Vec<String>,
    /// A claim or snapshot from which the volume is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_source: Option<TypedLocalObjectReference>,
    /// The same, also of other kinds and namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_source_ref: Option<TypedObjectReference>,
    /// The size: `requests.storage`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<crate::api::vm::Resources>,
    /// Labels of the volume, where it is there already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Storage class. Absent: the cluster's default; empty: none, for a volume that is there already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// Attributes of the volume; can change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_attributes_class_name: Option<String>,
    /// `Block`, or `Filesystem` for an image file in it.
    pub volume_mode: String,
    /// Name of the volume, where it is there already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_name: Option<String>,
}

impl Default for ClaimSpec {
    fn default() -> Self {
        Self {
            access_modes: vec!["ReadWriteOnce".to_owned()],
            data_source: None,
            data_source_ref: None,
            resources: None,
            selector: None,
            storage_class_name: None,
            volume_attributes_class_name: None,
            volume_mode: "Block".to_owned(),
            volume_name: None,
        }
    }
}

/// The display.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Display {
    /// Number of screens.
    #[serde(default = "one")]
    pub outputs: i64,
    /// User whom the agent in the guest logs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logged_in_user: Option<String>,
    /// SPICE server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spice: Option<Spice>,
}

fn one() -> i64 {
    1
}

/// The SPICE server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Spice {
    /// TCP port of the pod.
    pub port: i64,
    /// Host name for clients' connection files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Whether a secret with the display's password is made.
    pub generate_secret: bool,
    /// Proxy for clients' connection files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_url: Option<String>,
    /// Whether video is streamed: `off`, `all` or `filter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streaming_video: Option<String>,
    /// Number of USB redirection channels.
    pub usb_redirects: i64,
}

impl Default for Spice {
    fn default() -> Self {
        Self {
            port: 5900,
            server: None,
            generate_secret: true,
            proxy_url: None,
            streaming_video: None,
            usb_redirects: 2,
        }
    }
}
