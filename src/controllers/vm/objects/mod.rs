//! (pure) The desired objects of a VM, one function for each kind. Equal plans give objects that are equal byte by byte.

mod claims;
mod download_pod;
mod import_pod;
mod pod;
mod volumes;

pub use pod::{template_hash, with_identity, with_short_hashes, with_template_hash};

use crate::api::logging;
use crate::api::runner::identity::{ClaimIdentity, PodIdentity};
use crate::api::vm::names;
use crate::controllers::vm::fetch::{self, Fetch, Step};
use crate::controllers::vm::plan::{ClaimChange, DiskPlan, Plan, ServicePlan};
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServicePort, ServiceSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

/// Stage of [`Objects`] that [`build`] has created and that are not applied yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared;

/// The objects of one VM. The step `apply` destructures them without `..`, so that a new kind of object that is never applied does not
/// compile. A pod is created only from `Objects<Applied>`.
#[derive(Clone, Debug, PartialEq)]
pub struct Objects<Stage = Prepared> {
    /// The PVC of the namespace's image repository, if it has to be created.
    pub image_repository: Option<PersistentVolumeClaim>,
    /// The CD images by URL, each with its download pod if that has to be created.
    pub fetches: Vec<fetch::apply::PreparedDownload>,
    /// The runner's configuration.
    pub config_map: ConfigMap,
    /// The PVC for runner data.
    pub runner_data: PersistentVolumeClaim,
    /// The PVCs of the disks.
    pub disks: Vec<PersistentVolumeClaim>,
    /// Differences between existing PVCs of disks and the VM, by name of the PVC.
    pub claim_changes: Vec<(String, ClaimChange)>,
    /// The display Secret without its data, if it has to be created.
    pub display_secret: Option<Secret>,
    /// The Service of type `LoadBalancer`, if the VM has one.
    pub service: Option<Service>,
    /// The pod without template hash and identity. [`with_template_hash`] and [`with_identity`] add them, and [`with_short_hashes`] removes
    /// hashes of unset fields, which the template hash covers.
    pub pod: Pod,
    /// Values in the environment of a new pod. The UIDs of PVCs are empty until the PVCs are applied.
    pub identity: PodIdentity,
    /// [`Prepared`] or [`Applied`].
    pub stage: Stage,
}

impl<Stage> Objects<Stage> {
    /// The PVCs of the VM: the disks, and the runner's data.
    pub fn claims(&self) -> impl Iterator<Item = &PersistentVolumeClaim> {
        self.disks.iter().chain([&self.runner_data])
    }
}

/// Builds all objects.
#[must_use]
pub fn build(plan: &Plan) -> Objects {
    Objects {
        image_repository: plan
            .image_repository
            .as_ref()
            .map(|repository| claims::image_repository(plan, repository)),
        fetches: plan
            .fetches
            .iter()
            .map(|fetch| prepared(fetch, plan))
            .collect(),
        config_map: config_map(plan),
        runner_data: claims::runner_data(plan),
        disks: plan
            .disks
            .iter()
            .map(|disk| claims::disk(plan, disk))
            .collect(),
        claim_changes: plan
            .disks
            .iter()
            .flat_map(|disk| {
                disk.changes
                    .iter()
                    .map(|change| (disk.claim.clone(), change.clone()))
            })
            .chain(outdated_claims(plan))
            .collect(),
        display_secret: plan.generate_secret.then(|| display_secret(plan)),
        service: plan
            .service
            .as_ref()
            .map(|service| self::service(plan, service)),
        pod: match &plan.import {
            Some(import) => import_pod::build(plan, import),
            None => pod::build(plan),
        },
        identity: identity(plan),
        stage: Prepared,
    }
}

fn outdated_claims(plan: &Plan) -> impl Iterator<Item = (String, ClaimChange)> {
    let outdated = plan.outdated_claims.iter().filter(|it| it.must_be_new);
    outdated.map(|it| (it.name.clone(), ClaimChange::Recreate(it.clone())))
}

fn identity(plan: &Plan) -> PodIdentity {
    let claim = |disk: &DiskPlan| ClaimIdentity {
        name: disk.claim.clone(),
        uid: String::new(),
        imported: disk.has_source,
        may_overwrite: false,
        cloned: disk.spec.data_source.is_some() || disk.spec.data_source_ref.is_some(),
    };
    PodIdentity {
        claims: plan
            .disks
            .iter()
            .map(|disk| (disk.path(), claim(disk)))
            .collect(),
        used_runner_data: plan
            .has_used_runner_data
            .then(|| plan.runner_data_claim.clone()),
        user_data_source: user_data_source(plan),
        generated_instance: plan.generated_instance.clone(),
    }
}

