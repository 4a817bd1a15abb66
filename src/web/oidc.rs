//! Logins by providers of OpenID Connect: the authorization code flow with PKCE and nonce. The keys of a provider are read at each login.

use crate::settings::web::{OidcProvider, USER_NAME_MAX, WebSettings};
use crate::web::https::{HttpError, send};
use jiff::{SignedDuration, Timestamp};
use openidconnect::core::{
    CoreAuthDisplay, CoreAuthPrompt, CoreErrorResponseType, CoreGenderClaim, CoreJsonWebKey,
    CoreJweContentEncryptionAlgorithm, CoreJwsSigningAlgorithm, CoreProviderMetadata,
    CoreResponseType, CoreRevocableToken, CoreRevocationErrorResponse,
    CoreTokenIntrospectionResponse, CoreTokenType,
};
use openidconnect::{
    AdditionalClaims, AuthenticationFlow, AuthorizationCode, Client, ClientId, ClientSecret,
    CsrfToken, DiscoveryError, EmptyExtraTokenFields, EndpointMaybeSet, EndpointNotSet,
    EndpointSet, IdTokenFields, IssuerUrl, LanguageTag, Nonce, PkceCodeChallenge, PkceCodeVerifier,
    RedirectUrl, Scope, StandardErrorResponse, StandardTokenResponse, TokenResponse,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

/// Time from the begin of a login to its end.
pub const BEGUN_MAX: SignedDuration = SignedDuration::from_mins(10);

/// Default claim with the roles.
const ROLES: &str = "roles";

/// A login that has begun. Only the browser that has begun it has this, in an encrypted cookie.
#[derive(Serialize, Deserialize)]
pub struct Pending {
    /// Name of the provider.
    pub provider: String,
    state: CsrfToken,
    nonce: Nonce,
    verifier: PkceCodeVerifier,
    begun: Timestamp,
    /// Identifier of the login that ends then. The browser does not send it with the navigation from the page of the provider.
    pub previous: Option<String>,
    /// The page after the login.
    pub page: String,
}

/// What a provider sends with the browser after a login.
#[derive(Deserialize)]
pub struct Returned {
    code: Option<AuthorizationCode>,
    state: Option<CsrfToken>,
    error: Option<String>,
}

/// A user as a provider knows him.
#[derive(Debug, PartialEq)]
pub struct Identity {
    /// Name, after `userMappings`.
    pub user: String,
    /// Name that pages show.
    pub full_name: Option<String>,
    /// Roles, after `roleMappings`.
    pub roles: Vec<String>,
}

/// The reason that a login has failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The browser has not begun this login, or too long ago.
    #[error("this browser has not begun the login in the last 10 min")]
    NotBegun,
    /// The user or the provider has ended the login.
    #[error("the provider reports {0:?}")]
    Denied(String),
    /// The provider cannot be used.
    #[error("{0}")]
    Provider(String),
    /// The cookie of a login has no place for the roles.
    #[error(
        "the names and roles of the user are longer than 2,000 bytes; remove roles by roleMappings"
    )]
    TooManyRoles,
    /// The user has logged in too often in the last hour.
    #[error("user {0:?} has logged in too often in the last hour")]
    TooManyLogins(String),
    /// The previous login of the browser has not ended.
    #[error("the previous login of the browser cannot be ended")]
    NotEnded,
    /// The user has no role that permits the login.
    #[error("user {user:?} has none of the roles of authorizedRoles, but the roles {roles:?}")]
    NotAuthorized {
        /// Name of the user at the provider.
        user: String,
        /// Roles at the provider.
        roles: Vec<String>,
    },
}

impl Error {
    /// The code for the page.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotBegun => "LoginNotBegun",
            Self::Denied(_) => "LoginDenied",
            Self::Provider(_) | Self::TooManyRoles => "ProviderFailed",
            Self::TooManyLogins(_) => "TooManyAttempts",
            Self::NotEnded => "ApiServer",
            Self::NotAuthorized { .. } => "NotAuthorized",
        }
    }
}

fn failed(error: impl std::error::Error) -> Error {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    Error::Provider(text)
}

/// All claims, because the configuration names the one with the roles.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct AllClaims(Map<String, Value>);

impl AdditionalClaims for AllClaims {}

type Fields = IdTokenFields<
    AllClaims,
    EmptyExtraTokenFields,
    CoreGenderClaim,
    CoreJweContentEncryptionAlgorithm,
    CoreJwsSigningAlgorithm,
>;

type Provider = Client<
    AllClaims,
    CoreAuthDisplay,
    CoreGenderClaim,
    CoreJweContentEncryptionAlgorithm,
    CoreJsonWebKey,
    CoreAuthPrompt,
    StandardErrorResponse<CoreErrorResponseType>,
    StandardTokenResponse<Fields, CoreTokenType>,
    CoreTokenIntrospectionResponse,
    CoreRevocableToken,
    CoreRevocationErrorResponse,
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointMaybeSet,
    EndpointMaybeSet,
>;

/// Reads the configuration and the keys of the provider.
async fn discover(
    settings: &WebSettings,
    provider: &OidcProvider,
    authorities: Arc<Path>,
) -> Result<Provider, Error> {
    let issuer = provider.issuer().unwrap_or_default();
    let mut metadata = metadata_of(issuer.to_owned(), authorities.clone()).await;
    // The issuer of some providers ends with a slash, which their address of the configuration does not show.
    if let Err(DiscoveryError::Validation(_)) = metadata {
        metadata = metadata_of(format!("{issuer}/"), authorities).await;
    }
    let metadata = metadata.map_err(failed)?;
    let redirect = settings.redirect_uri().unwrap_or_default().to_owned();
    let redirect = RedirectUrl::new(redirect).map_err(failed)?;
    let id = ClientId::new(provider.client_id.clone());
    let client = Client::from_provider_metadata(metadata, id, secret(provider)?);
    Ok(client.set_redirect_uri(redirect))
}

