//! (pure) The facts about hosts that the plan of a cluster depends on.

use crate::api::SIPCluster;
use crate::api::conditions::is_true;
use crate::api::metal3::{
    ANNOTATION_DETACHED, ANNOTATION_PAUSED, ANNOTATIONS_UNHEALTHY, LABEL_NODE_REUSE,
};
use crate::api::sip::names::{
    LABEL_CLUSTER_NAME, LABEL_CLUSTER_NAMESPACE, LABEL_NODE_TYPE, ROLE_CONTROL_PLANE, ROLE_WORKER,
};
use crate::api::sip::{JumpHost, NodeSet, READY, Service};
use crate::controllers::sip::views::{Credentials, HostView, Networks};
use crate::k8s::store::trim::Labelled;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};
use russh::keys::PublicKey;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use strum::IntoStaticStr;

/// A host with its network data.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// The object.
    pub view: &'a HostView,
    /// Its name for the cluster. In another namespace than that of the cluster, it is `<name>_<namespace>`, which no other host is named.
    pub name: &'a str,
    /// The networks in the Secret of `spec.networkData`. None if it does not exist.
    pub networks: Option<&'a Networks>,
    /// The user name and password in the Secret of `spec.bmc`. None if it does not exist, or lacks one of them.
    pub credentials: Option<&'a Credentials>,
    /// Whether the configuration allows the use of its credentials.
    pub may_use_bmc: bool,
}

/// Access to the management controller (BMC) of a host.
#[derive(Serialize)]
pub struct Bmc<'a> {
    /// URL of the system at the Redfish service.
    pub url: String,
    /// Whether the certificate of the service is not verified.
    pub insecure: bool,
    /// The user name and password.
    #[serde(flatten)]
    pub credentials: &'a Credentials,
}

/// The cluster that has a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership<'a> {
    /// None.
    Free,
    /// The cluster in question, in that role.
    Own(&'a str),
    /// Another cluster.
    Other,
}

/// The reason why a host is no candidate for a role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
pub enum Obstacle {
    /// It belongs to another cluster.
    OtherCluster,
    /// The selector of the role does not match.
    Selector,
    /// It is being deleted.
    Deleting,
    /// It has a consumer.
    Consumed,
    /// It is reserved for the machine that it was part of.
    Reserved,
    /// It is paused or detached.
    Unmanaged,
    /// It is unhealthy, or has an error.
    Failed,
    /// Its provisioning state is not in the configuration.
    State(String),
    /// A member has the same value of the topology key.
    Domain,
    /// A service needs its address, which its network data does not have.
    Address,
    /// A jump host needs its credentials, which the configuration does not allow for its namespace.
    BmcNotAllowed,
}

impl Obstacle {
    /// The reason, in the words of a count: `2 <text>`.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::OtherCluster => "belong to other clusters".to_owned(),
            Self::Selector => "do not match the selector".to_owned(),
            Self::Deleting => "are being deleted".to_owned(),
            Self::Consumed => "have a consumer".to_owned(),
            Self::Reserved => format!("have the label {LABEL_NODE_REUSE}"),
            Self::Unmanaged => "are paused or detached".to_owned(),
            Self::Failed => "are unhealthy or have an error".to_owned(),
            Self::State(state) if state.is_empty() => "have no provisioning state yet".to_owned(),
            Self::State(state) => format!("have the provisioning state {state}"),
            Self::Domain => "have the same value of the topologyKey as a member".to_owned(),
            Self::Address => "lack an address".to_owned(),
            Self::BmcNotAllowed => {
                "are in a namespace without bmc in sip.hostNamespaces, which a jump host with bmc needs".to_owned()
            }
        }
    }
}

