//! (pure) The newest warning about each pod and claim, from the namespace's events.
//!
//! Some causes are published as events only, such as a volume that cannot be mounted. The API server keeps events for
//! an hour and a busy namespace has many, so little is kept of few: one for each object, cut to [`LONGEST_NOTE`],
//! at most [`MOST`] in all, of which the oldest goes first. That is below 4 MiB.

use super::views::EventView;
use k8s_openapi::jiff::Timestamp;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Bytes of a note that are kept.
pub const LONGEST_NOTE: usize = 600;
/// Objects that a warning is kept of.
pub const MOST: usize = 4096;

/// A warning about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Reason, as it was published.
    pub reason: String,
    /// What it says.
    pub note: String,
    /// When it was published last.
    pub at: Timestamp,
}

/// The warnings.
pub struct Warnings {
    kept: Mutex<Kept>,
    ready: watch::Sender<bool>,
}

#[derive(Default)]
struct Kept {
    /// By UID of the object.
    warnings: HashMap<String, Arc<Warning>>,
    /// The same, by time.
    by_time: BTreeSet<(Timestamp, String)>,
}

impl Default for Warnings {
    fn default() -> Self {
        Self { kept: Mutex::default(), ready: watch::Sender::new(false) }
    }
}

/// Warnings that come with ordinary starts, or tell what a pod's own status tells better.
const NO_NEWS: [&str; 6] =
    ["BackOff", "DNSConfigForming", "Failed", "FailedScheduling", "FailedToRetrieveImagePullSecret", "Unhealthy"];
/// What the kubelet says in passing while it gets to know of a new pod.
const IN_PASSING: [&str; 3] = ["failed to sync configmap cache", "failed to sync secret cache", "not registered"];

impl Warnings {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in an event about a pod or a claim. Says whether it is news; what is no warning of ours is none.
    pub fn saw(&self, event: &EventView) -> bool {
        let (Some(reason), Some(uid), Some(at)) = (&event.reason, &event.regarding.uid, event.at()) else {
            return false;
        };
        let note = event.note.as_deref().unwrap_or_default();
        let about = event.regarding.kind.as_deref();
        let ours = matches!(about, Some("Pod" | "PersistentVolumeClaim"))
            && event.type_.as_deref() == Some("Warning")
            && !NO_NEWS.contains(&reason.as_str())
            && !IN_PASSING.iter().any(|words| note.contains(words));
        if !ours {
            return false;
        }
        let note = note.get(..note.floor_char_boundary(LONGEST_NOTE)).unwrap_or_default().to_owned();
        let warning = Warning { reason: reason.clone(), note, at };
        let mut kept = self.lock();
        let before = kept.warnings.get(uid).cloned();
        if before.as_ref().is_some_and(|before| before.at > at) {
            return false;
        }
        if let Some(before) = &before {
            kept.by_time.remove(&(before.at, uid.clone()));
        }
        kept.by_time.insert((at, uid.clone()));
        let news = before.is_none_or(|before| (&before.reason, &before.note) != (&warning.reason, &warning.note));
        kept.warnings.insert(uid.clone(), Arc::new(warning));
        while kept.warnings.len() > MOST {
            let Some((_, oldest)) = kept.by_time.pop_first() else { break };
            kept.warnings.remove(&oldest);
        }
        news
    }

    /// The newest warning about the object of that UID.
    #[must_use]
    pub fn of(&self, uid: Option<&String>) -> Option<Arc<Warning>> {
        self.lock().warnings.get(uid?).cloned()
    }

    /// The first list is complete.
    pub fn listed(&self) {
        self.ready.send_replace(true);
    }

    /// Returns when the first list is complete.
    pub async fn ready(&self) {
        // The sender lives as long as this, so that this cannot fail.
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// How many objects a warning is known of.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().warnings.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn event(uid: &str, reason: &str, note: &str, second: i64) -> Value {
        json!({
            "metadata": {"name": "e"}, "type": "Warning", "reason": reason, "note": note,
            "regarding": {"kind": "Pod", "name": "vm", "uid": uid},
            "deprecatedLastTimestamp": Timestamp::from_second(second).unwrap(),
        })
    }

    fn saw(warnings: &Warnings, event: Value) -> bool {
        warnings.saw(&serde_json::from_value(event).unwrap())
    }

    fn note(warnings: &Warnings, uid: &str) -> Option<String> {
        warnings.of(Some(&uid.to_owned())).map(|warning| warning.note.clone())
    }

    #[test]
    fn the_newest_warning_about_an_object_is_kept_and_told_once() {
        let warnings = Warnings::default();
        assert!(saw(&warnings, event("a", "FailedMount", "first", 10)));
        assert!(!saw(&warnings, event("a", "FailedMount", "first", 20)), "a repetition is no news");
        assert!(!saw(&warnings, event("a", "FailedMount", "older", 15)));
        assert_eq!(note(&warnings, "a").as_deref(), Some("first"));
        assert!(saw(&warnings, event("a", "FailedMount", "second", 30)));
        assert_eq!((note(&warnings, "a").as_deref(), warnings.len()), (Some("second"), 1));
    }

    #[test]
    fn what_says_nothing_about_a_start_is_not_kept() {
        let warnings = Warnings::default();
        let mut normal = event("a", "FailedMount", "", 1);
        normal["type"] = "Normal".into();
        let mut of_a_node = event("a", "FailedMount", "", 1);
        of_a_node["regarding"]["kind"] = "Node".into();
        for event in [
            normal,
            of_a_node,
            event("a", "DNSConfigForming", "", 1),
            event("a", "FailedMount", "MountVolume.SetUp failed: failed to sync configmap cache: timed out", 1),
            json!({"metadata": {}, "type": "Warning", "reason": "FailedMount"}),
            json!({"metadata": {}}),
        ] {
            assert!(!saw(&warnings, event.clone()), "{event}");
        }
        assert!(warnings.is_empty());
    }

    #[test]
    fn times_are_found_wherever_publishers_put_them() {
        let time = "2026-01-01T00:00:01.000000Z";
        for times in [
            json!({"eventTime": time}),
            json!({"eventTime": "2020-01-01T00:00:00.000000Z", "series": {"count": 2, "lastObservedTime": time}}),
            json!({"deprecatedLastTimestamp": "2026-01-01T00:00:01Z", "eventTime": null}),
            json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:01Z"}}),
        ] {
            let mut it = json!({
                "metadata": {}, "type": "Warning", "reason": "FailedMount",
                "regarding": {"kind": "Pod", "name": "vm", "uid": "a"},
            });
            it.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
            let warnings = Warnings::default();
            assert!(saw(&warnings, it), "{times}");
            assert_eq!(warnings.of(Some(&"a".to_owned())).unwrap().at, time.parse().unwrap(), "{times}");
        }
    }

    #[test]
    fn a_flood_of_warnings_takes_little_memory_and_the_newest_stay() {
        let warnings = Warnings::default();
        let long = "ä".repeat(10_000);
        for n in 0..20_000 {
            saw(&warnings, event(&format!("uid-{n}"), "FailedMount", &long, n));
        }
        assert_eq!(warnings.len(), MOST);
        assert!(note(&warnings, "uid-19999").is_some_and(|note| note.len() <= LONGEST_NOTE));
        assert_eq!(note(&warnings, "uid-0"), None);
        assert_eq!(warnings.lock().by_time.len(), MOST);
    }
}
