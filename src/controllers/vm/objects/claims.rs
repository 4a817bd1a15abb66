//! (pure) PVCs. They are retained when their VM is deleted, because their data belongs to the user.

use crate::api::vm::names;
use crate::controllers::vm::objects::{Plan, retained};
use crate::controllers::vm::plan::DiskPlan;
use crate::settings::ImageRepository;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;

fn storage(size: &str) -> VolumeResourceRequirements {
    let requests = [("storage".to_owned(), Quantity(size.to_owned()))].into();
    VolumeResourceRequirements {
        requests: Some(requests),
        limits: None,
    }
}

/// The annotations of each PVC.
fn kept() -> BTreeMap<String, String> {
    names::ANNOTATIONS_KEPT
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

/// The PVC for runner data: UUID, firmware variables, TPM state.
pub(super) fn runner_data(plan: &Plan) -> PersistentVolumeClaim {
    let spec = PersistentVolumeClaimSpec {
        access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
        resources: Some(storage(&plan.runner_data_settings.size.to_quantity())),
        storage_class_name: plan.runner_data_settings.storage_class_name.clone(),
        ..PersistentVolumeClaimSpec::default()
    };
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            annotations: Some(kept()),
            ..retained(plan, plan.runner_data_claim.clone())
        },
        spec: Some(spec),
        status: None,
    }
}

/// The PVC of a disk, from its template.
pub(super) fn disk(plan: &Plan, disk: &DiskPlan) -> PersistentVolumeClaim {
    let mut metadata = retained(plan, disk.claim.clone());
    // The labels of the operator come last, because it finds its objects by them.
    let labels = disk
        .metadata
        .labels
        .clone()
        .into_iter()
        .flatten()
        .chain(metadata.labels.take().into_iter().flatten());
    metadata.labels = Some(labels.collect());
    let annotations = disk.metadata.annotations.clone().into_iter().flatten();
    metadata.annotations = Some(kept().into_iter().chain(annotations).collect());
    let spec = disk.spec.clone();
    let resources = spec.resources.unwrap_or_default();
    // A PVC must request a size. A template without a size selects volumes of any size.
    let requests = resources.requests.or_else(|| storage("1Mi").requests);
    PersistentVolumeClaim {
        metadata,
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(spec.access_modes),
            data_source: spec.data_source,
            data_source_ref: spec.data_source_ref,
            resources: Some(VolumeResourceRequirements {
                requests,
                limits: resources.limits,
            }),
            selector: spec.selector,
            storage_class_name: spec.storage_class_name,
            volume_attributes_class_name: spec.volume_attributes_class_name,
            volume_mode: spec.volume_mode,
            volume_name: spec.volume_name,
        }),
        status: None,
    }
}

/// The PVC of the namespace's image repository.
pub(super) fn image_repository(plan: &Plan, repository: &ImageRepository) -> PersistentVolumeClaim {
    let labels = [(names::LABEL_NAME.to_owned(), names::MANAGED_BY.to_owned())];
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(names::IMAGE_REPOSITORY_CLAIM.to_owned()),
            namespace: Some(plan.namespace.clone()),
            labels: Some(labels.into()),
            annotations: Some(kept()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(repository.access_modes.clone()),
            resources: Some(storage(&repository.size.to_quantity())),
            storage_class_name: repository.storage_class_name.clone(),
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}
