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

use super::context::Context;
use futures::future::ready;
use futures::{Stream, StreamExt};
use kube::Resource;
use kube::api::Api;
use kube::core::NamespaceResourceScope;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// Objects in a page of a list, as `kubectl` and Kubernetes' own controllers have it.
const PAGE: u32 = 500;

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
    listed(api, watcher::Config { label_selector: labels, ..watcher::Config::default() }, ctx.watch_pause)
}

/// All objects, and what becomes of them; it begins anew after errors.
///
/// The list comes as the first events of the watch (`sendInitialEvents`), an object at a time: it takes the least memory, and
/// is all out of the API server's cache. API servers before 1.34 may refuse that, and give it in pages. Of those all but the
/// first are read from etcd where it was compacted since anything has changed, as it is every five minutes: over 10,000 VMs
/// that are at rest, it takes twice as long and more.
fn listed<K>(
    api: Api<K>,
    config: watcher::Config,
    longest: Duration,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let streamed = watcher(api.clone(), config.clone().streaming_lists()).backoff(Short::of(longest));
    let paged = watcher(api, config.page_size(PAGE)).backoff(Short::of(longest));
    streamed.take_while(|event| ready(!is_refused(event))).chain(paged)
}

/// Whether the API server does not give lists as events.
fn is_refused<K>(event: &watcher::Result<Event<K>>) -> bool {
    let Err(watcher::Error::WatchStartFailed(kube::Error::Api(status))) = event else { return false };
    // What it says is `Invalid`; what stands before it may say less.
    matches!(status.code, 400 | 422)
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
