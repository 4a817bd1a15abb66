//! (client) Leader election: only the operator that holds the Lease of a namespace writes there.
//!
//! ```text
//!               acquired: free or expired
//!   Waiting ──────────────────────────────────────────────► Leading(until) ──renewed──┐
//!                                                            │    │    ▲──────────────┘
//!                 shutdown, all reconciles have finished     │    │ not renewed in time, or held by another
//!                       Waiting, Lease emptied  ◄────────────┘    └──► Waiting, the controllers start again
//! ```
//!
//! A leader that cannot renew the Lease stops: its client sends no write after `until` (see
//! [`crate::k8s::client::gate`]), and its controllers start again as those of a candidate. The Lease is in the watched
//! namespace, so that the election includes operators outside the cluster. [`election`] has the rules.

pub mod election;
#[cfg(test)]
mod tests;

use election::{Election, LeaseRequest, LeaseResponse, Timing};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// The time-out of a request for the Lease. The next request uses another connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// The time limit for releasing the Lease at shutdown.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// The state of this operator in the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no election.
    NoElection,
    /// Another operator may lead.
    Waiting,
    /// This operator leads until then.
    Leading(Instant),
}

/// Whether this operator leads. Clones share the state.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Sender<State>);

impl Leadership {
    /// Leadership of a program without leader election.
    #[must_use]
    pub fn alone() -> Self {
        Self(watch::Sender::new(State::NoElection))
    }

    /// Leadership of an operator that has not been elected.
    #[must_use]
    pub fn waiting() -> Self {
        Self(watch::Sender::new(State::Waiting))
    }

    /// Leadership for that time, without an election.
    #[must_use]
    pub fn leading_for(time: Duration) -> Self {
        Self(watch::Sender::new(State::Leading(Instant::now() + time)))
    }

    /// Whether this operator leads now.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.remaining().is_some()
    }

    /// The time for which this operator leads at least, or `None` if it does not lead. A call to a service that knows no Lease ends within it.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        match *self.0.borrow() {
            State::NoElection => Some(Duration::MAX),
            State::Waiting => None,
            State::Leading(until) => until
                .checked_duration_since(Instant::now())
                .filter(|left| !left.is_zero()),
        }
    }

    /// Returns when this operator leads.
    pub async fn elected(&self) {
        // The sender lives as long as `self`.
        let _ = self
            .0
            .subscribe()
            .wait_for(|state| *state != State::Waiting)
            .await;
    }

    fn set(&self, state: State) {
        self.0.send_replace(state);
    }
}

/// Leadership is lost. Another operator may have it already.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeadershipLost {
    /// Another operator holds the Lease.
    #[error("another operator ({0}) has taken over the Lease")]
    TakenOver(String),
    /// The Lease was not renewed in time.
    #[error(
        "cannot renew the Lease within {0:?}, because the API server answers slowly or not at all"
    )]
    NotRenewed(Duration),
}

/// A candidate of the election.
pub struct Candidate {
    leases: Api<Lease>,
    lease: String,
    election: Election,
    leadership: Leadership,
    timing: Timing,
    began: Instant,
    time: fn() -> Timestamp,
}

