//! (pure) The facts that the decision about a `PeerPod` depends on.

use crate::api::PeerPod;
use crate::api::peerpod::names;
use crate::k8s::key::ObjectKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use serde::{Deserialize, Serialize};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

/// A `PeerPod` with its relations to others.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Whether it has the finalizer of the cloud-api-adaptor.
    pub has_finalizer: bool,
    /// Whether it is being deleted.
    pub is_ending: bool,
    /// Name of the provider.
    pub provider: String,
    /// Identifier of the instance.
    pub instance: String,
    /// The identifier of the instance that a person has abandoned.
    pub abandoned: Option<String>,
    /// The note that the controller has seen the instance.
    pub seen: Option<Seen>,
    /// The pod that owns it.
    pub owner: Option<Owner>,
    /// A younger `PeerPod` of the same pod.
    pub younger: Option<Younger>,
    /// An older `PeerPod` with the same instance, as `namespace/name`.
    pub older_peerpod: Option<String>,
}

/// The note about an instance that the controller has seen: the value of an annotation. Others can write it, so it never proves that something may be
/// deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Where it was seen, for example account and region.
    pub place: String,
    /// Its name.
    pub name: String,
    /// Its volumes, which its deletion does not delete: `<pool>/<volume>`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<String>,
}

/// The pod that owns a `PeerPod`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Namespace of both.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
}

/// A younger `PeerPod` of the same pod: the adaptor has started the pod again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Younger {
    /// It names the same instance, which stays.
    SameInstance,
    /// It names another instance.
    OtherInstance,
}

/// The keys of `PeerPods` by their pod and by their instance, so that the relations of one are found without a look at all others. Keys can be out
/// of date, so [`Facts::of`] compares the objects.
#[derive(Debug, Default)]
pub struct Relations(Mutex<Index>);

#[derive(Debug, Default)]
struct Index {
    now: HashMap<String, Vec<ObjectKey>>,
    /// Those of a list, until its end.
    listed: HashMap<String, Vec<ObjectKey>>,
}

impl Relations {
    /// Applies a watch event, before the store does.
    pub fn watched(&self, event: &Event<PeerPod>) {
        let mut index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Apply(object) => add(&mut index.now, object),
            Event::Delete(object) => remove(&mut index.now, object),
            Event::Init => index.listed.clear(),
            Event::InitApply(object) => {
                add(&mut index.listed, object);
                add(&mut index.now, object);
            }
            Event::InitDone => index.now = std::mem::take(&mut index.listed),
        }
    }

    /// The keys of the `PeerPods` of the same pod or with the same instance, and its own.
    pub fn of(&self, peerpod: &PeerPod) -> BTreeSet<ObjectKey> {
        let index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = relations(peerpod).into_iter().flatten();
        let keys = keys.filter_map(|relation| index.now.get(&relation));
        keys.flatten().cloned().collect()
    }
}

fn relations(peerpod: &PeerPod) -> [Option<String>; 2] {
    let instance = &peerpod.spec.instance_id;
    [
        owner(peerpod).map(|owner| format!("pod {}", owner.uid)),
        (!instance.is_empty()).then(|| format!("instance {instance}")),
    ]
}

fn add(index: &mut HashMap<String, Vec<ObjectKey>>, peerpod: &PeerPod) {
    let key = ObjectKey::of(peerpod);
    for relation in relations(peerpod).into_iter().flatten() {
        let keys = index.entry(relation).or_default();
        if !keys.contains(&key) {
            keys.push(key.clone());
        }
    }
}

