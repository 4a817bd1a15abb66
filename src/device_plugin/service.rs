//! The gRPC service of one resource, which the kubelet calls.
//!
//! It is written by hand: code generated from the kubelet's definition would be ten times as long, and need a compiler for it.

use crate::device_plugin::host::HostDevices;
use crate::device_plugin::offer::Offer;
use crate::device_plugin::protocol::{
    self, AllocateRequest, AllocateResponse, Empty, ListAndWatchResponse, Options,
};
use futures::Stream;
use futures::future::BoxFuture;
use futures::stream::unfold;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// The service of one resource.
#[derive(Clone)]
pub struct Service {
    /// The resource.
    pub offer: Offer,
    /// The devices of the node. Each stream to the kubelet has a receiver.
    pub present: Arc<watch::Sender<HostDevices>>,
}

impl Service {
    /// The list of slots, and again after each change.
    fn watch(&self) -> impl Stream<Item = Result<ListAndWatchResponse, Status>> + Send + use<> {
        let mut present = self.present.subscribe();
        present.mark_changed();
        unfold((present, self.offer), |(mut present, offer)| async move {
            present.changed().await.ok()?;
            let list = offer.list(&present.borrow_and_update());
            Some((Ok(list), (present, offer)))
        })
    }

    fn allocate(&self, request: &AllocateRequest) -> Result<AllocateResponse, Status> {
        let resource = self.offer.resource;
        let response = self.offer.allocate(request, &self.present.borrow());
        match &response {
            Ok(response) => {
                let containers = &response.container_responses;
                let devices: usize = containers.iter().map(|c| c.devices.len()).sum();
                tracing::info!(
                    resource,
                    containers = containers.len(),
                    devices,
                    "allocated"
                );
            }
            Err(error) => tracing::warn!(resource, %error, "not allocated"),
        }
        response.map_err(|error| Status::failed_precondition(error.to_string()))
    }

    async fn respond(self, request: http::Request<Body>) -> http::Response<Body> {
        match request.uri().path() {
            protocol::OPTIONS => unary(request, |Empty {}| Ok(Options::default())).await,
            protocol::ALLOCATE => unary(request, |message| self.allocate(&message)).await,
            protocol::LIST_AND_WATCH => {
                let watch = tower::service_fn(|_: Request<Empty>| {
                    let stream = self.watch();
                    async { Ok::<_, Status>(Response::new(stream)) }
                });
                let codec = ProstCodec::<ListAndWatchResponse, Empty>::default();
                Grpc::new(codec).server_streaming(watch, request).await
            }
            other => Status::unimplemented(format!(
                "the device plugin does not implement the method {other} of the device plugin API"
            ))
            .into_http(),
        }
    }
}

impl tower::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.respond(request).await) })
    }
}

/// Answers a call with one message.
pub(super) async fn unary<M1, M2>(
    request: http::Request<Body>,
    mut respond: impl FnMut(M1) -> Result<M2, Status> + Send,
) -> http::Response<Body>
where
    M1: prost::Message + Default + 'static,
    M2: prost::Message + 'static,
{
    let service = tower::service_fn(|request: Request<M1>| {
        let response = respond(request.into_inner()).map(Response::new);
        async { response }
    });
    Grpc::new(ProstCodec::<M2, M1>::default())
        .unary(service, request)
        .await
}
