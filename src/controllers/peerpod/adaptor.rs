//! (pure) The configuration of the cloud-api-adaptor: its ConfigMap and its Secret.

use crate::api::peerpod::names;
use std::collections::BTreeMap;

/// The keys of both objects. Those of the Secret replace those of the ConfigMap. An empty value is no value.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct AdaptorConfig {
    values: BTreeMap<String, String>,
    config_map: String,
    secret: String,
}

impl AdaptorConfig {
    /// The configuration in objects with these names.
    pub fn new(
        config_map: (&str, BTreeMap<String, String>),
        secret: (&str, BTreeMap<String, String>),
    ) -> Self {
        let ((config_map, mut values), (secret, of_secret)) = (config_map, secret);
        values.extend(of_secret);
        values.retain(|_, value| !value.is_empty());
        Self {
            values,
            config_map: config_map.to_owned(),
            secret: secret.to_owned(),
        }
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// Whether the adaptor retains instances.
    pub fn is_developer_mode(&self) -> bool {
        self.get(names::KEY_DEVELOPER_MODE) == Some("true")
    }

    /// Whether the adaptor creates instances of EC2.
    pub fn uses_aws(&self) -> bool {
        match self.get(names::KEY_PROVIDER) {
            Some(provider) => provider == names::PROVIDER_AWS,
            None => self.get(names::KEY_REGION).is_some(),
        }
    }

    /// The names of the objects, for messages.
    pub fn names(&self) -> String {
        format!("Secret {} or ConfigMap {}", self.secret, self.config_map)
    }
}