impl<'a> Host<'a> {
    /// The namespace of the object.
    #[must_use]
    pub fn namespace(&self) -> &'a str {
        self.view.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// Its UID.
    #[must_use]
    pub fn uid(&self) -> &'a str {
        self.view.metadata.uid.as_deref().unwrap_or_default()
    }

    fn label(&self, name: &str) -> Option<&'a str> {
        self.view.metadata.label(name)
    }

    /// Whether its labels match the role's selector.
    #[must_use]
    pub fn matches(&self, role: &Role) -> bool {
        let labels = self.view.metadata.labels.as_ref();
        role.selector.matches(labels.unwrap_or(&BTreeMap::new()))
    }

    /// The cluster that has the host. A host with the label of a cluster's name only is not free: upstream's rule.
    #[must_use]
    pub fn membership(&self, cluster: &SIPCluster) -> Membership<'a> {
        let Some(name) = self.label(LABEL_CLUSTER_NAME) else {
            return Membership::Free;
        };
        let namespace = self.label(LABEL_CLUSTER_NAMESPACE);
        let is_own = Some(name) == cluster.metadata.name.as_deref()
            && namespace.is_some()
            && namespace == cluster.metadata.namespace.as_deref();
        match is_own {
            true => Membership::Own(self.label(LABEL_NODE_TYPE).unwrap_or_default()),
            false => Membership::Other,
        }
    }

    /// Kind and name of the object that uses the host.
    #[must_use]
    pub fn consumer(&self) -> Option<String> {
        if self.view.is_undecodable {
            return Some("unknown, because the host cannot be decoded".to_owned());
        }
        let consumer = self.view.spec.consumer_ref.as_ref()?;
        let [kind, name] =
            [&consumer.kind, &consumer.name].map(|part| part.as_deref().unwrap_or_default());
        Some(format!("{kind} {name}"))
    }

    /// The address of the host in a network. Without an ID, it is that of the only network.
    ///
    /// # Errors
    /// There is no such address. The error names the Secret, the reason and the next step.
    pub fn address(&self, interface: Option<&str>) -> Result<IpAddr, String> {
        let secret = self.view.spec.network_data.as_ref();
        let is_elsewhere = |namespace: &Option<String>| {
            namespace.is_some() && *namespace != self.view.metadata.namespace
        };
        if secret.is_some_and(|secret| is_elsewhere(&secret.namespace)) {
            let problem = "spec.networkData names another namespace; use a Secret in the namespace of the host";
            return Err(problem.to_owned());
        }
        let Some(secret) = secret.and_then(|secret| secret.name.as_deref()) else {
            return Err(
                "spec.networkData names no Secret; add one with the host's networks".to_owned(),
            );
        };
        let Some(networks) = self.networks else {
            return Err(format!(
                "Secret {secret} of spec.networkData does not exist, or has no key networkData or value; create it"
            ));
        };
        networks.address(interface).map_err(|problem| {
            format!("Secret {secret} of spec.networkData: {problem}; correct it")
        })
    }

    /// The access to its management controller.
    ///
    /// # Errors
    /// There is none by Redfish. The error has the field and the next step.
    pub fn bmc(&self) -> Result<Bmc<'a>, String> {
        if !self.may_use_bmc {
            let namespace = self.namespace();
            return Err(format!(
                "the configuration does not allow BMC credentials of namespace {namespace}; set bmc of its entry in sip.hostNamespaces to true"
            ));
        }
        let Some(bmc) = &self.view.spec.bmc else {
            return Err("spec.bmc is empty; add address and credentialsName".to_owned());
        };
        let url = redfish_url(&bmc.address).ok_or(
            "spec.bmc.address is not that of a Redfish service; use one, or no bmc for the jump host",
        )?;
        let credentials = self.credentials.ok_or_else(|| {
            let name = &bmc.credentials_name;
            format!("Secret {name} of spec.bmc.credentialsName does not exist, or lacks username or password; correct it")
        })?;
        Ok(Bmc {
            url,
            insecure: bmc.disable_certificate_verification,
            credentials,
        })
    }

    /// A problem of the host that concerns a member, too.
    #[must_use]
    pub fn problem(&self) -> Option<Obstacle> {
        let (view, annotations) = (self.view, self.view.annotations());
        let status = &view.status;
        let has = |name: &&str| annotations.contains_key(*name);
        if view.metadata.deletion_timestamp.is_some() {
            return Some(Obstacle::Deleting);
        }
        let is_failed = !status.error_message.is_empty() || status.operational_status == "error";
        (is_failed || ANNOTATIONS_UNHEALTHY.iter().any(has)).then_some(Obstacle::Failed)
    }

    /// The reason why the host, which is free, is no candidate.
    #[must_use]
    pub fn obstacle(&self, role: &Role, states: &[String]) -> Option<Obstacle> {
        if !self.matches(role) {
            return Some(Obstacle::Selector);
        }
        if let Some(problem) = self.problem() {
            return Some(problem);
        }
        if self.consumer().is_some() {
            return Some(Obstacle::Consumed);
        }
        if self.label(LABEL_NODE_REUSE).is_some() {
            return Some(Obstacle::Reserved);
        }
        let annotations = self.view.annotations();
        if [ANNOTATION_PAUSED, ANNOTATION_DETACHED]
            .iter()
            .any(|name| annotations.contains_key(*name))
        {
            return Some(Obstacle::Unmanaged);
        }
        let state = &self.view.status.provisioning.state;
        if !states.is_empty() && !states.contains(state) {
            return Some(Obstacle::State(state.clone()));
        }
        if role.needs_bmc && !self.may_use_bmc {
            return Some(Obstacle::BmcNotAllowed);
        }
        self.missing_address(role).map(|_| Obstacle::Address)
    }

    /// The problem of an address that a service of the role needs.
    #[must_use]
    pub fn missing_address(&self, role: &Role) -> Option<String> {
        let mut interfaces = role.interfaces.iter();
        interfaces.find_map(|interface| self.address(interface.as_deref()).err())
    }

    /// The problem of the management controller, if a jump host gives access to it.
    #[must_use]
    pub fn missing_bmc(&self, role: &Role) -> Option<String> {
        role.needs_bmc.then(|| self.bmc().err()).flatten()
    }

    /// The value of the topology key of the role.
    #[must_use]
    pub fn domain(&self, role: &Role) -> Option<&'a str> {
        self.label(role.topology_key.as_deref()?)
    }
}

