//! The few fields that the operator reads of other objects. Whatever else an object has is dropped as it comes in,
//! so that ten thousand pods fit in a few megabytes.

use crate::api::names;
use crate::api::quantity::Bytes;
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolumeClaim, Pod, ResourceRequirements, Secret, Service, ServicePort,
};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use serde::{Deserialize, Deserializer};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// A pod.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = Pod)]
pub struct PodView {
    /// Metadata.
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
    pub resources: ResourceRequirements,
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
    /// `storage`.
    pub requests: Option<BTreeMap<String, Quantity>>,
}

/// What matters of a claim's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimStatusView {
    /// `Pending`, `Bound` or `Lost`.
    pub phase: String,
    /// The volume's size.
    pub capacity: Option<BTreeMap<String, Quantity>>,
}

impl ClaimView {
    /// The size that is asked for.
    #[must_use]
    pub fn requested(&self) -> Option<Bytes> {
        storage(self.spec.resources.requests.as_ref())
    }

    /// The size that there is.
    #[must_use]
    pub fn capacity(&self) -> Option<Bytes> {
        storage(self.status.capacity.as_ref())
    }
}

fn storage(amounts: Option<&BTreeMap<String, Quantity>>) -> Option<Bytes> {
    amounts?.get("storage")?.0.parse().ok()
}

impl PodView {
    /// Resources of the VM's own container.
    #[must_use]
    pub fn resources(&self) -> Option<&ResourceRequirements> {
        let name = names::container(self.metadata.name.as_deref().unwrap_or_default());
        self.spec.containers.iter().find(|container| container.name == name).map(|container| &container.resources)
    }

    /// The condition of that type, if it is `True`.
    #[must_use]
    pub fn condition(&self, type_: &str) -> Option<&PodConditionView> {
        self.status.conditions.iter().find(|condition| condition.type_ == type_ && condition.status == "True")
    }

    /// The VM's own container.
    #[must_use]
    pub fn container(&self) -> Option<&ContainerView> {
        let name = names::container(self.metadata.name.as_deref().unwrap_or_default());
        self.status.container_statuses.iter().find(|container| container.name == name)
    }

    /// Whether the VM's part in the pod has ended for good.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
            || self.container().is_some_and(|container| container.state.terminated.is_some())
    }
}

/// An event, whoever has published it.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = Event)]
#[serde(rename_all = "camelCase")]
pub struct EventView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// `Normal` or `Warning`.
    #[serde(default, rename = "type")]
    pub type_: Option<String>,
    /// Reason.
    #[serde(default)]
    pub reason: Option<String>,
    /// What it says.
    #[serde(default)]
    pub note: Option<String>,
    /// What it is about.
    #[serde(default)]
    pub regarding: RegardingView,
    /// When it was published first, by new publishers.
    #[serde(default)]
    pub event_time: Option<MicroTime>,
    /// When it was published last, by new publishers.
    #[serde(default)]
    pub series: Option<SeriesView>,
    /// When it was published last, by old publishers.
    #[serde(default)]
    pub deprecated_last_timestamp: Option<Time>,
}

/// What an event is about.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RegardingView {
    /// Kind.
    pub kind: Option<String>,
    /// Name.
    pub name: Option<String>,
    /// UID.
    pub uid: Option<String>,
}

/// Repetitions of an event.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SeriesView {
    /// When it was published last.
    pub last_observed_time: Option<MicroTime>,
}

impl EventView {
    /// When it was published last.
    #[must_use]
    pub fn at(&self) -> Option<Timestamp> {
        let repeated = self.series.as_ref().and_then(|series| series.last_observed_time.as_ref()).map(|t| t.0);
        let old = self.deprecated_last_timestamp.as_ref().map(|t| t.0);
        let first = self.event_time.as_ref().map(|t| t.0);
        repeated.or(old).or(first).or(self.metadata.creation_timestamp.as_ref().map(|t| t.0))
    }
}

/// A ConfigMap: what we put into it is known by its hash.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = ConfigMap)]
pub struct ConfigMapView {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// What we put into it. Keys of others do not matter.
    #[serde(default, rename = "data", deserialize_with = "config_of_data")]
    pub config: ConfigView,
}

/// What matters of a runner's configuration.
#[derive(Clone, Debug, Default)]
pub struct ConfigView {
    /// Its hash.
    pub digest: ConfigDigest,
    /// Hash of the logging's configuration beside it, if there is one.
    pub logging: Option<ConfigDigest>,
    /// The `instance-id` in it, if the reference has written it.
    pub references_instance_id: Option<String>,
}

/// Hash of the configuration in a ConfigMap.
pub type ConfigDigest = [u8; 32];

/// A service.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = Service)]
pub struct ServiceView {
    /// Metadata.
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
    pub metadata: ObjectMeta,
}

/// The hash of the configuration in a ConfigMap's data.
#[must_use]
pub fn config_digest(data: &BTreeMap<String, String>) -> ConfigDigest {
    Sha256::digest(data.get(names::CONFIG_FILE).map(String::as_str).unwrap_or_default()).into()
}

/// The hash of the logging's configuration in a ConfigMap's data, if there is one.
#[must_use]
pub fn logging_digest(data: &BTreeMap<String, String>) -> Option<ConfigDigest> {
    data.get(names::LOGGING_FILE).map(|text| Sha256::digest(text).into())
}

fn config_of_data<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ConfigView, D::Error> {
    let data: Option<BTreeMap<String, String>> = Deserialize::deserialize(deserializer)?;
    let data = data.unwrap_or_default();
    let references_instance_id = data.get(names::CONFIG_FILE).and_then(|text| references_instance_id(text));
    Ok(ConfigView { digest: config_digest(&data), logging: logging_digest(&data), references_instance_id })
}

/// The reference writes its file as YAML in blocks, we as JSON.
fn references_instance_id(text: &str) -> Option<String> {
    if text.starts_with('{') {
        return None;
    }
    let file: serde_json::Value = serde_saphyr::from_str(text).ok()?;
    file.pointer("/~1Runner/cloudInit/metaData/instance-id")?.as_str().map(str::to_owned)
}

/// The VM that an object belongs to, by its label.
pub fn vm_of<K: Resource>(object: &K) -> Option<String> {
    object.meta().labels.as_ref()?.get(names::LABEL_INSTANCE).cloned()
}

/// Annotations of those who bind claims; nobody here reads them.
const BINDERS: [&str; 3] = ["pv.kubernetes.io/", "volume.kubernetes.io/", "volume.beta.kubernetes.io/"];

/// Drops what nobody reads of an object's metadata and takes a third to a half of its size.
pub fn trim<K: Resource>(object: &mut K) {
    let meta = object.meta_mut();
    meta.managed_fields = None;
    meta.finalizers = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        annotations.retain(|name, _| !BINDERS.iter().any(|binder| name.starts_with(binder)));
    }
    // A map takes half a kilobyte for its first entry; an emptied one keeps it.
    meta.annotations.take_if(|annotations| annotations.is_empty());
    // Decoded lists have room for four.
    meta.owner_references.iter_mut().for_each(Vec::shrink_to_fit);
}
