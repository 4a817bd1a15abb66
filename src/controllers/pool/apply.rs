//! (client) Carries out the actions. Each is one merge patch, creation or deletion with a precondition.

use crate::api::pool::{VmAssignmentSpec, VmAssignmentStatus, names};
use crate::api::{VirtualMachine, VmAssignment, VmPool};
use crate::controllers::pool::action::{Action, Change, Check, SpecChange, Why};
use crate::controllers::pool::context::PoolController;
use crate::controllers::pool::facts::Held;
use crate::controllers::pool::views::{AssignmentView, MemberView};
use crate::k8s::error::Error;
use crate::k8s::events;
use crate::k8s::live::{Version, is_gone};
use crate::k8s::writer::only_uid;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::Patch;
use kube::runtime::events::EventType;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use std::sync::Arc;

/// The result of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The API server has the change.
    Written,
    /// The decision was based on an outdated store. Nothing is written.
    Outdated,
}

/// Carries out an action, and reports it.
///
/// # Errors
/// If a request fails.
pub async fn apply(action: &Action, pool: &VmPool, ctx: &PoolController) -> Result<Applied, Error> {
    match action {
        Action::Create { user } => create(user, pool, ctx).await?,
        Action::Own { assignment } => own(assignment, pool, ctx).await?,
        Action::Report {
            assignment,
            user,
            status,
            change,
        } => {
            let written = write_status(assignment, status, ctx).await?;
            if let Some(change) = change {
                report_change(*change, user, &written, pool, ctx).await;
            }
        }
        Action::Assign { vm, held } => {
            write_assignment(vm, &assignment(held), ctx).await?;
        }
        Action::Change { vm, spec, why } => change_spec(vm, *spec, *why, ctx).await?,
        Action::Free {
            vm,
            user,
            restart,
            why,
            check,
        } => {
            if !holds(check, ctx).await? {
                return Ok(Applied::Outdated);
            }
            free(vm, user, *restart, *why, ctx).await?;
        }
        Action::Delete {
            assignment,
            user,
            why,
            check,
        } => {
            if !holds(check, ctx).await? {
                return Ok(Applied::Outdated);
            }
            // The store may still have an assignment that was deleted and reported before.
            if !delete(assignment, user, *why, pool, ctx).await? {
                return Ok(Applied::Outdated);
            }
        }
    }
    Ok(Applied::Written)
}

async fn write_status(
    assignment: &Version,
    status: &VmAssignmentStatus,
    ctx: &PoolController,
) -> Result<Arc<AssignmentView>, Error> {
    let VmAssignmentStatus {
        vm,
        last_used,
        expires,
        conditions,
    } = status;
    // A field without a value is removed.
    let status =
        json!({"vm": vm, "lastUsed": last_used, "expires": expires, "conditions": conditions});
    let body = json!({"metadata": {"resourceVersion": assignment.version}, "status": status});
    let patch = Patch::Merge(body);
    ctx.scope
        .writer()
        .patch_subresource::<VmAssignment, _>(&ctx.assignments, "status", &assignment.name, &patch)
        .await
}

/// Returns whether this request has deleted the assignment.
async fn delete(
    assignment: &Version,
    user: &str,
    why: Why,
    pool: &VmPool,
    ctx: &PoolController,
) -> Result<bool, Error> {
    let (writer, uid) = (ctx.scope.writer(), only_uid(&assignment.uid));
    let is_deleted = writer
        .delete::<VmAssignment, _>(&ctx.assignments, &assignment.name, uid, None)
        .await?;
    if !is_deleted {
        return Ok(false);
    }
    ctx.metrics.ended(&pool.name_any(), why.as_str());
    let note = format!("the assignment of {user} ends: {why}");
    let pool = pool.object_ref(&());
    events::publish(
        &ctx.scope.cluster,
        &pool,
        EventType::Normal,
        why.as_str(),
        &note,
    )
    .await;
    Ok(true)
}

