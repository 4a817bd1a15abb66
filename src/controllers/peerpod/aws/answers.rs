//! (pure) The answers of EC2 and STS.

use crate::api::peerpod::PeerPodReason;
use crate::controllers::peerpod::failure::Failure;
use http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Maximum length of a message of a service, in characters.
const MESSAGE_MAX: usize = 300;

/// A list. In XML, each entry is an element `item`.
#[derive(Debug, Deserialize)]
pub struct List<T> {
    #[serde(rename = "item", default = "Vec::new")]
    pub items: Vec<T>,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { items: Vec::new() }
    }
}

/// A tag.
#[derive(Clone, Debug, Deserialize)]
pub struct Tag {
    pub key: String,
    #[serde(default)]
    pub value: String,
}

impl List<Tag> {
    /// The value of the tag.
    pub fn value(&self, key: &str) -> Option<&str> {
        let tag = self.items.iter().find(|tag| tag.key == key)?;
        Some(&tag.value)
    }
}

/// An answer with a list that can have more pages. All other fields are mandatory, so that no other document is taken for an empty list.
pub trait Page: DeserializeOwned {
    type Item;
    /// The action, and the name of the answer's root element without `Response`.
    const ACTION: &'static str;
    /// The entries of the page, and the token of the next one.
    fn into_parts(self) -> (Vec<Self::Item>, Option<String>);
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instances {
    reservation_set: List<Reservation>,
    #[serde(default)]
    next_token: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reservation {
    instances_set: List<Instance>,
}

/// An instance.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    pub instance_id: String,
    instance_state: State,
    #[serde(default)]
    pub tag_set: List<Tag>,
}

#[derive(Debug, Deserialize)]
struct State {
    name: String,
}

impl Instance {
    /// Whether it is terminated.
    pub fn is_gone(&self) -> bool {
        self.instance_state.name == "terminated"
    }

    /// Whether its termination is in progress.
    pub fn is_ending(&self) -> bool {
        self.instance_state.name == "shutting-down"
    }
}

impl Page for Instances {
    type Item = Instance;
    const ACTION: &'static str = "DescribeInstances";

    fn into_parts(self) -> (Vec<Instance>, Option<String>) {
        let reservations = self.reservation_set.items.into_iter();
        let items = reservations.flat_map(|it| it.instances_set.items);
        (items.collect(), self.next_token)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Addresses {
    addresses_set: List<Address>,
}

/// An elastic address.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    pub allocation_id: String,
    #[serde(default)]
    pub association_id: Option<String>,
    #[serde(default)]
    pub tag_set: List<Tag>,
}

impl Page for Addresses {
    type Item = Address;
    const ACTION: &'static str = "DescribeAddresses";

    fn into_parts(self) -> (Vec<Address>, Option<String>) {
        (self.addresses_set.items, None)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interfaces {
    network_interface_set: List<Interface>,
    #[serde(default)]
    next_token: Option<String>,
}

/// A network interface.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    pub network_interface_id: String,
    #[serde(default)]
    pub tag_set: List<Tag>,
}

impl Page for Interfaces {
    type Item = Interface;
    const ACTION: &'static str = "DescribeNetworkInterfaces";

    fn into_parts(self) -> (Vec<Interface>, Option<String>) {
        (self.network_interface_set.items, self.next_token)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Identity {
    get_caller_identity_result: IdentityResult,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct IdentityResult {
    account: String,
}

/// The account in an answer to `GetCallerIdentity`.
///
/// # Errors
/// The answer has another form.
pub fn account(body: &str) -> Result<String, Failure> {
    let identity: Identity = parse("GetCallerIdentity", body)?;
    Ok(identity.get_caller_identity_result.account)
}

/// A page of a list.
///
/// # Errors
/// The answer has another form.
pub fn page<P: Page>(body: &str) -> Result<P, Failure> {
    parse(P::ACTION, body)
}

fn parse<T: DeserializeOwned>(action: &str, body: &str) -> Result<T, Failure> {
    // The deserializer does not compare the name of the root element.
    let parsed = match body.contains(&format!("<{action}Response")) {
        true => quick_xml::de::from_str(body).ok(),
        false => None,
    };
    parsed.ok_or_else(|| {
        Failure::of_provider(
            PeerPodReason::ProviderUnreachable,
            format!("the answer of the service to {action} is not understood; check the endpoint and proxies"),
        )
    })
}

/// EC2 puts `Errors` around the error, STS does not.
#[derive(Deserialize)]
struct ErrorAnswer {
    #[serde(rename = "Errors", default)]
    errors: Option<Errors>,
    #[serde(rename = "Error", default)]
    error: Option<ServiceError>,
}

#[derive(Deserialize)]
struct Errors {
    #[serde(rename = "Error")]
    error: ServiceError,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ServiceError {
    code: String,
    #[serde(default)]
    message: String,
}

/// The code and the message of an error. Both are empty if the answer has another form.
pub fn error(body: &str) -> (String, String) {
    let answer = quick_xml::de::from_str::<ErrorAnswer>(body).ok();
    let error = answer.and_then(|it| it.errors.map(|it| it.error).or(it.error));
    error.map(|it| (it.code, it.message)).unwrap_or_default()
}

/// The failure of a call.
pub fn failure(
    action: &str,
    status: StatusCode,
    body: &str,
    retry_after: Option<Duration>,
) -> Failure {
    let (code, message) = error(body);
    let said = match code.as_str() {
        "" => format!("{action}: status {}", status.as_u16()),
        _ => format!("{action}: {code}"),
    };
    // The encoded part describes the account, and is of no use here.
    let message = message
        .split("Encoded authorization")
        .next()
        .unwrap_or_default();
    let message: String = message.trim().chars().take(MESSAGE_MAX).collect();
    let full = format!("{said}: {message}");
    match (code.as_str(), status.as_u16()) {
        ("RequestLimitExceeded" | "Throttling" | "ThrottlingException" | "EC2ThrottledException", _) | (_, 429) => {
            let next = "the controller calls less often for some time";
            let throttled = Failure::of_provider(PeerPodReason::Throttled, format!("{said}; {next}"));
            throttled.retry_after(retry_after)
        }
        (
            "AuthFailure" | "ExpiredToken" | "ExpiredTokenException" | "RequestExpired" | "InvalidClientTokenId"
            | "UnrecognizedClientException" | "SignatureDoesNotMatch" | "MissingAuthenticationToken"
            | "IncompleteSignature",
            _,
        )
        | (_, 401) => {
            // The message can contain parts of the request.
            let next = "correct the credentials of the provider aws, and check the clock of the node";
            Failure::of_provider(PeerPodReason::CredentialsRejected, format!("{said}; {next}"))
        }
        ("OperationNotPermitted", _) => Failure::of_instance(
            PeerPodReason::InstanceProtected,
            format!("{full}; disable the protection of the instance against termination, or delete it by hand"),
        ),
        ("UnauthorizedOperation" | "AccessDenied", _) | (_, 403) => Failure::of_instance(
            PeerPodReason::PermissionDenied,
            format!("{full}; permit ec2:{action} in the policy of the controller's credentials"),
        ),
        ("IncorrectInstanceState" | "IncorrectState", _) => {
            Failure::of_instance(PeerPodReason::Deleting, full)
        }
        (_, 500..) => {
            let next = "the controller tries again";
            let away = Failure::of_provider(PeerPodReason::ProviderUnreachable, format!("{said}; {next}"));
            away.retry_after(retry_after)
        }
        _ => Failure::of_instance(PeerPodReason::DeletionFailed, format!("{full}; the controller tries again")),
    }
    .with_code(code)
}
