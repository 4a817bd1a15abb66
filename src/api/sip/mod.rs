//! The kind `SIPCluster` (`airship.airshipit.org/v1`): the hosts of a tenant cluster, and its services.
//!
//! The Airship project defines the kind. Its objects work unchanged; the limits of values, the status and the columns are additions.

#![allow(
    clippy::duplicated_attributes,
    reason = "each printer column repeats the names of its parts"
)]

pub mod names;

use crate::api::conditions::Reason;
use crate::api::vm::without_nulls;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrBool, ValidationRule,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use strum::IntoStaticStr;

/// Condition type: the cluster has all hosts, and its services have the present configuration.
pub const READY: &str = "Ready";
/// Condition type: the pods of all services run with the present configuration.
pub const SERVICES_READY: &str = "ServicesReady";
/// Condition type: a member is in a bad state.
pub const DEGRADED: &str = "Degraded";
/// Condition type: a field of the spec has no effect.
pub const IGNORED_FIELD: &str = "IgnoredField";

/// The hosts and services that a tenant cluster needs.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "airship.airshipit.org",
    version = "v1",
    kind = "SIPCluster",
    plural = "sipclusters",
    singular = "sipcluster",
    shortname = "sip",
    namespaced,
    status = "SIPClusterStatus",
    derive = "PartialEq",
    doc = "Hosts of a tenant cluster, selected from BareMetalHosts, and services in front of them.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        description = "Reason of the condition Ready"
    ),
    printcolumn(
        name = "Members",
        type_ = "integer",
        json_path = ".status.hosts.members"
    ),
    printcolumn(name = "Wanted", type_ = "integer", json_path = ".status.hosts.wanted"),
    printcolumn(
        name = "Endpoint",
        type_ = "string",
        json_path = ".status.endpoints[0].address",
        description = "Address of the first service"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
pub struct SIPClusterSpec {
    /// The hosts, by role. The roles ControlPlane and Worker have load balancers. Any other role has hosts only.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<String, NodeSet>,
    /// The services.
    pub services: Services,
}

/// The hosts of one role.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSet {
    /// Hosts that may have the role. Without it, any host may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
    /// A label of hosts, for example of their rack: at most one host of the role for each of its values.
    #[schemars(extend("pattern" = r"^$|^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$", "maxLength" = 317))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_key: Option<String>,
    /// The number of hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<NodeCount>,
}

/// The number of hosts of a role: the sum of both fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeCount {
    /// Hosts for the present nodes of the cluster.
    #[schemars(extend("minimum" = 0, "maximum" = 1000))]
    pub active: i64,
    /// Additional hosts.
    #[schemars(extend("minimum" = 0, "maximum" = 1000))]
    pub standby: i64,
}

impl NodeSet {
    /// The number of hosts.
    #[must_use]
    pub fn wanted(&self) -> usize {
        let count = self.count.unwrap_or_default();
        let [active, standby] =
            [count.active, count.standby].map(|n| usize::try_from(n).unwrap_or_default());
        active.saturating_add(standby)
    }
}

/// The services of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Services {
    /// Load balancers for the API servers, which are port 6443 of the hosts with the role ControlPlane.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub load_balancer_control_plane: Vec<ControlPlaneLoadBalancer>,
    /// Load balancers for ports of the hosts with the role Worker.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub load_balancer_worker: Vec<WorkerLoadBalancer>,
    /// SSH bastions, from which users reach the hosts of all roles.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jump_host: Vec<JumpHost>,
    /// OpenID Connect servers, such as Dex, for the users of the cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub auth: Vec<AuthService>,
}

/// The fields that all services have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Container image. If it is empty, the configuration of the controller names the image.
    pub image: String,
    /// Labels of the nodes that may run the pods. Without them, any node may.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_labels: BTreeMap<String, String>,
    /// The network of the hosts that the service uses: an ID in the network data of each host.
    #[serde(
        default,
        rename = "nodeInterfaceId",
        skip_serializing_if = "Option::is_none"
    )]
    pub node_interface_id: Option<String>,
    /// Address at which users reach the node port, for the status.
    #[serde(default, rename = "clusterIP", skip_serializing_if = "Option::is_none")]
    pub cluster_ip: Option<String>,
}

