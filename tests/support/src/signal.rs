//! Notifies all waiting tasks of a change, in the order in which they began to wait. `tokio::sync::watch` has a random
//! order, so that a seed would not repeat a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// A source of changes. Clones are the same source.
#[derive(Clone, Debug, Default)]
pub struct Signal(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    changes: AtomicU64,
    notify: Notify,
}

/// Waits for changes.
#[derive(Debug)]
pub struct Listener {
    source: Arc<Inner>,
    seen: u64,
}

impl Signal {
    /// Notifies the listeners.
    pub fn raise(&self) {
        self.0.changes.fetch_add(1, Ordering::SeqCst);
        self.0.notify.notify_waiters();
    }

    /// A listener for changes from now on.
    #[must_use]
    pub fn listen(&self) -> Listener {
        Listener {
            source: self.0.clone(),
            seen: self.0.changes.load(Ordering::SeqCst),
        }
    }
}

impl Listener {
    /// Ignores the changes up to now.
    pub fn mark_seen(&mut self) {
        self.seen = self.source.changes.load(Ordering::SeqCst);
    }

    /// Returns when something has changed since the last call.
    pub async fn changed(&mut self) {
        // Created before the count is read, so that no change is missed in between.
        let notified = self.source.notify.notified();
        if self.source.changes.load(Ordering::SeqCst) == self.seen {
            notified.await;
        }
        self.seen = self.source.changes.load(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::Signal;
    use futures::FutureExt;
    use std::sync::{Arc, Mutex};

    #[tokio::test]
    async fn change_is_received_once() {
        let signal = Signal::default();
        signal.raise();
        let mut listener = signal.listen();
        assert!(listener.changed().now_or_never().is_none());
        signal.raise();
        assert!(listener.changed().now_or_never().is_some());
        assert!(listener.changed().now_or_never().is_none());
        signal.raise();
        listener.mark_seen();
        assert!(listener.changed().now_or_never().is_none());
    }

    #[tokio::test]
    async fn listeners_are_notified_in_their_order() {
        let (signal, order) = (Signal::default(), Arc::<Mutex<Vec<usize>>>::default());
        let waiting: Vec<_> = (0..20)
            .map(|number| {
                let (mut listener, order) = (signal.listen(), order.clone());
                tokio::spawn(async move {
                    listener.changed().await;
                    order.lock().unwrap().push(number);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        signal.raise();
        futures::future::join_all(waiting).await;
        assert_eq!(*order.lock().unwrap(), Vec::from_iter(0..20));
    }
}
