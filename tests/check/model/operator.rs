//! The operator's action from its knowledge. The decision is `lifecycle::decide` of the released program.

use crate::model::world::{Past, Phase, Pod, Uid, Vm};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use vm_operator::api::vm::{POD_DELETED, UsedVolume, names};
use vm_operator::controllers::vm::copy_source::CopySource;
use vm_operator::controllers::vm::decide::{Decision, DeleteReason, WaitFor, decide};
use vm_operator::controllers::vm::import;
use vm_operator::controllers::vm::observe::{Observed, ReportCopy};
use vm_operator::controllers::vm::pod::restart;
use vm_operator::controllers::vm::report;
use vm_operator::controllers::vm::volumes::RecordedVolume;
use vm_operator::k8s::views::PodView;

/// A mutation of a rule, which the checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    TakesAnothersPodForItsOwn,
    DeletesAnothersPod,
    MakesAPodThoughOneIsEnding,
    StartsAStoppedVm,
    LeavesThePodOfAStoppedVm,
    NeverMakesAPod,
    MakesAPodWithinThePause,
    MakesAPodWithoutItsImage,
    MakesAPodOfAnUnusableSpec,
    StartsBeforeTheImport,
    ForgetsTheImport,
    ImportsAgain,
    EndsALivingPod,
    IgnoresRestarts,
    RestartsAgainAndAgain,
    TakesAPowerOffForACrash,
    TakesACrashForAPowerOff,
    ForgetsHowAPodEnded,
    RemovesADeadPodWithinThePause,
    LeavesADeadPod,
    LeavesAnOutdatedPod,
    RemovesARunningPodThatIsOutdated,
    WaitsWithARestart,
    // Rules around the decision.
    DeletesWithoutUid,
    DeletesByForce,
    DeletesWithoutVersion,
    NamesPodsByChance,
    ForgetsItsOwnWrites,
    LetsAnswersOvertakeLists,
}

/// The knowledge at the time of the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Known {
    pub vm: Vm,
    pub pod: Option<Pod>,
    pub image: bool,
    /// Whether the disk has an image that must be imported first.
    pub imports: bool,
    /// Whether the backoff after the last exit has not expired.
    pub early: bool,
    pub guest_shutdown_stops: bool,
    /// Whether the operator has deleted the pod itself.
    pub deleted_by_operator: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Nothing,
    /// Whether the pod only imports.
    Create {
        imports: bool,
    },
    /// Whether the deletion is allowed only while the pod has not run.
    Delete {
        pod: Uid,
        outdated: bool,
    },
    StopVm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    pub what: What,
    /// The status to write afterwards.
    pub past: Past,
    pub reported_restart: u8,
    pub imported: bool,
}

/// Decides, and records the decision.
#[derive(Default)]
pub struct Decider {
    pub mutation: Option<Mutation>,
    decided: HashMap<Known, Decided>,
}

impl Decider {
    pub fn new(mutation: Option<Mutation>) -> Self {
        Self {
            mutation,
            decided: HashMap::new(),
        }
    }

