//! Users who wait: the restarts that they wait for, the limit, and the causes that the pool reports.

use super::world::{AssignmentS, HeldS, Objects, VmS};
use super::{FIRST, SECOND};
use vm_operator::api::VmPool;
use vm_operator::api::pool::{OnRelease, VmPoolStatus};
use vm_operator::controllers::pool::action::{Action, Why};
use vm_operator::controllers::pool::decide::{WAIT_MAX, decide};
use vm_operator::controllers::pool::facts::Facts;
use vm_operator::controllers::pool::report;

const NOW: u8 = 10;

/// The second user has an expired VM of a pool with `onRelease: Restart`. The first user waits. The first VM of the pool has no user.
fn facts(first: VmS) -> Facts {
    let mut objects = Objects::of_one_pool(VmS {
        runs: true,
        ..first
    });
    objects.vms[1] = VmS {
        uid: 2,
        version: 1,
        runs: true,
        held: Some(HeldS {
            pool: 0,
            user: 1,
            assignment: 5,
            since: 1,
        }),
        ..VmS::default()
    };
    objects.assignments[0][0] = AssignmentS {
        uid: 4,
        version: 1,
        created: 2,
        ..AssignmentS::default()
    };
    objects.assignments[0][1] = AssignmentS {
        uid: 5,
        version: 1,
        vm: 2,
        vm_uid: 2,
        bound: true,
        used: 1,
        ..AssignmentS::default()
    };
    let rules = super::world::PoolRules {
        retention: 1,
        on_release: OnRelease::Restart,
        members: [true; super::world::VMS],
        prewarm: 0,
        ..FIRST
    };
    objects.facts(0, &[rules, SECOND], NOW)
}

fn restarting() -> VmS {
    VmS {
        needs_restart: true,
        ..VmS::default()
    }
}

fn ended(facts: &Facts) -> Vec<Why> {
    let why = |action: Action| match action {
        Action::Free { why, .. } | Action::Delete { why, .. } => Some(why),
        _ => None,
    };
    decide(facts).actions.into_iter().filter_map(why).collect()
}

#[test]
fn user_waits_for_the_restart_of_a_vm_that_can_restart_only() {
    assert_eq!(ended(&facts(restarting())), []);
    let mut broken = facts(restarting());
    broken.vms[0].problem = Some("NodeUnreachable".to_owned());
    assert_eq!(ended(&broken), [Why::Reclaimed]);
}

/// A quota that is used up, for example, prevents each restart.
#[test]
fn problem_of_all_restarts_costs_a_waiting_user_one_running_vm_at_most() {
    let mut facts = facts(restarting());
    facts.vms[0].problem = Some("QuotaExceeded".to_owned());
    assert_eq!(ended(&facts), [Why::Reclaimed]);
    let mut second = facts.vms[0].clone();
    (second.id.name, second.id.uid) = ("vm9".to_owned(), "9".to_owned());
    facts.vms.push(second);
    assert_eq!(ended(&facts), []);
    facts.now += WAIT_MAX;
    assert_eq!(ended(&facts), [Why::WaitedTooLong]);
}

#[test]
fn limit_does_not_end_the_wait_for_a_restart() {
    let mut late = facts(restarting());
    late.now += WAIT_MAX;
    assert_eq!(ended(&late), []);
    late.vms[0].problem = Some("NodeUnreachable".to_owned());
    assert_eq!(ended(&late), [Why::Reclaimed], "a VM restarts for the user");
    late.vms[1].problem = Some("DiskFull".to_owned());
    assert_eq!(ended(&late), [Why::WaitedTooLong]);
}

fn status(facts: &Facts) -> VmPoolStatus {
    let pool: VmPool =
        serde_json::from_str(r#"{"metadata": {"name": "pool0"}, "spec": {"permissions": []}}"#)
            .unwrap();
    report::status(facts, &pool, None)
}

/// The condition `Ready` contains that text.
fn explains(status: &VmPoolStatus, text: &str) {
    let message = &status.conditions[0].message;
    assert!(message.contains(text), "{message}");
}

#[test]
fn expired_vm_that_the_next_user_cannot_get_is_unavailable_with_the_cause() {
    let mut facts = facts(restarting());
    assert_eq!(status(&facts).expired, 1);
    facts.vms[1].problem = Some("DiskFull".to_owned());
    let found = status(&facts);
    assert_eq!((found.expired, found.unavailable), (0, 2));
    explains(&found, "VM vm1 is not running (DiskFull)");
    facts.vms[1].problem = None;
    facts.vms[1].is_member = false;
    explains(&status(&facts), "VM vm1 is no longer a member of the pool");
}

#[test]
fn connected_console_of_an_assigned_vm_is_named_as_a_cause() {
    let mut facts = facts(restarting());
    facts.vms[1].is_connected = true;
    let found = status(&facts);
    assert_eq!((found.assigned, found.expired), (1, 0));
    explains(
        &found,
        "an assignment does not expire while a console of its VM is connected",
    );
}
