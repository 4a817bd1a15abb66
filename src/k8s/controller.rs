//! Around a reconcile: a deadline, a net for panics, figures, and the next try. What runs inside knows none of it.

use crate::controllers::vm::context::Context;
use crate::k8s::error::{Error, Retry};
use futures::FutureExt;
use kube::runtime::controller::Action;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;
use tracing::Instrument;

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

/// Runs the reconcile of one object: within the deadline, surviving its panic, counted.
///
/// # Errors
/// If the reconcile fails, takes too long or panics.
pub async fn guarded(
    name: &str,
    ctx: &Context,
    reconcile: impl Future<Output = Result<Outcome, Error>>,
) -> Result<Action, Error> {
    // By its id all that is found which one reconcile has said.
    let span = tracing::error_span!("reconcile", vm = name, id = ctx.reconcile_id());
    measured(name, ctx, reconcile).instrument(span).await
}

async fn measured(
    name: &str,
    ctx: &Context,
    reconcile: impl Future<Output = Result<Outcome, Error>>,
) -> Result<Action, Error> {
    let began = (ctx.instant)();
    let result = match tokio::time::timeout(
        ctx.deadline,
        AssertUnwindSafe(reconcile).catch_unwind(),
    )
    .await
    {
        Err(_) => Err(Error::Timeout(ctx.deadline)),
        Ok(Err(panic)) => Err(Error::Panic(panic_text(panic.as_ref()))),
        Ok(Ok(result)) => result,
    };
    let outcome = result.as_ref().map_or_else(Error::reason, |_| "Done");
    ctx.metrics.reconciled(
        outcome,
        (ctx.instant)()
            .saturating_duration_since(began)
            .as_secs_f64(),
    );
    match &result {
        Ok(_) => ctx.states.succeeded(name),
        // Somebody else wrote first, or what is in the way is going: no defect.
        Err(error) if error.code() == Some(409) || matches!(error.retry(), Retry::After(_)) => {
            tracing::debug!(reason = error.reason(), %error, "trying again");
        }
        Err(error) => {
            tracing::warn!(reason = error.reason(), %error, "reconcile failed; trying again")
        }
    }
    result.map(|outcome| match outcome {
        Outcome::Done => Action::await_change(),
        Outcome::Recheck(after) => Action::requeue(after),
    })
}

/// When to try again after a failure.
pub fn after_failure(name: &str, error: &Error, ctx: &Context) -> Action {
    let after = match error.retry() {
        Retry::After(after) => after,
        Retry::Backoff(longest) => ctx.states.failed(name).min(longest),
    };
    tracing::debug!(vm = name, ?after, "trying again");
    Action::requeue(after)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::vm::state::VmStates;
    use crate::settings::Settings;

    fn context() -> Context {
        let nothing = tower::service_fn(async |_| {
            Ok::<_, std::convert::Infallible>(
                axum::http::Response::new(kube::client::Body::empty()),
            )
        });
        let mut ctx = Context::new(
            kube::Client::new(nothing, "ns"),
            "ns".to_owned(),
            Settings::default(),
        );
        ctx.states = VmStates::new(Duration::from_secs(1), || 0.0);
        ctx
    }

    fn conflict() -> Error {
        let status = serde_json::json!({"code": 409, "message": "the object has been modified", "reason": "Conflict"});
        let source = kube::Error::Api(serde_json::from_value(status).unwrap());
        Error::Api {
            verb: "patch",
            kind: "Pod",
            name: "vm".to_owned(),
            source,
        }
    }

    #[tokio::test]
    async fn who_is_always_too_late_waits_longer_and_longer_until_it_goes_well() {
        let ctx = context();
        let pauses = |n: usize| -> Vec<Action> {
            (0..n)
                .map(|_| after_failure("vm", &conflict(), &ctx))
                .collect()
        };
        let expected = [
            1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000, 30_000, 30_000,
        ];
        assert_eq!(
            pauses(10),
            expected.map(|ms| Action::requeue(Duration::from_millis(ms)))
        );
        guarded("vm", &ctx, async { Ok(Outcome::Done) })
            .await
            .unwrap();
        assert_eq!(pauses(1), [Action::requeue(Duration::from_secs(1))]);
    }

    #[tokio::test]
    async fn a_server_that_is_busy_is_asked_when_it_says() {
        let ctx = context();
        let busy = |seconds: u32| {
            let details = serde_json::json!({"retryAfterSeconds": seconds});
            let status =
                serde_json::json!({"code": 429, "message": "m", "reason": "r", "details": details});
            let source = kube::Error::Api(serde_json::from_value(status).unwrap());
            Error::Api {
                verb: "patch",
                kind: "Pod",
                name: "vm".to_owned(),
                source,
            }
        };
        for seconds in [45, 1, 1] {
            assert_eq!(
                after_failure("vm", &busy(seconds), &ctx),
                Action::requeue(Duration::from_secs(seconds.into()))
            );
        }
    }

    #[tokio::test]
    async fn a_panic_is_one_objects_failure() {
        let ctx = context();
        let error = guarded("vm", &ctx, async { panic!("poisoned") })
            .await
            .unwrap_err();
        assert_eq!(
            (error.reason(), error.to_string().as_str()),
            ("InternalError", "internal error: poisoned")
        );
        assert_eq!(
            after_failure("vm", &error, &ctx),
            Action::requeue(Duration::from_secs(1))
        );
        assert_eq!(
            after_failure("vm", &error, &ctx),
            Action::requeue(Duration::from_secs(2))
        );
        let done = guarded("vm", &ctx, async { Ok(Outcome::Done) })
            .await
            .unwrap();
        assert_eq!((done, ctx.states.failing()), (Action::await_change(), 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reconcile_that_hangs_is_given_up() {
        let error = guarded("vm", &context(), std::future::pending())
            .await
            .unwrap_err();
        assert_eq!(error.reason(), "Timeout");
    }
}
