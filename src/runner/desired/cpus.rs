//! (pure) CPUs: plugged in from the lowest place up, taken out from the highest down.

use crate::runner::desired::Desired;
use crate::runner::qmp::{Command, CpuSlot};

/// Where QEMU shows the devices that can be taken out again, and what our CPUs are called there.
const PLUGGED: &str = "/machine/peripheral/";
const PREFIX: &str = "cpu-";

/// What is to be done about the CPUs.
#[derive(Debug, PartialEq)]
pub enum Plan {
    /// There are as many as wanted.
    Equal,
    /// These commands, in this order, up to the first that fails.
    Run(Vec<Command>),
    /// Not now: the guest has to be up to give CPUs back.
    WaitForGuest,
    /// Not at all, for that reason.
    Impossible(String),
}

/// How many CPUs there are.
pub fn count(slots: &[CpuSlot]) -> u32 {
    u32::try_from(slots.iter().filter(|slot| slot.qom_path.is_some()).count()).unwrap_or(u32::MAX)
}

/// The CPUs that the guest was asked for and keeps, each with what it says about it.
pub fn refusals(desired: &Desired, slots: &[CpuSlot]) -> Vec<String> {
    let there = slots
        .iter()
        .filter_map(plugged_id)
        .filter_map(|id| desired.refused.get_key_value(id));
    let mut words: Vec<String> = there.map(|(id, why)| format!("{id} and {why}")).collect();
    words.sort();
    words
}

/// What takes the machine from the CPUs that it has to those that it should have.
pub fn plan(desired: &Desired, slots: &[CpuSlot]) -> Plan {
    let (have, want) = (count(slots), desired.live.cpus);
    let mut ordered: Vec<&CpuSlot> = slots.iter().collect();
    ordered.sort_by_key(|slot| place(slot));
    if want > have {
        add(&ordered, want - have)
    } else if want == have {
        Plan::Equal
    } else if desired.booted {
        remove(&ordered, have - want)
    } else {
        Plan::WaitForGuest
    }
}

fn add(ordered: &[&CpuSlot], missing: u32) -> Plan {
    let free: Vec<&&CpuSlot> = ordered
        .iter()
        .filter(|slot| slot.qom_path.is_none())
        .collect();
    let missing = missing as usize;
    if free.len() < missing {
        let maximum = ordered.len();
        return Plan::Impossible(format!(
            "the machine was started with room for {maximum} CPUs; a new start takes more"
        ));
    }
    let used: Vec<&str> = ordered.iter().filter_map(|slot| plugged_id(slot)).collect();
    let ids = (1..)
        .map(|n| format!("{PREFIX}{n}"))
        .filter(|id| !used.contains(&id.as_str()));
    Plan::Run(
        free.iter()
            .take(missing)
            .zip(ids)
            .map(|(slot, id)| Command::add_cpu(&id, slot))
            .collect(),
    )
}

fn remove(ordered: &[&CpuSlot], surplus: u32) -> Plan {
    let surplus = surplus as usize;
    let ids: Vec<&str> = ordered
        .iter()
        .rev()
        .filter_map(|slot| plugged_id(slot))
        .take(surplus)
        .collect();
    if ids.len() < surplus {
        return Plan::Impossible("the first CPU cannot be taken out".to_owned());
    }
    Plan::Run(ids.into_iter().map(Command::remove_device).collect())
}

/// The id of a CPU that was plugged in.
fn plugged_id(slot: &CpuSlot) -> Option<&str> {
    slot.qom_path
        .as_deref()?
        .strip_prefix(PLUGGED)
        .filter(|id| id.starts_with(PREFIX))
}