/// An entry of `loadBalancerControlPlane`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlPlaneLoadBalancer {
    /// The common fields.
    #[serde(flatten)]
    pub service: Service,
    /// Node port for port 6443. With 0, Kubernetes selects one.
    #[schemars(extend("minimum" = 0, "maximum" = 65535))]
    pub node_port: i32,
}

/// An entry of `loadBalancerWorker`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerLoadBalancer {
    /// The common fields.
    #[serde(flatten)]
    pub service: Service,
    /// Ports of the hosts, and the same node ports. At most 100.
    pub node_port_range: PortRange,
}

/// Ports from `start` to `end`, both included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PortRange {
    /// The first port.
    #[schemars(extend("minimum" = 0, "maximum" = 65535))]
    pub start: i32,
    /// The last port.
    #[schemars(extend("minimum" = 0, "maximum" = 65535))]
    pub end: i32,
}

/// An entry of `jumpHost`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JumpHost {
    /// The common fields.
    #[serde(flatten)]
    pub service: Service,
    /// Node port for port 22. With 0, Kubernetes selects one.
    #[schemars(extend("minimum" = 0, "maximum" = 65535))]
    pub node_port: i32,
    /// Access to the management controllers of the hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bmc: Option<BmcAccess>,
    /// Public keys that may log in, each a line in the format of the file `authorized_keys` of OpenSSH. At most 64.
    #[schemars(extend("maxItems" = 64))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_authorized_keys: Vec<String>,
    /// Secret with the private keys for the hosts, one file for each key of the Secret.
    #[serde(rename = "nodeSSHPrivateKeys")]
    pub node_ssh_private_keys: String,
}

/// An entry of `auth`: an OpenID Connect server with the image and the configuration of the user. The defaults fit Dex.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthService {
    /// The common fields. `image` must not be empty, and `nodeInterfaceId` has no effect.
    #[serde(flatten)]
    pub service: Service,
    /// Node port for `port`. With 0, Kubernetes selects one.
    #[schemars(extend("minimum" = 0, "maximum" = 65535))]
    pub node_port: i32,
    /// Arguments of the image. Default: `dex serve /etc/dex/config.yaml`.
    #[schemars(extend("maxItems" = 64))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Secret with the files of the directory `/etc/dex`, such as `config.yaml`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_secret: Option<String>,
    /// Secret of the type `kubernetes.io/tls` with the files of the directory `/etc/dex-tls`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_secret: Option<String>,
    /// Port at which the server listens. Default: 5556.
    #[schemars(extend("minimum" = 1024, "maximum" = 65535))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// Access to the management controllers of the hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BmcAccess {
    /// Whether requests use the proxy of the environment.
    pub proxy: bool,
}

/// The observed state of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SIPClusterStatus {
    /// The generation of the spec that the status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The conditions `Ready`, `ServicesReady`, `Degraded` and `IgnoredField`.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The hosts of all roles.
    pub hosts: HostCount,
    /// The hosts by role.
    pub nodes: BTreeMap<String, RoleStatus>,
    /// Up to 20 free hosts that match the labelSelector of a role with too few hosts, and cannot have the role.
    pub rejected: Vec<RejectedHost>,
    /// The hosts of the cluster.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["uid"]))]
    pub members: Vec<Member>,
    /// The services.
    pub endpoints: Vec<Endpoint>,
    /// Whether all roles have once been complete. Until then, hosts without a consumer are released if a role cannot be completed.
    pub has_been_complete: bool,
}

/// Numbers of hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HostCount {
    /// The hosts that the spec requests.
    pub wanted: i64,
    /// The hosts that have the labels of the cluster.
    pub members: i64,
}

