//! (pure) Keys of networks, and their MAC addresses.
//!
//! Invariant: a network keeps its generated address when other networks come or go, when the VM's
//! object is created again, and when a configured address is removed again.

use crate::api::runner::config::{MacAddr, NetworkConfig, NetworkType};
use crate::runner::machine::pci_slots::{network_slot_name, unique_names};
use crate::runner::machine::record::Record;
use std::collections::BTreeMap;

/// A key for each network: its name, else its position.
pub fn keys(networks: &[NetworkConfig]) -> Vec<String> {
    let named = networks.iter().zip(positions(networks));
    unique_names(named.map(|(network, position)| match &network.name {
        Some(name) => format!("name {name}"),
        None => position,
    }))
}

/// The position of each network: its bridge or its type. Further networks with the same one are
/// numbered.
fn positions(networks: &[NetworkConfig]) -> Vec<String> {
    unique_names(networks.iter().map(position))
}

fn position(network: &NetworkConfig) -> String {
    match network.type_ {
        NetworkType::Tap => format!("tap {}", network.bridge()),
        NetworkType::User => "user".to_owned(),
    }
}

/// Moves recorded addresses and slots to the present keys of their networks, if a network has got a name
/// or another number since.
pub fn adopt_keys(record: &mut Record, networks: &[NetworkConfig]) {
    adopt_names(record, networks);
    adopt_numbers(record, networks);
}

/// Gives networks that have a name now what is recorded for their position.
fn adopt_names(record: &mut Record, networks: &[NetworkConfig]) {
    for (key, position) in keys(networks).into_iter().zip(positions(networks)) {
        if let Some(macs) = record.macs.as_mut() {
            rename(macs, &position, &key);
        }
        if let Some(pci) = record.pci.as_mut() {
            let [position, key] = [position, key].map(|key| network_slot_name(&key));
            rename(&mut pci.slots, &position, &key);
        }
    }
}

/// Gives networks without a recorded address the address and the PCI slot that are recorded for an absent
/// network of their bridge. Such a network had a higher number before another one was removed.
fn adopt_numbers(record: &mut Record, networks: &[NetworkConfig]) {
    let keys = keys(networks);
    let Some(macs) = record.macs.as_mut() else {
        return;
    };
    for (key, network) in keys.iter().zip(networks) {
        if network.mac.is_some() || macs.contains_key(key) {
            continue;
        }
        let position = position(network);
        let numbered = format!("{position} (");
        let is_absent =
            |it: &&String| (**it == position || it.starts_with(&numbered)) && !keys.contains(it);
        let Some(absent) = macs.keys().find(is_absent).cloned() else {
            continue;
        };
        rename(macs, &absent, key);
        if let Some(pci) = record.pci.as_mut() {
            let [absent, key] = [&absent, key].map(|key| network_slot_name(key));
            if let Some(slot) = pci.slots.remove(&absent) {
                pci.slots.insert(key, slot);
            }
        }
    }
}

/// Moves a value to a key without one.
fn rename<V>(values: &mut BTreeMap<String, V>, from: &str, to: &str) {
    if !values.contains_key(to)
        && let Some(value) = values.remove(from)
    {
        values.insert(to.to_owned(), value);
    }
}

/// The MAC address of each network: the configured one, or a recorded one. `random` returns a new
/// random UUID.
pub fn macs<E>(
    record: &mut Record,
    networks: &[NetworkConfig],
    mut random: impl FnMut() -> Result<String, E>,
) -> Result<Vec<String>, E> {
    let keys = keys(networks);
    let mut recorded = match record.macs.take() {
        Some(recorded) => recorded,
        None if record.is_legacy => legacy_macs(&keys, networks),
        None => BTreeMap::new(),
    };
    let mut macs = Vec::new();
    for (key, network) in keys.into_iter().zip(networks) {
        macs.push(match (&network.mac, recorded.get(&key)) {
            (Some(mac), _) => mac.normalized(),
            (None, Some(mac)) => mac.clone(),
            (None, None) => {
                let mac = random_mac(&random()?);
                recorded.insert(key, mac.clone());
                mac
            }
        });
    }
    record.macs = Some(recorded);
    Ok(macs)
}

/// A locally administered MAC address with the last 40 bits of a random UUID.
fn random_mac(uuid: &str) -> String {
    let digits: Vec<char> = uuid.chars().filter(char::is_ascii_hexdigit).collect();
    let octets = digits.chunks(2).skip(11).map(String::from_iter);
    let octets: Vec<String> = octets.collect();
    format!("02:{}", octets.join(":"))
}