/// Deletes the assignment by which a pool that does not exist has assigned a VM.
///
/// # Errors
/// If the request fails.
pub async fn delete_of_missing_pool(held: &Held, ctx: &PoolController) -> Result<(), Error> {
    let name = names::assignment(&held.pool, &held.user);
    let Some(uid) = &held.assignment else {
        return Ok(());
    };
    let known = ctx.assignments.get(&ctx.scope.key(&name));
    let is_left = |assignment: &Arc<AssignmentView>| {
        assignment.metadata.uid.as_ref() == Some(uid)
            && assignment.metadata.deletion_timestamp.is_none()
    };
    if known.as_ref().is_some_and(is_left) {
        ctx.scope
            .writer()
            .delete::<VmAssignment, _>(&ctx.assignments, &name, only_uid(uid), None)
            .await?;
    }
    Ok(())
}

/// Whether the API server confirms the condition of an action.
async fn holds(check: &Check, ctx: &PoolController) -> Result<bool, Error> {
    let assignment = async |name: &str| {
        let writer = ctx.scope.writer();
        writer.find::<VmAssignment, AssignmentView>(name).await
    };
    let vm = async |name: &str| {
        ctx.scope
            .writer()
            .find::<MemberView, MemberView>(name)
            .await
    };
    Ok(match check {
        Check::None => true,
        Check::AssignmentGone { name, uid } => is_gone(assignment(name).await?.as_ref(), uid),
        Check::AssignmentIs(version) => version.is(assignment(&version.name).await?.as_ref()),
        Check::VmGone { name, uid } => {
            let found = vm(name).await?.filter(MemberView::concerns_pools);
            is_gone(found.as_ref(), uid)
        }
        Check::VmIs(version) => version.is(vm(&version.name).await?.as_ref()),
    })
}

/// The pool as an owner. An object can have one owner that is its controller.
fn owner(pool: &VmPool, others: &[OwnerReference]) -> OwnerReference {
    let has_controller = others.iter().any(|other| other.controller == Some(true));
    OwnerReference {
        api_version: VmPool::api_version(&()).into_owned(),
        kind: VmPool::kind(&()).into_owned(),
        name: pool.name_any(),
        uid: pool.uid().unwrap_or_default(),
        controller: (!has_controller).then_some(true),
        block_owner_deletion: None,
    }
}

async fn create(user: &str, pool: &VmPool, ctx: &PoolController) -> Result<(), Error> {
    let spec = VmAssignmentSpec {
        pool: pool.name_any(),
        user: user.to_owned(),
    };
    let mut assignment = VmAssignment::new(&names::assignment(&spec.pool, user), spec);
    assignment.metadata.owner_references = Some(vec![owner(pool, &[])]);
    let adopted = (names::ANNOTATION_ADOPTED.to_owned(), "true".to_owned());
    assignment.metadata.annotations = Some([adopted].into());
    let created = ctx
        .scope
        .writer()
        .create_or_get(&ctx.assignments, &assignment)
        .await;
    created.map(drop)
}

async fn own(assignment: &Version, pool: &VmPool, ctx: &PoolController) -> Result<(), Error> {
    let present = ctx.assignments.get(&ctx.scope.key(&assignment.name));
    let present = present
        .iter()
        .flat_map(|assignment| assignment.owner_references());
    let mut owners: Vec<_> = present.cloned().collect();
    owners.push(owner(pool, &owners));
    let body =
        json!({"metadata": {"resourceVersion": assignment.version, "ownerReferences": owners}});
    ctx.scope
        .writer()
        .patch::<VmAssignment, _>(&ctx.assignments, &assignment.name, &Patch::Merge(body))
        .await
        .map(drop)
}

/// `status.assignment` in a merge patch.
fn assignment(held: &Held) -> Value {
    json!({
        "pool": held.pool, "user": held.user, "uid": held.assignment, "lastUsed": held.since.map(|time| seconds(time.as_second())),
        "login": held.login.then_some(true), "restart": null,
    })
}

