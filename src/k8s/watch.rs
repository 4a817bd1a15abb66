//! (client) All objects of a kind and what becomes of them, as `kube`'s watcher reports it.
//!
//! Lists are paged and consistent: the API server answers with its newest state. A list that was answered completely is followed
//! by a watch from its resource version.
//!
//! | failure | reaction |
//! |---|---|
//! | a page of the list fails | an error; the list begins again after a pause |
//! | the connection of a watch ends or fails | the watch goes on from the last event; after an error with a pause |
//! | a watch, or its request, is answered with 410 | an error; the list begins again after a pause |
//! | any of these again and again | the pauses grow until a list is complete, or an event arrives; after a 410, until an event arrives |
//!
//! A server that never answers is noticed by [`Deadlines`](crate::k8s::client::timeout::Deadlines), a watch without events by kube.

use crate::k8s::cluster::Cluster;
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
const PAGE_SIZE: u32 = 500;

/// Lists and follows; begins again after errors, with pauses that grow to `longest`.
pub fn listed<K>(
    api: Api<K>,
    config: watcher::Config,
    longest: Duration,
) -> impl Stream<Item = Result<Event<K>>> + Send + 'static
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let config = config.page_size(PAGE_SIZE);
    restarting(
        move || watcher(api.clone(), config.clone()).boxed(),
        Pauses::up_to(longest),
    )
}

/// The namespaces that a controller watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// All namespaces of the cluster.
    All,
    /// These namespaces, each with requests of its own, so that rights in these namespaces are enough.
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

/// An object of a namespace, as a watch decodes it.
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

/// Lists and follows the objects of these namespaces, as if they were one list.
pub fn listed_in<K: NamespacedObject>(
    cluster: &Cluster,
    namespaces: &Namespaces,
    config: &watcher::Config,
) -> impl Stream<Item = Result<Event<K>>> + Send + 'static + use<K> {
    let (config, longest) = (config.clone(), cluster.watch_pause);
    let begin = |api: Api<K>| -> Begin<K> {
        let config = config.clone();
        Box::new(move || listed(api.clone(), config.clone(), longest).boxed())
    };
    let apis = namespaces.apis(&cluster.client).into_iter();
    merged(apis.map(begin).collect())
}

fn restarting<K, F>(
    begin: F,
    pauses: Pauses,
) -> impl Stream<Item = Result<Event<K>>> + Send + 'static
where
    K: Send + 'static,
    F: Fn() -> BoxStream<'static, Result<Event<K>>> + Send + 'static,
{
    let events = begin();
    let listed = Listed {
        begin,
        events,
        pauses,
        pause: None,
        is_expired: false,
    };
    futures::stream::unfold(listed, |mut listed| async move {
        Some((listed.next().await?, listed))
    })
}

struct Listed<K, F> {
    begin: F,
    events: BoxStream<'static, Result<Event<K>>>,
    pauses: Pauses,
    /// Before the next request.
    pause: Option<Duration>,
    /// The watch that followed the last list was answered with 410.
    is_expired: bool,
}

impl<K, F> Listed<K, F>
where
    F: Fn() -> BoxStream<'static, Result<Event<K>>>,
{
    async fn next(&mut self) -> Option<Result<Event<K>>> {
        if let Some(pause) = self.pause.take() {
            tokio::time::sleep(pause).await;
        }
        let event = self.events.next().await?;
        match &event {
            Ok(Event::Init | Event::InitApply(_)) => {}
            // A list alone is no success where no watch can follow it.
            Ok(Event::InitDone) if self.is_expired => {}
            Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => {
                self.pauses.reset();
                self.is_expired = false;
            }
            Err(error) => {
                if is_expired(error) {
                    self.is_expired = true;
                    // kube would ask for a watch from the same version again and again.
                    self.events = (self.begin)();
                }
                self.pause = self.pauses.next();
            }
        }
        Some(event)
    }
}

/// The delays of a watch after errors, at most [`Cluster::watch_pause`]: an API server that comes back, and a definition that is
/// installed late, are noticed soon.
struct Pauses {
    pauses: watcher::DefaultBackoff,
    longest: Duration,
}

impl Pauses {
    fn up_to(longest: Duration) -> Self {
        Self {
            pauses: watcher::DefaultBackoff::default(),
            longest,
        }
    }

    fn next(&mut self) -> Option<Duration> {
        self.pauses.next().map(|pause| pause.min(self.longest))
    }

    fn reset(&mut self) {
        self.pauses.reset();
    }
}

