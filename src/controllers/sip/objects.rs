//! (pure) The children of a cluster: for each load balancer a ConfigMap, a Deployment, a Service and a PodDisruptionBudget.

use crate::api::SIPCluster;
use crate::api::hex;
use crate::api::sip::names::{
    ANNOTATION_APPLIED, ANNOTATION_CONFIGURATION, LABEL_CLUSTER_NAME, PART_OF, ROLE_CONTROL_PLANE,
    ROLE_WORKER,
};
use crate::api::sip::{self, PortRange};
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
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
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
    /// Name of all its objects.
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
    /// At least one pod remains during a drain of nodes.
    pub budget: Option<PodDisruptionBudget>,
}

/// An entry of the spec for a load balancer.
struct Entry<'a> {
    name: String,
    service: &'a sip::Service,
    /// The role of the hosts.
    role: &'static str,
    /// Name, port and node port of each port. With node port 0, Kubernetes selects one.
    ports: Vec<(String, i32, i32)>,
    is_api_server: bool,
}

/// The load balancers of the spec.
fn entries(cluster: &SIPCluster) -> Vec<Entry<'_>> {
    let services = &cluster.spec.services;
    let control_plane = services.load_balancer_control_plane.iter().enumerate();
    let control_plane = control_plane.map(|(index, entry)| Entry {
        name: name("loadbalancer-controlplane", cluster, index),
        service: &entry.service,
        role: ROLE_CONTROL_PLANE,
        ports: vec![("http".to_owned(), API_SERVER_PORT, entry.node_port)],
        is_api_server: true,
    });
    let worker = services.load_balancer_worker.iter().enumerate();
    let worker = worker.map(|(index, entry)| {
        let PortRange { start, end } = entry.node_port_range;
        Entry {
            name: name("loadbalancer-worker", cluster, index),
            service: &entry.service,
            role: ROLE_WORKER,
            ports: (start..=end)
                .map(|port| (format!("port-{port}"), port, port))
                .collect(),
            is_api_server: false,
        }
    });
    control_plane.chain(worker).collect()
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
    let entries = entries(cluster).into_iter();
    entries
        .map(|entry| load_balancer(entry, cluster, members, settings))
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

/// The hosts of the role with an address in the network. A member without one remains a member, and gets no connections. The condition
/// Degraded names it.
fn servers(entry: &Entry, members: &[Placed]) -> Vec<Server> {
    let interface = entry.service.node_interface_id.as_deref();
    let of_role = members.iter().filter(|it| it.role == entry.role);
    let server = |it: &Placed| {
        let address = it.host.address(interface).ok()?;
        let name = it.host.name().to_owned();
        Some(Server { name, address })
    };
    of_role.filter_map(server).collect()
}

fn load_balancer(
    entry: Entry,
    cluster: &SIPCluster,
    members: &[Placed],
    settings: &SipSettings,
) -> Result<LoadBalancer, Error> {
    let servers = servers(&entry, members);
    let frontends: Vec<Frontend> = entry
        .ports
        .iter()
        .map(|(_, port, _)| Frontend {
            port: *port,
            is_api_server: entry.is_api_server,
            servers: servers.clone(),
        })
        .collect();
    let text = haproxy::configuration(&frontends, settings.drain);
    let configuration = hash(&text);
    let metadata = metadata(&entry.name, cluster);
    let config_map = ConfigMap {
        metadata: metadata.clone(),
        data: Some([("haproxy.cfg".to_owned(), text)].into()),
        ..ConfigMap::default()
    };
    let budget = PodDisruptionBudget {
        metadata: metadata.clone(),
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(1)),
            // Pods that do not become ready do not block a drain.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            selector: Some(label_selector(&entry.name)),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    };
    // With one pod, it would prevent each drain of the node.
    let budget = (settings.replicas > 1)
        .then(|| marked(budget))
        .transpose()?;
    Ok(LoadBalancer {
        cluster_ip: entry.service.cluster_ip.clone().filter(|it| !it.is_empty()),
        config_map: marked(config_map)?,
        deployment: marked(deployment(&metadata, &configuration, &entry, settings))?,
        service: marked(service(metadata, &entry))?,
        budget,
        configuration,
        name: entry.name,
    })
}

fn service(metadata: ObjectMeta, entry: &Entry) -> Service {
    let port = |(name, port, node_port): &(String, i32, i32)| ServicePort {
        name: Some(name.clone()),
        port: *port,
        target_port: Some(IntOrString::Int(*port)),
        protocol: Some("TCP".to_owned()),
        node_port: Some(*node_port).filter(|port| *port != 0),
        ..ServicePort::default()
    };
    let spec = ServiceSpec {
        type_: Some("NodePort".to_owned()),
        selector: Some(selector(&entry.name)),
        ports: Some(entry.ports.iter().map(port).collect()),
        ..ServiceSpec::default()
    };
    Service {
        metadata,
        spec: Some(spec),
        status: None,
    }
}

fn label_selector(name: &str) -> LabelSelector {
    LabelSelector {
        match_labels: Some(selector(name)),
        ..LabelSelector::default()
    }
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
    configuration: &str,
    entry: &Entry,
    settings: &SipSettings,
) -> Deployment {
    let selector = label_selector(&entry.name);
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
                name: entry.name.clone(),
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
    let health = ContainerPort {
        name: Some("health".to_owned()),
        container_port: HEALTH_PORT,
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
        // Up to a hundred ports of hosts need no entry, because the field is informative. The probes use the name of this one.
        ports: Some(vec![health]),
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
