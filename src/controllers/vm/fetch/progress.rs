//! (client) The progress of downloads, from the last lines of each pod's log. One request serves all VMs that wait for an image.

use crate::api::runner::fetch::Progress;
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::fetch::state::PROGRESS_INTERVAL;
use crate::controllers::vm::images::is_download_pod;
use crate::controllers::vm::observe::Observed;
use crate::k8s::views::PodView;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::LogParams;
use std::time::Duration;

/// Timeout of a read of the log, so that a node that does not answer does not delay the reconcile.
const LOG_TIMEOUT: Duration = Duration::from_secs(2);

/// Adds the progress of running downloads and of a running import to the observation. If a log cannot be read, the last known progress
/// remains.
pub async fn read(mut observed: Observed, ctx: &VmController) -> Observed {
    let now = observed.now;
    for (name, download) in &mut observed.fetches {
        let pod = download.pod.as_deref().filter(|pod| is_download_pod(pod));
        download.progress = read_pod(name, pod, now, ctx).await;
    }
    let import = observed.own_pod().cloned();
    let import = import.filter(|pod| pod.import_claim().is_some());
    if let Some(pod) = import {
        observed.import_progress = read_pod(&observed.name(), Some(&pod), now, ctx).await;
    }
    observed
}

/// The progress of a pod, if it runs.
async fn read_pod(
    name: &str,
    pod: Option<&PodView>,
    now: Timestamp,
    ctx: &VmController,
) -> Option<Progress> {
    if !pod.is_some_and(is_running) {
        ctx.download_progress.retain(|pod| pod != name);
        return None;
    }
    let (known, is_recent) = ctx.download_progress.get(name, now, PROGRESS_INTERVAL);
    if is_recent {
        return known;
    }
    let api: Api<Pod> = Api::namespaced(ctx.scope.cluster.client.clone(), &ctx.scope.namespace);
    // An import that waits for an upload writes other lines after its progress.
    let last_lines = LogParams {
        tail_lines: Some(10),
        ..LogParams::default()
    };
    let progress = match tokio::time::timeout(LOG_TIMEOUT, api.logs(name, &last_lines)).await {
        Ok(Ok(log)) => Progress::last(&log).or(known),
        Ok(Err(error)) => {
            tracing::debug!(
                pod = name, %error,
                "cannot read the log of a download pod; the VM's status retains the last known progress"
            );
            known
        }
        Err(_) => {
            tracing::debug!(
                pod = name,
                "reading the log of a download pod took longer than {LOG_TIMEOUT:?}; the VM's status retains the last known progress"
            );
            known
        }
    };
    ctx.download_progress.insert(name, now, progress);
    progress
}

fn is_running(pod: &PodView) -> bool {
    pod.status.phase == "Running" && !pod.has_ended() && pod.metadata.deletion_timestamp.is_none()
}
