//! (client) The provider `aws`: instances of EC2, by its Query API.
//!
//! An answer about an instance comes from three lists: of instances by their identifier, of elastic addresses and of network interfaces by the
//! name that the adaptor gives them. All three are read again in each round of calls that deletes.

mod answers;
pub mod config;
mod credentials;
pub mod orphans;
mod proof;
#[cfg(test)]
mod tests;

use crate::api::peerpod::{AwsId, PeerPodReason, names};
use crate::controllers::peerpod::aws::answers::Item;
use crate::controllers::peerpod::aws::config::AwsConfig;
use crate::controllers::peerpod::aws::credentials::{CredentialSource, context, unsigned};
use crate::controllers::peerpod::aws::proof::TAG_NAME;
use crate::controllers::peerpod::failure::Failure;
use crate::controllers::peerpod::gate::{Gate, TokenBucket};
use crate::settings::peerpod::AwsProvider;
use http::{Request, header};
use reqsign_aws_v4::{Credential, RequestSigner};
use reqsign_core::{Context, SignRequest};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

pub use credentials::METADATA_HOSTS;
pub use proof::Found;

/// Maximum number of instances in one round of calls: the limit of the values of a filter.
pub const ROUND_MAX: usize = 200;
/// Maximum number of instances in one call that terminates.
pub const TERMINATE_MAX: usize = 50;
/// Calls per second, and the number of calls after a time without calls.
const RATE: (f64, f64) = (2.0, 20.0);
/// Beginning of the name that the adaptor gives to the elastic address of an instance. The identifier of the instance follows.
const ADDRESS: &str = "eip-";
/// Beginning of the name that the adaptor gives to the second network interface of an instance.
const INTERFACE: &str = "nic-";
/// The action that lists instances.
const INSTANCES: &str = "DescribeInstances";
/// The action that lists elastic addresses.
const ADDRESSES: &str = "DescribeAddresses";
/// The action that lists network interfaces.
const INTERFACES: &str = "DescribeNetworkInterfaces";
/// Maximum number of pages of a list.
const PAGES_MAX: usize = 50;

/// The actions that the controller needs, each with the parameter that its request must have, and an identifier that EC2 does not use.
const ACTIONS: [(&str, Option<(&str, &str)>); 7] = [
    (INSTANCES, None),
    (
        "TerminateInstances",
        Some(("InstanceId.1", "i-00000000000000000")),
    ),
    (ADDRESSES, None),
    (
        "DisassociateAddress",
        Some(("AssociationId", "eipassoc-00000000000000000")),
    ),
    (
        "ReleaseAddress",
        Some(("AllocationId", "eipalloc-00000000000000000")),
    ),
    (INTERFACES, None),
    (
        "DeleteNetworkInterface",
        Some(("NetworkInterfaceId", "eni-00000000000000000")),
    ),
];

/// Whether the credentials have the permission for an action.
#[derive(Debug)]
pub enum Right {
    /// They have.
    Permitted,
    /// EC2 has answered with this code, which does not say it.
    Unknown(String),
    /// They have not. With the next step.
    Denied(String),
}

/// A connection to EC2 with one configuration.
pub struct Ec2 {
    gate: Gate,
    bucket: TokenBucket,
    ec2: Endpoint,
    sts: Endpoint,
    region: String,
    context: Context,
    source: CredentialSource,
    /// The credentials of this round of calls.
    credential: Option<Credential>,
    /// Whether the log has said that the controller may not describe network interfaces.
    has_warned: bool,
}

struct Endpoint {
    version: &'static str,
    url: String,
    signer: RequestSigner,
}

impl Ec2 {
    /// A connection. It has sent nothing yet.
    pub fn new(config: &AwsConfig, settings: &AwsProvider, gate: Gate) -> Self {
        let endpoint = |name: &str, version, url: &Option<String>| Endpoint {
            version,
            url: url.clone().unwrap_or_else(|| config.endpoint(name)),
            signer: RequestSigner::new(name, &config.region),
        };
        Self {
            ec2: endpoint("ec2", "2016-11-15", &settings.endpoint),
            sts: endpoint("sts", "2011-06-15", &settings.sts_endpoint),
            bucket: TokenBucket::new(RATE.0, RATE.1),
            region: config.region.clone(),
            context: context(config, gate.clone()),
            source: CredentialSource::of(config),
            credential: None,
            has_warned: false,
            gate,
        }
    }

