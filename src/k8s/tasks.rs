//! Background tasks that must run as long as the process, such as those that follow watches.

use futures::FutureExt;
use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use tokio::task::JoinSet;

/// A background task has ended. Without it, the process would continue with outdated stores.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the background task {task:?} has stopped: {cause}")]
pub struct TaskEnded {
    /// Name of the task.
    pub task: String,
    /// The text of its panic, or that it returned.
    pub cause: String,
}

/// A set of background tasks, which are cancelled when it is dropped.
#[derive(Default)]
pub struct Tasks(JoinSet<TaskEnded>);

impl Tasks {
    /// Starts a task that must not end.
    pub fn spawn(&mut self, task: String, run: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(async move {
            let result = AssertUnwindSafe(run).catch_unwind().await;
            let cause = match result {
                Ok(()) => "it returned".to_owned(),
                Err(panic) => panic_text(panic.as_ref()),
            };
            TaskEnded { task, cause }
        });
    }

    /// Cancels all tasks. Returns when all of them have ended.
    pub async fn stop(mut self) {
        self.0.shutdown().await;
    }

    /// Returns when one of the tasks has ended. Without tasks it never returns.
    pub async fn ended(&mut self) -> TaskEnded {
        match self.0.join_next().await {
            Some(Ok(ended)) => ended,
            // Only a cancelled task has another result, and only the end of the set cancels tasks.
            Some(Err(_)) | None => std::future::pending().await,
        }
    }
}

/// The message of a panic.
#[must_use]
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_task_runs_after_the_stop() {
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let mut tasks = Tasks::default();
        let task = async move {
            std::future::pending::<()>().await;
            drop(sender);
        };
        tasks.spawn("task".to_owned(), task);
        tasks.stop().await;
        receiver.now_or_never().unwrap().unwrap_err();
    }

    #[tokio::test]
    async fn a_task_that_panics_or_returns_is_reported() {
        let mut tasks = Tasks::default();
        assert_eq!(tasks.ended().now_or_never(), None);
        tasks.spawn("pods".to_owned(), std::future::pending());
        tasks.spawn("watch".to_owned(), async { panic!("poisoned") });
        assert_eq!(
            tasks.ended().await.to_string(),
            "the background task \"watch\" has stopped: poisoned"
        );
        tasks.spawn("secrets".to_owned(), async {});
        assert_eq!(tasks.ended().await.cause, "it returned");
        assert_eq!(tasks.ended().now_or_never(), None);
    }
}
