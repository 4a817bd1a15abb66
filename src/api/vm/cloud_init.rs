//! `spec.cloudInit`: the seed for cloud-init in the guest.

use crate::api::vm::any_object;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Seed for cloud-init.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CloudInit {
    /// `meta-data`. `instance-id` and `local-hostname` are added where they are missing. The added `instance-id` changes
    /// when something in `cloudInit` does, and only then: cloud-init runs anew at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta_data: Option<BTreeMap<String, String>>,
    /// `user-data`, as a `#cloud-config` document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub user_data: Option<Map<String, Value>>,
    /// `user-data` from a secret, as it is: with its first line (`#cloud-config`, `#!/bin/sh`). For what not everybody
    /// who may read the VM should see. A later change of the secret's content is no change of `cloudInit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data_from: Option<SeedSource>,
    /// `network-config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub network_config: Option<Map<String, Value>>,
    /// `network-config` from a secret, as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_config_from: Option<SeedSource>,
}

/// Where a part of the seed comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeedSource {
    /// A key of a secret. The VM does not start before both are there.
    pub secret_key_ref: SecretKeyRef,
}

/// A key of a secret in the VM's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the secret.
    pub name: String,
    /// The key.
    pub key: String,
}
