//! (client) Objects that cannot be decoded, for example after a return to an earlier version of the operator. Objects that were stored
//! under another definition can be undecodable; the API server rejects new ones.
//!
//! Each is logged, and an event on it names the field. The leader reports it at once, a standby operator when it becomes the leader.

use crate::k8s::cluster::Cluster;
use crate::k8s::events;
use crate::k8s::key::ObjectKey;
use crate::k8s::watch::{Guarded, NamespacedObject, Namespaces, filter_map, listed_in};
use futures::Stream;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject};
use kube::core::error_boundary::InvalidObject;
use kube::runtime::events::EventType;
use kube::runtime::watcher::{self, Event, Result};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Reason of the event.
const REASON: &str = "Unreadable";

/// The objects of one kind that cannot be decoded.
pub struct Undecodable {
    resource: ApiResource,
    /// Path and problem of the field that cannot be decoded.
    locate: fn(Value) -> Option<String>,
    /// The effect, in the words of the message. None if another controller reports the objects of the kind.
    effect: Option<&'static str>,
    /// Whether this process leads and has reported the objects that it knew then.
    is_leader: AtomicBool,
    objects: Mutex<BTreeMap<ObjectKey, InvalidObject>>,
}

/// The content of a store instead of an object that cannot be decoded.
pub enum StandIn<K> {
    /// The object that this function makes from the metadata.
    Object(fn(ObjectMeta) -> Option<K>),
    /// Nothing: the object counts as deleted. The function makes the object of the deletion, of which only the metadata is used.
    Nothing(fn(ObjectMeta) -> Option<K>),
    /// The last version that could be decoded, if there was one.
    LastVersion,
}