    /// Begins a round of calls: all of them have the same credentials. Returns the account of these credentials and the region, where EC2 is asked.
    ///
    /// # Errors
    /// There are no credentials, or the call fails.
    pub async fn begin_round(&mut self) -> Result<String, Failure> {
        self.credential = None;
        let action = "GetCallerIdentity";
        let body = self.send(Service::Sts, action, &[]).await?;
        let account = answers::account(action, &body)?;
        Ok(format!("{account}/{}", self.region))
    }

    /// Describes the instances, and the addresses and interfaces that belong to them.
    ///
    /// # Errors
    /// A call fails.
    pub async fn find(&mut self, ids: &[&AwsId]) -> Result<BTreeMap<AwsId, Found>, Failure> {
        let mut all: BTreeMap<AwsId, Found> = BTreeMap::new();
        for id in ids {
            all.entry((*id).clone()).or_default();
        }
        let values = |prefix| -> Vec<_> {
            all.keys()
                .map(|id| format!("{prefix}{}", id.as_str()))
                .collect()
        };
        let (ids, addresses, interfaces) = (values(""), values(ADDRESS), values(INTERFACE));
        for instance in self.list(INSTANCES, "instance-id", &ids).await? {
            let id = instance.instance_id.as_deref().unwrap_or_default();
            if let Some(found) = id.parse().ok().and_then(|id: AwsId| all.get_mut(&id)) {
                found.instance = Some(instance);
            }
        }
        let tag = format!("tag:{TAG_NAME}");
        let addresses = self.list(ADDRESSES, &tag, &addresses).await?;
        let interfaces = self.list(INTERFACES, &tag, &interfaces).await;
        let interfaces = match interfaces {
            // The policy of peerpod-ctrl lacks this action. Then interfaces whose attachment has failed remain.
            Err(failure) if failure.reason == PeerPodReason::PermissionDenied => {
                if !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(
                        "network interfaces that the adaptor could not attach remain: {}",
                        failure.message
                    );
                }
                Vec::new()
            }
            interfaces => interfaces?,
        };
        // The filter of the service is no proof, so the tag is read again.
        for interface in interfaces {
            if let Some(found) = named_after(&mut all, &interface, INTERFACE) {
                found.interfaces.push(interface);
            }
        }
        for address in addresses {
            if let Some(found) = named_after(&mut all, &address, ADDRESS) {
                match has_other_user(&address, found) {
                    true => found.used_addresses.push(address),
                    false => found.addresses.push(address),
                }
            }
        }
        Ok(all)
    }

    /// All instances of the cluster with that UID, in all states.
    ///
    /// # Errors
    /// A call fails. A part of the list is no list.
    pub async fn of_cluster(&mut self, cluster_uid: &str) -> Result<Vec<Item>, Failure> {
        let tag = format!("tag:{}", names::TAG_CLUSTER);
        self.list(INSTANCES, &tag, &[cluster_uid.to_owned()]).await
    }

    /// The rights of the credentials, by requests that EC2 only checks (`DryRun`). They also name no existing resource.
    ///
    /// # Errors
    /// All calls fail.
    pub async fn rights(&mut self) -> Result<Vec<(&'static str, Right)>, Failure> {
        let mut rights = Vec::new();
        for (action, parameter) in ACTIONS {
            let mut parameters = vec![("DryRun".to_owned(), "true".to_owned())];
            parameters.extend(parameter.map(|(name, id)| (name.to_owned(), id.to_owned())));
            let right = match self.call(action, &parameters).await {
                Ok(_) => Right::Permitted,
                Err(failure) if failure.code == "DryRunOperation" => Right::Permitted,
                Err(failure) if failure.is_of_provider() => return Err(failure),
                Err(failure) if failure.reason == PeerPodReason::PermissionDenied => {
                    Right::Denied(failure.message)
                }
                Err(failure) => Right::Unknown(failure.code),
            };
            rights.push((action, right));
        }
        Ok(rights)
    }

    /// Whether EC2 says that it does not have the instance. An empty list does not name it.
    ///
    /// # Errors
    /// The call fails, or EC2 has the instance.
    pub async fn confirm_absence(&mut self, id: &AwsId) -> Result<(), Failure> {
        let parameters = [("InstanceId.1".to_owned(), id.as_str().to_owned())];
        match self.call(INSTANCES, &parameters).await {
            Err(failure)
                if failure.code == "InvalidInstanceID.NotFound"
                    && failure.message.contains(id.as_str()) =>
            {
                Ok(())
            }
            Err(failure) => Err(failure),
            Ok(_) => Err(Failure::new(
                PeerPodReason::DeletionFailed,
                format!(
                    "two answers about instance {} differ; the controller asks again",
                    id.as_str()
                ),
            )),
        }
    }

    /// Terminates up to [`TERMINATE_MAX`] instances. A call with one instance that cannot be terminated terminates none, so it is repeated with each half. Returns the failures.
    pub async fn terminate(&mut self, ids: &[AwsId]) -> BTreeMap<AwsId, Failure> {
        let (mut failures, mut left) = (BTreeMap::new(), vec![ids]);
        let mut away: Option<Failure> = None;
        while let Some(part) = left.pop() {
            let result = match (&away, part) {
                (_, []) => continue,
                (Some(failure), _) => Err(failure.clone()),
                (None, part) => {
                    let ids = (1..).zip(part);
                    let ids: Vec<_> = ids
                        .map(|(n, id)| (format!("InstanceId.{n}"), id.as_str().to_owned()))
                        .collect();
                    self.call("TerminateInstances", &ids).await.map(drop)
                }
            };
            match (result, part) {
                (Ok(()), _) => {}
                (Err(failure), [_, _, ..]) if !failure.is_of_provider() => {
                    let (first, second) = part.split_at(part.len() / 2);
                    left.extend([first, second]);
                }
                (Err(failure), part) => {
                    away = away.or_else(|| failure.is_of_provider().then(|| failure.clone()));
                    failures.extend(part.iter().map(|id| (id.clone(), failure.clone())));
                }
            }
        }
        failures
    }

    /// Releases the addresses and deletes the interfaces that [`Self::find`] has found.
    ///
    /// # Errors
    /// A call fails.
    pub async fn release(&mut self, found: &Found) -> Result<(), Failure> {
        for address in &found.addresses {
            self.remove(
                "DisassociateAddress",
                "AssociationId",
                &address.association_id,
            )
            .await?;
            self.remove("ReleaseAddress", "AllocationId", &address.allocation_id)
                .await?;
        }
        for interface in &found.interfaces {
            let id = &interface.network_interface_id;
            self.remove("DeleteNetworkInterface", "NetworkInterfaceId", id)
                .await?;
        }
        Ok(())
    }

    /// Removes a resource, if there is one. One that no longer exists is no failure.
    async fn remove(
        &mut self,
        action: &str,
        parameter: &str,
        id: &Option<String>,
    ) -> Result<(), Failure> {
        let Some(id) = id.as_ref().filter(|id| !id.is_empty()) else {
            return Ok(());
        };
        match self
            .call(action, &[(parameter.to_owned(), id.clone())])
            .await
        {
            Err(failure)
                if failure.code.starts_with("Invalid") && failure.code.ends_with("ID.NotFound") =>
            {
                Ok(())
            }
            result => result.map(drop),
        }
    }

    /// All pages of a list.
    async fn list(
        &mut self,
        action: &str,
        filter: &str,
        values: &[String],
    ) -> Result<Vec<Item>, Failure> {
        let mut parameters = vec![("Filter.1.Name".to_owned(), filter.to_owned())];
        let values = (1..).zip(values);
        parameters.extend(values.map(|(n, value)| (format!("Filter.1.Value.{n}"), value.clone())));
        let (first, mut all) = (parameters.len(), Vec::new());
        for _ in 0..PAGES_MAX {
            let page = answers::page(action, &self.call(action, &parameters).await?)?;
            all.extend(page.items);
            let Some(next) = page.next else {
                return Ok(all);
            };
            parameters.truncate(first);
            parameters.push(("NextToken".to_owned(), next));
        }
        let message = format!("the list of {action} has no end; check the endpoint");
        Err(Failure::new(PeerPodReason::ProviderUnreachable, message))
    }

    async fn call(
        &mut self,
        action: &str,
        parameters: &[(String, String)],
    ) -> Result<String, Failure> {
        self.send(Service::Ec2, action, parameters).await
    }

    async fn send(
        &mut self,
        service: Service,
        action: &str,
        parameters: &[(String, String)],
    ) -> Result<String, Failure> {
        self.bucket.take().await;
        let credential = match self.credential.take() {
            Some(credential) => credential,
            None => self.source.load(&self.context).await?,
        };
        let credential = self.credential.insert(credential);
        let endpoint = match service {
            Service::Ec2 => &self.ec2,
            Service::Sts => &self.sts,
        };
        let body = encoded(action, endpoint.version, parameters);
        let request = Request::post(format!("{}/", endpoint.url.trim_end_matches('/')))
            .header(
                header::CONTENT_TYPE,
                "application/x-www-form-urlencoded; charset=utf-8",
            )
            // Without it, the library would sign requests without their body, which only S3 accepts.
            .header("x-amz-content-sha256", sha256(&body))
            .body(body);
        let unreachable = |error: &dyn std::fmt::Display| {
            let message = format!(
                "{action}: {error}; check the network and the endpoint of the provider aws"
            );
            Failure::new(PeerPodReason::ProviderUnreachable, message)
        };
        let (mut head, body) = request.map_err(|error| unreachable(&error))?.into_parts();
        let signer = &endpoint.signer;
        let signed = signer.sign_request(&self.context, &mut head, Some(credential), None);
        signed.await.map_err(|error| unsigned(&error))?;
        let response = self.gate.send(Request::from_parts(head, body)).await;
        let (head, body) = response.map_err(|error| unreachable(&error))?.into_parts();
        let body = String::from_utf8_lossy(&body).into_owned();
        if head.status.is_success() {
            return answers::checked(action, body);
        }
        let retry_after = head.headers.get(header::RETRY_AFTER);
        let seconds = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        let retry_after = seconds.map(std::time::Duration::from_secs);
        Err(answers::failure(action, head.status, &body, retry_after))
    }
}

