//! (client) All objects of a kind and what becomes of them, as `kube`'s watcher tells it, but for what that takes lightly:
//!
//! | what happens | what is made of it |
//! |---|---|
//! | the API server gives no lists as events | it is asked for pages |
//! | its cache is too far behind for a list as events | the next one is asked for in pages |
//! | a list as events ends, fails, or says nothing for [`SILENCE`] before it is complete | an error; it begins anew after a pause |
//! | a watch is told that it cannot go on from where it was (410) | it begins anew, however that was said |
//! | the same again and again | the pauses grow until a list is complete, or an event comes; after a 410, until an event comes |
//!
//! `Init` is told once the first answer is there, and `InitDone` or an error comes after it.

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use kube::Resource;
use kube::api::Api;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher;
use kube::runtime::watcher::{Error, Event, Result};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::time::Duration;

/// Objects in a page of a list, as `kubectl` and Kubernetes' own controllers have it.
const PAGE: u32 = 500;

/// A list in which nothing comes for so long has stopped. Longer than a page of it may take.
const SILENCE: Duration = Duration::from_secs(90);

/// How the API server gives a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lists {
    /// As the first events of the watch (`sendInitialEvents`), an object at a time: it takes the least memory, and is all out of
    /// the API server's cache. API servers before 1.34 may refuse it.
    Streamed,
    /// In pages of [`PAGE`]. The pages after the first are read from etcd where it was compacted since anything has changed, as
    /// it is every five minutes: over 10,000 VMs that are at rest, that takes twice as long and more.
    Paged,
}

/// A list came to an end, but not to its own.
#[derive(Debug, thiserror::Error)]
enum Incomplete {
    #[error("the list ended before it was complete")]
    Cut,
    #[error("the list said nothing for {SILENCE:?} before it was complete")]
    Silent,
}

impl From<Incomplete> for Error {
    fn from(incomplete: Incomplete) -> Self {
        Self::WatchFailed(kube::Error::Service(incomplete.into()))
    }
}

/// Lists and follows; begins anew after errors, with pauses that grow to `longest`.
pub(super) fn listed<K>(
    api: Api<K>,
    config: watcher::Config,
    longest: Duration,
) -> impl Stream<Item = Result<Event<K>>> + Send + 'static
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let begin = move |lists| {
        let config = match lists {
            Lists::Streamed => config.clone().streaming_lists(),
            Lists::Paged => config.clone().page_size(PAGE),
        };
        watcher(api.clone(), config).boxed()
    };
    complete(begin, Short::of(longest))
}

fn complete<K, F>(begin: F, pauses: Short) -> impl Stream<Item = Result<Event<K>>> + Send + 'static
where
    K: Send + 'static,
    F: Fn(Lists) -> BoxStream<'static, Result<Event<K>>> + Send + 'static,
{
    let lists = Lists::Streamed;
    let events = begin(lists);
    let listed =
        Listed { begin, lists, events, stage: Stage::Before, second: None, pauses, pause: None, is_cut_off: false };
    futures::stream::unfold(listed, |mut listed| async move { Some((listed.next().await, listed)) })
}

/// What was told last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing.
    Before,
    /// Nothing yet of the list that has begun.
    Begun,
    /// Some of a list.
    Listing,
    /// All of it.
    Following,
}

struct Listed<K, F> {
    begin: F,
    lists: Lists,
    events: BoxStream<'static, Result<Event<K>>>,
    stage: Stage,
    /// What is told right after `Init`.
    second: Option<Event<K>>,
    pauses: Short,
    /// Before anything else.
    pause: Option<Duration>,
    /// The watch of the last list could not go on.
    is_cut_off: bool,
}

