//! (pure) Where devices are on the PCI bus: at the slots that the reference's order of devices gives, and there for good.
//!
//! A guest knows a device by its slot: Linux names interfaces after it, Windows installs a driver for it anew. What
//! always holds: a device keeps its slot whatever comes or goes beside it, and gets it back after an absence.

use crate::runner::failure::Invalid;
use crate::runner::machine::record::Places;

/// The devices that every machine has, in the reference's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Fixed {
    Balloon,
    Serial,
    Usb,
    Entropy,
    Screen,
    Sound,
}

/// How many there are.
const FIXED: u8 = 6;
/// Slot 31 is the chipset's own.
const LAST: u8 = 30;

/// Slots of a machine's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    first: u8,
    /// Of the network interfaces.
    pub networks: Vec<u8>,
    /// Of the disks.
    pub disks: Vec<u8>,
    /// Of the seed.
    pub seed: u8,
}

impl Layout {
    /// Slot of a device that every machine has.
    pub fn fixed(&self, device: Fixed) -> u8 {
        self.first + device as u8
    }
}

/// What has a place of its own.
pub struct Devices<'a> {
    /// MAC addresses of the interfaces.
    pub macs: &'a [String],
    /// Names of the disks.
    pub disks: &'a [String],
    /// Whether there is a seed.
    pub seed: bool,
}

/// The first places of a machine. QEMU gave the reference's VMs without networks a network card that nobody asked for,
/// before all other devices; we leave it out, but not its slot.
pub fn first(of_reference: bool, has_networks: bool) -> Places {
    Places {
        first: if of_reference && !has_networks { 2 } else { 1 },
        ..Places::default()
    }
}

/// Gives each device its slot: the one that it had, else the next that nobody ever had.
pub fn settle(places: &mut Places, devices: &Devices) -> Result<Layout, Invalid> {
    let networks = devices.macs.iter().map(|mac| format!("network {mac}"));
    let disks = devices.disks.iter().map(|disk| format!("disk {disk}"));
    let seed = devices.seed.then(|| "seed".to_owned());
    let names: Vec<String> = unique(networks.chain(disks).chain(seed));
    let mut slots = Vec::new();
    for name in &names {
        let slot = match places.slots.get(name) {
            Some(slot) => *slot,
            None => free(places, &names)?,
        };
        places.slots.insert(name.clone(), slot);
        slots.push(slot);
    }
    let mut slots = slots.into_iter();
    let networks = slots.by_ref().take(devices.macs.len()).collect();
    let disks = slots.by_ref().take(devices.disks.len()).collect();
    Ok(Layout {
        first: places.first,
        networks,
        disks,
        seed: slots.next().unwrap_or_default(),
    })
}

/// A slot for a new device. Where all are taken, that of a device that is no longer there.
fn free(places: &mut Places, present: &[String]) -> Result<u8, Invalid> {
    let begin = places.first + FIXED;
    if let Some(slot) = (begin..=LAST).find(|slot| places.slots.values().all(|taken| taken != slot))
    {
        return Ok(slot);
    }
    match places
        .slots
        .keys()
        .find(|name| !present.contains(name))
        .cloned()
    {
        Some(gone) => Ok(places.slots.remove(&gone).unwrap_or(begin)),
        None => {
            let room = LAST + 1 - begin;
            Err(Invalid::new(
                "vm.drives",
                format!("the machine has room for {room} networks and disks together"),
            ))
        }
    }
}

/// Two of the same name are told apart by their order.
fn unique(names: impl Iterator<Item = String>) -> Vec<String> {
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

    /// The places of a first start, with a seed.
    pub fn layout(macs: &[String], disks: &[&str]) -> Layout {
        let disks: Vec<String> = disks.iter().map(|disk| (*disk).to_owned()).collect();
        settle(
            &mut first(false, true),
            &Devices {
                macs,
                disks: &disks,
                seed: true,
            },
        )
        .unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn settled(places: &mut Places, macs: &[&str], disks: &[&str]) -> Layout {
        settle(
            places,
            &Devices {
                macs: &names(macs),
                disks: &names(disks),
                seed: true,
            },
        )
        .unwrap()
    }

    #[test]
    fn a_first_start_has_the_references_order() {
        let mut places = first(false, true);
        let layout = settled(&mut places, &["a"], &["x", "y"]);
        let fixed = [
            Fixed::Balloon,
            Fixed::Serial,
            Fixed::Usb,
            Fixed::Entropy,
            Fixed::Screen,
            Fixed::Sound,
        ];
        assert_eq!(fixed.map(|device| layout.fixed(device)), [1, 2, 3, 4, 5, 6]);
        assert_eq!(
            (layout.networks, layout.disks, layout.seed),
            (vec![7], vec![8, 9], 10)
        );
        assert_eq!(first(true, true).first, 1);
    }

    #[test]
    fn a_machine_of_the_reference_without_networks_stays_behind_the_card_that_nobody_asked_for() {
        let layout = settled(&mut first(true, false), &[], &["x"]);
        assert_eq!((layout.fixed(Fixed::Balloon), layout.disks), (2, vec![8]));
    }

    #[test]
    fn what_comes_or_goes_moves_nothing_else() {
        let mut places = first(false, true);
        settled(&mut places, &["a", "b"], &["x", "y"]);
        let layout = settled(&mut places, &["b", "c"], &["y", "new", "x"]);
        assert_eq!(
            (layout.networks, layout.disks, layout.seed),
            (vec![8, 12], vec![10, 13, 9], 11)
        );
        let layout = settled(&mut places, &["a"], &["y"]);
        assert_eq!((layout.networks, layout.disks), (vec![7], vec![10]));
    }

    #[test]
    fn a_full_bus_takes_the_place_of_what_has_gone_and_then_says_how_much_room_there_is() {
        let mut places = first(false, true);
        let many: Vec<String> = (0..24).map(|n| format!("d{n}")).collect();
        fn devices(disks: &[String]) -> Devices<'_> {
            Devices {
                macs: &[],
                disks,
                seed: false,
            }
        }
        settle(&mut places, &devices(&many)).unwrap();
        let other = [many[1..].to_vec(), names(&["new"])].concat();
        assert_eq!(
            settle(&mut places, &devices(&other)).unwrap().disks.last(),
            Some(&7)
        );
        let error = settle(
            &mut places,
            &devices(&[many.clone(), names(&["more"])].concat()),
        )
        .unwrap_err();
        assert!(
            error.to_string().contains("room for 24 networks and disks"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn no_two_devices_share_a_slot(starts in prop::collection::vec(prop::collection::vec(0u8..30, 0..20), 1..6)) {
            let mut places = first(false, true);
            for disks in starts {
                let disks: Vec<String> = disks.iter().map(|n| format!("d{n}")).collect();
                let layout = settle(&mut places, &Devices { macs: &[], disks: &disks, seed: false }).unwrap();
                let mut slots = layout.disks.clone();
                slots.sort_unstable();
                slots.dedup();
                prop_assert_eq!(slots.len(), disks.len());
                prop_assert!(slots.iter().all(|slot| (7..=LAST).contains(slot)));
            }
        }
    }
}