/// A role, as the spec requests it.
#[derive(Clone, Debug)]
pub struct Role {
    /// The number of hosts.
    pub wanted: usize,
    /// The hosts that may have the role.
    pub selector: Selector,
    /// At most one host for each value of this label.
    pub topology_key: Option<String>,
    /// The networks of the services that need the role's addresses.
    pub interfaces: BTreeSet<Option<String>>,
    /// Whether a jump host gives access to the management controllers.
    pub needs_bmc: bool,
}

/// The URL of the system, from an address in the format of the baremetal-operator. None for other protocols than Redfish.
fn redfish_url(address: &str) -> Option<String> {
    let (scheme, rest) = address.split_once("://")?;
    let transport = match scheme.split_once('+') {
        None if ["redfish", "redfish-virtualmedia"].contains(&scheme) => "https",
        Some(("redfish" | "redfish-virtualmedia", transport @ ("http" | "https"))) => transport,
        _ => return None,
    };
    Some(format!("{transport}://{}", rest.trim_end_matches('/')))
}

/// Ports of a load balancer times hosts behind it. Its configuration has a line for each, and a ConfigMap has 1 MiB.
const SERVERS_MAX: usize = 10_000;

/// The roles of the spec.
///
/// # Errors
/// A selector or a key is not valid. The error names the field.
pub fn roles(cluster: &SIPCluster) -> Result<BTreeMap<&str, Role>, String> {
    let spec = &cluster.spec;
    let jump_hosts = &spec.services.jump_host;
    for (index, entry) in jump_hosts.iter().enumerate() {
        check_keys(index, entry)?;
    }
    let role = |(name, set): (&'_ String, &NodeSet)| {
        let selector = set.label_selector.clone().unwrap_or_default();
        let selector = Selector::try_from(selector).map_err(|error| {
            format!("spec.nodes.{name}.labelSelector: {error}; use the operators In, NotIn, Exists and DoesNotExist")
        })?;
        let mut interfaces: BTreeSet<Option<String>> = match name.as_str() {
            ROLE_CONTROL_PLANE => {
                let balancers = spec.services.load_balancer_control_plane.iter();
                balancers.map(|it| interface(&it.service)).collect()
            }
            ROLE_WORKER => {
                let balancers = spec.services.load_balancer_worker.iter();
                balancers.map(|it| interface(&it.service)).collect()
            }
            _ => BTreeSet::new(),
        };
        interfaces.extend(jump_hosts.iter().map(|it| interface(&it.service)));
        Ok::<Role, String>(Role {
            wanted: set.wanted(),
            selector,
            topology_key: set.topology_key.clone().filter(|key| !key.is_empty()),
            interfaces,
            needs_bmc: jump_hosts.iter().any(|it| it.bmc.is_some()),
        })
    };
    let workers = spec.nodes.get(ROLE_WORKER).map_or(0, NodeSet::wanted);
    let ranges = spec.services.load_balancer_worker.iter();
    let ports = ranges.map(|it| {
        it.node_port_range
            .end
            .saturating_sub(it.node_port_range.start)
    });
    let ports = ports.map(|last| usize::try_from(last).unwrap_or_default().saturating_add(1));
    if ports.max().unwrap_or_default().saturating_mul(workers) > SERVERS_MAX {
        return Err(format!(
            "spec.services.loadBalancerWorker: a load balancer for {workers} hosts can have {} ports; use several entries with smaller ranges",
            SERVERS_MAX / workers.max(1)
        ));
    }
    spec.nodes
        .iter()
        .map(|(name, set)| Ok((name.as_str(), role((name, set))?)))
        .collect()
}

