//! Pools: a model of two controllers with stale stores, users, VMs and accidents. The decision is not modelled. It is
//! the controller's own function `decide`.
//!
//! | file | content |
//! |---|---|
//! | `world` | a small cluster: objects, and the effects of writes |
//! | `explore` | steps, mutations of rules, and the breadth-first search |
//! | `later` | definitions that are missing at the start |
//! | `members` | VMs that join and leave pools |
//! | `prewarm` | VMs without a user that are kept running |
//! | `properties` | properties of `decide` for random facts |
//! | `rejected` | writes that the API server rejects |
//! | `waits` | users who wait, and the causes that the pool reports |
//!
//! These properties are checked in each state, or for each write:
//!
//! * No VM has two users, and no user has two VMs of a pool.
//! * A user loses a VM only by the end of the retention, by deletion, or by request, and never while a console is connected.
//! * No VM is started while a user has it. The last use of an assignment never decreases.
//! * With `onRelease: Restart`, no user finds the session of the previous one.
//! * Without further accidents, the controllers rest, each assignment that says so has its VM, each assigned VM has its
//!   assignment, and no user waits while a VM is free.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use serde_json::{Value, json};
use support::install::definitions;
use support::memory::Server;
use support::{components, timings};

mod explore;
mod later;
mod members;
mod prewarm;
mod properties;
mod rejected;
mod waits;
mod world;

use crate::print_result;
use explore::{Budget, Explorer, Finding, Mutation, Setting};
use std::time::Instant;
use vm_operator::api::pool::{OnExpiry, OnRelease};
use world::PoolRules;

const NONE: Budget = Budget {
    assignments: 0,
    deletions: 0,
    consoles: 0,
    ticks: 0,
    stops: 0,
    vm_deletions: 0,
    pool_deletions: 0,
    lost: 0,
    crashes: 0,
};

const FIRST: PoolRules = PoolRules {
    retention: 2,
    on_release: OnRelease::Keep,
    on_expiry: OnExpiry::Keep,
    members: [true, true, false],
    prewarm: 0,
};

const SECOND: PoolRules = PoolRules {
    members: [false, true, true],
    ..FIRST
};

const ONE: Setting = Setting {
    name: "",
    is_large: false,
    controllers: 1,
    rules: [FIRST, SECOND],
    pools: [true, false],
    vms: 1,
    java: [None; 3],
    ahead: 0,
    budget: NONE,
};

