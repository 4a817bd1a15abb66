//! (io) HTTPS requests to services outside the cluster: providers of OpenID Connect and of cloud instances.

use futures::FutureExt;
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::bytes::Bytes;

/// Hosts that need no TLS: the same machine.
const LOCAL: [&str; 2] = ["localhost", "127.0.0.1"];

/// Maximum size of a response.
const RESPONSE_MAX: usize = 4 << 20;

/// The reason that a request has failed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct HttpsError(Box<dyn std::error::Error + Send + Sync>);

impl HttpsError {
    /// An error with this cause.
    pub fn new(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(error.into())
    }
}

/// The whole answer to a request.
pub type Answer = Result<http::Response<Vec<u8>>, HttpsError>;

/// A client. Clones share its connections.
#[derive(Clone)]
pub struct HttpsClient {
    exchange: Arc<dyn Fn(http::Request<Vec<u8>>) -> BoxFuture<'static, Answer> + Send + Sync>,
    /// Hosts besides the same machine that need no TLS.
    plain_hosts: &'static [&'static str],
}

impl fmt::Debug for HttpsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpsClient").finish_non_exhaustive()
    }
}

impl HttpsClient {
    /// A client that trusts public certificate authorities, and those of `authorities` in PEM format.
    ///
    /// # Errors
    /// The authorities are invalid.
    pub fn new(authorities: &[u8]) -> Result<Self, HttpsError> {
        let mut roots = RootCertStore::empty();
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        for certificate in CertificateDer::pem_slice_iter(authorities) {
            let certificate = certificate.map_err(|error| HttpsError::new(error.to_string()))?;
            roots.add(certificate).map_err(HttpsError::new)?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions();
        let config = config.map_err(HttpsError::new)?;
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config.with_root_certificates(roots).with_no_client_auth())
            .https_or_http()
            .enable_http1()
            .build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self::with_exchange(move |request| {
            let request = request.map(|body| Full::new(Bytes::from(body)));
            let response = client.request(request);
            async move {
                let (head, body) = response.await.map_err(HttpsError::new)?.into_parts();
                let body = Limited::new(body, RESPONSE_MAX).collect().await;
                let body = body.map_err(HttpsError)?.to_bytes().to_vec();
                Ok(http::Response::from_parts(head, body))
            }
            .boxed()
        }))
    }

    /// A client that has its requests answered by `exchange`, for example without a network.
    #[must_use]
    pub fn with_exchange(
        exchange: impl Fn(http::Request<Vec<u8>>) -> BoxFuture<'static, Answer> + Send + Sync + 'static,
    ) -> Self {
        Self {
            exchange: Arc::new(exchange),
            plain_hosts: &[],
        }
    }

    /// The client, which also sends requests without TLS to these hosts.
    #[must_use]
    pub fn with_plain_hosts(mut self, hosts: &'static [&'static str]) -> Self {
        self.plain_hosts = hosts;
        self
    }

    /// Sends a request, without following redirects. `limit` is the time for the whole exchange.
    ///
    /// # Errors
    /// The server does not answer in time, or its certificate is not trusted, or its answer is too long.
    pub async fn send(&self, request: http::Request<Vec<u8>>, limit: Duration) -> Answer {
        let uri = request.uri();
        let is_plain = |host| LOCAL.contains(&host) || self.plain_hosts.contains(&host);
        if uri.scheme_str() != Some("https") && !uri.host().is_some_and(is_plain) {
            return Err(HttpsError::new(format!(
                "{uri} does not begin with https://"
            )));
        }
        // Without the limit, which can differ from call to call: a changed text would be reported again.
        let late = |_| HttpsError::new("the server has not answered in time");
        timeout(limit, (self.exchange)(request))
            .await
            .map_err(late)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn other_hosts_need_tls() {
        let client = HttpsClient::new(b"").unwrap();
        for url in ["http://169.254.169.254/", "http://example.org/"] {
            let request = http::Request::get(url).body(Vec::new()).unwrap();
            let error = client.send(request, Duration::from_secs(1)).await;
            let error = error.unwrap_err().to_string();
            assert!(error.contains("does not begin with https"), "{error}");
        }
    }
}
