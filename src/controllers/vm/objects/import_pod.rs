//! (pure) The import pod of a VM, which fills a disk before the VM's own pod is created.
//!
//! It has the name, the PVCs, the requests and the placement of the VM's pod, so that it runs where the VM can run. It keeps the VM's labels,
//! so that NetworkPolicies hold. It has no token, no rights for taps, and is never ready.

use crate::api::runner::fetch::{
    Checksum, CopyRequest, ENV_PASSWORD, ENV_USERNAME, ImportRequest, Request, UploadRequest,
};
use crate::api::vm::HttpSource;
use crate::api::vm::names;
use crate::controllers::vm::objects::download_pod::{
    GRACE_PERIOD_SECONDS, authority_volumes, environment, fetch_request, literal, proxies,
};
use crate::controllers::vm::objects::pod::{self, pod_security, restricted};
use crate::controllers::vm::objects::volumes::{SOURCE, import_volumes};
use crate::controllers::vm::plan::{ImportPlan, Plan, Rights, Source};
use k8s_openapi::api::core::v1::{
    Container, EnvVar, EnvVarSource, Pod, PodReadinessGate, ResourceRequirements,
    SecretKeySelector, VolumeDevice,
};
use kube::ResourceExt;

/// The pod. [`super::with_identity`] adds the UID of the PVC.
pub(super) fn build(plan: &Plan, import: &ImportPlan) -> Pod {
    let mut pod = pod::build(plan);
    let fetch = &import.settings.image_repository.fetch;
    let annotations = pod.annotations_mut();
    // They describe a running VM.
    annotations.remove(names::ANNOTATION_STARTED_WITH);
    annotations.remove(names::ANNOTATION_RESOURCES);
    annotations.insert(names::ANNOTATION_IMPORTS.to_owned(), import.claim.clone());
    let spec = pod.spec.get_or_insert_default();
    let rights = Rights {
        root: plan.pod.rights.root,
        ..Rights::default()
    };
    let never = PodReadinessGate {
        condition_type: names::CONDITION_NEVER_READY.to_owned(),
    };
    let (mut volumes, mut mounts) = import_volumes(plan, import);
    if let Source::Http(_) = import.source {
        let (authorities, mount) = authority_volumes(&fetch.authorities);
        volumes.extend(authorities);
        mounts.extend(mount);
    }
    spec.host_network = None;
    spec.dns_policy = None;
    spec.security_context = Some(pod_security(&rights));
    spec.service_account_name = None;
    spec.automount_service_account_token = Some(false);
    spec.readiness_gates = Some(vec![never]);
    spec.termination_grace_period_seconds = Some(GRACE_PERIOD_SECONDS);
    spec.volumes = Some(volumes);
    let image = &import.settings.runner_image;
    let mut container = Container {
        name: names::container(&plan.name),
        image: Some(image.source.clone()),
        image_pull_policy: Some(image.pull_policy.clone()),
        args: Some(arguments(import)),
        resources: Some(resources(plan)),
        security_context: Some(restricted()),
        volume_mounts: Some(mounts),
        volume_devices: Some(devices(import)).filter(|devices| !devices.is_empty()),
        ..Container::default()
    };
    if let Source::Http(http) = &import.source {
        container.env = with_credentials(environment(fetch), http);
        container.env_from = proxies(fetch);
    }
    spec.containers = vec![container];
    pod
}

fn devices(import: &ImportPlan) -> Vec<VolumeDevice> {
    let device = |name: &str, path: &str| VolumeDevice {
        name: name.to_owned(),
        device_path: path.to_owned(),
    };
    let disk = import
        .directory
        .is_none()
        .then(|| device(&import.volume, &import.to));
    let is_copied = matches!(
        import.source,
        Source::Pvc {
            is_device: true,
            ..
        }
    );
    let source = is_copied.then(|| device(SOURCE, names::SOURCE_DEVICE));
    disk.into_iter().chain(source).collect()
}

fn arguments(import: &ImportPlan) -> Vec<String> {
    let arguments = match &import.source {
        Source::Http(http) => download(import, http).arguments(),
        Source::Pvc { is_device, .. } => {
            let from = match is_device {
                true => names::SOURCE_DEVICE.to_owned(),
                false => format!("{}/{}", names::SOURCE_DIR, names::DISK_FILE),
            };
            let (to, data) = (import.to.clone(), names::DATA_DIR.to_owned());
            CopyRequest { from, to, data }.arguments()
        }
        Source::Upload(upload) => UploadRequest {
            to: import.to.clone(),
            data: names::DATA_DIR.to_owned(),
            checksum: upload.checksum.as_deref().and_then(Checksum::parse),
            format: upload.format.map(|it| it.as_str().to_owned()),
        }
        .arguments(),
    };
    arguments.iter().map(|it| literal(it)).collect()
}

fn download(import: &ImportPlan, source: &HttpSource) -> ImportRequest {
    let fetch = &import.settings.image_repository.fetch;
    ImportRequest {
        fetch: Request {
            // The volume of the disk is the limit.
            max_bytes: None,
            checksum: source.checksum.as_deref().and_then(Checksum::parse),
            ..fetch_request(&source.url, import.to.clone(), fetch)
        },
        data: names::DATA_DIR.to_owned(),
        format: source.format.map(|it| it.as_str().to_owned()),
    }
}

/// The variables with those of the Secret for the server. The kubelet reads the Secret, and the pod waits while it is missing.
fn with_credentials(variables: Option<Vec<EnvVar>>, source: &HttpSource) -> Option<Vec<EnvVar>> {
    let Some(secret) = &source.secret_name else {
        return variables;
    };
    let from_secret = |(name, key): (&str, &str)| EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: secret.clone(),
                key: key.to_owned(),
                optional: None,
            }),
            ..EnvVarSource::default()
        }),
    };
    let credentials = [(ENV_USERNAME, "username"), (ENV_PASSWORD, "password")];
    let mut variables = variables.unwrap_or_default();
    variables.extend(credentials.map(from_secret));
    Some(variables)
}

/// The requests of the VM, without the device for taps.
fn resources(plan: &Plan) -> ResourceRequirements {
    let mut resources = plan.pod.resources.clone();
    if let Some(tun) = plan.pod.rights.tun_resource() {
        let amounts = [&mut resources.limits, &mut resources.requests];
        for amounts in amounts.into_iter().flatten() {
            amounts.remove(tun);
        }
    }
    resources
}
