//! The kind `BareMetalHost` of Metal3 (`metal3.io/v1alpha1`): the fields that this project reads.

use k8s_openapi::api::core::v1::{ObjectReference, SecretReference};
use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// Annotation of a host that the baremetal-operator does not reconcile.
pub const ANNOTATION_PAUSED: &str = "baremetalhost.metal3.io/paused";
/// Annotation of a host that the baremetal-operator does not manage.
pub const ANNOTATION_DETACHED: &str = "baremetalhost.metal3.io/detached";
/// Annotations of a host that a remediation has declared unhealthy: the present one, and an older one.
pub const ANNOTATIONS_UNHEALTHY: [&str; 2] =
    ["capm3.metal3.io/unhealthy", "capi.metal3.io/unhealthy"];
/// Label with which the Metal3 provider of Cluster API reserves a host for the machine that it was part of.
pub const LABEL_NODE_REUSE: &str = "infrastructure.cluster.x-k8s.io/node-reuse";

/// The desired state of a host.
#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize)]
#[kube(
    group = "metal3.io",
    version = "v1alpha1",
    kind = "BareMetalHost",
    plural = "baremetalhosts",
    namespaced,
    status = "BareMetalHostStatus",
    schema = "disabled"
)]
#[serde(rename_all = "camelCase", default)]
pub struct BareMetalHostSpec {
    /// The object that uses the host.
    pub consumer_ref: Option<ObjectReference>,
    /// The Secret with the network data of the host.
    pub network_data: Option<SecretReference>,
    /// The management controller.
    pub bmc: Option<BmcDetails>,
}

/// The management controller (BMC) of a host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BmcDetails {
    /// URL with the protocol as its scheme, for example `redfish-virtualmedia://10.0.0.1/redfish/v1/Systems/1`.
    pub address: String,
    /// The Secret with `username` and `password`.
    pub credentials_name: String,
    /// Whether the certificate of the management controller is not verified.
    pub disable_certificate_verification: bool,
}

/// The observed state of a host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BareMetalHostStatus {
    /// `OK`, `discovered`, `error`, `delayed`, `detached` or `servicing`.
    pub operational_status: String,
    /// The last error of the baremetal-operator.
    pub error_message: String,
    /// The provisioning.
    pub provisioning: Provisioning,
}

/// The provisioning of a host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Provisioning {
    /// For example `available`.
    pub state: String,
}
