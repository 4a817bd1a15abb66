//! (pure) The resources, and the answers to the kubelet.

use crate::api::vm::names;
use crate::device_plugin::host::{Device, HostDevices};
use crate::device_plugin::protocol::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device as Slot, DeviceSpec,
    HEALTHY, ListAndWatchResponse, UNHEALTHY,
};

/// Containers of a node that can have one resource at a time. No kubelet runs as many pods.
pub const SLOTS: u32 = 1000;

/// An extended resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The name that pods request.
    pub resource: &'static str,
    /// The device that a container gets.
    pub device: Device,
    /// Whether containers get the resource also on a node without the device. They then get no device.
    pub without_device: bool,
}

/// The offered resources.
#[must_use]
pub fn offers(devices: &[Device]) -> Vec<Offer> {
    let all = [
        (names::RESOURCE_KVM, Device::Kvm, false),
        (names::RESOURCE_KVM_IF_PRESENT, Device::Kvm, true),
        (names::RESOURCE_TUN, Device::Tun, false),
    ];
    let all = all.map(|(resource, device, without_device)| Offer {
        resource,
        device,
        without_device,
    });
    all.into_iter()
        .filter(|offer| devices.contains(&offer.device))
        .collect()
}

/// The node has lost the device since the kubelet chose it. The kubelet shows the text as the pod's message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device {0} no longer exists on this node; load the kernel module of the device")]
pub struct DeviceMissing(String);

impl Offer {
    /// The part of the resource's name that differs between the resources.
    fn short_name(&self) -> &'static str {
        self.resource.rsplit('/').next().unwrap_or_default()
    }

    /// File name of the resource's socket in the directory of the kubelet.
    #[must_use]
    pub fn socket_name(&self) -> String {
        format!("vmoperator-{}.sock", self.short_name())
    }

    /// All slots with their health.
    #[must_use]
    pub fn list(&self, present: &HostDevices) -> ListAndWatchResponse {
        let is_healthy = self.without_device || present.contains_key(&self.device);
        let health = if is_healthy { HEALTHY } else { UNHEALTHY };
        let slot = |n| Slot {
            id: format!("{}-{n}", self.short_name()),
            health: health.to_owned(),
        };
        ListAndWatchResponse {
            devices: (0..SLOTS).map(slot).collect(),
        }
    }

    /// The devices of containers that have slots: the device once, for any number of slots.
    ///
    /// # Errors
    /// The node does not have the device, and the resource promises it.
    pub fn allocate(
        &self,
        request: &AllocateRequest,
        present: &HostDevices,
    ) -> Result<AllocateResponse, DeviceMissing> {
        let device = present.get(&self.device);
        if device.is_none() && !self.without_device {
            return Err(DeviceMissing(self.device.path()));
        }
        let spec = device.map(|device| DeviceSpec {
            container_path: self.device.path(),
            host_path: device.path.clone(),
            permissions: "rw".to_owned(),
        });
        let responses = request.container_requests.iter().map(|container| {
            let has_slot = !container.devices_ids.is_empty();
            let devices = spec.clone().filter(|_| has_slot).into_iter().collect();
            ContainerAllocateResponse { devices }
        });
        Ok(AllocateResponse {
            container_responses: responses.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_plugin::host::HostDevice;
    use crate::device_plugin::protocol::ContainerAllocateRequest;
    use std::collections::BTreeSet;

    fn offer(resource: &str) -> Offer {
        let mut offers = offers(&[Device::Kvm, Device::Tun]).into_iter();
        offers.find(|offer| offer.resource == resource).unwrap()
    }

    fn present(device: Device) -> HostDevices {
        let found = HostDevice {
            path: "/own/node".to_owned(),
            error: None,
        };
        [(device, found)].into()
    }

    fn request(containers: &[&[&str]]) -> AllocateRequest {
        let containers = containers
            .iter()
            .map(|ids| ids.iter().map(|id| (*id).to_owned()).collect());
        AllocateRequest {
            container_requests: containers
                .map(|devices_ids| ContainerAllocateRequest { devices_ids })
                .collect(),
        }
    }

    fn paths(response: &AllocateResponse) -> Vec<Vec<&str>> {
        let paths = response
            .container_responses
            .iter()
            .map(|container| container.devices.iter().map(|d| d.host_path.as_str()));
        paths.map(Iterator::collect).collect()
    }

    #[test]
    fn a_container_gets_the_device_once_and_may_read_and_write_it() {
        for (resource, device, path) in [
            (names::RESOURCE_KVM, Device::Kvm, "/dev/kvm"),
            (names::RESOURCE_KVM_IF_PRESENT, Device::Kvm, "/dev/kvm"),
            (names::RESOURCE_TUN, Device::Tun, "/dev/net/tun"),
        ] {
            let request = request(&[&["a-0"], &[], &["a-0", "a-11"]]);
            let response = offer(resource)
                .allocate(&request, &present(device))
                .unwrap();
            assert_eq!(
                paths(&response),
                [vec!["/own/node"], vec![], vec!["/own/node"]]
            );
            let spec = &response.container_responses[0].devices[0];
            assert_eq!(spec.container_path, path);
            assert_eq!(spec.permissions, "rw");
        }
    }

    #[test]
    fn a_missing_device_is_an_error_unless_the_resource_is_offered_without_it() {
        let asked = request(&[&["kvm-3"]]);
        let none = HostDevices::new();
        let error = offer(names::RESOURCE_KVM)
            .allocate(&asked, &none)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "the device /dev/kvm no longer exists on this node; load the kernel module of the device"
        );
        let response = offer(names::RESOURCE_KVM_IF_PRESENT).allocate(&asked, &none);
        assert_eq!(paths(&response.unwrap()), [Vec::<&str>::new()]);
    }

    #[test]
    fn all_slots_are_as_healthy_as_the_device_and_kvm_if_present_always_is() {
        for (resource, device, health_without) in [
            (names::RESOURCE_KVM, Device::Kvm, UNHEALTHY),
            (names::RESOURCE_KVM_IF_PRESENT, Device::Kvm, HEALTHY),
            (names::RESOURCE_TUN, Device::Tun, UNHEALTHY),
        ] {
            let offer = offer(resource);
            for (present, health) in [
                (present(device), HEALTHY),
                (HostDevices::new(), health_without),
            ] {
                let list = offer.list(&present).devices;
                assert!(
                    list.iter().all(|slot| slot.health == health),
                    "{resource} with {present:?}"
                );
                let ids: BTreeSet<_> = list.iter().map(|slot| &slot.id).collect();
                assert_eq!(ids.len(), 1000);
            }
        }
    }

    #[test]
    fn sockets_and_slots_of_resources_differ_and_do_not_change() {
        let names = offers(&[Device::Kvm, Device::Tun])
            .into_iter()
            .map(|offer| {
                let slot = offer.list(&HostDevices::new()).devices.remove(7).id;
                (offer.socket_name(), slot)
            });
        let expected = [
            ("vmoperator-kvm.sock", "kvm-7"),
            ("vmoperator-kvm-if-present.sock", "kvm-if-present-7"),
            ("vmoperator-tun.sock", "tun-7"),
        ];
        let expected = expected.map(|(socket, slot)| (socket.to_owned(), slot.to_owned()));
        assert_eq!(names.collect::<Vec<_>>(), expected);
        assert_eq!(offers(&[Device::Tun]).len(), 1);
    }
}
