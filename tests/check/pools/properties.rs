//! Properties of `decide` for random facts, possible ones and impossible ones.

use super::world::{
    AssignmentS, HeldS, Objects, POOLS, PoolRules, USERS, VMS, assignment_index, index,
};
use super::{FIRST, SECOND};
use proptest::prelude::*;
use vm_operator::api::pool::{OnExpiry, OnRelease};
use vm_operator::controllers::pool::action::{Action, SpecChange, Why};
use vm_operator::controllers::pool::decide::decide;
use vm_operator::controllers::pool::facts::{Facts, Vm};

const NOW: u8 = 10;

fn any_vm(uid: u8) -> impl Strategy<Value = super::world::VmS> {
    let held = (0..POOLS as u8, 0..USERS as u8, 0..8_u8, 0..=NOW);
    let held = held.prop_map(|(pool, user, assignment, since)| HeldS {
        pool,
        user,
        assignment,
        since,
    });
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let held = proptest::option::of(held);
    (held, flags, 0..14_u8, any::<bool>()).prop_map(move |(held, flags, changed, needs_restart)| {
        let (runs, connected, restarting) = flags;
        super::world::VmS {
            uid,
            version: 1,
            held,
            runs,
            connected,
            changed,
            restarting,
            needs_restart: needs_restart && held.is_none(),
            session: (0, 0),
        }
    })
}

fn any_assignment(uid: u8) -> impl Strategy<Value = AssignmentS> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (flags, 0..=NOW, 0..=VMS as u8, 0..14_u8).prop_map(move |(flags, created, vm, used)| {
        let (exists, bound, adopted) = flags;
        if !exists {
            return AssignmentS::default();
        }
        AssignmentS {
            uid,
            version: 1,
            created,
            vm,
            vm_uid: vm,
            bound: bound && vm > 0,
            used: if bound { used } else { 0 },
            adopted,
        }
    })
}

fn any_rules() -> impl Strategy<Value = [PoolRules; POOLS]> {
    let release = prop_oneof![
        Just(OnRelease::Keep),
        Just(OnRelease::Stop),
        Just(OnRelease::Restart)
    ];
    let expiry = prop_oneof![Just(OnExpiry::Keep), Just(OnExpiry::Release)];
    let one = (0..12_u8, release, expiry, 0..3_usize);
    (one.clone(), one).prop_map(|(first, second)| {
        let with = |rules: PoolRules, (retention, on_release, on_expiry, prewarm)| PoolRules {
            retention,
            on_release,
            on_expiry,
            prewarm,
            ..rules
        };
        [with(FIRST, first), with(SECOND, second)]
    })
}

fn any_facts() -> impl Strategy<Value = (Objects, [PoolRules; POOLS])> {
    let vms = (any_vm(1), any_vm(2), any_vm(3));
    let assignments = (
        any_assignment(4),
        any_assignment(5),
        any_assignment(6),
        any_assignment(7),
    );
    (vms, assignments, any_rules(), any::<bool>()).prop_map(|(vms, assignments, rules, second)| {
        let objects = Objects {
            vms: [vms.0, vms.1, vms.2],
            assignments: [
                [assignments.0, assignments.1],
                [assignments.2, assignments.3],
            ],
            pools: [true, second],
        };
        (objects, rules)
    })
}

fn vm_of<'a>(facts: &'a Facts, name: &str) -> &'a Vm {
    facts.vms.iter().find(|vm| vm.id.name == name).unwrap()
}

/// Whether a user has the VM.
fn is_held(objects: &Objects, vm: usize) -> bool {
    objects.holdings().iter().any(|(_, _, held)| *held == vm)
}

