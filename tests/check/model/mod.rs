//! At most one QEMU per disk: a model of operators, API server, kubelets, nodes, people and their accidents, small
//! enough to explore each reachable state. The operator's decision is not modelled. It is the operator's own function
//! `lifecycle::decide`.
//!
//! | file | content |
//! |---|---|
//! | `world` | one VM with one disk: the state of the cluster, and the knowledge of each operator |
//! | `operator` | the operator's decision from its knowledge, and mutations of its rules |
//! | `step` | the names of steps |
//! | `steps` | all possible steps, and the effects of an operator's requests |
//! | `happen` | steps outside the operator's control |
//! | `explore` | the breadth-first search |
//! | `claim_names` | another model: two VMs that generate one PVC name |
//!
//! These invariants are checked in each state:
//!
//! * At most one QEMU uses the disk, with one exception (see below).
//! * Without further accidents and changes by people, the VM reaches the user's goal and remains there. So there are no
//!   deadlocks, and no operators that work against each other forever.
//! * No pod is deleted without a request, and no pod of another VM. The exit of a pod is recorded before the pod is
//!   deleted. The backoff before a start is kept. Nothing starts without a request.
//!
//! The exception: an administrator removes a pod by force while its disconnected node still runs it, and the storage
//! attaches the disk to two nodes. The shortest trace is printed, and the README warns of it.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

mod claim_names;
mod explore;
mod happen;
mod operator;
mod step;
mod steps;
mod world;

use crate::print_result;
use explore::{Explored, Explorer, Finding};
use operator::{Decider, Mutation};
use std::time::Instant;
use world::{Budget, Setting};

const NONE: Budget = Budget {
    toggles: 0,
    restarts: 0,
    replacements: 0,
    spoils: 0,
    changes: 0,
    deletions: 0,
    crashes: 0,
    power_offs: 0,
    losses: 0,
    outages: 0,
    forced: 0,
    given_up: 0,
    kills: 0,
    lists: 0,
};

const ONE: Setting = Setting {
    name: "one operator",
    is_large: false,
    operators: 1,
    attaches_twice: true,
    guest_shutdown_stops: false,
    fetches: false,
    imports: false,
    starts_stopped: false,
    taken_once_changed: false,
    budget: NONE,
    pods: 3,
};

