//! (client) Removes objects that a previous VM with the same name has left.
//!
//! The garbage collector does that, too, but later, and not at all if it misses that a VM was deleted and created again: it knows
//! owners by UID and follows them by name. The new VM waits for the names of these objects, and the pod of the previous VM may still
//! run on its disks. So objects all of whose owners are previous VMs of this name are deleted here.

use crate::api::vm::names;
use crate::controllers::vm::context::Context;
use crate::controllers::vm::gates::freshness::live;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::ownership::is_orphan;
use crate::k8s::error::Error;
use crate::k8s::store::children::Cache;
use crate::k8s::writer::only;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::api::Preconditions;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

/// Deletes them.
///
/// # Errors
/// If the API server cannot be asked, or rejects a deletion. The others are deleted.
pub async fn remove(observed: &Observed, ctx: &Context) -> Result<(), Error> {
    let (vm, caches) = (&*observed.vm, &ctx.caches);
    // A secret that this VM uses is not an orphan.
    let secret = match observed.display_secret {
        None => caches
            .secrets
            .get(&ctx.key(&names::display_secret(&observed.name()))),
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
    // Objects of a newer VM, which the watch has not reported yet, look the same.
    if live(observed, ctx).await?.is_none() {
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

async fn delete<K, V>(object: Option<&V>, cache: &Cache<V>, ctx: &Context) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    V: Resource + DeserializeOwned,
{
    let Some(object) = object else { return Ok(()) };
    let name = object.name_any();
    tracing::info!(kind = %K::kind(&()), name, "removing an object of a previous VM with the same name");
    // Its owners may have changed, which its UID does not tell.
    let uid = object.uid().unwrap_or_default();
    let unchanged = Preconditions {
        resource_version: object.resource_version(),
        ..only(&uid)
    };
    // With its own time to end.
    ctx.writer()
        .delete::<K, V>(cache, &name, unchanged, None)
        .await
}
