//! The `VirtualMachine` kind (`vms.vmoperator.jdrupes.org`).
//!
//! Fields, defaults and constraints are those of the Java VM-Operator, so that its objects are admitted with the same
//! meaning. Two differences are intended. `spec.image` has no default: the operator's configuration names the image.
//! Conditions are a map with the key `type`, so that operator and runner each write their own conditions.
//! The schema has validation rules, and their messages name the field. Errors that it cannot detect become conditions.

#![allow(
    clippy::duplicated_attributes,
    reason = "each printer column repeats the names of its parts"
)]

mod bounds;
mod cloud_init;
pub mod conditions;
pub mod diagnosis;
mod machine;
mod memory_backing;
pub mod names;
pub mod rules;
mod status;

pub use bounds::*;
pub use cloud_init::*;
pub use machine::*;
pub use memory_backing::*;
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

/// Desired state of the virtual machine.
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
        description = "Desired state"
    ),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        description = "Reason of the condition Ready: the state of the VM, or the cause that blocks the VM"
    ),
    printcolumn(
        name = "Booted",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Booted")].status"#,
        description = "Whether the guest agent has answered since the last boot"
    ),
    printcolumn(
        name = "Acceleration",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Accelerated")].reason"#,
        description = "Reason of the condition Accelerated: Kvm, or the cause of the emulation"
    ),
    printcolumn(name = "CPUs", type_ = "integer", json_path = ".status.cpus"),
    printcolumn(name = "RAM", type_ = "string", json_path = ".status.ram"),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.nodeName"),
    printcolumn(name = "IP", type_ = "string", json_path = ".status.podIP"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#,
        description = "Message of the condition Ready: the progress, or the next step",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineSpec {
    /// Container image of the runner. Default: `runnerImage` of the operator's configuration. A change takes effect at the
    /// next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// Resource requests and limits of the VM's pod. Default: requests that the operator computes from the current CPUs and
    /// memory of the VM. Changed amounts of `cpu` or `memory` take effect immediately, other changes at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Name of the node that must run the VM. Default: the scheduler selects the node. If `nodeName` is set, the pod tolerates
    /// all taints with the effect `NoSchedule`. A change takes effect at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Labels that a node must have to run the VM. A change takes effect at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Affinity of the VM's pod. A change takes effect at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    // A box here and below, because each VM in memory has the room of a field that few VMs have.
    pub affinity: Option<Box<Affinity>>,
    /// Node taints that the VM's pod tolerates. A change takes effect at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Vec<Toleration>>,
    /// Topology spread constraints of the VM's pod. The `labelSelector` of a constraint usually selects labels from
    /// `podLabels`. A change takes effect at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    /// Priority class of the VM's pod. A change takes effect at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Runtime class of the VM's pod. A change takes effect at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// Secrets in the VM's namespace with the credentials for pulling the runner's image. A change takes effect at the next
    /// start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_secrets: Option<Vec<LocalObjectReference>>,
    /// Additional labels of the VM's pod. The labels `name`, `instance`, `component` and `managed-by` with the prefix
    /// `app.kubernetes.io/` are ignored here, because the operator sets them. A change takes effect at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_labels: Option<BTreeMap<String, String>>,
    /// Additional annotations of the VM's pod. Annotations with the prefixes `vmoperator.jdrupes.org/` and
    /// `vmrunner.jdrupes.org/` are ignored here, because the operator sets them. A change takes effect at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_annotations: Option<BTreeMap<String, String>>,
    /// TCP port of `/metrics` in the VM's pod, 1024 to 65535. Default: 9180. A VM with `tap` networks serves no metrics
    /// without this field, because its pod uses the node's network. A change takes effect at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_port: Option<i64>,
    /// TCP port in the VM's pod to which the web console connects, 1024 to 65535. Default: 9181. The port is closed in namespaces
    /// without a web console. A VM with `tap` networks does not have the port without this field, because its pod uses the node's
    /// network. A change takes effect at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub console_port: Option<i64>,
    /// Template of the Java VM-Operator's runner. This field has no effect: QEMU's arguments are built from `spec.vm`.
    #[serde(default)]
    pub runner_template: RunnerTemplate,
    /// Whether the VM remains stopped after its guest has shut down. If true, the operator sets `spec.vm.state` to
    /// `Stopped`. With the operator's setting `guestShutdownRecord: status`, the operator writes `status.guestShutdown`
    /// instead, and the VM remains stopped until its spec changes. If false, the operator starts the VM again. A change takes
    /// effect immediately.
    #[serde(default)]
    pub guest_shutdown_stops: bool,
    /// Labels and annotations of the VM's Service of type `LoadBalancer`, in addition to the operator's defaults. They
    /// have an effect only if the operator's setting `loadBalancerService` creates such Services. Without this field, the
    /// Service has only the defaults. With the empty object `{}`, the VM has no Service. The value null removes a default label
    /// or annotation. Use `kubectl apply --server-side` to set null, because client-side `kubectl apply` drops null. A change
    /// takes effect immediately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer_service: Option<LoadBalancerService>,
    /// Data for cloud-init in the guest. Data that does not come from a Secret is in the VM's ConfigMap, which can have at
    /// most 1 MiB. For a VM object above 256 KiB, use `kubectl apply --server-side`, because client-side `kubectl apply`
    /// stores a copy in an annotation. A change takes effect at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_init: Option<Box<CloudInit>>,
    /// Permissions of users and roles in console front ends. The operator does not evaluate them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Vec<Permission>>,
    /// Names of the pools that contain the VM.
    #[serde(default)]
    pub pools: Vec<String>,
    /// Logging of the VM's runner, in the syntax of Java properties. Only the line `.level` has an effect. The operator copies
    /// the text to the key `logging.properties` of the VM's ConfigMap. A change takes effect at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logging_properties: Option<String>,
    /// Hardware and desired state of the VM.
    pub vm: Machine,
}

impl VirtualMachineSpec {
    /// Time from a request to shut down until the runner has exited, in seconds: the guest's shutdown timeout and at most 10 s.
    #[must_use]
    pub fn shutdown_period(&self) -> i64 {
        self.vm.powerdown_timeout.saturating_add(10)
    }

    /// Grace period of the pod in seconds, at its creation and at its deletion: the shutdown period, and a reserve before the
    /// kubelet kills the runner.
    #[must_use]
    pub fn grace_period(&self) -> i64 {
        self.shutdown_period().saturating_add(5)
    }
}

/// Container image of the runner: either `source`, or `repository` and `path`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// Complete image reference, such as `registry.example.org/vm-runner:1.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Registry and repository, used together with `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// Path of the image in `repository`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Tag of the image, used together with `repository` and `path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Pull policy of the image. Default: `Always` for the tag `latest` or an image reference without tag and digest, otherwise
    /// `IfNotPresent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<PullPolicy>,
}

