//! The runner's configuration file, `config.yaml`: written by the operator, read by the runner.
//!
//! Keys and their meaning are those of the reference; what is ours is marked. The operator writes JSON, which every
//! YAML parser reads alike. Readers ignore keys that they do not know.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// `bios`, `uefi` (default), `uefi-4m`, `secure` or `secure-4m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    /// Size of the memory, as text with a unit. Default 1 GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum_ram: Option<String>,
    /// What the balloon leaves to the guest, as text with a unit. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_ram: Option<String>,
    /// Ours: size of the node's huge pages that the memory is made of, `2Mi` or `1Gi`; it is a whole number of them. Absent:
    /// ordinary pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hugepages: Option<String>,
    /// Ours: whether QEMU can share the memory with other programs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shared_memory: bool,
    /// QEMU's CPU model. Default `host`; under emulation `host` means `max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
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
    /// `kvm`, `tcg`, `auto` or `none`. Default `auto`: KVM where it works, else emulation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// `utc` (default), `localtime` or a date.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtc_base: Option<String>,
    /// `rt` (default), `host` or `vm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtc_clock: Option<String>,
    /// Seconds that a guest has to shut down. Default 900.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub powerdown_timeout: Option<u64>,
    /// Network interfaces. Absent: one, of the default type; empty or null: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Vec<NetworkConfig>>,
    /// Disks and CD drives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drives: Option<Vec<DriveConfig>>,
    /// The display.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display: Option<DisplayConfig>,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkConfig {
    /// `tap` (default) or `user`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Bridge of a tap. Default `br0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    /// QEMU's device model. Default `virtio-net`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// MAC address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Network of a `user` interface, in CIDR notation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net: Option<String>,
    /// Ours: ports of the pod that lead into the guest through a `user` interface.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forward: Vec<ForwardConfig>,
}

/// A port of the pod that leads to one of the guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ForwardConfig {
    /// Port of the pod.
    pub port: u16,
    /// Port of the guest.
    pub guest_port: u16,
    /// `tcp` or `udp`.
    pub protocol: String,
}

/// A disk or a CD drive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DriveConfig {
    /// `raw` (default) or `ide-cd`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Place in the boot order, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootindex: Option<u32>,
    /// Image file. On a CD drive, empty or absent means no medium.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Ours: size of the raw image `file`, as text with a unit. Where the file is missing it is made (sparse), and where
    /// it is smaller it is enlarged, before QEMU starts; it is never made smaller. Absent: the file has to be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// Block device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Image file or block device, whichever it turns out to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
}

/// The display.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DisplayConfig {
    /// Number of screens. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<u32>,
    /// User whom the agent in the guest logs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logged_in_user: Option<String>,
    /// SPICE server. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spice: Option<SpiceConfig>,
}

/// The SPICE server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpiceConfig {
    /// TCP port. Default 5900.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Ours: the address that it listens at. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// `off`, `all` or `filter`. The reference's operator spells it `streaming-video`.
    #[serde(alias = "streaming-video", skip_serializing_if = "Option::is_none")]
    pub streaming_video: Option<String>,
    /// Number of USB redirection channels. Default 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usb_redirects: Option<u32>,
}
