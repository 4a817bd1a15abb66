//! VMs and their reports with only the fields that the operator reads, and methods about the pods of VMs. The views of Kubernetes' own
//! kinds are in [`crate::k8s::views`].

mod config_map;
pub mod exit;

pub use config_map::{ConfigDigest, ConfigMapView, ConfigView, config_digest, logging_digest};

use crate::api::vm::{VirtualMachineStatus, names};
use crate::api::{VirtualMachine, VirtualMachineSpec, VmReport, VmReportSpec, VmReportStatus};
use crate::k8s::store::trim::{Labelled, key_and_versions, metadata};
use crate::k8s::views::{ContainerResourcesView, ContainerView, PodView};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer};

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

    /// The VM's own container.
    #[must_use]
    pub fn container(&self) -> Option<&ContainerView> {
        let name = names::container(self.metadata.name.as_deref().unwrap_or_default());
        self.status
            .container_statuses
            .iter()
            .find(|container| container.name == name)
    }

    /// The termination message of its container.
    #[must_use]
    pub fn termination_message(&self) -> Option<&str> {
        self.container()?
            .state
            .terminated
            .as_ref()?
            .message
            .as_deref()
    }

    /// Whether the runner writes to a report. Runners of the Java VM-Operator write to the VM.
    #[must_use]
    pub fn has_report(&self) -> bool {
        self.spec.service_account_name.as_deref() == Some(names::REPORTER_SERVICE_ACCOUNT)
    }

    /// The PVC that an import pod fills. `None` if the pod runs the VM.
    #[must_use]
    pub fn import_claim(&self) -> Option<&str> {
        self.annotations().get(names::ANNOTATION_IMPORTS)
    }

    /// Whether the VM's container has started, as far as the kubelet has reported. An import pod has no guest.
    #[must_use]
    pub fn has_started(&self) -> bool {
        if self.import_claim().is_some() {
            return false;
        }
        let waits = |container: &ContainerView| container.state.waiting.is_some();
        !matches!(self.status.phase.as_str(), "Pending" | "") || !self.container().is_none_or(waits)
    }

    /// Whether the pod or the VM's container has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.is_complete()
            || self
                .container()
                .is_some_and(|container| container.state.terminated.is_some())
    }
}

/// An event of type `Warning` about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Warning {
    pub reason: String,
    pub note: String,
}

/// A report of a runner, without metadata that the operator does not use.
#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = VmReport)]
#[allow(missing_docs)]
pub struct ReportView {
    #[serde(deserialize_with = "key_and_versions")]
    pub metadata: ObjectMeta,
    pub spec: VmReportSpec,
    /// None until the runner has reported.
    #[serde(default, deserialize_with = "report_status")]
    pub status: Option<Box<VmReportStatus>>,
}

fn report_status<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Box<VmReportStatus>>, D::Error> {
    let mut status = Option::<Box<VmReportStatus>>::deserialize(deserializer)?;
    if let Some(status) = &mut status {
        status.conditions.shrink_to_fit();
    }
    Ok(status)
}

/// The name in the label `app.kubernetes.io/instance`.
pub fn vm_of(object: &impl Labelled) -> Option<String> {
    object.label(names::LABEL_INSTANCE).map(str::to_owned)
}

/// The name of the VM to which an object belongs by its labels. Deployment tools also use the label of [`vm_of`].
pub fn owner_of(object: &impl Labelled) -> Option<String> {
    let name = object.label(names::LABEL_NAME)?;
    vm_of(object).filter(|_| [names::APP_NAME, names::LEGACY_APP_NAME].contains(&name))
}

/// The VM to which an object belongs by its labels, if that is another one than the VM with that name.
pub fn other_owner_of(object: &impl Labelled, vm: &str) -> Option<String> {
    owner_of(object).filter(|owner| owner != vm)
}

/// A VM without metadata that the operator does not use.
#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = VirtualMachine)]
#[allow(missing_docs)]
pub struct VmView {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    pub spec: VirtualMachineSpec,
    #[serde(default)]
    pub status: Option<VirtualMachineStatus>,
}

impl From<VmView> for VirtualMachine {
    fn from(
        VmView {
            metadata,
            mut spec,
            mut status,
        }: VmView,
    ) -> Self {
        // A decoded list has room for more elements: 2.7 KB for a VM with one disk.
        spec.vm.disks.shrink_to_fit();
        spec.vm.networks.shrink_to_fit();
        if let Some(status) = &mut status {
            status.conditions.shrink_to_fit();
            status.volumes.shrink_to_fit();
        }
        Self {
            metadata,
            spec,
            status,
        }
    }
}

#[cfg(test)]
mod tests;