/// Pull policy of an image.
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
    /// Upper limit of each resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<BTreeMap<String, Quantity>>,
    /// Amount of each resource that is reserved on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<BTreeMap<String, Quantity>>,
}

/// Template of the Java VM-Operator's runner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunnerTemplate {
    /// This field has no effect. In the Java VM-Operator, the field contains the file name of the runner's template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// This field has no effect. In the Java VM-Operator, true means that the runner's template is copied at each start.
    #[serde(default = "default_true")]
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

/// Labels and annotations of a Service of type `LoadBalancer`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerService {
    /// Additional labels of the Service. The value null removes a default label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, Option<String>>>,
    /// Additional annotations of the Service. The value null removes a default annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, Option<String>>>,
}

/// Permissions of a user or of a role.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Permission {
    /// Name of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Name of the role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Permitted actions; `*` stands for all of them.
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

fn default_true() -> bool {
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
            // The initial conditions are defaults below the status, and have an effect only if the status exists.
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

/// Adds the defaults that the Java VM-Operator's schema has for `status` and `message` of a condition, and the default of
/// the condition `Ready`, which it lacks.
fn condition_defaults(root: &mut JSONSchemaProps) {
    let part = |schema: &mut JSONSchemaProps, name: &str| schema.properties.as_mut()?.remove(name);
    let Some(mut status) = part(root, "status") else {
        return;
    };
    if let Some(mut conditions) = part(&mut status, "conditions") {
        let initial = conditions.default.as_mut();
        if let Some(initial) = initial.and_then(|initial| initial.0.as_array_mut()) {
            initial.push(json!(diagnosis::unseen()));
        }
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

/// Removes `nullable` from all fields, so that the API server drops nulls before it applies defaults and checks rules. The
/// values of maps are unchanged, because a null has a meaning there.
pub(in crate::api) fn without_nulls(schema: &mut JSONSchemaProps) {
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
