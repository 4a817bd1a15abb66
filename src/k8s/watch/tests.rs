use super::*;
use kube::core::Status;
use std::sync::{Arc, Mutex};
use tokio::time::Instant;

type Script = Vec<Result<Event<u8>>>;

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

/// The events of a stream of watchers that yield these events in order, and the number of started watchers.
async fn reported_of(watchers: Vec<Script>, take: usize) -> (Vec<String>, usize) {
    let (watchers, begun) = (Mutex::new(watchers.into_iter()), Arc::new(Mutex::new(0)));
    let count = begun.clone();
    let begin = move || {
        *count.lock().unwrap() += 1;
        let reported = watchers.lock().unwrap().next().unwrap();
        futures::stream::iter(reported)
            .chain(futures::stream::pending())
            .boxed()
    };
    let events = restarting(begin, WatchBackoff::new(Duration::from_secs(10)));
    let reported = events.take(take).map(text);
    let reported = tokio::time::timeout(Duration::from_secs(3600), reported.collect())
        .await
        .expect("nothing more comes");
    let begun = *begun.lock().unwrap();
    (reported, begun)
}

/// The events of merged streams. Each stream has one script for each of its starts.
async fn merged_of(scripts: Vec<Vec<Script>>, take: usize) -> Vec<String> {
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
    // The second list fails before its end and starts again.
    let half = vec![Ok(Event::Init), Ok(Event::InitApply(2))];
    let second = half.into_iter().chain(list(4));
    let scripts = vec![vec![list(1), list(3)], vec![second.collect()]];
    let events = merged_of(scripts, 7).await;
    assert_eq!(
        events,
        ["init", "has 1", "has 2", "init", "has 4", "has 3", "done"]
    );
}

#[tokio::test(start_paused = true)]
async fn forbidden_namespace_does_not_stop_the_others_and_is_read_when_it_is_allowed() {
    let forbidden = || Err(Error::InitialListFailed(failed(403)));
    let no = text(forbidden());
    for first_is_forbidden in [true, false] {
        // The forbidden list is requested twice more, and is then allowed.
        let mut blocked = vec![Ok(Event::Init), forbidden(), Ok(Event::Init), forbidden()];
        blocked.extend(list(2));
        let allowed = vec![list(1), list(1)];
        let mut scripts = vec![vec![blocked, list(2)], allowed];
        if !first_is_forbidden {
            scripts.reverse();
        }
        let events = merged_of(scripts, 9).await;
        let (before, after): (&[&str], &[&str]) = match first_is_forbidden {
            true => (&["init", &no, "has 1", "done"], &["has 2", "has 1"]),
            false => (&["init", "has 1", &no, "done"], &["has 1", "has 2"]),
        };
        let expected = [before, &[&no, "init"], after, &["done"]].concat();
        assert_eq!(events, expected);
    }
}

/// A namespace that is forbidden alone is requested with growing delays, as after any other error.
#[tokio::test(start_paused = true)]
async fn forbidden_list_is_requested_with_delays_if_no_other_is_allowed() {
    let requests = Arc::new(Mutex::new(0));
    let count = requests.clone();
    let begin = move || {
        let count = count.clone();
        let watchers = move || {
            *count.lock().unwrap() += 1;
            let script = vec![Ok(Event::Init), Err(Error::InitialListFailed(failed(403)))];
            futures::stream::iter(script)
                .chain(futures::stream::pending())
                .boxed()
        };
        restarting(watchers, WatchBackoff::new(Duration::from_secs(5))).boxed()
    };
    let events: BoxStream<'static, Result<Event<u8>>> = merged(vec![Box::new(begin)]).boxed();
    let minute = tokio::time::timeout(Duration::from_secs(60), events.for_each(|_| async {}));
    minute.await.unwrap_err();
    let requests = *requests.lock().unwrap();
    assert!(
        (10..40).contains(&requests),
        "{requests} requests in a minute"
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

fn list(n: u8) -> Script {
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
        // The definition of the kind was missing.
        Error::WatchStartFailed(failed(404)),
        // The permission may be gone, so that the list must not remain.
        Error::WatchStartFailed(failed(403)),
    ] {
        let message = error.to_string();
        let first = list(1).into_iter().chain([Err(error)]).collect();
        let (reported, begun) = reported_of(vec![first, list(2)], 7).await;
        assert_eq!(
            reported,
            ["init", "has 1", "done", &*message, "init", "has 2", "done"]
        );
        assert_eq!(begun, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn other_errors_are_handled_by_the_watcher() {
    let errors = [400, 422, 429, 500].map(|code| Error::WatchStartFailed(failed(code)));
    for error in
        errors
            .into_iter()
            .chain([lost(), unreadable(), Error::InitialListFailed(failed(410))])
    {
        let message = error.to_string();
        let first = list(1)
            .into_iter()
            .chain([Err(error), Ok(Event::Apply(2))])
            .collect();
        let (reported, begun) = reported_of(vec![first], 5).await;
        assert_eq!(
            (reported[3..].to_vec(), begun),
            (vec![message, "now 2".to_owned()], 1)
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
    // 7 delays, of which the last have the maximum.
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
