//! What can go wrong between an operator and the API server, and where.

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The request is not sent.
    NotSent,
    /// It is carried out, and the answer is lost.
    AnswerLost,
    /// It is answered with that code and not carried out.
    Refused(u16),
    /// It is never answered, and carried out or not: the operator's own deadline ends it.
    Hangs {
        /// Whether the API server carries it out.
        carried_out: bool,
    },
    /// The operator is killed before or after it is carried out, and a new one starts with empty memory.
    Killed {
        /// Whether the API server carries it out.
        carried_out: bool,
    },
    /// It is killed after it is carried out, and the API server that the new one asks is behind: its first lists of VMs, or of
    /// all kinds, show what was there before the step. It hears of what is newer later; of VMs last.
    KilledBehind {
        /// Whether the lists of all kinds are behind.
        all: bool,
    },
    /// The same after a creation, and the lists of all kinds show what was there before the write to that kind that came before
    /// this one: the object of the same name that was deleted since.
    KilledFarBehind,
    /// Another client deletes the pod, which has ended, between the two phases in which the API server carries this deletion
    /// out. The answer shows the pod without its version, and arrives after the event of its end.
    Overtaken,
    /// A list shows what was there when the layer was made, and the watch goes on from there, late.
    Stale,
    /// The same with what was there before the step: the VM before its change, with all that it had then.
    Past,
    /// The connection of a watch is cut before an event, and is made again.
    Cut,
    /// The same, and the API server has forgotten the past: a new list is needed.
    Forgotten,
    /// The same, and that list shows what was there before the step.
    ForgottenPast,
    /// An event comes late.
    Late,
    /// An event comes twice.
    Twice,
    /// An event comes after the next one about another object.
    Swapped,
}

impl Fault {
    /// Of requests that are no lists and no watches.
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
    /// The same of deletions of pods.
    pub const OF_POD_DELETIONS: [Self; 16] = with(Self::Overtaken);
    /// The same of creations.
    pub const OF_CREATIONS: [Self; 16] = with(Self::KilledFarBehind);
    /// Of lists and watches. A 404 comes from an API server that does not know the definition (yet, or any more); 409 and 422
    /// come only from a proxy.
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
    /// Of events of a watch.
    pub const OF_EVENTS: [Self; 6] = [
        Self::Cut,
        Self::Forgotten,
        Self::ForgottenPast,
        Self::Late,
        Self::Twice,
        Self::Swapped,
    ];

    /// Those that can happen at a place.
    #[must_use]
    pub fn at(place: &str) -> &'static [Self] {
        match place.split(' ').next() {
            Some("EVENT") => &Self::OF_EVENTS,
            Some("LIST") => &Self::OF_LISTS,
            // All but an old state.
            Some("WATCH") => &Self::OF_LISTS[..Self::OF_LISTS.len() - 2],
            // Events are no objects that an operator looks at again.
            Some("POST") if !place.starts_with("POST events#") => &Self::OF_CREATIONS,
            Some("DELETE") if place.starts_with("DELETE pods/") => &Self::OF_POD_DELETIONS,
            _ => &Self::OF_REQUESTS,
        }
    }
}

/// The faults of requests, and another one.
const fn with(another: Fault) -> [Fault; 16] {
    let mut faults = [another; 16];
    let (of_requests, _) = faults.split_at_mut(15);
    of_requests.copy_from_slice(&Fault::OF_REQUESTS);
    faults
}
