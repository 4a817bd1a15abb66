//! (pure) The configuration that calls to AWS need, from the objects of the cloud-api-adaptor and the environment of the container.

use crate::api::peerpod::{PeerPodReason, names};
use crate::controllers::peerpod::adaptor::AdaptorConfig;
use crate::controllers::peerpod::failure::Failure;
use std::collections::HashMap;

const REGION: &str = names::KEY_REGION;
/// Variable with the identifier of a key.
pub const KEY_ID: &str = "AWS_ACCESS_KEY_ID";
/// Variable with the secret part of a key.
pub const SECRET_KEY: &str = "AWS_SECRET_ACCESS_KEY";
const SESSION_TOKEN: &str = "AWS_SESSION_TOKEN";

/// Keys that are read from the objects of the adaptor. Files and URLs of credential services come from the environment only: whoever
/// writes these objects could have files of the controller sent elsewhere.
const OF_ADAPTOR: [&str; 4] = [REGION, KEY_ID, SECRET_KEY, SESSION_TOKEN];

/// The configuration of calls to AWS.
#[derive(Clone, PartialEq, Eq)]
pub struct AwsConfig {
    /// The region.
    pub region: String,
    /// All keys, as the sources of credentials read them.
    pub variables: HashMap<String, String>,
}

impl AwsConfig {
    /// The configuration.
    ///
    /// # Errors
    /// A key is missing, or its value is wrong.
    pub fn of(
        adaptor: &AdaptorConfig,
        environment: &HashMap<String, String>,
    ) -> Result<Self, Failure> {
        let mut variables = environment.clone();
        let has_keys = OF_ADAPTOR[1..].iter().any(|key| adaptor.get(key).is_some());
        if has_keys {
            // A token of another source does not belong to the keys.
            OF_ADAPTOR[1..]
                .iter()
                .for_each(|key| drop(variables.remove(*key)));
            for (key, other) in [(KEY_ID, SECRET_KEY), (SECRET_KEY, KEY_ID)] {
                if adaptor.get(key).is_none() {
                    let message = format!(
                        "{} has {other} or {SESSION_TOKEN}, but not {key}; add it",
                        adaptor.names()
                    );
                    return Err(Failure::new(PeerPodReason::ConfigMissing, message));
                }
            }
        }
        for key in OF_ADAPTOR {
            if let Some(value) = adaptor.get(key) {
                variables.insert(key.to_owned(), value.to_owned());
            }
        }
        let Some(region) = variables.get(REGION).cloned() else {
            let message = format!("{} lacks the key {REGION}; add it", adaptor.names());
            return Err(Failure::new(PeerPodReason::ConfigMissing, message));
        };
        let is_legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !region.chars().all(is_legal) || region.len() > 32 {
            let message = format!(
                "the key {REGION} of {} is no region; use one such as eu-central-1",
                adaptor.names()
            );
            return Err(Failure::new(PeerPodReason::ConfigInvalid, message));
        }
        Ok(Self { region, variables })
    }

    /// The public URL of a service in the region.
    pub fn endpoint(&self, service: &str) -> String {
        let china = if self.region.starts_with("cn-") {
            ".cn"
        } else {
            ""
        };
        format!("https://{service}.{}.amazonaws.com{china}", self.region)
    }
}