/// Whether the retention of the VM's holder has ended, computed from the rules.
fn has_ended(objects: &Objects, rules: &[PoolRules; POOLS], vm: usize, now: u8) -> bool {
    let state = objects.vms[vm];
    let Some((pool, user, _)) = objects
        .holdings()
        .into_iter()
        .find(|(_, _, held)| *held == vm)
    else {
        return true;
    };
    let since = state.held.map_or(0, |held| held.since);
    let changed = if state.changed >= since {
        state.changed.min(now)
    } else {
        0
    };
    let used = objects.assignments[pool][user].used.max(since).max(changed);
    !state.connected && used + rules[pool].retention <= now
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn order_of_the_input_does_not_change_the_actions((objects, rules) in any_facts(), turn in 0..6_usize) {
        let facts = objects.facts(0, &rules, NOW);
        let mut turned = facts.clone();
        turned.vms.rotate_left(turn % facts.vms.len());
        if !turned.assignments.is_empty() {
            let turn = turn % turned.assignments.len();
            turned.assignments.rotate_left(turn);
            turned.assignments.reverse();
        }
        prop_assert_eq!(decide(&facts), decide(&turned));
    }

    #[test]
    fn user_loses_a_vm_only_after_the_retention_or_an_end((objects, rules) in any_facts()) {
        for pool in 0..POOLS {
            let facts = objects.facts(pool, &rules, NOW);
            for action in decide(&facts).actions {
                let vm = match &action {
                    Action::Assign { vm, .. } | Action::Free { vm, .. } => vm,
                    Action::Change { vm, spec: SpecChange::Restart(_) | SpecChange::Stop, .. } => vm,
                    Action::Delete { assignment, .. } => {
                        let (of, user) = assignment_index(&assignment.name);
                        let has_vm = (0..VMS).any(|vm| objects.holds(of, user, vm));
                        prop_assert!(!has_vm, "{action:?} ends a holding");
                        continue;
                    }
                    _ => continue,
                };
                let at = index(&vm.name);
                let keeps = matches!(&action, Action::Assign { held, .. } if vm_of(&facts, &vm.name).held.as_ref().is_some_and(|it| it.assignment == held.assignment));
                let ended = has_ended(&objects, &rules, at, NOW);
                prop_assert!(keeps || ended || !is_held(&objects, at), "{action:?}");
            }
        }
    }

    #[test]
    fn expired_vm_is_available_from_that_second_on((mut objects, rules) in any_facts(), early in any::<bool>()) {
        // The only VM of the pool is held by the first user, and the second user waits.
        objects.pools = [true, false];
        objects.vms[1].uid = 0;
        objects.vms[2].uid = 0;
        objects.assignments = Default::default();
        let held = HeldS { pool: 0, user: 0, assignment: 4, since: 1 };
        objects.vms[0] = super::world::VmS { held: Some(held), connected: false, restarting: false, changed: 3, needs_restart: false, ..objects.vms[0] };
        objects.assignments[0][0] = AssignmentS { uid: 4, version: 1, vm: 1, vm_uid: 1, bound: true, used: 3, ..AssignmentS::default() };
        objects.assignments[0][1] = AssignmentS { uid: 5, version: 1, created: 2, ..AssignmentS::default() };
        let end = 3 + rules[0].retention;
        let now = if early { end - 1 } else { end };
        let facts = objects.facts(0, &rules, now);
        let decision = decide(&facts);
        let takes = |action: &Action| match action {
            Action::Report { assignment, status, .. } => assignment.name == "pool0-user1" && status.vm.is_some(),
            Action::Change { why, .. } | Action::Free { why, .. } => matches!(why, Why::Reclaimed | Why::Expired),
            _ => false,
        };
        let is_taken = decision.actions.iter().any(takes);
        prop_assert_eq!(is_taken, now >= end, "{:?}", decision);
        if now < end {
            let deadline = super::world::at(end);
            prop_assert!(decision.deadline.is_some_and(|time| time <= deadline));
        }
    }

    #[test]
    fn last_use_never_decreases_and_is_never_in_the_future((objects, rules) in any_facts()) {
        for pool in 0..POOLS {
            let facts = objects.facts(pool, &rules, NOW);
            for action in decide(&facts).actions {
                let Action::Report { assignment, status, .. } = action else { continue };
                let (of, user) = assignment_index(&assignment.name);
                let present = objects.assignments[of][user];
                let Some(used) = status.last_used.map(|time| time.0) else {
                    prop_assert!(!present.bound || status.vm.is_none());
                    continue;
                };
                let before = facts.assignments.iter().find(|known| known.id == assignment).and_then(|known| known.status.last_used.clone());
                prop_assert!(before.as_ref().is_none_or(|before| before.0 <= used));
                prop_assert!(used <= facts.now || before.is_some_and(|before| before.0 == used));
            }
        }
    }

    #[test]
    fn held_vm_is_never_started((objects, rules) in any_facts()) {
        for pool in 0..POOLS {
            for action in decide(&objects.facts(pool, &rules, NOW)).actions {
                if let Action::Change { vm, spec: SpecChange::Start, .. } = action {
                    prop_assert!(!is_held(&objects, index(&vm.name)));
                }
            }
        }
    }

    #[test]
    fn prewarming_counts_free_vms_that_run_or_restart((objects, rules) in any_facts()) {
        for pool in 0..POOLS {
            let facts = objects.facts(pool, &rules, NOW);
            let actions = decide(&facts).actions;
            let starts = actions.iter().filter(|action| matches!(action, Action::Change { why: Why::Prewarmed, .. })).count();
            let is_reserved = |vm: &Vm| facts.is_reserved(vm) || actions.iter().any(|action| match action {
                Action::Report { status, .. } => status.vm.as_ref().is_some_and(|of| of.uid == vm.id.uid),
                Action::Assign { vm: of, .. } => *of == vm.id,
                _ => false,
            });
            let is_free = |vm: &Vm| vm.is_member && !vm.is_ending && vm.problem.is_none() && !vm.is_connected && vm.held.is_none();
            let present = facts.vms.iter().filter(|vm| is_free(vm) && vm.wants_running && !is_reserved(vm)).count();
            prop_assert!(starts == 0 || present + starts <= facts.pool.prewarm, "{starts} starts beside {present} free VMs");
        }
    }

    #[test]
    fn login_reaches_only_the_vm_of_that_user((objects, rules) in any_facts(), login in any::<bool>()) {
        for pool in 0..POOLS {
            let mut facts = objects.facts(pool, &rules, NOW);
            facts.pool.login = login;
            for action in decide(&facts).actions {
                let Action::Assign { vm, held } = action else { continue };
                let mut assignments = facts.assignments.iter();
                let assignment = assignments.find(|assignment| Some(&assignment.id.uid) == held.assignment.as_ref()).unwrap();
                prop_assert!(assignment.names(vm_of(&facts, &vm.name)));
                prop_assert_eq!((&assignment.user, &assignment.pool, login), (&held.user, &held.pool, held.login));
            }
        }
    }

    #[test]
    fn older_assignment_gets_a_vm_first((objects, rules) in any_facts()) {
        let facts = objects.facts(0, &rules, NOW);
        let actions = decide(&facts).actions;
        let reserved = |assignment: &vm_operator::controllers::pool::facts::AssignmentFacts| actions.iter().any(|action| {
            matches!(action, Action::Report { assignment: id, status, .. } if *id == assignment.id && status.vm.is_some())
        });
        let has_vm = |assignment: &vm_operator::controllers::pool::facts::AssignmentFacts| facts.vms.iter().any(|vm| {
            let by_java = vm.held.as_ref().is_some_and(|held| held.assignment.is_none() && held.user == assignment.user);
            by_java || assignment.is_named_by(vm)
        });
        let mut waits = false;
        for assignment in facts.queue().into_iter().filter(|assignment| assignment.status.vm.is_none() && !has_vm(assignment)) {
            let gets = reserved(assignment);
            prop_assert!(!(waits && gets), "{} overtakes", assignment.user);
            waits |= !gets;
        }
    }

    #[test]
    fn an_object_is_in_one_write_of_a_decision((objects, rules) in any_facts()) {
        let mut names = std::collections::BTreeSet::new();
        for action in decide(&objects.facts(0, &rules, NOW)).actions {
            let name = match action {
                Action::Assign { vm, .. } | Action::Change { vm, .. } | Action::Free { vm, .. } => vm.name,
                Action::Report { assignment, .. } | Action::Delete { assignment, .. } | Action::Own { assignment } => assignment.name,
                Action::Create { user } => user,
            };
            prop_assert!(names.insert(name.clone()), "{name}");
        }
    }
}

