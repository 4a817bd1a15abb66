//! (client) Reports how long a guest may take to shut down, and the way to power it off: by an event on its pod, which
//! remains visible when the VM is deleted.

use crate::api::VirtualMachine;
use crate::controllers::vm::context::VmController;
use crate::k8s::events;
use crate::k8s::key::ObjectKey;
use crate::k8s::ownership::owns;
use kube::Resource;
use kube::runtime::events::EventType;

/// Reason of the event.
const REASON: &str = "Stopping";

/// Publishes the event on a VM's pod that is being deleted, if its guest may run.
pub async fn publish_shutdown(vm: &VirtualMachine, ctx: &VmController) {
    let key = ObjectKey::of(vm);
    let Some(pod) = ctx.caches.pods.get(&key) else {
        return;
    };
    if !owns(vm, &*pod) || !pod.has_started() || pod.has_ended() {
        return;
    }
    let note = format!(
        "the guest has {} s to shut down; to power the VM off at once (unsaved data is lost): kubectl exec -n {} {} -- vm-runner \
         power-off",
        vm.spec.vm.powerdown_timeout,
        ctx.scope.namespace,
        key.name()
    );
    let pod = pod.object_ref(&());
    events::publish(&ctx.scope.cluster, &pod, EventType::Normal, REASON, &note).await;
}
