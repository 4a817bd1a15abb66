//! Requests to providers of OpenID Connect.

use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::bytes::Bytes;

/// Time for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Hosts that need no TLS.
const LOCAL: [&str; 2] = ["localhost", "127.0.0.1"];

/// Maximum size of a response.
const RESPONSE_MAX: usize = 1 << 20;

/// The reason that a request has failed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct HttpError(Box<dyn std::error::Error + Send + Sync>);

impl HttpError {
    fn new(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(error.into())
    }
}

/// Sends a request, without following redirects. Servers have a certificate of a public authority, or of one in the PEM file.
///
/// # Errors
/// The server does not answer in time, or its certificate is not trusted, or its answer is too long.
pub async fn send(
    authorities: Arc<Path>,
    request: http::Request<Vec<u8>>,
) -> Result<http::Response<Vec<u8>>, HttpError> {
    let uri = request.uri();
    let is_local = uri.host().is_some_and(|host| LOCAL.contains(&host));
    if uri.scheme_str() != Some("https") && !is_local {
        return Err(HttpError::new(format!(
            "{uri} does not begin with https://"
        )));
    }
    let config = tls(&authorities)?;
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http()
        .enable_http1()
        .build();
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let exchange = async {
        let request = request.map(|body| Full::new(Bytes::from(body)));
        let response = client.request(request).await.map_err(HttpError::new)?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, RESPONSE_MAX).collect().await;
        let body = body.map_err(HttpError)?.to_bytes().to_vec();
        Ok(http::Response::from_parts(head, body))
    };
    let late = |_| {
        HttpError::new(format!(
            "the server has not answered within {REQUEST_TIMEOUT:?}"
        ))
    };
    timeout(REQUEST_TIMEOUT, exchange).await.map_err(late)?
}

/// The file is read for each request, because it is seldom needed and can change.
fn tls(authorities: &Path) -> Result<ClientConfig, HttpError> {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    if authorities.exists() {
        let unusable = |error: &dyn std::fmt::Display| {
            HttpError::new(format!("cannot use {}: {error}", authorities.display()))
        };
        let certificates =
            CertificateDer::pem_file_iter(authorities).map_err(|error| unusable(&error))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| unusable(&error))?;
            roots.add(certificate).map_err(|error| unusable(&error))?;
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions();
    let config = config.map_err(HttpError::new)?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
