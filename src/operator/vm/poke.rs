//! (pure) A change of a running VM is confirmed, not hoped for.
//!
//! The kubelet looks at a pod's volumes when the pod changes, and may do so before it has heard of the new ConfigMap; then
//! it looks again after a minute or more. The runner tells which generation of the VM it has followed: until that is the
//! newest, the pod is changed once more after 1 s, 2 s, 4 s … 60 s. A runner that never tells (one of the reference, or of
//! another version) is not waited for.
//!
//! What changes without a generation, a password or an image that has been fetched, is confirmed by nothing: there the pod
//! is changed twice more, after 1 s and 2 s, by when the kubelet has heard.

use super::observe::Observed;
use crate::api::{conditions, names};
use crate::operator::backoff::pause;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The longest pause before the next time.
const LONGEST: Duration = Duration::from_secs(60);
/// After so many times, which take three minutes, the kubelet has looked by itself too: it is not that.
const MOST: u32 = 8;
/// The same where nothing confirms.
const MOST_BLIND: u32 = 2;

/// What stands in the pod's annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Poked {
    generation: i64,
    times: u32,
    last: Timestamp,
    /// The generation was confirmed before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    blind: bool,
}

impl Poked {
    fn most(self) -> u32 {
        if self.blind { MOST_BLIND } else { MOST }
    }

    fn pause(self) -> Duration {
        pause(self.times.saturating_add(1)).min(LONGEST)
    }

    /// How long the next time has to be waited for.
    fn left(self, now: Timestamp) -> Duration {
        // A time that lies ahead was noted by a clock that was wrong: then it is due.
        let Ok(passed) = Duration::try_from(now.duration_since(self.last)) else { return Duration::ZERO };
        self.pause().saturating_sub(passed)
    }
}

/// The generation that there is, whether the runner has confirmed it already, and what was done since.
struct Change {
    generation: i64,
    blind: bool,
    poked: Option<Poked>,
}

/// Nothing for a machine that does not run, or whose runner never tells.
fn change(observed: &Observed) -> Option<Change> {
    let pod = observed.own_pod().filter(|pod| !pod.has_ended() && pod.metadata.deletion_timestamp.is_none())?;
    let generation = observed.vm.metadata.generation?;
    if !conditions::is_true(observed.conditions(), conditions::RUNNING) {
        return None;
    }
    let told = conditions::find(observed.conditions(), conditions::CONFIG_IN_SYNC)?.observed_generation?;
    let blind = told >= generation;
    let poked = pod.annotations().get(names::ANNOTATION_POKED).and_then(|text| serde_json::from_str(text).ok());
    let poked = poked.filter(|poked: &Poked| poked.generation == generation && poked.blind == blind);
    Some(Change { generation, blind, poked })
}

/// The pod's annotation that makes the kubelet look, if it should. `is_new` says whether it is told of the configuration
/// or the password for the first time.
#[must_use]
pub fn annotation(observed: &Observed, is_new: bool) -> Option<(String, String)> {
    let Change { generation, blind, poked } = change(observed)?;
    let times = match poked {
        Some(poked) if !is_new => {
            let due = poked.times < poked.most() && poked.left(observed.now).is_zero();
            due.then(|| poked.times.saturating_add(1))?
        }
        None if blind && !is_new => return None,
        _ => 0,
    };
    let poked = Poked { generation, times, last: observed.now, blind };
    // Serializing plain data into a string cannot fail.
    Some((names::ANNOTATION_POKED.to_owned(), serde_json::to_string(&poked).unwrap_or_default()))
}

/// When to look again whether the runner has confirmed.
#[must_use]
pub fn recheck(observed: &Observed) -> Option<Duration> {
    let Change { blind, poked, .. } = change(observed)?;
    // The pod that is changed now is seen again at once.
    let Some(poked) = poked else { return (!blind).then(|| pause(1)) };
    let left = poked.left(observed.now);
    // What was due is done by now.
    let next = Poked { times: poked.times.saturating_add(1), ..poked };
    (poked.times < poked.most()).then(|| if left.is_zero() { next.pause() } else { left })
}
