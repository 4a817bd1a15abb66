//! The devices, and what a container gets that has asked for one.

use crate::api::vm::names;
use crate::device_plugin::protocol::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device as Slot, DeviceSpec,
    HEALTHY, ListAndWatchResponse, UNHEALTHY,
};
use clap::ValueEnum;
use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use strum::IntoStaticStr;

/// A device that VMs use. Any number of them may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, ValueEnum)]
#[strum(serialize_all = "kebab-case")]
pub enum Device {
    /// Hardware acceleration.
    Kvm,
    /// Network interfaces that are a file descriptor.
    Tun,
    /// A network's data path in the kernel.
    VhostNet,
}

impl Device {
    /// Its name on the command line, and behind the slash of the resource.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Its node, below `/dev`.
    fn node(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tun => "net/tun",
            Self::VhostNet => "vhost-net",
        }
    }

    /// What pods ask for.
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Self::Kvm => names::RESOURCE_KVM,
            Self::Tun => names::RESOURCE_TUN,
            Self::VhostNet => names::RESOURCE_VHOST_NET,
        }
    }

    /// Where a container has it, and the node too.
    fn path(self) -> String {
        format!("/dev/{}", self.node())
    }
}

/// A device as it is offered on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Which one.
    pub device: Device,
    /// How many containers can have it at a time.
    pub slots: u32,
    /// Containers may have a slot also where the device is not there; then they get nothing by it.
    pub without_device: bool,
    /// Where the node's `/dev` is seen.
    pub host_dev: PathBuf,
}

/// Why a container does not get what it asks for. The kubelet shows it as the pod's message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The kubelet has never been told of it.
    #[error("there is no slot {0:?} of {1}")]
    NoSuchSlot(String, &'static str),
    /// It has vanished since the kubelet was told.
    #[error("this node has no {0} any more")]
    Gone(String),
}

impl Offer {
    /// Whether the device is there. It is not opened: who runs without privileges may not. So a device that is there
    /// and does not work is found by who uses it.
    #[must_use]
    pub fn is_there(&self) -> bool {
        let node = std::fs::metadata(Path::new(&self.host_dev).join(self.device.node()));
        node.is_ok_and(|node| node.file_type().is_char_device())
    }

    /// All slots, as the kubelet is told of them.
    #[must_use]
    pub fn list(&self, is_there: bool) -> ListAndWatchResponse {
        let health = if is_there || self.without_device {
            HEALTHY
        } else {
            UNHEALTHY
        };
        let slot = |n| Slot {
            id: format!("{}-{n}", self.device.name()),
            health: health.to_owned(),
        };
        ListAndWatchResponse {
            devices: (0..self.slots).map(slot).collect(),
        }
    }

    fn has(&self, id: &str) -> bool {
        let number = id
            .strip_prefix(self.device.name())
            .and_then(|rest| rest.strip_prefix('-'));
        // Only the spelling that the kubelet was told.
        number
            .and_then(|n| {
                n.parse::<u32>()
                    .ok()
                    .filter(|parsed| parsed.to_string() == n)
            })
            .is_some_and(|n| n < self.slots)
    }

