//! The `VirtualMachine` kind (`vms.vmoperator.jdrupes.org`).
//!
//! Fields, defaults and constraints are the reference's, so that its objects are admitted with the same meaning.
//! Two things differ on purpose: `spec.image` has no default (absent means the operator's setting), and conditions
//! are a map keyed by type, so that operator and runner each write their own. What the schema can check, it checks,
//! in rules whose messages name the field; everything else becomes a condition on the object.

#![allow(
    clippy::duplicated_attributes,
    reason = "each printer column repeats the names of its parts"
)]

mod cloud_init;
mod machine;
mod memory;
pub mod names;
pub mod rules;
mod status;

pub use cloud_init::*;
pub use machine::*;
pub use memory::*;
pub use status::*;

use k8s_openapi::api::core::v1::{
    Affinity, LocalObjectReference, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{CustomResource, CustomResourceExt};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// What a virtual machine should be.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "vmoperator.jdrupes.org",
    version = "v1",
    kind = "VirtualMachine",
    plural = "vms",
    singular = "vm",
    namespaced,
    status = "VirtualMachineStatus",
    derive = "PartialEq",
    doc = "A virtual machine, run by QEMU in a pod of the same name.",
    printcolumn(
        name = "State",
        type_ = "string",
        json_path = ".spec.vm.state",
        description = "The state that is wanted"
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        description = "The state that the VM is in, or what is in its way"
    ),
    printcolumn(
        name = "Running",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Running")].status"#,
        description = "Whether the guest runs"
    ),
    printcolumn(
        name = "Booted",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Booted")].status"#,
        description = "Whether the guest's agent has answered",
        priority = 1
    ),
    printcolumn(name = "CPUs", type_ = "integer", json_path = ".status.cpus"),
    printcolumn(name = "RAM", type_ = "string", json_path = ".status.ram"),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.nodeName"),
    printcolumn(name = "IP", type_ = "string", json_path = ".status.podIP"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineSpec {
    /// The runner's image. Absent: the one that the operator is configured with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Resources of the VM's pod, as they are. Absent: computed from the machine's CPUs and memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Node that the VM must run on; bypasses the scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Labels that the VM's node must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Affinity of the VM's pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Taints of nodes that do not keep the VM's pod away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Vec<Toleration>>,
    /// How the VM's pod is spread among others. `labelSelector` is usually one of `podLabels`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    /// Priority class of the VM's pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Runtime class of the VM's pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// Secrets of the VM's namespace with which the runner's image is pulled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_secrets: Option<Vec<LocalObjectReference>>,
    /// More labels of the VM's pod. Those that the operator sets (`app.kubernetes.io/name`, `/instance`, `/component`,
    /// `/managed-by`) stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_labels: Option<BTreeMap<String, String>>,
    /// Annotations of the VM's pod. Those that the operator sets (`vmoperator.jdrupes.org/…`, `vmrunner.jdrupes.org/…`)
    /// stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_annotations: Option<BTreeMap<String, String>>,
    /// Port of `/metrics` in the VM's pod. Absent: 9180; with `tap` networks none, as it would be open on the node's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_port: Option<i64>,
    /// Template of the Java VM-Operator's runner. Accepted and not used: arguments are built from the machine's fields.
    #[serde(default)]
    pub runner_template: RunnerTemplate,
    /// Whether a shutdown by the guest sets `spec.vm.state` to `Stopped`. Otherwise the VM is started again.
    #[serde(default)]
    pub guest_shutdown_stops: bool,
    /// Labels and annotations of the VM's load balancer service, where the operator makes one; null takes one away. A null
    /// arrives by `kubectl create`, `kubectl apply --server-side` or a JSON patch; plain `kubectl apply` drops it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer_service: Option<LoadBalancerService>,
    /// Seed for cloud-init in the guest. With what else the VM's ConfigMap holds, it can have 1 MiB. Above 256 KiB plain
    /// `kubectl apply`, which keeps a copy in an annotation, has no room: use `kubectl apply --server-side`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_init: Option<CloudInit>,
    /// Who may do what with the VM in a console front end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Vec<Permission>>,
    /// Pools that the VM belongs to.
    #[serde(default)]
    pub pools: Vec<String>,
    /// Logging of the VM's runner, in Java's properties syntax. Only the line `.level` has an effect, from the next start on;
    /// all of it stands in the VM's ConfigMap, key `logging.properties`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logging_properties: Option<String>,
    /// The machine.
    pub vm: Machine,
}

impl VirtualMachineSpec {
    /// Seconds that the pod has to end: the guest's time, and some for the runner, which is done 10 s after it.
    #[must_use]
    pub fn grace_period(&self) -> i64 {
        self.vm.powerdown_timeout.saturating_add(15)
    }
}

/// Where the runner's image comes from: `source`, or `repository` and `path`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// The whole reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Registry and repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// Path in the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Tag, with `repository` and `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// When the image is pulled. Default: as Kubernetes does for the tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum PullPolicy {
    Always,
    Never,
    IfNotPresent,
}

/// Resources of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// Most that may be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<BTreeMap<String, Quantity>>,
    /// What is reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<BTreeMap<String, Quantity>>,
}

