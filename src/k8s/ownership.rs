//! (pure) Whether an object belongs to its primary object, or to a previous one with the same name.

use crate::k8s::error::Error;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

/// Checks that the owner may use and write the object: the object is the owner's (`is_own`), and no other object controls it, because an
/// object has one controller. `other` is the other owner in the words of messages, if it is known.
///
/// # Errors
/// If another object or a previous owner with the same name owns it.
pub fn check_owner<K: Resource, O: Resource<DynamicType = ()>>(
    kind: &'static str,
    object: &K,
    is_own: bool,
    owner: &O,
    other: impl FnOnce() -> Option<String>,
) -> Result<(), Error> {
    let name = object.name_any();
    let controls = |reference: &OwnerReference| {
        reference.controller == Some(true) && Some(&reference.uid) != owner.meta().uid.as_ref()
    };
    if is_own && !object.owner_references().iter().any(controls) {
        return Ok(());
    }
    let next = removal_of_orphan(object, owner)
        .filter(|_| is_own && is_controlled_by_previous(object, owner));
    match next {
        Some(next) => Err(Error::OwnedByPrevious { kind, name, next }),
        None => Err(Error::OwnedByOther {
            kind,
            owner: other(),
            name,
        }),
    }
}

/// Whether the object has an owner reference to this owner.
#[must_use]
pub fn owns<K: Resource, O: Resource>(owner: &O, object: &K) -> bool {
    let uid = owner.meta().uid.as_ref();
    let mut references = object.owner_references().iter();
    references.any(|reference| Some(&reference.uid) == uid)
}

/// Whether a previous owner with the same name controls the object. The garbage collector will delete it.
#[must_use]
pub fn is_controlled_by_previous<K: Resource, O: Resource<DynamicType = ()>>(
    object: &K,
    owner: &O,
) -> bool {
    object
        .owner_references()
        .iter()
        .any(|reference| reference.controller == Some(true) && is_previous(reference, owner))
}

/// Whether the reference is to a previous object with the name of this owner. A newer one that the watch has not reported yet looks the
/// same.
#[must_use]
pub fn is_previous<O: Resource<DynamicType = ()>>(reference: &OwnerReference, owner: &O) -> bool {
    let is_same_kind = reference.kind == O::kind(&())
        && reference.api_version.split('/').next() == Some(&*O::group(&()));
    is_same_kind
        && Some(&reference.name) == owner.meta().name.as_ref()
        && Some(&reference.uid) != owner.meta().uid.as_ref()
}

/// The removal of an object that a previous owner with the same name controls: it is in progress, or the operator will do it.
#[must_use]
pub fn removal_of_orphan<K: Resource, O: Resource<DynamicType = ()>>(
    object: &K,
    owner: &O,
) -> Option<String> {
    match (
        object.meta().deletion_timestamp.is_some(),
        object.finalizers(),
    ) {
        (true, []) => Some("the object is being deleted".to_owned()),
        (true, finalizers) => Some(format!(
            "the object is being deleted, but its finalizers delay the deletion: {}. Check the controllers that remove these \
             finalizers",
            finalizers.join(", ")
        )),
        (false, _) => {
            is_orphan(object, owner).then(|| "the operator deletes the object".to_owned())
        }
    }
}

/// Whether all owners of the object are previous ones with the name of this owner, and it is not being deleted.
#[must_use]
pub fn is_orphan<K: Resource, O: Resource<DynamicType = ()>>(object: &K, owner: &O) -> bool {
    let owners = object.owner_references();
    let is_orphan =
        !owners.is_empty() && owners.iter().all(|reference| is_previous(reference, owner));
    is_orphan && object.meta().deletion_timestamp.is_none()
}
