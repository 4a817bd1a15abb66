//! (client) The last check of the PVCs before a pod is created.

use crate::api::vm::UsedVolume;
use crate::controllers::vm::apply::claims::check_vm;
use crate::controllers::vm::apply::dependencies::Applied;
use crate::controllers::vm::claim_names;
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::objects::Objects;
use crate::controllers::vm::observe::Observed;
use crate::k8s::error::Error;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

/// The PVCs of a new pod. The store may be older than a change of the owner, so a PVC whose name another VM generates is read from the
/// API server.
///
/// # Errors
/// If a request fails, or a PVC belongs to another VM, is being deleted or does not exist any more.
pub(super) async fn mounted(
    objects: &Objects<Applied>,
    observed: &Observed,
    ctx: &VmController,
) -> Result<Vec<UsedVolume>, Error> {
    let mut mounted = Vec::new();
    for claim in objects.claims() {
        let name = claim.name_any();
        let changed = || Error::Changed {
            kind: "PersistentVolumeClaim",
            name: name.clone(),
        };
        let present = if observed.name_conflicts.contains_key(&name) {
            let (writer, claims) = (ctx.scope.writer(), &ctx.caches.claims);
            let live = writer.find_into::<PersistentVolumeClaim, _>(claims, &name);
            live.await?
        } else {
            ctx.caches.claims.get(&ctx.scope.key(&name))
        };
        let present = present.filter(|it| it.metadata.deletion_timestamp.is_none());
        let present = present.ok_or_else(changed)?;
        check_vm(&present, observed)?;
        mounted.push(claim_names::used_volume(&present).ok_or_else(changed)?);
    }
    Ok(mounted)
}
