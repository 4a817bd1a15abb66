//! (pure) Plans CPU hotplug: adds CPUs at the lowest free position, and removes them from the
//! highest one.

use crate::runner::desired::DesiredState;
use crate::runner::qmp::{Command, CpuSlot};

/// QOM path of removable devices, and the prefix of the ids of CPUs that the runner has added.
const PERIPHERAL_PATH: &str = "/machine/peripheral/";
const CPU_ID_PREFIX: &str = "cpu-";

/// The next step towards the wanted number of CPUs.
#[derive(Debug, PartialEq)]
pub enum CpuPlan {
    /// The number is reached.
    Equal,
    /// The commands to run, in this order, until one fails.
    Run(Vec<Command>),
    /// CPUs can be removed only after the guest has booted.
    WaitForGuest,
    /// The number cannot be reached, for that reason.
    Impossible(String),
}

/// The number of present CPUs.
pub fn count(slots: &[CpuSlot]) -> u32 {
    u32::try_from(slots.iter().filter(|slot| slot.qom_path.is_some()).count()).unwrap_or(u32::MAX)
}

/// The CPUs that the guest was asked to release and still has, each with the guest's reason.
pub fn rejected_by_guest(desired: &DesiredState, slots: &[CpuSlot]) -> Vec<String> {
    let there = slots
        .iter()
        .filter_map(plugged_id)
        .filter_map(|id| desired.unplug_rejections.get_key_value(id));
    let mut words: Vec<String> = there.map(|(id, why)| format!("{id}, and {why}")).collect();
    words.sort();
    words
}

/// The step from the present to the wanted number of CPUs.
pub fn plan(desired: &DesiredState, slots: &[CpuSlot]) -> CpuPlan {
    let (have, want) = (count(slots), desired.live.cpus);
    let mut slots_by_position: Vec<&CpuSlot> = slots.iter().collect();
    slots_by_position.sort_by_key(|slot| topology_position(slot));
    if want > have {
        add(&slots_by_position, want - have)
    } else if want == have {
        CpuPlan::Equal
    } else if desired.booted {
        remove(&slots_by_position, have - want)
    } else {
        CpuPlan::WaitForGuest
    }
}

fn add(slots_by_position: &[&CpuSlot], missing: u32) -> CpuPlan {
    let free: Vec<&&CpuSlot> = slots_by_position
        .iter()
        .filter(|slot| slot.qom_path.is_none())
        .collect();
    let missing = missing as usize;
    if free.len() < missing {
        let maximum = slots_by_position.len();
        return CpuPlan::Impossible(format!(
            "the VM was started with a maximum of {maximum} CPUs; restart the VM to get more CPUs"
        ));
    }
    let used: Vec<&str> = slots_by_position
        .iter()
        .filter_map(|slot| plugged_id(slot))
        .collect();
    let ids = (1..)
        .map(|n| format!("{CPU_ID_PREFIX}{n}"))
        .filter(|id| !used.contains(&id.as_str()));
    CpuPlan::Run(
        free.iter()
            .take(missing)
            .zip(ids)
            .map(|(slot, id)| Command::add_cpu(&id, slot))
            .collect(),
    )
}

fn remove(slots_by_position: &[&CpuSlot], surplus: u32) -> CpuPlan {
    let surplus = surplus as usize;
    let ids: Vec<&str> = slots_by_position
        .iter()
        .rev()
        .filter_map(|slot| plugged_id(slot))
        .take(surplus)
        .collect();
    if ids.len() < surplus {
        return CpuPlan::Impossible(
            "QEMU cannot remove the first CPU; set spec.vm.currentCpus to 1 or more".to_owned(),
        );
    }
    CpuPlan::Run(ids.into_iter().map(Command::remove_device).collect())
}

/// The id of a CPU that the runner has added.
fn plugged_id(slot: &CpuSlot) -> Option<&str> {
    slot.qom_path
        .as_deref()?
        .strip_prefix(PERIPHERAL_PATH)
        .filter(|id| id.starts_with(CPU_ID_PREFIX))
}