/// Makes one list of several: its first event is `Init`, and its `InitDone` follows when all lists are complete.
///
/// One list that begins again makes all others begin again, because the receiver replaces everything that it knows by a list. While
/// lists are read, the changes of those that are complete wait.
fn merged<K: Send + 'static>(
    begin: Vec<Begin<K>>,
) -> impl Stream<Item = Result<Event<K>>> + Send + 'static {
    let lists = begin.into_iter().map(|begin| (begin(), begin)).collect();
    let merged = Merged {
        lists,
        complete: 0,
        has_begun: false,
    };
    futures::stream::unfold(merged, |mut merged| async move {
        Some((merged.next().await?, merged))
    })
}

/// Begins a list and its watch.
type Begin<K> = Box<dyn Fn() -> Events<K> + Send>;

/// The events of a list and its watch.
type Events<K> = BoxStream<'static, Result<Event<K>>>;

struct Merged<K> {
    /// They are read in this order.
    lists: Vec<(Events<K>, Begin<K>)>,
    /// The number of complete lists.
    complete: usize,
    /// Whether the first list that is not complete has given `Init`.
    has_begun: bool,
}

impl<K> Merged<K> {
    async fn next(&mut self) -> Option<Result<Event<K>>> {
        loop {
            let reading = self.complete;
            if reading == self.lists.len() {
                let (place, event) = self.next_change().await?;
                if matches!(event, Ok(Event::Init)) {
                    self.restart(place);
                }
                return Some(event);
            }
            let event = self.lists.get_mut(reading)?.0.next().await?;
            match event {
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
                event => return Some(event),
            }
        }
    }

