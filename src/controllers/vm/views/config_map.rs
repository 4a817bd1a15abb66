//! The projection of a VM's ConfigMap: the hashes of its files, and the values that the operator reads from the runner's configuration.

use crate::api::logging;
use crate::api::quantity::Bytes;
use crate::api::vm::names;
use crate::k8s::store::trim::{ChildMetadata, packed_texts};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Resource;
use serde::{Deserialize, Deserializer};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// A ConfigMap.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = ConfigMap)]
#[allow(missing_docs)]
pub struct ConfigMapView {
    pub metadata: ChildMetadata,
    /// The keys that the operator writes.
    #[serde(default, rename = "data", deserialize_with = "config_of_data")]
    pub config: ConfigView,
}

packed_texts!(ConfigMapView);

/// The runner's configuration.
#[derive(Clone, Debug, Default)]
pub struct ConfigView {
    /// Hash of the configuration file.
    pub digest: ConfigDigest,
    /// Hash of the logging properties, if they exist.
    pub logging: Option<ConfigDigest>,
    /// The cloud-init `instance-id` that the Java VM-Operator has written.
    pub java_instance_id: Option<String>,
    /// The file of each CD drive; empty if all drives are empty.
    pub media: Vec<String>,
    /// The memory that the balloon leaves to the guest, if this operator has written the configuration.
    pub current_ram: Option<Bytes>,
}

/// A SHA-256 hash.
pub type ConfigDigest = [u8; 32];

/// The hash of the configuration file in a ConfigMap's data.
#[must_use]
pub fn config_digest(data: &BTreeMap<String, String>) -> ConfigDigest {
    Sha256::digest(
        data.get(names::CONFIG_FILE)
            .map(String::as_str)
            .unwrap_or_default(),
    )
    .into()
}

/// The hash of the logging properties in a ConfigMap's data, if they exist.
#[must_use]
pub fn logging_digest(data: &BTreeMap<String, String>) -> Option<ConfigDigest> {
    data.get(logging::FILE)
        .map(|text| Sha256::digest(text).into())
}

fn config_of_data<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ConfigView, D::Error> {
    let data: Option<BTreeMap<String, String>> = Deserialize::deserialize(deserializer)?;
    let data = data.unwrap_or_default();
    let java_instance_id = data
        .get(names::CONFIG_FILE)
        .and_then(|text| java_instance_id(text));
    let media = data
        .get(names::CONFIG_FILE)
        .map(|text| media(text))
        .unwrap_or_default();
    let current_ram = data
        .get(names::CONFIG_FILE)
        .and_then(|text| current_ram(text));
    Ok(ConfigView {
        digest: config_digest(&data),
        logging: logging_digest(&data),
        java_instance_id,
        media,
        current_ram,
    })
}

/// The memory that the balloon leaves to the guest. Pods of the Java VM-Operator, which writes block YAML, do not need it.
fn current_ram(text: &str) -> Option<Bytes> {
    if !text.starts_with('{') || !text.contains("\"currentRam\"") {
        return None;
    }
    let file: serde_json::Value = serde_json::from_str(text).ok()?;
    let size = file.pointer("/~1Runner/vm/currentRam")?;
    size.as_str()?.parse().ok()
}

/// The files of the CD drives, in the order of the drives; empty if all drives are empty. The Java VM-Operator may have written a URL,
/// from which its runner reads.
fn media(text: &str) -> Vec<String> {
    // Most VMs have no CD image. Their configuration is not parsed.
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

/// The Java VM-Operator writes block YAML, this operator JSON.
fn java_instance_id(text: &str) -> Option<String> {
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

    fn decoded(config: &str) -> ConfigView {
        let view: ConfigMapView =
            serde_json::from_value(json!({"metadata": {}, "data": {"config.yaml": config}}))
                .unwrap();
        view.config
    }

    #[test]
    fn cd_images_are_decoded_from_json_and_from_java_yaml() {
        let cd = "/var/local/vmop-image-repository/a.iso";
        let disk = json!({"type": "raw", "resource": "/dev/a"});
        let drives = json!([{"type": "ide-cd", "file": ""}, disk, {"type": "ide-cd", "file": cd}]);
        assert_eq!(
            decoded(&json!({"/Runner": {"vm": {"drives": drives}}}).to_string()).media,
            ["", cd]
        );
        let drive = "- type: ide-cd\n      file: https://example.org/a.iso\n      bootindex: 1\n";
        let yaml = format!("\"/Runner\":\n  vm:\n    drives:\n    {drive}");
        assert_eq!(decoded(&yaml).media, ["https://example.org/a.iso"]);
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
            assert_eq!(decoded(&config).media, Vec::<String>::new(), "{drives}");
        }
    }
}
