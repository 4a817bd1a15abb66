//! (client) The source of the credentials. The configuration selects one, and a failure of it selects no other: another source can belong to another
//! account.

use crate::api::peerpod::PeerPodReason;
use crate::controllers::peerpod::aws::config::{AwsConfig, KEY_ID, SECRET_KEY};
use crate::controllers::peerpod::failure::Failure;
use crate::controllers::peerpod::gate::Gate;
use http::Request;
use reqsign_aws_v4::{
    AssumeRoleWithWebIdentityCredentialProvider, Credential, ECSCredentialProvider,
    EnvCredentialProvider, IMDSv2CredentialProvider,
};
use reqsign_core::{Context, FileRead, HttpSend, ProvideCredential, StaticEnv};
use tokio_util::bytes::Bytes;

/// Services of the node that give credentials, without TLS.
pub const METADATA_HOSTS: [&str; 3] = ["169.254.169.254", "169.254.170.2", "169.254.170.23"];

const TOKEN_FILE: &str = "AWS_WEB_IDENTITY_TOKEN_FILE";
const CONTAINER: [&str; 2] = [
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// A source of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// Keys of the adaptor or of the environment.
    Keys,
    /// The role of a service account.
    WebIdentity,
    /// The service that gives credentials to containers.
    Container,
    /// The metadata service of the node.
    Node,
}

impl CredentialSource {
    /// The first source that the configuration has variables of.
    pub fn of(config: &AwsConfig) -> Self {
        let has_one = |keys: &[&str]| keys.iter().any(|key| config.variables.contains_key(*key));
        if has_one(&[KEY_ID, SECRET_KEY]) {
            Self::Keys
        } else if has_one(&[TOKEN_FILE]) {
            Self::WebIdentity
        } else if has_one(&CONTAINER) {
            Self::Container
        } else {
            Self::Node
        }
    }

    /// Loads the credentials.
    ///
    /// # Errors
    /// The source has no credentials, or does not answer.
    pub async fn load(self, context: &Context) -> Result<Credential, Failure> {
        let loaded = match self {
            Self::Keys => {
                EnvCredentialProvider::new()
                    .provide_credential(context)
                    .await
            }
            Self::WebIdentity => {
                let source = AssumeRoleWithWebIdentityCredentialProvider::new();
                source.provide_credential(context).await
            }
            Self::Container => {
                let source = ECSCredentialProvider::new();
                source.provide_credential(context).await
            }
            Self::Node => {
                let source = IMDSv2CredentialProvider::new();
                source.provide_credential(context).await
            }
        };
        let missing = || reqsign_core::Error::credential_invalid("no credentials");
        let credential = loaded.and_then(|it| it.ok_or_else(missing));
        credential.map_err(|error| unsigned(&error))
    }
}

/// Variables, files and network for the sources of credentials.
pub fn context(config: &AwsConfig, gate: Gate) -> Context {
    let environment = StaticEnv {
        home_dir: None,
        envs: config.variables.clone(),
    };
    Context::new()
        .with_env(environment)
        .with_file_read(Files)
        .with_http_send(gate)
}

/// The failure of a source of credentials. Its message is not shown, because it can contain parts of answers with credentials.
pub fn unsigned(error: &reqsign_core::Error) -> Failure {
    let message = match error.is_retryable() {
        true => {
            "the service that gives out credentials does not answer; check the network of the controller"
        }
        false => {
            "there are no valid credentials for the provider aws; add AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to the Secret of the \
             cloud-api-adaptor, or give the account of the controller a role"
        }
    };
    Failure::new(PeerPodReason::CredentialsRejected, message.to_owned())
}

/// Reads the files of tokens.
#[derive(Debug)]
struct Files;

impl FileRead for Files {
    async fn file_read(&self, path: &str) -> reqsign_core::Result<Vec<u8>> {
        let read = tokio::fs::read(path).await;
        read.map_err(|error| {
            reqsign_core::Error::config_invalid("cannot read the file").with_source(error)
        })
    }
}

impl HttpSend for Gate {
    async fn http_send(
        &self,
        request: Request<Bytes>,
    ) -> reqsign_core::Result<http::Response<Bytes>> {
        let request = request.map(|body| body.to_vec());
        let sent = self.send(request).await;
        let failed = |error| {
            reqsign_core::Error::unexpected("no answer")
                .with_source(error)
                .set_retryable(true)
        };
        sent.map(|response| response.map(Bytes::from))
            .map_err(failed)
    }
}
