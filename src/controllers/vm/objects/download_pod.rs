//! (pure) The download pod of a CD image. It is as restricted as the pod of a VM, has no service account, and is the only pod that
//! can write to the image repository.

use crate::api::runner::fetch::{Checksum, Request, shown};
use crate::api::vm::names;
use crate::controllers::vm::fetch::Attempt;
use crate::controllers::vm::images::RemoteImage;
use crate::controllers::vm::objects::pod::{pod_security, restricted};
use crate::controllers::vm::objects::version_annotation;
use crate::controllers::vm::plan::Rights;
use crate::settings::{self, Authorities, FetchSettings};
use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, EnvFromSource, EnvVar, KeyToPath,
    PersistentVolumeClaimVolumeSource, Pod, PodSpec, ResourceRequirements, SecretEnvSource, Volume,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;

/// Seconds from the deadline of the program, which exits with a message, until the deadline of the pod, which has none.
const DEADLINE_MARGIN_SECONDS: u64 = 120;
pub(super) const GRACE_PERIOD_SECONDS: i64 = 10;
/// Volume and file of the configured certificate authorities.
const AUTHORITIES: &str = "authorities";
const AUTHORITIES_FILE: &str = "ca.crt";

/// The download pod for an attempt.
pub(super) fn build(
    remote: &RemoteImage,
    attempt: &Attempt,
    namespace: &str,
    settings: &settings::Reconciler,
) -> Pod {
    let fetch = &settings.image_repository.fetch;
    let (volumes, volume_mounts) = volumes(&fetch.authorities);
    let spec = PodSpec {
        containers: vec![container(remote, volume_mounts, settings)],
        volumes: Some(volumes),
        security_context: Some(pod_security(&Rights::default())),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        // The operator retries, because it knows the backoff and the failures for which a retry is useless.
        restart_policy: Some("Never".to_owned()),
        active_deadline_seconds: i64::try_from(
            fetch.deadline.saturating_add(DEADLINE_MARGIN_SECONDS),
        )
        .ok(),
        termination_grace_period_seconds: Some(GRACE_PERIOD_SECONDS),
        // The nodes of VMs, because the volume of the repository may be on these nodes only.
        node_selector: settings.pod_defaults.node_selector.clone(),
        tolerations: settings.pod_defaults.tolerations.clone(),
        image_pull_secrets: settings.pod_defaults.image_pull_secrets.clone(),
        ..PodSpec::default()
    };
    let metadata = ObjectMeta {
        name: Some(remote.pod_name()),
        namespace: Some(namespace.to_owned()),
        labels: Some(labels()),
        annotations: Some(annotations(remote, attempt)),
        ..ObjectMeta::default()
    };
    Pod {
        metadata,
        spec: Some(spec),
        status: None,
    }
}

fn container(
    remote: &RemoteImage,
    volume_mounts: Vec<VolumeMount>,
    settings: &settings::Reconciler,
) -> Container {
    let fetch = &settings.image_repository.fetch;
    let request = Request {
        checksum: remote.sha256.clone().map(Checksum::Sha256),
        ..fetch_request(&remote.url, remote.path(), fetch)
    };
    let arguments = request.arguments();
    Container {
        name: remote.pod_name(),
        image: Some(settings.runner_image.source.clone()),
        image_pull_policy: Some(settings.runner_image.pull_policy.clone()),
        args: Some(arguments.iter().map(|argument| literal(argument)).collect()),
        resources: Some(resources()),
        security_context: Some(restricted()),
        env: environment(fetch),
        env_from: proxies(fetch),
        volume_mounts: Some(volume_mounts),
        ..Container::default()
    }
}

/// The variables of the configured Secret with proxies.
pub(super) fn proxies(fetch: &FetchSettings) -> Option<Vec<EnvFromSource>> {
    let secret = fetch.proxy_secret.as_ref()?;
    Some(vec![EnvFromSource {
        secret_ref: Some(SecretEnvSource {
            name: secret.clone(),
            optional: None,
        }),
        ..EnvFromSource::default()
    }])
}

/// The download of that URL with the configured limits.
pub(super) fn fetch_request(url: &str, to: String, fetch: &FetchSettings) -> Request {
    let authorities = fetch.authorities.config_map.as_ref();
    Request {
        url: url.to_owned(),
        to,
        checksum: None,
        max_bytes: Some(fetch.max_size.0),
        deadline: Some(fetch.deadline),
        schemes: fetch.schemes.clone(),
        authorities: authorities.map(|_| format!("{}/{AUTHORITIES_FILE}", authorities_dir())),
    }
}

