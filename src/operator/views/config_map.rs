//! What matters of VMs' ConfigMaps: of the configuration in them, its hash.

use crate::api::names;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// A ConfigMap: what we put into it is known by its hash.
#[derive(Clone, Debug, Default, Resource, Serialize, Deserialize)]
#[resource(inherit = ConfigMap)]
pub struct ConfigMapView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What we put into it. Keys of others do not matter.
    #[serde(default, rename = "data", serialize_with = "data_of_config", deserialize_with = "config_of_data")]
    pub config: ConfigView,
}

/// What matters of a runner's configuration.
#[derive(Clone, Debug, Default)]
pub struct ConfigView {
    /// Its hash.
    pub digest: ConfigDigest,
    /// Hash of the logging's configuration beside it, if there is one.
    pub logging: Option<ConfigDigest>,
    /// The `instance-id` in it, if the reference has written it.
    pub references_instance_id: Option<String>,
}

/// Hash of the configuration in a ConfigMap.
pub type ConfigDigest = [u8; 32];

/// The hash of the configuration in a ConfigMap's data.
#[must_use]
pub fn config_digest(data: &BTreeMap<String, String>) -> ConfigDigest {
    Sha256::digest(data.get(names::CONFIG_FILE).map(String::as_str).unwrap_or_default()).into()
}

/// The hash of the logging's configuration in a ConfigMap's data, if there is one.
#[must_use]
pub fn logging_digest(data: &BTreeMap<String, String>) -> Option<ConfigDigest> {
    data.get(names::LOGGING_FILE).map(|text| Sha256::digest(text).into())
}

/// Keys of a [`ConfigView`] that is kept. A ConfigMap cannot have them: its keys have no slash.
mod kept {
    pub const DIGEST: &str = "/digest";
    pub const LOGGING: &str = "/logging";
    pub const INSTANCE_ID: &str = "/instance-id";
}

fn data_of_config<S: Serializer>(config: &ConfigView, serializer: S) -> Result<S::Ok, S::Error> {
    let logging = config.logging.as_ref().map(|digest| (kept::LOGGING, hex(digest)));
    let id = config.references_instance_id.clone().map(|id| (kept::INSTANCE_ID, id));
    serializer.collect_map([(kept::DIGEST, hex(&config.digest))].into_iter().chain(logging).chain(id))
}

fn config_of_data<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ConfigView, D::Error> {
    let data: Option<BTreeMap<String, String>> = Deserialize::deserialize(deserializer)?;
    let data = data.unwrap_or_default();
    if let Some(digest) = data.get(kept::DIGEST) {
        return Ok(ConfigView {
            digest: of_hex(digest).ok_or_else(|| serde::de::Error::custom("no digest"))?,
            logging: data.get(kept::LOGGING).and_then(|digest| of_hex(digest)),
            references_instance_id: data.get(kept::INSTANCE_ID).cloned(),
        });
    }
    let references_instance_id = data.get(names::CONFIG_FILE).and_then(|text| references_instance_id(text));
    Ok(ConfigView { digest: config_digest(&data), logging: logging_digest(&data), references_instance_id })
}

fn hex(digest: &ConfigDigest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn of_hex(hex: &str) -> Option<ConfigDigest> {
    let byte = |at: usize| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..hex.len() / 2).map(byte).collect();
    bytes?.try_into().ok()
}

/// The reference writes its file as YAML in blocks, we as JSON.
fn references_instance_id(text: &str) -> Option<String> {
    if text.starts_with('{') {
        return None;
    }
    let file: serde_json::Value = serde_saphyr::from_str(text).ok()?;
    file.pointer("/~1Runner/cloudInit/metaData/instance-id")?.as_str().map(str::to_owned)
}