/// Whether an address is associated with something else than the instance after which it is named, and its second interface. A user can have
/// associated it since.
fn has_other_user(address: &Item, found: &Found) -> bool {
    let value = |it: &Option<String>| it.clone().filter(|it| !it.is_empty());
    match (
        value(&address.instance_id),
        value(&address.network_interface_id),
    ) {
        (Some(instance), _) => address.tag(TAG_NAME) != Some(&format!("{ADDRESS}{instance}")),
        (None, Some(interface)) => {
            let mut interfaces = found.interfaces.iter();
            !interfaces.any(|it| it.network_interface_id.as_ref() == Some(&interface))
        }
        (None, None) => value(&address.association_id).is_some(),
    }
}

#[derive(Clone, Copy)]
enum Service {
    Ec2,
    Sts,
}

/// The instance after which the adaptor has named the resource with these tags.
fn named_after<'a>(
    all: &'a mut BTreeMap<AwsId, Found>,
    item: &Item,
    prefix: &str,
) -> Option<&'a mut Found> {
    let id = item.tag(TAG_NAME)?.strip_prefix(prefix)?;
    all.get_mut(&id.parse::<AwsId>().ok()?)
}

/// The body of a request of the Query API.
fn encoded(action: &str, version: &str, parameters: &[(String, String)]) -> Vec<u8> {
    let mut body = form_urlencoded::Serializer::new(String::new());
    body.append_pair("Action", action)
        .append_pair("Version", version);
    body.extend_pairs(parameters);
    body.finish().into_bytes()
}

fn sha256(body: &[u8]) -> String {
    let digest = Sha256::digest(body);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
