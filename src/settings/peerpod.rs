//! (pure) The configuration of the controller of PeerPods: `config.yaml` of the ConfigMap `vm-operator-peerpod`.

use crate::settings::{Section, limits};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use schemars::JsonSchema;
use serde::Deserialize;

/// The configuration of the controller of PeerPods.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerPodSettings {
    /// Namespaces of PeerPods. Without it, the controller watches all namespaces.
    pub namespaces: Vec<String>,
    /// Name of the ConfigMap of the cloud-api-adaptor, in the namespace of the controller.
    pub config_map: String,
    /// Name of the Secret of the cloud-api-adaptor, in the namespace of the controller.
    pub secret: String,
    /// Name of the Secret of the cloud-api-adaptor with its SSH key, in the namespace of the controller.
    pub ssh_secret: String,
    /// Treatment of an instance of this cluster that no `PeerPod` and no pod names.
    pub sweep: Sweep,
    /// Certificate authorities in PEM format. Services of providers may have certificates of these authorities, besides those of public ones.
    pub ca_bundle: String,
    /// The provider `virtualmachine`.
    pub virtual_machine: VirtualMachineProvider,
    /// The other providers.
    pub providers: Providers,
}

impl Default for PeerPodSettings {
    fn default() -> Self {
        Self {
            namespaces: Vec::new(),
            config_map: "peer-pods-cm".to_owned(),
            secret: "peer-pods-secret".to_owned(),
            ssh_secret: "ssh-key-secret".to_owned(),
            sweep: Sweep::default(),
            ca_bundle: String::new(),
            virtual_machine: VirtualMachineProvider::default(),
            providers: Providers::default(),
        }
    }
}

/// Key `sweep`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", try_from = "Written")]
#[schemars(!try_from)]
pub enum Sweep {
    /// Nothing: the controller does not look for such instances.
    Off,
    /// The controller reports it.
    #[default]
    Report,
    /// The controller reports and deletes it.
    Delete,
}

/// A value of the key `sweep`: YAML reads `off` without quotes as a boolean.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Boolean(bool),
    Text(String),
}

impl TryFrom<Written> for Sweep {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        let text = match &written {
            Written::Boolean(false) => "off",
            Written::Boolean(true) => "on",
            Written::Text(text) => text,
        };
        match text {
            "off" => Ok(Self::Off),
            "report" => Ok(Self::Report),
            "delete" => Ok(Self::Delete),
            _ => Err("sweep is off, report or delete"),
        }
    }
}

/// Key `virtualMachine`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default)]
pub struct VirtualMachineProvider {
    /// Namespaces in which the controller may delete VirtualMachines. The controller needs permissions there.
    pub namespaces: Vec<String>,
}

/// Key `providers`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Providers {
    /// The provider `aws`.
    pub aws: AwsProvider,
}

/// Key `providers.aws`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AwsProvider {
    /// URL of the EC2 service. Without it, the public one of the region.
    pub endpoint: Option<String>,
    /// URL of the STS service, which names the account. Without it, the public one of the region.
    pub sts_endpoint: Option<String>,
}

impl Section for PeerPodSettings {
    const PATH: &'static [&'static str] = &[];

    fn violation(&self) -> Option<(String, &'static str)> {
        let lists = [
            ("namespaces", &self.namespaces),
            (
                "virtualMachine.namespaces",
                &self.virtual_machine.namespaces,
            ),
        ];
        let wrong = lists.into_iter().find_map(|(key, list)| {
            let wrong = list.iter().position(|name| !limits::is_namespace(name))?;
            Some(format!("{key}[{wrong}]"))
        });
        if let Some(key) = wrong {
            return Some((key, "use the name of a namespace"));
        }
        let aws = &self.providers.aws;
        let is_service = |url: &Option<String>| url.as_deref().is_none_or(is_service);
        let mut authorities = CertificateDer::pem_slice_iter(self.ca_bundle.as_bytes());
        const URL: &str = "use a URL that begins with https:// and has no path; http:// is allowed for localhost and 127.0.0.1";
        let (name, pem) = (
            "use the name of an object",
            "use certificates in PEM format",
        );
        let values = [
            ("configMap", is_name(&self.config_map), name),
            ("secret", is_name(&self.secret), name),
            ("sshSecret", is_name(&self.ssh_secret), name),
            ("caBundle", authorities.all(|it| it.is_ok()), pem),
            ("providers.aws.endpoint", is_service(&aws.endpoint), URL),
            (
                "providers.aws.stsEndpoint",
                is_service(&aws.sts_endpoint),
                URL,
            ),
        ];
        let wrong = values.into_iter().find(|(_, is_legal, _)| !is_legal);
        wrong.map(|(key, _, next)| (key.to_owned(), next))
    }
}

fn is_name(name: &str) -> bool {
    name.split('.').all(limits::is_namespace)
}

/// Whether requests can be sent to the URL, with TLS unless the service runs on the same machine.
fn is_service(url: &str) -> bool {
    let Ok(uri) = url.parse::<http::Uri>() else {
        return false;
    };
    let is_local = matches!(uri.host(), Some("localhost" | "127.0.0.1"));
    let is_allowed = match uri.scheme_str() {
        Some("https") => uri.host().is_some(),
        Some("http") => is_local,
        _ => false,
    };
    is_allowed && matches!(uri.path(), "" | "/") && uri.query().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn violation(config: Value) -> Option<String> {
        let settings: PeerPodSettings = serde_json::from_value(config).unwrap();
        settings.violation().map(|(key, _)| key)
    }

    #[test]
    fn services_have_tls_unless_they_are_local() {
        assert_eq!(violation(json!({})), None);
        for url in [
            "https://vpce-1.example.org",
            "https://10.0.0.1:8443/",
            "http://localhost:5000",
            "http://127.0.0.1:1",
        ] {
            assert_eq!(
                violation(json!({"providers": {"aws": {"endpoint": url}}})),
                None,
                "{url}"
            );
        }
        for url in [
            "",
            "example.org",
            "http://example.org",
            "http://127.0.0.1.example.org",
            "https://a/b",
            "https://a?b",
            "ftp://a",
        ] {
            let config = json!({"providers": {"aws": {"stsEndpoint": url}}});
            assert_eq!(
                violation(config).as_deref(),
                Some("providers.aws.stsEndpoint"),
                "{url}"
            );
        }
    }

    #[test]
    fn orphans_are_reported_and_deleted_only_on_request() {
        let sweep = |text| PeerPodSettings::parse(text, "file").map(|(it, _)| it.sweep);
        assert_eq!(sweep("{}").unwrap(), Sweep::Report);
        assert_eq!(sweep("sweep: off").unwrap(), Sweep::Off);
        assert_eq!(sweep("sweep: delete").unwrap(), Sweep::Delete);
        let error = sweep("sweep: true").unwrap_err().to_string();
        assert!(error.contains("sweep"), "{error}");
    }

    #[test]
    fn names_and_certificates_are_checked() {
        for (config, key) in [
            (json!({"configMap": ""}), "configMap"),
            (json!({"secret": "a/b"}), "secret"),
            (json!({"sshSecret": "a/b"}), "sshSecret"),
            (json!({"namespaces": ["a", "B"]}), "namespaces[1]"),
            (
                json!({"caBundle": "-----BEGIN CERTIFICATE-----\n#\n-----END CERTIFICATE-----\n"}),
                "caBundle",
            ),
        ] {
            assert_eq!(violation(config.clone()).as_deref(), Some(key), "{config}");
        }
    }
}
