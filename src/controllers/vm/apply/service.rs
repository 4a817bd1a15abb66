//! (client) The load balancer Service: created, patched, and deleted if it is not desired. A Service of another owner
//! is not changed. A rejected Service does not block the VM.

use crate::api::vm::conditions::{self, ConditionReason, DesiredCondition};
use crate::api::vm::names;
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::ownership::{check_owner, is_labelled_for, next_step};
use crate::k8s::error::Error;
use crate::k8s::ownership::owns;
use crate::k8s::store::packed_map::PackedMap;
use crate::k8s::store::trim::Labelled;
use crate::k8s::views::ServiceView;
use crate::k8s::writer::only_uid;
use k8s_openapi::api::core::v1::{Service, ServicePort};
use kube::ResourceExt;
use kube::api::Patch;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Creates, patches or deletes the Service. Returns a condition if that is rejected.
///
/// # Errors
/// If a request fails for another reason than a rejection.
pub(super) async fn apply(
    desired: Option<&Service>,
    observed: &Observed,
    ctx: &VmController,
) -> Result<Option<DesiredCondition>, Error> {
    let result = match (desired, &observed.service) {
        (Some(desired), present) => create_or_patch(desired, present.as_ref(), observed, ctx).await,
        (None, Some(present)) if is_own(present, observed) => delete(present, ctx).await,
        (None, _) => return Ok(None),
    };
    let Err(error) = result else { return Ok(None) };
    if !error.is_rejection() {
        return Err(error);
    }
    let (reason, next) = match &error {
        Error::OwnedByPrevious { .. } => (
            ConditionReason::NameTaken,
            "the operator creates a new Service when the old Service no longer exists".to_owned(),
        ),
        Error::OwnedByOther { kind, name, owner } => {
            let next = next_step(owner.as_deref(), kind, name);
            (
                ConditionReason::NameTaken,
                format!(
                    "{next}. If the VM needs no Service, set spec.loadBalancerService of the VM to {{}} instead"
                ),
            )
        }
        _ if error.is_about("metadata.name") => (
            ConditionReason::Rejected,
            "the Service has the name of the VM, and names of Services begin with a letter and contain no dot. Create the VM again with \
             such a name, or set spec.loadBalancerService of the VM to {}"
                .to_owned(),
        ),
        _ => (
            ConditionReason::Rejected,
            "correct spec.loadBalancerService, or change the policy or quota that rejects the request"
                .to_owned(),
        ),
    };
    let message = format!("{error}; {next}");
    Ok(Some(DesiredCondition {
        type_: conditions::SERVICE_IN_SYNC,
        status: false,
        reason,
        message,
    }))
}

async fn create_or_patch(
    desired: &Service,
    present: Option<&Arc<ServiceView>>,
    observed: &Observed,
    ctx: &VmController,
) -> Result<(), Error> {
    let (writer, cache) = (ctx.scope.writer(), &ctx.caches.services);
    let present = match present {
        Some(present) => present.clone(),
        None => writer.create_or_get(cache, desired).await?,
    };
    let is_own = is_own(&present, observed);
    check_owner("Service", &*present, is_own, &observed.vm)?;
    if !is_up_to_date(&present, desired) {
        let patch = Patch::Merge(patch(&present, desired));
        writer
            .patch::<Service, _>(cache, &desired.name_any(), &patch)
            .await?;
    }
    Ok(())
}

async fn delete(present: &ServiceView, ctx: &VmController) -> Result<(), Error> {
    if present.metadata.deletion_timestamp.is_some() {
        // The cloud provider is releasing the load balancer.
        return Ok(());
    }
    let uid = present.uid().unwrap_or_default();
    ctx.scope
        .writer()
        .delete::<Service, _>(
            &ctx.caches.services,
            &present.name_any(),
            only_uid(&uid),
            Some(0),
        )
        .await
        .map(drop)
}

/// Whether this operator or the Java VM-Operator has created the Service for this VM.
fn is_own(view: &ServiceView, observed: &Observed) -> bool {
    let is_labelled = view.label(names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY)
        && is_labelled_for(view, &observed.vm);
    is_labelled || owns(&*observed.vm, view)
}

fn is_up_to_date(present: &ServiceView, desired: &Service) -> bool {
    let has = |present: &PackedMap, desired: &Option<BTreeMap<String, String>>| {
        desired
            .iter()
            .flatten()
            .all(|(name, value)| present.get(name) == Some(value))
    };
    let Some(spec) = &desired.spec else {
        return true;
    };
    let port = |p: &ServicePort| {
        (
            p.name.clone(),
            p.port,
            p.protocol.clone(),
            p.target_port.clone(),
        )
    };
    let ports = spec.ports.iter().flatten().map(port);
    has(present.labels(), &desired.metadata.labels)
        && has(present.annotations(), &desired.metadata.annotations)
        && desired
            .owner_references()
            .iter()
            .all(|owner| present.owner_references().contains(owner))
        && present.spec.type_ == spec.type_
        && present.spec.selector == spec.selector
        && present.spec.ports.iter().map(port).eq(ports)
}

/// The merge patch from the present to the desired Service. Labels, annotations and owners of other programs are retained.
fn patch(present: &ServiceView, desired: &Service) -> Value {
    let applied = present.annotations().get(names::ANNOTATION_APPLIED);
    let applied: Value = applied
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let merged = |kind: &str, desired: &Option<BTreeMap<String, String>>| -> Map<String, Value> {
        let names = applied
            .get(kind)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let removed = names.map(|name| (name.to_owned(), Value::Null));
        removed
            .chain(
                desired
                    .iter()
                    .flatten()
                    .map(|(name, value)| (name.clone(), json!(value))),
            )
            .collect()
    };
    let spec = desired.spec.clone().unwrap_or_default();
    let removed = present
        .spec
        .selector
        .iter()
        .flatten()
        .map(|(name, _)| (name.clone(), Value::Null));
    let selector = spec
        .selector
        .iter()
        .flatten()
        .map(|(name, value)| (name.clone(), json!(value)));
    let owners = present.owner_references().iter().filter(|owner| {
        desired
            .owner_references()
            .iter()
            .all(|desired| desired.uid != owner.uid)
    });
    let owners: Vec<_> = owners.chain(desired.owner_references()).collect();
    json!({
        "metadata": {
            "uid": present.uid(),
            "labels": merged("labels", &desired.metadata.labels),
            "annotations": merged("annotations", &desired.metadata.annotations),
            "ownerReferences": owners,
        },
        "spec": {
            "type": spec.type_,
            "selector": removed.chain(selector).collect::<Map<_, _>>(),
            "ports": spec.ports,
        },
    })
}