/// The hosts of a role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RoleStatus {
    /// The hosts that the spec requests.
    pub wanted: i64,
    /// The hosts that have the labels of the cluster and the role.
    pub members: i64,
    /// The free hosts that could have the role.
    pub candidates: i64,
}

/// A host of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    /// UID of the host.
    pub uid: String,
    /// Name of the host.
    pub name: String,
    /// Namespace of the host, if it is another one than that of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Role of the host.
    pub role: String,
    /// Time at which the controller has found the host in the cluster.
    pub since: Time,
}

/// A host that cannot have a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RejectedHost {
    /// Name of the host.
    pub name: String,
    /// Namespace of the host, if it is another one than that of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The role.
    pub role: String,
    /// The reason, for example `Consumed`.
    pub reason: String,
    /// The reason in words, with the next step.
    pub message: String,
}

/// A service of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    /// Name of the Service.
    pub service: String,
    /// Host and port. `<node>` stands for the address of any node of the Kubernetes cluster.
    pub address: String,
}

/// Reasons of the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
pub enum SIPClusterReason {
    /// Hosts or services are being changed.
    Progressing,
    /// All hosts and services are as the spec requests.
    ReconciliationSucceeded,
    /// A role has too few hosts.
    Unschedulable,
    /// The API server rejects an object of a service.
    InfraServiceFailure,
    /// The API server rejects labels of a host.
    UnableToApplyLabels,
    /// The labels of a host cannot be removed.
    UnableToDecommission,
    /// A value of the spec is not allowed.
    InvalidSpec,
    /// A host that is no longer requested has a consumer.
    HostsInUse,
    /// The API server does not know the kind `BareMetalHost`.
    BareMetalHostKindMissing,
    /// A host of the cluster cannot be decoded.
    HostUnreadable,
    /// The controller may not read or change objects of the namespace.
    PermissionDenied,
    /// The pods of all services run with the present configuration.
    ServicesRunning,
    /// The pods of a service do not run, or have another configuration.
    PodsNotReady,
    /// A member is in a bad state.
    MembersDegraded,
    /// A field of the spec has no effect.
    NotSupported,
}

impl Reason for SIPClusterReason {
    fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The lists of services.
const LISTS: [&str; 4] = [
    "loadBalancerControlPlane",
    "loadBalancerWorker",
    "jumpHost",
    "auth",
];

fn rule(rule: impl Into<String>, message: impl Into<String>) -> ValidationRule {
    ValidationRule {
        rule: rule.into(),
        message: Some(message.into()),
        ..ValidationRule::default()
    }
}

/// The definition, as it is in `crds/sip/`.
#[must_use]
pub fn crd() -> CustomResourceDefinition {
    let mut crd = SIPCluster::crd();
    let versions = crd.spec.versions.iter_mut();
    for root in versions.filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut())
    {
        without_nulls(root);
        // `loadbalancer-controlplane-`, the name and `-2` are the name of a Service, which has at most 63 characters.
        let is_one = LISTS
            .map(|list| {
                format!("(!has(self.spec.services.{list}) || self.spec.services.{list}.size() < 2)")
            })
            .join(" && ");
        let name = rule(
            // Only at creation, because a name cannot be corrected.
            format!(
                "oldSelf.hasValue() || (!self.metadata.name.contains('.') && self.metadata.name.size() <= ({is_one} ? 37 : 35))"
            ),
            "use a name of at most 37 characters without dots, or 35 if a list of services has several entries, because names of Services contain it",
        );
        root.x_kubernetes_validations = Some(vec![ValidationRule {
            optional_old_self: Some(true),
            ..name
        }]);
        limit(root);
    }
    crd
}

fn field<'a>(schema: &'a mut JSONSchemaProps, path: &[&str]) -> Option<&'a mut JSONSchemaProps> {
    path.iter().try_fold(schema, |schema, name| {
        schema.properties.as_mut()?.get_mut(*name)
    })
}

