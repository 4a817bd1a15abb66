//! Around a reconcile: a deadline, a net for panics, figures, and the next try. What runs inside knows none of it.

use super::context::Context;
use super::error::{Error, Retry};
use crate::api::VirtualMachine;
use futures::{FutureExt, StreamExt};
use kube::ResourceExt;
use kube::runtime::controller::{Action, Config, Controller, Error as ControllerError};
use kube::runtime::reflector::ObjectRef;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A reconcile that takes longer has failed.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// How many VMs are worked on at once: enough to keep the API server busy, few enough not to flood it.
const CONCURRENCY: u16 = 16;

/// How a reconcile ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing more to do before something changes.
    Done,
    /// Look again after that time.
    Recheck(Duration),
}

impl Outcome {
    /// The same, but look again after that time at the latest.
    #[must_use]
    pub fn sooner(self, recheck: Option<Duration>) -> Self {
        match (self, recheck) {
            (Self::Done, Some(after)) => Self::Recheck(after),
            (Self::Recheck(before), Some(after)) => Self::Recheck(before.min(after)),
            (outcome, None) => outcome,
        }
    }
}

/// Runs the controller until `stop` completes and the reconciles under way have ended.
pub async fn run<S, T>(
    ctx: Arc<Context>,
    vms: super::streams::Vms<S>,
    changed_children: T,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) where
    S: futures::Stream<Item = Result<VirtualMachine, kube::runtime::watcher::Error>> + Send + 'static,
    T: futures::Stream<Item = ObjectRef<VirtualMachine>> + Send + 'static,
{
    Controller::for_stream(vms.stream, vms.store)
        .reconcile_on(changed_children)
        .with_config(Config::default().concurrency(CONCURRENCY))
        .graceful_shutdown_on(stop)
        .run(guarded, error_policy, ctx.clone())
        .for_each(|result| {
            match result {
                Err(ControllerError::ObjectNotFound(object)) => ctx.forget(&object.name),
                Err(ControllerError::QueueError(error)) => tracing::warn!(%error, "watching VMs"),
                // Reconciles report themselves.
                Ok(_) | Err(_) => {}
            }
            futures::future::ready(())
        })
        .await;
}

async fn guarded(vm: Arc<VirtualMachine>, ctx: Arc<Context>) -> Result<Action, Error> {
    let name = vm.name_any();
    let began = Instant::now();
    let reconcile = AssertUnwindSafe(super::vm::reconcile(vm, &ctx)).catch_unwind();
    let result = match tokio::time::timeout(DEADLINE, reconcile).await {
        Err(_) => Err(Error::Timeout(DEADLINE)),
        Ok(Err(panic)) => Err(Error::Panic(panic_text(panic.as_ref()))),
        Ok(Ok(result)) => result,
    };
    let outcome = result.as_ref().map_or_else(Error::reason, |_| "Done");
    ctx.metrics.reconciled(outcome, began.elapsed().as_secs_f64());
    let result = result.map(|outcome| {
        ctx.failures.forget(&name);
        match outcome {
            Outcome::Done => Action::await_change(),
            Outcome::Recheck(after) => Action::requeue(after),
        }
    });
    ctx.metrics.backoff.set(i64::try_from(ctx.failures.len()).unwrap_or(i64::MAX));
    result
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".to_owned())
}

#[expect(clippy::needless_pass_by_value, reason = "the signature is the runtime's")]
fn error_policy(vm: Arc<VirtualMachine>, error: &Error, ctx: Arc<Context>) -> Action {
    let name = vm.name_any();
    let after = match error.retry() {
        Retry::After(after) => after,
        Retry::Backoff => ctx.failures.failed(&name),
    };
    tracing::warn!(vm = name, reason = error.reason(), ?after, %error, "reconcile failed; trying again");
    Action::requeue(after)
}
