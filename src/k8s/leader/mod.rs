//! (client) One operator at a time works on the VMs of a namespace: the one that holds the Lease there.
//!
//! ```text
//!               look: free, or not renewed for its duration
//!   Waiting ──────────────────────────────────────────────► Leading(until) ──renewed──┐
//!                                                            │    │    ▲──────────────┘
//!                       asked to end, all reconciles ended   │    │ not renewed in time, or another holds it
//!                       Waiting, Lease emptied  ◄────────────┘    └──► Waiting, the controllers start again
//! ```
//!
//! A leader that cannot renew stops: its client sends no write after `until` (see [`crate::k8s::client::gate`]), and its controllers
//! start again from empty stores, as those of a new candidate. The Lease is in the namespace that is watched, so that it also keeps apart operators of which one runs
//! elsewhere, as outside of the cluster. The rules are [`election`]'s.

pub mod election;
#[cfg(test)]
mod tests;

use election::{Answer, Ask, Election, Timing};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// A request that takes longer is given up; the next one has a connection of its own.
const ATTEMPT: Duration = Duration::from_secs(4);
/// How long the Lease is tried to be emptied at the end.
const RELEASE: Duration = Duration::from_secs(3);

/// Whether this operator may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// There is no election.
    Alone,
    /// Another may lead.
    Waiting,
    /// It leads until then.
    Leading(Instant),
}

/// Whether this operator leads, for all to see. Clones tell the same.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Sender<Standing>);

impl Leadership {
    /// Of an operator that is the only one by other means.
    #[must_use]
    pub fn alone() -> Self {
        Self(watch::Sender::new(Standing::Alone))
    }

    /// Of an operator that has to be elected.
    #[must_use]
    pub fn waiting() -> Self {
        Self(watch::Sender::new(Standing::Waiting))
    }

    /// Of an operator that leads for that time.
    #[cfg(test)]
    pub(super) fn leading_for(time: Duration) -> Self {
        Self(watch::Sender::new(Standing::Leading(Instant::now() + time)))
    }

    /// Whether it leads now.
    #[must_use]
    pub fn leads(&self) -> bool {
        match *self.0.borrow() {
            Standing::Alone => true,
            Standing::Waiting => false,
            Standing::Leading(until) => Instant::now() < until,
        }
    }

    /// Returns when it leads.
    pub async fn elected(&self) {
        // The sender lives as long as this.
        let _ = self
            .0
            .subscribe()
            .wait_for(|standing| *standing != Standing::Waiting)
            .await;
    }

    fn set(&self, standing: Standing) {
        self.0.send_replace(standing);
    }
}

/// The lead is lost: another may have it by now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// Another holds the Lease.
    #[error("the Lease was taken over by {0}")]
    TakenOver(String),
    /// It was not renewed in time.
    #[error(
        "the Lease could not be renewed within {0:?}; the API server answers slowly or not at all"
    )]
    NotRenewed(Duration),
}

/// Stands for election.
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
    /// A candidate for that Lease with that identity, which no other that runs may have. `leases` needs a client of its own: it has to
    /// write before there is a leader, and must not wait behind others.
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

    /// Waits for the lead and keeps it. Returns when it is lost.
    pub async fn stand(&mut self) -> Lost {
        let mut told = String::new();
        loop {
            match self.turn().await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(lost) => {
                    self.resign();
                    return lost;
                }
            }
            let holder = self.election.holder();
            if self.election.leads_until().is_none() && holder != told && !holder.is_empty() {
                tracing::info!(holder, "another operator leads; waiting");
                holder.clone_into(&mut told);
            }
            let rest = self
                .election
                .leads_until()
                .map(|until| until.saturating_sub(self.now()));
            sleep(rest.map_or(self.timing.pause, |rest| rest.min(self.timing.pause))).await;
            self.election.next_turn();
        }
    }

    /// Asks once. Says whether to ask again at once.
    async fn turn(&mut self) -> Result<bool, Lost> {
        let led = self.election.leads_until().is_some();
        if led && !self.election.leads(self.now()) {
            return Err(Lost::NotRenewed(self.timing.lead));
        }
        let ask = self.election.ask(self.now(), (self.time)());
        if ask == Ask::Nothing {
            return Ok(false);
        }
        let began = self.now();
        let rest = self
            .election
            .leads_until()
            .map_or(ATTEMPT, |until| ATTEMPT.min(until.saturating_sub(began)));
        let answer = self.send(&ask, rest).await;
        // A look is followed by what it is for, a conflict by a look.
        let again = matches!(
            (&ask, &answer),
            (Ask::Get, Answer::Lease(_) | Answer::Absent) | (_, Answer::Conflict)
        );
        self.election.answered(&ask, began, self.now(), answer);
        match self.election.leads_until() {
            Some(until) => {
                self.leadership.set(Standing::Leading(self.began + until));
                if !led {
                    tracing::info!("this operator leads");
                }
            }
            None if led => return Err(Lost::TakenOver(self.election.holder().to_owned())),
            None => {}
        }
        Ok(again)
    }

    async fn send(&self, ask: &Ask, limit: Duration) -> Answer {
        let params = PostParams::default();
        let request = async {
            match ask {
                Ask::Create(lease) => self.leases.create(&params, lease).await,
                Ask::Replace(lease) => self.leases.replace(&self.lease, &params, lease).await,
                Ask::Get | Ask::Nothing => self.leases.get(&self.lease).await,
            }
        };
        match timeout(limit, request).await {
            Ok(Ok(lease)) => Answer::Lease(Box::new(lease)),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Answer::Absent,
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Answer::Conflict,
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot get or renew the Lease; trying again");
                Answer::Failed
            }
            Err(_) => {
                tracing::warn!(
                    "the API server does not answer to a request for the Lease within {limit:?}"
                );
                Answer::Failed
            }
        }
    }

    fn resign(&mut self) {
        self.leadership.set(Standing::Waiting);
        self.election.resign();
    }

    /// Leads no more, and lets another lead at once. To be called when no write is under way any more.
    pub async fn release(mut self) {
        if self.election.leads_until().is_none() {
            return;
        }
        self.resign();
        let emptied = async {
            loop {
                let ask = self.election.release((self.time)());
                if ask == Ask::Nothing {
                    return;
                }
                let answer = self.send(&ask, RELEASE).await;
                let failed = matches!(answer, Answer::Failed);
                if self.election.released(&ask, answer) {
                    return;
                }
                if failed {
                    sleep(Duration::from_millis(200)).await;
                }
            }
        };
        if timeout(RELEASE, emptied).await.is_err() {
            tracing::warn!("cannot empty the Lease; another operator leads when it has run out");
        }
    }
}

/// An identity that no other operator that runs has: of the pod, if it is known, as of its containers one runs at a
/// time, and the next may go on at once; else of the process.
#[must_use]
pub fn identity(host: Option<&str>, pod_uid: Option<&str>, random: &str) -> String {
    format!(
        "{}_{}",
        host.unwrap_or("operator"),
        pod_uid.unwrap_or(random)
    )
}
