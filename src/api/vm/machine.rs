//! `spec.vm`: hardware and desired state of the VM.

use crate::api::vm::memory_backing::Memory;
use k8s_openapi::api::core::v1::{TypedLocalObjectReference, TypedObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Hardware and desired state of the VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Machine {
    /// Desired state: `Running` or `Stopped`. A change takes effect immediately.
    pub state: State,
    /// Counter of reset requests. Each increase resets the running VM once, as a reset button does. If the VM is stopped, its
    /// next start fulfils the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_request: Option<i64>,
    /// Counter of restart requests. Each increase shuts the guest down once and starts the VM in a new pod. A
    /// request for a stopped VM is complete at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_request: Option<i64>,
    /// SMBIOS UUID of the VM. Default: a random UUID that is generated at the first start and retained. A change takes
    /// effect at the next start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_uuid: Option<String>,
    /// Whether the VM has a TPM 2.0. A change takes effect at the next start.
    pub use_tpm: bool,
    /// Firmware of the VM. A change takes effect at the next start.
    pub firmware: Firmware,
    /// Whether the firmware shows its boot menu. A change takes effect at the next start.
    pub boot_menu: bool,
    /// Time in seconds that the guest has to shut down before the runner powers the VM off, 0 to 31536000. A change takes
    /// effect immediately. Exception: for a node drain or `kubectl delete pod`, a longer time takes effect only at the next
    /// start.
    pub powerdown_timeout: i64,
    /// CPU model, as QEMU names it, with optional features such as `Skylake-Server,-hle`. A change takes effect at the next
    /// start.
    pub cpu_model: String,
    /// Maximum number of CPUs, 1 to 4096. Default: the product of the fields of `cpuTopology`, else `currentCpus`, else 1.
    /// If `currentCpus` is greater than `maximumCpus`, the maximum is `currentCpus`. A change takes effect at the next start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum_cpus: Option<i64>,
    /// CPU topology, an alternative to `maximumCpus`. The product of the fields, in which 0 counts as 1, is the maximum number
    /// of CPUs. If `currentCpus` is greater, the maximum is `currentCpus`. A change takes effect at the next start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_topology: Option<CpuTopology>,
    /// Number of CPUs that the guest has, 1 to 4096. Default: the maximum number of CPUs. A change takes effect immediately.
    /// All CPUs except the first are hot-plugged. Without KVM, the runner hot-plugs at most `maximumCpus - 1` CPUs per start
    /// of the VM. A CPU that is removed and added again counts twice. At the limit, only a restart adds CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_cpus: Option<i64>,
    /// Maximum size of the guest's memory, such as `8Gi`, `1G` or `4 GiB`; at most 127Ti. A number without a unit means bytes.
    /// A change takes effect at the next start.
    pub maximum_ram: String,
    /// Size of the memory that the balloon device leaves to the guest, in the same format as `maximumRam`. Default: the value of
    /// `maximumRam`. A change takes effect immediately. A larger size takes effect when the node has allocated the memory to the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_ram: Option<String>,
    /// Host memory that backs the guest's memory. Default: ordinary memory of the pod. A change takes effect at the next start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Initial time of the guest's real-time clock: `utc`, `localtime` or a date such as `2026-01-31T12:00:00`. A change takes
    /// effect at the next start.
    pub rtc_base: String,
    /// Clock source of the guest's real-time clock, as QEMU's `-rtc clock`: `rt`, `host` or `vm`. A change takes effect at the
    /// next start.
    pub rtc_clock: String,
    /// Network interfaces. At most 23 networks and disks with PVCs in total. A change takes effect at the next start.
    pub networks: Vec<Network>,
    /// Disks and CD drives. At most 23 networks and disks with PVCs in total, and at most 6 CD drives. An added or removed drive takes effect at the next
    /// start.
    pub disks: Vec<Disk>,
    /// Display of the VM.
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

/// Desired state of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum State {
    Stopped,
    Running,
}

/// Firmware of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Firmware {
    /// SeaBIOS.
    #[serde(rename = "bios")]
    Bios,
    /// UEFI.
    #[serde(rename = "uefi")]
    Uefi,
    /// UEFI in the variant with 4 MiB of flash memory.
    #[serde(rename = "uefi-4m")]
    Uefi4m,
    /// UEFI with Secure Boot.
    #[serde(rename = "secure")]
    Secure,
    /// UEFI with Secure Boot in the variant with 4 MiB of flash memory.
    #[serde(rename = "secure-4m")]
    Secure4m,
}

