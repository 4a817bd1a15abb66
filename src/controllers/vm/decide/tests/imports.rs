//! The decision about import pods.

use super::*;
use crate::api::vm::UsedVolume;
use crate::api::vm::conditions::ReadyReason;
use crate::controllers::vm::fixtures::vm;
use crate::controllers::vm::import;
use crate::controllers::vm::plan::{ClaimChange, plan};
use crate::controllers::vm::report;
use crate::controllers::vm::volumes::RecordedVolume;
use crate::settings;
use std::sync::Arc;

const CLAIM: &str = "vm-system-disk";

/// A VM with an image, its recorded PVC, and an import pod with that status.
fn importing(status: Value, imported: bool) -> Observed {
    let template = json!({"metadata": {"name": "system"}});
    let disk =
        json!({"volumeClaimTemplate": template, "source": {"http": {"url": "https://h/a.qcow2"}}});
    let mut pod = pod(status);
    pod.metadata.annotations = [
        (names::ANNOTATION_IMPORTS.to_owned(), CLAIM.to_owned()),
        (
            names::ANNOTATION_TEMPLATE_HASH.to_owned(),
            "then".to_owned(),
        ),
    ]
    .into_iter()
    .collect();
    let present = json!({"metadata": {"name": CLAIM, "uid": "claim-uid"}});
    let recorded = RecordedVolume {
        volume: UsedVolume {
            claim_name: CLAIM.to_owned(),
            uid: "claim-uid".to_owned(),
            imported,
        },
        present: Some(Arc::new(serde_json::from_value(present).unwrap())),
        evidence: None,
    };
    let vm = vm(json!({"state": "Running", "disks": [disk]}));
    Observed {
        recorded: vec![recorded],
        ..with_pod(vm, pod)
    }
}

fn decided(observed: &Observed, hash_now: &str) -> Decision {
    decide(observed, true).unless_outdated(observed, || Some(hash_now.to_owned()))
}

