//! (client) What an earlier VM of this name has left, and nobody takes away.
//!
//! That is the garbage collector's to do. It knows objects by UID and hears of them by name: a VM that is deleted and made again
//! while the API server is away from it is one that has changed, and what the first one had stays for good. The second VM waits
//! for its names, and a pod of the first may still run on its disks. So what is there when the second VM is as old as
//! [`Context::garbage`] is removed here: objects all of whose owners are earlier VMs of this name, as the garbage collector would.
//!
//! It comes last, and no trouble with it is in the way of what can be done besides.

use super::confirm::still_there;
use super::observe::{Observed, is_earlier, since};
use crate::api::{VirtualMachine, names};
use crate::operator::cache::Cache;
use crate::operator::context::Context;
use crate::operator::error::Error;
use crate::operator::write::{Writer, only};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use k8s_openapi::jiff::Timestamp;
use kube::api::Preconditions;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Removes what is due; gives when to look again, if there is something.
///
/// # Errors
/// If the API server cannot be asked, or refuses to remove one. The others are removed.
pub async fn remove(observed: &Observed, ctx: &Context) -> Result<Option<Duration>, Error> {
    let (name, vm, caches) = (observed.name(), &*observed.vm, &ctx.caches);
    // Where the VM makes use of one, that is not left to anybody.
    let secret = match observed.display_secret {
        None => caches.secrets.get(&names::display_secret(&name)),
        Some(_) => None,
    };
    let config_map = observed.config_map.as_deref().filter(|config_map| is_left(*config_map, vm));
    let secret = secret.as_deref().filter(|secret| is_left(*secret, vm));
    let service = observed.service.as_deref().filter(|service| is_left(*service, vm));
    let pod = observed.pod.as_deref().filter(|pod| is_left(*pod, vm));
    if config_map.is_none() && secret.is_none() && service.is_none() && pod.is_none() {
        return Ok(None);
    }
    let (key, now) = (format!("leftovers/{name}"), (ctx.instant)());
    let tried = ctx.lately.left(&key, now, |_| ctx.garbage).unwrap_or_default();
    let left = tried.max(ctx.garbage.saturating_sub(age(vm, observed.now)));
    if !left.is_zero() {
        return Ok(Some(left));
    }
    // Else what has another UID is a newer VM's, of which the watch has not told.
    if still_there(observed, ctx).await?.is_some() {
        let of_pod = delete::<Pod, _>(pod, &caches.pods, ctx).await;
        let of_config_map = delete::<ConfigMap, _>(config_map, &caches.config_maps, ctx).await;
        let of_secret = delete::<Secret, _>(secret, &caches.secrets, ctx).await;
        of_pod.and(of_config_map).and(of_secret).and(delete::<Service, _>(service, &caches.services, ctx).await)?;
    }
    ctx.lately.note(&key, now);
    Ok(Some(ctx.garbage))
}

/// How old the VM is: what is an earlier one's is older.
fn age(vm: &VirtualMachine, now: Timestamp) -> Duration {
    vm.metadata.creation_timestamp.as_ref().map_or(Duration::ZERO, |made| since(made.0, now))
}

/// What becomes of an object that an earlier VM of this name controls: one that it has left, or that is being removed.
#[must_use]
pub fn what_becomes_of<K: Resource>(object: &K, vm: &VirtualMachine) -> Option<String> {
    match (object.meta().deletion_timestamp.is_some(), object.finalizers()) {
        (true, []) => Some("it is being removed".to_owned()),
        (true, finalizers) => {
            Some(format!("it is being removed, and held by its finalizers: {}", finalizers.join(", ")))
        }
        (false, _) => is_left(object, vm).then(|| "if nobody removes it for a minute, the operator does".to_owned()),
    }
}

/// Whether an earlier VM has left the object, and nobody removes it.
fn is_left<K: Resource>(object: &K, vm: &VirtualMachine) -> bool {
    let owners = object.owner_references();
    // What has no owner is nobody's garbage.
    let is_garbage = !owners.is_empty() && owners.iter().all(|owner| is_earlier(owner, vm));
    is_garbage && object.meta().deletion_timestamp.is_none()
}

async fn delete<K, V>(object: Option<&V>, cache: &Cache<V>, ctx: &Context) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    V: Resource + Serialize + DeserializeOwned,
{
    let Some(object) = object else { return Ok(()) };
    let name = object.name_any();
    tracing::info!(kind = %K::kind(&()), name, "removing what an earlier VM of this name has left");
    // Whose it is may have changed, which its UID does not tell.
    let uid = object.uid().unwrap_or_default();
    let unchanged = Preconditions { resource_version: object.resource_version(), ..only(&uid) };
    // With the time to end that it says itself.
    Writer::new(ctx).delete::<K, V>(cache, &name, unchanged, None).await
}
