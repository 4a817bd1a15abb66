//! (io) Tests before the start of QEMU whether KVM can run a guest.
//!
//! Opening `/dev/kvm` is not sufficient: KVM may be unable to execute the first instructions of a guest. A child process
//! therefore executes a few of them. QEMU itself checks the CPU model. The module `start` handles a KVM that fails later.

mod check;
mod child;
mod command;

pub use child::OWN_PROGRAM;
pub use command::{Arguments, run};

use crate::api::runner::outcome::{EndReason, Outcome};
use crate::api::vm::conditions::ConditionReason;
use crate::runner::failure::{Failure, Problem};
use crate::runner::machine::Acceleration;
use crate::runner::spec::Accelerator;
use check::{Extent, Step};
use child::{Check, Finding};
use std::path::Path;
use std::time::{Duration, Instant};

/// The device of KVM.
pub const DEVICE: &str = "/dev/kvm";
/// Maximum duration of one check. A check normally takes some milliseconds.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of checks, if each of them times out.
const ATTEMPTS: u32 = 2;

/// Inputs of the check.
pub struct KvmCheck<'a> {
    /// The executable of the child: [`OWN_PROGRAM`].
    pub program: &'a Path,
    /// The device: [`DEVICE`].
    pub device: &'a Path,
}

/// Selects the accelerator. `shutdown_request` completes when a shutdown is requested.
pub async fn select_acceleration(
    accelerator: Accelerator,
    kvm_check: KvmCheck<'_>,
    shutdown_request: impl Future<Output = ()>,
) -> Result<Acceleration, Failure> {
    // With `auto`, the guest is emulated if KVM cannot run an operating system, so all steps are needed.
    let extent = match accelerator {
        Accelerator::Tcg => return Ok(Acceleration::Tcg),
        Accelerator::Unset => return Ok(Acceleration::Unset),
        Accelerator::Auto => Extent::Full,
        Accelerator::Kvm => Extent::Basic,
    };
    let problem = tokio::select! {
        problem = kvm_check.problem(extent) => problem,
        () = shutdown_request => return Err(Failure::new(EndReason::Stopped, String::new())),
    };
    match problem {
        None => Ok(Acceleration::Kvm),
        Some(problem) if accelerator == Accelerator::Auto => {
            tracing::warn!("the guest is emulated: {}", problem.message);
            Ok(Acceleration::TcgFallback(problem))
        }
        Some(problem) => Err(unavailable(&problem.message)),
    }
}

/// Adds the next step to the message of an outcome that KVM has caused. Any other outcome is unchanged.
pub fn explain_end(outcome: Outcome) -> Outcome {
    let message = match outcome.reason {
        EndReason::AcceleratorUnavailable => unavailable(&outcome.message).message,
        EndReason::AcceleratorFailed => format!(
            "{}; the operator starts the VM again. If KVM fails again, use a different node, or set accelerator.policy to tcg \
             (emulation) in the operator's ConfigMap",
            outcome.message
        ),
        _ => return outcome,
    };
    Outcome { message, ..outcome }
}

/// The failure of a VM that must not be emulated.
fn unavailable(why: &str) -> Failure {
    let message = format!(
        "the VM requires KVM, but {why}. Repair KVM on the node. To permit emulation instead, set accelerator.policy to auto \
         in the operator's ConfigMap"
    );
    Failure::new(EndReason::AcceleratorUnavailable, message)
}

impl KvmCheck<'_> {
    /// The reason why KVM cannot run a guest.
    async fn problem(&self, extent: Extent) -> Option<Problem> {
        let check = Check {
            program: self.program,
            device: self.device,
            extent,
            limit: CHECK_TIMEOUT,
        };
        let mut last_step = None;
        for _ in 0..ATTEMPTS {
            let began = Instant::now();
            let finding = check.run(|_| ()).await;
            let took_ms = began.elapsed().as_millis() as u64;
            let (is_full, is_passed) = (extent == Extent::Full, finding == Finding::Passed);
            tracing::info!(took_ms, is_full, is_passed, "the KVM check has finished");
            match finding {
                Finding::Passed => return None,
                Finding::Failed(failed) => return Some(self.failed(failed.step, &failed.why)),
                Finding::Unknown(step) => last_step = step,
            }
        }
        let step = last_step.map_or("start", Step::text);
        let message = format!(
            "it is unknown whether {} works: {ATTEMPTS} checks timed out after {} s each, the last check at the step {step:?}; \
             restart the VM to check again",
            self.device.display(),
            CHECK_TIMEOUT.as_secs()
        );
        Some(Problem::new(ConditionReason::KvmCheckTimedOut, message))
    }

    fn failed(&self, step: Step, why: &str) -> Problem {
        if step == Step::Open {
            return Problem::new(ConditionReason::KvmNotAvailable, why);
        }
        let message = format!(
            "the KVM check ({}) failed at the step {:?}: {why}",
            self.device.display(),
            step.text()
        );
        Problem::new(ConditionReason::KvmDoesNotWork, message)
    }
}

#[cfg(test)]
mod tests;
