//! (io) gRPC on a unix socket: one call to the kubelet, and a server for its calls.
//!
//! Both by hyper, without tonic's own transport, which would bring load balancing, name resolution and a router.

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::client::conn::http2 as client;
use hyper::server::conn::http2 as server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::path::Path;
use std::task::{Context, Poll};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tonic::Status;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;

/// What answers calls.
pub trait Answer: Clone + Send + 'static {
    /// Answers one.
    fn answer(
        self,
        request: http::Request<Incoming>,
    ) -> impl Future<Output = http::Response<Body>> + Send;
}

/// Answers whoever connects, until it is dropped, and with it every connection.
pub async fn serve(listener: UnixListener, answer: impl Answer) {
    let mut connections = JoinSet::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, which others may give back.
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let answer = answer.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let answer = answer.clone();
                async move { Ok::<_, Infallible>(answer.answer(request).await) }
            });
            let connection = server::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection has ended");
            }
        });
    }
}

/// A connection to a server. It ends when the last copy is dropped.
#[derive(Clone)]
pub struct Channel(client::SendRequest<Body>);

impl tower::Service<http::Request<Body>> for Channel {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.0.send_request(request).boxed()
    }
}

/// Connects to a server.
///
/// # Errors
/// If nobody listens there.
pub async fn connect(socket: &Path) -> Result<Grpc<Channel>, Status> {
    let unreachable = |error: &dyn std::fmt::Display| {
        Status::unavailable(format!("{}: {error}", socket.display()))
    };
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|error| unreachable(&error))?;
    let (sender, connection) = client::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .map_err(|error| unreachable(&error))?;
    tokio::spawn(connection);
    // A socket has no name; this is what the kubelet says in its own calls.
    Ok(Grpc::with_origin(
        Channel(sender),
        http::Uri::from_static("http://localhost"),
    ))
}

/// One call with one answer.
///
/// # Errors
/// What the server says against it, or that there is none.
pub async fn call<M1, M2>(socket: &Path, method: &'static str, message: M1) -> Result<M2, Status>
where
    M1: prost::Message + 'static,
    M2: prost::Message + Default + 'static,
{
    let mut grpc = connect(socket).await?;
    grpc.ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let path = http::uri::PathAndQuery::from_static(method);
    Ok(grpc
        .unary(
            tonic::Request::new(message),
            path,
            ProstCodec::<M1, M2>::default(),
        )
        .await?
        .into_inner())
}
