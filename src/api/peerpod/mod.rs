//! The kind `PeerPod` (`peerpods.confidentialcontainers.org`): the cloud instance of a pod of confidential containers.
//!
//! The cloud-api-adaptor creates an instance for a pod and records it in a `PeerPod`, which the pod owns. If the adaptor has not deleted the
//! instance at the end of the pod, the controller deletes it. The project confidential-containers defines the kind. Objects of its
//! adaptor work unchanged; the status and the columns are additions.

#![allow(
    clippy::duplicated_attributes,
    reason = "each printer column repeats the names of its parts"
)]

mod instance;
pub mod names;

pub use instance::{
    AwsId, LibvirtUuid, VirtualMachineId, instance_name_prefix, is_instance_name, pod_part,
};

use crate::api::conditions::Reason;
use crate::api::vm::without_nulls;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, ValidationRule,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// Condition type: false while the instance cannot be deleted, or is not deleted yet.
pub const READY: &str = "Ready";

/// The instance. The cloud-api-adaptor writes both fields with the object and never changes them.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "confidentialcontainers.org",
    version = "v1alpha1",
    kind = "PeerPod",
    plural = "peerpods",
    singular = "peerpod",
    namespaced,
    status = "PeerPodStatus",
    derive = "PartialEq",
    doc = "The cloud instance of a pod of confidential containers. It is deleted with the pod.",
    printcolumn(
        name = "Cloud Provider",
        type_ = "string",
        json_path = ".spec.cloudProvider"
    ),
    printcolumn(name = "Instance ID", type_ = "string", json_path = ".spec.instanceID"),
    printcolumn(
        name = "Pod",
        type_ = "string",
        json_path = ".metadata.ownerReferences[0].name",
        description = "The pod that the instance belongs to"
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        description = "Reason of the condition Ready; empty while the pod runs without a problem"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(default, from = "Option<SpecFields>")]
#[schemars(!from)]
pub struct PeerPodSpec {
    /// Name of the provider of the instance, for example `aws`.
    #[serde(rename = "cloudProvider")]
    pub cloud_provider: String,
    /// Identifier of the instance at its provider. If it is empty, there is no instance to delete.
    #[serde(rename = "instanceID")]
    pub instance_id: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SpecFields {
    #[serde(rename = "cloudProvider")]
    cloud_provider: String,
    #[serde(rename = "instanceID")]
    instance_id: String,
}

impl From<Option<SpecFields>> for PeerPodSpec {
    /// The original definition admits objects without a spec, which name no instance.
    fn from(fields: Option<SpecFields>) -> Self {
        let fields = fields.unwrap_or_default();
        Self {
            cloud_provider: fields.cloud_provider,
            instance_id: fields.instance_id,
        }
    }
}

/// The state of the deletion.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerPodStatus {
    /// Part of the original definition. Nothing writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cleand: Option<bool>,
    /// The condition `Ready`.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Reasons of the condition `Ready`. It is false with each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
pub enum PeerPodReason {
    /// The pod has not ended.
    WaitingForPod,
    /// The cloud-api-adaptor has 10 s to delete the instance.
    WaitingForAdaptor,
    /// The instance is being deleted.
    Deleting,
    /// Nothing proves that the instance belongs to the pod, or another `PeerPod` has it.
    InstanceNotOurs,
    /// The identifier of the instance is malformed.
    InstanceIDInvalid,
    /// The controller does not know the provider.
    ProviderNotSupported,
    /// The configuration or a definition that the deletion needs is missing.
    ConfigMissing,
    /// A value of the configuration is wrong.
    ConfigInvalid,
    /// The provider denies the controller access to the instance.
    PermissionDenied,
    /// The configuration of the cloud-api-adaptor retains instances.
    DeveloperMode,
    /// The provider does not have the instance, and the controller has never seen it.
    InstanceNeverSeen,
    /// The controller has seen the instance in another account or region than the configured one.
    ScopeChanged,
    /// The provider protects the instance against its deletion.
    InstanceProtected,
    /// The provider rejects the credentials.
    CredentialsRejected,
    /// The provider accepts no more calls for some time.
    Throttled,
    /// The provider does not answer.
    ProviderUnreachable,
    /// The provider answers unexpectedly.
    DeletionFailed,
}

impl Reason for PeerPodReason {
    fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The definition, as it is in `crds/peerpod/`.
#[must_use]
pub fn crd() -> CustomResourceDefinition {
    let mut crd = PeerPod::crd();
    let versions = crd.spec.versions.iter_mut();
    for root in versions.filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut())
    {
        without_nulls(root);
        let Some(spec) = root
            .properties
            .as_mut()
            .and_then(|fields| fields.get_mut("spec"))
        else {
            continue;
        };
        let unchanged = |field: &str| ValidationRule {
            rule: format!(
                "!has(oldSelf.{field}) || oldSelf.{field} == '' || (has(self.{field}) && self.{field} == oldSelf.{field})"
            ),
            message: Some(format!(
                "{field} cannot be changed, because the former instance would remain; create another PeerPod"
            )),
            ..ValidationRule::default()
        };
        let fields = ["cloudProvider", "instanceID"];
        spec.x_kubernetes_validations = Some(fields.map(unchanged).into());
    }
    crd
}