fn user_data_source(plan: &Plan) -> Option<String> {
    let mut sources = plan.seed_secrets.iter();
    let (_, source) = sources.find(|(file, _)| *file == names::SEED_USER_DATA)?;
    Some(format!("Secret {:?}, key {:?}", source.name, source.key))
}

/// The runner's configuration. It has no annotation with the operator's version: an upgrade of the operator would rewrite it for
/// every VM.
fn config_map(plan: &Plan) -> ConfigMap {
    let instance = plan
        .retained_instance
        .as_ref()
        // Serializing plain data into a string cannot fail.
        .map(|retained| serde_json::to_string(retained).unwrap_or_default());
    let annotations =
        instance.map(|instance| [(names::ANNOTATION_INSTANCE_ID.to_owned(), instance)].into());
    // No program reads this key. It is where people know it from the Java VM-Operator. The runner's configuration has the level.
    let logging = plan
        .logging_properties
        .clone()
        .map(|text| (logging::FILE.to_owned(), text));
    ConfigMap {
        metadata: ObjectMeta {
            annotations,
            ..owned(plan, plan.name.clone())
        },
        data: Some(
            [(names::CONFIG_FILE.to_owned(), plan.config_file.clone())]
                .into_iter()
                .chain(logging)
                .collect(),
        ),
        ..ConfigMap::default()
    }
}

/// The display Secret without its data. Its random password is created with it.
fn display_secret(plan: &Plan) -> Secret {
    let mut metadata = owned(plan, names::display_secret(&plan.name));
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(
        names::LABEL_COMPONENT.to_owned(),
        names::COMPONENT_DISPLAY_SECRET.to_owned(),
    );
    Secret {
        metadata,
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

/// The Service of type `LoadBalancer`.
fn service(plan: &Plan, service: &ServicePlan) -> Service {
    let mut metadata = owned(plan, plan.name.clone());
    let own_labels = metadata.labels.take().unwrap_or_default();
    let applied = json!({
        "labels": service.labels.keys().collect::<Vec<_>>(),
        "annotations": service.annotations.keys().collect::<Vec<_>>(),
    });
    let applied = (names::ANNOTATION_APPLIED.to_owned(), applied.to_string());
    metadata.labels = Some(
        service
            .labels
            .clone()
            .into_iter()
            .chain(own_labels)
            .collect(),
    );
    metadata.annotations = Some(
        service
            .annotations
            .clone()
            .into_iter()
            .chain([applied])
            .collect(),
    );
    let ports = service
        .ports
        .iter()
        .map(|(name, port, protocol)| ServicePort {
            name: Some(name.clone()),
            port: i32::from(*port),
            protocol: Some((*protocol).to_owned()),
            target_port: Some(IntOrString::Int(i32::from(*port))),
            ..ServicePort::default()
        });
    let selector = [
        (names::LABEL_NAME, names::APP_NAME),
        (names::LABEL_INSTANCE, plan.name.as_str()),
    ];
    let spec = ServiceSpec {
        type_: Some("LoadBalancer".to_owned()),
        selector: Some(
            selector
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
        ),
        ports: Some(ports.collect()),
        ..ServiceSpec::default()
    };
    Service {
        metadata,
        spec: Some(spec),
        status: None,
    }
}

/// An image, with its download pod if that has to be created.
fn prepared(fetch: &Fetch, plan: &Plan) -> fetch::apply::PreparedDownload {
    let attempt = match &fetch.step {
        Step::Create(attempt) | Step::Retry(_, attempt) => Some(attempt),
        Step::None | Step::Record(_) | Step::Remove(_) => None,
    };
    let pod = attempt.zip(plan.fetch_settings.as_deref());
    let pod = pod.map(|(attempt, settings)| {
        download_pod::build(&fetch.remote, attempt, &plan.namespace, settings)
    });
    fetch::apply::PreparedDownload {
        fetch: fetch.clone(),
        pod,
    }
}

/// Metadata of a child that is deleted with its VM.
fn owned(plan: &Plan, name: String) -> ObjectMeta {
    ObjectMeta {
        owner_references: Some(vec![names::owner(&plan.name, &plan.uid)]),
        ..retained(plan, name)
    }
}

/// Metadata of a child that is retained when its VM is deleted.
fn retained(plan: &Plan, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(plan.namespace.clone()),
        labels: Some(names::labels(&plan.name)),
        ..ObjectMeta::default()
    }
}

/// The annotation with the version of the operator that wrote the object.
fn version_annotation() -> (String, String) {
    (
        names::ANNOTATION_VERSION.to_owned(),
        env!("CARGO_PKG_VERSION").to_owned(),
    )
}