/// The position of a CPU in the topology, in the order in which guests count.
fn topology_position(slot: &CpuSlot) -> [u64; 6] {
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
    use crate::runner::spec::Live;
    use proptest::prelude::*;
    use serde_json::json;
    use std::collections::BTreeMap;
    use std::time::Duration;

    /// A VM with the given numbers of present and desired CPUs.
    pub fn desired(cpus: u32) -> DesiredState {
        let live = Live {
            cpus,
            ram: None,
            powerdown_timeout: Duration::ZERO,
            logged_in_user: None,
            media: Vec::new(),
        };
        DesiredState {
            generation: None,
            live,
            ram: Bytes(1 << 30),
            reset: None,
            sizes: Vec::new(),
            stalls: 0,
            password: None,
            booted: true,
            reboots: 0,
            unplug_rejections: BTreeMap::new(),
            attempt: 0,
            disconnects: 0,
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
    fn b02_equal_cpu_count_needs_no_action() {
        assert_eq!(plan(&desired(1), &slots(4, &[])), CpuPlan::Equal);
        assert_eq!(
            plan(&desired(2), &slots(4, &[(1, "cpu-1")])),
            CpuPlan::Equal
        );
    }

    #[test]
    fn the_lowest_free_places_are_filled_with_unused_names() {
        let slots = slots(5, &[(2, "cpu-1")]);
        let CpuPlan::Run(commands) = plan(&desired(4), &slots) else {
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
        assert_eq!(plan(&desired(2), &slots), CpuPlan::Run(expected.into()));
        assert!(matches!(plan(&desired(0), &slots), CpuPlan::Impossible(_)));
    }

    #[test]
    fn cpu_unplug_waits_until_the_guest_has_booted() {
        let wanted = DesiredState {
            booted: false,
            ..desired(1)
        };
        assert_eq!(
            plan(&wanted, &slots(2, &[(1, "cpu-1")])),
            CpuPlan::WaitForGuest
        );
    }

    #[test]
    fn cpu_unplug_rejection_is_reported_until_the_cpu_is_removed() {
        let refused = BTreeMap::from([("cpu-1", "says no"), ("cpu-2", "says nothing")]);
        let refused = refused
            .into_iter()
            .map(|(id, why)| (id.to_owned(), why.to_owned()))
            .collect();
        let wanted = DesiredState {
            unplug_rejections: refused,
            ..desired(1)
        };
        assert_eq!(
            rejected_by_guest(&wanted, &slots(4, &[(1, "cpu-1"), (2, "cpu-3")])),
            ["cpu-1, and says no"]
        );
        let mut next = wanted.clone();
        next.set_live(wanted.live.clone());
        assert_eq!(next.unplug_rejections, wanted.unplug_rejections);
        next.set_live(desired(2).live);
        assert!(
            next.unplug_rejections.is_empty(),
            "that was another question"
        );
    }

    #[test]
    fn cpu_count_above_the_maximum_is_reported() {
        let CpuPlan::Impossible(why) = plan(&desired(5), &slots(4, &[])) else {
            panic!()
        };
        assert!(why.contains("a maximum of 4 CPUs"), "{why}");
    }

    proptest! {
        #[test]
        fn a_plan_has_exactly_the_difference(total in 1u64..12, have in 0u64..11, want in 1u32..12) {
            let ids: Vec<String> = (1..=have.min(total - 1)).map(|n| format!("cpu-{n}")).collect();
            let plugged: Vec<(u64, &str)> = ids.iter().enumerate().map(|(n, id)| (n as u64 + 1, id.as_str())).collect();
            let slots = slots(total, &plugged);
            match plan(&desired(want), &slots) {
                CpuPlan::Run(commands) => prop_assert_eq!(commands.len() as u32, count(&slots).abs_diff(want)),
                CpuPlan::Equal => prop_assert_eq!(count(&slots), want),
                CpuPlan::Impossible(_) => prop_assert!(u64::from(want) > total),
                CpuPlan::WaitForGuest => prop_assert!(false),
            }
        }
    }
}
