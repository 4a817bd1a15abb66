//! (client) The watches. Each lists once, follows from there, drops what nobody reads, and comes back after errors
//! with a growing pause.
//!
//! | file | what |
//! |---|---|
//! | `vms` | the VMs themselves, and waiting for the lead |
//! | `children` | everything that the operator makes for them, or reads of the cluster |

mod children;
mod vms;

pub use children::children;
pub use vms::{Vms, stand_by, vms};

use super::backoff::pause;
use super::context::Context;
use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::api::Api;
use kube::core::NamespaceResourceScope;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// How the first list of a watch is had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    /// As events, one object at a time: the least memory. All servers from 1.34 on can.
    Streamed,
    /// In pages.
    Paged,
}

impl Listing {
    fn of_version(major: &str, minor: &str) -> Self {
        // Some providers write "34+".
        let number = |text: &str| text.trim_end_matches('+').parse::<u32>().unwrap_or_default();
        if (number(major), number(minor)) >= (1, 34) { Self::Streamed } else { Self::Paged }
    }

    fn config(self) -> watcher::Config {
        match self {
            Self::Streamed => watcher::Config::default().streaming_lists(),
            Self::Paged => watcher::Config::default().page_size(50),
        }
    }
}

/// Asks the server what it is until it answers, once for all watches, and then for how to list.
async fn listing(ctx: Arc<Context>) -> Listing {
    let server = ctx.server.get_or_init(|| asked(&ctx.client, ctx.watch_pause)).await;
    Listing::of_version(&server.major, &server.minor)
}

async fn asked(client: &Client, longest: Duration) -> Info {
    let mut failures = 0;
    loop {
        match client.apiserver_version().await {
            Ok(version) => return version,
            Err(error) => {
                tracing::warn!(%error, "the API server does not answer; trying again");
                failures += 1;
                tokio::time::sleep(pause(failures).min(longest)).await;
            }
        }
    }
}

/// The events of all objects of a kind that have the labels; it begins anew after errors.
fn events<K>(
    ctx: &Arc<Context>,
    labels: &str,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static + use<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let labels = Some(labels.to_owned()).filter(|labels| !labels.is_empty());
    let api = Api::<K>::namespaced(ctx.client.clone(), &ctx.namespace);
    let longest = ctx.watch_pause;
    let asked = futures::stream::once(listing(ctx.clone()));
    asked.flat_map(move |listing| {
        let config = watcher::Config { label_selector: labels.clone(), ..listing.config() };
        watcher(api.clone(), config).backoff(Short::of(longest))
    })
}

/// The pauses of a watch, but never longer than [`Context::watch_pause`]: an API server that comes back, and a definition
/// that comes at last, are seen soon.
struct Short {
    pauses: watcher::DefaultBackoff,
    longest: Duration,
}

impl Short {
    fn of(longest: Duration) -> Self {
        Self { pauses: watcher::DefaultBackoff::default(), longest }
    }
}

impl Iterator for Short {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.pauses.next().map(|pause| pause.min(self.longest))
    }
}

impl Backoff for Short {
    fn reset(&mut self) {
        self.pauses.reset();
    }
}

fn failed(ctx: &Context, kind: &'static str, error: &watcher::Error) {
    ctx.metrics.watch_restarts.inc();
    tracing::warn!(kind, %error, "watch failed; beginning anew");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::settings::Settings;
    use kube::client::Body;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn the_server_is_asked_once_what_it_is_however_many_watches_begin() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let server = tower::service_fn(move |request: http::Request<Body>| {
            assert_eq!(request.uri().path(), "/version");
            count.fetch_add(1, Ordering::Relaxed);
            async {
                tokio::task::yield_now().await;
                let version = serde_json::json!({
                    "major": "1", "minor": "34", "gitVersion": "", "gitCommit": "", "gitTreeState": "",
                    "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
                });
                Ok::<_, tower::BoxError>(http::Response::new(Body::from(version.to_string().into_bytes())))
            }
        });
        let ctx = Arc::new(Context::new(Client::new(server, "ns"), "ns".to_owned(), Settings::default()));
        let listings = futures::future::join_all((0..7).map(|_| listing(ctx.clone()))).await;
        assert_eq!(listings, [Listing::Streamed; 7]);
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn lists_are_streamed_where_the_server_surely_can() {
        for (minor, listing) in
            [("34", Listing::Streamed), ("35+", Listing::Streamed), ("33", Listing::Paged), ("", Listing::Paged)]
        {
            assert_eq!(Listing::of_version("1", minor), listing, "{minor}");
        }
    }
}
