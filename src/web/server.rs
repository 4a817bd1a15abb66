//! Connections of browsers and proxies, with their limits.

use crate::k8s::client::connect::listen;
use axum::Router;
use axum::extract::ConnectInfo;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_tcp_user_timeout;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tower::ServiceExt;

/// Connections at the same time, besides those of live lists. Others wait.
const CONNECTIONS_MAX: usize = 1024;

/// Time for the header of a request. It is the longest time without a request, too.
const HEADER_MAX: Duration = Duration::from_secs(30);

/// Maximum size of a request's header.
const HEADER_SIZE_MAX: usize = 32 << 10;

/// Time in milliseconds for which a client may leave data unread.
const UNREAD_MAX: u32 = 30_000;

/// The delay after a failed accept, for example without free file descriptors.
const ACCEPT_DELAY: Duration = Duration::from_millis(100);

/// Serves the router on an address. `what` is the line of the log.
///
/// # Errors
/// The server cannot listen on the address.
pub async fn serve(
    address: SocketAddr,
    router: Router,
    what: &str,
) -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let listener = listen(address).await?;
    // With port 0, the kernel chooses the port.
    tracing::info!(address = %listener.local_addr()?, "{what}");
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEADER_MAX)
        .max_buf_size(HEADER_SIZE_MAX);
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    Ok(async move {
        // The semaphore is never closed.
        while let Ok(permit) = connections.clone().acquire_owned().await {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_DELAY).await;
                    continue;
                }
            };
            // Keys and pictures are small messages, and wait for no others.
            let _ = stream.set_nodelay(true);
            // A client that does not read its response, too.
            let _ = set_tcp_user_timeout(&stream, UNREAD_MAX);
            let router = router
                .clone()
                .map_request(move |mut request: hyper::Request<_>| {
                    request.extensions_mut().insert(ConnectInfo(peer));
                    request
                });
            let connection =
                http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
            tokio::spawn(async move {
                // Errors are those of clients.
                drop(connection.with_upgrades().await);
                drop(permit);
            });
        }
    })
}
