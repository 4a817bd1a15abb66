//! (client) The progress of downloads, from the last line of each pod's log. One request serves all VMs that wait for an image.

use crate::api::runner::fetch::Progress;
use crate::controllers::vm::context::Context;
use crate::controllers::vm::fetch::state::PROGRESS_INTERVAL;
use crate::controllers::vm::images::{ObservedDownload, is_download_pod};
use crate::controllers::vm::observe::Observed;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;
use std::time::Duration;

/// Timeout of a read of the log, so that a node that does not answer does not delay the reconcile.
const LOG_TIMEOUT: Duration = Duration::from_secs(2);

/// Adds the progress of running downloads to the observation. If a log cannot be read, the last known progress remains.
pub async fn read(mut observed: Observed, ctx: &Context) -> Observed {
    let now = observed.now;
    for (name, download) in &mut observed.fetches {
        if !is_running(download) {
            ctx.download_progress.retain(|pod| pod != name);
            continue;
        }
        let (known, is_recent) = ctx.download_progress.get(name, now, PROGRESS_INTERVAL);
        download.progress = known;
        if is_recent {
            continue;
        }
        let api: Api<Pod> = Api::namespaced(ctx.scope.cluster.client.clone(), &ctx.scope.namespace);
        let last_line = LogParams {
            tail_lines: Some(1),
            ..LogParams::default()
        };
        match tokio::time::timeout(LOG_TIMEOUT, api.logs(name, &last_line)).await {
            Ok(Ok(log)) => download.progress = Progress::last(&log).or(known),
            Ok(Err(error)) => {
                tracing::debug!(
                    pod = name, %error,
                    "cannot read the log of a download pod; the VM's status retains the last known progress"
                );
            }
            Err(_) => tracing::debug!(
                pod = name,
                "reading the log of a download pod took longer than {LOG_TIMEOUT:?}; the VM's status retains the last known progress"
            ),
        }
        ctx.download_progress.insert(name, now, download.progress);
    }
    observed
}

fn is_running(download: &ObservedDownload) -> bool {
    download.pod.as_deref().is_some_and(|pod| {
        is_download_pod(pod)
            && pod.status.phase == "Running"
            && !pod.has_ended()
            && pod.metadata.deletion_timestamp.is_none()
    })
}
