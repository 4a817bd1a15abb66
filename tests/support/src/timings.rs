//! Clocks and durations of a run, on virtual time or on a real API server.

use k8s_openapi::jiff::Timestamp;
use std::cell::Cell;
use std::time::Duration;
use tokio::time::Instant;
use vm_operator::k8s::client::timeout::Deadlines;

thread_local! {
    /// A time of the virtual clock and the corresponding timestamp.
    static CLOCK: Cell<Option<(Timestamp, Instant)>> = const { Cell::new(None) };
}

/// Connects [`now`] with the virtual clock of this thread's runtime, which is at `timestamp` now.
pub fn follow_virtual_clock(timestamp: Timestamp) {
    CLOCK.set(Some((timestamp, Instant::now())));
}

/// The wall clock. It is virtual after [`follow_virtual_clock`] was called in this thread.
#[must_use]
pub fn now() -> Timestamp {
    match CLOCK.get() {
        Some((timestamp, at)) => timestamp + at.elapsed(),
        None => Timestamp::now(),
    }
}

/// The monotonic clock, which is virtual if the runtime's clock is.
#[must_use]
pub fn instant() -> std::time::Instant {
    Instant::now().into_std()
}

/// A number from 0 to 1 that depends only on the seed of this thread's generator.
#[must_use]
pub fn chance() -> f64 {
    fastrand::f64()
}

/// Delays and time-outs of an operator that would take too long in a test on a real API server.
#[derive(Clone, Copy, Debug)]
pub struct Shortened {
    /// The delay after the first failed reconcile.
    pub backoff: Duration,
    /// The longest delay before a watch is requested again.
    pub watch_backoff_max: Duration,
    /// The time limit of a reconcile.
    pub deadline: Duration,
    /// The time-out of a response.
    pub answer: Duration,
}

/// The durations of a run.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// Delays and time-outs of the operator that differ from those of production.
    pub shortened: Option<Shortened>,
    /// The unit of event delays.
    pub late: Duration,
    /// The time without a change and without a request between two steps.
    pub rest: Duration,
    /// The time without a change and without a request at the end.
    pub stays: Duration,
    /// The longest time from a step to the expected state.
    pub until: Duration,
    /// Whether each request and event is printed.
    pub traces: bool,
}

impl Timings {
    /// A simulated run with production values.
    #[must_use]
    pub fn simulated() -> Self {
        Self {
            shortened: None,
            // Longer than the few requests in which an operator acts on an old list.
            late: Duration::from_millis(500),
            rest: Duration::from_secs(10),
            // Longer than the delays of one minute.
            stays: Duration::from_secs(70),
            // Longer than the time after which an instance is an orphan, twice.
            until: Duration::from_mins(120),
            traces: false,
        }
    }

    /// A run on a real API server.
    #[must_use]
    pub fn real() -> Self {
        let shortened = Shortened {
            backoff: Duration::from_millis(100),
            watch_backoff_max: Duration::from_millis(100),
            deadline: Duration::from_secs(2),
            answer: Duration::from_secs(2),
        };
        Self {
            shortened: Some(shortened),
            late: Duration::from_millis(100),
            // Longer than the backoff before a restart.
            rest: Duration::from_millis(2500),
            stays: Duration::from_millis(700),
            until: Duration::from_secs(60),
            traces: false,
        }
    }

    /// The time-outs of the operator's requests.
    #[must_use]
    pub fn deadlines(&self) -> Deadlines {
        self.shortened
            .map_or_else(Deadlines::default, |Shortened { answer, .. }| Deadlines {
                answer,
                list: answer,
            })
    }
}
