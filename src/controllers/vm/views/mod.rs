//! The few fields that the operator reads of other objects. Whatever else an object has is dropped as it comes in,
//! so that ten thousand pods fit in a few megabytes.

mod config_map;
pub mod exit;

pub use config_map::{ConfigDigest, ConfigMapView, ConfigView, config_digest, logging_digest};

use crate::api::quantity::Bytes;
use crate::api::vm::{VirtualMachineStatus, names};
use crate::api::{VirtualMachine, VirtualMachineSpec};
use crate::k8s::store::trim::metadata;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// A pod.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = Pod)]
pub struct PodView {
    /// Metadata.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: PodSpecView,
    /// Status.
    #[serde(default)]
    pub status: PodStatusView,
}

/// What matters of a pod's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpecView {
    /// The containers.
    pub containers: Box<[ContainerSpecView]>,
    /// The node that it runs on, once one was found.
    pub node_name: Option<String>,
    /// Seconds that the pod has to end if nobody says otherwise.
    pub termination_grace_period_seconds: Option<i64>,
}

/// What matters of a container's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerSpecView {
    /// Name.
    pub name: String,
    /// Resources.
    pub resources: ContainerResourcesView,
}

/// What matters of a container's resources. The map that Kubernetes defines takes half a kilobyte for each of the two.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerResourcesView {
    /// Requests.
    pub requests: Option<AmountsView>,
    /// Limits.
    pub limits: Option<AmountsView>,
}

/// The amounts that follow the machine's size.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AmountsView {
    /// CPUs.
    pub cpu: Option<Quantity>,
    /// Bytes of memory.
    pub memory: Option<Quantity>,
}

impl AmountsView {
    /// The amount of `cpu` or `memory`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Quantity> {
        match name {
            "cpu" => self.cpu.as_ref(),
            "memory" => self.memory.as_ref(),
            _ => None,
        }
    }
}

/// What matters of a pod's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatusView {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub phase: String,
    /// Why a pod ended without its container, such as `Evicted`.
    pub reason: Option<String>,
    /// More on `reason`.
    pub message: Option<String>,
    /// Conditions.
    pub conditions: Box<[PodConditionView]>,
    /// The containers: the VM's, and what others may have put into the pod.
    pub container_statuses: Box<[ContainerView]>,
}

/// What matters of a pod's condition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodConditionView {
    /// Type.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Reason.
    pub reason: Option<String>,
    /// Message.
    pub message: Option<String>,
    /// Since when.
    pub last_transition_time: Option<Time>,
}

/// What matters of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerView {
    /// Name.
    pub name: String,
    /// Image, as asked for.
    pub image: String,
    /// State.
    pub state: ContainerState,
}

/// The state of a container: one of the fields is set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// It is not there yet.
    pub waiting: Option<WaitingView>,
    /// It has ended.
    pub terminated: Option<TerminatedView>,
}

/// Why a container is not there yet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct WaitingView {
    /// Reason.
    pub reason: Option<String>,
    /// Message.
    pub message: Option<String>,
}

/// How a container has ended.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TerminatedView {
    /// Exit code.
    pub exit_code: i32,
    /// Reason, such as `OOMKilled`.
    pub reason: Option<String>,
    /// The termination message.
    pub message: Option<String>,
    /// When it began.
    pub started_at: Option<Time>,
    /// When it ended.
    pub finished_at: Option<Time>,
}

/// A claim.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = PersistentVolumeClaim)]
pub struct ClaimView {
    /// Metadata.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: ClaimSpecView,
    /// Status.
    #[serde(default)]
    pub status: ClaimStatusView,
}

/// What matters of a claim's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpecView {
    /// How it may be mounted, such as `ReadWriteOnce`.
    pub access_modes: Box<[String]>,
    /// The class; empty where a volume that is there already has to be found.
    pub storage_class_name: Option<String>,
    /// `Block` or `Filesystem`.
    pub volume_mode: Option<String>,
    /// The attributes class.
    pub volume_attributes_class_name: Option<String>,
    /// The size that is asked for.
    pub resources: ClaimResourcesView,
}

/// What matters of a claim's resources.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimResourcesView {
    /// Size; nothing if it is missing or not a quantity.
    #[serde(rename = "requests", deserialize_with = "storage")]
    pub requested: Option<Bytes>,
}

/// What matters of a claim's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimStatusView {
    /// `Pending`, `Bound` or `Lost`.
    pub phase: String,
    /// The volume's size; nothing if it is missing or not a quantity.
    #[serde(deserialize_with = "storage")]
    pub capacity: Option<Bytes>,
}

