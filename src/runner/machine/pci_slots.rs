//! (pure) Assigns PCI slots to devices, in the order of the Java VM-Operator.
//!
//! A guest identifies a device by its slot: Linux names interfaces after it, and Windows installs a
//! driver for each new slot. Invariant: a device keeps its slot when other devices come or go, and
//! gets it back when it returns.

use crate::api::vm::PCI_DEVICES_MAX;
use crate::runner::failure::Invalid;
use crate::runner::machine::record::RecordedPciSlots;

/// Devices of every VM, in the order of the Java VM-Operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum StandardDevice {
    Balloon,
    Serial,
    Usb,
    Entropy,
    Screen,
    Sound,
}

const STANDARD_DEVICE_COUNT: u8 = 6;
/// The chipset occupies slot 31.
const SLOT_MAX: u8 = 30;
/// The recorded name of the spare root ports. It follows the names of all devices, so that the slot
/// of an absent device is taken first.
const SPARE_PORTS_NAME: &str = "spare root ports";

/// PCI slots of a VM's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciSlots {
    first: u8,
    /// Slots of the network interfaces.
    pub networks: Vec<u8>,
    /// Slots of the disks.
    pub disks: Vec<u8>,
    /// Slot of the cloud-init seed.
    pub seed: u8,
    /// Slot of the spare root ports, if the VM has them.
    pub spare_ports: Option<u8>,
}

impl PciSlots {
    /// The slot of a standard device.
    pub fn standard(&self, device: StandardDevice) -> u8 {
        self.first + device as u8
    }
}

/// Devices with recorded slots.
pub struct SlotOwners<'a> {
    /// Names of the networks.
    pub networks: &'a [String],
    /// Paths of the disks.
    pub disks: &'a [String],
    /// Whether there is a cloud-init seed.
    pub seed: bool,
}

/// The slots of a new VM. In VMs of the Java VM-Operator without networks, QEMU added a network
/// card before all other devices. The runner omits the card, and leaves its slot free.
pub fn initial_slots(is_legacy: bool, has_networks: bool) -> RecordedPciSlots {
    RecordedPciSlots {
        first: if is_legacy && !has_networks { 2 } else { 1 },
        ..RecordedPciSlots::default()
    }
}

/// Reserves a slot for spare root ports, to which later versions can connect devices of running
/// VMs. A device that finds no other slot replaces them.
pub fn reserve_spare_ports(recorded: &mut RecordedPciSlots) {
    let slots = &mut recorded.slots;
    slots.insert(SPARE_PORTS_NAME.to_owned(), SLOT_MAX);
}

/// The recorded name of a network.
pub fn network_slot_name(network: &str) -> String {
    format!("network {network}")
}

/// The recorded name of a disk.
pub fn disk_slot_name(path: &str) -> String {
    format!("disk {path}")
}

/// Assigns a slot to each device: its recorded slot, the lowest unused slot, or the slot of a device that no longer exists.
pub fn assign(recorded: &mut RecordedPciSlots, devices: &SlotOwners) -> Result<PciSlots, Invalid> {
    let networks = devices.networks.iter();
    let networks = networks.map(|network| network_slot_name(network));
    let disks = devices.disks.iter().map(|disk| disk_slot_name(disk));
    let seed = devices.seed.then(|| "seed".to_owned());
    let names: Vec<String> = unique_names(networks.chain(disks).chain(seed));
    let mut slots = Vec::new();
    for name in &names {
        let slot = match recorded.slots.get(name) {
            Some(slot) => *slot,
            None => free_slot(recorded, &names)?,
        };
        recorded.slots.insert(name.clone(), slot);
        slots.push(slot);
    }
    let mut slots = slots.into_iter();
    let networks = slots.by_ref().take(devices.networks.len()).collect();
    let disks = slots.by_ref().take(devices.disks.len()).collect();
    Ok(PciSlots {
        first: recorded.first,
        networks,
        disks,
        seed: slots.next().unwrap_or_default(),
        spare_ports: recorded.slots.get(SPARE_PORTS_NAME).copied(),
    })
}

/// A slot for a new device. If all are used, the slot of an absent device.
fn free_slot(recorded: &mut RecordedPciSlots, present: &[String]) -> Result<u8, Invalid> {
    let begin = recorded.first + STANDARD_DEVICE_COUNT;
    if let Some(slot) =
        (begin..=SLOT_MAX).find(|slot| recorded.slots.values().all(|taken| taken != slot))
    {
        return Ok(slot);
    }
    match recorded
        .slots
        .keys()
        .find(|name| !present.contains(name))
        .cloned()
    {
        Some(gone) => Ok(recorded.slots.remove(&gone).unwrap_or(begin)),
        None => {
            let room = usize::from(SLOT_MAX + 1 - begin).min(PCI_DEVICES_MAX);
            Err(Invalid::new(
                "vm.drives",
                format!(
                    "a VM can have at most {room} networks and disks in total; remove networks or disks"
                ),
            ))
        }
    }
}

/// Numbers devices with the same name.
pub fn unique_names(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    for name in names {
        let again = (2..)
            .map(|n| format!("{name} ({n})"))
            .find(|other| !seen.contains(other));
        seen.push(if seen.contains(&name) {
            again.unwrap_or(name)
        } else {
            name
        });
    }
    seen
}

#[cfg(test)]
pub mod testing {
    use super::*;

