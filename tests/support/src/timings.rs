//! Clocks and durations of a run, on virtual time or on a real API server.

use k8s_openapi::jiff::Timestamp;
use std::cell::Cell;
use std::time::Duration;
use tokio::time::Instant;
use vm_operator::k8s::client::timeout::Deadlines;

thread_local! {
    /// A moment of the virtual clock and the timestamp that belongs to it.
    static CLOCK: Cell<Option<(Timestamp, Instant)>> = const { Cell::new(None) };
}

/// Lets [`now`] follow the virtual clock of this thread's runtime. It shows `timestamp` at this moment.
pub fn follow_virtual_clock(timestamp: Timestamp) {
    CLOCK.set(Some((timestamp, Instant::now())));
}

/// The wall clock: that of the virtual time, where [`follow_virtual_clock`] was called in this thread.
#[must_use]
pub fn now() -> Timestamp {
    match CLOCK.get() {
        Some((timestamp, at)) => timestamp + at.elapsed(),
        None => Timestamp::now(),
    }
}

/// The monotonic clock, which is virtual where the runtime's is.
#[must_use]
pub fn instant() -> std::time::Instant {
    Instant::now().into_std()
}

/// A number from 0 to 1 that depends on the seed of this thread's generator only.
#[must_use]
pub fn chance() -> f64 {
    fastrand::f64()
}

/// Timings of an operator that would make a test on a real API server take too long.
#[derive(Clone, Copy, Debug)]
pub struct Shortened {
    /// The pause after the first failed reconcile.
    pub backoff: Duration,
    /// The longest pause before a watch is requested again.
    pub watch_pause: Duration,
    /// The longest time of a reconcile.
    pub deadline: Duration,
    /// The longest time of an answer.
    pub answer: Duration,
}

/// Durations of a run.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// Timings of the operator other than those of production.
    pub shortened: Option<Shortened>,
    /// The unit of delays of events.
    pub late: Duration,
    /// Between two steps: the time without a change and without a request.
    pub rest: Duration,
    /// At the end: the time in which nothing changes and nothing is requested.
    pub stays: Duration,
    /// The longest time from a step until the state is the expected one.
    pub until: Duration,
    /// Whether each request and event is printed.
    pub traces: bool,
}

impl Timings {
    /// Of a simulated run: those of production.
    #[must_use]
    pub fn simulated() -> Self {
        Self {
            shortened: None,
            // Longer than the few requests that an operator needs to act on an old list.
            late: Duration::from_millis(500),
            rest: Duration::from_secs(10),
            // Longer than the pauses of a minute.
            stays: Duration::from_secs(70),
            until: Duration::from_mins(20),
            traces: false,
        }
    }

    /// Of a run on a real API server.
    #[must_use]
    pub fn real() -> Self {
        let shortened = Shortened {
            backoff: Duration::from_millis(100),
            watch_pause: Duration::from_millis(100),
            deadline: Duration::from_secs(2),
            answer: Duration::from_secs(2),
        };
        Self {
            shortened: Some(shortened),
            late: Duration::from_millis(100),
            // Longer than the pause before a start.
            rest: Duration::from_millis(2500),
            stays: Duration::from_millis(700),
            until: Duration::from_secs(60),
            traces: false,
        }
    }

    /// The operator's deadlines of requests.
    #[must_use]
    pub fn deadlines(&self) -> Deadlines {
        self.shortened
            .map_or_else(Deadlines::default, |Shortened { answer, .. }| Deadlines {
                answer,
                list: answer,
            })
    }
}
