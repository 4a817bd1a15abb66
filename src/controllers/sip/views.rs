//! Projections of the objects that the controller reads.

use crate::api::metal3::{BareMetalHost, BareMetalHostSpec, BareMetalHostStatus};
use crate::k8s::store::trim::{Labelled, key_and_versions, metadata};
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A host.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = BareMetalHost)]
#[allow(missing_docs)]
pub struct HostView {
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: BareMetalHostSpec,
    #[serde(default)]
    pub status: BareMetalHostStatus,
    /// Whether only the metadata could be decoded.
    #[serde(skip)]
    pub is_undecodable: bool,
}

/// A Secret that can describe a host.
#[derive(Clone, Debug, Default, Resource, Deserialize)]
#[resource(inherit = Secret)]
#[allow(missing_docs)]
pub struct HostSecretView {
    #[serde(deserialize_with = "key_and_versions")]
    pub metadata: ObjectMeta,
    #[serde(default, deserialize_with = "host_data")]
    pub data: HostData,
}

/// The data of such a Secret. Other data is not stored.
#[derive(Clone, Debug, Default)]
pub struct HostData {
    /// The network data.
    pub networks: Networks,
    /// The credentials of a management controller.
    pub credentials: Option<Credentials>,
}

/// A user name and password.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct Credentials {
    pub username: String,
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.write_str("Credentials")
    }
}

/// The networks of a host, as its network data describes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Networks {
    /// The Secret has none of the keys.
    #[default]
    Missing,
    /// The value is not in the format of OpenStack's network data.
    Malformed,
    /// The texts of `ip_address`, by the ID of the network.
    Known(BTreeMap<String, String>),
}

impl Networks {
    /// The address of the host in a network. Without an ID, it is that of the only network.
    ///
    /// # Errors
    /// There is no such address. The error says why.
    pub fn address(&self, id: Option<&str>) -> Result<IpAddr, String> {
        let networks = match self {
            Self::Missing | Self::Malformed => {
                return Err(
                    "its key networkData, or else value, is not a YAML or JSON object with a list networks".to_owned(),
                );
            }
            Self::Known(networks) => networks,
        };
        let (id, address) = match id.filter(|id| !id.is_empty()) {
            Some(id) => networks
                .get_key_value(id)
                .ok_or_else(|| format!("it has no network with the id {id}"))?,
            None if networks.len() == 1 => networks.iter().next().ok_or("it has no network")?,
            None => {
                return Err(
                    "it has not exactly one network, so the service needs a nodeInterfaceId"
                        .to_owned(),
                );
            }
        };
        // Some network data has the prefix length here.
        let text = address.split('/').next().unwrap_or_default();
        text.parse()
            .map_err(|_| format!("ip_address of the network {id} is not an IP address"))
    }
}

/// OpenStack's network data.
#[derive(Deserialize)]
struct NetworkData {
    networks: Vec<Network>,
}

#[derive(Deserialize)]
struct Network {
    id: Option<String>,
    ip_address: Option<String>,
}

fn host_data<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HostData, D::Error> {
    /// The keys that the baremetal-operator reads. For network data, it prefers the first one.
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Data {
        network_data: Option<ByteString>,
        value: Option<ByteString>,
        username: Option<ByteString>,
        password: Option<ByteString>,
    }
    let data = Option::<Data>::deserialize(deserializer)?.unwrap_or_default();
    let text = |value: Option<ByteString>| String::from_utf8(value?.0).ok();
    let credentials = match (text(data.username), text(data.password)) {
        (Some(username), Some(password)) => Some(Credentials { username, password }),
        _ => None,
    };
    let networks = data.network_data.or(data.value);
    Ok(HostData {
        networks: networks.map_or(Networks::Missing, |bytes| networks_in(&bytes.0)),
        credentials,
    })
}

fn networks_in(bytes: &[u8]) -> Networks {
    let text = std::str::from_utf8(bytes).ok();
    let parsed = text.and_then(|text| serde_saphyr::from_str::<NetworkData>(text).ok());
    parsed.map_or(Networks::Malformed, |data| {
        let networks = data.networks.into_iter();
        let network = |it: Network| Some((it.id?, it.ip_address.unwrap_or_default()));
        Networks::Known(networks.filter_map(network).collect())
    })
}

/// All fields of an object except its metadata, as JSON. A tree would need a multiple of the memory.
#[derive(Clone, Default)]
pub struct Fields(Box<str>);

impl Fields {
    /// The fields as a tree.
    #[must_use]
    pub fn read(&self) -> Map<String, Value> {
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Map::<String, Value>::deserialize(deserializer)?;
        let text = serde_json::to_string(&fields).map_err(serde::de::Error::custom)?;
        Ok(Self(text.into()))
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.read().serialize(serializer)
    }
}

macro_rules! child {
    ($(#[$about:meta])* $view:ident of $kind:ident) => {
        $(#[$about])*
        #[derive(Clone, Default, Resource, Serialize, Deserialize)]
        #[resource(inherit = $kind)]
        #[allow(missing_docs)]
        pub struct $view {
            #[serde(deserialize_with = "metadata")]
            pub metadata: ObjectMeta,
            #[serde(flatten)]
            pub fields: Fields,
        }

        impl Labelled for $view {
            fn label(&self, name: &str) -> Option<&str> {
                self.metadata.label(name)
            }
        }

        // Without the fields, which are confidential in a Secret.
        impl std::fmt::Debug for $view {
            fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
                write!(formatter, "{} {:?}", stringify!($view), self.metadata.name)
            }
        }
    };
}

child! {
    /// A ConfigMap.
    ConfigMapView of ConfigMap
}
child! {
    /// A Deployment.
    DeploymentView of Deployment
}
child! {
    /// A PodDisruptionBudget.
    PodDisruptionBudgetView of PodDisruptionBudget
}
child! {
    /// A Secret.
    SecretView of Secret
}
child! {
    /// A Service.
    ServiceView of Service
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use serde_json::json;

    fn secret(text: &str) -> Networks {
        let data = base64::engine::general_purpose::STANDARD.encode(text);
        let secret =
            json!({"metadata": {"name": "a"}, "data": {"value": data, "password": "aA=="}});
        let view: HostSecretView = serde_json::from_value(secret).unwrap();
        view.data.networks
    }

    #[test]
    fn address_is_that_of_the_network_and_any_other_text_is_a_problem() {
        let networks = secret(
            "networks: [{id: oam, ip_address: 10.0.0.7/24}, {id: dhcp, ip_address: }, {type: ipv4}, {id: v6, ip_address: 'fd00::7'}, {id: name, ip_address: a.example.org}]",
        );
        let address = |id| networks.address(id).map(|address| address.to_string());
        assert_eq!(address(Some("oam")), Ok("10.0.0.7".to_owned()));
        assert_eq!(address(Some("v6")), Ok("fd00::7".to_owned()));
        for (id, part) in [
            (Some("dhcp"), "ip_address of the network dhcp"),
            (Some("name"), "ip_address of the network name"),
            (Some("none"), "no network with the id none"),
            (None, "needs a nodeInterfaceId"),
        ] {
            let problem = address(id).unwrap_err();
            assert!(problem.contains(part), "{problem}");
        }
        let one = secret(r#"{"networks": [{"id": "oam", "ip_address": "10.0.0.7"}]}"#);
        assert_eq!(one.address(None).unwrap().to_string(), "10.0.0.7");
        assert_eq!(secret("a: ["), Networks::Malformed);
        assert_eq!(secret("[]"), Networks::Malformed);
    }
}
