//! Kinds that the operator may not list or watch in some of the watched namespaces.

use kube::Resource;
use kube::runtime::watcher::{Error, Event, Result};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Kinds that the operator may not list or watch, by namespace.
#[derive(Debug, Default)]
pub struct Forbidden(Mutex<BTreeSet<(String, String)>>);

impl Forbidden {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<(String, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note<K: Resource<DynamicType = ()>>(
        &self,
        namespace: Option<&str>,
        event: &Result<Event<K>>,
    ) {
        let entry = || {
            let kind = K::plural(&()).into_owned();
            (namespace.unwrap_or_default().to_owned(), kind)
        };
        match event {
            Err(error) if is_forbidden(error) => drop(self.lock().insert(entry())),
            // `Init` is sent before the first page is requested.
            Ok(Event::InitDone) => drop(self.lock().remove(&entry())),
            _ => {}
        }
    }

    /// The plural names of the kinds that the operator may not list or watch in that namespace. Its stores have no such objects, so a
    /// controller that needs them must not act on the objects of the namespace.
    #[must_use]
    pub fn kinds(&self, namespace: &str) -> Vec<String> {
        let all = self.lock();
        let of_namespace = all.iter().filter(|(of, _)| of == namespace);
        of_namespace.map(|(_, kind)| kind.clone()).collect()
    }

    /// The number of namespaces with such kinds.
    #[must_use]
    pub fn namespaces(&self) -> usize {
        let all = self.lock();
        all.iter()
            .map(|(namespace, _)| namespace)
            .collect::<BTreeSet<_>>()
            .len()
    }
}

/// Whether the operator may not list or watch the objects.
pub(super) fn is_forbidden(error: &Error) -> bool {
    match error {
        Error::WatchError(status)
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::InitialListFailed(kube::Error::Api(status)) => status.code == 403,
        _ => false,
    }
}
