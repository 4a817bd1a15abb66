//! (client) Connections of both programs: the listener, and an API client that sends requests without waiting for a TCP
//! acknowledgement.
//!
//! On a new connection, the first request follows the end of the TLS handshake. By default (Nagle's algorithm, RFC 896)
//! the kernel holds the request back until the peer acknowledges that end, which takes 40 ms on Linux.

use http::{Request, Response};
use hyper::body::{Body as HttpBody, Bytes};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpListener;
use tower::retry::RetryLayer;
use tower::{BoxError, Service, ServiceBuilder};
use tower_http::classify::ServerErrorsFailureClass;
use tower_http::trace::TraceLayer;

/// Listens on an address. On a node without IPv6, `[::]` means all IPv4 addresses.
///
/// # Errors
/// The address cannot be used.
pub async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(_) if address.is_ipv6() && address.ip().is_unspecified() => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        result => result,
    }
}

/// A builder of API clients, to which callers add layers. Proxies are not supported, because `kube` is built without
/// them.
///
/// # Errors
/// The configuration is invalid.
pub fn builder(
    config: Config,
) -> kube::Result<
    ClientBuilder<
        impl Service<
            Request<Body>,
            Response = Response<
                impl HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
            >,
            Error = BoxError,
            Future: Send,
        > + Send
        + 'static,
    >,
> {
    if config.proxy_url.is_some() {
        // It returns the error of a build without proxy support.
        ClientBuilder::try_from(config.clone())?;
    }
    let mut connector =
        TimeoutConnector::new(config.rustls_https_connector_with_connector(connector())?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let trace = TraceLayer::new_for_http()
        .make_span_with(
            |request: &Request<Body>| tracing::debug_span!("HTTP", method = %request.method(), url = %request.uri()),
        )
        .on_request(|_: &Request<Body>, _: &tracing::Span| tracing::debug!("requesting"))
        .on_response(())
        .on_body_chunk(())
        .on_eos(())
        .on_failure(|failure: ServerErrorsFailureClass, _, _: &tracing::Span| tracing::error!("failed: {failure}"));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(
            config
                .default_retry
                .then(|| RetryLayer::new(RetryPolicy::server_retry())),
        )
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .layer(trace)
        .map_err(BoxError::from)
        .service(HttpClient::builder(TokioExecutor::new()).build(connector));
    Ok(ClientBuilder::new(service, config.default_namespace))
}

/// Connections with `TCP_NODELAY`, which fail within 25 s if the other side is not there any more. A watch would otherwise wait for the
/// events of such a connection until its time-out.
fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(Duration::from_secs(10)));
    connector.set_keepalive_interval(Some(Duration::from_secs(5)));
    connector.set_keepalive_retries(Some(3));
    // Keepalive does not count while sent data is not acknowledged.
    connector.set_tcp_user_timeout(Some(Duration::from_secs(25)));
    connector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connection_disables_delayed_sending() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("https://{}", listener.local_addr().unwrap());
        let connection = connector().call(address.parse().unwrap()).await.unwrap();
        assert!(connection.inner().nodelay().unwrap());
    }
}
