//! (pure) The facts that the decision about a `PeerPod` depends on.

use crate::api::PeerPod;
use crate::api::peerpod::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};

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
    /// Another `PeerPod` with an older claim on the same instance, as `namespace/name`.
    pub older_claim: Option<String>,
}

/// The note about an instance that the controller has seen: the value of an annotation. Others can write it, so it never proves that something may be
/// deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Where it was seen, for example account and region.
    pub place: String,
    /// Its name.
    pub name: String,
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

impl Facts {
    /// The facts about the `PeerPod`. `all` are those of all watched namespaces.
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
        } else if is_same_instance && claim(other) < claim(peerpod) {
            let namespace = other.namespace().unwrap_or_default();
            let other = format!("{namespace}/{}", other.name_any());
            let known = self.older_claim.take();
            self.older_claim = known.into_iter().chain([other]).min();
        }
    }
}

/// The order of claims on an instance: the oldest has it.
fn claim(peerpod: &PeerPod) -> impl Ord {
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
