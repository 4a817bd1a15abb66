//! Watches: the changes since a revision, each after its latency, in order.

use super::list::{partial, selector};
use super::resource::Resource;
use super::route::Call;
use super::selector::Selector;
use super::status::Failure;
use super::store::{Change, Object};
use super::{Server, State};
use crate::signal::Listener;
use bytes::Bytes;
use futures::Stream;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The interval of bookmarks.
const BOOKMARK: Duration = Duration::from_secs(60);
/// The default duration of a watch.
const TIMEOUT: Duration = Duration::from_secs(1800);

struct Watch {
    server: Server,
    resource: Arc<Resource>,
    selector: Selector,
    metadata_only: bool,
    bookmarks: bool,
    /// The index of the next change in the log.
    next: usize,
    /// The revision up to which changes were processed.
    revision: u64,
    /// Events that are sent before any other.
    first: VecDeque<Vec<u8>>,
    changed: Listener,
    /// The time of the last event, before which no later event is sent.
    last: Instant,
    end: Instant,
    bookmark: Instant,
    is_over: bool,
}

/// The events that a watch sends, one line each.
pub fn watch(
    server: &Server,
    state: &mut State,
    call: &Call,
) -> Result<impl Stream<Item = Bytes> + Send + use<>, Failure> {
    let resource = call.resource.clone();
    if call.query("sendInitialEvents").is_some() {
        let why =
            "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
        let mut failure = Failure::invalid(
            &resource,
            "",
            "FieldValueForbidden",
            "sendInitialEvents",
            why,
        );
        failure.message =
            format!("ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: {why}");
        return Err(failure);
    }
    let selector = selector(call)?;
    let given = call.query("resourceVersion").unwrap_or_default();
    let from: u64 = match given {
        "" => 0,
        given => given
            .parse()
            .map_err(|_| Failure::bad_request(format!("Invalid value: {given:?}")))?,
    };
    let seconds = call
        .query("timeoutSeconds")
        .and_then(|seconds| seconds.parse().ok());
    let now = Instant::now();
    let (floor, current) = (state.store.floor, state.store.revision);
    let too_old = from > 0 && from < floor;
    let table = state.store.table(&resource);
    let (revision, next, mut first) = match from {
        0 => (current, table.log.len(), VecDeque::new()),
        from => (
            from,
            table.log.partition_point(|change| change.revision <= from),
            VecDeque::new(),
        ),
    };
    if from == 0 {
        let present = table
            .objects
            .values()
            .filter(|object| selector.matches(&object.value));
        first.extend(present.map(|object| line("ADDED", object, call.metadata_only)));
    }
    if too_old {
        let gone = Failure::expired(format!("too old resource version: {from} ({floor})")).body();
        first.push_back(event("ERROR", gone.to_string().as_bytes()));
    }
    let watch = Watch {
        server: server.clone(),
        selector,
        metadata_only: call.metadata_only,
        bookmarks: call.query("allowWatchBookmarks") == Some("true"),
        next,
        revision,
        first,
        changed: table.changed.listen(),
        last: now,
        end: now + seconds.map_or(TIMEOUT, Duration::from_secs),
        bookmark: now + BOOKMARK,
        is_over: too_old,
        resource,
    };
    Ok(futures::stream::unfold(watch, |mut watch| async move {
        Some((watch.next().await?, watch))
    }))
}

impl Watch {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(line) = self.first.pop_front() {
            return Some(line.into());
        }
        while !self.is_over {
            // Before the log is read, so that no change in between is missed.
            self.changed.mark_seen();
            if let Some((due, line)) = self.change() {
                self.last = due.max(self.last);
                sleep_until(self.last).await;
                return Some(line.into());
            }
            let bookmark = if self.bookmarks {
                self.bookmark
            } else {
                self.end
            };
            tokio::select! {
                biased;
                () = self.changed.changed() => {}
                () = sleep_until(self.end) => self.is_over = true,
                () = sleep_until(bookmark) => {
                    self.bookmark += BOOKMARK;
                    return Some(self.marked().into());
                }
            }
        }
        None
    }

    /// The next change that the client receives, and its time.
    fn change(&mut self) -> Option<(Instant, Vec<u8>)> {
        let mut state = self.server.lock();
        let latency = &self.server.latency;
        loop {
            let change = state
                .store
                .table(&self.resource)
                .log
                .get(self.next)?
                .clone();
            self.next += 1;
            self.revision = change.revision;
            if let Some(line) = self.line(&change) {
                let number = state.next_number();
                return Some((change.at + latency.of(number), line));
            }
        }
    }

    /// An object that enters or leaves the selection is created or deleted for the client.
    fn line(&self, change: &Change) -> Option<Vec<u8>> {
        let is_seen = |object: &Option<Arc<Object>>| {
            object
                .as_ref()
                .is_some_and(|o| self.selector.matches(&o.value))
        };
        let (before, after) = (is_seen(&change.old), is_seen(&change.new));
        match (before, after, &change.new, &change.last, &change.old) {
            (false, true, Some(new), ..) => Some(line("ADDED", new, self.metadata_only)),
            (true, true, Some(new), ..) => Some(line("MODIFIED", new, self.metadata_only)),
            (true, false, _, Some(last), _) => Some(line("DELETED", last, self.metadata_only)),
            (true, false, _, None, Some(old)) => {
                // The last selected state, with the present revision.
                let mut old = old.value.clone();
                old["metadata"]["resourceVersion"] = change.revision.to_string().into();
                Some(event("DELETED", self.form(old).to_string().as_bytes()))
            }
            _ => None,
        }
    }

    fn form(&self, object: Value) -> Value {
        if self.metadata_only {
            partial(&object)
        } else {
            object
        }
    }

    fn marked(&mut self) -> Vec<u8> {
        // All changes were processed, so the watch can continue from the present revision.
        let revision = self.revision.max(self.server.lock().store.revision);
        self.revision = revision;
        let metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        let (kind, version) = (&self.resource.kind, self.resource.api_version());
        let object = json!({"kind": kind, "apiVersion": version, "metadata": metadata});
        event("BOOKMARK", self.form(object).to_string().as_bytes())
    }
}

fn line(kind: &str, object: &Object, metadata_only: bool) -> Vec<u8> {
    match metadata_only {
        true => event(kind, partial(&object.value).to_string().as_bytes()),
        false => event(kind, &object.json()),
    }
}

fn event(kind: &str, object: &[u8]) -> Vec<u8> {
    let mut line = format!(r#"{{"type":"{kind}","object":"#).into_bytes();
    line.extend(object);
    line.extend(b"}\n");
    line
}
