//! (client) Lists and watches all objects of a kind with `kube`'s watcher, and recovers from errors.
//!
//! Lists are paged and consistent: the API server returns its newest state. A watch continues from the resource version
//! of a complete list.
//!
//! | failure | reaction |
//! |---|---|
//! | a page of the list fails | an error; the list starts again after a delay |
//! | the connection of a watch closes or fails | the watch continues from the last event; after an error with a delay |
//! | a watch, or its request, is answered with 410, 404 or 403 | an error; the list starts again after a delay |
//! | repeated failures | the delays grow until a list is complete or an event arrives; after these answers, until an event arrives |
//!
//! [`Deadlines`](crate::k8s::client::timeout::Deadlines) detects a server that never responds; kube detects a watch
//! without events.

mod guard;

pub use guard::Guarded;

use crate::k8s::cluster::Cluster;
use crate::k8s::forbidden::is_forbidden;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use kube::api::Api;
use kube::core::NamespaceResourceScope;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher;
use kube::runtime::watcher::{Error, Event, Result};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::task::Poll;
use std::time::Duration;

/// Objects in a page of a list, the same number as in `kubectl` and Kubernetes' own controllers.
pub const PAGE_SIZE: u32 = 500;

/// The delay before a new list if the operator may not watch the objects, as a multiple of the longest delay after other errors: a minute.
const FORBIDDEN_DELAY_FACTOR: u32 = 12;

/// Lists and watches objects. After an error it starts again with a delay that grows to `backoff_max`.
pub fn listed<K>(
    api: Api<K>,
    config: watcher::Config,
    backoff_max: Duration,
) -> impl Stream<Item = Result<Event<K>>> + Send + 'static
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let config = config.page_size(PAGE_SIZE);
    restarting(
        move || watcher(api.clone(), config.clone()).boxed(),
        WatchBackoff::new(backoff_max),
    )
}

/// The namespaces that a controller watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// All namespaces of the cluster.
    All,
    /// These namespaces. Each has its own requests, so that permissions in these namespaces are sufficient.
    Only(Vec<String>),
}

impl Namespaces {
    fn apis<K: NamespacedObject>(&self, client: &Client) -> Vec<Api<K>> {
        let api = |namespace: &String| Api::namespaced(client.clone(), namespace);
        match self {
            Self::All => vec![Api::all(client.clone())],
            Self::Only(namespaces) => namespaces.iter().map(api).collect(),
        }
    }
}

/// A namespaced object, as a watch decodes it.
pub trait NamespacedObject:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> NamespacedObject for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// Lists and watches the objects of these namespaces as one stream with one list.
pub fn listed_in<K: NamespacedObject>(
    cluster: &Cluster,
    namespaces: &Namespaces,
    config: &watcher::Config,
) -> impl Stream<Item = Result<Event<K>>> + Send + 'static + use<K> {
    let (config, backoff_max) = (config.clone(), cluster.watch_backoff_max);
    let noted = cluster.forbidden.of_kind(&K::plural(&()));
    let begin = |api: Api<K>| -> Begin<K> {
        let (config, noted) = (config.clone(), noted.clone());
        Box::new(move || {
            let (noted, namespace) = (noted.clone(), api.namespace().map(str::to_owned));
            let note = move |event: &Result<Event<K>>| noted.note(namespace.as_deref(), event);
            let events = listed(api.clone(), config.clone(), backoff_max);
            events.inspect(note).boxed()
        })
    };
    let apis = namespaces.apis(&cluster.client).into_iter();
    let events = merged(apis.map(begin).collect());
    events.inspect(move |event| {
        if matches!(event, Ok(Event::InitDone)) {
            noted.listed();
        }
    })
}

/// Changes or drops events. Errors are kept.
pub fn filter_map<K, T>(
    events: impl Stream<Item = Result<Event<K>>>,
    change: impl Fn(Event<K>) -> Option<Event<T>>,
) -> impl Stream<Item = Result<Event<T>>> {
    events.filter_map(move |event| {
        std::future::ready(match event {
            Ok(event) => change(event).map(Ok),
            Err(error) => Some(Err(error)),
        })
    })
}

