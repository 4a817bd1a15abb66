//! (client) Removes download pods that no VM needs: their VMs are deleted or stopped, or name another image.

use crate::api::VirtualMachine;
use crate::api::vm::{State, names};
use crate::controllers::vm::context::Context;
use crate::controllers::vm::images::{POD_PREFIX, is_fetch_pod, remotes};
use crate::k8s::writer::only;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks. What is found unwanted twice goes, so that a VM that is made anew finds its fetch still there.
const PAUSE: Duration = Duration::from_secs(60);
/// Seconds that the program has to end.
const GRACE: i64 = 10;

/// Looks from time to time, for ever.
pub async fn forever(ctx: Arc<Context>) {
    ctx.cluster.leadership.elected().await;
    let vms = ctx.vms.reader();
    let mut unwanted = BTreeSet::new();
    loop {
        tokio::time::sleep(PAUSE).await;
        unwanted = sweep(&vms.state(), &unwanted, &ctx).await;
    }
}

/// Removes the pods that nobody wants and that nobody wanted the last time; gives the UIDs of those that nobody wants.
pub async fn sweep(
    vms: &[Arc<VirtualMachine>],
    before: &BTreeSet<String>,
    ctx: &Context,
) -> BTreeSet<String> {
    let pods = ctx.caches.pods.groups(&ctx.key(POD_PREFIX));
    let mut unwanted = BTreeSet::new();
    if pods.is_empty() {
        ctx.progresses.retain(|_| false);
        return unwanted;
    }
    let running = vms.iter().filter(|vm| {
        vm.spec.vm.state == State::Running && vm.metadata.deletion_timestamp.is_none()
    });
    let wanted: BTreeSet<String> = running
        .flat_map(|vm| remotes(vm))
        .map(|remote| remote.pod_name())
        .collect();
    ctx.progresses.retain(|pod| wanted.contains(pod));
    // A pod that has ended keeps its claims from going.
    let repository = ctx
        .caches
        .claims
        .get(&ctx.key(names::IMAGE_REPOSITORY_CLAIM));
    let is_going = repository.is_some_and(|claim| claim.metadata.deletion_timestamp.is_some());
    for pod in pods
        .iter()
        .filter(|pod| is_fetch_pod(pod) && pod.metadata.deletion_timestamp.is_none())
    {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        let in_the_way = is_going && pod.has_ended();
        if wanted.contains(&name) && !in_the_way {
            continue;
        }
        if before.contains(&uid) {
            tracing::info!(
                pod = name,
                "nobody wants the image of this pod any more; removing it"
            );
            let deleted = ctx
                .writer()
                .delete::<Pod, _>(&ctx.caches.pods, &name, only(&uid), Some(GRACE))
                .await;
            if let Err(error) = deleted {
                tracing::warn!(%error, "cannot remove a fetch pod");
            }
        }
        unwanted.insert(uid);
    }
    unwanted
}
