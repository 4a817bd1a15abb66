//! (pure) Where the time of a VM's start went: from the change of the VM to the booted guest, in steps that follow each
//! other without a gap.
//!
//! ```text
//!  VM changed ─queue─► reconcile ─objects─► ConfigMap, claims, Secret ─pod─► pod made ─schedule─► node found
//!     ─container─► runner started ─qemu─► QEMU started ─monitor─► QEMU answers ─guest─► guest runs ─boot─► guest has booted
//! ```
//!
//! Times up to the node are the operator's own, of the moment at which it saw what happened: those in the cluster's objects
//! are whole seconds. The runner's are its own durations ([`StartTimes`]), counted back from the moment at which the operator
//! heard that the guest runs, so that no two clocks are compared. What the runner's word needed to get here, some
//! milliseconds, is therefore part of `container`.
//!
//! | module | what |
//! |---|---|
//! | `otlp` | a trace as OpenTelemetry has it (pure) |
//! | `export` | sends it where the settings say (client) |

pub mod export;
pub mod otlp;

use crate::api::start_times::StartTimes;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// From one moment to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What was done.
    pub name: &'static str,
    /// When it began.
    pub from: Timestamp,
    /// When it was done.
    pub to: Timestamp,
}

impl Span {
    /// How long it took, in milliseconds with one decimal. Clocks that are set back make no negative time.
    #[must_use]
    pub fn millis(&self) -> f64 {
        (self.to.duration_since(self.from).as_secs_f64().max(0.0) * 10_000.0).round() / 10.0
    }
}

/// Why a VM is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It was made.
    Created,
    /// It was changed.
    Changed,
    /// Its last pod has ended, or what it waited for is there.
    Again,
}

impl Cause {
    /// In a word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Again => "again",
        }
    }
}

/// A change of a VM, as the watch showed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The generation that came with it.
    pub generation: i64,
    /// When it was seen.
    pub at: Timestamp,
    /// For a VM that was made: how many whole seconds it was there before that, which are many where no operator ran.
    pub unseen: Option<i64>,
}

/// What a reconcile has made.
#[derive(Clone, Debug)]
pub struct Made {
    /// When the reconcile began.
    pub began: Timestamp,
    /// What was written before the pod, kind by kind, at the same time.
    pub objects: Vec<Span>,
    /// When the request for the pod was sent.
    pub asked: Timestamp,
    /// When the pod was there.
    pub made: Timestamp,
    /// Its UID.
    pub pod_uid: String,
}

/// A VM's start, up to its pod.
#[derive(Clone, Debug)]
pub struct Start {
    /// The change that it follows from, if there was one.
    pub change: Option<Change>,
    /// What was made for it.
    pub made: Made,
    /// When a node was found for the pod.
    pub scheduled: Option<Timestamp>,
}

/// What is told of a start: from the reason to the running guest, or from there to the booted one.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The VM.
    pub vm: String,
    /// The pod, whose UID names the trace: an operator that comes later tells of the same one.
    pub pod_uid: String,
    /// What the VM was started for; nothing in a trace that goes on.
    pub cause: Option<Cause>,
    /// Whole seconds before the first step.
    pub unseen: Option<i64>,
    /// The steps, one after the other.
    pub steps: Vec<Span>,
    /// Parts of the step `objects`.
    pub objects: Vec<Span>,
}

fn before(moment: Timestamp, millis: u64) -> Timestamp {
    let ago = SignedDuration::from_millis(i64::try_from(millis).unwrap_or(i64::MAX));
    moment.checked_sub(ago).unwrap_or(moment)
}

impl Start {
    fn cause(&self) -> Cause {
        match self.change {
            Some(Change { unseen: Some(_), .. }) => Cause::Created,
            Some(_) => Cause::Changed,
            None => Cause::Again,
        }
    }

    /// The guest runs: all steps to there. `times` is what the runner tells, `now` when it was heard.
    #[must_use]
    pub fn running(self, vm: &str, times: Option<StartTimes>, now: Timestamp) -> Trace {
        let cause = self.cause();
        let Self { change, made: Made { began, objects, asked, made, pod_uid }, scheduled } = self;
        let mut ends =
            vec![("queue", Some(began)), ("objects", Some(asked)), ("pod", Some(made)), ("schedule", scheduled)];
        let scheduled = scheduled.unwrap_or(made);
        match times.and_then(|times| Some((times, times.guest?))) {
            Some((times, guest)) => {
                let at = |step: u64| before(now, guest.saturating_sub(step)).max(scheduled);
                let own = [("container", Some(0)), ("qemu", times.qemu), ("monitor", times.monitor)];
                ends.extend(own.map(|(name, step)| (name, step.map(at))));
                ends.push(("guest", Some(now)));
            }
            // A runner that tells no times.
            None => ends.push(("container", Some(now))),
        }
        Trace {
            vm: vm.to_owned(),
            pod_uid,
            cause: Some(cause),
            unseen: change.and_then(|change| change.unseen),
            steps: one_after_another(change.map_or(began, |change| change.at), ends),
            objects,
        }
    }
}