/// Reads the size out of an object of amounts.
fn storage<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
    #[derive(Default, Deserialize)]
    struct Amounts {
        storage: Option<Quantity>,
    }
    let amounts = Option::<Amounts>::deserialize(deserializer)?;
    Ok(amounts.and_then(|amounts| amounts.storage?.0.parse().ok()))
}

impl PodView {
    /// Resources of the VM's own container.
    #[must_use]
    pub fn resources(&self) -> Option<&ContainerResourcesView> {
        let name = names::container(self.metadata.name.as_deref().unwrap_or_default());
        self.spec
            .containers
            .iter()
            .find(|container| container.name == name)
            .map(|container| &container.resources)
    }

    /// The condition of that type, if it is `True`.
    #[must_use]
    pub fn condition(&self, type_: &str) -> Option<&PodConditionView> {
        self.status
            .conditions
            .iter()
            .find(|condition| condition.type_ == type_ && condition.status == "True")
    }

    /// The VM's own container.
    #[must_use]
    pub fn container(&self) -> Option<&ContainerView> {
        let name = names::container(self.metadata.name.as_deref().unwrap_or_default());
        self.status
            .container_statuses
            .iter()
            .find(|container| container.name == name)
    }

    /// Whether the VM's part in the pod has begun, as far as is known.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        let waits = |container: &ContainerView| container.state.waiting.is_some();
        !matches!(self.status.phase.as_str(), "Pending" | "") || !self.container().is_none_or(waits)
    }

    /// Whether the VM's part in the pod has ended for good.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
            || self
                .container()
                .is_some_and(|container| container.state.terminated.is_some())
    }
}

/// A warning about an object that Kubernetes has published as an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Reason of the event.
    pub reason: String,
    /// Text of the event.
    pub note: String,
}

/// A service.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = Service)]
pub struct ServiceView {
    /// Metadata.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: ServiceSpecView,
}

/// What matters of a service's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceSpecView {
    /// Type.
    #[serde(rename = "type")]
    pub type_: Option<String>,
    /// Labels of the pods.
    pub selector: Option<BTreeMap<String, String>>,
    /// Ports.
    pub ports: Vec<ServicePort>,
}

/// A secret: its data is not known at all.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = Secret)]
pub struct SecretView {
    /// Metadata.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
}

/// The name of the VM to which an object belongs, by its label.
pub fn vm_of<K: Resource>(object: &K) -> Option<String> {
    object
        .meta()
        .labels
        .as_ref()?
        .get(names::LABEL_INSTANCE)
        .cloned()
}

/// The name of the VM to which an object belongs, if it is a child of a VM: deployment tools use the same label.
pub fn owner_of<K: Resource>(object: &K) -> Option<String> {
    let name = object.meta().labels.as_ref()?.get(names::LABEL_NAME)?;
    vm_of(object).filter(|_| [names::APP_NAME, names::LEGACY_APP_NAME].contains(&name.as_str()))
}

/// A VM as it is read: complete but for metadata that nobody uses.
#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = VirtualMachine)]
pub struct VmView {
    /// Metadata.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    /// Spec.
    pub spec: VirtualMachineSpec,
    /// Status.
    #[serde(default)]
    pub status: Option<VirtualMachineStatus>,
}

impl From<VmView> for VirtualMachine {
    fn from(
        VmView {
            metadata,
            spec,
            status,
        }: VmView,
    ) -> Self {
        Self {
            metadata,
            spec,
            status,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::Resource;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    fn object() -> Value {
        let managed = json!([{
            "manager": "m", "operation": "Apply", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {"f:l": {}}}},
        }]);
        json!({
            "apiVersion": "v1", "kind": "K", "spec": {"vm": {}},
            "metadata": {"name": "a", "managedFields": managed},
        })
    }

    #[test]
    fn no_view_keeps_managed_fields_for_a_moment() {
        fn managed<K: Resource + DeserializeOwned>() -> bool {
            let read: K = serde_json::from_str(&object().to_string()).unwrap();
            assert_eq!(read.meta().name.as_deref(), Some("a"));
            read.meta().managed_fields.is_some()
        }
        let kinds = [
            managed::<PodView>(),
            managed::<ClaimView>(),
            managed::<ServiceView>(),
            managed::<SecretView>(),
            managed::<ConfigMapView>(),
            managed::<VmView>(),
        ];
        assert_eq!(kinds, [false; 6]);
    }
}
