//! Values in the environment of a VM's pod by which the runner recognizes copies of volumes, and generated values.
//!
//! The operator knows them when it creates the pod. They are not in the configuration file, because a new version of the operator
//! would then write the ConfigMap of each running VM.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The value of [`ENV_IDENTITY`](crate::api::vm::names::ENV_IDENTITY), as JSON. All fields are optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodIdentity {
    /// PVCs of the disks, by the path of the disk in the pod.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub claims: BTreeMap<String, ClaimIdentity>,
    /// Name of the PVC of the runner data, if an earlier start of the VM has written to it. Default: unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_runner_data: Option<String>,
    /// Secret and key of the user data, in the words of messages. Default: the user data are in the configuration file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data_source: Option<String>,
    /// The `instance-id` in the configuration file, if the operator has generated it. Default: the user has configured it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generated_instance: Option<GeneratedInstance>,
}

/// A generated `instance-id` for cloud-init.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GeneratedInstance {
    /// The `instance-id`, which follows the UID of the VM.
    pub id: String,
    /// Hash of `spec.cloudInit`.
    pub content: String,
}

/// The PVC of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaimIdentity {
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`, which differs between a PVC and its copy.
    pub uid: String,
    /// Whether an image was imported onto the disk, so that its image file exists before the first start.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub imported: bool,
    /// Whether the user allows an import to overwrite contents of the block device that the record of the VM does not know.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub may_overwrite: bool,
    /// Whether the PVC has a `dataSource`, so that the disk has contents before the first start.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cloned: bool,
}
