//! The devices of the node, and the device nodes that containers get.
//!
//! On Debian and Ubuntu, `/dev/kvm` has mode 0660. A VM's user could not open it. So the plugin creates a device node of the same
//! device with mode 0666 in its own directory, and containers get that one. The node's device keeps its owner and its mode.
//! Users of the node gain nothing, because only root may enter the directory.

use clap::ValueEnum;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use strum::IntoStaticStr;

/// Everybody reads and writes. The container runtime copies the mode to the container's device.
const NODE_MODE: u32 = 0o666;
/// Only root enters.
const DIRECTORY_MODE: u32 = 0o700;

/// A device of the node that any number of containers can share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, ValueEnum)]
#[strum(serialize_all = "kebab-case")]
pub enum Device {
    /// Hardware acceleration.
    Kvm,
    /// Network interfaces of processes.
    Tun,
}

impl Device {
    /// The name on the command line, and of the device node in the plugin's directory.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The path in containers and on the node.
    #[must_use]
    pub fn path(self) -> String {
        format!("/dev/{}", self.below_dev())
    }

    fn below_dev(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tun => "net/tun",
        }
    }
}

/// A device that the node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    /// Path on the node of the device node that containers get.
    pub path: String,
    /// The error of the creation of the plugin's device node. The path is then that of the node's own device.
    pub error: Option<String>,
}

/// The offered devices that the node has.
pub type HostDevices = BTreeMap<Device, HostDevice>;

/// The directories in which the plugin finds the node's devices.
#[derive(Clone, Debug)]
pub struct Host {
    /// The node's `/dev`.
    pub dev: PathBuf,
    /// The kernel's `/sys/class/misc`.
    pub sys_misc: PathBuf,
    /// The plugin's own directory, with the same path on the node.
    pub own: PathBuf,
}

impl Host {
    /// The devices that the node has now. Creates the device nodes that are missing or have an old number, and removes
    /// those without a device.
    #[must_use]
    pub fn observe(&self, devices: &[Device]) -> HostDevices {
        let observed = devices.iter().filter_map(|device| {
            let Some(number) = self.number(*device) else {
                // The node usually has no such file.
                drop(std::fs::remove_file(self.own_node(*device)));
                return None;
            };
            Some((*device, self.host_device(*device, number)))
        });
        observed.collect()
    }

    /// The number of the node's device. It is not opened, because a container without privileges may not open it. The kernel
    /// lists `/dev/kvm` only while KVM works on the processor. It loads the module of `/dev/net/tun` at the first use.
    fn number(&self, device: Device) -> Option<u64> {
        let number = device_number(&self.dev.join(device.below_dev()))?;
        match device {
            Device::Kvm => {
                let listed = std::fs::read_to_string(self.sys_misc.join("kvm/dev")).ok()?;
                let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
                (listed.trim() == format!("{major}:{minor}")).then_some(number)
            }
            Device::Tun => Some(number),
        }
    }

    fn host_device(&self, device: Device, number: u64) -> HostDevice {
        let own = self.own_node(device);
        let created = if is_usable(&own, number) {
            Ok(())
        } else {
            self.create_node(&own, number)
        };
        match created {
            Ok(()) => HostDevice {
                path: own.display().to_string(),
                error: None,
            },
            Err(error) => HostDevice {
                path: device.path(),
                error: Some(format!("{}: {error}", own.display())),
            },
        }
    }

    fn own_node(&self, device: Device) -> PathBuf {
        self.own.join(device.name())
    }

    /// The directory is not created: without its mount, the path would be in the container and not on the node.
    fn create_node(&self, path: &Path, number: u64) -> io::Result<()> {
        std::fs::set_permissions(&self.own, PermissionsExt::from_mode(DIRECTORY_MODE))?;
        // Renamed at the end, so that the container runtime never finds an incomplete one.
        let new = path.with_extension("new");
        drop(std::fs::remove_file(&new));
        let mode = Mode::from_raw_mode(NODE_MODE);
        mknodat(CWD, &new, FileType::CharacterDevice, mode, number)?;
        // The umask reduces the mode of a new file.
        std::fs::set_permissions(&new, PermissionsExt::from_mode(NODE_MODE))?;
        std::fs::rename(&new, path)
    }
}

/// The number of a character device.
fn device_number(path: &Path) -> Option<u64> {
    let found = std::fs::metadata(path).ok()?;
    found.file_type().is_char_device().then(|| found.rdev())
}

fn is_usable(path: &Path, number: u64) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| {
        found.file_type().is_char_device()
            && found.rdev() == number
            && found.mode() & 0o7777 == NODE_MODE
    })
}