fn outcome(reason: &str) -> Value {
    ended(&format!(r#"{{"reason":"{reason}","message":"why"}}"#), 5)
}

#[test]
fn an_import_is_recorded_before_its_pod_is_deleted_and_then_the_vm_starts() {
    let mut observed = importing(json!({"phase": "Running"}), false);
    assert_eq!(decided(&observed, "then"), Decision::Keep);
    assert_eq!(decided(&observed, "now"), delete(DeleteReason::Outdated));
    let claim = CLAIM.to_owned();
    for reason in ["Fetched", "AlreadyThere"] {
        let complete = importing(outcome(reason), false);
        let records = Decision::RecordImport {
            claim: claim.clone(),
        };
        assert_eq!(decided(&complete, "then"), records);
        assert_eq!(report::restarts(&complete, &records), None);
        let recorded = importing(outcome(reason), true);
        assert_eq!(decided(&recorded, "then"), delete(DeleteReason::Ended));
    }
    // The PVC was replaced after the import.
    let mut replaced = importing(outcome("Fetched"), false);
    replaced.recorded[0].volume.uid = "earlier".to_owned();
    assert!(matches!(
        decided(&replaced, "then"),
        Decision::Delete { .. }
    ));
    assert_eq!(import::due(&replaced).unwrap().claim, CLAIM);

    observed.pod = None;
    assert_eq!(import::due(&observed).unwrap().claim, CLAIM);
    observed.recorded[0].volume.imported = true;
    assert_eq!(import::due(&observed), None);
    observed.recorded[0].volume.uid = "earlier".to_owned();
    assert!(import::due(&observed).is_some());
    // A later change of the source of a running VM has no effect.
    let running = Observed {
        pod: Some(Arc::new(pod(json!({"phase": "Running"})))),
        ..observed
    };
    assert_eq!(import::due(&running), None);
}

#[test]
fn a_vm_whose_clone_is_blank_waits_for_a_change() {
    let status = ended(r#"{"reason":"DiskNotCloned","message":"why"}"#, 5);
    let mut observed = with_pod(vm(json!({"state": "Running"})), pod(status));
    let decision = decide(&observed, true);
    assert_eq!(decision, Decision::Wait(WaitFor::Correction));
    let shown = report::ready(&observed, &decision, None);
    assert_eq!(shown.reason, ReadyReason::DiskNotCloned);
    assert!(shown.message.contains("why"), "{}", shown.message);
    Arc::make_mut(&mut observed.vm).spec.vm.restart_request = Some(1);
    assert!(matches!(decide(&observed, true), Decision::Remember(_)));
}

#[test]
fn a_temporary_failure_is_repeated_and_a_final_one_waits_for_a_change() {
    for reason in ["ServerUnreachable", "DiskInUse", "Interrupted", "Unknown"] {
        let observed = importing(outcome(reason), false);
        let Decision::Remember(past) = decided(&observed, "then") else {
            panic!("{reason}");
        };
        assert_eq!((past.reason.as_str(), past.attempts), (reason, 1));
    }
    let mut killed = outcome("x");
    killed["containerStatuses"][0]["state"]["terminated"]["message"] = "".into();
    killed["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled".into();
    let Decision::Remember(past) = decided(&importing(killed, false), "then") else {
        panic!("a killed importer is started again");
    };
    assert_eq!(past.reason, "OOMKilled");

    // A long import is no healthy VM: the delay grows.
    let long = ended(r#"{"reason":"ServerFailed"}"#, 3600);
    let mut observed = importing(long, false);
    let earlier = with_past(3, "earlier", 3600).status.unwrap().restarts;
    Arc::make_mut(&mut observed.vm)
        .status
        .as_mut()
        .unwrap()
        .restarts = earlier;
    let Decision::Remember(past) = decided(&observed, "then") else {
        panic!("a failed import is repeated");
    };
    assert_eq!(past.attempts, 4);
    // The cluster has stopped the importer.
    let mut evicted = outcome("Interrupted");
    evicted["reason"] = "Evicted".into();
    let Decision::Remember(past) = decided(&importing(evicted, false), "then") else {
        panic!("an evicted import is repeated");
    };
    assert_eq!(past.reason, "Evicted");

    for (reason, ready) in [
        ("FormatNotSupported", ReadyReason::FormatNotSupported),
        ("ImageRefused", ReadyReason::ImageRefused),
        ("AddressRefused", ReadyReason::AddressRefused),
        ("TooLarge", ReadyReason::ImageTooLarge),
        ("ChecksumMismatch", ReadyReason::ChecksumMismatch),
        ("DiskNotEmpty", ReadyReason::DiskNotEmpty),
        ("DataMissing", ReadyReason::DataMissing),
        ("InvalidUrl", ReadyReason::ImportFailed),
    ] {
        let observed = importing(outcome(reason), false);
        let decision = decided(&observed, "then");
        assert_eq!(decision, Decision::Wait(WaitFor::Correction));
        let shown = report::ready(&observed, &decision, None);
        assert_eq!(shown.reason, ready);
        let has = |text| shown.message.contains(text);
        assert!(has("why") && has("restartRequest"), "{}", shown.message);
        // The configuration, the spec, or the restart request.
        assert_eq!(decided(&observed, "now"), delete(DeleteReason::Outdated));
        let mut changed = observed.clone();
        Arc::make_mut(&mut changed.vm)
            .status
            .as_mut()
            .unwrap()
            .observed_generation = Some(2);
        assert_eq!(decided(&changed, "then"), delete(DeleteReason::Ended));
        let mut requested = observed;
        Arc::make_mut(&mut requested.vm).spec.vm.restart_request = Some(1);
        assert_eq!(decided(&requested, "then"), delete(DeleteReason::Ended));
    }
}

#[test]
fn the_permission_to_overwrite_ends_with_the_import() {
    for imported in [false, true] {
        let mut observed = importing(json!({"phase": "Running"}), imported);
        let annotations = json!({names::ANNOTATION_OVERWRITE: "claim-uid"});
        let view =
            json!({"metadata": {"name": CLAIM, "uid": "claim-uid", "annotations": annotations}});
        let view = Arc::new(serde_json::from_value(view).unwrap());
        observed.claims.insert(CLAIM.to_owned(), view);
        let plan = plan(&observed, &settings::Reconciler::default()).unwrap();
        let is_end = |change: &ClaimChange| match change {
            ClaimChange::Metadata { annotations, .. } => {
                annotations.get(names::ANNOTATION_OVERWRITE) == Some(&None)
            }
            _ => false,
        };
        assert_eq!(plan.disks[0].changes.iter().any(is_end), imported);
    }
}
