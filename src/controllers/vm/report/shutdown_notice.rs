//! (client) Reports how long a guest may take to shut down, and the way to power it off: by an event on its pod, which
//! remains visible when the VM is deleted, and in the status of a VM that is deleted after its pod.

use crate::api::VirtualMachine;
use crate::controllers::vm::context::Context;
use crate::controllers::vm::decide::{Decision, WaitFor};
use crate::controllers::vm::observe::{Observed, owns};
use crate::controllers::vm::report::report;
use crate::k8s::error::Error;
use crate::k8s::events;
use crate::k8s::key::ObjectKey;
use kube::Resource;
use kube::runtime::events::EventType;

/// Reason of the event.
const REASON: &str = "Stopping";

/// Publishes the event on a VM's pod that is being deleted, if its guest may run.
pub async fn publish_shutdown(vm: &VirtualMachine, ctx: &Context) {
    let key = ObjectKey::of(vm);
    let Some(pod) = ctx.caches.pods.get(&key) else {
        return;
    };
    if !owns(vm, &pod) || !pod.has_started() || pod.has_ended() {
        return;
    }
    let note = format!(
        "the guest has {} s to shut down; to power the VM off at once (unsaved data is lost): kubectl exec -n {} {} -- vm-runner \
         power-off",
        vm.spec.vm.powerdown_timeout,
        ctx.namespace,
        key.name()
    );
    let pod = pod.object_ref(&());
    events::publish(&ctx.cluster, &pod, EventType::Normal, REASON, &note).await;
}

/// Reports that the guest shuts down, for a VM that is deleted after its pod (foreground deletion, or a finalizer).
///
/// # Errors
/// If the status cannot be written, unless the VM does not exist any more.
pub async fn report_deletion(observed: &Observed, ctx: &Context) -> Result<(), Error> {
    let is_stopping = observed
        .own_pod()
        .is_some_and(|pod| !pod.has_ended() && pod.metadata.deletion_timestamp.is_some());
    if !is_stopping || !observed.has_started() {
        return Ok(());
    }
    let decision = Decision::Wait(WaitFor::PodEnd);
    match report(observed, &decision, None, None, false, ctx).await {
        Err(error) if error.code() == Some(404) => Ok(()),
        result => result,
    }
}
