//! (pure) The decision about a `PeerPod`. The first rule that applies decides.
//!
//! An instance is deleted only if it is proved to be that of the pod, and the pod has ended or has another instance. A `PeerPod` is released
//! only if its instance is proved to be gone, never existed, stays with a younger `PeerPod`, or a person has abandoned it. Time releases
//! nothing.

use crate::api::peerpod::{AwsId, LibvirtUuid, PeerPodReason, VirtualMachineId, names};
use crate::controllers::peerpod::facts::{Facts, Seen, Younger};
use std::time::Duration;

/// Time that the cloud-api-adaptor has to delete the instance itself.
pub const ADAPTOR_TIME: Duration = Duration::from_secs(10);

/// Delay before the pod is read again.
const POD_RECHECK: Duration = Duration::from_secs(10);

/// Delay before the owner of an instance, or the proof at it, is checked again.
const OWNER_RECHECK: Duration = Duration::from_secs(60);

/// Time between two answers of a provider without the instance, which together prove its absence. EC2 can hide a new instance for some time.
pub const ABSENCE_TIME: Duration = Duration::from_secs(300);

/// Delay before an instance is described again whose deletion has just begun. Most end within this time, so that a report would be a write in vain.
const DELETED_RECHECK: Duration = Duration::from_secs(5);

/// Delay before a running pod's instance is described again that the provider does not have.
const ABSENT_RECHECK: Duration = Duration::from_secs(60);

/// The state of the pod and of the instance, as far as the decision has needed them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Whether the pod has ended, or no longer exists.
    pub pod_has_ended: Option<bool>,
    /// Time since the first sight of the end of the pod, or of a younger `PeerPod`, by the monotonic clock.
    pub waited: Duration,
    /// The answer of the provider.
    pub answer: Option<Answer>,
    /// Time since the first answer without the instance, by the monotonic clock. All answers since then have been without it.
    pub absent: Duration,
}

/// The answer of a provider about an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The state of the instance.
    pub state: InstanceState,
    /// Whether the configuration of the cloud-api-adaptor retains instances.
    pub is_developer_mode: bool,
    /// The note about an instance that is proved to be that of the pod. Some providers need none.
    pub seen: Option<Seen>,
    /// Where the provider has looked for the instance. Empty if the identifier contains the place.
    pub place: String,
    /// Whether this process has deleted the instance immediately before.
    pub has_deleted: bool,
    /// Whether volumes remain of an instance that the provider does not have, which are those of the note and named after the instance.
    pub noted_remain: bool,
    /// Resources that are named after the instance and are never deleted, each with the reason.
    pub remains: Vec<String>,
}

/// The state of an instance, as its provider describes it. Remains are other resources that belong to it, and that its deletion does not delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum InstanceState {
    /// It does not exist any more, which the answer proves.
    Gone {
        /// Whether there are remains.
        has_remains: bool,
    },
    /// The provider does not have it at this place. This answer alone proves nothing, also not about remains.
    #[default]
    Absent,
    /// It exists, and is that of the pod.
    Ours {
        /// Whether its deletion is in progress.
        is_ending: bool,
    },
    /// It exists, but nothing proves that it is that of the pod. With the reason and the next step.
    NotOurs(String),
}

/// The identifier of an instance, with its provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceId {
    /// Provider `virtualmachine`.
    VirtualMachine(VirtualMachineId),
    /// Provider `aws`.
    Aws(AwsId),
    /// Provider `libvirt`.
    Libvirt(LibvirtUuid),
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing to do.
    Nothing,
    /// Find out whether the pod has ended, and decide again.
    ReadPod,
    /// Describe the instance, and decide again.
    Describe(InstanceId),
    /// Note in the `PeerPod` that the instance was seen, and decide again.
    Note(Seen),
    /// Delete the instance, or its remains.
    Delete(InstanceId),
    /// Describe the instance again after that time.
    Later(Duration),
    /// Delete this `PeerPod`: the pod has a younger one.
    Supersede,
    /// Remove the finalizer.
    Release(Release),
    /// Wait, or report a problem.
    Wait {
        /// The reason.
        reason: PeerPodReason,
        /// Cause and next step.
        message: String,
        /// Delay before the next reconcile. None: a change of the objects or of the configuration is needed.
        recheck: Option<Duration>,
    },
}

/// Why a `PeerPod` is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// It names no instance.
    NoInstance,
    /// Its instance is gone.
    Gone,
    /// A younger `PeerPod` of the pod has the instance.
    Replaced,
    /// A person has abandoned the instance.
    Abandoned,
}