/// Template of the reference's runner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunnerTemplate {
    /// File name of the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Whether the template is copied anew at each start.
    #[serde(default = "yes")]
    pub update: bool,
}

impl Default for RunnerTemplate {
    fn default() -> Self {
        Self {
            source: None,
            update: true,
        }
    }
}

/// Labels and annotations of a load balancer service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerService {
    /// Labels; null takes a default one away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, Option<String>>>,
    /// Annotations; null takes a default one away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, Option<String>>>,
}

/// What somebody may do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Permission {
    /// Name of a user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Name of a role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// What is permitted.
    #[serde(default)]
    pub may: Vec<Grant>,
}

/// A permission in a console front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum Grant {
    #[serde(rename = "start")]
    Start,
    #[serde(rename = "stop")]
    Stop,
    #[serde(rename = "reset")]
    Reset,
    #[serde(rename = "accessConsole")]
    AccessConsole,
    #[serde(rename = "takeConsole")]
    TakeConsole,
    #[serde(rename = "*")]
    All,
}

/// Schema of an object with any content.
pub(super) fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

fn yes() -> bool {
    true
}

/// The custom resource definition, as it is in `crds/`.
#[must_use]
pub fn crd() -> CustomResourceDefinition {
    let mut crd = VirtualMachine::crd();
    crd.metadata.labels =
        Some([(names::LABEL_NAME.to_owned(), names::MANAGED_BY.to_owned())].into());
    for version in &mut crd.spec.versions {
        let root = version
            .schema
            .as_mut()
            .and_then(|s| s.open_api_v3_schema.as_mut());
        if let Some(status) = root
            .and_then(|r| r.properties.as_mut())
            .and_then(|p| p.get_mut("status"))
        {
            // With a status from the start, the initial conditions below it are there from the start too.
            status.default = Some(JSON(json!({})));
        }
        if let Some(root) = version
            .schema
            .as_mut()
            .and_then(|s| s.open_api_v3_schema.as_mut())
        {
            without_nulls(root);
            condition_defaults(root);
            rules::add_to(root);
        }
    }
    crd
}

/// Parts of a condition that the reference's schema fills in for writers that leave them out.
fn condition_defaults(root: &mut JSONSchemaProps) {
    let part = |schema: &mut JSONSchemaProps, name: &str| schema.properties.as_mut()?.remove(name);
    let Some(mut status) = part(root, "status") else {
        return;
    };
    if let Some(mut conditions) = part(&mut status, "conditions") {
        if let Some(JSONSchemaPropsOrArray::Schema(condition)) = &mut conditions.items {
            for (name, default) in [("status", "Unknown"), ("message", "")] {
                if let Some(field) = condition
                    .properties
                    .as_mut()
                    .and_then(|fields| fields.get_mut(name))
                {
                    field.default = Some(JSON(json!(default)));
                }
            }
        }
        status
            .properties
            .get_or_insert_default()
            .insert("conditions".to_owned(), conditions);
    }
    root.properties
        .get_or_insert_default()
        .insert("status".to_owned(), status);
}

/// Makes no field nullable, so that the API server takes nulls away before it puts in defaults and checks rules. The
/// values of maps stay as they are: there a null means something.
fn without_nulls(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    if let Some(values) = &mut schema.enum_ {
        values.retain(|value| !value.0.is_null());
    }
    for child in schema.properties.iter_mut().flat_map(BTreeMap::values_mut) {
        without_nulls(child);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(child)) = &mut schema.items {
        without_nulls(child);
    }
}
