//! (pure, client) The status of a pool: counts, and the condition `Ready` with the cause for which users wait.

use crate::api::VmPool;
use crate::api::conditions::{DesiredCondition, Reason, find};
use crate::api::pool::{OnRelease, PoolReason, READY, Retention, VmPoolStatus};
use crate::controllers::pool::context::PoolController;
use crate::controllers::pool::facts::{Facts, Vm};
use crate::k8s::error::Error;
use crate::k8s::key::ObjectKey;
use kube::{Resource, ResourceExt};
use serde_json::json;

/// The state of a VM of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Use {
    Free,
    Assigned,
    Expired,
    /// With the cause.
    Unavailable(String),
}

fn use_of(facts: &Facts, vm: &Vm) -> Use {
    let is_own = |pool: &str| pool == facts.pool.id.name;
    match &vm.held {
        _ if vm.is_ending => Use::Unavailable("being deleted".to_owned()),
        Some(held) if !facts.is_expired(vm) && is_own(&held.pool) => Use::Assigned,
        Some(held) if !facts.is_expired(vm) => {
            Use::Unavailable(format!("assigned by pool {}", held.pool))
        }
        _ if !vm.is_member => Use::Unavailable("no longer a member of the pool".to_owned()),
        _ if vm.problem.is_some() => {
            let problem = vm.problem.clone().unwrap_or_default();
            Use::Unavailable(format!("not running ({problem})"))
        }
        _ if vm.is_connected => Use::Unavailable("in use by a console client".to_owned()),
        _ if vm.is_restarting => Use::Unavailable("restarting".to_owned()),
        Some(_) => Use::Expired,
        None => Use::Free,
    }
}

/// The desired status of the pool. `rejection` describes a rejected write.
#[must_use]
pub fn status(facts: &Facts, pool: &VmPool, rejection: Option<String>) -> VmPoolStatus {
    let uses: Vec<_> = facts
        .vms_by_name()
        .into_iter()
        .filter(|vm| vm.is_member || holds_own(facts, vm))
        .map(|vm| (vm, use_of(facts, vm)))
        .collect();
    let count = |state: fn(&Use) -> bool| number(uses.iter().filter(|(_, it)| state(it)).count());
    let queue = facts.queue().into_iter();
    let waiting = queue.filter(|assignment| !assignment.is_bound && assignment.is_named_well);
    let mut status = VmPoolStatus {
        observed_generation: pool.metadata.generation,
        members: number(facts.vms.iter().filter(|vm| vm.is_member).count()),
        free: count(|it| *it == Use::Free),
        assigned: count(|it| *it == Use::Assigned),
        expired: count(|it| *it == Use::Expired),
        waiting: number(waiting.count()),
        unavailable: count(|it| matches!(it, Use::Unavailable(_))),
        conditions: Vec::new(),
    };
    let retention = pool.spec.retention.parse::<Retention>().err();
    let reason = match (&rejection, &retention) {
        (Some(_), _) => PoolReason::WriteRejected,
        (_, Some(_)) => PoolReason::RetentionInvalid,
        _ if status.members == 0 => PoolReason::NoMembers,
        _ if status.free + status.expired == 0 => PoolReason::Exhausted,
        _ => PoolReason::Usable,
    };
    let message = match (rejection, retention) {
        (Some(rejection), _) => rejection,
        (_, Some(invalid)) => {
            format!(
                "spec.retention is invalid: {invalid}; until spec.retention is corrected, assignments of the pool do not expire"
            )
        }
        _ => explanation(facts, &status, &uses, reason),
    };
    let is_true = !matches!(
        reason,
        PoolReason::WriteRejected | PoolReason::RetentionInvalid
    );
    let present = pool.status.as_ref().map(|status| &*status.conditions);
    let ready = DesiredCondition {
        type_: READY,
        status: is_true,
        reason,
        message,
    };
    status.conditions = vec![ready.at(
        present.unwrap_or_default(),
        pool.metadata.generation,
        facts.now,
    )];
    status
}

