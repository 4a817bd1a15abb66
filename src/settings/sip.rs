//! (pure) The configuration of the controller of `SIPClusters`: key `sip` of `config.yaml` of the ConfigMap `vm-operator-sip`.

use crate::settings::{Section, limits};
use schemars::JsonSchema;
use serde::Deserialize;

/// The configuration of the controller of `SIPClusters`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SipSettings {
    /// Namespace of the clusters and their hosts. Default: the namespace of the controller's pod.
    pub namespace: Option<String>,
    /// Other namespaces with hosts for the clusters. Each needs Roles, which docs/sip.md describes.
    pub host_namespaces: Vec<HostNamespace>,
    /// Provisioning states of hosts that a cluster can get. With `[]`, the state is not checked, for hosts without a
    /// baremetal-operator.
    pub host_states: Vec<String>,
    /// Images of services with an empty image.
    pub images: ServiceImages,
    /// Pods of each load balancer, 1 to 10.
    pub replicas: i32,
    /// Time in seconds that open connections have before a replaced pod of a load balancer ends, 1 to 86400.
    pub drain: u64,
}

/// An entry of `hostNamespaces`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostNamespace {
    /// Name of the namespace.
    pub name: String,
    /// Whether jump hosts with `bmc` get the credentials of the management controllers there. Without it, a cluster with such a jump host gets
    /// none of these hosts. Default: false.
    #[serde(default)]
    pub bmc: bool,
}

/// Key `images`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceImages {
    /// Image of load balancers: HAProxy, which ends its connections after the stop signal of the image.
    pub load_balancer: String,
    /// Image of jump hosts: OpenSSH, a shell, curl and jq, with the user `ubuntu` (1000).
    pub jump_host: String,
}

impl Default for ServiceImages {
    fn default() -> Self {
        const LOAD_BALANCER: &str =
            concat!("localhost/vm-load-balancer:", env!("CARGO_PKG_VERSION"));
        const JUMP_HOST: &str = concat!("localhost/vm-jump-host:", env!("CARGO_PKG_VERSION"));
        Self {
            load_balancer: LOAD_BALANCER.to_owned(),
            jump_host: JUMP_HOST.to_owned(),
        }
    }
}

impl Default for SipSettings {
    fn default() -> Self {
        Self {
            namespace: None,
            host_namespaces: Vec::new(),
            // The older name of the first one is `ready`.
            host_states: vec!["available".to_owned(), "ready".to_owned()],
            images: ServiceImages::default(),
            replicas: 2,
            drain: 300,
        }
    }
}

impl Section for SipSettings {
    const PATH: &'static [&'static str] = &["sip"];

    fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    fn violation(&self) -> Option<(String, &'static str)> {
        let is_namespace = self.namespace.as_deref().is_none_or(limits::is_namespace);
        let mut others: Vec<&str> = self.host_namespaces.iter().map(|it| &*it.name).collect();
        let are_namespaces = others.iter().all(|name| limits::is_namespace(name));
        others.sort_unstable();
        let are_different = others.windows(2).all(|pair| pair.first() != pair.last());
        let limits = [
            ("namespace", is_namespace, "use the name of a namespace"),
            (
                "hostNamespaces",
                are_namespaces && are_different,
                "use the name of another namespace in each entry",
            ),
            (
                "images.loadBalancer",
                !self.images.load_balancer.is_empty(),
                "use the name of an image, or remove the key",
            ),
            (
                "images.jumpHost",
                !self.images.jump_host.is_empty(),
                "use the name of an image, or remove the key",
            ),
            (
                "replicas",
                (1..=10).contains(&self.replicas),
                "use a number from 1 to 10",
            ),
            (
                "drain",
                (1..=86400).contains(&self.drain),
                "use 1 to 86400 seconds",
            ),
        ];
        let wrong = limits.into_iter().find(|(_, is_allowed, _)| !is_allowed)?;
        Some((wrong.0.to_owned(), wrong.2))
    }
}
