//! The newest known state of objects.

pub mod children;
pub mod packed_map;
pub mod primary;
pub mod trim;

use kube::Resource;
use kube::runtime::watcher::{self, Event};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the API server knows the kind of a store.
#[derive(Debug, Default)]
pub struct Definition {
    is_unknown: AtomicBool,
}

impl Definition {
    /// Whether the API server does not know the kind.
    pub fn is_unknown(&self) -> bool {
        self.is_unknown.load(Ordering::Relaxed)
    }

    /// Records whether the API server knows the kind `K`, and logs each change. Returns whether the event is its response that it
    /// does not know the kind. `install` is the command that installs the definition.
    pub fn note<K: Resource<DynamicType = ()>, T>(
        &self,
        event: &watcher::Result<Event<T>>,
        install: &str,
    ) -> bool {
        let is_unknown = match event {
            // `Init` is sent before the first page is requested.
            Ok(Event::Init) => return false,
            Ok(_) => false,
            Err(
                watcher::Error::InitialListFailed(kube::Error::Api(status))
                | watcher::Error::WatchStartFailed(kube::Error::Api(status)),
            ) if status.code == 404 => true,
            // Another error has no information about the kind.
            Err(_) => return false,
        };
        let kind = K::kind(&());
        if self.is_unknown.swap(is_unknown, Ordering::Relaxed) == is_unknown {
            return is_unknown;
        }
        if is_unknown {
            tracing::error!(%kind, "the API server does not know the kind {kind}; install the CRDs: {install}");
        } else {
            tracing::info!(%kind, "the API server knows the kind {kind} now");
        }
        is_unknown
    }
}

#[cfg(test)]
mod tests {
    use super::Definition;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::Status;
    use kube::runtime::watcher::{Error, Event, Result};

    fn response(code: u16) -> Result<Event<ConfigMap>> {
        let status = Status {
            code,
            ..Status::default()
        };
        Err(Error::InitialListFailed(kube::Error::Api(Box::new(status))))
    }

    #[test]
    fn kind_remains_unknown_until_a_list_succeeds() {
        let definition = Definition::default();
        assert!(definition.note::<ConfigMap, _>(&response(404), ""));
        for other in [Ok(Event::Init), response(503)] {
            assert!(!definition.note::<ConfigMap, _>(&other, ""));
            assert!(definition.is_unknown(), "{other:?}");
        }
        assert!(!definition.note::<ConfigMap, _>(&Ok(Event::<ConfigMap>::InitDone), ""));
        assert!(!definition.is_unknown());
        assert!(!definition.note::<ConfigMap, _>(&response(503), ""));
        assert!(!definition.is_unknown());
    }
}
