//! An API server in memory: a tower service with the semantics of a Kubernetes API server, without sockets and threads.

use http::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

/// A Kubernetes API server in memory. Clones share their state.
#[derive(Clone)]
pub struct Server {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    unknown: BTreeSet<String>,
}

impl Server {
    /// An empty server. The seed determines UIDs and latencies.
    #[must_use]
    pub fn new(_seed: u64) -> Self {
        Self { state: Arc::default() }
    }

    /// A client whose default namespace is the one given.
    #[must_use]
    pub fn client(&self, namespace: &str) -> Client {
        let server = self.clone();
        Client::new(tower::service_fn(move |request| server.clone().answer(request)), namespace)
    }

    /// The calls that the server does not implement, one line for each.
    ///
    /// # Panics
    /// If a call has panicked before.
    #[must_use]
    pub fn unknown_calls(&self) -> Vec<String> {
        self.state.lock().unwrap().unknown.iter().cloned().collect()
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, Infallible> {
        let call = format!("{} {}", request.method(), request.uri());
        self.state.lock().unwrap().unknown.insert(call);
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_IMPLEMENTED;
        Ok(response)
    }
}
