//! (io) Asks a server for an image: through a proxy where the environment names one, over TLS, along redirects.

use crate::api::runner::fetch::FetchReason;
use crate::runner::fetch::address::Address;
use crate::runner::fetch::answer::{self, Answer, Asked};
use crate::runner::fetch::problem::{Problem, chain};
use http::{Method, Request, Response, header};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpStream;
use tower_service::Service;

/// The number of redirects that are followed.
const REDIRECTS: usize = 10;
/// Memory for what has come and was not taken yet.
const BUFFER: usize = 256 << 10;

type BoxError = Box<dyn Error + Send + Sync>;

/// What is the same for all that is asked.
pub struct Client {
    schemes: Vec<String>,
    silence: Duration,
    proxies: Matcher,
    authorities: Option<PathBuf>,
    tls: OnceLock<Arc<rustls::ClientConfig>>,
}

impl Client {
    /// One that follows to these schemes, waits so long for a byte, and trusts the authorities of that file, too.
    pub fn new(schemes: Vec<String>, silence: Duration, authorities: Option<PathBuf>) -> Self {
        Self {
            schemes,
            silence,
            proxies: Matcher::from_env(),
            authorities,
            tls: OnceLock::new(),
        }
    }

    /// Asks, and follows to where the image is.
    pub async fn open(
        &self,
        address: &Address,
        asked: Asked<'_>,
    ) -> Result<(Answer, Incoming), Problem> {
        let mut address = address.clone();
        for _ in 0..=REDIRECTS {
            let response = self.ask(&address, asked).await?;
            let (head, body) = response.into_parts();
            let answer = answer::understand(head.status, &head.headers, asked);
            match answer.map_err(|problem| problem.at(&address.to_string()))? {
                Answer::Redirect(location) => {
                    let next = address.follow(&location, &self.schemes)?;
                    tracing::info!("{address} redirects to {next}");
                    address = next;
                }
                answer => return Ok((answer, body)),
            }
        }
        let message = format!("{address}: more than {REDIRECTS} redirects; check the URL");
        Err(Problem::new(FetchReason::ServerRefused, message))
    }

    async fn ask(
        &self,
        address: &Address,
        asked: Asked<'_>,
    ) -> Result<Response<Incoming>, Problem> {
        match tokio::time::timeout(self.silence, self.exchange(address, asked)).await {
            Ok(answer) => {
                answer.map_err(|error| unreachable(chain(error.as_ref())).at(&address.to_string()))
            }
            Err(_) => Err(self.silent().at(&address.to_string())),
        }
    }

    /// Longest time without a byte.
    pub fn silence(&self) -> Duration {
        self.silence
    }

    /// Nothing has come for too long.
    pub fn silent(&self) -> Problem {
        unreachable(format!("nothing has come for {} s", self.silence.as_secs()))
    }

    async fn exchange(
        &self,
        address: &Address,
        asked: Asked<'_>,
    ) -> Result<Response<Incoming>, BoxError> {
        let proxy = self.proxies.intercept(address.uri());
        let mut request = Request::builder()
            .method(Method::GET)
            .header(header::HOST, address.authority())
            .header(
                header::USER_AGENT,
                concat!("vm-runner/", env!("CARGO_PKG_VERSION")),
            )
            .header(header::ACCEPT, "*/*")
            .header(header::ACCEPT_ENCODING, "identity");
        if let Some(validator) = asked
            .validator
            .filter(|_| asked.offset > 0)
            .and_then(|validator| validator.value())
        {
            request = request.header(header::RANGE, format!("bytes={}-", asked.offset));
            request = request.header(header::IF_RANGE, validator);
        }
        let is_tunnel = address.is_https();
        request = match proxy.as_ref().filter(|_| !is_tunnel) {
            Some(proxy) => {
                let request = request.uri(address.uri().clone());
                proxy.basic_auth().into_iter().fold(request, |r, auth| {
                    r.header(header::PROXY_AUTHORIZATION, auth.clone())
                })
            }
            None => request.uri(
                address
                    .uri()
                    .path_and_query()
                    .map_or("/", |path| path.as_str()),
            ),
        };
        let connection = self
            .connect(
                address,
                proxy
                    .as_ref()
                    .map(|proxy| (proxy.uri(), proxy.basic_auth())),
            )
            .await?;
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(BUFFER)
            .handshake(connection)
            .await?;
        tokio::spawn(connection);
        Ok(sender
            .send_request(request.body(Empty::<Bytes>::new())?)
            .await?)
    }

    async fn connect(
        &self,
        address: &Address,
        proxy: Option<(&http::Uri, Option<&http::HeaderValue>)>,
    ) -> Result<MaybeHttpsStream<TokioIo<TcpStream>>, BoxError> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        let target = address.uri().clone();
        match proxy {
            Some((proxy, auth)) if address.is_https() => {
                let tunnel = Tunnel::new(proxy.clone(), connector);
                let tunnel = match auth {
                    Some(auth) => tunnel.with_auth(auth.clone()),
                    None => tunnel,
                };
                HttpsConnector::from((tunnel, self.tls()?))
                    .call(target)
                    .await
            }
            None if address.is_https() => {
                HttpsConnector::from((connector, self.tls()?))
                    .call(target)
                    .await
            }
            Some((proxy, _)) => Ok(MaybeHttpsStream::Http(connector.call(proxy.clone()).await?)),
            None => Ok(MaybeHttpsStream::Http(connector.call(target).await?)),
        }
    }

    /// Trusts whom the image trusts, or the file or folder that SSL_CERT_FILE or SSL_CERT_DIR names; and those of the
    /// file that was given.
    fn tls(&self) -> Result<Arc<rustls::ClientConfig>, BoxError> {
        if let Some(config) = self.tls.get() {
            return Ok(Arc::clone(config));
        }
        let found = rustls_native_certs::load_native_certs();
        let mut roots = rustls::RootCertStore::empty();
        let (good, _) = roots.add_parsable_certificates(found.certs);
        let (given, _) = match self.authorities.as_deref() {
            Some(path) => roots.add_parsable_certificates(read_authorities(path)?),
            None => (0, 0),
        };
        if good + given == 0 {
            let errors: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
            return Err(format!(
                "no certificate authority is known here; --authorities can name some {}",
                errors.join("; ")
            )
            .into());
        }
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::ring::default_provider(),
        ))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
        Ok(Arc::clone(self.tls.get_or_init(|| Arc::new(config))))
    }
}

/// The certificates of a file in PEM.
fn read_authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, BoxError> {
    let name = path.display();
    let certificates =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(format!("{name} has no certificate in PEM").into())
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => {
            Err(format!("the certificate authorities of {name} cannot be read: {error}").into())
        }
    }
}

/// The server cannot be reached, or was cut off.
pub fn unreachable(what: impl Into<String>) -> Problem {
    let mut what = what.into();
    if what.contains("UnknownIssuer") {
        what.push_str(
            "; give the authority that has signed the server's certificate (--authorities, or in a cluster the setting \
             imageRepository.fetch.authorities)",
        );
    }
    Problem::new(FetchReason::ServerUnreachable, what)
}
