//! (client) The watches: the VMs themselves (`vms`), and the objects that the operator creates for them or reads (`children`).
//! [`crate::k8s::watch`] lists, follows and recovers from errors.

mod children;
mod vms;

pub use children::children;
pub use vms::{report_all_undecodable, vms};

use crate::controllers::vm::context::Context;
use kube::runtime::watcher;

fn failed(ctx: &Context, kind: &'static str, error: &watcher::Error) {
    if crate::k8s::watch::is_unreadable(error) {
        return tracing::warn!(kind, %error, "an object cannot be read; going on as if it were not there");
    }
    ctx.cluster.metrics.watch_restarts.inc();
    tracing::warn!(kind, %error, "watch failed; beginning anew");
}
