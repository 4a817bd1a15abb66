//! (pure) Load balancers: HAProxy in front of the hosts of a role.

use crate::api::SIPCluster;
use crate::api::sip::names::{ROLE_CONTROL_PLANE, ROLE_WORKER};
use crate::api::sip::{self, PortRange};
use crate::controllers::sip::haproxy::{self, Frontend, HEALTH_PORT, Server};
use crate::controllers::sip::objects::child::{
    self, Child, ServiceObjects, container, hash, marked, mount, name,
};
use crate::controllers::sip::plan::Placed;
use crate::k8s::error::Error;
use crate::settings::sip::SipSettings;
use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapVolumeSource, Container, ContainerPort, HTTPGetAction, Lifecycle,
    LifecycleHandler, PodSpec, Probe, SleepAction, TopologySpreadConstraint, Volume,
};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Time in which nodes learn that a pod gets no more connections, before HAProxy stops listening.
const STOP_DELAY_SECONDS: i64 = 5;
/// Time after the end of the drain in which HAProxy exits.
const EXIT_SECONDS: i64 = 10;
/// The port of the API servers of a cluster, and of their Service.
const API_SERVER_PORT: i32 = 6443;
/// The directory of the configuration in the image of HAProxy.
const CONFIGURATION_DIRECTORY: &str = "/usr/local/etc/haproxy";
/// User and group of HAProxy.
const USER: i64 = 65534;

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
) -> Result<Vec<ServiceObjects>, Error> {
    let entries = entries(cluster).into_iter();
    entries
        .map(|entry| load_balancer(entry, cluster, members, settings))
        .collect()
}

/// The hosts of the role with an address in the network. A member without one remains a member, and gets no connections. The condition
/// Degraded names it.
fn servers(entry: &Entry, members: &[Placed]) -> Vec<Server> {
    let interface = entry.service.node_interface_id.as_deref();
    let of_role = members.iter().filter(|it| it.role == entry.role);
    let server = |it: &Placed| {
        let address = it.host.address(interface).ok()?;
        let name = it.host.name.to_owned();
        Some(Server { name, address })
    };
    of_role.filter_map(server).collect()
}

fn load_balancer(
    entry: Entry,
    cluster: &SIPCluster,
    members: &[Placed],
    settings: &SipSettings,
) -> Result<ServiceObjects, Error> {
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
    let child = Child {
        cluster,
        entry: entry.service,
        name: entry.name,
        component: "loadbalancer",
        program: "haproxy",
    };
    let config_map = ConfigMap {
        metadata: child.metadata(),
        data: Some([("haproxy.cfg".to_owned(), text)].into()),
        ..ConfigMap::default()
    };
    // With one pod, it would prevent each drain of the node.
    let budget = (settings.replicas > 1)
        .then(|| marked(budget(&child)))
        .transpose()?;
    let deployment = child.deployment(&configuration, settings.replicas, pod(&child, settings));
    let ports = entry.ports.iter();
    let ports = ports.map(|(name, port, node_port)| child::port(name, *port, *port, *node_port));
    Ok(ServiceObjects {
        cluster_ip: child.cluster_ip(),
        config_map: Some(marked(config_map)?),
        secret: None,
        host_key: None,
        deployment: marked(deployment)?,
        service: marked(child.service(ports.collect()))?,
        budget,
        problem: None,
        configuration,
        name: child.name,
    })
}

fn budget(child: &Child) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: child.metadata(),
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(1)),
            // Pods that do not become ready do not block a drain.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            selector: Some(child.label_selector()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}

fn pod(child: &Child, settings: &SipSettings) -> PodSpec {
    let spread = TopologySpreadConstraint {
        max_skew: 1,
        topology_key: "kubernetes.io/hostname".to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        label_selector: Some(child.label_selector()),
        ..TopologySpreadConstraint::default()
    };
    let drain = i64::try_from(settings.drain).unwrap_or(i64::MAX);
    PodSpec {
        termination_grace_period_seconds: Some(
            drain.saturating_add(STOP_DELAY_SECONDS + EXIT_SECONDS),
        ),
        topology_spread_constraints: Some(vec![spread]),
        volumes: Some(vec![Volume {
            name: "configuration".to_owned(),
            config_map: Some(ConfigMapVolumeSource {
                name: child.name.clone(),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        }]),
        ..child.pod(USER, &settings.images.load_balancer, haproxy())
    }
}

fn haproxy() -> Container {
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
    let file = format!("{CONFIGURATION_DIRECTORY}/haproxy.cfg");
    let command = ["haproxy", "-db", "-f", &file];
    let mounts = vec![mount("configuration", CONFIGURATION_DIRECTORY)];
    Container {
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
        ..container("haproxy", &command, "128Mi", mounts)
    }
}
