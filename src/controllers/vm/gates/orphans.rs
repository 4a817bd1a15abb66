//! (client) Deletes orphaned objects of a previous VM with the same name.
//!
//! The garbage collector is slower, and may never delete them: it finds owners by name, so it can mistake the new VM for the previous one.
//! The new VM needs the names of these objects, and the pod of the previous VM may still run on its disks. An object is deleted if all of
//! its owners are previous VMs with the same name.

use crate::api::vm::names;
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::observe::Observed;
use crate::k8s::error::Error;
use crate::k8s::ownership::is_orphan;
use crate::k8s::store::children::Cache;
use crate::k8s::writer::only_uid;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::api::Preconditions;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

/// Deletes the orphaned objects. After a failed deletion, the others are tried.
///
/// # Errors
/// If a request fails.
pub async fn delete_orphans(observed: &Observed, ctx: &VmController) -> Result<(), Error> {
    let (vm, caches) = (&*observed.vm, &ctx.caches);
    // A Secret that this VM uses is not an orphan.
    let secret = match observed.display_secret {
        None => caches
            .secrets
            .get(&ctx.scope.key(&names::display_secret(&observed.name()))),
        Some(_) => None,
    };
    let config_map = observed
        .config_map
        .as_deref()
        .filter(|config_map| is_orphan(*config_map, vm));
    let secret = secret.as_deref().filter(|secret| is_orphan(*secret, vm));
    let service = observed
        .service
        .as_deref()
        .filter(|service| is_orphan(*service, vm));
    let pod = observed.pod.as_deref().filter(|pod| is_orphan(*pod, vm));
    if config_map.is_none() && secret.is_none() && service.is_none() && pod.is_none() {
        return Ok(());
    }
    // Objects of a newer VM that the watch has not reported yet look the same.
    if ctx.scope.writer().find_metadata(vm).await?.is_none() {
        return Ok(());
    }
    let of_pod = delete::<Pod, _>(pod, &caches.pods, ctx).await;
    let of_config_map = delete::<ConfigMap, _>(config_map, &caches.config_maps, ctx).await;
    let of_secret = delete::<Secret, _>(secret, &caches.secrets, ctx).await;
    of_pod
        .and(of_config_map)
        .and(of_secret)
        .and(delete::<Service, _>(service, &caches.services, ctx).await)
}

async fn delete<K, V>(object: Option<&V>, cache: &Cache<V>, ctx: &VmController) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    V: Resource + DeserializeOwned,
{
    let Some(object) = object else { return Ok(()) };
    let name = object.name_any();
    tracing::info!(kind = %K::kind(&()), name, "deleting an orphaned object of a deleted VM, because a new VM with the same \
        name needs the name of the object");
    // With the version: the owners may have changed since the observation.
    let uid = object.uid().unwrap_or_default();
    let unchanged = Preconditions {
        resource_version: object.resource_version(),
        ..only_uid(&uid)
    };
    // With the object's own grace period.
    ctx.scope
        .writer()
        .delete::<K, V>(cache, &name, unchanged, None)
        .await
        .map(drop)
}
