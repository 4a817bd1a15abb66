//! The runner's configuration file, `config.yaml`: written by the operator, read by the runner.
//!
//! Keys and their meaning are those of the Java VM-Operator; comments mark the keys that it does not have as extensions. The
//! operator writes JSON, which all YAML parsers read in the same way. Readers ignore unknown keys.

use crate::api::quantity::Bytes;
use crate::api::vm::{Firmware, PageSize};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::net::IpAddr;

/// The configuration file, which has one root key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConfigFile {
    /// The only key that is read.
    #[serde(rename = "/Runner")]
    pub runner: RunnerConfig,
}

/// The keys below `/Runner`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunnerConfig {
    /// Directory of the runner data. Default: `vmrunner/<name>` in `$XDG_DATA_HOME`, else in `~/.local/share`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<String>,
    /// Directory of sockets. Default: `vmrunner/<name>` in `$XDG_RUNTIME_DIR`, else in `/dev/shm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_dir: Option<String>,
    /// Namespace of the VM object. Default: the namespace of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Extension: `metadata.uid` of the VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Extension: `metadata.generation` of the VM from which the operator created this file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// `spec.vm.resetRequest`: each increase resets the VM once. A start fulfils the value that it begins with. The runner
    /// reports the last fulfilled value as `status.observedResetRequest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_counter: Option<i64>,
    /// Extension: UID of the `VmAssignment` by which a user has the VM. The runner closes consoles that were opened under another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assignment: Option<String>,
    /// Whether a shutdown by the guest sets the desired state to `Stopped`.
    pub guest_shutdown_stops: bool,
    /// Extension: log level of the runner: `error`, `warn`, `info` (default), `debug` or `trace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_level: Option<String>,
    /// Extension: TCP port of `/metrics`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_port: Option<u16>,
    /// Extension: TCP port for web consoles. Default: 9181. It is closed while the directory of this file has no keys of web
    /// consoles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub console_port: Option<u16>,
    /// Data for cloud-init.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud_init: Option<CloudInit>,
    /// The VM. It is required; the type is optional, so that the runner can report a missing key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmConfig>,
}

/// Content of the cloud-init seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CloudInit {
    /// Content of `meta-data`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta_data: Option<Map<String, Value>>,
    /// Content of `user-data`, which follows the line `#cloud-config`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data: Option<Map<String, Value>>,
    /// Extension: path of a file with the complete `user-data`. Then `user_data` is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data_file: Option<String>,
    /// Content of `network-config`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_config: Option<Map<String, Value>>,
    /// Extension: path of a file with the complete `network-config`. Then `network_config` is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_config_file: Option<String>,
}

/// The VM. Fields without a documented default are absent or false by default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VmConfig {
    /// Name of the VM object.
    pub name: String,
    /// SMBIOS UUID. Default: the UUID in the data directory, which the first start generates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Whether the VM has a TPM 2.0.
    pub use_tpm: bool,
    /// Whether the firmware shows its boot menu.
    pub boot_menu: bool,
    /// Firmware. Default: `uefi`.
    pub firmware: Firmware,
    /// Maximum size of the guest's memory. Default: 1 GiB.
    pub maximum_ram: Bytes,
    /// Size of the memory that the balloon device leaves to the guest. Default: `maximumRam`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_ram: Option<Bytes>,
    /// Extension: size of the huge pages that back the guest's memory. The memory is a multiple of this size. Default:
    /// ordinary pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<PageSize>,
    /// Extension: whether QEMU can share the guest's memory with other programs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shared_memory: bool,
    /// CPU model, as QEMU names it. Default: `host`, which means `max` for an emulated guest.
    pub cpu_model: String,
    /// Maximum number of CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum_cpus: Option<u32>,
    /// Number of CPUs that the guest has. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_cpus: Option<u32>,
    /// Number of sockets; 0 means not specified.
    pub sockets: u32,
    /// Number of dies per socket; 0 means not specified.
    pub dies_per_socket: u32,
    /// Number of cores per die; 0 means not specified.
    pub cores_per_die: u32,
    /// Number of threads per core; 0 means not specified.
    pub threads_per_core: u32,
    /// Accelerator. Default: `auto`.
    #[serde(skip_serializing_if = "Accelerator::is_auto")]
    pub accelerator: Accelerator,
    /// Initial time of the real-time clock: `utc` (default), `localtime` or a date.
    pub rtc_base: String,
    /// Clock source of the real-time clock. Default: `rt`.
    pub rtc_clock: RtcClock,
    /// Time for the guest to shut down, in seconds. Default: 900.
    pub powerdown_timeout: u64,
    /// Network interfaces. Default: one interface of the default type. An empty list or null means no interface.
    pub network: Vec<NetworkConfig>,
    /// Disks and CD drives.
    pub drives: Vec<DriveConfig>,
    /// Display.
    pub display: DisplayConfig,
}

impl Default for VmConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            uuid: None,
            use_tpm: false,
            boot_menu: false,
            firmware: Firmware::Uefi,
            maximum_ram: Bytes(1 << 30),
            current_ram: None,
            hugepages: None,
            shared_memory: false,
            cpu_model: "host".to_owned(),
            maximum_cpus: None,
            current_cpus: None,
            sockets: 0,
            dies_per_socket: 0,
            cores_per_die: 0,
            threads_per_core: 0,
            accelerator: Accelerator::default(),
            rtc_base: "utc".to_owned(),
            rtc_clock: RtcClock::default(),
            powerdown_timeout: 900,
            network: vec![NetworkConfig::default()],
            drives: Vec::new(),
            display: DisplayConfig::default(),
        }
    }
}

