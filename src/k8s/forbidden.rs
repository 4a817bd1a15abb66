//! Kinds that the operator may not list or watch in some of the watched namespaces.

use kube::runtime::watcher::{Error, Event, Result};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Kinds that the operator may not list or watch, by namespace.
#[derive(Debug, Default)]
pub struct Forbidden(Mutex<BTreeSet<(String, String)>>);

impl Forbidden {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<(String, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The notes of a watch of the kind with that plural name.
    pub(super) fn of_kind(self: &Arc<Self>, plural: &str) -> ForbiddenKind {
        ForbiddenKind {
            forbidden: self.clone(),
            plural: plural.into(),
            allowed: Arc::default(),
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

/// The notes of the watch of one kind in several namespaces. Clones share them.
#[derive(Clone)]
pub(super) struct ForbiddenKind {
    forbidden: Arc<Forbidden>,
    plural: Arc<str>,
    /// Namespaces with a complete list. The store has it when the lists of all namespaces are complete.
    allowed: Arc<Mutex<BTreeSet<String>>>,
}

impl ForbiddenKind {
    fn allowed(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.allowed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event of the list or watch in that namespace.
    pub(super) fn note<K>(&self, namespace: Option<&str>, event: &Result<Event<K>>) {
        let namespace = namespace.unwrap_or_default().to_owned();
        match event {
            Err(error) if is_forbidden(error) => {
                self.allowed().remove(&namespace);
                let kind = self.plural.to_string();
                self.forbidden.lock().insert((namespace, kind));
            }
            // `Init` is sent before the first page is requested.
            Ok(Event::InitDone) => drop(self.allowed().insert(namespace)),
            _ => {}
        }
    }

    /// Records that the lists of all namespaces are complete.
    pub(super) fn listed(&self) {
        let allowed = self.allowed();
        let is_other = |(namespace, kind): &(String, String)| {
            **kind != *self.plural || !allowed.contains(namespace)
        };
        self.forbidden.lock().retain(is_other);
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