impl Candidate {
    /// A candidate for that Lease. The identity must be unique among running operators. `leases` needs a client of its
    /// own, because it writes before there is a leader and must not wait for other requests.
    #[must_use]
    pub fn new(leases: Api<Lease>, lease: &str, identity: &str, leadership: Leadership) -> Self {
        let timing = Timing::default();
        let election = Election::new(lease, identity, timing);
        Self {
            leases,
            lease: lease.to_owned(),
            election,
            leadership,
            timing,
            began: Instant::now(),
            time: Timestamp::now,
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Acquires the Lease and renews it. Returns when leadership is lost.
    pub async fn run(&mut self) -> LeadershipLost {
        let mut logged_holder = String::new();
        loop {
            match self.try_acquire_or_renew().await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(lost) => {
                    self.resign();
                    return lost;
                }
            }
            let holder = self.election.holder();
            if self.election.leads_until().is_none()
                && holder != logged_holder
                && !holder.is_empty()
            {
                tracing::info!(
                    holder,
                    "another operator is the leader; waiting as a standby"
                );
                holder.clone_into(&mut logged_holder);
            }
            let rest = self
                .election
                .leads_until()
                .map(|until| until.saturating_sub(self.now()));
            sleep(rest.map_or(self.timing.retry_period, |rest| {
                rest.min(self.timing.retry_period)
            }))
            .await;
            self.election.start_attempt();
        }
    }

    /// Sends at most one request. Returns whether the next one must follow immediately.
    async fn try_acquire_or_renew(&mut self) -> Result<bool, LeadershipLost> {
        let led = self.election.leads_until().is_some();
        if led && !self.election.leads(self.now()) {
            return Err(LeadershipLost::NotRenewed(self.timing.renew_deadline));
        }
        let request = self.election.request(self.now(), (self.time)());
        if request == LeaseRequest::Nothing {
            return Ok(false);
        }
        let began = self.now();
        let rest = self
            .election
            .leads_until()
            .map_or(REQUEST_TIMEOUT, |until| {
                REQUEST_TIMEOUT.min(until.saturating_sub(began))
            });
        let response = self.send(&request, rest).await;
        // A get is followed by the write that needs it, and a conflict by a get.
        let again = matches!(
            (&request, &response),
            (
                LeaseRequest::Get,
                LeaseResponse::Lease(_) | LeaseResponse::Absent
            ) | (_, LeaseResponse::Conflict)
        );
        self.election
            .handle_response(&request, began, self.now(), response);
        match self.election.leads_until() {
            Some(until) => {
                self.leadership.set(State::Leading(self.began + until));
                if !led {
                    tracing::info!("this operator is the leader now");
                }
            }
            None if led => {
                return Err(LeadershipLost::TakenOver(self.election.holder().to_owned()));
            }
            None => {}
        }
        Ok(again)
    }

    async fn send(&self, request: &LeaseRequest, limit: Duration) -> LeaseResponse {
        let params = PostParams::default();
        let request = async {
            match request {
                LeaseRequest::Create(lease) => self.leases.create(&params, lease).await,
                LeaseRequest::Replace(lease) => {
                    self.leases.replace(&self.lease, &params, lease).await
                }
                LeaseRequest::Get | LeaseRequest::Nothing => self.leases.get(&self.lease).await,
            }
        };
        match timeout(limit, request).await {
            Ok(Ok(lease)) => LeaseResponse::Lease(Box::new(lease)),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => LeaseResponse::Absent,
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => LeaseResponse::Conflict,
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot get or renew the Lease; the operator retries");
                LeaseResponse::Failed
            }
            Err(_) => {
                tracing::warn!(
                    "the API server has not answered a request for the Lease within {limit:?}"
                );
                LeaseResponse::Failed
            }
        }
    }

    fn resign(&mut self) {
        self.leadership.set(State::Waiting);
        self.election.resign();
    }

    /// Gives up leadership and releases the Lease. No write may be in progress.
    pub async fn release(mut self) {
        if self.election.leads_until().is_none() {
            return;
        }
        self.resign();
        let emptied = async {
            loop {
                let request = self.election.release((self.time)());
                if request == LeaseRequest::Nothing {
                    return;
                }
                let response = self.send(&request, RELEASE_TIMEOUT).await;
                let failed = matches!(response, LeaseResponse::Failed);
                if self.election.released(&request, response) {
                    return;
                }
                if failed {
                    sleep(Duration::from_millis(200)).await;
                }
            }
        };
        if timeout(RELEASE_TIMEOUT, emptied).await.is_err() {
            tracing::warn!(
                "cannot release the Lease at the exit of the operator; another operator becomes the leader when the Lease expires"
            );
        }
    }
}

/// An identity that is unique among running operators. It contains the UID of the pod if that is known, so that a restarted container
/// holds the Lease at once. Otherwise it contains a random text.
#[must_use]
pub fn identity(host: Option<&str>, pod_uid: Option<&str>, random: &str) -> String {
    format!(
        "{}_{}",
        host.unwrap_or("operator"),
        pod_uid.unwrap_or(random)
    )
}
