//! The newest known state of objects.

pub mod children;
pub mod primary;
pub mod trim;

use kube::Resource;
use kube::runtime::watcher::{self, Event};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the API server knows the kind of a store. The kinds of this project are known after the installation of `crds/`.
#[derive(Debug, Default)]
pub struct Definition {
    is_unknown: AtomicBool,
}

impl Definition {
    /// Whether the API server does not know the kind.
    pub fn is_unknown(&self) -> bool {
        self.is_unknown.load(Ordering::Relaxed)
    }

    /// Records whether the API server knows the kind `K`, and logs changes. Returns whether it is unknown, which the
    /// log says once.
    pub fn note<K: Resource<DynamicType = ()>, T>(
        &self,
        event: &watcher::Result<Event<T>>,
    ) -> bool {
        // `Init` is sent before the first page is requested.
        if matches!(event, Ok(Event::Init)) {
            return false;
        }
        let is_unknown = match event {
            Err(
                watcher::Error::InitialListFailed(kube::Error::Api(status))
                | watcher::Error::WatchStartFailed(kube::Error::Api(status)),
            ) => status.code == 404,
            _ => false,
        };
        let kind = K::kind(&());
        if self.is_unknown.swap(is_unknown, Ordering::Relaxed) == is_unknown {
            return is_unknown;
        }
        if is_unknown {
            tracing::error!(%kind, "the API server does not know this kind of object; install the CRDs: kubectl apply -f crds/");
        } else {
            tracing::info!(%kind, "the API server knows this kind of object now");
        }
        is_unknown
    }
}