impl Firmware {
    /// The name in the VM object and in the runner's configuration.
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

    /// Whether the firmware enforces Secure Boot.
    #[must_use]
    pub fn is_secure(self) -> bool {
        matches!(self, Self::Secure | Self::Secure4m)
    }
}

/// CPU topology. The product of its fields is the maximum number of CPUs, at most 4096; 0 counts as 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CpuTopology {
    /// Number of sockets, 0 to 4096; 0 means that QEMU chooses.
    pub sockets: i64,
    /// Number of dies per socket, 0 to 4096; 0 has the same effect as 1.
    pub dies_per_socket: i64,
    /// Number of cores per die, 0 to 4096; 0 means that QEMU chooses.
    pub cores_per_die: i64,
    /// Number of threads per core, 0 to 4096; 0 means that QEMU chooses.
    pub threads_per_core: i64,
}

impl CpuTopology {
    /// The product of the fields, in which 0 counts as 1: the number of CPUs.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        let fields = [
            self.sockets,
            self.dies_per_socket,
            self.cores_per_die,
            self.threads_per_core,
        ];
        fields.into_iter().fold(1, |product: u32, n| {
            product.saturating_mul(u32::try_from(n.max(1)).unwrap_or(u32::MAX))
        })
    }
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

/// Network interface: either `tap` or `user`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// Name of the interface in this VM. The interface retains its MAC address and PCI slot while its name is unchanged.
    /// Default: the name of the bridge, or `user`. If several interfaces have the same default, the names of the second and
    /// later interfaces end with a number, such as `br0 (2)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Network interface on a bridge of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tap: Option<TapNetwork>,
    /// Network interface with user-mode networking (NAT) behind the pod's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserNetwork>,
}

/// Network interface on a bridge of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TapNetwork {
    /// Device model, as QEMU names it, such as `virtio-net` or `e1000e`.
    #[serde(default = "virtio_net")]
    pub device: String,
    /// Name of the bridge on the node, at most 15 characters.
    #[serde(default = "br0")]
    pub bridge: String,
    /// MAC address of the interface, such as `52:54:00:12:34:56`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
}

/// Network interface with user-mode networking (NAT) behind the pod's address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserNetwork {
    /// Device model, as QEMU names it, such as `virtio-net` or `e1000e`.
    #[serde(default = "virtio_net")]
    pub device: String,
    /// IPv4 network that the guest sees, in CIDR notation with a prefix length from 4 to 29.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net: Option<String>,
    /// Ports of the pod that are forwarded to the guest, at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forward: Vec<Forward>,
}

/// Port of the pod that is forwarded to a port of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Forward {
    /// Port of the pod, 1024 to 65535. Lower ports need a privilege that the pod does not have.
    pub port: i32,
    /// Port of the guest, 1 to 65535.
    pub guest_port: i32,
    /// Transport protocol.
    #[serde(default)]
    pub protocol: Protocol,
}

/// Transport protocol.
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

/// Either a disk (`volumeClaimTemplate`) or a CD drive (`cdrom`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// Template of the PersistentVolumeClaim (PVC) that holds the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_template: Option<ClaimTemplate>,
    /// CD drive and the image in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdrom: Option<Cdrom>,
    /// Image that fills the disk before the first start. It requires `volumeClaimTemplate`. A PVC is filled once; a later change has no
    /// effect on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Box<DiskSource>>,
    /// Position in the boot order, 0 to 2147483647; the firmware tries the lowest position first. Without `bootindex`, the
    /// firmware decides whether and when it tries the drive. A change takes effect at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootindex: Option<i64>,
}

/// The contents of a disk. Exactly one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskSource {
    /// Image on a web server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSource>,
    /// Another disk, which is copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<PvcSource>,
    /// Image that a user sends to the import pod. The condition `Ready` has the commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload: Option<UploadSource>,
}

/// An image that a user uploads, raw or qcow2, also compressed by gzip, xz or zstd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UploadSource {
    /// Checksum that the uploaded file must have: `sha256:` and 64 hexadecimal digits, or `sha512:` and 128.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Format of the image. Default: that of its first bytes: qcow2, or raw with a boot sector or an ISO 9660 file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<ImageFormat>,
}

