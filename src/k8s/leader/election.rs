//! (pure) The rules of leader election: the next request for the Lease, and the meaning of its response.
//!
//! Times are those of a monotonic clock with an arbitrary start. Each operator has its own clock, and clocks are never
//! compared. The timestamps in the Lease are for people only.
//!
//! Two operators never lead at once. A leader leads until [`Timing::renew_deadline`] after it *sent* the renewal that the server
//! accepted. Others see that renewal then or later, and wait from that time for the duration of the Lease, which is
//! longer. A write carries the resource version that it is based on, so only one of several candidates acquires the
//! Lease. One case is not covered: someone deletes or empties a held Lease by hand.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// The times of the election. The defaults are those of the Kubernetes components.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The time after which a Lease without renewals expires. Default 15 s, in whole seconds.
    pub lease_duration: Duration,
    /// The time for which a leader leads after a renewal. Default 10 s. A request may be in progress for the rest of
    /// the Lease.
    pub renew_deadline: Duration,
    /// The delay between two attempts to acquire or to renew the Lease. Default 2 s.
    pub retry_period: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let (lease_duration, renew_deadline, retry_period) = (15, 10, 2);
        Self {
            lease_duration: Duration::from_secs(lease_duration),
            renew_deadline: Duration::from_secs(renew_deadline),
            retry_period: Duration::from_secs(retry_period),
        }
    }
}

/// A request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum LeaseRequest {
    /// Get the Lease.
    Get,
    /// Create the Lease.
    Create(Lease),
    /// Replace the Lease, if it still has this version.
    Replace(Lease),
    /// No request for now.
    Nothing,
}

/// The result of a request.
#[derive(Clone, Debug)]
pub enum LeaseResponse {
    /// The present Lease.
    Lease(Box<Lease>),
    /// The Lease does not exist.
    Absent,
    /// Another program has changed the Lease in between.
    Conflict,
    /// The result is unknown: the request may have been carried out.
    Failed,
}

/// The known state of the Lease.
#[derive(Clone, Debug)]
enum Known {
    Nothing,
    Absent,
    Lease(Box<Lease>),
}

/// The view of one operator on the election.
#[derive(Clone, Debug)]
pub struct Election {
    name: String,
    identity: String,
    timing: Timing,
    known: Known,
    /// The content of the Lease when it was last seen, and the time since when it has had this content.
    seen: Option<(LeaseSpec, Duration)>,
    leads_until: Option<Duration>,
}

impl Election {
    /// A candidate without knowledge of the Lease. Its identity must be unique among running operators.
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

    /// The time until which it leads.
    #[must_use]
    pub fn leads_until(&self) -> Option<Duration> {
        self.leads_until
    }

    /// Whether it leads at that time.
    #[must_use]
    pub fn leads(&self, now: Duration) -> bool {
        self.leads_until.is_some_and(|until| now < until)
    }

    /// The last known holder of the Lease.
    #[must_use]
    pub fn holder(&self) -> &str {
        self.seen
            .as_ref()
            .and_then(|(spec, _)| spec.holder_identity.as_deref())
            .unwrap_or_default()
    }

    /// The next request. `time` goes into the Lease, for people.
    #[must_use]
    pub fn request(&self, now: Duration, time: Timestamp) -> LeaseRequest {
        match &self.known {
            Known::Nothing => LeaseRequest::Get,
            _ if !self.is_holder() && self.is_held(now) => LeaseRequest::Nothing,
            Known::Absent => LeaseRequest::Create(self.renewed_lease(Lease::default(), time)),
            Known::Lease(lease) => {
                LeaseRequest::Replace(self.renewed_lease(lease.as_ref().clone(), time))
            }
        }
    }

    /// Processes the response to the request that was sent at `began`.
    pub fn handle_response(
        &mut self,
        request: &LeaseRequest,
        began: Duration,
        now: Duration,
        response: LeaseResponse,
    ) {
        match response {
            LeaseResponse::Lease(lease) => {
                self.record_observed(&lease, now);
                if !matches!(request, LeaseRequest::Get) {
                    self.leads_until = Some(began + self.timing.renew_deadline);
                } else if !self.is_holder() && self.is_held(now) {
                    self.leads_until = None;
                }
                self.known = Known::Lease(lease);
            }
            // The holder may not know yet that its Lease was deleted, so its last seen content is kept.
            LeaseResponse::Absent => self.known = Known::Absent,
            LeaseResponse::Conflict => self.known = Known::Nothing,
            LeaseResponse::Failed
                if self.leads_until.is_some() && !matches!(request, LeaseRequest::Get) => {}
            LeaseResponse::Failed => self.known = Known::Nothing,
        }
    }

    /// Starts the next attempt. An operator that does not lead reads the Lease again.
    pub fn start_attempt(&mut self) {
        if self.leads_until.is_none() {
            self.known = Known::Nothing;
        }
    }

    /// Gives up leadership, regardless of the Lease.
    pub fn resign(&mut self) {
        self.leads_until = None;
        self.known = Known::Nothing;
    }

    /// The next request of a release, which lets another operator lead immediately.
    #[must_use]
    pub fn release(&self, time: Timestamp) -> LeaseRequest {
        match &self.known {
            Known::Nothing => LeaseRequest::Get,
            Known::Lease(lease) if self.is_holder() => {
                let mut lease = lease.as_ref().clone();
                let spec = lease.spec.get_or_insert_default();
                (spec.holder_identity, spec.renew_time) =
                    (Some(String::new()), Some(MicroTime(time)));
                LeaseRequest::Replace(lease)
            }
            _ => LeaseRequest::Nothing,
        }
    }

    /// Processes the response to a request of [`Election::release`]. Returns whether the release is complete.
    pub fn released(&mut self, request: &LeaseRequest, response: LeaseResponse) -> bool {
        match response {
            LeaseResponse::Lease(lease) => {
                self.record_observed(&lease, Duration::ZERO);
                self.known = Known::Lease(lease);
                !matches!(request, LeaseRequest::Get) || !self.is_holder()
            }
            LeaseResponse::Absent => true,
            LeaseResponse::Conflict | LeaseResponse::Failed => {
                self.known = Known::Nothing;
                false
            }
        }
    }

    fn record_observed(&mut self, lease: &Lease, now: Duration) {
        let spec = lease.spec.clone().unwrap_or_default();
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != spec) {
            self.seen = Some((spec, now));
        }
    }

    fn is_holder(&self) -> bool {
        self.holder() == self.identity
    }

    /// Whether the last seen holder may still lead.
    fn is_held(&self, now: Duration) -> bool {
        let Some((spec, since)) = &self.seen else {
            return false;
        };
        // The holder's own duration: its version may have another default.
        let seconds = spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok());
        let duration = seconds.map_or(self.timing.lease_duration, Duration::from_secs);
        !self.holder().is_empty() && now < *since + duration
    }

    fn renewed_lease(&self, mut lease: Lease, time: Timestamp) -> Lease {
        lease.metadata.name = Some(self.name.clone());
        let was_holder = self.is_holder() && matches!(self.known, Known::Lease(_));
        let spec = lease.spec.get_or_insert_default();
        if !was_holder {
            spec.acquire_time = Some(MicroTime(time));
            spec.lease_transitions =
                Some(spec.lease_transitions.map_or(0, |n| n.saturating_add(1)));
        }
        spec.holder_identity = Some(self.identity.clone());
        spec.lease_duration_seconds = i32::try_from(self.timing.lease_duration.as_secs()).ok();
        spec.renew_time = Some(MicroTime(time));
        lease
    }
}