fn restarting<K, F>(
    begin: F,
    backoff: WatchBackoff,
) -> impl Stream<Item = Result<Event<K>>> + Send + 'static
where
    K: Send + 'static,
    F: Fn() -> BoxStream<'static, Result<Event<K>>> + Send + 'static,
{
    let events = begin();
    let watch = RestartingWatch {
        begin,
        events,
        backoff,
        delay: None,
        is_expired: false,
    };
    futures::stream::unfold(watch, |mut watch| async move {
        Some((watch.next().await?, watch))
    })
}

struct RestartingWatch<K, F> {
    begin: F,
    events: BoxStream<'static, Result<Event<K>>>,
    backoff: WatchBackoff,
    /// The delay before the next request.
    delay: Option<Duration>,
    /// The watch that followed the last list was answered with 410, 404 or 403.
    is_expired: bool,
}

impl<K, F> RestartingWatch<K, F>
where
    F: Fn() -> BoxStream<'static, Result<Event<K>>>,
{
    async fn next(&mut self) -> Option<Result<Event<K>>> {
        if let Some(delay) = self.delay.take() {
            tokio::time::sleep(delay).await;
        }
        let event = self.events.next().await?;
        match &event {
            Ok(Event::Init | Event::InitApply(_)) => {}
            // A complete list is no success if the watch after it fails.
            Ok(Event::InitDone) if self.is_expired => {}
            Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => {
                self.backoff.reset();
                self.is_expired = false;
            }
            Err(error) => {
                if is_expired(error) || is_forbidden(error) {
                    self.is_expired = true;
                    // kube would request a watch from the same version repeatedly. A list shows what the operator may still read.
                    self.events = (self.begin)();
                }
                self.delay = self.backoff.next();
                // The list before it was allowed, so only the watch is forbidden, and each new list is in vain.
                if is_forbidden(error) && !matches!(error, Error::InitialListFailed(_)) {
                    self.delay = Some(self.backoff.backoff_max * FORBIDDEN_DELAY_FACTOR);
                }
            }
        }
        Some(event)
    }
}

/// The delays of a watch after errors, at most [`Cluster::watch_backoff_max`]. A short limit detects a recovered API server
/// and a newly installed definition early.
struct WatchBackoff {
    delays: watcher::DefaultBackoff,
    backoff_max: Duration,
}

impl WatchBackoff {
    fn new(backoff_max: Duration) -> Self {
        Self {
            delays: watcher::DefaultBackoff::default(),
            backoff_max,
        }
    }

    fn next(&mut self) -> Option<Duration> {
        self.delays.next().map(|delay| delay.min(self.backoff_max))
    }

    fn reset(&mut self) {
        self.delays.reset();
    }
}

/// Merges several streams into one with a single list. Its first event is `Init`, and its `InitDone` follows when all
/// lists are complete.
///
/// When one list starts again, all others start again, because the receiver replaces its content by a list. Changes of
/// complete lists wait while other lists are read.
///
/// A list that the API server forbids counts as empty, unless all are forbidden. When it is allowed again, all lists start again.
fn merged<K: Send + 'static>(
    begin: Vec<Begin<K>>,
) -> impl Stream<Item = Result<Event<K>>> + Send + 'static {
    let list = |begin: Begin<K>| List {
        events: begin(),
        begin,
        is_forbidden: false,
    };
    let merged = Merged {
        lists: begin.into_iter().map(list).collect(),
        complete: 0,
        has_begun: false,
        ends_forbidden: false,
    };
    futures::stream::unfold(merged, |mut merged| async move {
        Some((merged.next().await?, merged))
    })
}

/// Starts a list and its watch.
type Begin<K> = Box<dyn Fn() -> Events<K> + Send>;

/// The events of a list and its watch.
type Events<K> = BoxStream<'static, Result<Event<K>>>;

