//! (pure) Networks, drives and the display of a configuration, checked.

use super::super::failure::Invalid;
use super::check;
use crate::api::quantity::Bytes;
use crate::api::runner_config::{DriveConfig, ForwardConfig, NetworkConfig, SpiceConfig};
use std::net::IpAddr;
use std::path::PathBuf;

/// Default of `vm.network[].device`.
const NIC_MODEL: &str = "virtio-net";
/// Default of `vm.network[].bridge`.
const BRIDGE: &str = "br0";
/// What a disk's size is counted in.
const SECTOR: u64 = 512;
/// The machine's SATA controller has this many ports.
const MAXIMUM_CDS: usize = 6;
/// The USB controller's ports, less the one of the tablet.
const MAXIMUM_REDIRECTS: u32 = 14;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// QEMU's device model.
    pub device: String,
    /// MAC address, if it is given.
    pub mac: Option<String>,
    /// What is behind it.
    pub backend: Backend,
}

/// What is behind a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The pod's own address.
    User {
        /// The network that the guest sees, if it is given.
        net: Option<String>,
        /// Ports of the pod that lead into the guest.
        forwards: Vec<Forward>,
    },
    /// A bridge.
    Tap {
        /// Its name.
        bridge: String,
    },
}

/// A port of the pod that leads to one of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Forward {
    pub udp: bool,
    pub port: u16,
    pub guest_port: u16,
}

/// A CD drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cd {
    /// The image, if one is in the drive.
    pub file: Option<PathBuf>,
    /// Place in the boot order.
    pub bootindex: Option<u32>,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// What it is made of.
    pub source: Source,
    /// Least size of an image file, which is made or enlarged to it.
    pub size: Option<Bytes>,
    /// Place in the boot order.
    pub bootindex: Option<u32>,
}

/// What a disk is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An image file.
    File(PathBuf),
    /// A block device.
    Device(PathBuf),
    /// One of both.
    Either(PathBuf),
}

impl Source {
    /// Its path.
    pub fn path(&self) -> &PathBuf {
        match self {
            Self::File(path) | Self::Device(path) | Self::Either(path) => path,
        }
    }
}

/// The SPICE server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spice {
    /// TCP port.
    pub port: u16,
    /// The address that it listens at, if it is given; else all.
    pub address: Option<IpAddr>,
    /// How video is streamed, if it is given.
    pub streaming_video: Option<String>,
    /// Number of USB redirection channels.
    pub usb_redirects: u32,
}

/// The interfaces; where nothing is said, there is one, of the default type.
pub fn networks(configured: Option<&[NetworkConfig]>) -> Result<Vec<Network>, Invalid> {
    let default = [NetworkConfig::default()];
    configured.unwrap_or(&default).iter().enumerate().map(|(n, config)| network(n, config)).collect()
}

fn network(n: usize, config: &NetworkConfig) -> Result<Network, Invalid> {
    let key = |name: &str| format!("vm.network[{n}].{name}");
    let forward = |(i, config)| forward(&format!("{}[{i}]", key("forward")), config);
    let backend = match config.type_.as_deref().unwrap_or("tap") {
        "user" => Backend::User {
            net: config.net.as_ref().map(|net| check::network(&key("net"), net)).transpose()?,
            forwards: config.forward.iter().enumerate().map(forward).collect::<Result<_, _>>()?,
        },
        "tap" => Backend::Tap { bridge: check::interface(&key("bridge"), config.bridge.as_deref().unwrap_or(BRIDGE))? },
        other => return Err(Invalid::value(key("type"), other, "user or tap")),
    };
    Ok(Network {
        device: check::word(&key("device"), config.device.as_deref().unwrap_or(NIC_MODEL), "-_.")?,
        mac: config.mac.as_ref().map(|mac| check::mac(&key("mac"), mac)).transpose()?,
        backend,
    })
}

fn forward(key: &str, config: &ForwardConfig) -> Result<Forward, Invalid> {
    let udp = match config.protocol.to_ascii_lowercase().as_str() {
        "tcp" | "" => false,
        "udp" => true,
        other => return Err(Invalid::value(format!("{key}.protocol"), other, "tcp or udp")),
    };
    for (name, port) in [("port", config.port), ("guestPort", config.guest_port)] {
        if port == 0 {
            return Err(Invalid::value(format!("{key}.{name}"), "0", "a port from 1 to 65535"));
        }
    }
    Ok(Forward { udp, port: config.port, guest_port: config.guest_port })
}

