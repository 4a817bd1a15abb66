//! (client) Claims: made where they are missing, enlarged where the VM says so, and nothing else.

use crate::api::conditions::{self, ConditionReason, Wanted};
use crate::controllers::vm::context::Context;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::plan::ClaimChange;
use crate::controllers::vm::state::REJECTION_RETRY_TEXT;
use crate::controllers::vm::views::owner_of;
use crate::k8s::error::Error;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::api::Patch;
use serde_json::{Map, Value, json};

/// Makes the claim, if there is none of its name.
pub(super) async fn ensure(
    claim: &PersistentVolumeClaim,
    observed: &Observed,
    ctx: &Context,
) -> Result<(), Error> {
    let name = claim.name_any();
    if observed.claims.contains_key(&name) {
        return Ok(());
    }
    let there = ctx
        .writer()
        .create_or_get(&ctx.caches.claims, claim)
        .await?;
    // A claim without our labels may have been made by the user for this VM; one with them is another VM's.
    let others = owner_of(&*there).filter(|vm| *vm != observed.name());
    let foreign = |vm| {
        let owner = Some(format!("VM {vm:?}"));
        Err(Error::Foreign {
            kind: "PersistentVolumeClaim",
            name,
            owner,
        })
    };
    others.map_or(Ok(()), foreign)
}

/// Brings claims that are there in line, as far as claims can change. Gives what there is to tell. What was refused is
/// told in the VM's status, and asked for again when the VM changes and from time to time.
///
/// # Errors
/// If the API server could not be asked; its refusal is something to tell.
pub(super) async fn follow(
    changes: &[(String, ClaimChange)],
    observed: &Observed,
    ctx: &Context,
) -> Result<Option<Wanted>, Error> {
    let (vm, now) = (observed.key(), (ctx.cluster.instant)());
    let before = conditions::find(observed.conditions(), conditions::DISKS_IN_SYNC);
    // Once for all claims: of several, each is asked for again.
    let before = before
        .filter(|before| before.observed_generation == observed.vm.metadata.generation)
        .filter(|_| ctx.states.is_put_off(&vm, conditions::DISKS_IN_SYNC, now))
        .map_or("", |before| before.message.as_str());
    let (mut told, mut refused) = (Vec::new(), false);
    for (name, change) in changes {
        match change {
            ClaimChange::Never { field, to, from } => told.push((
                ConditionReason::ClaimImmutable,
                format!(
                    "claim {name:?} has {field} {from:?} and keeps it, not {to:?}: only size and attributes class of a claim \
                     that is there can change; give the disk what it has, or another name for a new one"
                ),
            )),
            ClaimChange::Shrink { to, from } => told.push((
                ConditionReason::ShrinkRefused,
                format!(
                    "claim {name:?} has {from} and cannot shrink to {to}: no volume can; give the disk {from} or more"
                ),
            )),
            ClaimChange::To { size, attributes_class } => {
                let wanted: Vec<&str> = size.iter().chain(attributes_class).map(String::as_str).collect();
                let begins = format!("claim {name:?} cannot become {}: ", wanted.join(", "));
                let line = match before.lines().find(|line| line.starts_with(&begins)) {
                    Some(line) => Some(line.to_owned()),
                    None => {
                        let words = grow(name, size.as_deref(), attributes_class.as_deref(), ctx).await?;
                        // At once: another claim's failure must not have this one asked for again.
                        if words.is_some() {
                            refused = true;
                            ctx.states.rejected(&vm, conditions::DISKS_IN_SYNC, now);
                        }
                        let again = format!("it is tried again when the VM changes, and {REJECTION_RETRY_TEXT}");
                        words.map(|words| format!("{begins}{words}; {again}"))
                    }
                };
                told.extend(line.map(|line| (ConditionReason::ExpansionRefused, line)));
            }
        }
    }
    if !refused
        && !told
            .iter()
            .any(|(reason, _)| *reason == ConditionReason::ExpansionRefused)
    {
        ctx.states.accepted(&vm, conditions::DISKS_IN_SYNC);
    }
    let reason = told.first().map(|(reason, _)| *reason);
    Ok(reason.map(|reason| {
        let message = told
            .into_iter()
            .map(|(_, message)| message)
            .collect::<Vec<_>>()
            .join("\n");
        Wanted {
            type_: conditions::DISKS_IN_SYNC,
            status: false,
            reason,
            message,
        }
    }))
}

/// Asks for a larger claim or another attributes class. Gives the words of a refusal.
async fn grow(
    name: &str,
    size: Option<&str>,
    attributes_class: Option<&str>,
    ctx: &Context,
) -> Result<Option<String>, Error> {
    let size = size.map(|size| {
        (
            "resources".to_owned(),
            json!({"requests": {"storage": size}}),
        )
    });
    let class =
        attributes_class.map(|class| ("volumeAttributesClassName".to_owned(), json!(class)));
    let spec: Map<String, Value> = size.into_iter().chain(class).collect();
    let patch = Patch::Merge(json!({"spec": spec}));
    match ctx
        .writer()
        .patch::<PersistentVolumeClaim, _>(&ctx.caches.claims, name, &patch)
        .await
    {
        Ok(_) => Ok(None),
        Err(error) if error.is_rejection() => Ok(Some(error.to_string().replace('\n', " "))),
        Err(error) => Err(error),
    }
}