/// All states of all of them are explored in half a minute.
const SETTINGS: &[Setting] = &[
    Setting {
        name: "life",
        budget: Budget {
            toggles: 2,
            restarts: 1,
            crashes: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "lost node",
        budget: Budget {
            crashes: 1,
            losses: 1,
            outages: 1,
            toggles: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "lost answers",
        budget: Budget {
            crashes: 1,
            toggles: 1,
            given_up: 2,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "operator killed",
        budget: Budget {
            crashes: 1,
            toggles: 1,
            kills: 2,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "lists",
        budget: Budget {
            losses: 1,
            toggles: 1,
            given_up: 1,
            lists: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "previous-vm",
        budget: Budget {
            replacements: 1,
            crashes: 1,
            losses: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "unusable spec",
        budget: Budget {
            spoils: 2,
            crashes: 1,
            toggles: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "image",
        fetches: true,
        budget: Budget {
            crashes: 1,
            restarts: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "import",
        imports: true,
        budget: Budget {
            crashes: 1,
            toggles: 1,
            kills: 1,
            ..NONE
        },
        pods: 4,
        ..ONE
    },
    Setting {
        name: "import, lost node",
        imports: true,
        budget: Budget {
            losses: 1,
            changes: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "import, two operators",
        is_large: true,
        imports: true,
        operators: 2,
        ..ONE
    },
    Setting {
        name: "stopped",
        starts_stopped: true,
        budget: Budget {
            toggles: 2,
            crashes: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "power-off",
        guest_shutdown_stops: true,
        budget: Budget {
            power_offs: 1,
            crashes: 1,
            toggles: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "changed early",
        budget: Budget {
            changes: 1,
            crashes: 1,
            losses: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "taken once changed",
        taken_once_changed: true,
        budget: Budget {
            changes: 1,
            kills: 1,
            given_up: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "deleted by others",
        budget: Budget {
            deletions: 2,
            restarts: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "two operators",
        operators: 2,
        budget: Budget { crashes: 1, ..NONE },
        ..ONE
    },
    Setting {
        name: "two, and a user",
        operators: 2,
        budget: Budget { toggles: 1, ..NONE },
        pods: 2,
        ..ONE
    },
    Setting {
        name: "two, lost node",
        operators: 2,
        budget: Budget { losses: 1, ..NONE },
        pods: 2,
        ..ONE
    },
    Setting {
        name: "force, one node",
        attaches_twice: false,
        budget: Budget {
            forced: 1,
            losses: 1,
            crashes: 1,
            ..NONE
        },
        ..ONE
    },
];

/// With `MODELS=deep`: more accidents per VM.
const DEEP: &[Setting] = &[
    Setting {
        name: "deep",
        budget: Budget {
            crashes: 1,
            losses: 1,
            outages: 1,
            toggles: 1,
            given_up: 1,
            kills: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "deep, two",
        operators: 2,
        budget: Budget {
            crashes: 1,
            losses: 1,
            ..NONE
        },
        ..ONE
    },
];

fn explored(setting: &Setting, mutation: Option<Mutation>) -> Explored {
    let began = Instant::now();
    let explored = Explorer::new(setting, Decider::new(mutation)).explore();
    let (worlds, steps) = (explored.worlds, explored.steps);
    print_result(&format!(
        "{:<20} {worlds:>9} worlds {steps:>9} steps {:>6.1} s",
        setting.name,
        began.elapsed().as_secs_f64()
    ));
    explored
}

fn trace_text(finding: &Finding) -> String {
    let lines = finding
        .trace
        .iter()
        .enumerate()
        .map(|(n, step)| format!("{:>4}. {step:?}\n", n + 1));
    format!("{}, after\n{}", finding.what, lines.collect::<String>())
}

#[test]
fn at_most_one_qemu_uses_the_disk_and_every_state_can_recover() {
    let deep = crate::models() == "deep";
    let mut all = 0;
    for setting in SETTINGS
        .iter()
        .chain(DEEP.iter().filter(|_| deep))
        .filter(|setting| !crate::is_left_out(setting.name, setting.is_large))
    {
        let explored = explored(setting, None);
        assert!(
            explored.wrong.is_none(),
            "{}: {}",
            setting.name,
            trace_text(&explored.wrong.unwrap())
        );
        assert!(explored.forced.is_none());
        all += explored.worlds;
    }
    print_result(&format!(
        "{all} worlds, in none of them two QEMUs with one disk"
    ));
}

#[test]
fn a_pod_removed_by_force_from_a_node_that_runs_it_makes_two_where_storage_attaches_twice() {
    let setting = Setting {
        name: "force, two nodes",
        budget: Budget {
            forced: 1,
            losses: 1,
            ..NONE
        },
        ..ONE
    };
    let explored = explored(&setting, None);
    assert!(
        explored.wrong.is_none(),
        "{}",
        trace_text(&explored.wrong.unwrap())
    );
    println!(
        "{}",
        trace_text(
            &explored
                .forced
                .expect("a forced deletion can start a second QEMU; the README warns of it")
        )
    );
}

/// The violation of the main invariant.
const TWO_QEMUS: &str = "two QEMUs have the disk";

/// Each mutation, the setting in which it is found, and the violation.
const BROKEN: &[(Mutation, &str, &str)] = &[
    (
        Mutation::TakesAnothersPodForItsOwn,
        "previous-vm",
        "a VM's status reports another VM's pod",
    ),
    (
        Mutation::DeletesAnothersPod,
        "previous-vm",
        "another VM's pod is deleted",
    ),
    (
        Mutation::MakesAPodThoughOneIsEnding,
        "life",
        "an operator requests a pod that it has created itself",
    ),
    (Mutation::NamesPodsByChance, "two nodes", TWO_QEMUS),
    (
        Mutation::StartsAStoppedVm,
        "stopped",
        "a VM starts without a request",
    ),
    (
        Mutation::LeavesThePodOfAStoppedVm,
        "life",
        "a VM that should not run is left running",
    ),
    (
        Mutation::NeverMakesAPod,
        "life",
        "a VM that should run has no pod",
    ),
    (
        Mutation::MakesAPodWithinThePause,
        "life",
        "the pause after an end was not kept",
    ),
    (
        Mutation::MakesAPodWithoutItsImage,
        "image",
        "a VM starts without the image that it boots from",
    ),
    (
        Mutation::MakesAPodOfAnUnusableSpec,
        "unusable spec",
        "a VM with an invalid spec starts",
    ),
    (
        Mutation::StartsBeforeTheImport,
        "import",
        "a VM starts before its disk has its image",
    ),
    (
        Mutation::ForgetsTheImport,
        "import",
        "a pod is deleted before its exit is recorded",
    ),
    (
        Mutation::ImportsAgain,
        "import",
        "a disk with its image gets another import pod",
    ),
    (
        Mutation::EndsALivingPod,
        "life",
        "a pod that runs and should run is deleted",
    ),
    (
        Mutation::IgnoresRestarts,
        "life",
        "a requested restart is not carried out",
    ),
    (
        Mutation::RestartsAgainAndAgain,
        "life",
        "a VM that should run has no pod",
    ),
    (
        Mutation::TakesAPowerOffForACrash,
        "power-off",
        "a VM starts again after its guest has powered itself off",
    ),
    (
        Mutation::TakesACrashForAPowerOff,
        "life",
        "a VM's spec is changed though no guest has powered off",
    ),
    (
        Mutation::ForgetsHowAPodEnded,
        "life",
        "a pod is deleted before its exit is recorded",
    ),
    (
        Mutation::RemovesADeadPodWithinThePause,
        "life",
        "the pause after an end was not kept",
    ),
    (
        Mutation::LeavesADeadPod,
        "life",
        "a VM that should run does not",
    ),
    (
        Mutation::LeavesAnOutdatedPod,
        "taken once changed",
        "a VM that should run does not",
    ),
    (
        Mutation::RemovesARunningPodThatIsOutdated,
        "changed early",
        "a pod that runs and should run is deleted",
    ),
    (
        Mutation::WaitsWithARestart,
        "life",
        "a requested restart waits for the end of a pause",
    ),
    (
        Mutation::DeletesWithoutVersion,
        "changed early",
        "a pod that runs and should run is deleted",
    ),
    (
        Mutation::DeletesWithoutUid,
        "lost answers",
        "a pod that runs and should run is deleted",
    ),
    (Mutation::DeletesByForce, "life", TWO_QEMUS),
    // An import pod writes the disk, too.
    (Mutation::DeletesByForce, "import", TWO_QEMUS),
    (
        Mutation::ForgetsItsOwnWrites,
        "life",
        "an operator requests a pod that it has created itself",
    ),
    (
        Mutation::LetsAnswersOvertakeLists,
        "lists",
        "a VM that should run has no pod",
    ),
];

#[test]
fn each_rule_that_is_broken_is_seen() {
    for (mutation, name, what) in BROKEN {
        let plain = Setting {
            name: "two nodes",
            budget: Budget {
                restarts: 1,
                ..NONE
            },
            ..ONE
        };
        let setting = SETTINGS
            .iter()
            .chain([&plain])
            .find(|setting| setting.name == *name)
            .unwrap();
        let explored = Explorer::new(setting, Decider::new(Some(*mutation))).explore();
        let wrong = explored
            .wrong
            .unwrap_or_else(|| panic!("{mutation:?} is not seen"));
        println!(
            "{mutation:?}: seen in world {}: {}",
            explored.worlds,
            trace_text(&wrong)
        );
        assert_eq!(wrong.what, *what, "{mutation:?}");
        if *what == TWO_QEMUS {
            // It must be found in the state itself, and not only on the way to the goal.
            let alone = Explorer::of_worlds_alone(setting, Decider::new(Some(*mutation))).explore();
            assert_eq!(alone.wrong.unwrap().what, TWO_QEMUS, "{mutation:?}");
        }
    }
}