/// The place of a CPU, as a guest counts.
fn place(slot: &CpuSlot) -> [u64; 6] {
    let part = |key| {
        slot.props
            .get(key)
            .and_then(serde_json::Value::as_u64)
            .unwrap_or(0)
    };
    [
        "socket-id",
        "die-id",
        "module-id",
        "cluster-id",
        "core-id",
        "thread-id",
    ]
    .map(part)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::api::quantity::Bytes;
    use crate::runner::resolved::Live;
    use proptest::prelude::*;
    use serde_json::json;
    use std::collections::BTreeMap;
    use std::time::Duration;

    /// A machine of that many CPUs that should be there.
    pub fn desired(cpus: u32) -> Desired {
        let live = Live {
            cpus,
            ram: None,
            powerdown_timeout: Duration::ZERO,
            logged_in_user: None,
            media: Vec::new(),
        };
        Desired {
            generation: None,
            live,
            ram: Bytes(1 << 30),
            reset: None,
            sizes: Vec::new(),
            stalls: 0,
            password: None,
            booted: true,
            reboots: 0,
            refused: BTreeMap::new(),
            attempt: 0,
        }
    }

    /// Places as QEMU lists them, from the highest down; the lowest holds the CPU of the start.
    fn slots(total: u64, plugged: &[(u64, &str)]) -> Vec<CpuSlot> {
        let path = |core| match plugged.iter().find(|(at, _)| *at == core) {
            Some((_, id)) => Some(format!("/machine/peripheral/{id}")),
            None if core == 0 => Some("/machine/unattached/device[0]".to_owned()),
            None => None,
        };
        let slot = |core| CpuSlot {
            type_: "max-x86_64-cpu".to_owned(),
            props: json!({"core-id": core, "socket-id": 0, "thread-id": 0})
                .as_object()
                .unwrap()
                .clone(),
            qom_path: path(core),
        };
        (0..total).rev().map(slot).collect()
    }

    #[test]
    fn b02_as_many_as_wanted_is_nothing_to_do() {
        assert_eq!(plan(&desired(1), &slots(4, &[])), Plan::Equal);
        assert_eq!(plan(&desired(2), &slots(4, &[(1, "cpu-1")])), Plan::Equal);
    }

    #[test]
    fn the_lowest_free_places_are_filled_with_unused_names() {
        let slots = slots(5, &[(2, "cpu-1")]);
        let Plan::Run(commands) = plan(&desired(4), &slots) else {
            panic!()
        };
        let what: Vec<_> = commands
            .iter()
            .map(|c| (c.arguments["core-id"].clone(), c.arguments["id"].clone()))
            .collect();
        assert_eq!(
            what,
            [(json!(1), json!("cpu-2")), (json!(3), json!("cpu-3"))]
        );
        assert_eq!(commands[0].arguments["driver"], "max-x86_64-cpu");
    }

    #[test]
    fn the_highest_are_taken_out_first_and_never_the_first() {
        let slots = slots(4, &[(1, "cpu-1"), (2, "cpu-3"), (3, "cpu-2")]);
        let expected = [
            Command::remove_device("cpu-2"),
            Command::remove_device("cpu-3"),
        ];
        assert_eq!(plan(&desired(2), &slots), Plan::Run(expected.into()));
        assert!(matches!(plan(&desired(0), &slots), Plan::Impossible(_)));
    }

    #[test]
    fn a_guest_that_is_not_up_gives_nothing_back() {
        let wanted = Desired {
            booted: false,
            ..desired(1)
        };
        assert_eq!(
            plan(&wanted, &slots(2, &[(1, "cpu-1")])),
            Plan::WaitForGuest
        );
    }

    #[test]
    fn what_the_guest_keeps_is_told_as_long_as_it_has_it() {
        let refused = BTreeMap::from([("cpu-1", "says no"), ("cpu-2", "says nothing")]);
        let refused = refused
            .into_iter()
            .map(|(id, why)| (id.to_owned(), why.to_owned()))
            .collect();
        let wanted = Desired {
            refused,
            ..desired(1)
        };
        assert_eq!(
            refusals(&wanted, &slots(4, &[(1, "cpu-1"), (2, "cpu-3")])),
            ["cpu-1 and says no"]
        );
        let mut next = wanted.clone();
        next.take(wanted.live.clone());
        assert_eq!(next.refused, wanted.refused);
        next.take(desired(2).live);
        assert!(next.refused.is_empty(), "that was another question");
    }

    #[test]
    fn more_than_there_is_room_for_says_so() {
        let Plan::Impossible(why) = plan(&desired(5), &slots(4, &[])) else {
            panic!()
        };
        assert!(why.contains("room for 4 CPUs"), "{why}");
    }

    proptest! {
        #[test]
        fn a_plan_has_exactly_the_difference(total in 1u64..12, have in 0u64..11, want in 1u32..12) {
            let ids: Vec<String> = (1..=have.min(total - 1)).map(|n| format!("cpu-{n}")).collect();
            let plugged: Vec<(u64, &str)> = ids.iter().enumerate().map(|(n, id)| (n as u64 + 1, id.as_str())).collect();
            let slots = slots(total, &plugged);
            match plan(&desired(want), &slots) {
                Plan::Run(commands) => prop_assert_eq!(commands.len() as u32, count(&slots).abs_diff(want)),
                Plan::Equal => prop_assert_eq!(count(&slots), want),
                Plan::Impossible(_) => prop_assert!(u64::from(want) > total),
                Plan::WaitForGuest => prop_assert!(false),
            }
        }
    }
}
