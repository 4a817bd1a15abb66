//! The runner's configuration file, `config.yaml`: written by the operator, read by the runner.
//!
//! Keys and their meaning are those of the reference; what is ours is marked. The operator writes JSON, which every
//! YAML parser reads alike. Readers ignore keys that they do not know.

use crate::api::quantity::Bytes;
use crate::api::vm::{Firmware, PageSize};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::net::IpAddr;

/// The whole file: one root key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConfigFile {
    /// The only key that is read.
    #[serde(rename = "/Runner")]
    pub runner: RunnerConfig,
}

/// What is under `/Runner`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunnerConfig {
    /// Where state is kept. Default: `$XDG_DATA_HOME` or `~/.local/share`, then `vmrunner/<name>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<String>,
    /// Where sockets are made. Default: `$XDG_RUNTIME_DIR`, else `/dev/shm`, then `vmrunner/<name>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_dir: Option<String>,
    /// Namespace of the VM's object. Default: the pod's own. Without one, nothing is reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Ours: `metadata.uid` of the VM, so that nothing is reported to a namesake that came later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Ours: `metadata.generation` of the spec that this file was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// `spec.vm.resetRequest`: an increase resets the machine once. The value at the start is where counting begins, as a
    /// start is a reset too. The runner tells the last value that it has carried out as `status.observedResetRequest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_counter: Option<i64>,
    /// Whether a shutdown by the guest stops the VM for good.
    pub guest_shutdown_stops: bool,
    /// Ours: how much the runner logs, from its start on: `error`, `warn`, `info` (default), `debug` or `trace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_level: Option<String>,
    /// Ours: port of the pod where `/metrics` is. Default: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_port: Option<u16>,
    /// Seed for cloud-init.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud_init: Option<CloudInit>,
    /// The machine. Required; optional here so that its absence can be reported as such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmConfig>,
}

/// Contents of the cloud-init seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CloudInit {
    /// `meta-data`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meta_data: Option<Map<String, Value>>,
    /// `user-data`; written behind the line `#cloud-config`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data: Option<Map<String, Value>>,
    /// Ours: a file that is `user-data` as it is, with its first line; then `user_data` is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data_file: Option<String>,
    /// `network-config`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_config: Option<Map<String, Value>>,
    /// Ours: a file that is `network-config` as it is; then `network_config` is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_config_file: Option<String>,
}

/// The machine. Each field without a comment on its default is absent or false by default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VmConfig {
    /// Name of the VM and of its object.
    pub name: String,
    /// SMBIOS UUID. Default: the one in the data directory, which is made at the first start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Whether the machine has a TPM 2.0.
    pub use_tpm: bool,
    /// Whether the firmware shows its boot menu.
    pub boot_menu: bool,
    /// The firmware. Default `uefi`.
    pub firmware: Firmware,
    /// Size of the memory. Default 1 GiB.
    pub maximum_ram: Bytes,
    /// What the balloon leaves to the guest. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_ram: Option<Bytes>,
    /// Ours: size of the node's huge pages that the memory is made of; it is a whole number of them. Absent: ordinary pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<PageSize>,
    /// Ours: whether QEMU can share the memory with other programs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shared_memory: bool,
    /// QEMU's CPU model. Default `host`; under emulation `host` means `max`.
    pub cpu_model: String,
    /// How many CPUs there can be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum_cpus: Option<u32>,
    /// How many CPUs there are. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_cpus: Option<u32>,
    /// CPU topology; 0 = not given.
    pub sockets: u32,
    /// CPU topology; 0 = not given.
    pub dies_per_socket: u32,
    /// CPU topology; 0 = not given.
    pub cores_per_die: u32,
    /// CPU topology; 0 = not given.
    pub threads_per_core: u32,
    /// What runs the guest's instructions. Default `auto`.
    #[serde(skip_serializing_if = "Accelerator::is_auto")]
    pub accelerator: Accelerator,
    /// `utc` (default), `localtime` or a date.
    pub rtc_base: String,
    /// What drives the clock. Default `rt`.
    pub rtc_clock: RtcClock,
    /// Seconds that a guest has to shut down. Default 900.
    pub powerdown_timeout: u64,
    /// Network interfaces. Absent: one, of the default type; empty or null: none.
    pub network: Vec<NetworkConfig>,
    /// Disks and CD drives.
    pub drives: Vec<DriveConfig>,
    /// The display.
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

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// KVM where it works, else emulation.
    #[default]
    Auto,
    /// KVM or nothing.
    Kvm,
    /// Emulation.
    Tcg,
    /// Whatever QEMU takes by itself.
    #[serde(rename = "none")]
    Unset,
}