async fn metadata_of(
    issuer: String,
    authorities: Arc<Path>,
) -> Result<CoreProviderMetadata, DiscoveryError<HttpError>> {
    let issuer = IssuerUrl::new(issuer).map_err(DiscoveryError::UrlParse)?;
    let http = move |request| send(authorities.clone(), request);
    CoreProviderMetadata::discover_async(issuer, &http).await
}

fn secret(provider: &OidcProvider) -> Result<Option<ClientSecret>, Error> {
    let text = match &provider.secret_file {
        Some(path) => {
            let read = std::fs::read_to_string(path);
            let unreadable = |error| {
                Error::Provider(format!(
                    "cannot read secretFile {}: {error}",
                    path.display()
                ))
            };
            Some(read.map_err(unreadable)?.trim().to_owned())
        }
        None => provider.secret.as_ref().map(|secret| secret.0.clone()),
    };
    Ok(text.map(ClientSecret::new))
}

/// Begins a login. Returns the address of the provider's page, and what the browser has to bring back.
///
/// # Errors
/// The provider cannot be used.
pub async fn begin(
    settings: &WebSettings,
    provider: &OidcProvider,
    authorities: Arc<Path>,
    language: Option<&str>,
    (previous, page): (Option<String>, String),
) -> Result<(String, Pending), Error> {
    let client = discover(settings, provider, authorities).await?;
    let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
    let flow = AuthenticationFlow::<CoreResponseType>::AuthorizationCode;
    let mut request = client
        .authorize_url(flow, CsrfToken::new_random, Nonce::new_random)
        .add_scope(Scope::new("profile".to_owned()))
        .add_prompt(CoreAuthPrompt::Login)
        .set_pkce_challenge(challenge);
    if let Some(language) = language {
        request = request.add_ui_locale(LanguageTag::new(language.to_owned()));
    }
    let (url, state, nonce) = request.url();
    let provider = provider.name.clone();
    let pending = Pending {
        provider,
        state,
        nonce,
        verifier,
        begun: Timestamp::now(),
        previous,
        page,
    };
    Ok((url.to_string(), pending))
}

/// Completes a login: exchanges the code for an ID token, and checks the token.
///
/// # Errors
/// The login is not that of this browser, the provider cannot be used, or the user may not log in.
pub async fn complete(
    settings: &WebSettings,
    provider: &OidcProvider,
    authorities: Arc<Path>,
    pending: Pending,
    returned: Returned,
) -> Result<Identity, Error> {
    let state = returned.state.as_ref().map(CsrfToken::secret);
    let is_old = Timestamp::now().duration_since(pending.begun) > BEGUN_MAX;
    if is_old || state != Some(pending.state.secret()) {
        return Err(Error::NotBegun);
    }
    let code = match (returned.code, returned.error) {
        (Some(code), None) => code,
        (_, error) => {
            // The text of a long request would fill the log.
            let error = error.unwrap_or_default().chars().take(64).collect();
            return Err(Error::Denied(error));
        }
    };
    let client = discover(settings, provider, authorities.clone()).await?;
    let http = move |request| send(authorities.clone(), request);
    let request = client.exchange_code(code).map_err(failed)?;
    let request = request.set_pkce_verifier(pending.verifier);
    let tokens = request.request_async(&http).await.map_err(failed)?;
    let none = || Error::Provider("the provider has sent no ID token".to_owned());
    let token = tokens.id_token().ok_or_else(none)?;
    let verifier = client.id_token_verifier();
    let claims = token.claims(&verifier, &pending.nonce).map_err(failed)?;
    let name = claims.preferred_username().map(|name| name.as_str());
    let no_name = || Error::Provider("the ID token has no claim preferred_username".to_owned());
    let name = name.ok_or_else(no_name)?;
    let path = provider.roles_claim.as_deref().unwrap_or(ROLES);
    let roles = roles_in(&claims.additional_claims().0, path);
    if !provider.authorizes(&roles) {
        let user = name.to_owned();
        return Err(Error::NotAuthorized { user, roles });
    }
    let user = provider.user(name);
    if user.is_empty() || user.len() > USER_NAME_MAX || user.contains(char::is_control) {
        let text = format!(
            "the name {user:?} has not 1 to {USER_NAME_MAX} bytes without control characters"
        );
        return Err(Error::Provider(text));
    }
    let full_name = claims.name().and_then(|names| names.get(None));
    Ok(Identity {
        user,
        full_name: full_name.map(|name| name.as_str().to_owned()),
        roles: provider.roles(&roles),
    })
}

/// The roles in the claim with that path: a list of texts, or one text.
fn roles_in(claims: &Map<String, Value>, path: &str) -> Vec<String> {
    let mut keys = path.split('.');
    let first = keys.next().and_then(|key| claims.get(key));
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match keys
        .try_fold(first, |value, key| Some(value?.get(key)))
        .flatten()
    {
        Some(Value::Array(roles)) => roles.iter().filter_map(text).collect(),
        Some(role) => text(role).into_iter().collect(),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn roles_are_in_the_claim_of_the_configuration() {
        let claims = json!({"roles": ["a", 1, "b"], "realm_access": {"roles": ["c"]}, "role": "d"});
        let claims = claims.as_object().unwrap();
        for (path, expected) in [
            ("roles", vec!["a", "b"]),
            ("realm_access.roles", vec!["c"]),
            ("role", vec!["d"]),
            ("missing", vec![]),
            ("roles.x", vec![]),
        ] {
            assert_eq!(roles_in(claims, path), expected, "{path}");
        }
    }
}