struct List<K> {
    events: Events<K>,
    begin: Begin<K>,
    is_forbidden: bool,
}

struct Merged<K> {
    /// The lists in the order in which they are read.
    lists: Vec<List<K>>,
    /// The number of complete lists.
    complete: usize,
    /// Whether the first incomplete list has yielded `Init`.
    has_begun: bool,
    /// Whether the last list is forbidden, so that its error takes the place of its end.
    ends_forbidden: bool,
}

impl<K> Merged<K> {
    async fn next(&mut self) -> Option<Result<Event<K>>> {
        loop {
            let reading = self.complete;
            if std::mem::take(&mut self.ends_forbidden) {
                return Some(Ok(Event::InitDone));
            }
            if reading == self.lists.len() {
                let (index, event) = self.next_change().await?;
                let is_forbidden = self.lists.get(index)?.is_forbidden;
                match event {
                    // Forbidden lists are requested again and again.
                    Ok(Event::Init) if is_forbidden => continue,
                    Ok(_) if is_forbidden => {
                        self.restart_all();
                        continue;
                    }
                    Ok(Event::Init) => self.restart(index),
                    _ => {}
                }
                return Some(event);
            }
            let list = self.lists.get_mut(reading)?;
            let event = list.events.next().await?;
            match &event {
                Ok(Event::Init) if std::mem::replace(&mut self.has_begun, true) => {
                    self.restart(reading);
                    return Some(event);
                }
                Ok(Event::Init) if reading > 0 => {}
                Ok(Event::InitDone) => {
                    self.complete += 1;
                    self.has_begun = false;
                    if self.complete == self.lists.len() {
                        return Some(event);
                    }
                }
                Err(error) if is_forbidden(error) => {
                    list.is_forbidden = true;
                    self.leave_out(reading);
                    return Some(event);
                }
                _ => return Some(event),
            }
        }
    }

    /// Counts the forbidden list as complete, if another one is allowed.
    fn leave_out(&mut self, reading: usize) {
        let is_last = reading + 1 == self.lists.len();
        if is_last && self.lists.iter().all(|list| list.is_forbidden) {
            // Each of them begins again by itself, after its delay.
            for list in &mut self.lists {
                list.is_forbidden = false;
            }
            self.complete = 0;
            self.has_begun = false;
            return;
        }
        self.complete += 1;
        self.has_begun = false;
        self.ends_forbidden = is_last;
    }

    /// The next event of any stream, with the stream's index.
    async fn next_change(&mut self) -> Option<(usize, Result<Event<K>>)> {
        futures::future::poll_fn(|cx| {
            for (index, list) in self.lists.iter_mut().enumerate() {
                if let Poll::Ready(event) = list.events.poll_next_unpin(cx) {
                    return Poll::Ready(event.map(|event| (index, event)));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Starts all lists again. The list at that index has yielded `Init`, and is the first.
    fn restart(&mut self, index: usize) {
        self.lists.swap(0, index);
        for list in self.lists.iter_mut().skip(1) {
            list.events = (list.begin)();
            list.is_forbidden = false;
        }
        self.complete = 0;
        self.has_begun = true;
    }

    fn restart_all(&mut self) {
        self.restart(0);
        if let Some(first) = self.lists.first_mut() {
            first.events = (first.begin)();
            first.is_forbidden = false;
        }
        self.has_begun = false;
    }
}

/// Whether the error is about one object that cannot be decoded. The stream skips that object, because a retry would
/// give the same result.
pub fn is_unreadable(error: &Error) -> bool {
    matches!(error, Error::WatchFailed(kube::Error::SerdeError(_)))
}

/// Whether the API server no longer has the events since the last one, or no longer knows the kind. If it knows the kind again, only a new
/// list shows it.
fn is_expired(error: &Error) -> bool {
    match error {
        Error::WatchError(status) | Error::WatchStartFailed(kube::Error::Api(status)) => {
            matches!(status.code, 404 | 410)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
