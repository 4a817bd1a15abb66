//! (pure) The pod. It passes Pod Security `restricted`: no root, no capability, no host namespace, no host path, a
//! read-only root; what a VM needs beyond that is its plan's [`Rights`]. It has no emptyDir either, so that a drain needs
//! no flag that deletes data; what the runner writes for its own life time goes to the pod's `/dev/shm`.

use crate::api::hex;
use crate::api::vm::{SecretKeyRef, names};
use crate::controllers::vm::objects::{Plan, owned, version_annotation};
use crate::controllers::vm::plan::{Place, Rights, Tun, protocol};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapProjection, Container, ContainerPort, EnvVar, EnvVarSource,
    HostPathVolumeSource, KeyToPath, ObjectFieldSelector, PersistentVolumeClaimVolumeSource, Pod,
    PodSecurityContext, PodSpec, ProjectedVolumeSource, ResourceRequirements, SeccompProfile,
    SecretProjection, SecurityContext, Volume, VolumeDevice, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

const CONFIG: &str = "config";
const RUNNER_DATA: &str = "runner-data";
const SEED: &str = "seed";
const TUN: &str = "tun";

pub(super) fn build(plan: &Plan) -> Pod {
    let mut metadata = owned(plan, plan.name.clone());
    // The user's first: what the operator finds its pods by stays.
    let mut labels = plan.pod_labels.clone();
    labels.extend(metadata.labels.take().into_iter().flatten());
    labels.insert(
        names::LABEL_COMPONENT.to_owned(),
        names::APP_NAME.to_owned(),
    );
    metadata.labels = Some(labels);
    metadata.annotations = Some(
        plan.pod_annotations
            .clone()
            .into_iter()
            .chain(annotations(plan))
            .collect(),
    );
    let placement = plan.placement.clone();
    let spec = PodSpec {
        containers: vec![container(plan)],
        volumes: Some(volumes(plan)),
        host_network: plan.rights.host_network().then_some(true),
        // In the node's network, the node's name servers are the default.
        dns_policy: plan
            .rights
            .host_network()
            .then(|| "ClusterFirstWithHostNet".to_owned()),
        security_context: (!plan.rights.as_reference).then(|| pod_security(&plan.rights)),
        service_account_name: Some(names::RUNNER_SERVICE_ACCOUNT.to_owned()),
        // The operator makes a new pod when one has ended, as only it knows whether the VM should run.
        restart_policy: Some("Never".to_owned()),
        termination_grace_period_seconds: Some(plan.grace_period),
        // Else a namespace with many services fills the runner's environment.
        enable_service_links: Some(false),
        image_pull_secrets: plan.pull_secrets.clone(),
        node_name: placement.node_name,
        node_selector: placement.node_selector,
        affinity: placement.affinity,
        tolerations: placement.tolerations,
        topology_spread_constraints: placement.topology_spread_constraints,
        priority_class_name: placement.priority_class_name,
        runtime_class_name: placement.runtime_class_name,
        ..PodSpec::default()
    };
    Pod {
        metadata,
        spec: Some(spec),
        status: None,
    }
}

/// A hash of all that needs another pod where it changes, of a pod as [`build`] gives it. It takes longer than all the
/// rest, and who has a pod that has run needs none.
#[must_use]
pub fn made_of(pod: &Pod) -> String {
    let mut spec = pod.spec.clone().unwrap_or_default();
    for resources in spec
        .containers
        .iter_mut()
        .filter_map(|container| container.resources.as_mut())
    {
        for amounts in [&mut resources.limits, &mut resources.requests]
            .into_iter()
            .flatten()
        {
            amounts.retain(|name, _| !can_follow(name));
        }
    }
    let started_with = pod.annotations().get(names::ANNOTATION_STARTED_WITH);
    let started_with = started_with.and_then(|json| serde_json::from_str::<&RawValue>(json).ok());
    // Serializing plain data cannot fail.
    let said = serde_json::to_vec(&(spec, started_with)).unwrap_or_default();
    hex(Sha256::digest(said).iter().take(8))
}

/// The pod with what says of what it is made, as it is created.
#[must_use]
pub fn marked(mut pod: Pod) -> Pod {
    let made_of = made_of(&pod);
    pod.annotations_mut()
        .insert(names::ANNOTATION_TEMPLATE_HASH.to_owned(), made_of);
    pod
}

/// Whether a pod that is there can get another amount of it.
fn can_follow(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory")
}

