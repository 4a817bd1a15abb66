//! (pure) The runner's configuration.

use super::{Plan, owned};
use crate::api::names;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The ConfigMap. It has no annotation with the operator's version: an upgrade of the operator would rewrite it for
/// every VM.
pub(super) fn build(plan: &Plan) -> ConfigMap {
    // Serializing plain data into a string cannot fail.
    let kept = plan.kept_instance.as_ref().map(|kept| serde_json::to_string(kept).unwrap_or_default());
    let annotations = kept.map(|kept| [(names::ANNOTATION_INSTANCE_ID.to_owned(), kept)].into());
    // The runner reads the level in its own file; this one is for those who look for it where the reference has it.
    let logging = plan.logging_properties.clone().map(|text| (names::LOGGING_FILE.to_owned(), text));
    ConfigMap {
        metadata: ObjectMeta { annotations, ..owned(plan, plan.name.clone()) },
        data: Some([(names::CONFIG_FILE.to_owned(), plan.config_file.clone())].into_iter().chain(logging).collect()),
        ..ConfigMap::default()
    }
}