const SETTINGS: &[Setting] = &[
    Setting {
        name: "life",
        vms: 2,
        budget: Budget {
            assignments: 2,
            deletions: 1,
            stops: 1,
            crashes: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "lost answers",
        budget: Budget {
            assignments: 2,
            deletions: 1,
            lost: 2,
            crashes: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "reclaim",
        budget: Budget {
            assignments: 2,
            consoles: 1,
            ticks: 3,
            crashes: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "restart",
        rules: [
            PoolRules {
                on_release: OnRelease::Restart,
                ..FIRST
            },
            SECOND,
        ],
        budget: Budget {
            assignments: 2,
            deletions: 1,
            consoles: 1,
            ticks: 2,
            crashes: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "release",
        rules: [
            PoolRules {
                on_release: OnRelease::Stop,
                on_expiry: OnExpiry::Release,
                ..FIRST
            },
            SECOND,
        ],
        budget: Budget {
            assignments: 2,
            consoles: 1,
            ticks: 2,
            crashes: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "deletions",
        vms: 2,
        budget: Budget {
            assignments: 2,
            vm_deletions: 1,
            pool_deletions: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "takeover",
        vms: 2,
        java: [Some(0), Some(0), None],
        budget: Budget {
            assignments: 1,
            consoles: 1,
            lost: 1,
            crashes: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "shared",
        pools: [true, true],
        vms: 2,
        budget: Budget {
            assignments: 2,
            ticks: 2,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "two controllers",
        controllers: 2,
        vms: 2,
        budget: Budget {
            assignments: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "two, one VM",
        is_large: true,
        controllers: 2,
        budget: Budget {
            assignments: 2,
            deletions: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "two, expiry",
        is_large: true,
        controllers: 2,
        ahead: 1,
        budget: Budget {
            assignments: 2,
            ticks: 1,
            ..NONE
        },
        ..ONE
    },
    Setting {
        name: "two, takeover",
        controllers: 2,
        vms: 2,
        java: [Some(0), Some(0), None],
        ..ONE
    },
];

/// With `MODELS=deep`: more accidents.
const DEEP: &[Setting] = &[Setting {
    name: "two, reclaim",
    is_large: true,
    controllers: 2,
    ahead: 1,
    budget: Budget {
        assignments: 2,
        consoles: 1,
        ticks: 2,
        ..NONE
    },
    ..ONE
}];

fn text(finding: &Finding) -> String {
    let lines = finding.trace.iter().enumerate();
    let lines = lines.map(|(n, step)| format!("{:>4}. {step}\n", n + 1));
    format!("{}, after\n{}", finding.what, lines.collect::<String>())
}

#[test]
fn no_vm_has_two_users_and_no_user_waits_forever() {
    let only = std::env::var("POOLS_ONLY").unwrap_or_default();
    let deep = crate::models() == "deep";
    for setting in SETTINGS
        .iter()
        .chain(DEEP.iter().filter(|_| deep))
        .filter(|setting| {
            setting.name.contains(&only) && !crate::is_left_out(setting.name, setting.is_large)
        })
    {
        let began = Instant::now();
        let (worlds, finding) = Explorer::new(setting, None).explore(true);
        let seconds = began.elapsed().as_secs_f64();
        print_result(&format!(
            "{:<20} {worlds:>9} worlds {seconds:>6.1} s",
            setting.name
        ));
        assert!(
            finding.is_none(),
            "{}: {}",
            setting.name,
            text(&finding.unwrap())
        );
    }
}

/// Each mutation, and the setting in which it is found.
const BROKEN: &[(Mutation, &str)] = &[
    (Mutation::WritesVmsWithoutVersion, "two, reclaim"),
    (Mutation::WritesAssignmentsWithoutVersion, "two controllers"),
    (Mutation::FreesUnchecked, "two, one VM"),
    (Mutation::DeletesUnchecked, "two, one VM"),
    (Mutation::IgnoresConsoles, "reclaim"),
    (Mutation::IgnoresRetention, "reclaim"),
    (Mutation::IgnoresRestarts, "restart"),
    (Mutation::NeverRestarts, "restart"),
    (Mutation::NeverFrees, "life"),
    (Mutation::NeverDeletes, "reclaim"),
    (Mutation::NeverAdopts, "takeover"),
    (Mutation::NeverBinds, "life"),
    (Mutation::StartsHeldVms, "life"),
];

#[test]
fn each_rule_that_is_broken_is_found() {
    for (mutation, name) in BROKEN {
        let setting = SETTINGS
            .iter()
            .chain(DEEP)
            .find(|setting| setting.name == *name)
            .unwrap();
        if crate::is_left_out(setting.name, setting.is_large) {
            continue;
        }
        let (worlds, finding) = Explorer::new(setting, Some(*mutation)).explore(true);
        let finding =
            finding.unwrap_or_else(|| panic!("{mutation:?} is not found in {worlds} worlds"));
        println!("{mutation:?}: in world {worlds}: {}", text(&finding));
    }
}

/// The namespace of the tests that run the controllers.
const NAMESPACE: &str = "ns";

/// A server on virtual time with the namespace and no definition.
fn empty_server() -> Server {
    let server = Server::new(1);
    timings::follow_virtual_clock(server.now());
    server.create_namespace(NAMESPACE);
    server
}

/// A server on virtual time with the namespace and all definitions.
fn server() -> Server {
    let server = empty_server();
    for definition in definitions() {
        server.install_crd(&definition);
    }
    server
}

async fn create(server: &Server, kind: &str, name: &str, spec: Value) {
    let object = json!({
        "apiVersion": "vmoperator.jdrupes.org/v1", "kind": kind, "metadata": {"name": name}, "spec": spec,
    });
    let api = components::api(&server.client(NAMESPACE), kind, Some(NAMESPACE));
    let object = serde_json::from_value(object).unwrap();
    api.create(&Default::default(), &object).await.unwrap();
}
