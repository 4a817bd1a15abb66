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
use kube::api::Api;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
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

/// Asks the server what it is until it answers, and then for how to list.
async fn listing(client: Client) -> Listing {
    for failures in 1.. {
        match client.apiserver_version().await {
            Ok(version) => return Listing::of_version(&version.major, &version.minor),
            Err(error) => {
                tracing::warn!(%error, "the API server does not answer; trying again");
                tokio::time::sleep(pause(failures).min(LONGEST_PAUSE)).await;
            }
        }
    }
    Listing::Paged
}

/// The events of all objects of a kind that have the labels; it begins anew after errors.
fn events<K>(api: Api<K>, labels: &str) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static + use<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let labels = Some(labels.to_owned()).filter(|labels| !labels.is_empty());
    let asked = futures::stream::once(listing(api.clone().into_client()));
    asked.flat_map(move |listing| {
        let config = watcher::Config { label_selector: labels.clone(), ..listing.config() };
        watcher(api.clone(), config).backoff(Short::default())
    })
}

/// The pauses of a watch, but never long: an API server that comes back, and a definition that comes at last, are seen
/// soon.
#[derive(Default)]
struct Short(watcher::DefaultBackoff);

impl Iterator for Short {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|pause| pause.min(LONGEST_PAUSE))
    }
}

impl Backoff for Short {
    fn reset(&mut self) {
        self.0.reset();
    }
}

/// The longest pause before a watch begins anew, but for a part that is left to chance.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

fn failed(ctx: &Context, kind: &'static str, error: &watcher::Error) {
    ctx.metrics.watch_restarts.inc();
    tracing::warn!(kind, %error, "watch failed; beginning anew");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_streamed_where_the_server_surely_can() {
        for (minor, listing) in
            [("34", Listing::Streamed), ("35+", Listing::Streamed), ("33", Listing::Paged), ("", Listing::Paged)]
        {
            assert_eq!(Listing::of_version("1", minor), listing, "{minor}");
        }
    }
}