/// Decides. `namespaces` are those in which the controller may delete VirtualMachines.
#[must_use]
pub fn decide(facts: &Facts, read: &Read, namespaces: &[String]) -> Decision {
    if !facts.has_finalizer {
        return Decision::Nothing;
    }
    if !facts.is_ending && facts.younger.is_some() {
        return Decision::Supersede;
    }
    if facts.is_ending {
        if facts.instance.is_empty() {
            return Decision::Release(Release::NoInstance);
        }
        if facts.abandoned.as_ref() == Some(&facts.instance) {
            return Decision::Release(Release::Abandoned);
        }
        if facts.younger == Some(Younger::SameInstance) {
            return Decision::Release(Release::Replaced);
        }
    }
    let id = match id(facts, namespaces) {
        Ok(id) => id,
        // An object without an instance needs none.
        Err(_) if facts.instance.is_empty() => return Decision::Nothing,
        Err((reason, message)) => return wait(reason, message, None),
    };
    if !facts.is_ending {
        return track(facts, read, id);
    }
    if let Some(older) = &facts.older_peerpod {
        let message = format!(
            "PeerPod {older} is older and names the same instance, so this PeerPod deletes nothing. It is released when {older} no longer \
             exists and the instance is gone. To release it now, {}",
            annotate(facts)
        );
        return wait(PeerPodReason::InstanceNotOurs, message, Some(OWNER_RECHECK));
    }
    end(facts, read, id)
}

/// The first sight of the instance of a running pod. Its note later proves that the instance is gone, and not only looked for at a wrong place.
fn track(facts: &Facts, read: &Read, id: InstanceId) -> Decision {
    if matches!(id, InstanceId::VirtualMachine(_)) || facts.seen.is_some() || facts.owner.is_none()
    {
        return Decision::Nothing;
    }
    let Some(answer) = &read.answer else {
        return Decision::Describe(id);
    };
    match (&answer.seen, &answer.state) {
        (Some(seen), _) => Decision::Note(seen.clone()),
        (None, InstanceState::NotOurs(why)) => {
            let message = format!("{why}; {}", abandon(facts));
            wait(PeerPodReason::InstanceNotOurs, message, Some(OWNER_RECHECK))
        }
        (None, InstanceState::Absent) if read.absent >= ABSENCE_TIME => {
            never_seen(facts, &answer.place, &id)
        }
        (None, _) => Decision::Later(ABSENT_RECHECK),
    }
}

/// The provider does not have the instance at this place, and no note says that it was there.
fn never_seen(facts: &Facts, place: &str, id: &InstanceId) -> Decision {
    let (provider, instance) = (&facts.provider, &facts.instance);
    let keys = match id {
        InstanceId::Libvirt(_) => "the host",
        _ => "account and region",
    };
    let message = format!(
        "provider {provider} does not have instance {instance} in {place}, and it was never seen there, so it can be at another place; \
         check {keys} in the configuration of the cloud-api-adaptor. If the instance does not exist, {}",
        annotate(facts)
    );
    wait(
        PeerPodReason::InstanceNeverSeen,
        message,
        Some(ABSENCE_TIME),
    )
}

/// The end of an instance that a `PeerPod` names validly.
fn end(facts: &Facts, read: &Read, id: InstanceId) -> Decision {
    let Some(owner) = &facts.owner else {
        let message = format!(
            "no Pod owns the PeerPod, so nothing proves that the instance belongs to it; {}",
            abandon(facts)
        );
        return wait(PeerPodReason::InstanceNotOurs, message, None);
    };
    // A younger PeerPod shows that the adaptor has replaced the instance.
    if facts.younger.is_none() {
        match read.pod_has_ended {
            None => return Decision::ReadPod,
            Some(false) => {
                let message = format!(
                    "pod {} has not ended; the instance is deleted after its end",
                    owner.name
                );
                return wait(PeerPodReason::WaitingForPod, message, Some(POD_RECHECK));
            }
            Some(true) => {}
        }
    }
    let left = ADAPTOR_TIME.saturating_sub(read.waited);
    if !left.is_zero() {
        let message =
            "the cloud-api-adaptor has 10 s to delete the instance; then the controller deletes it";
        return wait(
            PeerPodReason::WaitingForAdaptor,
            message.to_owned(),
            Some(left),
        );
    }
    let Some(answer) = &read.answer else {
        return Decision::Describe(id);
    };
    match &answer.state {
        InstanceState::Gone { has_remains: false } => Decision::Release(Release::Gone),
        InstanceState::NotOurs(why) => {
            let message = format!("{why}. To retain the instance, {}", annotate(facts));
            wait(PeerPodReason::InstanceNotOurs, message, Some(OWNER_RECHECK))
        }
        InstanceState::Ours { is_ending: false } | InstanceState::Gone { has_remains: true } => {
            delete(facts, answer, id)
        }
        InstanceState::Ours { is_ending: true } if answer.has_deleted => {
            Decision::Later(DELETED_RECHECK)
        }
        InstanceState::Ours { is_ending: true } => {
            let message = match id {
                InstanceId::VirtualMachine(id) => format!(
                    "VirtualMachine {}/{} is being deleted",
                    id.namespace, id.name
                ),
                InstanceId::Aws(id) => format!("instance {} is being terminated", id.as_str()),
                InstanceId::Libvirt(id) => format!("domain {id} is being stopped"),
            };
            wait(PeerPodReason::Deleting, message, Some(recheck(read.waited)))
        }
        InstanceState::Absent => absent(facts, read, answer, id),
    }
}

