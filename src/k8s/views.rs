//! Projections: objects of Kubernetes' own kinds with only the fields that controllers read, under their Kubernetes names. All other fields
//! are dropped when an object is decoded, so that ten thousand pods fit into a few megabytes.

use crate::api::quantity::Bytes;
use crate::k8s::store::trim::{ChildMetadata, packed_texts};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// A pod.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = Pod)]
#[allow(missing_docs)]
pub struct PodView {
    pub metadata: ChildMetadata,
    #[serde(default)]
    pub spec: PodSpecView,
    #[serde(default)]
    pub status: PodStatusView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct PodSpecView {
    pub containers: Box<[ContainerSpecView]>,
    /// None until the pod is scheduled.
    pub node_name: Option<String>,
    pub service_account_name: Option<String>,
    pub termination_grace_period_seconds: Option<i64>,
    /// Names of the PVCs to which the pod can write.
    #[serde(rename = "volumes", deserialize_with = "writable_claims")]
    pub writable_claims: Box<[Box<str>]>,
}

/// Reads the names of the PVCs without `readOnly` from the volumes of a pod.
fn writable_claims<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Box<[Box<str>]>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Volume {
        persistent_volume_claim: Option<Claim>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Claim {
        claim_name: Box<str>,
        #[serde(default)]
        read_only: bool,
    }
    let volumes = Option::<Vec<Volume>>::deserialize(deserializer)?;
    let claims = volumes.into_iter().flatten();
    let claims = claims.filter_map(|volume| volume.persistent_volume_claim);
    let writable = claims.filter(|claim| !claim.read_only);
    Ok(writable.map(|claim| claim.claim_name).collect())
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct ContainerSpecView {
    pub name: String,
    pub resources: ContainerResourcesView,
}

/// Requests and limits of CPU and memory, the resources that can be resized. Kubernetes' own type takes half a kilobyte for each map.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct ContainerResourcesView {
    pub requests: Option<AmountsView>,
    pub limits: Option<AmountsView>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct AmountsView {
    pub cpu: Option<Quantity>,
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

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct PodStatusView {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub phase: String,
    /// The reason of a pod that Kubernetes has ended, such as `Evicted`.
    pub reason: Option<String>,
    pub message: Option<String>,
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    /// Those that controllers read.
    #[serde(deserialize_with = "read_conditions")]
    pub conditions: Box<[PodConditionView]>,
    /// All containers, also those that others have injected.
    pub container_statuses: Box<[ContainerView]>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct PodConditionView {
    #[serde(rename = "type")]
    pub type_: PodConditionType,
    pub status: PodConditionStatus,
    pub reason: Option<Box<str>>,
    pub message: Option<Box<str>>,
    pub last_transition_time: Option<Time>,
}

/// The conditions of a pod that controllers read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub enum PodConditionType {
    PodScheduled,
    PodReadyToStartContainers,
    Ready,
    /// The kubelet has not accepted a resize.
    PodResizePending,
    DisruptionTarget,
    #[default]
    #[serde(other)]
    Other,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub enum PodConditionStatus {
    True,
    False,
    #[default]
    #[serde(other)]
    Unknown,
}

/// Reads the conditions that controllers read.
fn read_conditions<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Box<[PodConditionView]>, D::Error> {
    let conditions = Option::<Vec<PodConditionView>>::deserialize(deserializer)?;
    let conditions = conditions.into_iter().flatten();
    Ok(conditions
        .filter(|condition| condition.type_ != PodConditionType::Other)
        .collect())
}

/// The status of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct ContainerView {
    pub name: String,
    /// The image as the kubelet reports it.
    pub image: String,
    pub state: ContainerState,
    /// The memory that the kubelet has allocated to the container by its request.
    #[serde(rename = "resources", deserialize_with = "requested_memory")]
    pub allocated_memory: Option<Bytes>,
}

/// Reads the requested memory from the resources of a container's status.
fn requested_memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
    let resources = Option::<ContainerResourcesView>::deserialize(deserializer)?;
    let requests = resources.and_then(|resources| resources.requests);
    let memory = requests.and_then(|requests| requests.memory);
    Ok(memory.and_then(|memory| memory.0.parse().ok()))
}

/// The state of a container. A running container has neither field.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct ContainerState {
    pub waiting: Option<WaitingView>,
    pub terminated: Option<TerminatedView>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct WaitingView {
    pub reason: Option<String>,
    pub message: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct TerminatedView {
    pub exit_code: i32,
    /// For example `OOMKilled`.
    pub reason: Option<String>,
    /// The termination message.
    pub message: Option<String>,
    pub started_at: Option<Time>,
    pub finished_at: Option<Time>,
}

/// A PVC.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = PersistentVolumeClaim)]
#[serde(from = "ReceivedClaim")]
#[allow(missing_docs)]
pub struct ClaimView {
    pub metadata: ChildMetadata,
    pub spec: ClaimSpecView,
    pub status: ClaimStatusView,
}

#[derive(Deserialize)]
struct ReceivedClaim {
    metadata: ChildMetadata,
    #[serde(default)]
    spec: ClaimSpecView,
    #[serde(default)]
    status: ClaimStatusView,
}

impl From<ReceivedClaim> for ClaimView {
    fn from(mut received: ReceivedClaim) -> Self {
        if received.status.phase == "Bound" {
            received.spec.volume_name = None;
        }
        Self {
            metadata: received.metadata,
            spec: received.spec,
            status: received.status,
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct ClaimSpecView {
    /// For example `ReadWriteOnce`.
    pub access_modes: Box<[String]>,
    /// An empty string excludes dynamic provisioning. None means the default class, until Kubernetes sets it.
    pub storage_class_name: Option<String>,
    /// `Block` or `Filesystem`.
    pub volume_mode: Option<String>,
    pub volume_attributes_class_name: Option<String>,
    /// The PersistentVolume that a PVC names which is not bound. None in a bound PVC, in which Kubernetes sets the field.
    pub volume_name: Option<Box<str>>,
    pub resources: ClaimResourcesView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct ClaimResourcesView {
    /// The requested size; none if it is missing or not a quantity.
    #[serde(rename = "requests", deserialize_with = "storage")]
    pub requested: Option<Bytes>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct ClaimStatusView {
    /// `Pending`, `Bound` or `Lost`.
    pub phase: String,
    /// The volume's size; none if it is missing or not a quantity.
    #[serde(deserialize_with = "storage")]
    pub capacity: Option<Bytes>,
}

/// Reads `storage` from an object of quantities.
fn storage<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
    #[derive(Default, Deserialize)]
    struct Amounts {
        storage: Option<Quantity>,
    }
    let amounts = Option::<Amounts>::deserialize(deserializer)?;
    Ok(amounts.and_then(|amounts| amounts.storage?.0.parse().ok()))
}

packed_texts!(PodView, ClaimView, ServiceView, SecretView);

impl PodView {
    /// The condition of that type, if it is `True`.
    #[must_use]
    pub fn condition(&self, type_: PodConditionType) -> Option<&PodConditionView> {
        self.status
            .conditions
            .iter()
            .find(|it| it.type_ == type_ && it.status == PodConditionStatus::True)
    }

    /// Whether all containers have ended, and none starts again.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }
}

/// A Service.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = Service)]
#[allow(missing_docs)]
pub struct ServiceView {
    pub metadata: ChildMetadata,
    #[serde(default)]
    pub spec: ServiceSpecView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct ServiceSpecView {
    #[serde(rename = "type")]
    pub type_: Option<String>,
    pub selector: Option<BTreeMap<String, String>>,
    pub ports: Vec<ServicePort>,
}

/// A Secret without its data.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = Secret)]
#[allow(missing_docs)]
pub struct SecretView {
    pub metadata: ChildMetadata,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn volume_name_is_kept_for_a_pvc_that_is_not_bound() {
        let kept = ["Pending", "Bound", "Lost"].map(|phase| {
            let spec = json!({"volumeName": "pv"});
            let claim = json!({"metadata": {}, "spec": spec, "status": {"phase": phase}});
            let claim: ClaimView = serde_json::from_value(claim).unwrap();
            claim.spec.volume_name.is_some()
        });
        assert_eq!(kept, [true, false, true]);
    }
}