/// Checks the keys that may log in. The error does not repeat them.
fn check_keys(index: usize, entry: &JumpHost) -> Result<(), String> {
    let mut keys = entry.ssh_authorized_keys.iter();
    let Some(wrong) = keys.position(|key| !is_authorized_key(key)) else {
        return Ok(());
    };
    Err(format!(
        "spec.services.jumpHost[{index}].sshAuthorizedKeys[{wrong}]: this is not one line in the format of authorized_keys; use the content of a public key file, such as id_ed25519.pub"
    ))
}

/// Whether the text is one line with a public key. Options can come before it, and have spaces within quotes, so each word may begin the key.
fn is_authorized_key(line: &str) -> bool {
    let spaces = line.match_indices(' ').map(|(index, _)| index + 1);
    let mut keys = std::iter::once(0)
        .chain(spaces)
        .filter_map(|start| line.get(start..));
    !line.contains(['\n', '\r']) && keys.any(|key| key.parse::<PublicKey>().is_ok())
}

fn interface(service: &Service) -> Option<String> {
    service
        .node_interface_id
        .clone()
        .filter(|id| !id.is_empty())
}

/// The time since which each host is a member, by its UID. It is that of the status.
#[must_use]
pub fn since(cluster: &SIPCluster) -> BTreeMap<&str, Timestamp> {
    let members = cluster.status.iter().flat_map(|status| &status.members);
    members
        .map(|member| (member.uid.as_str(), member.since.0))
        .collect()
}

/// Whether all roles have been complete once. The Airship SIP operator says it with the condition `Ready`, and writes no generation.
#[must_use]
pub fn has_been_complete(cluster: &SIPCluster) -> bool {
    let Some(status) = &cluster.status else {
        return false;
    };
    let is_of_airship = status.observed_generation.is_none();
    status.has_been_complete || is_of_airship && is_true(&status.conditions, READY)
}
