//! (pure) Every object of a VM as it should be: one file per kind, one function each. The same [`Plan`] always gives
//! the same objects, byte for byte.

mod claims;
mod config_map;
mod pod;
mod secret;
mod service;

use super::plan::{ClaimChange, Plan};
use crate::api::names;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The objects of one VM. Whoever applies them takes the struct apart without `..`, so that a new kind of object
/// that is never applied does not compile.
#[derive(Clone, Debug, PartialEq)]
pub struct Objects {
    /// The namespace's image repository, if it has to be made.
    pub image_repository: Option<PersistentVolumeClaim>,
    /// The runner's configuration.
    pub config_map: ConfigMap,
    /// The claim for what the runner keeps.
    pub runner_data: PersistentVolumeClaim,
    /// The disks' claims.
    pub disks: Vec<PersistentVolumeClaim>,
    /// What has to change of disks' claims that are there, by name.
    pub claim_changes: Vec<(String, ClaimChange)>,
    /// The display secret, without its data, if it has to be made.
    pub display_secret: Option<Secret>,
    /// The load balancer service, if there should be one.
    pub service: Option<Service>,
    /// The pod.
    pub pod: Pod,
}

/// Builds all objects.
#[must_use]
pub fn build(plan: &Plan) -> Objects {
    Objects {
        image_repository: plan.image_repository.as_ref().map(|repository| claims::image_repository(plan, repository)),
        config_map: config_map::build(plan),
        runner_data: claims::runner_data(plan),
        disks: plan.disks.iter().map(|disk| claims::disk(plan, disk)).collect(),
        claim_changes: plan.disks.iter().map(|disk| (disk.claim.clone(), disk.change.clone())).collect(),
        display_secret: plan.generate_secret.then(|| secret::build(plan)),
        service: plan.service.as_ref().map(|service| service::build(plan, service)),
        pod: pod::build(plan),
    }
}

/// Metadata of a child that goes with its VM.
fn owned(plan: &Plan, name: String) -> ObjectMeta {
    ObjectMeta { owner_references: Some(vec![names::owner(&plan.name, &plan.uid)]), ..kept(plan, name) }
}

/// Metadata of a child that outlives its VM.
fn kept(plan: &Plan, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(plan.namespace.clone()),
        labels: Some(names::labels(&plan.name)),
        ..ObjectMeta::default()
    }
}

/// The annotation that says which operator wrote the object.
fn version_annotation() -> (String, String) {
    (names::ANNOTATION_VERSION.to_owned(), env!("CARGO_PKG_VERSION").to_owned())
}