/// CD drives and disks, each in their order.
pub fn drives(configured: &[DriveConfig]) -> Result<(Vec<Cd>, Vec<Disk>), Invalid> {
    let (mut cds, mut disks) = (Vec::new(), Vec::new());
    for (n, config) in configured.iter().enumerate() {
        let key = |name: &str| format!("vm.drives[{n}].{name}");
        match config.type_.as_deref().unwrap_or("raw") {
            "ide-cd" if cds.len() == MAXIMUM_CDS => {
                return Err(Invalid::new(
                    key("type"),
                    format!("the machine has room for {MAXIMUM_CDS} CD drives only"),
                ));
            }
            "ide-cd" => cds.push(Cd {
                file: config.file.as_ref().filter(|file| !file.is_empty()).map(PathBuf::from),
                bootindex: config.bootindex,
            }),
            "raw" => disks.push(disk(&key, config)?),
            other => return Err(Invalid::value(key("type"), other, "raw or ide-cd")),
        }
    }
    Ok((cds, disks))
}

fn disk(key: &impl Fn(&str) -> String, config: &DriveConfig) -> Result<Disk, Invalid> {
    let source = source(key, config)?;
    let size = match (&config.size, &source) {
        (None, _) => None,
        (Some(text), Source::File(_)) => Some(disk_size(&key("size"), text)?),
        (Some(_), _) => return Err(Invalid::new(key("size"), "only an image file has a size; use it with file")),
    };
    Ok(Disk { source, size, bootindex: config.bootindex })
}

/// A size in whole sectors.
fn disk_size(key: &str, text: &str) -> Result<Bytes, Invalid> {
    match super::size(key, text)?.0 / SECTOR * SECTOR {
        0 => Err(Invalid::value(key, text, "at least one sector of 512 bytes")),
        bytes => Ok(Bytes(bytes)),
    }
}

fn source(key: &impl Fn(&str) -> String, config: &DriveConfig) -> Result<Source, Invalid> {
    match (&config.resource, &config.file, &config.device) {
        (Some(path), _, _) => Ok(Source::Either(check::path(&key("resource"), path)?)),
        (_, Some(path), _) => Ok(Source::File(check::path(&key("file"), path)?)),
        (_, _, Some(path)) => Ok(Source::Device(check::path(&key("device"), path)?)),
        _ => Err(Invalid::new(key("resource"), "missing; a disk needs resource, file or device")),
    }
}

/// Number of screens.
pub fn outputs(configured: Option<u32>) -> Result<u32, Invalid> {
    match configured.unwrap_or(1) {
        n @ 1..=16 => Ok(n),
        n => Err(Invalid::value("vm.display.outputs", &n.to_string(), "1 to 16")),
    }
}

/// The SPICE server.
pub fn spice(config: &SpiceConfig) -> Result<Spice, Invalid> {
    let key = |name: &str| format!("vm.display.spice.{name}");
    let video = |value: &String| check::one_of(&key("streamingVideo"), value, &["off", "all", "filter"]);
    let usb_redirects = config.usb_redirects.unwrap_or(2);
    if usb_redirects > MAXIMUM_REDIRECTS {
        let allowed = format!("0 to {MAXIMUM_REDIRECTS}");
        return Err(Invalid::value(key("usbRedirects"), &usb_redirects.to_string(), &allowed));
    }
    let address = |text: &String| {
        text.parse::<IpAddr>().map_err(|_| Invalid::value(key("address"), text, "an IP address, such as 127.0.0.1"))
    };
    let address = config.address.as_ref().map(address).transpose()?;
    match config.port.unwrap_or(5900) {
        0 => Err(Invalid::value(key("port"), "0", "a port from 1 to 65535")),
        port => {
            let streaming_video = config.streaming_video.as_ref().map(video).transpose()?;
            Ok(Spice { port, address, streaming_video, usb_redirects })
        }
    }
}