/// A disk on another PVC. Its bytes are copied, whatever they are. Storage class and volume mode may differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PvcSource {
    /// Name of a PVC of the namespace: a block device, or a file system with the file `disk.img`. The copy waits while a pod can write to
    /// the PVC.
    pub name: String,
}

/// An image on a web server, raw or qcow2, also compressed by gzip, xz or zstd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpSource {
    /// `https` or `http` URL of the image. The import pod must reach the server.
    pub url: String,
    /// Checksum that the downloaded file must have: `sha256:` and 64 hexadecimal digits, or `sha512:` and 128.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Format of the image. Default: that of its first bytes: qcow2, or raw with a boot sector or an ISO 9660 file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<ImageFormat>,
    /// Name of a Secret with the keys `username` and `password` for the host of the URL, such as one of the type
    /// `kubernetes.io/basic-auth`. A redirect to another host gets neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<String>,
}

/// The format of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ImageFormat {
    /// The bytes of the disk.
    Raw,
    /// QEMU's format, with compression and holes.
    Qcow2,
}

impl ImageFormat {
    /// The name in objects and arguments.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

/// A CD drive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cdrom {
    /// CD image: an `https` or `http` URL, or a path relative to the image repository (PVC `vmop-image-repository`). The
    /// operator downloads a URL once for all VMs of the namespace. An empty string means an empty drive. A change takes
    /// effect immediately.
    pub image: String,
    /// Checksum that the downloaded image must have: `sha256:` and 64 hexadecimal digits. It requires a URL as `image`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
}

/// Template of a PVC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimTemplate {
    /// Name of the disk, and labels and annotations of the PVC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ClaimMetadata>,
    /// Specification of the PVC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<ClaimSpec>,
}

/// Name of the disk, and labels and annotations of the PVC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimMetadata {
    /// Name of the disk, at most 58 characters. The PVC is named `<vm>-<name>-disk`. Without a name, the PVC is named
    /// `<vm>-disk-<n>`, where `<n>` counts all disks except CD drives from 0. A changed name means another PVC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Additional labels of the PVC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Additional annotations of the PVC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Specification of a PVC. The fields have the meaning of `PersistentVolumeClaimSpec` in Kubernetes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    /// Access modes of the volume.
    pub access_modes: Vec<String>,
    /// PVC or volume snapshot to copy into the new volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_source: Option<TypedLocalObjectReference>,
    /// Object to copy into the new volume, like `dataSource`, but also of other kinds and in other namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_source_ref: Option<TypedObjectReference>,
    /// Size of the volume, in `requests.storage`. A larger size takes effect immediately; volumes cannot shrink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<crate::api::vm::Resources>,
    /// Selects an existing PersistentVolume by its labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Storage class. Default: the default class of the cluster. With an empty string, the PVC binds only to an existing
    /// PersistentVolume without a class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// Volume attributes class. A change takes effect immediately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_attributes_class_name: Option<String>,
    /// Volume mode: `Block` for a block device, or `Filesystem` for an image file in a file system. Default: the key
    /// `diskPvc.volumeMode` of the operator's configuration, which is `Block` unless it is set. An existing PVC keeps its mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
    /// Name of the PersistentVolume to bind the PVC to.
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
            volume_mode: None,
            volume_name: None,
        }
    }
}

/// Display of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Display {
    /// Number of screens, 1 to 16. A change takes effect at the next start.
    #[serde(default = "one")]
    pub outputs: i64,
    /// User that the desktop agent in the guest logs in. A change takes effect immediately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logged_in_user: Option<String>,
    /// SPICE server of the display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spice: Option<Spice>,
}

fn one() -> i64 {
    1
}

/// SPICE server of the display.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Spice {
    /// TCP port of the SPICE server in the pod, 1 to 65535. A change takes effect at the next start.
    pub port: i64,
    /// Host name that console front ends write into connection files for clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Whether the operator creates a Secret with a password for the display if the VM has none. Without such a Secret, the
    /// display has no password. A change takes effect at the next start.
    pub generate_secret: bool,
    /// Proxy URL that console front ends write into connection files for clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_url: Option<String>,
    /// Video streaming of the SPICE server: `off`, `all` or `filter`. A change takes effect at the next start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streaming_video: Option<String>,
    /// Number of USB redirection channels, 0 to 14. A change takes effect at the next start.
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