/// Adds the limits of lists and roles.
fn limit(root: &mut JSONSchemaProps) {
    const SUM: &str = "self.map(role, has(self[role].count) ? self[role].count.active + self[role].count.standby : 0).sum() <= 1000";
    const ROLE: &str =
        "self.all(role, role.matches('^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$'))";
    if let Some(nodes) = field(root, &["spec", "nodes"]) {
        if let Some(JSONSchemaPropsOrBool::Schema(role)) = &mut nodes.additional_properties {
            without_nulls(role);
        }
        nodes.max_properties = Some(16);
        nodes.x_kubernetes_validations = Some(vec![
            rule(SUM, "use counts with a sum of at most 1000"),
            rule(
                ROLE,
                "a role is the value of a label: use at most 63 letters, digits, '-', '_' and '.'",
            ),
        ]);
    }
    for list in LISTS {
        if let Some(list) = field(root, &["spec", "services", list]) {
            list.max_items = Some(8);
        }
    }
    if let Some(services) = field(root, &["spec", "services"]) {
        let worker = "self.loadBalancerWorker.all(entry, entry.nodePortRange.start <= entry.nodePortRange.end && \
                      entry.nodePortRange.end - entry.nodePortRange.start < 100 && entry.nodePortRange.start > 0)";
        let overlap = "self.loadBalancerWorker.all(entry, self.loadBalancerWorker.filter(other, \
                       other.nodePortRange.start <= entry.nodePortRange.end && entry.nodePortRange.start <= other.nodePortRange.end).size() == 1)";
        let both = "self.loadBalancerWorker.all(entry, self.loadBalancerControlPlane.all(other, \
                    other.nodePort < entry.nodePortRange.start || other.nodePort > entry.nodePortRange.end))";
        let ports = "self.loadBalancerControlPlane.all(entry, entry.nodePort == 0 || \
                     self.loadBalancerControlPlane.filter(other, other.nodePort == entry.nodePort).size() == 1)";
        let has_own_port = |list: &str, others: &str| {
            format!(
                "self.{list}.all(entry, entry.nodePort == 0 || (\
                 self.{list}.filter(other, other.nodePort == entry.nodePort).size() == 1 && {others} \
                 (!has(self.loadBalancerControlPlane) || self.loadBalancerControlPlane.all(other, other.nodePort != entry.nodePort)) && \
                 (!has(self.loadBalancerWorker) || self.loadBalancerWorker.all(other, \
                 entry.nodePort < other.nodePortRange.start || entry.nodePort > other.nodePortRange.end))))"
            )
        };
        let jump_host = has_own_port("jumpHost", "");
        let of_jump_host = "(!has(self.jumpHost) || self.jumpHost.all(other, other.nodePort != entry.nodePort)) &&";
        let auth = has_own_port("auth", of_jump_host);
        services.x_kubernetes_validations = Some(vec![
            rule(
                format!("!has(self.loadBalancerWorker) || {worker}"),
                "loadBalancerWorker: use a nodePortRange with start <= end, at most 100 ports, and no port 0",
            ),
            rule(
                format!("!has(self.loadBalancerWorker) || {overlap}"),
                "loadBalancerWorker: use ranges without common ports",
            ),
            rule(
                format!(
                    "!has(self.loadBalancerWorker) || !has(self.loadBalancerControlPlane) || {both}"
                ),
                "use a nodePort of loadBalancerControlPlane that is in no nodePortRange of loadBalancerWorker",
            ),
            rule(
                format!("!has(self.loadBalancerControlPlane) || {ports}"),
                "loadBalancerControlPlane: use another nodePort for each entry",
            ),
            rule(
                format!("!has(self.auth) || {auth}"),
                "auth: use a nodePort that no other entry, no load balancer and no jump host has",
            ),
            rule(
                "!has(self.auth) || self.auth.all(entry, entry.image.size() > 0)",
                "auth: name the image of an OpenID Connect server, such as ghcr.io/dexidp/dex",
            ),
            rule(
                format!("!has(self.jumpHost) || {jump_host}"),
                "jumpHost: use a nodePort that no other entry and no load balancer has",
            ),
        ]);
    }
}