fn one_after_another(begin: Timestamp, ends: Vec<(&'static str, Option<Timestamp>)>) -> Vec<Span> {
    let mut from = begin;
    let known = ends.into_iter().filter_map(|(name, to)| Some((name, to?)));
    known.map(|(name, to)| Span { name, from: std::mem::replace(&mut from, to), to }).collect()
}

impl Trace {
    /// The guest has booted, as was heard now. Nothing, if the runner does not tell how long that took.
    #[must_use]
    pub fn booted(vm: &str, pod_uid: &str, times: StartTimes, now: Timestamp) -> Option<Self> {
        let took = times.boot?.checked_sub(times.guest?)?;
        let (vm, pod_uid) = (vm.to_owned(), pod_uid.to_owned());
        let steps = vec![Span { name: "boot", from: before(now, took), to: now }];
        Some(Self { vm, pod_uid, cause: None, unseen: None, steps, objects: Vec::new() })
    }

    /// From the first step's begin to the last one's end.
    #[must_use]
    pub fn whole(&self) -> Option<Span> {
        let (first, last) = (self.steps.first()?, self.steps.last()?);
        Some(Span { name: "start", from: first.from, to: last.to })
    }

    /// Writes it to the log: a line, with all durations as fields.
    pub fn log(&self) {
        let step = |name: &str| self.steps.iter().find(|step| step.name == name).map(Span::millis);
        let part = |name: &str| self.objects.iter().find(|part| part.name == name).map(Span::millis);
        if self.cause.is_none() {
            tracing::info!(vm = self.vm, pod = self.pod_uid, boot_ms = step("boot"), "the guest has booted");
            return;
        }
        tracing::info!(
            vm = self.vm,
            pod = self.pod_uid,
            cause = self.cause.map(Cause::as_str),
            unseen_s = self.unseen,
            total_ms = self.whole().as_ref().map(Span::millis),
            queue_ms = step("queue"),
            objects_ms = step("objects"),
            config_map_ms = part("config_map"),
            claims_ms = part("claims"),
            secret_ms = part("secret"),
            pod_ms = step("pod"),
            schedule_ms = step("schedule"),
            container_ms = step("container"),
            qemu_ms = step("qemu"),
            monitor_ms = step("monitor"),
            guest_ms = step("guest"),
            "the guest runs"
        );
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(1_767_268_800_000 + ms).unwrap()
    }

    pub fn start() -> Start {
        Start {
            change: Some(Change { generation: 1, at: at(0), unseen: Some(0) }),
            made: Made {
                began: at(1),
                objects: vec![Span { name: "config_map", from: at(1), to: at(9) }],
                asked: at(12),
                made: at(20),
                pod_uid: "0a0b0c0d-1111-2222-3333-444455556666".to_owned(),
            },
            scheduled: Some(at(30)),
        }
    }

    fn millis(trace: &Trace) -> Vec<(&'static str, f64)> {
        trace.steps.iter().map(|step| (step.name, step.millis())).collect()
    }

    #[test]
    fn the_steps_follow_each_other_without_a_gap_and_make_up_the_whole() {
        let times = StartTimes { qemu: Some(7), monitor: Some(103), guest: Some(111), boot: None };
        let trace = start().running("vm", Some(times), at(900));
        let expected = [
            ("queue", 1.0),
            ("objects", 11.0),
            ("pod", 8.0),
            ("schedule", 10.0),
            ("container", 759.0),
            ("qemu", 7.0),
            ("monitor", 96.0),
            ("guest", 8.0),
        ];
        assert_eq!(millis(&trace), expected);
        let whole = trace.whole().unwrap();
        assert_eq!((whole.millis(), whole.from, whole.to), (900.0, at(0), at(900)));
        assert!(trace.steps.windows(2).all(|pair| pair[0].to == pair[1].from));
    }

    #[test]
    fn what_nobody_told_is_part_of_the_step_behind_it() {
        let unscheduled = Start { scheduled: None, ..start() };
        assert_eq!(millis(&unscheduled.running("vm", None, at(50)))[2..], [("pod", 8.0), ("container", 30.0)]);
        // A runner that has begun before the operator could see that there is a node.
        let times = StartTimes { qemu: Some(7), monitor: None, guest: Some(40), boot: None };
        let told = millis(&start().running("vm", Some(times), at(60)));
        assert_eq!(told[3..], [("schedule", 10.0), ("container", 0.0), ("qemu", 0.0), ("guest", 30.0)]);
    }

    #[test]
    fn a_booted_guest_goes_on_with_the_trace_of_its_pod() {
        let times = StartTimes { guest: Some(100), boot: Some(2100), ..StartTimes::default() };
        let trace = Trace::booted("vm", "uid", times, at(5000)).unwrap();
        assert_eq!((trace.steps[0].from, trace.steps[0].to), (at(3000), at(5000)));
        assert_eq!(Trace::booted("vm", "uid", StartTimes::default(), at(0)), None);
    }
}
