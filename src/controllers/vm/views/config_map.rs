//! What matters of VMs' ConfigMaps: of the configuration in them, its hash.

use crate::api::vm::names;
use crate::k8s::store::trim::metadata;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// A ConfigMap: what we put into it is known by its hash.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = ConfigMap)]
pub struct ConfigMapView {
    /// Metadata.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// What we put into it. Keys of others do not matter.
    #[serde(default, rename = "data", deserialize_with = "config_of_data")]
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
    /// What is in each CD drive, if there is something in one.
    pub media: Vec<String>,
}

/// Hash of the configuration in a ConfigMap.
pub type ConfigDigest = [u8; 32];

/// The hash of the configuration in a ConfigMap's data.
#[must_use]
pub fn config_digest(data: &BTreeMap<String, String>) -> ConfigDigest {
    Sha256::digest(
        data.get(names::CONFIG_FILE)
            .map(String::as_str)
            .unwrap_or_default(),
    )
    .into()
}

/// The hash of the logging's configuration in a ConfigMap's data, if there is one.
#[must_use]
pub fn logging_digest(data: &BTreeMap<String, String>) -> Option<ConfigDigest> {
    data.get(names::LOGGING_FILE)
        .map(|text| Sha256::digest(text).into())
}

fn config_of_data<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ConfigView, D::Error> {
    let data: Option<BTreeMap<String, String>> = Deserialize::deserialize(deserializer)?;
    let data = data.unwrap_or_default();
    let references_instance_id = data
        .get(names::CONFIG_FILE)
        .and_then(|text| references_instance_id(text));
    let media = data
        .get(names::CONFIG_FILE)
        .map(|text| media(text))
        .unwrap_or_default();
    Ok(ConfigView {
        digest: config_digest(&data),
        logging: logging_digest(&data),
        references_instance_id,
        media,
    })
}

/// What is in the CD drives, in their order; nothing where all are empty. The reference's file may say a URL, which its
/// runner reads from.
fn media(text: &str) -> Vec<String> {
    // Most VMs have no CD in a drive: their files are not read.
    if !text.contains("ide-cd")
        || !(text.contains(names::IMAGE_REPOSITORY_DIR) || text.contains("://"))
    {
        return Vec::new();
    }
    let file: Option<serde_json::Value> = match text.starts_with('{') {
        true => serde_json::from_str(text).ok(),
        false => serde_saphyr::from_str(text).ok(),
    };
    let drives = file
        .as_ref()
        .and_then(|file| file.pointer("/~1Runner/vm/drives")?.as_array());
    let drives = drives
        .into_iter()
        .flatten()
        .filter(|drive| drive["type"] == "ide-cd");
    let files: Vec<String> = drives
        .map(|drive| drive["file"].as_str().unwrap_or_default().to_owned())
        .collect();
    if files.iter().all(String::is_empty) {
        Vec::new()
    } else {
        files
    }
}

/// The reference writes its file as YAML in blocks, we as JSON.
fn references_instance_id(text: &str) -> Option<String> {
    if text.starts_with('{') {
        return None;
    }
    let file: serde_json::Value = serde_saphyr::from_str(text).ok()?;
    file.pointer("/~1Runner/cloudInit/metaData/instance-id")?
        .as_str()
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn seen(config: &str) -> ConfigView {
        let view: ConfigMapView =
            serde_json::from_value(json!({"metadata": {}, "data": {"config.yaml": config}}))
                .unwrap();
        view.config
    }

    #[test]
    fn what_is_in_the_cd_drives_is_known_whoever_has_written_it() {
        let cd = "/var/local/vmop-image-repository/a.iso";
        let disk = json!({"type": "raw", "resource": "/dev/a"});
        let drives = json!([{"type": "ide-cd", "file": ""}, disk, {"type": "ide-cd", "file": cd}]);
        assert_eq!(
            seen(&json!({"/Runner": {"vm": {"drives": drives}}}).to_string()).media,
            ["", cd]
        );
        let drive = "- type: ide-cd\n      file: https://example.org/a.iso\n      bootindex: 1\n";
        let theirs = format!("\"/Runner\":\n  vm:\n    drives:\n    {drive}");
        assert_eq!(seen(&theirs).media, ["https://example.org/a.iso"]);
    }

    #[test]
    fn drives_without_a_cd_take_no_memory() {
        let disk = json!({"type": "raw", "resource": "/dev/a"});
        for drives in [
            json!([]),
            json!([{"type": "ide-cd", "file": ""}]),
            json!([disk]),
        ] {
            let seed = json!({"userData": {"url": "https://a"}});
            let config =
                json!({"/Runner": {"vm": {"drives": drives}, "cloudInit": seed}}).to_string();
            assert_eq!(seen(&config).media, Vec::<String>::new(), "{drives}");
        }
    }
}