/// The deletion of an instance, or of its remains, that is proved to be that of the pod.
fn delete(facts: &Facts, answer: &Answer, id: InstanceId) -> Decision {
    if answer.is_developer_mode {
        let message = format!(
            "{} is true in the configuration of the cloud-api-adaptor, so instances are retained; set it to false, or delete instance {} by \
             hand",
            names::KEY_DEVELOPER_MODE,
            facts.instance
        );
        return wait(PeerPodReason::DeveloperMode, message, Some(OWNER_RECHECK));
    }
    match (&answer.seen, &facts.seen) {
        // Without the note, nothing would prove later that the instance is gone, or which volumes it had.
        (Some(seen), note) if note.as_ref() != Some(seen) => Decision::Note(seen.clone()),
        _ => Decision::Delete(id),
    }
}

/// The end of an instance that the provider does not have at this place.
fn absent(facts: &Facts, read: &Read, answer: &Answer, id: InstanceId) -> Decision {
    let Some(seen) = &facts.seen else {
        return never_seen(facts, &answer.place, &id);
    };
    if seen.place != answer.place {
        let message = format!(
            "instance {} was seen in {}, but the configuration of the cloud-api-adaptor names {}; restore it. If the instance does not exist, \
             {}",
            facts.instance,
            seen.place,
            answer.place,
            annotate(facts)
        );
        return wait(PeerPodReason::ScopeChanged, message, Some(ABSENCE_TIME));
    }
    let time = match id {
        InstanceId::Aws(_) => ABSENCE_TIME,
        // One answer of a host is a proof.
        InstanceId::Libvirt(_) | InstanceId::VirtualMachine(_) => Duration::ZERO,
    };
    let left = time.saturating_sub(read.absent);
    if !left.is_zero() {
        let message = format!(
            "provider {} does not have instance {} any more; the controller asks again after 5 min, because one answer is no proof",
            facts.provider, facts.instance
        );
        return wait(PeerPodReason::Deleting, message, Some(left));
    }
    if answer.noted_remain {
        return delete(facts, answer, id);
    }
    // Without a described instance, nothing proves that other remains are those of the pod.
    Decision::Release(Release::Gone)
}

/// The delay before the instance is described again: 2 s at first, and 30 s at most.
fn recheck(waited: Duration) -> Duration {
    waited.clamp(Duration::from_secs(2), Duration::from_secs(30))
}

fn wait(reason: PeerPodReason, message: String, recheck: Option<Duration>) -> Decision {
    Decision::Wait {
        reason,
        message,
        recheck,
    }
}

fn annotate(facts: &Facts) -> String {
    let annotation = names::ANNOTATION_ABANDON;
    format!("annotate the PeerPod with {annotation}: {}", facts.instance)
}

/// The next step if the controller cannot delete the instance.
fn abandon(facts: &Facts) -> String {
    if facts.is_ending {
        let annotate = annotate(facts);
        return format!(
            "delete the instance by hand if it belongs to the PeerPod, then {annotate}"
        );
    }
    "correct the configuration of the cloud-api-adaptor before the pod ends".to_owned()
}

/// The instance, or the reason why it cannot be deleted.
fn id(facts: &Facts, namespaces: &[String]) -> Result<InstanceId, (PeerPodReason, String)> {
    let (provider, instance) = (&facts.provider, &facts.instance);
    let malformed = |next: String| {
        let message = format!(
            "the instance ID {instance:?} is malformed: {next}; {}",
            abandon(facts)
        );
        (PeerPodReason::InstanceIDInvalid, message)
    };
    match provider.as_str() {
        names::PROVIDER_AWS => instance.parse().map(InstanceId::Aws).map_err(malformed),
        names::PROVIDER_LIBVIRT => instance.parse().map(InstanceId::Libvirt).map_err(malformed),
        names::PROVIDER_VIRTUAL_MACHINE => {
            let id: VirtualMachineId = instance.parse().map_err(malformed)?;
            if namespaces.contains(&id.namespace) {
                return Ok(InstanceId::VirtualMachine(id));
            }
            let message = format!(
                "the configuration does not allow deletions of VirtualMachines in namespace {0}; add {0} to virtualMachine.namespaces in \
                 ConfigMap {1}, and give the controller the permissions there",
                id.namespace,
                names::MANAGER
            );
            Err((PeerPodReason::ConfigMissing, message))
        }
        _ => {
            let message = format!(
                "this controller does not know the provider {provider:?}; peerpod-ctrl of confidential containers deletes its instances; {}",
                abandon(facts)
            );
            Err((PeerPodReason::ProviderNotSupported, message))
        }
    }
}

#[cfg(test)]
mod tests;