fn authorities_dir() -> String {
    format!("{}/{AUTHORITIES}", names::CONFIG_DIR)
}

/// The image repository, and the certificate authorities if they are configured.
fn volumes(authorities: &Authorities) -> (Vec<Volume>, Vec<VolumeMount>) {
    let claim = PersistentVolumeClaimVolumeSource {
        claim_name: names::IMAGE_REPOSITORY_CLAIM.to_owned(),
        read_only: None,
    };
    let repository = Volume {
        name: names::IMAGE_REPOSITORY_CLAIM.to_owned(),
        persistent_volume_claim: Some(claim),
        ..Volume::default()
    };
    let mount = VolumeMount {
        name: names::IMAGE_REPOSITORY_CLAIM.to_owned(),
        mount_path: names::IMAGE_REPOSITORY_DIR.to_owned(),
        ..VolumeMount::default()
    };
    let (authorities, authorities_mount) = authority_volumes(authorities);
    (
        [repository].into_iter().chain(authorities).collect(),
        [mount].into_iter().chain(authorities_mount).collect(),
    )
}

/// The certificate authorities, if they are configured.
pub(super) fn authority_volumes(
    Authorities { config_map, key }: &Authorities,
) -> (Option<Volume>, Option<VolumeMount>) {
    let Some(config_map) = config_map else {
        return (None, None);
    };
    let item = KeyToPath {
        key: key.clone(),
        path: AUTHORITIES_FILE.to_owned(),
        mode: None,
    };
    let source = ConfigMapVolumeSource {
        name: config_map.clone(),
        items: Some(vec![item]),
        ..ConfigMapVolumeSource::default()
    };
    let volume = Volume {
        name: AUTHORITIES.to_owned(),
        config_map: Some(source),
        ..Volume::default()
    };
    let mount = VolumeMount {
        name: AUTHORITIES.to_owned(),
        mount_path: authorities_dir(),
        read_only: Some(true),
        ..VolumeMount::default()
    };
    (Some(volume), Some(mount))
}

/// The argument such that the kubelet, which replaces `$(NAME)` by a variable of the environment, passes it on unchanged. A URL could
/// otherwise send the password of the proxy to its server.
pub(super) fn literal(argument: &str) -> String {
    argument.replace('$', "$$")
}

/// The configured proxies. They take precedence over variables of the Secret.
pub(super) fn environment(fetch: &FetchSettings) -> Option<Vec<EnvVar>> {
    let named = [
        ("HTTP_PROXY", &fetch.http_proxy),
        ("HTTPS_PROXY", &fetch.https_proxy),
        ("NO_PROXY", &fetch.no_proxy),
    ];
    let variables = named.into_iter().filter_map(|(name, value)| {
        let value = Some(value.clone()?);
        Some(EnvVar {
            name: name.to_owned(),
            value,
            value_from: None,
        })
    });
    Some(variables.collect::<Vec<_>>()).filter(|variables| !variables.is_empty())
}

fn labels() -> BTreeMap<String, String> {
    let labels = [
        (names::LABEL_NAME, names::APP_FETCH),
        (names::LABEL_COMPONENT, names::APP_FETCH),
        (names::LABEL_MANAGED_BY, names::MANAGED_BY),
    ];
    labels
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

fn annotations(remote: &RemoteImage, attempt: &Attempt) -> BTreeMap<String, String> {
    // Serializing plain data into a string cannot fail.
    let attempt = serde_json::to_string(attempt).unwrap_or_default();
    let own = [
        (names::ANNOTATION_FETCHES, shown(&remote.url)),
        (names::ANNOTATION_FETCH_TRY, attempt),
    ];
    own.map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .chain([version_annotation()])
        .collect()
}

/// The program needs memory for one buffer. The page cache counts towards the limit, and the kernel can reclaim it.
fn resources() -> ResourceRequirements {
    let amounts = |amounts: &[(&str, &str)]| {
        let amounts = amounts
            .iter()
            .map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned())));
        Some(amounts.collect())
    };
    ResourceRequirements {
        requests: amounts(&[("cpu", "50m"), ("memory", "64Mi")]),
        limits: amounts(&[("cpu", "1"), ("memory", "256Mi")]),
        claims: None,
    }
}
