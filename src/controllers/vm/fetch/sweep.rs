//! (client) Deletes download pods that no VM needs: their VMs are deleted or stopped, or name another image.

use crate::api::VirtualMachine;
use crate::api::vm::{State, names};
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::images::{POD_PREFIX, is_download_pod, remote_images};
use crate::controllers::vm::observe;
use crate::k8s::writer::only_uid;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Time between two sweeps. A pod is deleted if two sweeps find it unused, so that a VM that is deleted and created again finds its
/// download.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// Grace period of a download pod, in seconds.
const GRACE_PERIOD: i64 = 10;

/// Sweeps periodically while this process leads.
pub async fn run(ctx: Arc<VmController>) {
    ctx.scope.cluster.leadership.elected().await;
    let vms = ctx.vms.reader();
    let mut unused = BTreeSet::new();
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        unused = sweep(&vms.state(), &unused, &ctx).await;
    }
}

/// Deletes the pods that are unused now and were unused at the last sweep. Returns the UIDs of all unused pods.
pub async fn sweep(
    vms: &[Arc<VirtualMachine>],
    before: &BTreeSet<String>,
    ctx: &VmController,
) -> BTreeSet<String> {
    let pods = ctx.caches.pods.groups(&ctx.scope.key(POD_PREFIX));
    let mut unused = BTreeSet::new();
    if pods.is_empty() {
        ctx.download_progress.retain(|_| false);
        return unused;
    }
    let running = vms.iter().filter(|vm| {
        observe::desired_state(vm) == State::Running && vm.metadata.deletion_timestamp.is_none()
    });
    let used: BTreeSet<String> = running
        .flat_map(|vm| remote_images(vm))
        .map(|remote| remote.pod_name())
        .collect();
    ctx.download_progress.retain(|pod| used.contains(pod));
    // An exited pod would prevent the deletion of its PVC.
    let repository = ctx
        .caches
        .claims
        .get(&ctx.scope.key(names::IMAGE_REPOSITORY_CLAIM));
    let is_repository_deleted =
        repository.is_some_and(|claim| claim.metadata.deletion_timestamp.is_some());
    for pod in pods
        .iter()
        .filter(|pod| is_download_pod(pod) && pod.metadata.deletion_timestamp.is_none())
    {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        let is_blocking = is_repository_deleted && pod.has_ended();
        if used.contains(&name) && !is_blocking {
            continue;
        }
        if before.contains(&uid) {
            tracing::info!(
                pod = name,
                "deleting a download pod, because no running VM needs the CD image that the pod downloads"
            );
            let deleted = ctx
                .scope
                .writer()
                .delete::<Pod, _>(&ctx.caches.pods, &name, only_uid(&uid), Some(GRACE_PERIOD))
                .await;
            if let Err(error) = deleted {
                tracing::warn!(pod = name, %error, "cannot delete a download pod that no VM needs; the operator tries again later");
            }
        }
        unused.insert(uid);
    }
    unused
}
