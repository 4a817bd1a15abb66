//! (client) Warnings that Kubernetes publishes as events only, such as a volume that cannot be mounted. They are listed for
//! objects of a pod that has not started in time, so a normal start costs no request.

use crate::controllers::vm::context::VmController;
use crate::controllers::vm::diagnose::suspects;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::views::Warning;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use std::time::Duration;

/// Reasons of warnings that occur in normal starts, or that the pod's own status explains better.
const IRRELEVANT_REASONS: [&str; 6] = [
    "BackOff",
    "DNSConfigForming",
    "Failed",
    "FailedScheduling",
    "FailedToRetrieveImagePullSecret",
    "Unhealthy",
];
/// Temporary failures of a kubelet that has just received the pod.
const TEMPORARY_FAILURES: [&str; 3] = [
    "failed to sync configmap cache",
    "failed to sync secret cache",
    "not registered",
];

/// Timeout of all lists of one reconcile. Explanations must not delay the start and stop of VMs.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);

/// Adds the newest warning about each object that may keep a pod of the VM from starting. A failed list is logged and ignored.
pub async fn read(mut observed: Observed, ctx: &VmController) -> Observed {
    let list = async {
        for uid in suspects(&observed) {
            let warning = newest(&uid, ctx).await;
            observed
                .warnings
                .extend(warning.map(|warning| (uid, warning)));
        }
    };
    if tokio::time::timeout(LIST_TIMEOUT, list).await.is_err() {
        tracing::warn!(
            vm = observed.name(),
            "cannot list the warning events of the VM's objects within {LIST_TIMEOUT:?}; the VM's status may lack the cause \
             of a problem"
        );
    }
    observed
}

/// The newest warning about the object of that UID.
async fn newest(uid: &str, ctx: &VmController) -> Option<Warning> {
    let of_object = ListParams::default().fields(&format!("regarding.uid={uid},type=Warning"));
    let events = Api::<Event>::namespaced(ctx.scope.cluster.client.clone(), &ctx.scope.namespace)
        .list(&of_object)
        .await;
    let events = events
        .inspect_err(|error| {
            tracing::warn!(
                uid, %error,
                "cannot list the warning events of the VM's pod or of a PVC; the VM's status may lack the cause of a problem"
            );
        })
        .ok()?;
    let warnings = events.items.into_iter().filter_map(|event| {
        let version: u64 = event.metadata.resource_version?.parse().ok()?;
        Some((
            version,
            Warning {
                reason: event.reason?,
                note: event.note.unwrap_or_default(),
            },
        ))
    });
    let relevant = warnings.filter(|(_, Warning { reason, note })| {
        !IRRELEVANT_REASONS.contains(&reason.as_str())
            && !TEMPORARY_FAILURES.iter().any(|text| note.contains(text))
    });
    relevant
        .max_by_key(|(version, _)| *version)
        .map(|(_, warning)| warning)
}
