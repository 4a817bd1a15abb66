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
struct List<T> {
    #[serde(rename = "item", default = "Vec::new")]
    items: Vec<T>,
}

/// An instance, an elastic address or a network interface.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Item {
    /// Identifier of an instance. Addresses also name theirs.
    pub instance_id: Option<String>,
    /// Identifier of an address.
    pub allocation_id: Option<String>,
    /// The use of an address by an instance.
    pub association_id: Option<String>,
    /// Identifier of an interface. Addresses also name theirs.
    pub network_interface_id: Option<String>,
    instance_state: Option<State>,
    tag_set: Option<List<Tag>>,
}

#[derive(Debug, Deserialize)]
struct State {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Tag {
    key: String,
    #[serde(default)]
    value: String,
}

impl Item {
    /// The value of the tag.
    pub fn tag(&self, key: &str) -> Option<&str> {
        let tag = self
            .tag_set
            .as_ref()?
            .items
            .iter()
            .find(|tag| tag.key == key)?;
        Some(&tag.value)
    }

    /// Whether it is a terminated instance.
    pub fn is_gone(&self) -> bool {
        self.has_state("terminated")
    }

    /// Whether it is an instance whose termination is in progress.
    pub fn is_ending(&self) -> bool {
        self.has_state("shutting-down")
    }

    fn has_state(&self, name: &str) -> bool {
        self.instance_state
            .as_ref()
            .is_some_and(|state| state.name == name)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Lists {
    reservation_set: Option<List<Reservation>>,
    addresses_set: Option<List<Item>>,
    network_interface_set: Option<List<Item>>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reservation {
    instances_set: List<Item>,
}

/// A page of a list.
pub struct Page {
    /// The entries.
    pub items: Vec<Item>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

/// The page in an answer to that action.
///
/// # Errors
/// The answer has another form. A document without a list is not an empty list.
pub fn page(action: &str, body: &str) -> Result<Page, Failure> {
    let lists: Lists = parse(action, body)?;
    let of_instances = lists.reservation_set.map(|it| {
        it.items
            .into_iter()
            .flat_map(|it| it.instances_set.items)
            .collect()
    });
    let others = lists.addresses_set.or(lists.network_interface_set);
    let items = of_instances.or(others.map(|it| it.items));
    Ok(Page {
        items: items.ok_or_else(|| not_understood(action))?,
        next: lists.next_token.filter(|token| !token.is_empty()),
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Identity {
    get_caller_identity_result: Account,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Account {
    account: String,
}

/// The account in the answer to that action.
///
/// # Errors
/// The answer has another form.
pub fn account(action: &str, body: &str) -> Result<String, Failure> {
    let identity: Identity = parse(action, body)?;
    Ok(identity.get_caller_identity_result.account)
}

fn parse<T: DeserializeOwned>(action: &str, body: &str) -> Result<T, Failure> {
    quick_xml::de::from_str(body).map_err(|_| not_understood(action))
}

/// The body, if it is an answer to that action. A proxy can have answered in place of the service, so that nothing was carried out.
///
/// # Errors
/// It is another document.
pub fn checked(action: &str, body: String) -> Result<String, Failure> {
    match body.contains(&format!("<{action}Response")) {
        true => Ok(body),
        false => Err(not_understood(action)),
    }
}

fn not_understood(action: &str) -> Failure {
    let message = format!(
        "the answer to {action} is not understood; check the endpoint of the provider aws, and proxies"
    );
    Failure::new(PeerPodReason::ProviderUnreachable, message)
}

/// EC2 puts `Errors` around the error, STS does not.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ErrorAnswer {
    errors: Box<Option<ErrorAnswer>>,
    error: Option<ServiceError>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ServiceError {
    code: String,
    #[serde(default)]
    message: String,
}

/// The failure that an answer describes.
pub fn failure(
    action: &str,
    status: StatusCode,
    body: &str,
    retry_after: Option<Duration>,
) -> Failure {
    let answer = quick_xml::de::from_str::<ErrorAnswer>(body).unwrap_or_default();
    let error = answer.errors.and_then(|it| it.error).or(answer.error);
    let (code, message) = error.map(|it| (it.code, it.message)).unwrap_or_default();
    let reason = reason(&code, status.as_u16());
    let next = match reason {
        PeerPodReason::CredentialsRejected => {
            "correct the credentials of the provider aws, and check the clock of the node".to_owned()
        }
        PeerPodReason::PermissionDenied => format!("permit ec2:{action} in the policy of the credentials"),
        PeerPodReason::InstanceProtected => {
            "disable the protection of the instance against termination, or delete the instance by hand".to_owned()
        }
        _ => "the controller tries again".to_owned(),
    };
    // The message about credentials can contain parts of the request, and an encoded part describes the account.
    let message = match reason {
        PeerPodReason::CredentialsRejected => "",
        _ => message
            .split("Encoded authorization")
            .next()
            .unwrap_or_default()
            .trim(),
    };
    let message: String = message.chars().take(MESSAGE_MAX).collect();
    let said = [&*code, &*message]
        .into_iter()
        .filter(|it| !it.is_empty())
        .collect::<Vec<_>>()
        .join(": ");
    Failure {
        reason,
        message: format!(
            "{action} is answered with status {} {said}; {next}",
            status.as_u16()
        ),
        code,
        retry_after,
    }
}

fn reason(code: &str, status: u16) -> PeerPodReason {
    match (code, status) {
        (
            "RequestLimitExceeded" | "Throttling" | "ThrottlingException" | "EC2ThrottledException",
            _,
        )
        | (_, 429) => PeerPodReason::Throttled,
        (
            "AuthFailure"
            | "ExpiredToken"
            | "ExpiredTokenException"
            | "RequestExpired"
            | "InvalidClientTokenId"
            | "UnrecognizedClientException"
            | "SignatureDoesNotMatch"
            | "MissingAuthenticationToken"
            | "IncompleteSignature",
            _,
        )
        | (_, 401) => PeerPodReason::CredentialsRejected,
        ("OperationNotPermitted", _) => PeerPodReason::InstanceProtected,
        ("IncorrectInstanceState" | "IncorrectState", _) => PeerPodReason::Deleting,
        ("UnauthorizedOperation" | "AccessDenied", _) => PeerPodReason::PermissionDenied,
        (_, 500..) => PeerPodReason::ProviderUnreachable,
        _ => PeerPodReason::DeletionFailed,
    }
}