impl<K, F> Listed<K, F>
where
    F: Fn(Lists) -> BoxStream<'static, Result<Event<K>>>,
{
    async fn next(&mut self) -> Result<Event<K>> {
        if let Some(event) = self.second.take() {
            return Ok(event);
        }
        if let Some(pause) = self.pause.take() {
            tokio::time::sleep(pause).await;
        }
        loop {
            let listing = self.is_listing();
            let event = match listing {
                true => tokio::time::timeout(SILENCE, self.events.next()).await,
                false => Ok(self.events.next().await),
            };
            match event {
                Ok(Some(Ok(Event::Init))) if !listing => self.stage = Stage::Begun,
                // A watcher has no end; it begins its list anew where that was cut.
                Ok(None | Some(Ok(Event::Init))) => return self.begin_anew(Incomplete::Cut.into()),
                Err(_) => return self.begin_anew(Incomplete::Silent.into()),
                Ok(Some(Ok(event))) => return Ok(self.told(event)),
                Ok(Some(Err(error))) if self.is_refusal(&error) => {
                    tracing::info!(%error, "the API server gives no lists as events; asking for pages");
                    self.lists = Lists::Paged;
                    self.events = (self.begin)(self.lists);
                }
                Ok(Some(Err(error))) if cannot_go_on(&error) => {
                    self.is_cut_off = true;
                    return self.begin_anew(error);
                }
                Ok(Some(Err(error))) if listing && !is_unreadable(&error) => return self.begin_anew(error),
                Ok(Some(Err(error))) => return self.failed(error),
            }
        }
    }

    fn is_listing(&self) -> bool {
        matches!(self.stage, Stage::Begun | Stage::Listing)
    }

    /// What is to be told now that this has come.
    fn told(&mut self, event: Event<K>) -> Event<K> {
        let is_first = self.stage == Stage::Begun;
        self.stage = if matches!(event, Event::InitApply(_)) { Stage::Listing } else { Stage::Following };
        // A list is not enough where no watch goes on from it.
        if self.stage == Stage::Following && !(self.is_cut_off && matches!(event, Event::InitDone)) {
            self.pauses.reset();
            self.is_cut_off = false;
        }
        if !is_first {
            return event;
        }
        self.second = Some(event);
        Event::Init
    }

    fn begin_anew(&mut self, error: Error) -> Result<Event<K>> {
        let lists = if self.is_listing() && is_too_far_behind(&error) { Lists::Paged } else { self.lists };
        self.stage = Stage::Before;
        self.events = (self.begin)(lists);
        self.failed(error)
    }

    fn failed(&mut self, error: Error) -> Result<Event<K>> {
        self.pause = self.pauses.next();
        Err(error)
    }

    /// Whether the API server does not give lists as events.
    fn is_refusal(&self, error: &Error) -> bool {
        // What it says is `Invalid`; what stands before it may say less.
        self.lists == Lists::Streamed
            && self.stage == Stage::Before
            && matches!(error, Error::WatchStartFailed(kube::Error::Api(status)) if matches!(status.code, 400 | 422))
    }
}

/// The pauses of a watch, but never longer than [`Context::watch_pause`]: an API server that comes back, and a definition
/// that comes at last, are seen soon.
///
/// [`Context::watch_pause`]: super::super::context::Context::watch_pause
struct Short {
    pauses: watcher::DefaultBackoff,
    longest: Duration,
}

impl Short {
    fn of(longest: Duration) -> Self {
        Self { pauses: watcher::DefaultBackoff::default(), longest }
    }

    fn next(&mut self) -> Option<Duration> {
        self.pauses.next().map(|pause| pause.min(self.longest))
    }

    fn reset(&mut self) {
        self.pauses.reset();
    }
}

/// Whether it is about one object, which is left out: it would be no better the next time.
pub(super) fn is_unreadable(error: &Error) -> bool {
    matches!(error, Error::WatchFailed(kube::Error::SerdeError(_)))
}

/// Whether what has changed meanwhile is no longer to be had.
fn cannot_go_on(error: &Error) -> bool {
    match error {
        Error::WatchError(status) | Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 410,
        Error::NoResourceVersion => true,
        _ => false,
    }
}