fn remove(index: &mut HashMap<String, Vec<ObjectKey>>, peerpod: &PeerPod) {
    let key = ObjectKey::of(peerpod);
    for relation in relations(peerpod).into_iter().flatten() {
        if let Entry::Occupied(mut entry) = index.entry(relation) {
            entry.get_mut().retain(|other| *other != key);
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }
}

impl Facts {
    /// The facts about the `PeerPod`. `all` are at least those of its [`Relations`].
    #[must_use]
    pub fn of<'a>(peerpod: &PeerPod, all: impl Iterator<Item = &'a PeerPod>) -> Self {
        let annotation = |name| peerpod.annotations().get(name);
        let seen = annotation(names::ANNOTATION_SEEN);
        let mut facts = Self {
            has_finalizer: has_finalizer(peerpod),
            is_ending: peerpod.metadata.deletion_timestamp.is_some(),
            provider: peerpod.spec.cloud_provider.clone(),
            instance: peerpod.spec.instance_id.clone(),
            abandoned: annotation(names::ANNOTATION_ABANDON).cloned(),
            seen: seen.and_then(|text| serde_json::from_str(text).ok()),
            owner: owner(peerpod),
            ..Self::default()
        };
        for other in all.filter(|other| other.uid() != peerpod.uid() && has_finalizer(other)) {
            facts.compare(peerpod, other);
        }
        facts
    }

    fn compare(&mut self, peerpod: &PeerPod, other: &PeerPod) {
        let is_same_instance = peerpod.spec == other.spec && !peerpod.spec.instance_id.is_empty();
        let is_same_pod = self.owner.is_some() && self.owner == owner(other);
        // Within a second, the order is unknown, and both remain.
        let is_younger = other.creation_timestamp() > peerpod.creation_timestamp();
        if is_same_pod {
            let found = match is_same_instance {
                true => Younger::SameInstance,
                false => Younger::OtherInstance,
            };
            if is_younger && self.younger != Some(Younger::SameInstance) {
                self.younger = Some(found);
            }
        } else if is_same_instance && creation_order(other) < creation_order(peerpod) {
            let namespace = other.namespace().unwrap_or_default();
            let other = format!("{namespace}/{}", other.name_any());
            let known = self.older_peerpod.take();
            self.older_peerpod = known.into_iter().chain([other]).min();
        }
    }
}

/// The order of `PeerPods` with the same instance: the oldest owns it.
fn creation_order(peerpod: &PeerPod) -> impl Ord {
    let created = peerpod.creation_timestamp().map(|time| time.0);
    (created, peerpod.namespace(), peerpod.name_any())
}

fn has_finalizer(peerpod: &PeerPod) -> bool {
    let finalizers = peerpod.finalizers();
    finalizers.iter().any(|it| it == names::FINALIZER)
}

/// The pod that owns the `PeerPod`.
pub fn owner(peerpod: &PeerPod) -> Option<Owner> {
    let is_pod = |owner: &&OwnerReference| owner.kind == "Pod" && owner.api_version == "v1";
    let pod = peerpod.owner_references().iter().find(is_pod)?;
    Some(Owner {
        namespace: peerpod.namespace()?,
        name: pod.name.clone(),
        uid: pod.uid.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn peerpod(name: &str, pod: &str, instance: &str) -> PeerPod {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod});
        let object = json!({
            "metadata": {"name": name, "namespace": "n", "ownerReferences": [owner]},
            "spec": {"instanceID": instance},
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn relations_are_those_of_the_pod_and_of_the_instance() {
        let (a, b) = (peerpod("a", "p", "i-1"), peerpod("b", "p", ""));
        let (c, d) = (peerpod("c", "q", "i-1"), peerpod("d", "r", ""));
        let relations = Relations::default();
        let related = |to: &PeerPod| -> Vec<String> {
            relations
                .of(to)
                .iter()
                .map(|key| key.name().to_owned())
                .collect()
        };
        relations.watched(&Event::Init);
        relations.watched(&Event::InitApply(a.clone()));
        relations.watched(&Event::InitApply(b.clone()));
        relations.watched(&Event::InitDone);
        relations.watched(&Event::Apply(c.clone()));
        relations.watched(&Event::Apply(d.clone()));
        assert_eq!(related(&a), ["a", "b", "c"]);
        assert_eq!(
            (related(&b), related(&d)),
            (vec!["a".to_owned(), "b".to_owned()], vec!["d".to_owned()])
        );
        relations.watched(&Event::Delete(b));
        assert_eq!(related(&a), ["a", "c"]);
        // Until the end of a list, the former objects count too.
        relations.watched(&Event::Init);
        relations.watched(&Event::InitApply(a.clone()));
        assert_eq!(related(&a), ["a", "c"]);
        relations.watched(&Event::InitDone);
        assert_eq!(related(&a), ["a"]);
    }
}
