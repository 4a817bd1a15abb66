//! (client) How far fetches are, from the last line of each pod's log; one request for all VMs that wait.

use crate::api::runner::fetch::Progress;
use crate::controllers::vm::context::Context;
use crate::controllers::vm::fetch::state::PROGRESS_PAUSE;
use crate::controllers::vm::images::{Seen, is_fetch_pod};
use crate::controllers::vm::observe::Observed;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;
use std::time::Duration;

/// A node that does not answer must not delay what matters.
const DEADLINE: Duration = Duration::from_secs(2);

/// The observation, with how far the fetches are that run. A log that cannot be read says nothing.
pub async fn read(mut observed: Observed, ctx: &Context) -> Observed {
    let now = observed.now;
    for (name, seen) in &mut observed.fetches {
        if !runs(seen) {
            ctx.progresses.retain(|pod| pod != name);
            continue;
        }
        let (known, is_new) = ctx.progresses.known(name, now, PROGRESS_PAUSE);
        seen.progress = known;
        if is_new {
            continue;
        }
        let api: Api<Pod> = Api::namespaced(ctx.cluster.client.clone(), &ctx.namespace);
        let last_line = LogParams {
            tail_lines: Some(1),
            ..LogParams::default()
        };
        match tokio::time::timeout(DEADLINE, api.logs(name, &last_line)).await {
            Ok(Ok(log)) => seen.progress = Progress::last(&log).or(known),
            Ok(Err(error)) => tracing::debug!(pod = name, %error, "cannot read a log"),
            Err(_) => tracing::debug!(pod = name, "cannot read a log within {DEADLINE:?}"),
        }
        ctx.progresses.keep(name, now, seen.progress);
    }
    observed
}

fn runs(seen: &Seen) -> bool {
    seen.pod.as_deref().is_some_and(|pod| {
        is_fetch_pod(pod)
            && pod.status.phase == "Running"
            && !pod.has_ended()
            && pod.metadata.deletion_timestamp.is_none()
    })
}