fn annotations(plan: &Plan) -> impl Iterator<Item = (String, String)> {
    let of = |amounts: &Option<BTreeMap<String, Quantity>>| {
        let amounts = amounts
            .clone()
            .into_iter()
            .flatten()
            .filter(|(name, _)| can_follow(name));
        Some(amounts.collect::<BTreeMap<_, _>>()).filter(|amounts| !amounts.is_empty())
    };
    let (requests, limits) = (of(&plan.resources.requests), of(&plan.resources.limits));
    // Serializing plain data into a string cannot fail.
    let resources = ResourceRequirements {
        requests,
        limits,
        claims: None,
    };
    let resources = serde_json::to_string(&resources).unwrap_or_default();
    let started_with = serde_json::to_string(&plan.started_with).unwrap_or_default();
    let restart = plan
        .restart_request
        .map(|n| (names::ANNOTATION_RESTART_REQUEST.to_owned(), n.to_string()));
    let own = [
        (names::ANNOTATION_RESOURCES, resources),
        (names::ANNOTATION_STARTED_WITH, started_with),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value));
    own.into_iter().chain([version_annotation()]).chain(restart)
}

fn container(plan: &Plan) -> Container {
    let devices = plan
        .disks
        .iter()
        .filter(|disk| disk.place == Place::Device)
        .map(|disk| VolumeDevice {
            name: disk.name.clone(),
            device_path: disk.path(),
        });
    Container {
        name: names::container(&plan.name),
        image: Some(plan.image.clone()),
        image_pull_policy: plan.pull_policy.clone(),
        command: plan
            .rights
            .tap
            .is_some()
            .then(|| vec![names::TAP_RUNNER.to_owned()]),
        env: Some(vec![
            env(names::ENV_NODE_NAME, "spec.nodeName"),
            env(names::ENV_POD_IP, "status.podIP"),
        ]),
        ports: Some(ports(plan)).filter(|ports| !ports.is_empty()),
        resources: Some(plan.resources.clone()),
        security_context: Some(container_security(&plan.rights)),
        volume_mounts: Some(mounts(plan)),
        volume_devices: Some(devices.collect::<Vec<_>>()).filter(|devices| !devices.is_empty()),
        ..Container::default()
    }
}

/// What a container of ours may do that needs nothing beyond.
pub(super) fn restricted() -> SecurityContext {
    container_security(&Rights::default())
}

/// What taps need is added, and given up by the runner once it has them. As nobody gains what the runner had not from the
/// start, privilege escalation is forbidden all the same.
fn container_security(rights: &Rights) -> SecurityContext {
    if rights.as_reference {
        return SecurityContext {
            privileged: Some(true),
            ..SecurityContext::default()
        };
    }
    let add = rights.tap.is_some().then(|| vec!["NET_ADMIN".to_owned()]);
    SecurityContext {
        // A privileged container cannot forbid it; the runner does so itself.
        allow_privilege_escalation: (!rights.privileged).then_some(false),
        privileged: rights.privileged.then_some(true),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            add,
        }),
        read_only_root_filesystem: Some(true),
        ..SecurityContext::default()
    }
}

/// Root has the runner's group, so that both can use what the other has written: the kubelet opens to the group what is on
/// a volume, and root's files are open to it from the start.
pub(super) fn pod_security(rights: &Rights) -> PodSecurityContext {
    let (user, change_policy) = if rights.root {
        (0, "Always")
    } else {
        (names::RUNNER_UID, "OnRootMismatch")
    };
    PodSecurityContext {
        run_as_non_root: (!rights.root).then_some(true),
        run_as_user: Some(user),
        run_as_group: Some(names::RUNNER_UID),
        fs_group: Some(names::RUNNER_UID),
        fs_group_change_policy: Some(change_policy.to_owned()),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            localhost_profile: None,
        }),
        ..PodSecurityContext::default()
    }
}

fn env(name: &str, field: &str) -> EnvVar {
    let field_ref = ObjectFieldSelector {
        field_path: field.to_owned(),
        api_version: None,
    };
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(field_ref),
            ..EnvVarSource::default()
        }),
        value: None,
    }
}

fn ports(plan: &Plan) -> Vec<ContainerPort> {
    let port = |name: String, port: i32, protocol: &str| ContainerPort {
        name: Some(name),
        container_port: port,
        protocol: Some(protocol.to_owned()),
        ..ContainerPort::default()
    };
    let spice = plan
        .spice_port
        .map(|number| port("spice".to_owned(), number.into(), "TCP"));
    let forwards = plan.forwards.iter().map(|forward| {
        let protocol = protocol(forward.protocol);
        port(
            format!("{}-{}", protocol.to_lowercase(), forward.port),
            forward.port,
            protocol,
        )
    });
    let metrics = plan
        .config
        .metrics_port
        .map(|number| port("metrics".to_owned(), number.into(), "TCP"));
    spice.into_iter().chain(forwards).chain(metrics).collect()
}

