//! (client) The check of the configured providers, by calls that change nothing.

use crate::api::peerpod::{PeerPodReason, names};
use crate::controllers::peerpod::PeerPodController;
use crate::controllers::peerpod::adaptor::AdaptorConfig;
use crate::controllers::peerpod::aws::Right;
use crate::controllers::peerpod::aws::config::AwsConfig;
use crate::controllers::peerpod::failure::Failure;
use crate::controllers::peerpod::libvirt::Host;
use crate::controllers::peerpod::libvirt::config::LibvirtConfig;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};

/// The requests about VirtualMachines that the controller sends.
const VERBS: [&str; 2] = ["get", "delete"];

/// A line of the result.
#[derive(Debug)]
pub struct Finding {
    /// Provider, and what was found.
    pub text: String,
    /// Whether the controller can do its work.
    pub is_ok: bool,
}

fn finding(provider: &str, is_ok: bool, text: &str) -> Finding {
    let text = format!("{provider}: {text}");
    Finding { text, is_ok }
}

impl PeerPodController {
    /// Checks the configured providers: account, place and rights of each.
    pub async fn check(&self) -> Vec<Finding> {
        let mut findings = self.check_virtual_machines().await;
        let adaptor = match self.read_adaptor().await {
            Ok(adaptor) => adaptor,
            Err(error) => {
                findings.push(finding(names::MANAGER, false, &error.to_string()));
                return findings;
            }
        };
        if adaptor.uses_aws() {
            let failed =
                |failure: Failure| vec![finding(names::PROVIDER_AWS, false, &failure.message)];
            findings.extend(self.check_aws(&adaptor).await.unwrap_or_else(failed));
        }
        if adaptor.get(names::KEY_PROVIDER) == Some(names::PROVIDER_LIBVIRT) {
            let failed =
                |failure: Failure| finding(names::PROVIDER_LIBVIRT, false, &failure.message);
            findings.push(self.check_libvirt(&adaptor).await.unwrap_or_else(failed));
        }
        if findings.is_empty() {
            let text = "no provider is configured; add CLOUD_PROVIDER to the ConfigMap of the cloud-api-adaptor, or namespaces to \
                        virtualMachine.namespaces";
            findings.push(finding(names::MANAGER, false, text));
        }
        findings
    }

    async fn check_aws(&self, adaptor: &AdaptorConfig) -> Result<Vec<Finding>, Failure> {
        let config = AwsConfig::of(adaptor, &self.environment)?;
        let mut ec2 = self.connect_aws(&config)?;
        let (provider, place) = (names::PROVIDER_AWS, ec2.begin_round().await?);
        let mut findings = vec![finding(
            provider,
            true,
            &format!("account and region {place}"),
        )];
        for (action, right) in ec2.rights().await? {
            let (is_ok, text) = match right {
                Right::Permitted => (true, "permitted".to_owned()),
                Right::Unknown(code) => (true, format!("not denied, the answer is {code}")),
                Right::Denied(message) => (false, message),
            };
            findings.push(finding(provider, is_ok, &format!("ec2:{action}: {text}")));
        }
        Ok(findings)
    }

    async fn check_libvirt(&self, adaptor: &AdaptorConfig) -> Result<Finding, Failure> {
        let leadership = self.cluster.leadership.clone();
        let name = &self.settings.ssh_secret;
        let secret = self.read_secret(name).await;
        let secret = secret
            .map_err(|error| Failure::new(PeerPodReason::ConfigMissing, error.to_string()))?;
        let config = LibvirtConfig::of(adaptor, (name, &secret))?;
        let mut host = Host::new(config, leadership, self.open_socket.clone());
        let session = host.begin_round().await?;
        let text = format!("host {}, with access", session.place());
        Ok(finding(names::PROVIDER_LIBVIRT, true, &text))
    }

    async fn check_virtual_machines(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for namespace in &self.settings.virtual_machine.namespaces {
            for verb in VERBS {
                let (is_ok, text) = match self.may(verb, namespace).await {
                    Ok(true) => (true, "permitted".to_owned()),
                    Ok(false) => (
                        false,
                        "denied; deploy/overlays/peerpod-local has the Role".to_owned(),
                    ),
                    Err(error) => (false, error.to_string()),
                };
                let text = format!("{verb} vms in namespace {namespace}: {text}");
                findings.push(finding(names::PROVIDER_VIRTUAL_MACHINE, is_ok, &text));
            }
        }
        findings
    }

    async fn may(&self, verb: &str, namespace: &str) -> Result<bool, kube::Error> {
        let attributes = ResourceAttributes {
            group: Some("vmoperator.jdrupes.org".to_owned()),
            resource: Some("vms".to_owned()),
            verb: Some(verb.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ResourceAttributes::default()
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let reviews = Api::all(self.cluster.client.clone());
        let review: SelfSubjectAccessReview =
            reviews.create(&PostParams::default(), &review).await?;
        Ok(review.status.is_some_and(|status| status.allowed))
    }
}