    pub fn breaks(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    pub fn decide(&mut self, mut known: Known) -> Decided {
        // Resource versions do not affect the decision.
        known.vm.version = 0;
        known.pod.iter_mut().for_each(|pod| pod.version = 0);
        let mutation = self.mutation;
        *self
            .decided
            .entry(known)
            .or_insert_with(|| decided(known, mutation))
    }
}

fn decided(known: Known, mutation: Option<Mutation>) -> Decided {
    let observed = observed(known);
    let decision = mutated(&observed, known, mutation);
    let what = match &decision {
        Decision::Create => What::Create {
            imports: match mutation {
                Some(Mutation::StartsBeforeTheImport) => false,
                Some(Mutation::ImportsAgain) => known.imports,
                _ => import::due(&observed).is_some(),
            },
        },
        Decision::Delete { uid, why } => What::Delete {
            pod: uid.parse().unwrap(),
            outdated: *why == DeleteReason::Outdated,
        },
        Decision::StopAfterShutdown => What::StopVm,
        Decision::Keep
        | Decision::Remember(_)
        | Decision::RecordImport { .. }
        | Decision::Wait(_) => What::Nothing,
    };
    let records = matches!(decision, Decision::RecordImport { .. });
    let past = report::restarts(&observed, &decision).map(|past| Past {
        pod: past.pod_uid.parse().unwrap(),
        lost: if past.reason == POD_DELETED {
            past.attempts.try_into().unwrap()
        } else {
            0
        },
    });
    let carried_out = restart::carried_out(&observed, decision == Decision::Create);
    let reported_restart = carried_out.map_or(0, |request| request.try_into().unwrap());
    Decided {
        what,
        past: past.unwrap_or_default(),
        reported_restart,
        imported: known.vm.imported || records,
    }
}

/// The decision of the operator.
fn real(observed: &Observed, known: Known) -> Decision {
    let medium = (!known.image).then_some(now());
    let made_of = || Some(template(known.vm.made_of, import::due(observed).is_some()));
    decide(observed, known.vm.valid)
        .unless_boot_image_is_missing(medium)
        .unless_outdated(observed, made_of)
}

/// The template of a pod.
fn template(made_of: u8, imports: bool) -> String {
    format!("{made_of} {imports}")
}

fn mutated(observed: &Observed, known: Known, mutation: Option<Mutation>) -> Decision {
    use Mutation as M;
    let decision = real(observed, known);
    let Some(mutation) = mutation else {
        return decision;
    };
    let uid = known.pod.map(|pod| pod.uid.to_string()).unwrap_or_default();
    let delete = |why| Decision::Delete {
        uid: uid.clone(),
        why,
    };
    let has_ended = known.pod.is_some_and(|pod| pod.phase.has_ended());
    let without_pod = || Observed {
        pod: None,
        ..observed.clone()
    };
    match (mutation, &decision) {
        (M::TakesAnothersPodForItsOwn, Decision::Wait(WaitFor::OtherPod)) => {
            let pod = known.pod.map(|pod| Pod {
                owner: known.vm.uid,
                ..pod
            });
            let known = Known { pod, ..known };
            real(&self::observed(known), known)
        }
        (M::DeletesAnothersPod, Decision::Wait(WaitFor::OtherPod)) => delete(DeleteReason::Ended),
        (M::MakesAPodThoughOneIsEnding | M::NamesPodsByChance, Decision::Wait(WaitFor::PodEnd)) => {
            real(&without_pod(), Known { pod: None, ..known })
        }
        (M::StartsAStoppedVm, Decision::Keep) if known.pod.is_none() => Decision::Create,
        (
            M::LeavesThePodOfAStoppedVm,
            Decision::Delete {
                why: DeleteReason::Stop,
                ..
            },
        ) => Decision::Keep,
        (M::NeverMakesAPod, Decision::Create) => Decision::Keep,
        (M::MakesAPodWithinThePause, Decision::Wait(WaitFor::Pause { .. }))
            if known.pod.is_none() =>
        {
            Decision::Create
        }
        (M::MakesAPodWithoutItsImage, Decision::Wait(WaitFor::Medium { .. })) => Decision::Create,
        (M::MakesAPodOfAnUnusableSpec, Decision::Wait(WaitFor::ValidSpec)) => Decision::Create,
        (M::EndsALivingPod, Decision::Keep) if known.pod.is_some() => delete(DeleteReason::Restart),
        (
            M::IgnoresRestarts,
            Decision::Delete {
                why: DeleteReason::Restart,
                ..
            },
        ) => Decision::Keep,
        (M::RestartsAgainAndAgain, Decision::Keep)
            if known.vm.restart > 0 && known.pod.is_some() =>
        {
            delete(DeleteReason::Restart)
        }
        (M::TakesAPowerOffForACrash, Decision::StopAfterShutdown) => real(
            &self::observed(Known {
                guest_shutdown_stops: false,
                ..known
            }),
            known,
        ),
        (M::TakesACrashForAPowerOff, Decision::Remember(_)) => Decision::StopAfterShutdown,
        (M::ForgetsTheImport, Decision::RecordImport { .. }) => delete(DeleteReason::Ended),
        (M::ForgetsHowAPodEnded, Decision::Remember(_)) => delete(DeleteReason::Ended),
        (M::RemovesADeadPodWithinThePause, Decision::Wait(WaitFor::Pause { .. })) if has_ended => {
            delete(DeleteReason::Ended)
        }
        (
            M::LeavesADeadPod,
            Decision::Delete {
                why: DeleteReason::Ended,
                ..
            },
        ) => Decision::Keep,
        (
            M::LeavesAnOutdatedPod,
            Decision::Delete {
                why: DeleteReason::Outdated,
                ..
            },
        ) => Decision::Keep,
        (M::RemovesARunningPodThatIsOutdated, Decision::Keep)
            if known.pod.is_some_and(|pod| {
                pod.phase == Phase::Running && pod.made_of != known.vm.made_of
            }) =>
        {
            delete(DeleteReason::Outdated)
        }
        (
            M::WaitsWithARestart,
            Decision::Create
            | Decision::Delete {
                why: DeleteReason::Ended,
                ..
            },
        ) if known.early => Decision::Wait(WaitFor::Pause {
            until: now().checked_add(SignedDuration::from_secs(1)).unwrap(),
        }),
        _ => decision,
    }
}

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

/// The observed state with that knowledge.
fn observed(known: Known) -> Observed {
    let Known {
        vm,
        pod,
        early,
        imports,
        guest_shutdown_stops,
        deleted_by_operator,
        ..
    } = known;
    let imported = vm.imported;
    let end = now()
        .checked_sub(SignedDuration::from_hours(if early { 0 } else { 1 }))
        .unwrap();
    let Past { pod: past, lost } = vm.past;
    let (attempts, reason) = if lost > 0 {
        (lost, POD_DELETED)
    } else {
        (1, "R")
    };
    let past = (past != 0).then(
        || json!({"attempts": attempts, "podUid": past.to_string(), "reason": reason, "time": end}),
    );
    let request = |n: u8| (n > 0).then_some(n);
    let vm = json!({
        "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine",
        "metadata": {"name": "vm", "namespace": "ns", "uid": format!("vm-{}", vm.uid), "resourceVersion": "1"},
        "spec": {
            "guestShutdownStops": guest_shutdown_stops,
            "vm": {
                "state": if vm.running { "Running" } else { "Stopped" }, "restartRequest": request(vm.restart),
                "disks": if imports { json!([{"volumeClaimTemplate": {}, "source": {"http": {"url": "https://h/i"}}}]) } else { json!([]) },
            },
        },
        "status": {"observedGeneration": 1, "restarts": past, "observedRestartRequest": request(vm.reported_restart)},
    });
    let present = json!({"metadata": {"name": "vm-disk-0", "uid": "claim"}});
    let recorded = RecordedVolume {
        volume: UsedVolume {
            claim_name: "vm-disk-0".to_owned(),
            uid: "claim".to_owned(),
            imported,
        },
        present: Some(Arc::new(serde_json::from_value(present).unwrap())),
        evidence: None,
    };
    Observed {
        vm: Arc::new(serde_json::from_value(vm).unwrap()),
        config_map: None,
        pod: pod.map(|pod| Arc::new(view(pod))),
        deleted_by_operator,
        claims: BTreeMap::new(),
        recorded: Some(recorded).filter(|_| imports).into_iter().collect(),
        name_conflicts: BTreeMap::new(),
        image_repository: None,
        fetches: BTreeMap::new(),
        import_progress: None,
        copy_source: CopySource::default(),
        images_missing: Duration::ZERO,
        display_secret: None,
        warnings: BTreeMap::new(),
        service: None,
        // A pod of the model reports nothing. The decision then depends on the kubelet only, which reports later.
        report: None,
        copy: ReportCopy::None,
        now: now(),
    }
}

fn view(pod: Pod) -> PodView {
    let ended = |message: &str| json!([{"name": "vm", "state": {"terminated": {"exitCode": 1, "message": message, "finishedAt": now()}}}]);
    let status = match pod.phase {
        Phase::Pending => json!({"phase": "Pending"}),
        Phase::Running => json!({"phase": "Running"}),
        Phase::Ended => {
            json!({"phase": "Failed", "containerStatuses": ended(r#"{"reason":"QemuCrashed"}"#)})
        }
        Phase::PoweredOff if pod.imports => {
            json!({"phase": "Succeeded", "containerStatuses": ended(r#"{"reason":"Fetched"}"#)})
        }
        Phase::PoweredOff => {
            json!({"phase": "Failed", "containerStatuses": ended(r#"{"reason":"GuestShutdown","byGuest":true}"#)})
        }
    };
    let owner = json!({
        "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "name": "vm", "uid": format!("vm-{}", pod.owner),
        "controller": true,
    });
    let mut annotations =
        json!({names::ANNOTATION_TEMPLATE_HASH: template(pod.made_of, pod.imports)});
    if pod.imports {
        annotations[names::ANNOTATION_IMPORTS] = "vm-disk-0".into();
    }
    if pod.restart > 0 {
        annotations[names::ANNOTATION_RESTART_REQUEST] = pod.restart.to_string().into();
    }
    let deletion = pod.ending.then(|| now().to_string());
    let pod = json!({
        "metadata": {
            "name": "vm", "uid": pod.uid.to_string(), "resourceVersion": "1", "ownerReferences": [owner],
            "annotations": annotations, "deletionTimestamp": deletion,
        },
        "status": status,
    });
    serde_json::from_value(pod).unwrap()
}
