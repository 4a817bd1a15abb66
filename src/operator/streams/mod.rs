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
use futures::Stream;
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

/// Objects in a page of a list, as `kubectl` and Kubernetes' own controllers have it. A list as events of a watch
/// (`sendInitialEvents`) takes less memory for a moment, and the API server and the operator half as much time again.
const PAGE: u32 = 500;

/// How a kind is listed and watched.
fn config() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
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
    watcher(api, watcher::Config { label_selector: labels, ..config() }).backoff(Short::of(longest))
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
