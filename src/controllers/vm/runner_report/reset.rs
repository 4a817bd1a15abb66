//! (client) The reset of the status fields of a runner that has exited without a last report.
//!
//! Runners of earlier versions write these fields to the VM themselves, so this is also the only place where the operator changes the
//! status of their pods.

use super::{apply_body, write};
use crate::api::conditions::{find, is_true};
use crate::api::vm::conditions::{self, ConditionReason, DesiredCondition};
use crate::controllers::vm::context::Context;
use crate::controllers::vm::observe::Observed;
use crate::k8s::error::Error;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};

/// Resets the status fields of a runner that has exited. This is the first step of a reconcile, because reports of a new pod's
/// runner could not be distinguished from it. Returns the observation with the VM as written.
///
/// # Errors
/// If the status cannot be written.
pub async fn reset_stopped_runner(observed: Observed, ctx: &Context) -> Result<Observed, Error> {
    if stopped_runner_status(&observed).is_none() {
        return Ok(observed);
    }
    let observed = read_pod(observed, ctx).await?;
    let Some(stopped) = stopped_runner_status(&observed) else {
        return Ok(observed);
    };
    let vm = write(&observed.vm, &stopped, ctx).await?;
    Ok(Observed { vm, ..observed })
}

/// The observation with the pod as the API server has it. Stores can be old, so that the pod in them is a previous one. A runner
/// does not repeat a report that was reset by mistake.
async fn read_pod(observed: Observed, ctx: &Context) -> Result<Observed, Error> {
    let (writer, name) = (ctx.scope.writer(), observed.name());
    let live = writer.find_into::<Pod, _>(&ctx.caches.pods, &name);
    let Some(pod) = live.await? else {
        return Ok(observed);
    };
    Ok(Observed {
        pod: Some(pod),
        ..observed
    })
}

/// The body that writes the runner's fields of the status of a stopped VM, if no runner can write them and the present ones differ. A
/// runner that was killed does not write them.
#[must_use]
pub fn stopped_runner_status(observed: &Observed) -> Option<Value> {
    let status = observed.vm.status.as_ref()?;
    if observed.own_pod().is_some_and(|pod| !pod.has_ended()) {
        return None;
    }
    // Every runner writes these fields in its first report, so the operator's write takes all of them over.
    let looks_alive = conditions::INITIAL
        .iter()
        .any(|type_| is_true(&status.conditions, type_))
        || status.cpus != 0
        || !status.console_client.is_empty()
        || status
            .boots
            .or(status.resets)
            .or(status.console_connections)
            .is_some();
    looks_alive.then(|| {
        let stopped = |type_: &'static str| -> Condition {
            let message = "the VM is not running".to_owned();
            let wanted = DesiredCondition {
                type_,
                status: false,
                reason: ConditionReason::VmStopped,
                message,
            };
            wanted.at(
                &status.conditions,
                observed.vm.metadata.generation,
                observed.now,
            )
        };
        let stopped = conditions::INITIAL.map(stopped);
        // The field manager may own this condition: see [`super::copy`].
        let ready = find(&status.conditions, conditions::READY).cloned();
        let conditions: Vec<Condition> = stopped.into_iter().chain(ready).collect();
        apply_body(
            &observed.vm,
            json!({"cpus": 0, "ram": "0", "consoleClient": "", "conditions": conditions}),
        )
    })
}
