//! (pure) Every object of a VM as it should be: one file per kind, one function each. The same [`Plan`] always gives
//! the same objects, byte for byte.

mod claims;
mod config_map;
mod pod;
mod secret;
mod service;

pub use pod::{made_of, marked};
pub(super) use pod::{pod_security, restricted};

use super::fetch::{self, Fetch, Step};
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
    /// The images given by URL, and the pods that fetch them where such are made.
    pub fetches: Vec<fetch::apply::Prepared>,
    /// The runner's configuration.
    pub config_map: ConfigMap,
    /// The claim for what the runner keeps.
    pub runner_data: PersistentVolumeClaim,
    /// The disks' claims.
    pub disks: Vec<PersistentVolumeClaim>,
    /// What would have to change of disks' claims that are there, by name.
    pub claim_changes: Vec<(String, ClaimChange)>,
    /// The display secret, without its data, if it has to be made.
    pub display_secret: Option<Secret>,
    /// The load balancer service, if there should be one.
    pub service: Option<Service>,
    /// The pod, not [`marked`] yet.
    pub pod: Pod,
}

/// Builds all objects.
#[must_use]
pub fn build(plan: &Plan) -> Objects {
    Objects {
        image_repository: plan.image_repository.as_ref().map(|repository| claims::image_repository(plan, repository)),
        fetches: plan.fetches.iter().map(|fetch| prepared(fetch, plan)).collect(),
        config_map: config_map::build(plan),
        runner_data: claims::runner_data(plan),
        disks: plan.disks.iter().map(|disk| claims::disk(plan, disk)).collect(),
        claim_changes: plan
            .disks
            .iter()
            .flat_map(|disk| disk.changes.iter().map(|change| (disk.claim.clone(), change.clone())))
            .collect(),
        display_secret: plan.generate_secret.then(|| secret::build(plan)),
        service: plan.service.as_ref().map(|service| service::build(plan, service)),
        pod: pod::build(plan),
    }
}

/// An image, and its pod where one has to be made.
fn prepared(fetch: &Fetch, plan: &Plan) -> fetch::apply::Prepared {
    let attempt = match &fetch.step {
        Step::Create(attempt) | Step::Retry(_, attempt) => Some(attempt),
        Step::None | Step::Record(_) | Step::Remove(_) => None,
    };
    let pod = attempt.zip(plan.fetch_settings.as_deref());
    let pod = pod.map(|(attempt, settings)| fetch::build(&fetch.remote, attempt, &plan.namespace, settings));
    fetch::apply::Prepared { fetch: fetch.clone(), pod }
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
pub(super) fn version_annotation() -> (String, String) {
    (names::ANNOTATION_VERSION.to_owned(), env!("CARGO_PKG_VERSION").to_owned())
}
