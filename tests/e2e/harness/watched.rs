//! The complete history of the objects of one kind in a namespace, from a watch.

use futures::StreamExt;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use kube::{Client, Resource};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::JoinHandle;

/// A state of an object.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The time of the event.
    pub at: Timestamp,
    pub object: Value,
}

#[derive(Default)]
struct State {
    now: BTreeMap<String, Value>,
    states: Vec<Seen>,
}

/// The objects of a kind. Dropping it stops the watch.
pub struct Watched {
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl Watched {
    /// Starts to watch.
    pub fn new<K: Resource<DynamicType = ()>>(client: &Client, namespace: &str) -> Self {
        let api = Api::<DynamicObject>::namespaced_with(
            client.clone(),
            namespace,
            &ApiResource::erase::<K>(&()),
        );
        let state = Arc::new(Mutex::new(State::default()));
        let into = state.clone();
        let task = tokio::spawn(async move {
            let mut events =
                std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
            while let Some(event) = events.next().await {
                match event {
                    Ok(event) => into
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .take(event),
                    Err(error) => eprintln!("watching {}: {error}", K::plural(&())),
                }
            }
        });
        Self { state, task }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object with that name, if it exists.
    pub fn get(&self, name: &str) -> Option<Value> {
        self.state().now.get(name).cloned()
    }

    /// The present objects.
    pub fn all(&self) -> Vec<Value> {
        self.state().now.values().cloned().collect()
    }

    /// All states of the objects with that name.
    pub fn history(&self, name: &str) -> Vec<Seen> {
        let state = self.state();
        state
            .states
            .iter()
            .filter(|seen| seen.object["metadata"]["name"] == name)
            .cloned()
            .collect()
    }

    /// Names of all objects so far, by their UIDs.
    pub fn names_by_uid(&self) -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let named = |seen: &Seen| {
            (
                text(&seen.object["metadata"]["uid"]),
                text(&seen.object["metadata"]["name"]),
            )
        };
        self.state().states.iter().map(named).collect()
    }

    /// UIDs of all objects so far with that name, in order.
    pub fn uids(&self, name: &str) -> Vec<String> {
        let mut uids: Vec<String> = Vec::new();
        for seen in self.history(name) {
            let uid = seen.object["metadata"]["uid"].as_str().unwrap_or_default();
            if !uids.iter().any(|known| known == uid) {
                uids.push(uid.to_owned());
            }
        }
        uids
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    fn take(&mut self, event: Event<DynamicObject>) {
        let json = |object: &DynamicObject| serde_json::to_value(object).unwrap_or_default();
        let name = |object: &DynamicObject| object.metadata.name.clone().unwrap_or_default();
        match event {
            Event::Init => self.now.clear(),
            Event::InitDone => {}
            Event::Apply(object) | Event::InitApply(object) => {
                self.states.push(Seen {
                    at: Timestamp::now(),
                    object: json(&object),
                });
                self.now.insert(name(&object), json(&object));
            }
            Event::Delete(object) => {
                self.now.remove(&name(&object));
            }
        }
    }
}
