//! (client) The watches. Each lists once, follows from there, drops what nobody reads, and comes back after errors
//! with a growing pause.
//!
//! | file | what |
//! |---|---|
//! | `listed` | how each is listed and followed |
//! | `vms` | the VMs themselves |
//! | `children` | everything that the operator makes for them, or reads of the cluster |

mod children;
mod vms;

pub use children::children;
pub use vms::{report_all_undecodable, vms};

use crate::controllers::vm::context::Context;
use crate::k8s::watch::listed;
use futures::Stream;
use kube::Resource;
use kube::api::Api;
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Arc;

/// The events of all objects of a kind that have the labels; it begins anew after errors.
fn events<K>(
    ctx: &Arc<Context>,
    labels: &str,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + 'static + use<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    let labels = Some(labels.to_owned()).filter(|labels| !labels.is_empty());
    let api = Api::<K>::namespaced(ctx.cluster.client.clone(), &ctx.namespace);
    listed(
        api,
        watcher::Config {
            label_selector: labels,
            ..watcher::Config::default()
        },
        ctx.cluster.watch_pause,
    )
}

fn failed(ctx: &Context, kind: &'static str, error: &watcher::Error) {
    if crate::k8s::watch::is_unreadable(error) {
        return tracing::warn!(kind, %error, "an object cannot be read; going on as if it were not there");
    }
    ctx.cluster.metrics.watch_restarts.inc();
    tracing::warn!(kind, %error, "watch failed; beginning anew");
}