#[cfg(test)]
pub(super) mod fake {
    //! A node in a directory. Its devices have the number 0:0, which every user may create.

    use super::*;
    use tempfile::TempDir;

    pub struct Node {
        dir: TempDir,
        pub host: Host,
    }

    impl Node {
        pub fn new() -> Self {
            // File systems of containers often do not allow the number 0:0, which they use themselves.
            let dir = tempfile::tempdir_in("/dev/shm").unwrap();
            let path = |name: &str| {
                let path = dir.path().join(name);
                std::fs::create_dir_all(&path).unwrap();
                path
            };
            path("dev/net");
            let host = Host {
                dev: path("dev"),
                sys_misc: path("misc"),
                own: path("own"),
            };
            Self { dir, host }
        }

        pub fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        /// The device appears on the node.
        pub fn plug(&self, device: Device) {
            let path = self.host.dev.join(device.below_dev());
            mknodat(
                CWD,
                &path,
                FileType::CharacterDevice,
                Mode::from_raw_mode(0o660),
                0,
            )
            .unwrap();
            let listed = self.host.sys_misc.join(device.name());
            std::fs::create_dir_all(&listed).unwrap();
            std::fs::write(listed.join("dev"), "0:0\n").unwrap();
        }

        /// The device vanishes.
        pub fn unplug(&self, device: Device) {
            std::fs::remove_file(self.host.dev.join(device.below_dev())).unwrap();
            std::fs::remove_dir_all(self.host.sys_misc.join(device.name())).unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fake::Node;
    use super::*;

    const BOTH: [Device; 2] = [Device::Kvm, Device::Tun];

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn own(node: &Node, device: Device) -> HostDevice {
        HostDevice {
            path: node.host.own_node(device).display().to_string(),
            error: None,
        }
    }

    #[test]
    fn a_device_that_others_may_not_open_gets_a_node_in_a_directory_that_others_may_not_enter() {
        let node = Node::new();
        node.plug(Device::Kvm);
        node.plug(Device::Tun);
        let kvm = node.host.dev.join("kvm");
        std::fs::set_permissions(&kvm, PermissionsExt::from_mode(0o660)).unwrap();
        let observed = node.host.observe(&BOTH);
        let expected = BOTH.map(|device| (device, own(&node, device)));
        assert_eq!(observed, expected.into());
        assert_eq!(mode(&node.host.own), 0o700);
        for device in BOTH {
            assert_eq!(mode(&node.host.own_node(device)), 0o666, "{device:?}");
        }
        assert_eq!(mode(&kvm), 0o660, "the node's device keeps its mode");
    }

    #[test]
    fn a_node_that_is_not_the_device_is_replaced_and_one_without_a_device_is_removed() {
        let node = Node::new();
        node.plug(Device::Kvm);
        let path = node.host.own_node(Device::Kvm);
        std::fs::write(&path, "").unwrap();
        assert_eq!(
            node.host.observe(&BOTH)[&Device::Kvm],
            own(&node, Device::Kvm)
        );
        assert_eq!(device_number(&path), Some(0));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let observed = node.host.observe(&BOTH);
        assert_eq!((observed.len(), mode(&path)), (1, 0o666));
        node.unplug(Device::Kvm);
        assert_eq!(node.host.observe(&BOTH), HostDevices::new());
        assert!(!path.exists());
    }

    #[test]
    fn without_a_directory_containers_get_the_device_of_the_node() {
        let mut node = Node::new();
        node.plug(Device::Tun);
        node.host.own = node.path("missing");
        let observed = node.host.observe(&BOTH);
        let tun = &observed[&Device::Tun];
        assert_eq!(tun.path, "/dev/net/tun");
        let error = tun.error.as_deref().unwrap_or_default();
        assert!(
            error.contains("missing/tun: No such file or directory"),
            "{error}"
        );
    }

    #[test]
    fn kvm_needs_a_character_device_that_the_kernel_lists() {
        let node = Node::new();
        let dev = node.host.sys_misc.join("kvm/dev");
        let has_kvm = || node.host.observe(&[Device::Kvm]).len() == 1;
        assert!(!has_kvm(), "no device");
        node.plug(Device::Kvm);
        assert!(has_kvm());
        std::fs::write(&dev, "10:232\n").unwrap();
        assert!(!has_kvm(), "another number");
        std::fs::remove_file(&dev).unwrap();
        assert!(!has_kvm(), "not listed");
        std::fs::write(&dev, "0:0\n").unwrap();
        std::fs::remove_file(node.host.dev.join("kvm")).unwrap();
        std::fs::write(node.host.dev.join("kvm"), "").unwrap();
        assert!(!has_kvm(), "a file");
    }
}
