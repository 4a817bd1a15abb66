//! (pure) The children of a cluster: for each load balancer a ConfigMap, a Deployment and a Service.

use crate::api::SIPCluster;
use crate::api::hex;
use crate::api::sip::ControlPlaneLoadBalancer;
use crate::api::sip::names::{
    ANNOTATION_APPLIED, ANNOTATION_CONFIGURATION, LABEL_CLUSTER_NAME, PART_OF, ROLE_CONTROL_PLANE,
};
use crate::controllers::sip::haproxy::{self, Frontend, HEALTH_PORT, Server};
use crate::controllers::sip::plan::Placed;
use crate::k8s::error::Error;
use crate::settings::sip::SipSettings;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment,
};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMap, ConfigMapVolumeSource, Container, ContainerPort, HTTPGetAction,
    Lifecycle, LifecycleHandler, PodSecurityContext, PodSpec, PodTemplateSpec, Probe,
    ResourceRequirements, SeccompProfile, SecurityContext, Service, ServicePort, ServiceSpec,
    SleepAction, TopologySpreadConstraint, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Time in which nodes learn that a pod gets no more connections, before HAProxy stops listening.
const STOP_DELAY_SECONDS: i64 = 5;
/// Time after the end of the drain in which HAProxy exits.
const EXIT_SECONDS: i64 = 10;
/// The port of the API servers of a cluster, and of their Service.
const API_SERVER_PORT: i32 = 6443;
/// The directory of the configuration in the image of HAProxy.
const CONFIGURATION_DIRECTORY: &str = "/usr/local/etc/haproxy";

/// The objects of a load balancer.
#[derive(Clone, Debug)]
pub struct LoadBalancer {
    /// Name of all three objects.
    pub name: String,
    /// Address at which users reach the node port, if the spec has it.
    pub cluster_ip: Option<String>,
    /// Hash of the configuration of its pods.
    pub configuration: String,
    /// The configuration.
    pub config_map: ConfigMap,
    /// The pods.
    pub deployment: Deployment,
    /// The node port.
    pub service: Service,
}

/// The load balancers of the cluster, with these hosts.
///
/// # Errors
/// An object cannot be serialized.
pub fn load_balancers(
    cluster: &SIPCluster,
    members: &[Placed],
    settings: &SipSettings,
) -> Result<Vec<LoadBalancer>, Error> {
    let entries = cluster.spec.services.load_balancer_control_plane.iter();
    entries
        .enumerate()
        .map(|(index, entry)| {
            let name = name("loadbalancer-controlplane", cluster, index);
            control_plane(name, entry, cluster, members, settings)
        })
        .collect()
}

/// The name of the entry's objects. The first one has the name that upstream gives to all.
fn name(prefix: &str, cluster: &SIPCluster, index: usize) -> String {
    let cluster = cluster.metadata.name.as_deref().unwrap_or_default();
    match index {
        0 => format!("{prefix}-{cluster}"),
        _ => format!("{prefix}-{cluster}-{}", index + 1),
    }
}

fn control_plane(
    name: String,
    entry: &ControlPlaneLoadBalancer,
    cluster: &SIPCluster,
    members: &[Placed],
    settings: &SipSettings,
) -> Result<LoadBalancer, Error> {
    let interface = entry.service.node_interface_id.as_deref();
    let members = members.iter().filter(|it| it.role == ROLE_CONTROL_PLANE);
    let mut servers = Vec::new();
    // A member without a valid address remains a member, and gets no connections. The condition Degraded names it.
    for member in members {
        if let Ok(address) = member.host.address(interface) {
            let name = member.host.name().to_owned();
            servers.push(Server { name, address });
        }
    }
    let frontend = Frontend {
        port: API_SERVER_PORT,
        is_api_server: true,
        servers,
    };
    let text = haproxy::configuration(&[frontend], settings.drain);
    let configuration = hash(&text);
    let metadata = metadata(&name, cluster);
    let selector = selector(&name);
    let port = ServicePort {
        name: Some("http".to_owned()),
        port: API_SERVER_PORT,
        target_port: Some(IntOrString::Int(API_SERVER_PORT)),
        protocol: Some("TCP".to_owned()),
        node_port: Some(entry.node_port).filter(|port| *port != 0),
        ..ServicePort::default()
    };
    let service = ServiceSpec {
        type_: Some("NodePort".to_owned()),
        selector: Some(selector.clone()),
        ports: Some(vec![port]),
        ..ServiceSpec::default()
    };
    let config_map = ConfigMap {
        metadata: metadata.clone(),
        data: Some([("haproxy.cfg".to_owned(), text)].into()),
        ..ConfigMap::default()
    };
    let deployment = deployment(&metadata, &name, &configuration, entry, settings);
    let service = Service {
        metadata,
        spec: Some(service),
        status: None,
    };
    Ok(LoadBalancer {
        cluster_ip: entry.service.cluster_ip.clone().filter(|it| !it.is_empty()),
        config_map: marked(config_map)?,
        deployment: marked(deployment)?,
        service: marked(service)?,
        configuration,
        name,
    })
}

/// The labels by which a Deployment and a Service of that name find their pods. Upstream has the same.
fn selector(name: &str) -> BTreeMap<String, String> {
    let labels = [
        ("part-of", PART_OF),
        ("component", "loadbalancer"),
        ("name", "haproxy"),
        ("instance", name),
    ];
    labels
        .map(|(label, value)| (format!("app.kubernetes.io/{label}"), value.to_owned()))
        .into()
}