fn mounts(plan: &Plan) -> Vec<VolumeMount> {
    let mount = |name: &str, path: &str, read_only| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(read_only).filter(|read_only| *read_only),
        ..VolumeMount::default()
    };
    let images = plan.has_cd_drive.then(|| {
        mount(
            names::IMAGE_REPOSITORY_CLAIM,
            names::IMAGE_REPOSITORY_DIR,
            true,
        )
    });
    let files = plan.disks.iter().filter(|disk| disk.place != Place::Device);
    let files = files.map(|disk| mount(&disk.name, &disk.directory(), false));
    let seed = (!plan.seed_secrets.is_empty()).then(|| mount(SEED, names::SEED_DIR, true));
    let tun = has_nodes_tun(plan).then(|| mount(TUN, names::TUN_DEVICE, false));
    [
        mount(CONFIG, names::CONFIG_DIR, true),
        mount(RUNNER_DATA, names::DATA_DIR, false),
    ]
    .into_iter()
    .chain(seed)
    .chain(images)
    .chain(files)
    .chain(tun)
    .collect()
}

fn volumes(plan: &Plan) -> Vec<Volume> {
    let claim = |name: &str, claim: String, read_only| Volume {
        name: name.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim,
            read_only: Some(read_only).filter(|read_only| *read_only),
        }),
        ..Volume::default()
    };
    // Without a CD drive the repository is not mounted, so that such VMs need no shared storage. VMs only ever read it, by
    // their mounts. The volume is read-only where it cannot be otherwise: the kubelet gives a volume to the group of the pod
    // that mounts it first, but not a read-only one, and a fetch pod that came later could not write there.
    let repository = names::IMAGE_REPOSITORY_CLAIM;
    let images = || {
        claim(
            repository,
            repository.to_owned(),
            plan.repository_is_read_only,
        )
    };
    let images = plan.has_cd_drive.then(images);
    let disks = plan
        .disks
        .iter()
        .map(|disk| claim(&disk.name, disk.claim.clone(), false));
    [
        config_volume(plan),
        claim(RUNNER_DATA, plan.runner_data_claim.clone(), false),
    ]
    .into_iter()
    .chain(seed_volume(plan))
    .chain(images)
    .chain(disks)
    .chain(has_nodes_tun(plan).then(tun_volume))
    .collect()
}

fn has_nodes_tun(plan: &Plan) -> bool {
    plan.rights.tap == Some(Tun::HostPath)
}

fn tun_volume() -> Volume {
    let host_path = HostPathVolumeSource {
        path: names::TUN_DEVICE.to_owned(),
        type_: Some("CharDevice".to_owned()),
    };
    Volume {
        name: TUN.to_owned(),
        host_path: Some(host_path),
        ..Volume::default()
    }
}

fn config_volume(plan: &Plan) -> Volume {
    let config_map = VolumeProjection {
        config_map: Some(ConfigMapProjection {
            name: plan.name.clone(),
            ..ConfigMapProjection::default()
        }),
        ..VolumeProjection::default()
    };
    let secret = |items| {
        plan.display_secret.as_ref().map(|name| VolumeProjection {
            secret: Some(SecretProjection {
                name: name.clone(),
                items,
                optional: None,
            }),
            ..VolumeProjection::default()
        })
    };
    // Asked for by name too: a display whose secret lacks its password must not come up without one.
    let password = KeyToPath {
        key: names::SECRET_PASSWORD.to_owned(),
        path: names::SECRET_PASSWORD.to_owned(),
        ..KeyToPath::default()
    };
    let sources = [config_map]
        .into_iter()
        .chain(secret(None))
        .chain(secret(Some(vec![password])))
        .collect();
    projected(CONFIG, sources)
}

/// Apart from the configuration, which the kubelet could not bring up to date any more once one of these secrets is
/// gone: after the guest's first start nobody needs them.
fn seed_volume(plan: &Plan) -> Option<Volume> {
    let source = |(file, from): &(&str, SecretKeyRef)| VolumeProjection {
        secret: Some(SecretProjection {
            name: from.name.clone(),
            items: Some(vec![KeyToPath {
                key: from.key.clone(),
                path: (*file).to_owned(),
                ..KeyToPath::default()
            }]),
            optional: None,
        }),
        ..VolumeProjection::default()
    };
    let sources: Vec<_> = plan.seed_secrets.iter().map(source).collect();
    (!sources.is_empty()).then(|| projected(SEED, sources))
}

fn projected(name: &str, sources: Vec<VolumeProjection>) -> Volume {
    // Readable by the runner's group, which the volume gets by fsGroup, and nobody else.
    let projected = ProjectedVolumeSource {
        default_mode: Some(0o440),
        sources: Some(sources),
    };
    Volume {
        name: name.to_owned(),
        projected: Some(projected),
        ..Volume::default()
    }
}