impl Accelerator {
    fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// What drives the clock, in QEMU's terms.
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
    /// QEMU's name for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rt => "rt",
            Self::Host => "host",
            Self::Vm => "vm",
        }
    }
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkConfig {
    /// Where the interface leads. Default `tap`.
    #[serde(rename = "type")]
    pub type_: NetworkType,
    /// Bridge of a tap. Default `br0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    /// QEMU's device model. Default `virtio-net`.
    pub device: String,
    /// MAC address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// Network of a `user` interface, in CIDR notation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net: Option<String>,
    /// Ours: ports of the pod that lead into the guest through a `user` interface.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forward: Vec<ForwardConfig>,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            type_: NetworkType::Tap,
            bridge: None,
            device: "virtio-net".to_owned(),
            mac: None,
            net: None,
            forward: Vec::new(),
        }
    }
}

impl NetworkConfig {
    /// The bridge of a tap.
    #[must_use]
    pub fn bridge(&self) -> &str {
        self.bridge.as_deref().unwrap_or("br0")
    }
}

/// Where a network interface leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkType {
    /// To a bridge of the node.
    Tap,
    /// To the pod's own address.
    User,
}

/// A unicast MAC address, as it was written: hexadecimal digits with colons or hyphens.
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
            "{text:?} is not allowed; use a unicast MAC address such as 52:54:00:12:34:56"
        ))
    }
}

impl MacAddr {
    /// In lower case with colons.
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

/// A port of the pod that leads to one of the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ForwardConfig {
    /// Port of the pod.
    pub port: u16,
    /// Port of the guest.
    pub guest_port: u16,
    /// Transport protocol. Default `tcp`.
    pub protocol: Protocol,
}

/// A transport protocol.
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

/// A disk or a CD drive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DriveConfig {
    /// Kind of the drive. Default `raw`.
    #[serde(rename = "type")]
    pub type_: DriveType,
    /// Place in the boot order, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootindex: Option<u32>,
    /// Image file. On a CD drive, empty or absent means no medium.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Ours: size of the raw image `file`. Where the file is missing it is made (sparse), and where it is smaller it is
    /// enlarged, before QEMU starts; it is never made smaller. Absent: the file has to be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// Block device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Image file or block device, whichever it turns out to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
}

/// Kind of a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriveType {
    /// A disk.
    #[default]
    Raw,
    /// A CD drive.
    IdeCd,
}

/// The display.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DisplayConfig {
    /// Number of screens. Default 1.
    pub outputs: u32,
    /// User whom the agent in the guest logs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logged_in_user: Option<String>,
    /// SPICE server. Absent: none.
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

/// The SPICE server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpiceConfig {
    /// TCP port. Default 5900.
    pub port: u16,
    /// Ours: the address that it listens at. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// How video is streamed. The reference's operator spells it `streaming-video`.
    #[serde(alias = "streaming-video", skip_serializing_if = "Option::is_none")]
    pub streaming_video: Option<StreamingVideo>,
    /// Number of USB redirection channels. Default 2.
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

/// How SPICE streams video.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum StreamingVideo {
    Off,
    All,
    Filter,
}

impl StreamingVideo {
    /// QEMU's name for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::All => "all",
            Self::Filter => "filter",
        }
    }
}