fn labels(name: &str, cluster: &SIPCluster) -> BTreeMap<String, String> {
    let cluster = cluster.metadata.name.clone().unwrap_or_default();
    let mut labels = selector(name);
    labels.insert(LABEL_CLUSTER_NAME.to_owned(), cluster);
    labels
}

fn metadata(name: &str, cluster: &SIPCluster) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: cluster.metadata.namespace.clone(),
        labels: Some(labels(name, cluster)),
        owner_references: cluster.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

fn deployment(
    metadata: &ObjectMeta,
    name: &str,
    configuration: &str,
    entry: &ControlPlaneLoadBalancer,
    settings: &SipSettings,
) -> Deployment {
    let selector = LabelSelector {
        match_labels: Some(selector(name)),
        ..LabelSelector::default()
    };
    let image = Some(entry.service.image.clone()).filter(|image| !image.is_empty());
    let image = image.unwrap_or_else(|| settings.images.load_balancer.clone());
    let spread = TopologySpreadConstraint {
        max_skew: 1,
        topology_key: "kubernetes.io/hostname".to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        label_selector: Some(selector.clone()),
        ..TopologySpreadConstraint::default()
    };
    let drain = i64::try_from(settings.drain).unwrap_or(i64::MAX);
    let pod = PodSpec {
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        node_selector: Some(entry.service.node_labels.clone()).filter(|labels| !labels.is_empty()),
        termination_grace_period_seconds: Some(
            drain.saturating_add(STOP_DELAY_SECONDS + EXIT_SECONDS),
        ),
        topology_spread_constraints: Some(vec![spread]),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(65534),
            run_as_group: Some(65534),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                ..SeccompProfile::default()
            }),
            ..PodSecurityContext::default()
        }),
        containers: vec![container(image)],
        volumes: Some(vec![Volume {
            name: "configuration".to_owned(),
            config_map: Some(ConfigMapVolumeSource {
                name: name.to_owned(),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        }]),
        ..PodSpec::default()
    };
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: metadata.labels.clone(),
            // Another configuration replaces the pods.
            annotations: Some(
                [(
                    ANNOTATION_CONFIGURATION.to_owned(),
                    configuration.to_owned(),
                )]
                .into(),
            ),
            ..ObjectMeta::default()
        }),
        spec: Some(pod),
    };
    let strategy = DeploymentStrategy {
        type_: Some("RollingUpdate".to_owned()),
        rolling_update: Some(RollingUpdateDeployment {
            max_surge: Some(IntOrString::Int(1)),
            max_unavailable: Some(IntOrString::Int(0)),
        }),
    };
    Deployment {
        metadata: metadata.clone(),
        spec: Some(DeploymentSpec {
            replicas: Some(settings.replicas),
            strategy: Some(strategy),
            selector,
            template,
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

fn container(image: String) -> Container {
    let port = |name: &str, port| ContainerPort {
        name: Some(name.to_owned()),
        container_port: port,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    };
    let probe = |period| Probe {
        http_get: Some(HTTPGetAction {
            path: Some("/healthz".to_owned()),
            port: IntOrString::String("health".to_owned()),
            scheme: Some("HTTP".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        ..Probe::default()
    };
    let amounts = |amounts: &[(&str, &str)]| {
        let amounts = amounts
            .iter()
            .map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned())));
        Some(amounts.collect())
    };
    let file = format!("{CONFIGURATION_DIRECTORY}/haproxy.cfg");
    let command = ["haproxy", "-db", "-f", &file];
    Container {
        name: "haproxy".to_owned(),
        image: Some(image),
        command: Some(command.map(str::to_owned).into()),
        ports: Some(vec![
            port("http", API_SERVER_PORT),
            port("health", HEALTH_PORT),
        ]),
        liveness_probe: Some(probe(10)),
        readiness_probe: Some(probe(2)),
        lifecycle: Some(Lifecycle {
            pre_stop: Some(LifecycleHandler {
                sleep: Some(SleepAction {
                    seconds: STOP_DELAY_SECONDS,
                }),
                ..LifecycleHandler::default()
            }),
            ..Lifecycle::default()
        }),
        resources: Some(ResourceRequirements {
            requests: amounts(&[("cpu", "10m"), ("memory", "32Mi")]),
            limits: amounts(&[("memory", "128Mi")]),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                ..Capabilities::default()
            }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(vec![VolumeMount {
            name: "configuration".to_owned(),
            mount_path: CONFIGURATION_DIRECTORY.to_owned(),
            read_only: Some(true),
            ..VolumeMount::default()
        }]),
        ..Container::default()
    }
}

fn hash(text: &str) -> String {
    let digest = Sha256::digest(text);
    hex(digest.iter().take(8))
}

/// The object with its own hash as an annotation.
fn marked<K: Serialize + Resource<DynamicType = ()>>(mut object: K) -> Result<K, Error> {
    let text = serde_json::to_string(&object).map_err(|error| Error::Panic(error.to_string()))?;
    let annotations = object.annotations_mut();
    annotations.insert(ANNOTATION_APPLIED.to_owned(), hash(&text));
    Ok(object)
}