/// A user with two VMs from the Java VM-Operator keeps the one with a connected console, else the one that was used last.
#[test]
fn one_of_two_vms_of_a_user_is_adopted() {
    for (connected, adopted) in [
        ([true, false], "vm0"),
        ([false, false], "vm1"),
        ([false, true], "vm1"),
    ] {
        let mut objects = Objects {
            pools: [true, false],
            ..Objects::default()
        };
        for (vm, connected) in connected.into_iter().enumerate() {
            objects.vms[vm] = super::world::VmS {
                uid: vm as u8 + 1,
                version: 1,
                held: Some(HeldS {
                    since: 3 + vm as u8,
                    ..HeldS::default()
                }),
                connected,
                runs: true,
                ..Default::default()
            };
        }
        let rules = [FIRST, SECOND];
        let created = decide(&objects.facts(0, &rules, NOW)).actions;
        assert_eq!(
            created,
            [Action::Create {
                user: "user0".to_owned()
            }]
        );
        let mut next_uid = 9;
        let mut writes = Vec::new();
        for _ in 0..12 {
            let actions = decide(&objects.facts(0, &rules, NOW)).actions;
            let mut changed = false;
            for action in actions {
                let before = objects;
                objects.write(&action, 0, NOW, next_uid);
                next_uid += 1;
                changed |= before != objects;
                if before != objects {
                    writes.push(action);
                }
            }
            if !changed {
                break;
            }
        }
        let holdings = objects.holdings();
        assert_eq!(holdings.len(), 1, "{objects:?}");
        assert_eq!(format!("vm{}", holdings[0].2), adopted);
        let held = objects.vms.iter().filter(|vm| vm.held.is_some()).count();
        assert_eq!(held, 1);
        // Nothing was restarted or started.
        assert!(
            !writes
                .iter()
                .any(|write| matches!(write, Action::Change { .. })),
            "{writes:?}"
        );
    }
}
