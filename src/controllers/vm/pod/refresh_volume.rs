//! (pure) The kubelet refresh trigger: an annotation that brings a new configuration or password to a running VM at once, not at the
//! kubelet's next sync.
//!
//! The kubelet refreshes a pod's volumes when the pod changes. It may do so before it has received the new ConfigMap. The runner reports
//! the generation of the VM that it has applied. If that is not the newest after [`REPEAT_DELAY`], the annotation is changed once more.
//! After that, the kubelet's own sync refreshes the volume within 90 s. Runners that never report a generation get no annotation, for
//! example those of the Java VM-Operator.
//!
//! No generation confirms a new password or a downloaded image, so the annotation is always repeated for these.

use crate::api::conditions::{find, is_true};
use crate::api::vm::conditions;
use crate::api::vm::names;
use crate::controllers::vm::observe::{Observed, since};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The time in which a kubelet usually receives a new ConfigMap and the runner applies it.
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

/// The state of the refresh for the present generation.
struct State {
    generation: i64,
    /// Whether the runner has confirmed the generation.
    is_confirmed: bool,
    /// The last refresh for the generation.
    last: Option<Refresh>,
}

/// The state of the refresh; none if the VM does not run, or its runner never reports a generation.
fn state(observed: &Observed) -> Option<State> {
    let pod = observed
        .own_pod()
        .filter(|pod| !pod.has_ended() && pod.metadata.deletion_timestamp.is_none())?;
    let generation = observed.vm.metadata.generation?;
    if !is_true(observed.conditions(), conditions::RUNNING) {
        return None;
    }
    let reported = find(observed.conditions(), conditions::CONFIG_IN_SYNC)?.observed_generation?;
    let is_confirmed = reported >= generation;
    let last = pod
        .annotations()
        .get(names::ANNOTATION_VOLUME_REFRESH)
        .and_then(|text| serde_json::from_str::<Refresh>(text).ok());
    Some(State {
        generation,
        is_confirmed,
        last: last.filter(|last| last.generation == generation && last.blind == is_confirmed),
    })
}

/// The annotation that makes the kubelet refresh the pod's volumes, if it is due. `is_new` means that the configuration or the password
/// has just changed.
#[must_use]
pub fn annotation(observed: &Observed, is_new: bool) -> Option<(String, String)> {
    let State {
        generation,
        is_confirmed,
        last,
    } = state(observed)?;
    let times = match last {
        Some(last) if !is_new => (left(last, observed.now)? == Duration::ZERO).then_some(1)?,
        None if is_confirmed && !is_new => return None,
        _ => 0,
    };
    let refresh = Refresh {
        generation,
        times,
        last: observed.now,
        blind: is_confirmed,
    };
    // Serializing plain data into a string cannot fail.
    Some((
        names::ANNOTATION_VOLUME_REFRESH.to_owned(),
        serde_json::to_string(&refresh).unwrap_or_default(),
    ))
}

/// The time until the next check whether the runner has confirmed the generation.
#[must_use]
pub fn recheck(observed: &Observed) -> Option<Duration> {
    let state = state(observed)?;
    match state.last {
        Some(last) => left(last, observed.now).filter(|left| !left.is_zero()),
        None => (!state.is_confirmed).then_some(REPEAT_DELAY),
    }
}

/// The time until the repetition; none if it was repeated already.
fn left(last: Refresh, now: Timestamp) -> Option<Duration> {
    (last.times == 0).then(|| REPEAT_DELAY.saturating_sub(since(last.last, now)))
}