    /// The slots of a first start with a cloud-init seed.
    pub fn layout(networks: &[String], disks: &[&str]) -> PciSlots {
        let mut recorded = initial_slots(false, true);
        reserve_spare_ports(&mut recorded);
        slots(recorded, networks, disks)
    }

    /// The same for a VM of the Java VM-Operator.
    pub fn earlier_layout(networks: &[String], disks: &[&str]) -> PciSlots {
        slots(initial_slots(false, true), networks, disks)
    }

    fn slots(mut recorded: RecordedPciSlots, networks: &[String], disks: &[&str]) -> PciSlots {
        let disks: Vec<String> = disks.iter().map(|disk| (*disk).to_owned()).collect();
        let devices = SlotOwners {
            networks,
            disks: &disks,
            seed: true,
        };
        assign(&mut recorded, &devices).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn settled(recorded: &mut RecordedPciSlots, macs: &[&str], disks: &[&str]) -> PciSlots {
        assign(
            recorded,
            &SlotOwners {
                networks: &names(macs),
                disks: &names(disks),
                seed: true,
            },
        )
        .unwrap()
    }

    #[test]
    fn a_first_start_has_the_references_order() {
        let mut recorded = initial_slots(false, true);
        let pci_slots = settled(&mut recorded, &["a"], &["x", "y"]);
        let fixed = [
            StandardDevice::Balloon,
            StandardDevice::Serial,
            StandardDevice::Usb,
            StandardDevice::Entropy,
            StandardDevice::Screen,
            StandardDevice::Sound,
        ];
        assert_eq!(
            fixed.map(|device| pci_slots.standard(device)),
            [1, 2, 3, 4, 5, 6]
        );
        assert_eq!(
            (pci_slots.networks, pci_slots.disks, pci_slots.seed),
            (vec![7], vec![8, 9], 10)
        );
        assert_eq!(initial_slots(true, true).first, 1);
    }

    #[test]
    fn java_machine_without_networks_retains_the_slot_of_the_implicit_card() {
        let pci_slots = settled(&mut initial_slots(true, false), &[], &["x"]);
        assert_eq!(
            (pci_slots.standard(StandardDevice::Balloon), pci_slots.disks),
            (2, vec![8])
        );
    }

    #[test]
    fn added_or_removed_devices_do_not_move_other_devices() {
        let mut recorded = initial_slots(false, true);
        settled(&mut recorded, &["a", "b"], &["x", "y"]);
        let pci_slots = settled(&mut recorded, &["b", "c"], &["y", "new", "x"]);
        assert_eq!(
            (pci_slots.networks, pci_slots.disks, pci_slots.seed),
            (vec![8, 12], vec![10, 13, 9], 11)
        );
        let pci_slots = settled(&mut recorded, &["a"], &["y"]);
        assert_eq!((pci_slots.networks, pci_slots.disks), (vec![7], vec![10]));
    }

    #[test]
    fn full_bus_reuses_free_slots_and_then_reports_the_device_limit() {
        let mut recorded = initial_slots(false, true);
        let many: Vec<String> = (0..24).map(|n| format!("d{n}")).collect();
        fn devices(disks: &[String]) -> SlotOwners<'_> {
            SlotOwners {
                networks: &[],
                disks,
                seed: false,
            }
        }
        assign(&mut recorded, &devices(&many)).unwrap();
        let other = [many[1..].to_vec(), names(&["new"])].concat();
        assert_eq!(
            assign(&mut recorded, &devices(&other))
                .unwrap()
                .disks
                .last(),
            Some(&7)
        );
        let error = assign(
            &mut recorded,
            &devices(&[many.clone(), names(&["more"])].concat()),
        )
        .unwrap_err();
        assert!(
            error.to_string().contains("at most 23 networks and disks"),
            "{error}"
        );
    }

    #[test]
    fn spare_root_ports_have_a_slot_until_a_device_finds_no_other() {
        let mut recorded = initial_slots(false, true);
        reserve_spare_ports(&mut recorded);
        let mut spare_ports_beside = |count: usize| {
            let disks: Vec<String> = (0..count).map(|n| format!("d{n:02}")).collect();
            let devices = SlotOwners {
                networks: &[],
                disks: &disks,
                seed: false,
            };
            let pci_slots = assign(&mut recorded, &devices).unwrap();
            assert_eq!(pci_slots.disks.len(), count);
            pci_slots.spare_ports
        };
        assert_eq!([1, 23].map(&mut spare_ports_beside), [Some(30), Some(30)]);
        assert_eq!([24, 1].map(&mut spare_ports_beside), [None, None]);
    }

    proptest! {
        #[test]
        fn no_two_devices_share_a_slot(starts in prop::collection::vec(prop::collection::vec(0u8..30, 0..20), 1..6)) {
            let mut recorded = initial_slots(false, true);
            for disks in starts {
                let disks: Vec<String> = disks.iter().map(|n| format!("d{n}")).collect();
                let pci_slots = assign(&mut recorded, &SlotOwners { networks: &[], disks: &disks, seed: false }).unwrap();
                let mut slots = pci_slots.disks.clone();
                slots.sort_unstable();
                slots.dedup();
                prop_assert_eq!(slots.len(), disks.len());
                prop_assert!(slots.iter().all(|slot| (7..=SLOT_MAX).contains(slot)));
            }
        }
    }
}
