//! (pure) The display secret.

use super::{Plan, owned};
use crate::api::names;
use k8s_openapi::api::core::v1::Secret;

/// The secret, without its data: the password is random, and made when the secret is.
pub(super) fn build(plan: &Plan) -> Secret {
    let mut metadata = owned(plan, names::display_secret(&plan.name));
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(names::LABEL_COMPONENT.to_owned(), names::COMPONENT_DISPLAY_SECRET.to_owned());
    Secret { metadata, type_: Some("Opaque".to_owned()), ..Secret::default() }
}
