//! (client) The reset of the status fields of a runner that has exited without a last report.
//!
//! Runners of the Java VM-Operator write these fields to the VM themselves, so this is also the only place where the operator changes the
//! status of their pods.

use super::checks::console_user;
use crate::api::conditions::is_true;
use crate::api::vm::VirtualMachineStatus;
use crate::api::vm::conditions::{self, ConditionReason, DesiredCondition};
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::status;
use crate::k8s::error::Error;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Resets the status fields of a runner that has exited. This is the first step of a reconcile, because reports of a new pod's
/// runner could not be distinguished from it. Returns the observation with the VM as written.
///
/// # Errors
/// If the status cannot be written.
pub async fn reset_stopped_runner(
    observed: Observed,
    ctx: &VmController,
) -> Result<Observed, Error> {
    if stopped_runner_status(&observed).is_none() {
        return Ok(observed);
    }
    let observed = read_pod(observed, ctx).await?;
    let Some(stopped) = stopped_runner_status(&observed) else {
        return Ok(observed);
    };
    let vm = status::write(&observed.vm, &stopped, ctx).await?;
    Ok(Observed { vm, ..observed })
}

/// The observation with the pod as the API server has it. Stores can be old, so that the pod in them is a previous one. A runner
/// does not repeat a report that was reset by mistake.
async fn read_pod(observed: Observed, ctx: &VmController) -> Result<Observed, Error> {
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

/// The status of a stopped VM without the fields and conditions of its runner, if no runner can write them and the present ones differ.
/// A runner that was killed does not write them.
#[must_use]
pub fn stopped_runner_status(observed: &Observed) -> Option<VirtualMachineStatus> {
    if observed.own_pod().is_some_and(|pod| !pod.has_ended()) {
        return None;
    }
    let present = observed.vm.status.as_ref()?;
    let looks_alive = conditions::INITIAL
        .iter()
        .any(|type_| is_true(&present.conditions, type_))
        || present.cpus != 0
        || !present.console_client.is_empty()
        || present
            .boots
            .or(present.resets)
            .or(present.console_connections)
            .is_some();
    looks_alive.then(|| {
        let present = status::present(&observed.vm);
        VirtualMachineStatus {
            observed_generation: present.observed_generation,
            console_user: console_user(&present, &[]),
            conditions: stopped_conditions(&present.conditions, observed),
            restarts: present.restarts,
            observed_restart_request: present.observed_restart_request,
            guest_shutdown: present.guest_shutdown,
            assignment: present.assignment,
            volumes: present.volumes,
            ..VirtualMachineStatus::default()
        }
    })
}

/// The list with the initial conditions of a stopped VM, and without the other conditions of runners.
fn stopped_conditions(present: &[Condition], observed: &Observed) -> Vec<Condition> {
    let stopped = |type_: &'static str| {
        let wanted = DesiredCondition {
            type_,
            status: false,
            reason: ConditionReason::VmStopped,
            message: "the VM is not running".to_owned(),
        };
        wanted.at(present, observed.vm.metadata.generation, observed.now)
    };
    let is_of_runner =
        |condition: &&Condition| conditions::OF_RUNNER.contains(&condition.type_.as_str());
    let others = present.iter().filter(|it| !is_of_runner(it)).cloned();
    conditions::INITIAL
        .map(stopped)
        .into_iter()
        .chain(others)
        .collect()
}