    /// What containers get by their slots: the device once, however many slots of it they have.
    ///
    /// # Errors
    /// If a slot is unknown, or the device is not there and must be.
    pub fn allocate(
        &self,
        asked: &AllocateRequest,
        is_there: bool,
    ) -> Result<AllocateResponse, Refusal> {
        let ids: BTreeSet<&String> = asked
            .container_requests
            .iter()
            .flat_map(|one| &one.devices_ids)
            .collect();
        if let Some(unknown) = ids.into_iter().find(|id| !self.has(id)) {
            return Err(Refusal::NoSuchSlot(unknown.clone(), self.device.resource()));
        }
        if !is_there && !self.without_device {
            return Err(Refusal::Gone(self.device.path()));
        }
        let spec = || DeviceSpec {
            container_path: self.device.path(),
            host_path: self.device.path(),
            permissions: "rw".to_owned(),
        };
        let given = asked.container_requests.iter().map(|one| {
            let gets_it = is_there && !one.devices_ids.is_empty();
            ContainerAllocateResponse {
                devices: gets_it.then(spec).into_iter().collect(),
            }
        });
        Ok(AllocateResponse {
            container_responses: given.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_plugin::protocol::ContainerAllocateRequest;
    use std::os::unix::fs::symlink;

    fn offer(device: Device, without_device: bool) -> Offer {
        Offer {
            device,
            slots: 12,
            without_device,
            host_dev: "/dev".into(),
        }
    }

    fn asking(containers: &[&[&str]]) -> AllocateRequest {
        let containers = containers
            .iter()
            .map(|ids| ids.iter().map(|id| (*id).to_owned()).collect());
        AllocateRequest {
            container_requests: containers
                .map(|devices_ids| ContainerAllocateRequest { devices_ids })
                .collect(),
        }
    }

    fn paths(given: &AllocateResponse) -> Vec<Vec<&str>> {
        let paths = given
            .container_responses
            .iter()
            .map(|one| one.devices.iter().map(|d| d.host_path.as_str()));
        paths.map(Iterator::collect).collect()
    }

    #[test]
    fn a_container_gets_the_device_once_and_may_read_and_write_it() {
        for (device, path) in [
            (Device::Kvm, "/dev/kvm"),
            (Device::Tun, "/dev/net/tun"),
            (Device::VhostNet, "/dev/vhost-net"),
        ] {
            let (first, last) = (
                format!("{}-0", device.name()),
                format!("{}-11", device.name()),
            );
            let given = offer(device, false)
                .allocate(&asking(&[&[&first], &[], &[&first, &last]]), true)
                .unwrap();
            assert_eq!(paths(&given), [vec![path], vec![], vec![path]]);
            let spec = &given.container_responses[0].devices[0];
            assert_eq!(
                (spec.container_path.as_str(), spec.permissions.as_str()),
                (path, "rw")
            );
        }
    }

    #[test]
    fn a_slot_that_the_kubelet_was_not_told_of_is_refused() {
        for id in [
            "tun-12", "tun--1", "tun-", "tun-01", "tun-+1", "kvm-1", "tun", "", "tun-0 ",
        ] {
            let refused = offer(Device::Tun, false).allocate(&asking(&[&["tun-1"], &[id]]), true);
            assert_eq!(
                refused,
                Err(Refusal::NoSuchSlot(
                    id.to_owned(),
                    "vmoperator.jdrupes.org/tun"
                ))
            );
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_refused_unless_slots_are_offered_without_it() {
        let asked = asking(&[&["kvm-3"]]);
        let refused = offer(Device::Kvm, false)
            .allocate(&asked, false)
            .unwrap_err();
        assert_eq!(refused.to_string(), "this node has no /dev/kvm any more");
        assert_eq!(
            paths(&offer(Device::Kvm, true).allocate(&asked, false).unwrap()),
            [Vec::<&str>::new()]
        );
        assert_eq!(
            paths(&offer(Device::Kvm, true).allocate(&asked, true).unwrap()),
            [vec!["/dev/kvm"]]
        );
    }

    #[test]
    fn all_slots_are_as_healthy_as_the_device() {
        for (without_device, is_there, health) in [
            (false, true, HEALTHY),
            (false, false, UNHEALTHY),
            (true, false, HEALTHY),
            (true, true, HEALTHY),
        ] {
            let list = offer(Device::VhostNet, without_device).list(is_there);
            assert!(
                list.devices.iter().all(|slot| slot.health == health),
                "{list:?}"
            );
            let ids: BTreeSet<_> = list.devices.iter().map(|slot| slot.id.as_str()).collect();
            assert_eq!(
                (
                    ids.len(),
                    ids.contains("vhost-net-0"),
                    ids.contains("vhost-net-11")
                ),
                (12, true, true)
            );
        }
    }

    #[test]
    fn only_a_character_device_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let offer = Offer {
            host_dev: dir.path().to_owned(),
            ..offer(Device::Tun, false)
        };
        assert!(!offer.is_there());
        std::fs::create_dir(dir.path().join("net")).unwrap();
        let node = dir.path().join("net/tun");
        std::fs::write(&node, "").unwrap();
        assert!(!offer.is_there());
        std::fs::remove_file(&node).unwrap();
        symlink("/dev/null", &node).unwrap();
        assert!(offer.is_there());
    }
}