/// Accelerator that executes the guest's instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// KVM if it works, else emulation.
    #[default]
    Auto,
    /// KVM; without it the VM does not start.
    Kvm,
    /// Emulation by TCG.
    Tcg,
    /// The default accelerator of QEMU.
    #[serde(rename = "none")]
    Unset,
}

impl Accelerator {
    fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// Clock source of the real-time clock, as in QEMU's option `-rtc clock`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum RtcClock {
    #[default]
    Rt,
    Host,
    Vm,
}

impl RtcClock {
    /// The name that QEMU uses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rt => "rt",
            Self::Host => "host",
            Self::Vm => "vm",
        }
    }
}

/// Network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkConfig {
    /// Type of the interface. Default: `tap`.
    #[serde(rename = "type")]
    pub type_: NetworkType,
    /// Extension: name by which the interface retains its MAC address and PCI slot. Default: the bridge or type, and the position
    /// among the interfaces with the same one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Bridge of a `tap` interface. Default: `br0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    /// Device model, as QEMU names it. Default: `virtio-net`.
    pub device: String,
    /// MAC address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// IPv4 network of a `user` interface, in CIDR notation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net: Option<String>,
    /// Extension: ports of the pod that a `user` interface forwards to the guest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forward: Vec<ForwardConfig>,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            type_: NetworkType::Tap,
            name: None,
            bridge: None,
            device: "virtio-net".to_owned(),
            mac: None,
            net: None,
            forward: Vec::new(),
        }
    }
}

impl NetworkConfig {
    /// The bridge of a `tap` interface, or its default.
    #[must_use]
    pub fn bridge(&self) -> &str {
        self.bridge.as_deref().unwrap_or("br0")
    }
}

/// Type of a network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkType {
    /// On a bridge of the node.
    Tap,
    /// User-mode networking (NAT) behind the pod's address.
    User,
}

/// A unicast MAC address in its original spelling: hexadecimal digits with colons or hyphens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddr(String);

impl TryFrom<String> for MacAddr {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_octet =
            |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let octets: Vec<&str> = text.split([':', '-']).collect();
        let first = octets
            .first()
            .and_then(|first| u8::from_str_radix(first, 16).ok());
        if octets.len() == 6
            && octets.into_iter().all(is_octet)
            && first.is_some_and(|first| first & 1 == 0)
        {
            return Ok(Self(text));
        }
        Err(format!(
            "{text:?} is not a unicast MAC address; use an address such as 52:54:00:12:34:56"
        ))
    }
}

impl MacAddr {
    /// The address in lower case with colons.
    #[must_use]
    pub fn normalized(&self) -> String {
        self.0.to_lowercase().replace('-', ":")
    }
}

impl From<MacAddr> for String {
    fn from(address: MacAddr) -> Self {
        address.0
    }
}

/// Port of the pod that is forwarded to a port of the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ForwardConfig {
    /// Port of the pod.
    pub port: u16,
    /// Port of the guest.
    pub guest_port: u16,
    /// Transport protocol. Default: `tcp`.
    pub protocol: Protocol,
}

/// Transport protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Protocol {
    #[default]
    #[serde(alias = "TCP", alias = "")]
    Tcp,
    #[serde(alias = "UDP")]
    Udp,
}

/// Disk or CD drive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DriveConfig {
    /// Type of the drive. Default: `raw`.
    #[serde(rename = "type")]
    pub type_: DriveType,
    /// Position in the boot order, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootindex: Option<u32>,
    /// Image file. For a CD drive, an empty or absent value means an empty drive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Extension: size of the raw image `file`. Before QEMU starts, the runner creates a missing file (sparse), and enlarges a
    /// smaller file. It never shrinks a file. Without `size`, the file must exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// Block device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Path of an image file or of a block device; the runner detects which.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
}

/// Type of a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriveType {
    /// Disk with a raw image.
    #[default]
    Raw,
    /// CD drive.
    IdeCd,
}

/// Display.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DisplayConfig {
    /// Number of screens. Default: 1.
    pub outputs: u32,
    /// User that the desktop agent in the guest logs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logged_in_user: Option<String>,
    /// SPICE server. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spice: Option<SpiceConfig>,
}

impl Default for DisplayConfig {
    fn default() -> Self {
        Self {
            outputs: 1,
            logged_in_user: None,
            spice: None,
        }
    }
}

/// SPICE server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpiceConfig {
    /// TCP port. Default: 5900.
    pub port: u16,
    /// Extension: IP address on which the server listens. Default: all addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Mode of video streaming. The Java VM-Operator spells the key `streaming-video`.
    #[serde(alias = "streaming-video", skip_serializing_if = "Option::is_none")]
    pub streaming_video: Option<StreamingVideo>,
    /// Number of USB redirection channels. Default: 2.
    pub usb_redirects: u32,
}

impl Default for SpiceConfig {
    fn default() -> Self {
        Self {
            port: 5900,
            address: None,
            streaming_video: None,
            usb_redirects: 2,
        }
    }
}

/// Mode of video streaming of the SPICE server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum StreamingVideo {
    Off,
    All,
    Filter,
}

impl StreamingVideo {
    /// The name that QEMU uses.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::All => "all",
            Self::Filter => "filter",
        }
    }
}
