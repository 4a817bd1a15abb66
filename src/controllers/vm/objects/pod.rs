//! (pure) The pod of a VM.
//!
//! It passes Pod Security `restricted`: no root, no capability, no host namespace, no host path, a read-only root file system.
//! [`Rights`] has the exceptions. It has no emptyDir, so that `kubectl drain` needs no flag that deletes data. The runner writes
//! temporary files to the pod's `/dev/shm`.

use crate::api::hex;
use crate::api::runner::identity::PodIdentity;
use crate::api::vm::names;
use crate::controllers::vm::objects::volumes::{self, mounts, volumes};
use crate::controllers::vm::objects::{Plan, owned, version_annotation};
use crate::controllers::vm::plan::{
    Place, Rights, protocol, short_form, without_unset_console_port,
};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, ObjectFieldSelector, Pod,
    PodSecurityContext, PodSpec, ResourceRequirements, SeccompProfile, SecurityContext,
    VolumeDevice,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

pub(super) fn build(plan: &Plan) -> Pod {
    let mut metadata = owned(plan, plan.name.clone());
    // The labels of the operator come last, because it finds its pods by them.
    let mut labels = plan.pod.labels.clone();
    labels.extend(metadata.labels.take().into_iter().flatten());
    labels.insert(
        names::LABEL_COMPONENT.to_owned(),
        names::APP_NAME.to_owned(),
    );
    metadata.labels = Some(labels);
    metadata.annotations = Some(
        plan.pod
            .annotations
            .clone()
            .into_iter()
            .chain(annotations(plan))
            .collect(),
    );
    let placement = plan.pod.placement.clone();
    let spec = PodSpec {
        containers: vec![container(plan)],
        volumes: Some(volumes(plan)),
        host_network: plan.pod.rights.host_network().then_some(true),
        // With hostNetwork, the default is the node's name servers.
        dns_policy: plan
            .pod
            .rights
            .host_network()
            .then(|| "ClusterFirstWithHostNet".to_owned()),
        security_context: (!plan.pod.rights.as_java_runner).then(|| pod_security(&plan.pod.rights)),
        service_account_name: Some(account(&plan.pod.rights).to_owned()),
        // The operator creates a new pod, because only it knows whether the VM should run.
        restart_policy: Some("Never".to_owned()),
        termination_grace_period_seconds: Some(plan.pod.grace_period),
        // Otherwise the Services of a large namespace fill the runner's environment.
        enable_service_links: Some(false),
        image_pull_secrets: plan.pod.pull_secrets.clone(),
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

/// A hash of all parts of a pod from [`build`] that cannot change while it exists. It is the most expensive part of a reconcile, and
/// needed only for a pod that has not run yet.
#[must_use]
pub fn template_hash(pod: &Pod) -> String {
    let mut spec = pod.spec.clone().unwrap_or_default();
    // Parts for the report and the web console are not covered. Another hash would re-create pods that wait for their start when the
    // operator is upgraded.
    spec.service_account_name = Some(names::RUNNER_SERVICE_ACCOUNT.to_owned());
    for container in &mut spec.containers {
        let variables = container.env.iter_mut();
        variables.for_each(|env| env.retain(|variable| variable.name != names::ENV_POD_UID));
        let ports = container.ports.iter_mut();
        ports.for_each(|ports| ports.retain(|port| !is_for_console(port)));
        container.ports.take_if(|ports| ports.is_empty());
    }
    for volume in spec.volumes.iter_mut().flatten() {
        volumes::remove_console_keys(volume);
    }
    let containers = spec.containers.iter_mut();
    for resources in containers.filter_map(|container| container.resources.as_mut()) {
        let amounts = [&mut resources.limits, &mut resources.requests];
        for amounts in amounts.into_iter().flatten() {
            amounts.retain(|name, _| !is_resizable(name));
        }
    }
    let started_with = pod.annotations().get(names::ANNOTATION_STARTED_WITH);
    let started_with = started_with.and_then(|json| serde_json::from_str(json).ok());
    let started_with = started_with.map(without_unset_console_port);
    // Serializing plain data cannot fail.
    let content = serde_json::to_vec(&(spec, started_with)).unwrap_or_default();
    hex(Sha256::digest(content).iter().take(8))
}

/// The pod with the annotation that contains its template hash.
#[must_use]
pub fn with_template_hash(mut pod: Pod) -> Pod {
    let hash = template_hash(&pod);
    pod.annotations_mut()
        .insert(names::ANNOTATION_TEMPLATE_HASH.to_owned(), hash);
    pod
}

/// The pod with the short form of the hashes of its fields. The operator keeps the annotation of each pod in memory.
#[must_use]
pub fn with_short_hashes(mut pod: Pod) -> Pod {
    let hashes = pod
        .annotations_mut()
        .get_mut(names::ANNOTATION_STARTED_WITH);
    if let Some(hashes) = hashes
        && let Ok(all) = serde_json::from_str(hashes)
    {
        // Serializing plain data into a string cannot fail.
        *hashes = serde_json::to_string(&short_form(all)).unwrap_or_default();
    }
    pod
}

/// The pod with its identity in the environment of its container. The template hash does not cover it: it is known only when the pod is
/// created.
#[must_use]
pub fn with_identity(mut pod: Pod, identity: &PodIdentity) -> Pod {
    if *identity == PodIdentity::default() {
        return pod;
    }
    // Serializing plain data into a string cannot fail. Names contain no `$(`, which the kubelet would expand.
    let value = serde_json::to_string(identity).unwrap_or_default();
    let containers = pod.spec.iter_mut().flat_map(|spec| &mut spec.containers);
    for container in containers {
        container.env.get_or_insert_default().push(EnvVar {
            name: names::ENV_IDENTITY.to_owned(),
            value: Some(value.clone()),
            value_from: None,
        });
    }
    pod
}

/// Whether the amount of the resource can change while the pod exists.
fn is_resizable(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory")
}

fn annotations(plan: &Plan) -> impl Iterator<Item = (String, String)> {
    let of = |amounts: &Option<BTreeMap<String, Quantity>>| {
        let amounts = amounts
            .clone()
            .into_iter()
            .flatten()
            .filter(|(name, _)| is_resizable(name));
        Some(amounts.collect::<BTreeMap<_, _>>()).filter(|amounts| !amounts.is_empty())
    };
    let (requests, limits) = (
        of(&plan.pod.resources.requests),
        of(&plan.pod.resources.limits),
    );
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
        image: Some(plan.pod.image.clone()),
        image_pull_policy: plan.pod.pull_policy.clone(),
        command: plan
            .pod
            .rights
            .tap
            .is_some()
            .then(|| vec![names::TAP_RUNNER.to_owned()]),
        env: Some(environment(&plan.pod.rights)),
        ports: Some(ports(plan)).filter(|ports| !ports.is_empty()),
        resources: Some(plan.pod.resources.clone()),
        security_context: Some(container_security(&plan.pod.rights)),
        volume_mounts: Some(mounts(plan)),
        volume_devices: Some(devices.collect::<Vec<_>>()).filter(|devices| !devices.is_empty()),
        ..Container::default()
    }
}

/// The security context of a container without additional rights.
pub(super) fn restricted() -> SecurityContext {
    container_security(&Rights::default())
}

/// The runner drops the capability for taps after their creation. It has the capability from the start, so privilege escalation
/// is forbidden.
fn container_security(rights: &Rights) -> SecurityContext {
    if rights.as_java_runner {
        return SecurityContext {
            privileged: Some(true),
            ..SecurityContext::default()
        };
    }
    let add = rights.tap.is_some().then(|| vec!["NET_ADMIN".to_owned()]);
    SecurityContext {
        // Kubernetes rejects this for a privileged container. The runner forbids it itself.
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

/// Root runs with the runner's group, so that root and the runner's user can use each other's files: the kubelet makes the files on
/// a volume accessible to the group, and files of root are accessible to it from the start.
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

/// The runner of the Java VM-Operator writes to the VM. All others write to a report.
fn account(rights: &Rights) -> &'static str {
    if rights.as_java_runner {
        names::RUNNER_SERVICE_ACCOUNT
    } else {
        names::REPORTER_SERVICE_ACCOUNT
    }
}

fn environment(rights: &Rights) -> Vec<EnvVar> {
    let uid = (!rights.as_java_runner).then(|| env(names::ENV_POD_UID, "metadata.uid"));
    let common = [
        env(names::ENV_NODE_NAME, "spec.nodeName"),
        env(names::ENV_POD_IP, "status.podIP"),
    ];
    common.into_iter().chain(uid).collect()
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
    let console = plan
        .console_port
        .map(|number| port(names::CONSOLE_PORT_NAME.to_owned(), number.into(), "TCP"));
    let ports = spice.into_iter().chain(forwards).chain(metrics);
    ports.chain(console).collect()
}

fn is_for_console(port: &ContainerPort) -> bool {
    port.name.as_deref() == Some(names::CONSOLE_PORT_NAME)
}
