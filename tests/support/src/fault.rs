//! Faults between an operator and the API server or another service, and the places where each is possible.

/// A fault of a request, a list, a watch, an event or a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The request is not sent.
    NotSent,
    /// The API server carries the request out, and the response is lost.
    AnswerLost,
    /// The API server rejects the request with this code.
    Refused(u16),
    /// The request gets no response, until the operator's own time-out.
    Hangs {
        /// Whether the API server carries the request out.
        carried_out: bool,
    },
    /// The operator is killed at the request. A new one starts with empty memory.
    Killed {
        /// Whether the API server carries the request out.
        carried_out: bool,
    },
    /// The operator is killed after the request was carried out, and the API server of the new one lags. The first
    /// lists of VMs, or of all kinds, show the state before the step. The newer changes follow later, those of VMs
    /// last.
    KilledBehind {
        /// Whether the lists of all kinds lag.
        all: bool,
    },
    /// As `KilledBehind`, after a creation. The lists of all kinds show the state before the previous write to that
    /// kind: the deleted object with the same name.
    KilledFarBehind,
    /// Another client deletes the finished pod between the two phases in which the API server carries this deletion
    /// out. The response shows the pod without its version, and arrives after the event of its deletion.
    Overtaken,
    /// A list shows the state at the creation of the layer, and the watch continues from there with a delay.
    Stale,
    /// As `Stale`, but with the state before the step: the VM before its change, with its children of that time.
    Past,
    /// The connection of a watch breaks before an event, and the operator connects again.
    Cut,
    /// As `Cut`, and the resource version has expired, so that a new list is needed.
    Forgotten,
    /// As `Forgotten`, and that list shows the state before the step.
    ForgottenPast,
    /// An event is delayed, or the response to a call.
    Late,
    /// An event is delivered twice.
    Twice,
    /// An event is delivered after the next one about another object.
    Swapped,
    /// A proxy answers in place of the service, with a page of its own.
    Garbage,
}

impl Fault {
    /// Faults of requests other than lists and watches.
    pub const OF_REQUESTS: [Self; 15] = [
        Self::NotSent,
        Self::AnswerLost,
        Self::Refused(403),
        Self::Refused(404),
        Self::Refused(409),
        Self::Refused(422),
        Self::Refused(429),
        Self::Refused(500),
        Self::Refused(503),
        Self::Hangs { carried_out: false },
        Self::Hangs { carried_out: true },
        Self::Killed { carried_out: false },
        Self::Killed { carried_out: true },
        Self::KilledBehind { all: false },
        Self::KilledBehind { all: true },
    ];
    /// Faults of pod deletions.
    pub const OF_POD_DELETIONS: [Self; 16] = with(Self::Overtaken);
    /// Faults of creations.
    pub const OF_CREATIONS: [Self; 16] = with(Self::KilledFarBehind);
    /// Faults of lists and watches. A 404 comes from an API server without the definition. 409 and 422 come only from a
    /// proxy.
    pub const OF_LISTS: [Self; 13] = [
        Self::NotSent,
        Self::Refused(403),
        Self::Refused(404),
        Self::Refused(409),
        Self::Refused(410),
        Self::Refused(422),
        Self::Refused(429),
        Self::Refused(500),
        Self::Refused(503),
        Self::Hangs { carried_out: false },
        Self::Killed { carried_out: false },
        Self::Stale,
        Self::Past,
    ];
    /// Faults of watch events.
    pub const OF_EVENTS: [Self; 6] = [
        Self::Cut,
        Self::Forgotten,
        Self::ForgottenPast,
        Self::Late,
        Self::Twice,
        Self::Swapped,
    ];

    /// Faults of calls to another service, which rejects credentials (401), the action (403), or one of too many calls (429, 503).
    pub const OF_CALLS: [Self; 13] = [
        Self::NotSent,
        Self::AnswerLost,
        Self::Refused(401),
        Self::Refused(403),
        Self::Refused(429),
        Self::Refused(500),
        Self::Refused(503),
        Self::Hangs { carried_out: false },
        Self::Hangs { carried_out: true },
        Self::Killed { carried_out: false },
        Self::Killed { carried_out: true },
        Self::Late,
        Self::Garbage,
    ];

    /// The faults that are possible at a place.
    #[must_use]
    pub fn at(place: &str) -> &'static [Self] {
        match place.split(' ').next() {
            Some("CALL") => &Self::OF_CALLS,
            Some("EVENT") => &Self::OF_EVENTS,
            Some("LIST") => &Self::OF_LISTS,
            // All except the old states.
            Some("WATCH") => &Self::OF_LISTS[..Self::OF_LISTS.len() - 2],
            // The operator never reads events again.
            Some("POST") if !place.starts_with("POST events#") => &Self::OF_CREATIONS,
            Some("DELETE") if place.starts_with("DELETE pods/") => &Self::OF_POD_DELETIONS,
            _ => &Self::OF_REQUESTS,
        }
    }
}

/// The faults of requests and one more.
const fn with(another: Fault) -> [Fault; 16] {
    let mut faults = [another; 16];
    let (of_requests, _) = faults.split_at_mut(15);
    of_requests.copy_from_slice(&Fault::OF_REQUESTS);
    faults
}