    /// The next event of any list, with the list's place.
    async fn next_change(&mut self) -> Option<(usize, Result<Event<K>>)> {
        futures::future::poll_fn(|cx| {
            for (place, (list, _)) in self.lists.iter_mut().enumerate() {
                if let Poll::Ready(event) = list.poll_next_unpin(cx) {
                    return Poll::Ready(event.map(|event| (place, event)));
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Begins again with the list at that place, which has given `Init`.
    fn restart(&mut self, place: usize) {
        self.lists.swap(0, place);
        for (list, begin) in self.lists.iter_mut().skip(1) {
            *list = begin();
        }
        self.complete = 0;
        self.has_begun = true;
    }
}

/// Whether it is about one object, which is left out: it would be no better the next time.
pub fn is_unreadable(error: &Error) -> bool {
    matches!(error, Error::WatchFailed(kube::Error::SerdeError(_)))
}

/// Whether the API server no longer has the changes since the last event.
fn is_expired(error: &Error) -> bool {
    match error {
        Error::WatchError(status) | Error::WatchStartFailed(kube::Error::Api(status)) => {
            status.code == 410
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;
    use std::sync::{Arc, Mutex};
    use tokio::time::Instant;

    type Reported = Vec<Result<Event<u8>>>;

    fn text(event: Result<Event<u8>>) -> String {
        match event {
            Ok(Event::Init) => "init".to_owned(),
            Ok(Event::InitApply(n)) => format!("has {n}"),
            Ok(Event::InitDone) => "done".to_owned(),
            Ok(Event::Apply(n)) => format!("now {n}"),
            Ok(Event::Delete(n)) => format!("without {n}"),
            Err(error) => error.to_string(),
        }
    }

    /// What comes of watchers that report this, one after another, and nothing more; and how many were begun.
    async fn reported_of(watchers: Vec<Reported>, take: usize) -> (Vec<String>, usize) {
        let (watchers, begun) = (Mutex::new(watchers.into_iter()), Arc::new(Mutex::new(0)));
        let count = begun.clone();
        let begin = move || {
            *count.lock().unwrap() += 1;
            let reported = watchers.lock().unwrap().next().unwrap();
            futures::stream::iter(reported)
                .chain(futures::stream::pending())
                .boxed()
        };
        let events = restarting(begin, Pauses::up_to(Duration::from_secs(10)));
        let reported = events.take(take).map(text);
        let reported = tokio::time::timeout(Duration::from_secs(3600), reported.collect())
            .await
            .expect("nothing more comes");
        let begun = *begun.lock().unwrap();
        (reported, begun)
    }

    /// The events of merged lists, of which each begins with the next of its scripts when it is read again.
    async fn merged_of(scripts: Vec<Vec<Reported>>, take: usize) -> Vec<String> {
        let begin = scripts.into_iter().map(|scripts| -> Begin<u8> {
            let scripts = Mutex::new(scripts.into_iter());
            Box::new(move || {
                let events = futures::stream::iter(scripts.lock().unwrap().next().unwrap());
                events.chain(futures::stream::pending()).boxed()
            })
        });
        let events = merged(begin.collect()).take(take).map(text);
        tokio::time::timeout(Duration::from_secs(3600), events.collect())
            .await
            .expect("nothing more comes")
    }

    #[tokio::test(start_paused = true)]
    async fn lists_of_two_namespaces_are_one_list() {
        let first = list(1).into_iter().chain([Ok(Event::Apply(3))]);
        let second = list(2).into_iter().chain([Ok(Event::Delete(2))]);
        let events = merged_of(vec![vec![first.collect()], vec![second.collect()]], 6).await;
        assert_eq!(
            events,
            ["init", "has 1", "has 2", "done", "now 3", "without 2"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn list_that_begins_again_makes_the_others_begin_again() {
        let second = list(2).into_iter().chain(list(4));
        let scripts = vec![vec![list(1), list(3)], vec![second.collect()]];
        let events = merged_of(scripts, 8).await;
        assert_eq!(
            events,
            [
                "init", "has 1", "has 2", "done", "init", "has 4", "has 3", "done"
            ]
        );
        // The second list fails on its way and begins again.
        let half = vec![Ok(Event::Init), Ok(Event::InitApply(2))];
        let second = half.into_iter().chain(list(4));
        let scripts = vec![vec![list(1), list(3)], vec![second.collect()]];
        let events = merged_of(scripts, 7).await;
        assert_eq!(
            events,
            ["init", "has 1", "has 2", "init", "has 4", "has 3", "done"]
        );
    }

    fn failed(code: u16) -> kube::Error {
        kube::Error::Api(Status::failure("no", "Some").with_code(code).boxed())
    }

    fn lost() -> Error {
        Error::WatchFailed(kube::Error::ReadEvents(std::io::Error::other("lost")))
    }

    fn unreadable() -> Error {
        Error::WatchFailed(kube::Error::SerdeError(
            serde_json::from_str::<u8>("{").unwrap_err(),
        ))
    }

    fn list(n: u8) -> Reported {
        vec![
            Ok(Event::Init),
            Ok(Event::InitApply(n)),
            Ok(Event::InitDone),
        ]
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_cannot_go_on_begins_with_a_new_list() {
        let expired = Status::failure("too old", "Expired").with_code(410).boxed();
        for error in [
            Error::WatchError(expired),
            Error::WatchStartFailed(failed(410)),
        ] {
            let said = error.to_string();
            let first = list(1).into_iter().chain([Err(error)]).collect();
            let (reported, begun) = reported_of(vec![first, list(2)], 7).await;
            assert_eq!(
                reported,
                ["init", "has 1", "done", &*said, "init", "has 2", "done"]
            );
            assert_eq!(begun, 2);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn any_other_error_is_left_to_the_watcher() {
        let errors =
            [400, 403, 404, 422, 429, 500].map(|code| Error::WatchStartFailed(failed(code)));
        for error in
            errors
                .into_iter()
                .chain([lost(), unreadable(), Error::InitialListFailed(failed(410))])
        {
            let said = error.to_string();
            let first = list(1)
                .into_iter()
                .chain([Err(error), Ok(Event::Apply(2))])
                .collect();
            let (reported, begun) = reported_of(vec![first], 5).await;
            assert_eq!(
                (reported[3..].to_vec(), begun),
                (vec![said, "now 2".to_owned()], 1)
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_pauses_grow_until_a_list_is_complete() {
        let began = Instant::now();
        let lists = (0..9)
            .flat_map(|_| [Ok(Event::Init), Err(Error::InitialListFailed(failed(500)))])
            .collect();
        let (reported, _) = reported_of(vec![lists], 16).await;
        assert_eq!(
            reported
                .iter()
                .filter(|reported| *reported != "init")
                .count(),
            8,
            "{reported:?}"
        );
        // 7 pauses, of which the last are as long as they may be.
        assert!(
            began.elapsed() > Duration::from_secs(30),
            "{:?}",
            began.elapsed()
        );

        let began = Instant::now();
        let expired = || {
            list(1)
                .into_iter()
                .chain([Err(Error::WatchStartFailed(failed(410)))])
                .collect()
        };
        reported_of((0..9).map(|_| expired()).collect(), 8 * 4).await;
        assert!(
            began.elapsed() > Duration::from_secs(30),
            "{:?}",
            began.elapsed()
        );

        let failing = list(1).into_iter().chain([
            Err(lost()),
            Ok(Event::Apply(1)),
            Err(lost()),
            Ok(Event::Apply(2)),
        ]);
        let began = Instant::now();
        let (reported, _) = reported_of(vec![failing.collect()], 7).await;
        assert_eq!((&*reported[4], &*reported[6]), ("now 1", "now 2"));
        assert!(
            began.elapsed() < Duration::from_secs(4),
            "{:?}",
            began.elapsed()
        );
    }
}
