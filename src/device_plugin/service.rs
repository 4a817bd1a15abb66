//! What one resource answers to the kubelet.

use crate::device_plugin::device::{Offer, Refusal};
use crate::device_plugin::grpc::Answer;
use crate::device_plugin::protocol::{
    self, AllocateRequest, AllocateResponse, Empty, ListAndWatchResponse, Options,
};
use futures::Stream;
use futures::stream::unfold;
use hyper::body::Incoming;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// A resource, to which the kubelet's connections share access.
#[derive(Clone)]
pub struct Service {
    offer: Arc<Offer>,
    is_there: Arc<watch::Sender<bool>>,
    streams: Streams,
}

impl Service {
    /// A resource that nobody watches yet.
    #[must_use]
    pub fn new(offer: Offer) -> Self {
        let is_there = watch::Sender::new(offer.is_there());
        Self {
            offer: Arc::new(offer),
            is_there: Arc::new(is_there),
            streams: Streams::default(),
        }
    }

    /// Looks whether the device is there; if that has changed, the kubelet is told.
    pub fn look(&self) -> bool {
        let is_there = self.offer.is_there();
        let changed = self
            .is_there
            .send_if_modified(|known| std::mem::replace(known, is_there) != is_there);
        if changed {
            tracing::info!(
                resource = self.offer.device.resource(),
                is_there,
                "the device has changed"
            );
        }
        is_there
    }

    /// Who watches.
    #[must_use]
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    fn watch(self) -> impl Stream<Item = Result<ListAndWatchResponse, Status>> + Send + 'static {
        let mut changes = self.is_there.subscribe();
        changes.mark_changed();
        unfold(
            (changes, self.offer, self.streams.begin()),
            |(mut changes, offer, stream)| async move {
                // Its sender lives as long as the service.
                changes.changed().await.ok()?;
                let list = offer.list(*changes.borrow_and_update());
                Some((Ok(list), (changes, offer, stream)))
            },
        )
    }

    fn allocate(&self, asked: &AllocateRequest) -> Result<AllocateResponse, Status> {
        let resource = self.offer.device.resource();
        let given = self.offer.allocate(asked, self.look());
        match &given {
            Ok(given) => {
                let devices: usize = given
                    .container_responses
                    .iter()
                    .map(|one| one.devices.len())
                    .sum();
                tracing::info!(
                    resource,
                    containers = given.container_responses.len(),
                    devices,
                    "allocated"
                );
            }
            Err(refusal) => tracing::warn!(resource, %refusal, "not allocated"),
        }
        given.map_err(|refusal| match refusal {
            Refusal::NoSuchSlot(..) => Status::not_found(refusal.to_string()),
            Refusal::Gone(_) => Status::failed_precondition(refusal.to_string()),
        })
    }
}

impl Answer for Service {
    async fn answer(self, request: http::Request<Incoming>) -> http::Response<Body> {
        match request.uri().path() {
            protocol::OPTIONS => unary(request, |Empty {}| Ok(Options::default())).await,
            protocol::ALLOCATE => {
                unary(request, |asked: AllocateRequest| self.allocate(&asked)).await
            }
            // The kubelet is told that it need not ask these; then "as you like" is a right answer.
            protocol::PREFER | protocol::PRE_START => unary(request, |Empty {}| Ok(Empty {})).await,
            protocol::LIST_AND_WATCH => {
                let begin = tower::service_fn(|_: Request<Empty>| {
                    let stream = self.clone().watch();
                    async { Ok::<_, Status>(Response::new(stream)) }
                });
                let codec = ProstCodec::<ListAndWatchResponse, Empty>::default();
                Grpc::new(codec).server_streaming(begin, request).await
            }
            other => Status::unimplemented(format!("there is no method {other}")).into_http(),
        }
    }
}

async fn unary<M1, M2>(
    request: http::Request<Incoming>,
    mut answer: impl FnMut(M1) -> Result<M2, Status> + Send,
) -> http::Response<Body>
where
    M1: prost::Message + Default + 'static,
    M2: prost::Message + 'static,
{
    let service = tower::service_fn(|asked: Request<M1>| {
        let answer = answer(asked.into_inner()).map(Response::new);
        async { answer }
    });
    Grpc::new(ProstCodec::<M2, M1>::default())
        .unary(service, request)
        .await
}

/// The streams of one resource: how many there are, and when the last one ended.
#[derive(Clone, Default)]
pub struct Streams(Arc<Mutex<(usize, Option<Instant>)>>);

impl Streams {
    fn begin(&self) -> OneStream {
        self.with(|(live, _)| *live += 1);
        OneStream(self.clone())
    }

    /// How many there are.
    #[must_use]
    pub fn live(&self) -> usize {
        self.with(|(live, _)| *live)
    }

    /// When one ended last.
    #[must_use]
    pub fn ended(&self) -> Option<Instant> {
        self.with(|(_, ended)| *ended)
    }

    fn with<T>(&self, f: impl FnOnce(&mut (usize, Option<Instant>)) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Counts as long as it lives.
struct OneStream(Streams);

impl Drop for OneStream {
    fn drop(&mut self) {
        self.0
            .with(|streams| *streams = (streams.0.saturating_sub(1), Some(Instant::now())));
    }
}
