//! The time since the console has last received anything from the API server. Without news, rights can have ended.

use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

/// Without news for this time, the lists of the console are old, and consoles of pool VMs end.
pub const OLD_AFTER: Duration = Duration::from_secs(30);

/// Without news for this time, consoles of other VMs end.
const KEPT_MAX: Duration = Duration::from_mins(15);

/// Without news for this time, the console sends a request of its own.
const PROBE_AFTER: Duration = Duration::from_secs(10);

const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The news of the API server.
pub struct News {
    last: watch::Sender<Instant>,
    /// The time of the last news, while it is old.
    old: watch::Sender<Option<Instant>>,
}

impl Default for News {
    fn default() -> Self {
        Self {
            last: watch::Sender::new(Instant::now()),
            old: watch::Sender::new(None),
        }
    }
}

impl News {
    /// The API server has sent something.
    pub fn received(&self) {
        self.last.send_replace(Instant::now());
    }

    /// The time since the last news.
    pub fn age(&self) -> Duration {
        self.last.borrow().elapsed()
    }

    /// The time of the last news, while it is old.
    pub fn old(&self) -> watch::Receiver<Option<Instant>> {
        self.old.subscribe()
    }

    /// Checks for news until the process exits. `probe` returns whether the API server answers.
    pub async fn follow<F: Future<Output = bool>>(&self, probe: impl Fn() -> F) {
        let mut times = interval(CHECK_INTERVAL);
        times.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            times.tick().await;
            let last = *self.last.borrow();
            if last.elapsed() >= PROBE_AFTER && timeout(PROBE_TIMEOUT, probe()).await == Ok(true) {
                self.received();
            }
            let last = *self.last.borrow();
            let old = (last.elapsed() >= OLD_AFTER).then_some(last);
            let is_changed = self.old.send_if_modified(|present| {
                let is_changed = *present != old;
                *present = old;
                is_changed
            });
            match old {
                Some(_) if is_changed => tracing::warn!(
                    seconds = OLD_AFTER.as_secs(),
                    "the API server has not answered, so the console ends screens of pool VMs, and of other VMs later"
                ),
                None if is_changed => tracing::info!("the API server answers again"),
                _ => {}
            }
        }
    }

    /// Returns when an open console has to end for lack of news.
    pub async fn too_old(&self, is_of_pool: bool) {
        let kept = if is_of_pool { OLD_AFTER } else { KEPT_MAX };
        let mut old = self.old();
        loop {
            let since = *old.borrow_and_update();
            let end = async {
                match since {
                    Some(since) => sleep_until(since + kept).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = end => return,
                // The sender exists as long as this value.
                _ = old.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use tokio::time::sleep;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn consoles_end_after_the_times_without_news_and_not_before() {
        let (news, answers, probes) = (News::default(), AtomicBool::new(true), AtomicU32::new(0));
        let probe = || {
            probes.fetch_add(1, Ordering::Relaxed);
            std::future::ready(answers.load(Ordering::Relaxed))
        };
        let steps = async {
            let begin = Instant::now();
            // Watch events make requests unnecessary.
            for _ in 0..20 {
                sleep(5 * SECOND).await;
                news.received();
            }
            assert_eq!(probes.load(Ordering::Relaxed), 0);
            let answered = timeout(Duration::from_mins(5), news.too_old(true)).await;
            assert!(answered.is_err(), "the API server answers");
            let asked = probes.load(Ordering::Relaxed);
            assert!((20..=40).contains(&asked), "{asked}");
            answers.store(false, Ordering::Relaxed);
            let last = *news.last.borrow();
            assert_eq!(*news.old().borrow(), None);
            news.too_old(true).await;
            assert_eq!(*news.old().borrow(), Some(last));
            let ended = last.elapsed();
            assert!(
                (OLD_AFTER..OLD_AFTER + 8 * SECOND).contains(&ended),
                "{ended:?}"
            );
            news.too_old(false).await;
            let ended = last.elapsed();
            assert!((KEPT_MAX..KEPT_MAX + SECOND).contains(&ended), "{ended:?}");
            answers.store(true, Ordering::Relaxed);
            let mut old = news.old();
            old.changed().await.unwrap();
            assert_eq!(*old.borrow(), None);
            assert!(begin.elapsed() < Duration::from_mins(30));
        };
        tokio::select! {
            () = news.follow(probe) => {}
            () = steps => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_without_an_answer_is_no_news() {
        let news = News::default();
        tokio::select! {
            () = news.follow(std::future::pending) => {}
            () = news.too_old(true) => assert!(news.last.borrow().elapsed() < OLD_AFTER + 8 * SECOND),
        }
    }
}