fn holds_own(facts: &Facts, vm: &Vm) -> bool {
    vm.held
        .as_ref()
        .is_some_and(|held| held.pool == facts.pool.id.name)
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Explains the counts: why users wait, and when the next VM becomes available.
fn explanation(
    facts: &Facts,
    status: &VmPoolStatus,
    uses: &[(&Vm, Use)],
    reason: PoolReason,
) -> String {
    let mut sentences = Vec::new();
    match reason {
        PoolReason::NoMembers => {
            let name = &facts.pool.id.name;
            sentences.push(format!(
                "no VM has {name} in spec.pools; add the name of the pool to spec.pools of a VM"
            ));
        }
        PoolReason::Exhausted => {
            let expiries = uses.iter().filter(|(_, it)| *it == Use::Assigned);
            let next = expiries.filter_map(|(vm, _)| facts.expiry(vm)).min();
            let next = next.map_or_else(
                || "no assignment currently has an expiry time".to_owned(),
                |next| format!("the next expiry of an assignment is at {next}"),
            );
            sentences.push(format!(
                "no VM is free: {} of {} VMs are assigned, and {next}; if users wait, add VMs to the pool, or delete \
                 VmAssignments that are no longer needed",
                status.assigned, status.members
            ));
            let mut assigned = uses.iter().filter(|(_, it)| *it == Use::Assigned);
            if assigned.any(|(vm, _)| vm.is_connected) {
                let exception =
                    "an assignment does not expire while a console of its VM is connected";
                sentences.push(exception.to_owned());
            }
        }
        _ => {}
    }
    for (vm, state) in uses {
        if let Use::Unavailable(cause) = state {
            sentences.push(format!("VM {} is {cause}", vm.id.name));
        }
    }
    // A longer list would hide the first causes.
    let more = sentences.len().saturating_sub(5);
    sentences.truncate(5);
    if more > 0 {
        sentences.push(format!("number of other unavailable VMs: {more}"));
    }
    if facts.own_rules().on_release == OnRelease::Keep && !facts.pool.login {
        let advice = "the next user of a VM sees the session of the previous user; to prevent this, set spec.onRelease to Restart";
        sentences.push(advice.to_owned());
    }
    sentences.join("; ")
}

/// Writes the status of the pool if it differs.
///
/// # Errors
/// If the request fails.
pub async fn report(
    facts: &Facts,
    pool: &VmPool,
    error: Option<&Error>,
    ctx: &PoolController,
) -> Result<(), Error> {
    let rejection = error.filter(|error| error.is_rejection());
    let mut status = status(facts, pool, rejection.map(rejected));
    if rejection.is_some() {
        retain_message(&mut status, pool, ctx);
    }
    if pool.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let body = json!({
        "apiVersion": VmPool::api_version(&()),
        "kind": VmPool::kind(&()),
        "metadata": {"name": pool.name_any(), "resourceVersion": pool.resource_version()},
        "status": status,
    });
    let manager = ctx.scope.cluster.manager.field_manager;
    ctx.scope
        .writer()
        .apply_status::<VmPool, VmPool>(&ctx.pools, &pool.name_any(), manager, &body)
        .await?;
    if rejection.is_some() && message(Some(&status)) != message(pool.status.as_ref()) {
        let now = (ctx.scope.cluster.instant)();
        ctx.states.rejection_reported(&ObjectKey::of(pool), now);
    }
    Ok(())
}

/// The message of the condition `Ready`.
fn message(status: Option<&VmPoolStatus>) -> Option<&str> {
    let ready = find(&status?.conditions, READY)?;
    Some(&ready.message)
}

/// A rejected write with the next step.
fn rejected(error: &Error) -> String {
    let next_step = match error.code() {
        Some(403) => {
            "apply the manifests of the operator again, or change the policy or quota that rejects the request"
        }
        _ => "correct the object that this message names, or the webhook that rejects the request",
    };
    format!("{error}; {next_step}")
}

/// Retains the message of a rejection for a minute. The message of a webhook can differ at each request, and each write of the status
/// triggers a reconcile.
fn retain_message(status: &mut VmPoolStatus, pool: &VmPool, ctx: &PoolController) {
    let now = (ctx.scope.cluster.instant)();
    if !ctx.states.keeps_message(&ObjectKey::of(pool), now) {
        return;
    }
    let present = pool.status.iter().flat_map(|status| &status.conditions);
    let mut present = present.filter(|it| it.reason == PoolReason::WriteRejected.as_str());
    if let (Some(ready), Some(present)) = (status.conditions.first_mut(), present.next()) {
        ready.message.clone_from(&present.message);
    }
}

/// Updates the metrics that count VMs of pools.
pub fn update_metrics(ctx: &PoolController) {
    let metrics = &ctx.metrics;
    // The numbers of a deleted pool are not served. Its counters remain.
    metrics.clear();
    for pool in ctx.pools.reader().state() {
        let Some(status) = &pool.status else { continue };
        let name = pool.name_any();
        metrics.begin(&name);
        for (state, count) in [
            ("free", status.free),
            ("assigned", status.assigned),
            ("expired", status.expired),
            ("unavailable", status.unavailable),
        ] {
            metrics.set_vms(&name, state, count);
        }
        metrics.set_waiting(&name, status.waiting);
    }
}