/// The addresses of networks in a VM of the Java VM-Operator, which left the choice to QEMU. QEMU
/// counts from the same address in every VM. The guest may identify the interface by that address,
/// so it keeps it.
fn legacy_macs(keys: &[String], networks: &[NetworkConfig]) -> BTreeMap<String, String> {
    let configured: Vec<String> = networks
        .iter()
        .filter_map(|network| network.mac.as_ref())
        .map(MacAddr::normalized)
        .collect();
    let addresses = (0x56u8..=0xff)
        .map(|n| format!("52:54:00:12:34:{n:02x}"))
        .filter(|mac| !configured.contains(mac));
    let named = keys.iter().zip(networks);
    let unconfigured = named.filter(|(_, network)| network.mac.is_none());
    unconfigured
        .map(|(key, _)| key.clone())
        .zip(addresses)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::machine::record::RecordedPciSlots;
    use std::convert::Infallible;

    fn tap(bridge: &str, mac: Option<&str>) -> NetworkConfig {
        NetworkConfig {
            bridge: Some(bridge.to_owned()),
            mac: mac.map(|mac| mac.to_owned().try_into().unwrap()),
            ..NetworkConfig::default()
        }
    }

    #[test]
    fn a_machine_of_the_reference_keeps_the_addresses_that_qemu_gave_it() {
        let networks = [
            tap("br0", None),
            tap("br0", Some("52:54:00:12:34:57")),
            tap("br0", None),
        ];
        let expected = [
            "52:54:00:12:34:56",
            "52:54:00:12:34:57",
            "52:54:00:12:34:58",
        ];
        let record = Record::new("q35", true);
        assert_eq!(starts(record, &[&networks]), [expected]);
    }

    /// The addresses of starts with these networks, one after the other.
    fn starts(mut record: Record, starts: &[&[NetworkConfig]]) -> Vec<Vec<String>> {
        let mut count = 0;
        let mut start = |networks: &&[NetworkConfig]| {
            let mut random = || {
                count += 1;
                Ok::<_, Infallible>(format!("00000000-0000-4000-8000-0000000000{count:02x}"))
            };
            let Ok(macs) = macs(&mut record, networks, &mut random);
            record = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
            macs
        };
        starts.iter().map(&mut start).collect()
    }

    #[test]
    fn a_network_keeps_its_address_when_others_come_and_go() {
        let (a, b, b2) = (tap("a", None), tap("b", None), tap("b", None));
        let fixed = tap("b", Some("52:54:00:00:00:01"));
        let seen = starts(
            Record::new("q35", false),
            &[
                std::slice::from_ref(&b),
                &[a.clone(), b.clone(), b2],
                &[fixed],
                &[b.clone(), a],
            ],
        );
        let mac = |n: u8| format!("02:00:00:00:00:{n:02x}");
        assert_eq!(
            seen,
            [
                vec![mac(1)],
                vec![mac(2), mac(1), mac(3)],
                vec!["52:54:00:00:00:01".to_owned()],
                vec![mac(1), mac(2)]
            ]
        );
    }

    #[test]
    fn a_named_network_keeps_its_address_on_another_bridge_and_beside_others_of_its_bridge() {
        let named = |name: &str, bridge: &str| NetworkConfig {
            name: Some(name.to_owned()),
            ..tap(bridge, None)
        };
        let (lan, storage) = (named("lan", "a"), named("storage", "a"));
        let seen = starts(
            Record::new("q35", false),
            &[
                &[lan, storage.clone()],
                &[storage],
                &[named("storage", "b"), named("lan", "b")],
            ],
        );
        let [lan, storage] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
        assert_eq!(
            seen,
            [vec![lan, storage], vec![storage], vec![storage, lan]]
        );
    }

    #[test]
    fn a_network_that_gets_a_name_keeps_its_address_and_slot() {
        let mut record = Record::new("q35", false);
        let (one, two) = (tap("a", None), tap("a", None));
        record.macs = Some([("tap a", "m1"), ("tap a (2)", "m2")].map(owned).into());
        let slots = [("network tap a", 7u8), ("network tap a (2)", 8)].map(owned);
        record.pci = Some(RecordedPciSlots {
            first: 1,
            slots: slots.into(),
        });
        let named = NetworkConfig {
            name: Some("lan".to_owned()),
            ..one
        };
        for _ in 0..2 {
            adopt_names(&mut record, &[named.clone(), two.clone()]);
            let macs = [("name lan", "m1"), ("tap a (2)", "m2")].map(owned);
            assert_eq!(record.macs, Some(macs.into()));
            let slots = [("network name lan", 7u8), ("network tap a (2)", 8)].map(owned);
            assert_eq!(record.pci.as_ref().unwrap().slots, slots.into());
        }
    }

    #[test]
    fn unnamed_network_keeps_its_address_and_slot_when_one_with_a_configured_address_is_removed() {
        let (fixed, generated) = (tap("a", Some("52:54:00:00:00:01")), tap("a", None));
        let mut record = Record::new("q35", false);
        record.macs = Some([("tap a (2)", "m2"), ("tap b (2)", "m3")].map(owned).into());
        let slots = [("network tap a", 7u8), ("network tap a (2)", 8)].map(owned);
        record.pci = Some(RecordedPciSlots {
            first: 1,
            slots: slots.into(),
        });
        let before = record.clone();
        adopt_keys(&mut record, &[fixed, generated.clone()]);
        assert_eq!(record, before, "no network was removed");
        adopt_keys(&mut record, &[generated]);
        let macs = [("tap a", "m2"), ("tap b (2)", "m3")].map(owned);
        assert_eq!(record.macs, Some(macs.into()));
        let slots = [("network tap a", 8u8)].map(owned);
        assert_eq!(record.pci.as_ref().unwrap().slots, slots.into());
    }

    fn owned<T, V: From<T>>((key, value): (&str, T)) -> (String, V) {
        (key.to_owned(), value.into())
    }

    #[test]
    fn a_network_of_the_reference_keeps_its_address_when_others_come_and_go() {
        let (a, b, new) = (tap("a", None), tap("b", None), tap("new", None));
        let seen = starts(
            Record::new("q35", true),
            &[&[a.clone(), b.clone()], &[new, b, a]],
        );
        let [a, b] = ["52:54:00:12:34:56", "52:54:00:12:34:57"];
        assert_eq!(seen, [vec![a, b], vec!["02:00:00:00:00:01", b, a]]);
    }
}
