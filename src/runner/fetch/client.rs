//! (io) HTTP client for images: follows redirects, speaks TLS, and uses the proxy that the environment names.

use crate::api::runner::fetch::FetchReason;
use crate::runner::failure::with_output;
use crate::runner::fetch::address::Address;
use crate::runner::fetch::address_policy::{AddressPolicy, Resolver};
use crate::runner::fetch::answer::{self, Answer, RangeRequest};
use crate::runner::fetch::problem::{Problem, chain};
use http::{HeaderValue, Method, Request, Response, header};
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
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpStream;
use tower_service::Service;

/// Maximum number of redirects.
const REDIRECTS_MAX: usize = 10;
/// Size of the buffer for received data, in bytes.
const READ_BUFFER_SIZE: usize = 256 << 10;

type BoxError = Box<dyn Error + Send + Sync>;

/// The client with its configuration.
pub struct Client {
    schemes: Vec<String>,
    policy: AddressPolicy,
    silence: Duration,
    proxies: Matcher,
    authorities: Option<PathBuf>,
    credentials: Option<HeaderValue>,
    tls: OnceLock<Arc<rustls::ClientConfig>>,
}

impl Client {
    /// A client. Redirects lead to `schemes` only. `policy` restricts the addresses of servers, but not of a proxy. `silence`
    /// limits the time without received data. The certificate authorities of the file `authorities` are trusted in addition to
    /// those of the image. The server of the first address gets the `credentials`, and no server to which it redirects.
    pub fn new(
        schemes: Vec<String>,
        policy: AddressPolicy,
        silence: Duration,
        authorities: Option<PathBuf>,
        credentials: Option<HeaderValue>,
    ) -> Self {
        Self {
            schemes,
            policy,
            silence,
            proxies: Matcher::from_env(),
            authorities,
            credentials,
            tls: OnceLock::new(),
        }
    }

    /// Sends the request and follows redirects to the image.
    pub async fn open(
        &self,
        address: &Address,
        range: RangeRequest<'_>,
    ) -> Result<(Answer, Incoming), Problem> {
        let (origin, mut address) = (address, address.clone());
        for _ in 0..=REDIRECTS_MAX {
            let credentials = self.credentials.as_ref();
            let credentials = credentials.filter(|_| address.has_origin_of(origin));
            let response = self.ask(&address, range, credentials).await?;
            let (head, body) = response.into_parts();
            let answer = answer::interpret(head.status, &head.headers, range);
            match answer.map_err(|problem| problem.at(&address.to_string()))? {
                Answer::Redirect(location) => {
                    let next = address.follow(&location, &self.schemes)?;
                    tracing::info!("{address} redirects to {next}");
                    address = next;
                }
                answer => return Ok((answer, body)),
            }
        }
        let message = format!(
            "{address}: the server has redirected more than {REDIRECTS_MAX} times; check the URL"
        );
        Err(Problem::new(FetchReason::ServerRefused, message))
    }

    async fn ask(
        &self,
        address: &Address,
        range: RangeRequest<'_>,
        credentials: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, Problem> {
        let answer = self.exchange(address, range, credentials);
        match tokio::time::timeout(self.silence, answer).await {
            Ok(answer) => {
                answer.map_err(|error| problem_of(error.as_ref()).at(&address.to_string()))
            }
            Err(_) => Err(silence_error(self.silence).at(&address.to_string())),
        }
    }

    async fn exchange(
        &self,
        address: &Address,
        range: RangeRequest<'_>,
        credentials: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, BoxError> {
        self.policy
            .check_host(address.uri().host().unwrap_or_default())?;
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
        if let Some(credentials) = credentials {
            request = request.header(header::AUTHORIZATION, credentials);
        }
        if let Some(validator) = range
            .validator
            .filter(|_| range.offset > 0)
            .and_then(|validator| validator.value())
        {
            request = request.header(header::RANGE, format!("bytes={}-", range.offset));
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
            .max_buf_size(READ_BUFFER_SIZE)
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
        // The proxy resolves the name of the server.
        let policy = match proxy {
            Some(_) => AddressPolicy::Unrestricted,
            None => self.policy,
        };
        let mut connector = HttpConnector::new_with_resolver(Resolver::new(policy));
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

    /// The TLS configuration. It trusts the certificate authorities of the image, or of the file or directory that
    /// SSL_CERT_FILE or SSL_CERT_DIR names, and those of `--authorities`.
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
            let problem = with_output(
                "the container image has no CA certificates",
                &errors.join(", "),
            );
            return Err(format!(
                "{problem}; set imageRepository.fetch.authorities of the operator, or name a PEM file with --authorities"
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

/// Reads the certificates of a PEM file.
fn read_authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, BoxError> {
    let name = path.display();
    let certificates =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(format!("the file {name} contains no certificate in PEM format; add the certificate of the authority to the \
                file").into())
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(format!(
            "the runner cannot read the certificate authorities in the file {name}: {error}; correct the file"
        )
        .into()),
    }
}

/// The refusal of an address among the causes of the error, or else the error for a server without connection.
fn problem_of(error: &(dyn Error + 'static)) -> Problem {
    let mut next = Some(error);
    while let Some(error) = next {
        // `source` of an I/O error is the cause of the error within it.
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        let refusal = match inner {
            Some(inner) => inner.downcast_ref::<Problem>(),
            None => error.downcast_ref(),
        };
        if let Some(problem) = refusal {
            return problem.clone();
        }
        next = error.source();
    }
    unreachable(chain(error))
}

/// The error for a peer that has sent no data for too long.
pub fn silence_error(silence: Duration) -> Problem {
    unreachable(format!(
        "the other end has sent no data for {} s; check it and the network",
        silence.as_secs()
    ))
}

/// The error for a server without connection, or with a connection that has ended early.
pub fn unreachable(what: impl Into<String>) -> Problem {
    let mut what = what.into();
    if what.contains("UnknownIssuer") {
        what.push_str(
            "; add the certificate authority that has signed the server's certificate (--authorities, or \
             imageRepository.fetch.authorities in the operator's ConfigMap)",
        );
    }
    Problem::new(FetchReason::ServerUnreachable, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use support::web::{Reply, Web};

    #[tokio::test]
    async fn only_the_host_of_the_url_gets_the_credentials() {
        let other = Web::start(|request| Reply::image(request, b"image", "\"one\""));
        let elsewhere = other.url("/b");
        let web = Web::start(move |request| match request.line.contains("/here") {
            true => Reply::redirect("/there"),
            false => Reply::redirect(&elsewhere),
        });
        let credentials = HeaderValue::from_static("Basic dTpw");
        let client = Client::new(
            vec!["http".to_owned()],
            AddressPolicy::Unrestricted,
            Duration::from_secs(30),
            None,
            Some(credentials),
        );
        let address = Address::parse(&web.url("/here"), &["http".to_owned()]).unwrap();
        let answer = client.open(&address, RangeRequest::default()).await;
        assert!(answer.is_ok());
        let sent = |web: &Web| {
            let requests = web.requests();
            let sent = requests
                .iter()
                .map(|it| it.header("authorization").map(str::to_owned));
            sent.collect::<Vec<_>>()
        };
        assert_eq!(
            sent(&web),
            [Some("Basic dTpw".to_owned()), Some("Basic dTpw".to_owned())]
        );
        assert_eq!(sent(&other), [None]);
    }
}
