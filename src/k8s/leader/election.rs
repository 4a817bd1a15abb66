//! (pure) The rules by which one of several operators leads: what to ask of the Lease, and what an answer means.
//!
//! Time is that of a clock that never goes back, from any beginning; each operator has its own and they are never
//! compared. What the Lease says of time is for people.
//!
//! Why two never lead at once: a leader leads until [`Timing::lead`] after it *sent* the renewal that the server took.
//! Others see that renewal at that moment at the earliest, and wait from then for the lease's whole duration, which is
//! longer. A write to the Lease carries the version that it is based on, so of several that claim it one wins. What
//! this cannot see: somebody who deletes or empties a held Lease by hand.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// How long what takes. The values are those that Kubernetes' own components have.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How long a Lease holds that nobody renews. Default 15 s; whole seconds.
    pub lease: Duration,
    /// How long a leader leads after a renewal. Default 10 s; the difference is what a request may still be on its way.
    pub lead: Duration,
    /// The pause between two looks, and between two renewals. Default 2 s.
    pub pause: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let (lease, lead, pause) = (15, 10, 2);
        Self {
            lease: Duration::from_secs(lease),
            lead: Duration::from_secs(lead),
            pause: Duration::from_secs(pause),
        }
    }
}

/// What to ask of the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// To read the Lease.
    Get,
    /// To create it.
    Create(Lease),
    /// To replace it, if it is still of this version.
    Replace(Lease),
    /// Nothing for now.
    Nothing,
}

/// What came of it.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The Lease as it is now.
    Lease(Box<Lease>),
    /// There is none.
    Absent,
    /// It was changed by somebody else meanwhile.
    Conflict,
    /// Nothing is known: it may have been carried out or not.
    Failed,
}

/// What is known of the Lease at this moment.
#[derive(Clone, Debug)]
enum Known {
    Nothing,
    Absent,
    Lease(Box<Lease>),
}

/// One operator's part in the election.
#[derive(Clone, Debug)]
pub struct Election {
    name: String,
    identity: String,
    timing: Timing,
    known: Known,
    /// What the Lease said when it was seen last, and since when it has said so.
    seen: Option<(LeaseSpec, Duration)>,
    leads_until: Option<Duration>,
}

impl Election {
    /// An operator that knows nothing yet. No other that runs may have its identity.
    #[must_use]
    pub fn new(name: &str, identity: &str, timing: Timing) -> Self {
        let (name, identity) = (name.to_owned(), identity.to_owned());
        Self {
            name,
            identity,
            timing,
            known: Known::Nothing,
            seen: None,
            leads_until: None,
        }
    }

    /// Until when it leads, if it does.
    #[must_use]
    pub fn leads_until(&self) -> Option<Duration> {
        self.leads_until
    }

    /// Whether it leads.
    #[must_use]
    pub fn leads(&self, now: Duration) -> bool {
        self.leads_until.is_some_and(|until| now < until)
    }

    /// Who holds the Lease, as far as is known.
    #[must_use]
    pub fn holder(&self) -> &str {
        self.seen
            .as_ref()
            .and_then(|(spec, _)| spec.holder_identity.as_deref())
            .unwrap_or_default()
    }

    /// What to ask next. `time` is for people.
    #[must_use]
    pub fn ask(&self, now: Duration, time: Timestamp) -> Ask {
        match &self.known {
            Known::Nothing => Ask::Get,
            _ if !self.is_mine() && self.is_held(now) => Ask::Nothing,
            Known::Absent => Ask::Create(self.claim(Lease::default(), time)),
            Known::Lease(lease) => Ask::Replace(self.claim(lease.as_ref().clone(), time)),
        }
    }

    /// Takes in the answer to what was asked at `began`.
    pub fn answered(&mut self, ask: &Ask, began: Duration, now: Duration, answer: Answer) {
        match answer {
            Answer::Lease(lease) => {
                self.saw(&lease, now);
                if !matches!(ask, Ask::Get) {
                    self.leads_until = Some(began + self.timing.lead);
                } else if !self.is_mine() && self.is_held(now) {
                    self.leads_until = None;
                }
                self.known = Known::Lease(lease);
            }
            // Who held it until it vanished may not know yet, so that what was seen of it stays.
            Answer::Absent => self.known = Known::Absent,
            Answer::Conflict => self.known = Known::Nothing,
            Answer::Failed if self.leads_until.is_some() && !matches!(ask, Ask::Get) => {}
            Answer::Failed => self.known = Known::Nothing,
        }
    }

    /// A pause is over: who does not lead looks anew.
    pub fn next_turn(&mut self) {
        if self.leads_until.is_none() {
            self.known = Known::Nothing;
        }
    }

    /// Leads no more, whatever the Lease says.
    pub fn resign(&mut self) {
        self.leads_until = None;
        self.known = Known::Nothing;
    }

    /// What to ask so that another can lead at once, if the Lease is this one's.
    #[must_use]
    pub fn release(&self, time: Timestamp) -> Ask {
        match &self.known {
            Known::Nothing => Ask::Get,
            Known::Lease(lease) if self.is_mine() => {
                let mut lease = lease.as_ref().clone();
                let spec = lease.spec.get_or_insert_default();
                (spec.holder_identity, spec.renew_time) =
                    (Some(String::new()), Some(MicroTime(time)));
                Ask::Replace(lease)
            }
            _ => Ask::Nothing,
        }
    }

    /// Takes in the answer to what [`Election::release`] asked. Says whether there is no more to do.
    pub fn released(&mut self, ask: &Ask, answer: Answer) -> bool {
        match answer {
            Answer::Lease(lease) => {
                self.saw(&lease, Duration::ZERO);
                self.known = Known::Lease(lease);
                !matches!(ask, Ask::Get) || !self.is_mine()
            }
            Answer::Absent => true,
            Answer::Conflict | Answer::Failed => {
                self.known = Known::Nothing;
                false
            }
        }
    }

    fn saw(&mut self, lease: &Lease, now: Duration) {
        let spec = lease.spec.clone().unwrap_or_default();
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != spec) {
            self.seen = Some((spec, now));
        }
    }

    fn is_mine(&self) -> bool {
        self.holder() == self.identity
    }

    /// Whether somebody may still lead by what was seen of the Lease.
    fn is_held(&self, now: Duration) -> bool {
        let Some((spec, since)) = &self.seen else {
            return false;
        };
        // The holder's own promise, as it may be of a version with another timing.
        let seconds = spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok());
        let duration = seconds.map_or(self.timing.lease, Duration::from_secs);
        !self.holder().is_empty() && now < *since + duration
    }

    fn claim(&self, mut lease: Lease, time: Timestamp) -> Lease {
        lease.metadata.name = Some(self.name.clone());
        let was_mine = self.is_mine() && matches!(self.known, Known::Lease(_));
        let spec = lease.spec.get_or_insert_default();
        if !was_mine {
            spec.acquire_time = Some(MicroTime(time));
            // How often it changed hands.
            spec.lease_transitions =
                Some(spec.lease_transitions.map_or(0, |n| n.saturating_add(1)));
        }
        spec.holder_identity = Some(self.identity.clone());
        spec.lease_duration_seconds = i32::try_from(self.timing.lease.as_secs()).ok();
        spec.renew_time = Some(MicroTime(time));
        lease
    }
}
