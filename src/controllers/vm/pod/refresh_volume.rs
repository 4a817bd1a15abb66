//! (pure) A change of the configuration or the password reaches a running VM at once, not at the kubelet's next sync.
//!
//! The kubelet refreshes a pod's volumes when the pod changes, so the pod gets an annotation. It may do so before it has the
//! new ConfigMap. The runner reports which generation of the VM it has followed: if that is not the newest after
//! [`REPEAT_DELAY`], the annotation is changed once more. After that the kubelet's own sync refreshes the volume, within 90 s.
//! A runner that never reports a generation (one of the Java VM-Operator) gets no annotation.
//!
//! No generation confirms a new password or a fetched image, so the annotation is always repeated for these.

use crate::api::conditions;
use crate::api::vm::names;
use crate::controllers::vm::observe::{Observed, since};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The time in which a kubelet receives a new ConfigMap and the runner follows it.
const REPEAT_DELAY: Duration = Duration::from_secs(5);

/// The content of the pod's annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Refresh {
    generation: i64,
    /// Repetitions so far.
    times: u32,
    last: Timestamp,
    /// The generation was confirmed before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    blind: bool,
}

/// The present generation, whether the runner has confirmed it, and the last refresh for it. None for a machine that does
/// not run, or whose runner never reports a generation.
fn state(observed: &Observed) -> Option<(i64, bool, Option<Refresh>)> {
    let pod = observed
        .own_pod()
        .filter(|pod| !pod.has_ended() && pod.metadata.deletion_timestamp.is_none())?;
    let generation = observed.vm.metadata.generation?;
    if !conditions::is_true(observed.conditions(), conditions::RUNNING) {
        return None;
    }
    let reported =
        conditions::find(observed.conditions(), conditions::CONFIG_IN_SYNC)?.observed_generation?;
    let blind = reported >= generation;
    let last = pod
        .annotations()
        .get(names::ANNOTATION_VOLUME_REFRESH)
        .and_then(|text| serde_json::from_str::<Refresh>(text).ok());
    Some((
        generation,
        blind,
        last.filter(|last| last.generation == generation && last.blind == blind),
    ))
}

/// The pod's annotation that makes the kubelet refresh its volumes, if it should. `is_new` says that the configuration or
/// the password has just changed.
#[must_use]
pub fn annotation(observed: &Observed, is_new: bool) -> Option<(String, String)> {
    let (generation, blind, last) = state(observed)?;
    let times = match last {
        Some(last) if !is_new => (left(last, observed.now)? == Duration::ZERO).then_some(1)?,
        None if blind && !is_new => return None,
        _ => 0,
    };
    let refresh = Refresh {
        generation,
        times,
        last: observed.now,
        blind,
    };
    // Serializing plain data into a string cannot fail.
    Some((
        names::ANNOTATION_VOLUME_REFRESH.to_owned(),
        serde_json::to_string(&refresh).unwrap_or_default(),
    ))
}

/// When to look again whether the runner has confirmed the change.
#[must_use]
pub fn recheck(observed: &Observed) -> Option<Duration> {
    match state(observed)? {
        (_, _, Some(last)) => left(last, observed.now).filter(|left| !left.is_zero()),
        (_, blind, None) => (!blind).then_some(REPEAT_DELAY),
    }
}

/// The time until the repetition, if there was none.
fn left(last: Refresh, now: Timestamp) -> Option<Duration> {
    (last.times == 0).then(|| REPEAT_DELAY.saturating_sub(since(last.last, now)))
}