fn seconds(second: i64) -> Option<String> {
    let time = k8s_openapi::jiff::Timestamp::from_second(second).ok()?;
    Some(time.to_string())
}

async fn write_assignment(
    vm: &Version,
    assignment: &Value,
    ctx: &PoolController,
) -> Result<(), Error> {
    let body = json!({
        "metadata": {"resourceVersion": vm.version},
        "status": {"assignment": assignment},
    });
    ctx.scope
        .writer()
        .merge_status::<MemberView, MemberView>(&ctx.vms, &vm.name, &body)
        .await
        .map(drop)
}

/// Clears `status.assignment` of a VM.
///
/// # Errors
/// If the request fails.
pub async fn free(
    vm: &Version,
    user: &str,
    restart: Option<i64>,
    why: Why,
    ctx: &PoolController,
) -> Result<(), Error> {
    let nothing = json!({
        "pool": null, "user": null, "uid": null, "lastUsed": null, "login": null, "restart": restart,
    });
    write_assignment(vm, &nothing, ctx).await?;
    let note = format!("{user} no longer has the VM: {why}");
    report_on_vm(vm, why.as_str(), &note, ctx).await;
    Ok(())
}

/// Starts, stops or restarts a VM.
///
/// # Errors
/// If the request fails.
pub async fn change_spec(
    vm: &Version,
    spec: SpecChange,
    why: Why,
    ctx: &PoolController,
) -> Result<(), Error> {
    let (machine, action) = match spec {
        SpecChange::Start => (json!({"state": "Running"}), "starts the VM"),
        SpecChange::Stop => (json!({"state": "Stopped"}), "stops the VM"),
        SpecChange::Restart(request) => (json!({"restartRequest": request}), "restarts the VM"),
    };
    let metadata = json!({"resourceVersion": vm.version});
    let body = json!({"metadata": metadata, "spec": {"vm": machine}});
    ctx.scope
        .writer()
        .merge::<MemberView, MemberView>(&ctx.vms, &vm.name, &body)
        .await?;
    report_on_vm(
        vm,
        why.as_str(),
        &format!("the operator {action}: {why}"),
        ctx,
    )
    .await;
    Ok(())
}

/// Publishes an event on the VM.
async fn report_on_vm(vm: &Version, reason: &str, note: &str, ctx: &PoolController) {
    let vm = ObjectReference {
        api_version: Some(VirtualMachine::api_version(&()).into_owned()),
        kind: Some(VirtualMachine::kind(&()).into_owned()),
        namespace: Some(ctx.scope.namespace.clone()),
        name: Some(vm.name.clone()),
        uid: Some(vm.uid.clone()),
        ..ObjectReference::default()
    };
    events::publish(&ctx.scope.cluster, &vm, EventType::Normal, reason, note).await;
}

async fn report_change(
    change: Change,
    user: &str,
    assignment: &AssignmentView,
    pool: &VmPool,
    ctx: &PoolController,
) {
    let name = pool.name_any();
    match (change, &assignment.status.vm) {
        (Change::Assigned, Some(vm)) => {
            let created = assignment.creation_timestamp().map(|time| time.0);
            let seconds = created.map(|created| (ctx.scope.cluster.now)().duration_since(created));
            let seconds = seconds.map_or(0.0, |duration| duration.as_secs_f64());
            ctx.metrics.assigned(&name, seconds.max(0.0));
            let note = format!("pool {name} assigns the VM to {user}");
            let vm = Version {
                name: vm.name.clone(),
                uid: vm.uid.clone(),
                ..Version::default()
            };
            report_on_vm(&vm, Why::Assigned.as_str(), &note, ctx).await;
        }
        _ => {
            let note = format!("{user} waits for a VM");
            let pool = pool.object_ref(&());
            events::publish(
                &ctx.scope.cluster,
                &pool,
                EventType::Normal,
                "Waiting",
                &note,
            )
            .await;
        }
    }
}