impl Undecodable {
    /// No object yet. `effect` completes the message "Until then …". None if another controller reports and counts the objects.
    #[must_use]
    pub fn new<K: Resource<DynamicType = ()> + DeserializeOwned>(
        effect: Option<&'static str>,
    ) -> Arc<Self> {
        Arc::new(Self {
            resource: ApiResource::erase::<K>(&()),
            // The error of the watch lacks the path of the field.
            locate: |object| {
                let error = serde_path_to_error::deserialize::<_, K>(object).err()?;
                Some(format!("{}: {}", error.path(), error.inner()))
            },
            effect,
            is_leader: AtomicBool::new(false),
            objects: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, InvalidObject>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of objects.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Whether the object with this key cannot be decoded.
    #[must_use]
    pub fn contains(&self, key: &ObjectKey) -> bool {
        self.lock().contains_key(key)
    }

    /// Reports all objects. From now on, each further one is reported at once.
    pub fn report_all(self: &Arc<Self>, cluster: &Cluster) {
        self.is_leader.store(true, Ordering::Relaxed);
        for invalid in self.lock().values() {
            tokio::spawn(self.clone().report(invalid.clone(), cluster.clone()));
        }
    }

    async fn report(self: Arc<Self>, invalid: InvalidObject, cluster: Cluster) {
        let Some(effect) = self.effect else { return };
        let InvalidObject { error, metadata } = invalid;
        let (name, namespace) = (metadata.name.unwrap_or_default(), metadata.namespace);
        let ApiResource {
            kind,
            plural,
            api_version,
            ..
        } = &self.resource;
        let client = cluster.client.clone();
        let api: Api<DynamicObject> = match &namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &self.resource),
            None => Api::all_with(client, &self.resource),
        };
        let live = api.get(&name).await.ok();
        let located = live.and_then(|live| (self.locate)(serde_json::to_value(live).ok()?));
        let problem = located.unwrap_or(error);
        let within = namespace
            .as_deref()
            .map(|namespace| format!(" -n {namespace}"));
        let message = format!(
            "the operator cannot decode this {kind}: {problem}; correct the object (kubectl edit {plural} {name}{}), or apply the \
             definitions of the operator's version ({}). Until then {}",
            within.unwrap_or_default(),
            cluster.install_command(plural),
            effect
        );
        tracing::warn!(%kind, name, "{message}");
        let object = ObjectReference {
            api_version: Some(api_version.clone()),
            kind: Some(kind.clone()),
            name: Some(name),
            namespace,
            uid: metadata.uid,
            ..ObjectReference::default()
        };
        events::publish(&cluster, &object, EventType::Warning, REASON, &message).await;
    }

    fn decode<K: Resource>(
        self: &Arc<Self>,
        Guarded(result): Guarded<K>,
        cluster: &Cluster,
    ) -> std::result::Result<K, Box<ObjectMeta>> {
        let invalid = match result {
            Ok(object) => {
                self.lock().remove(&ObjectKey::of(&object));
                return Ok(object);
            }
            Err(invalid) => invalid,
        };
        let metadata = invalid.metadata.clone();
        if self.is_leader.load(Ordering::Relaxed) {
            tokio::spawn(self.clone().report(invalid.clone(), cluster.clone()));
        }
        if self.effect.is_some() {
            self.lock()
                .insert(ObjectKey::of_metadata(&metadata), invalid);
        } else {
            let (kind, object) = (&self.resource.kind, ObjectKey::of_metadata(&metadata));
            tracing::error!(%kind, %object, error = %invalid.error, "the operator cannot decode this object and ignores its spec and status; correct the field that the error names");
        }
        Err(Box::new(metadata))
    }

    fn decoded<K: Resource>(
        self: &Arc<Self>,
        event: Event<Guarded<K>>,
        stand_in: &StandIn<K>,
        cluster: &Cluster,
    ) -> Option<Event<K>> {
        Some(match event {
            Event::Init => {
                self.lock().clear();
                Event::Init
            }
            Event::InitDone => Event::InitDone,
            Event::InitApply(object) => match (self.decode(object, cluster), stand_in) {
                (Ok(object), _) => Event::InitApply(object),
                (Err(metadata), StandIn::Object(make)) => Event::InitApply(make(*metadata)?),
                (Err(_), StandIn::Nothing(_) | StandIn::LastVersion) => return None,
            },
            Event::Apply(object) => match (self.decode(object, cluster), stand_in) {
                (Ok(object), _) => Event::Apply(object),
                (Err(metadata), StandIn::Object(make)) => Event::Apply(make(*metadata)?),
                (Err(metadata), StandIn::Nothing(make)) => Event::Delete(make(*metadata)?),
                (Err(_), StandIn::LastVersion) => return None,
            },
            Event::Delete(object) => {
                self.lock().remove(&ObjectKey::of(&object));
                match (object.0, stand_in) {
                    (Ok(object), _) => Event::Delete(object),
                    (Err(invalid), StandIn::Object(make) | StandIn::Nothing(make)) => {
                        Event::Delete(make(invalid.metadata)?)
                    }
                    // The next list removes the object from the store.
                    (Err(_), StandIn::LastVersion) => return None,
                }
            }
        })
    }
}

/// Lists and watches the objects of these namespaces, some of which may be impossible to decode.
pub fn decoded_in<K: NamespacedObject>(
    cluster: &Cluster,
    namespaces: &Namespaces,
    config: &watcher::Config,
    undecodable: &Arc<Undecodable>,
    stand_in: StandIn<K>,
) -> impl Stream<Item = Result<Event<K>>> + Send + 'static + use<K> {
    let events = listed_in::<Guarded<K>>(cluster, namespaces, config);
    decoded(cluster, events, undecodable, stand_in)
}

/// The events of a list and its watch, with these stand-ins for objects that cannot be decoded.
pub fn decoded<K: Resource + Send + 'static, S>(
    cluster: &Cluster,
    events: S,
    undecodable: &Arc<Undecodable>,
    stand_in: StandIn<K>,
) -> impl Stream<Item = Result<Event<K>>> + Send + 'static + use<K, S>
where
    S: Stream<Item = Result<Event<Guarded<K>>>> + Send + 'static,
{
    let (undecodable, cluster) = (undecodable.clone(), cluster.clone());
    filter_map(events, move |event| {
        undecodable.decoded(event, &stand_in, &cluster)
    })
}
