//! `spec.cloudInit`: data for cloud-init in the guest.

use crate::api::vm::any_object;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Data for cloud-init, in the format of the NoCloud data source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloudInit {
    /// Content of cloud-init's `meta-data`. The operator adds `instance-id` and `local-hostname` if they are missing. The added
    /// `instance-id` changes only with the content of `cloudInit`. After such a change, cloud-init configures the guest again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta_data: Option<BTreeMap<String, String>>,
    /// Content of cloud-init's `user-data`, as a `#cloud-config` document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub user_data: Option<Map<String, Value>>,
    /// Secret with the content of `user-data`, for confidential data. The first line must name the format, such as
    /// `#cloud-config` or `#!/bin/sh`. A change of the Secret does not change `instance-id`, so cloud-init does not configure
    /// the guest again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data_from: Option<SeedSource>,
    /// Content of cloud-init's `network-config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub network_config: Option<Map<String, Value>>,
    /// Secret with the content of `network-config`. A change of the Secret does not change `instance-id`, so cloud-init does
    /// not configure the guest again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_config_from: Option<SeedSource>,
}

/// Source of a part of the cloud-init data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeedSource {
    /// Secret and key with the data for cloud-init. The VM does not start until the Secret contains the key.
    pub secret_key_ref: SecretKeyRef,
}

/// Key of a Secret in the VM's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    pub name: String,
    /// Key in the Secret.
    pub key: String,
}
