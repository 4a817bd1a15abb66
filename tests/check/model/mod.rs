//! At most one QEMU per disk, whatever happens: a model of operators, API server, kubelets, nodes, people and their
//! accidents, small enough that every world that can come about is looked at. What an operator decides is not modelled:
//! it is the function `lifecycle::decide` of the operator itself.
//!
//! | file | what |
//! |---|---|
//! | `world` | one VM with one disk: what there is, and what each operator knows of it |
//! | `operator` | the operator's decision about what it knows; the rules that can be broken on purpose |
//! | `step` | the names of what happens |
//! | `steps` | everything that can happen next, and what an operator's requests do |
//! | `happen` | what happens of itself or by others |
//! | `explore` | all worlds, breadth first |
//!
//! In each world it holds, and is looked for:
//!
//! * at most one QEMU has the disk, with one exception (see below);
//! * once nothing goes wrong any more and nobody changes his mind, all becomes as the user wants it, and then rests:
//!   there is no world without a way out, and no two operators that work against each other for ever;
//! * no pod is deleted that nobody wanted to end, or that is another VM's; how a pod ended is written down before it
//!   goes; the pause before a start is kept; nothing starts that nobody has started.
//!
//! The exception: an administrator removes a pod by force, whose node still runs it unseen, and the disk's storage attaches to
//! two nodes at once. The shortest way there is printed, and the README warns of it.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

mod explore;
mod happen;
mod operator;
mod step;
mod steps;
mod world;

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
    operators: 1,
    attaches_twice: true,
    guest_shutdown_stops: false,
    fetches: false,
    starts_stopped: false,
    taken_once_changed: false,
    budget: NONE,
    pods: 3,
};

/// Small enough that all worlds of all of them are looked at in half a minute.
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
        name: "namesake",
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

/// With `MODEL_DEEP=1`, minutes and gigabytes: more accidents in one life.
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
    println!(
        "{:<20} {worlds:>9} worlds {steps:>9} steps {:>6.1} s",
        setting.name,
        began.elapsed().as_secs_f64()
    );
    explored
}

fn told(finding: &Finding) -> String {
    let lines = finding
        .trace
        .iter()
        .enumerate()
        .map(|(n, step)| format!("{:>4}. {step:?}\n", n + 1));
    format!("{}, after\n{}", finding.what, lines.collect::<String>())
}

#[test]
fn at_most_one_qemu_has_the_disk_and_there_is_always_a_way_out() {
    let deep = std::env::var_os("MODEL_DEEP").is_some();
    let mut all = 0;
    for setting in SETTINGS.iter().chain(DEEP.iter().filter(|_| deep)) {
        let explored = explored(setting, None);
        assert!(
            explored.wrong.is_none(),
            "{}: {}",
            setting.name,
            told(&explored.wrong.unwrap())
        );
        assert!(explored.forced.is_none());
        all += explored.worlds;
    }
    println!("{all} worlds, in none of them two QEMUs with one disk");
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
        told(&explored.wrong.unwrap())
    );
    println!(
        "{}",
        told(
            &explored
                .forced
                .expect("a forced deletion can start a second QEMU; the README warns of it")
        )
    );
}

/// What must never be.
const TWO_QEMUS: &str = "two QEMUs have the disk";

/// Each rule that is broken, the setting in which that is seen, and as what.
const BROKEN: &[(Mutation, &str, &str)] = &[
    (
        Mutation::TakesAnothersPodForItsOwn,
        "namesake",
        "a VM's status tells of another VM's pod",
    ),
    (
        Mutation::DeletesAnothersPod,
        "namesake",
        "another VM's pod is deleted",
    ),
    (
        Mutation::MakesAPodThoughOneIsEnding,
        "life",
        "a pod is asked for that it knows to have made itself",
    ),
    (Mutation::NamesPodsByChance, "two nodes", TWO_QEMUS),
    (
        Mutation::StartsAStoppedVm,
        "stopped",
        "a VM starts that nobody has started",
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
        "a VM starts whose spec cannot be used",
    ),
    (
        Mutation::EndsALivingPod,
        "life",
        "a pod is deleted that runs and should",
    ),
    (
        Mutation::IgnoresRestarts,
        "life",
        "a restart that was asked for is not carried out",
    ),
    (
        Mutation::RestartsAgainAndAgain,
        "life",
        "a VM that should run has no pod",
    ),
    (
        Mutation::TakesAPowerOffForACrash,
        "power-off",
        "a VM starts again whose guest has powered itself off",
    ),
    (
        Mutation::TakesACrashForAPowerOff,
        "life",
        "a VM's spec is changed though no guest has powered off",
    ),
    (
        Mutation::ForgetsHowAPodEnded,
        "life",
        "a pod goes though how it ended is not written down",
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
        "a pod is deleted that runs and should",
    ),
    (
        Mutation::WaitsWithARestart,
        "life",
        "a restart that was asked for waits for the end of a pause",
    ),
    (
        Mutation::DeletesWithoutVersion,
        "changed early",
        "a pod is deleted that runs and should",
    ),
    (
        Mutation::DeletesWithoutUid,
        "lost answers",
        "a pod is deleted that runs and should",
    ),
    (Mutation::DeletesByForce, "life", TWO_QEMUS),
    (
        Mutation::ForgetsItsOwnWrites,
        "life",
        "a pod is asked for that it knows to have made itself",
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
            told(&wrong)
        );
        assert_eq!(wrong.what, *what, "{mutation:?}");
        if *what == TWO_QEMUS {
            // It is seen in the very world, too, and not only on the way from there to one where all is well.
            let alone = Explorer::of_worlds_alone(setting, Decider::new(Some(*mutation))).explore();
            assert_eq!(alone.wrong.unwrap().what, TWO_QEMUS, "{mutation:?}");
        }
    }
}
