//! Observes a pool: its members and assignments, from the stores.

use crate::api::VmPool;
use crate::api::conditions::{find, is_true};
use crate::api::pool::{BOUND, VmPoolSpec, names};
use crate::api::vm::conditions::{self, ReadyReason};
use crate::api::vm::{Assignment, State};
use crate::controllers::pool::context::PoolController;
use crate::controllers::pool::facts::{AssignmentFacts, Facts, Held, Pool, Rules, Vm};
use crate::controllers::pool::views::{AssignmentView, MemberView};
use crate::k8s::live::Version;
use crate::k8s::ownership::is_previous;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};
use std::collections::BTreeSet;
use strum::VariantArray;

/// The facts about the pool.
#[must_use]
pub fn observe(pool: &VmPool, ctx: &PoolController) -> Facts {
    let name = pool.name_any();
    let all = ctx.assignments.groups(&ctx.scope.key(""));
    let (own, others): (Vec<_>, Vec<_>) = all
        .iter()
        .partition(|assignment| assignment.spec.pool == name);
    let named: BTreeSet<&str> = own
        .iter()
        .filter_map(|assignment| named_vm(assignment))
        .collect();
    let vms: Vec<Vm> = ctx
        .vms
        .reader()
        .state()
        .iter()
        .filter(|vm| {
            let is_held = vm.status.assignment.pool.as_ref() == Some(&name);
            is_held || is_member(vm, &name) || named.contains(uid(vm.as_ref()))
        })
        .map(|vm| vm_facts(vm, &name))
        .collect();
    let is_involved = |assignment: &AssignmentView| {
        let holds = |vm: &Vm| {
            let held = vm.held.as_ref().and_then(|held| held.assignment.as_deref());
            held == Some(uid(assignment)) || named_vm(assignment) == Some(&vm.id.uid)
        };
        vms.iter().any(holds)
    };
    let others = others
        .into_iter()
        .filter(|assignment| is_involved(assignment));
    let assignments = own.iter().copied().chain(others);
    let assignments = assignments
        .map(|assignment| assignment_facts(assignment, pool))
        .collect();
    let pools = ctx.pools.reader().state();
    Facts {
        pool: pool_facts(pool),
        rules: pools
            .iter()
            .map(|pool| (pool.name_any(), rules(&pool.spec)))
            .collect(),
        vms,
        assignments,
        now: (ctx.scope.cluster.now)(),
    }
}

fn uid<K: Resource>(object: &K) -> &str {
    object.meta().uid.as_deref().unwrap_or_default()
}

/// The UID of the VM that the assignment names.
fn named_vm(assignment: &AssignmentView) -> Option<&str> {
    assignment.status.vm.as_ref().map(|vm| vm.uid.as_str())
}

fn is_member(vm: &MemberView, pool: &str) -> bool {
    vm.spec.pools.iter().any(|name| name == pool)
}

/// The facts about a pool.
#[must_use]
pub fn pool_facts(pool: &VmPool) -> Pool {
    Pool {
        id: Version::of(pool),
        prewarm: usize::try_from(pool.spec.prewarm).unwrap_or_default(),
        login: pool.spec.login_on_assignment,
        is_ending: pool.metadata.deletion_timestamp.is_some(),
    }
}

/// The rules of a pool.
#[must_use]
pub fn rules(spec: &VmPoolSpec) -> Rules {
    Rules {
        retention: spec.retention.parse().ok(),
        on_release: spec.on_release,
        on_expiry: spec.on_expiry,
    }
}

/// The facts about a VM, as far as that pool is concerned.
#[must_use]
pub fn vm_facts(vm: &MemberView, pool: &str) -> Vm {
    let status = &vm.status;
    let ready = find(&status.conditions, conditions::READY);
    let console = find(&status.conditions, conditions::CONSOLE_CONNECTED);
    // The first condition of a VM has the time of its creation.
    let created = vm.creation_timestamp().map(|time| time.0);
    let changed = console.map(|console| console.last_transition_time.0);
    let is_current = |ready: &&Condition| ready.observed_generation == vm.metadata.generation;
    let requested = vm.spec.vm.restart_request.unwrap_or_default();
    let done = status.observed_restart_request.unwrap_or_default();
    let needed = status.assignment.restart;
    let state_is_running = vm.spec.vm.state == Some(State::Running);
    let is_shut_down = status
        .guest_shutdown
        .is_some_and(|shutdown| Some(shutdown.generation) == vm.metadata.generation);
    let is_stopped = ready
        .filter(is_current)
        .is_some_and(|ready| ready.reason == ReadyReason::Stopped.as_str());
    Vm {
        id: Version::of(vm),
        is_member: is_member(vm, pool),
        is_ending: vm.metadata.deletion_timestamp.is_some(),
        wants_running: state_is_running && !is_shut_down,
        state_is_running,
        is_running: is_true(&status.conditions, conditions::RUNNING),
        is_stopped,
        problem: ready.and_then(problem),
        restart_request: requested.max(done),
        is_restarting: (requested > done && !is_stopped)
            || needed.is_some_and(|needed| needed > done),
        is_connected: is_true(&status.conditions, conditions::CONSOLE_CONNECTED),
        connection_changed: changed.filter(|time| Some(*time) > created),
        held: held(&status.assignment),
        restart_needed: needed,
    }
}

/// The reason of a VM that does not run although it should, or will not run without help.
fn problem(ready: &Condition) -> Option<String> {
    let known = ReadyReason::VARIANTS
        .iter()
        .find(|reason| reason.as_str() == ready.reason);
    known
        .filter(|reason| reason.is_problem() && !reason.is_ready())
        // The operator is about to report a VM that it has not seen.
        .filter(|reason| **reason != ReadyReason::NoOperator)
        .map(|reason| reason.as_str().to_owned())
}

fn held(assignment: &Assignment) -> Option<Held> {
    let (pool, user) = (assignment.pool.clone()?, assignment.user.clone()?);
    let since = assignment.last_used.as_ref();
    Some(Held {
        pool,
        user,
        assignment: assignment.uid.clone(),
        since: since.and_then(|time| time.parse::<Timestamp>().ok()),
        login: assignment.login,
    })
}

/// The facts about an assignment. `pool` is the pool that must be its owner, if it belongs to that pool.
#[must_use]
pub fn assignment_facts(assignment: &AssignmentView, pool: &VmPool) -> AssignmentFacts {
    let owners = assignment.owner_references();
    let is_own = assignment.spec.pool == pool.name_any();
    let is_of_pool = |owner: &OwnerReference| {
        owner.kind == VmPool::kind(&())
            && owner.name == assignment.spec.pool
            && owner.uid == uid(pool)
    };
    let has_owner = owners.iter().any(is_of_pool);
    // The garbage collector deletes the assignments of a previous pool.
    let is_of_previous =
        is_own && !has_owner && owners.iter().any(|owner| is_previous(owner, pool));
    let annotations = assignment.annotations();
    AssignmentFacts {
        id: Version::of(assignment),
        pool: assignment.spec.pool.clone(),
        user: assignment.spec.user.clone(),
        created: assignment
            .creation_timestamp()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        is_ending: assignment.metadata.deletion_timestamp.is_some() || is_of_previous,
        is_named_well: assignment.name_any()
            == names::assignment(&assignment.spec.pool, &assignment.spec.user),
        has_owner,
        is_adopted: annotations
            .get(names::ANNOTATION_ADOPTED)
            .is_some_and(|value| value == "true"),
        is_bound: is_true(&assignment.status.conditions, BOUND),
        status: assignment.status.clone(),
    }
}