/// Whether the API server's cache does not become as new as its etcd in time. Pages can then come from there.
fn is_too_far_behind(error: &Error) -> bool {
    matches!(error, Error::WatchError(status) if matches!(status.code, 500 | 504))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;
    use std::sync::{Arc, Mutex};
    use tokio::time::Instant;

    type Told = Vec<Result<Event<u8>>>;

    /// What comes of watchers that tell this, one after another, and nothing more; and how each was to list.
    async fn complete_of(watchers: Vec<Told>, take: usize) -> (Vec<String>, Vec<Lists>) {
        let (watchers, begun) = (Mutex::new(watchers.into_iter()), Arc::new(Mutex::new(Vec::new())));
        let log = begun.clone();
        let begin = move |lists| {
            log.lock().unwrap().push(lists);
            let told = watchers.lock().unwrap().next().unwrap();
            futures::stream::iter(told).chain(futures::stream::pending()).boxed()
        };
        let events = complete(begin, Short::of(Duration::from_secs(10)));
        let told = events.take(take).map(|event| match event {
            Ok(Event::Init) => "init".to_owned(),
            Ok(Event::InitApply(n)) => format!("has {n}"),
            Ok(Event::InitDone) => "done".to_owned(),
            Ok(Event::Apply(n)) => format!("now {n}"),
            Ok(Event::Delete(n)) => format!("without {n}"),
            Err(Error::WatchFailed(kube::Error::Service(error))) => error.to_string(),
            Err(error) => error.to_string(),
        });
        let told = tokio::time::timeout(Duration::from_secs(3600), told.collect()).await.expect("nothing more is told");
        let begun = begun.lock().unwrap().clone();
        (told, begun)
    }

    fn start_failed(code: u16) -> Error {
        Error::WatchStartFailed(kube::Error::Api(Status::failure("no", "Some").with_code(code).boxed()))
    }

    fn lost() -> Error {
        Error::WatchFailed(kube::Error::ReadEvents(std::io::Error::other("lost")))
    }

    fn unreadable() -> Error {
        Error::WatchFailed(kube::Error::SerdeError(serde_json::from_str::<u8>("{").unwrap_err()))
    }

    fn list(n: u8) -> Told {
        vec![Ok(Event::Init), Ok(Event::InitApply(n)), Ok(Event::InitDone)]
    }

    #[tokio::test(start_paused = true)]
    async fn pages_are_asked_for_where_lists_as_events_are_refused_and_never_again_for_events() {
        for code in [400, 422] {
            let (told, begun) = complete_of(vec![vec![Err(start_failed(code))], list(1)], 3).await;
            assert_eq!((told.join(", ").as_str(), begun), ("init, has 1, done", vec![Lists::Streamed, Lists::Paged]));
        }
        // A watch that goes on from a complete list has nothing to do with how that is given.
        for code in [403, 404, 429, 500] {
            let (_, begun) = complete_of(vec![vec![Err(start_failed(code))]], 1).await;
            assert_eq!(begun, [Lists::Streamed], "{code}");
        }
        let later = list(1).into_iter().chain([Err(start_failed(422)), Ok(Event::Apply(2))]).collect();
        let (told, begun) = complete_of(vec![later], 5).await;
        assert_eq!((told[4].as_str(), begun), ("now 2", vec![Lists::Streamed]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_is_not_complete_is_an_error_and_begins_anew() {
        let begins = || vec![Ok(Event::Init), Ok(Event::InitApply(1))];
        let with = |more: Told| begins().into_iter().chain(more).collect::<Told>();
        for (first, error) in [
            (with(begins()), "the list ended before it was complete"),
            (begins(), "the list said nothing for 90s before it was complete"),
            (with(vec![Err(lost())]), "watch stream failed: Error reading events stream: lost"),
        ] {
            let (told, begun) = complete_of(vec![first, list(2)], 6).await;
            assert_eq!(told, ["init", "has 1", error, "init", "has 2", "done"]);
            assert_eq!(begun, [Lists::Streamed; 2]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_cannot_go_on_begins_anew_and_may_be_refused_its_list() {
        let gone = Status::failure("too old", "Expired").with_code(410).boxed();
        for error in [Error::WatchError(gone), start_failed(410), Error::NoResourceVersion] {
            let said = error.to_string();
            let first = list(1).into_iter().chain([Err(error)]).collect();
            let (told, begun) = complete_of(vec![first, vec![Err(start_failed(422))], list(2)], 7).await;
            assert_eq!(told, ["init", "has 1", "done", &*said, "init", "has 2", "done"]);
            assert_eq!(begun, [Lists::Streamed, Lists::Streamed, Lists::Paged]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pages_are_asked_for_once_where_the_cache_is_too_far_behind() {
        let late = |code| {
            let status =
                Status::failure("Too large resource version: 9, current: 7", "Timeout").with_code(code).boxed();
            vec![Ok(Event::Init), Err(Error::WatchError(status))]
        };
        let gone = Status::failure("too old", "Expired").with_code(410).boxed();
        for code in [500, 504] {
            let pages = list(1).into_iter().chain([Err(Error::WatchError(gone.clone()))]).collect();
            let (told, begun) = complete_of(vec![late(code), pages, list(2)], 8).await;
            assert!(told[0].contains("Too large resource version"), "{told:?}");
            assert_eq!((&*told[2], &*told[6]), ("has 1", "has 2"), "{told:?}");
            assert_eq!(begun, [Lists::Streamed, Lists::Paged, Lists::Streamed]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_cannot_be_read_is_left_out_and_told_of() {
        let told = vec![Ok(Event::Init), Err(unreadable()), Ok(Event::InitApply(2)), Ok(Event::InitDone)];
        let (told, begun) = complete_of(vec![told], 4).await;
        assert_eq!((&told[1..], begun.len()), (&["init", "has 2", "done"].map(str::to_owned)[..], 1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_pauses_grow_until_a_list_is_complete() {
        let began = Instant::now();
        let pages = |error| vec![Ok(Event::Init), Err(error)];
        let (told, _) = complete_of((0..9).map(|_| pages(lost())).collect(), 8).await;
        assert_eq!(told.iter().filter(|told| told.contains("lost")).count(), 8, "{told:?}");
        // 7 pauses, of which the last are as long as they may be.
        assert!(began.elapsed() > Duration::from_secs(30), "{:?}", began.elapsed());

        let began = Instant::now();
        let cut_off = || list(1).into_iter().chain([Err(start_failed(410))]).collect();
        complete_of((0..9).map(|_| cut_off()).collect(), 8 * 4).await;
        assert!(began.elapsed() > Duration::from_secs(30), "{:?}", began.elapsed());

        let failing = list(1).into_iter().chain([Err(lost()), Ok(Event::Apply(1)), Err(lost()), Ok(Event::Apply(2))]);
        let began = Instant::now();
        let (told, _) = complete_of(vec![failing.collect()], 7).await;
        assert_eq!((&*told[4], &*told[6]), ("now 1", "now 2"));
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    }
}
