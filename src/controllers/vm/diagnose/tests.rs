mod ending;
mod rejections;
mod scheduling;

use crate::api::vm::conditions::ReadyReason as Reason;
use crate::controllers::vm::diagnose::*;
use crate::controllers::vm::fixtures::{alone, now, pod, seen_running, vm, with_pod};
use crate::controllers::vm::views::Warning;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::sync::Arc;

const UNBOUND: &str =
    "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found";

fn running(status: Value) -> Observed {
    with_pod(vm(json!({"state": "Running"})), pod(status))
}

fn ago(seconds: i64) -> Timestamp {
    now()
        .checked_sub(SignedDuration::from_secs(seconds))
        .unwrap()
}

fn unschedulable_for(seconds: i64, message: &str) -> Observed {
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": message, "lastTransitionTime": ago(seconds),
    });
    running(json!({"phase": "Pending", "conditions": [condition]}))
}

fn with_claim(mut observed: Observed, name: &str, class: &str, phase: &str) -> Observed {
    let (metadata, spec) = (
        json!({"name": name, "uid": format!("{name}-uid")}),
        json!({"storageClassName": class}),
    );
    let claim = json!({"metadata": metadata, "spec": spec, "status": {"phase": phase}});
    observed.claims.insert(
        name.to_owned(),
        Arc::new(serde_json::from_value(claim).unwrap()),
    );
    observed
}

fn warned(mut observed: Observed, uid: &str, reason: &str, note: &str) -> Observed {
    observed.warnings.insert(
        uid.to_owned(),
        Warning {
            reason: reason.to_owned(),
            note: note.to_owned(),
        },
    );
    observed
}

/// A VM with an additional condition. Its pod has had a node for that time.
fn scheduled_for(seconds: i64, condition: &str, containers: Value) -> Observed {
    let scheduled =
        json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": ago(seconds)});
    let conditions = json!([scheduled, {"type": condition, "status": "True"}]);
    let mut observed = running(
        json!({"phase": "Pending", "conditions": conditions, "containerStatuses": containers}),
    );
    // The node of a previous pod.
    Arc::make_mut(&mut observed.vm)
        .status
        .as_mut()
        .unwrap()
        .node_name = Some("earlier".to_owned());
    Arc::make_mut(observed.pod.as_mut().unwrap()).spec.node_name = Some("node7".to_owned());
    observed
}

/// Asserts the reason, and parts of the message.
#[track_caller]
fn is_explained(observed: &Observed, reason: Reason, words: &[&str]) {
    let problem = explain(observed).unwrap_or_else(|| panic!("no diagnosis instead of {reason:?}"));
    assert_eq!(problem.reason, reason, "{problem}");
    for words in words {
        assert!(
            problem.to_string().contains(words),
            "{words:?} is not in {:?}",
            problem
        );
    }
}

#[track_caller]
fn is_explained_after(observed: &Observed, seconds: u64) {
    assert_eq!(explain(observed), None);
    assert_eq!(recheck(observed), Some(Duration::from_secs(seconds)));
}

#[test]
fn an_image_that_cannot_be_had_is_named() {
    for reason in [
        "ImagePullBackOff",
        "ErrImagePull",
        "ErrImageNeverPull",
        "InvalidImageName",
    ] {
        let waiting = json!({"waiting": {"reason": reason, "message": "Back-off pulling"}});
        let observed =
            running(json!({"containerStatuses": [{"image": "no/such:1", "state": waiting}]}));
        is_explained(
            &observed,
            Reason::ImagePullFailed,
            &["no/such:1", reason, "correct spec.image"],
        );
    }
    let waiting =
        json!({"waiting": {"reason": "CreateContainerConfigError", "message": "no secret"}});
    let observed = running(json!({"containerStatuses": [{"image": "i", "state": waiting}]}));
    is_explained(
        &observed,
        Reason::ContainerFailed,
        &["no secret", "kubectl describe pod vm"],
    );
}

#[test]
fn problem_published_only_as_event_is_reported_with_the_event_message() {
    for (event, note, reason) in [
        (
            "FailedMount",
            "MountVolume.SetUp failed for volume \"runner-data\"",
            Reason::VolumeMountFailed,
        ),
        (
            "FailedMapVolume",
            "MapVolume.SetUpDevice failed for volume \"pv\"",
            Reason::VolumeMountFailed,
        ),
        (
            "FailedMount",
            "MountVolume.SetUp failed for volume \"seed\" : secret \"s\" not found",
            Reason::SecretMissing,
        ),
        (
            "FailedMount",
            "volume d has volumeMode Filesystem, but is specified in volumeDevices",
            Reason::ClaimWrongMode,
        ),
        (
            "FailedAttachVolume",
            "Multi-Attach error for volume \"pvc-1\"",
            Reason::VolumeAttachFailed,
        ),
        (
            "FailedCreatePodSandBox",
            "plugin type=\"bridge\" failed",
            Reason::SandboxFailed,
        ),
    ] {
        let with = |condition| {
            warned(
                scheduled_for(10, condition, json!([])),
                "pod-uid",
                event,
                note,
            )
        };
        is_explained(&with("Initialized"), reason, &[note]);
        assert_eq!(
            explain(&with("PodReadyToStartContainers")),
            None,
            "{event} is over"
        );
    }
    let strange = |seconds| {
        warned(
            scheduled_for(seconds, "PodReadyToStartContainers", json!([])),
            "pod-uid",
            "Strange",
            "n",
        )
    };
    is_explained_after(&strange(9), 10);
    is_explained(
        &strange(10),
        Reason::PodWarning,
        &["\"vm\"", "Strange", "(n)"],
    );
    let mut runs = strange(10);
    Arc::make_mut(runs.pod.as_mut().unwrap()).status.phase = "Running".to_owned();
    assert_eq!((explain(&runs), recheck(&runs)), (None, None));
}

#[test]
fn events_are_listed_only_for_objects_that_block_the_pod_start() {
    assert!(suspects(&scheduled_for(9, "Initialized", json!([]))).is_empty());
    assert_eq!(
        suspects(&scheduled_for(10, "Initialized", json!([]))),
        ["pod-uid".to_owned()].into()
    );
    let failed = json!([{"image": "i", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]);
    assert!(
        suspects(&scheduled_for(10, "Initialized", failed)).is_empty(),
        "its status says why"
    );
    let claims = |message| {
        let bound = with_claim(
            unschedulable_for(10, message),
            "vm-system-disk",
            "fast",
            "Bound",
        );
        suspects(&with_claim(bound, "vm-runner-data", "fast", "Pending"))
    };
    assert_eq!(claims(UNBOUND), ["vm-runner-data-uid".to_owned()].into());
    assert!(claims("0/1 nodes are available: 1 Insufficient cpu.").is_empty());
    let mut stopped = scheduled_for(10, "Initialized", json!([]));
    Arc::make_mut(&mut stopped.vm).spec.vm.state = State::Stopped;
    assert!(suspects(&stopped).is_empty());
}

#[test]
fn silent_kubelet_is_reported_with_its_node() {
    is_explained_after(&scheduled_for(119, "Initialized", json!([])), 1);
    let words = [
        "\"node7\"",
        "kubectl taint node node7",
        "bring the node back",
    ];
    is_explained(
        &scheduled_for(120, "Initialized", json!([])),
        Reason::NodeUnreachable,
        &words,
    );
    let creating = json!([{"name": "vm", "image": "i", "state": {"waiting": {"reason": "ContainerCreating"}}}]);
    assert_eq!(explain(&scheduled_for(600, "Initialized", creating)), None);
    let warned = warned(
        scheduled_for(600, "Initialized", json!([])),
        "pod-uid",
        "FailedAttachVolume",
        "n",
    );
    is_explained(&warned, Reason::VolumeAttachFailed, &[]);
}

fn ready_for(seconds: i64) -> Observed {
    let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": ago(seconds)});
    running(json!({"phase": "Running", "conditions": [ready]}))
}

fn with_running(mut observed: Observed, status: &str, reason: &str, seconds: i64) -> Observed {
    let condition = json!({
        "type": "Running", "status": status, "reason": reason, "message": "", "lastTransitionTime": ago(seconds),
    });
    let vm = Arc::make_mut(&mut observed.vm);
    vm.status.as_mut().unwrap().conditions = vec![serde_json::from_value(condition).unwrap()];
    observed
}

#[test]
fn missing_runner_report_is_explained_with_possible_causes() {
    is_explained_after(&ready_for(0), 10);
    is_explained_after(&ready_for(119), 1);
    for observed in [
        ready_for(120),
        with_running(ready_for(120), "False", "Creation", 150),
    ] {
        is_explained(
            &observed,
            Reason::RunnerSilent,
            &["kubectl logs vm", "NetworkPolicy", "Role vm-reporter"],
        );
    }
    // It has reported the stop of the VM and is about to exit.
    is_explained_after(&with_running(ready_for(3600), "False", "VmStopped", 1), 10);
    for (status, reason) in [
        ("True", "VmStarted"),
        ("False", "RunnerStarted"),
        ("False", "VmTerminating"),
    ] {
        let observed = with_running(ready_for(3600), status, reason, 3600);
        assert_eq!(
            (explain(&observed), recheck(&observed)),
            (None, None),
            "{reason}"
        );
    }
    let mut stopped = ready_for(3600);
    Arc::make_mut(&mut stopped.vm).spec.vm.state = State::Stopped;
    assert_eq!(explain(&stopped), None);
}

#[test]
fn running_or_stopped_vm_has_no_blocking_reason() {
    assert_eq!(explain(&running(json!({"phase": "Running"}))), None);
    assert_eq!(explain(&alone(vm(json!({"state": "Running"})))), None);
    let mut stopped = unschedulable_for(60, "no node");
    Arc::make_mut(&mut stopped.vm).spec.vm.state = State::Stopped;
    assert_eq!(explain(&stopped), None);
}

/// A running VM. Its runner reports these conditions as `False`: type and reason.
fn running_without(conditions: &[(&str, &str)]) -> Observed {
    let mut vm = seen_running(vm(json!({"state": "Running"})));
    let reported = conditions.iter().map(|(type_, reason)| {
        serde_json::from_value(json!({
            "type": type_, "status": "False", "reason": reason, "message": "there is no room for disk /d",
            "lastTransitionTime": now(),
        }))
        .unwrap()
    });
    vm.status.as_mut().unwrap().conditions.extend(reported);
    with_pod(vm, pod(json!({"phase": "Running"})))
}

#[test]
fn boot_image_that_is_missing_is_explained_unless_the_guest_has_booted() {
    let started = |bootindex: i64, booted: &str, reported: i64| {
        let disks = json!([{"bootindex": 1, "volumeClaimTemplate": {}}, {"bootindex": bootindex, "cdrom": {"image": "a.iso"}}]);
        let mut vm = seen_running(vm(json!({"state": "Running", "disks": disks})));
        let conditions = &mut vm.status.as_mut().unwrap().conditions;
        let time = now()
            .checked_add(SignedDuration::from_secs(reported))
            .unwrap();
        let booted = json!({"type": "Booted", "status": booted, "reason": "VmBooted", "message": "", "lastTransitionTime": now()});
        let media = json!({"type": "MediaReady", "status": "False", "reason": "ImageMissing",
            "message": "CD drive 0: the CD image a.iso is missing", "lastTransitionTime": time});
        conditions.retain(|condition| condition.type_ != "Booted");
        for condition in [booted, media] {
            conditions.push(serde_json::from_value(condition).unwrap());
        }
        with_pod(vm, pod(json!({"phase": "Running"})))
    };
    let words = ["a.iso is missing", "resetRequest"];
    is_explained(&started(0, "False", 2), Reason::BootImageMissing, &words);
    assert_eq!(explain(&started(0, "True", 2)), None);
    // The image was changed while the VM runs, or the guest boots from its disk.
    assert_eq!(explain(&started(0, "False", 61)), None);
    assert_eq!(explain(&started(2, "False", 2)), None);
}

#[test]
fn resize_for_which_the_node_has_no_room_is_explained_after_a_minute() {
    let pending = |seconds: i64| {
        let mut observed = running_without(&[]);
        let condition = json!({"type": "PodResizePending", "status": "True", "reason": "Deferred",
            "message": "Node didn't have enough capacity: memory", "lastTransitionTime": ago(seconds)});
        observed.pod = with_pod(
            vm(json!({})),
            pod(json!({"phase": "Running", "conditions": [condition]})),
        )
        .pod;
        observed
    };
    is_explained_after(&pending(59), 1);
    let words = ["enough capacity: memory", "free CPU or memory on the node"];
    is_explained(&pending(60), Reason::PodResizePending, &words);
    assert!(
        !explain(&pending(60))
            .unwrap()
            .to_string()
            .contains("restart")
    );
}

#[test]
fn guest_that_a_disk_has_paused_is_explained() {
    let full = ("StorageHealthy", "DiskFull");
    let error = ("StorageHealthy", "DiskError");
    let paused = ("CpusInSync", "GuestPaused");
    for reported in [&[full][..], &[full, paused]] {
        is_explained(
            &running_without(reported),
            Reason::DiskFull,
            &["no room for disk /d", "requests.storage", "continues"],
        );
    }
    is_explained(
        &running_without(&[error, paused]),
        Reason::DiskError,
        &["no room for disk /d", "kubectl logs vm"],
    );
    assert_eq!(explain(&running_without(&[error])), None);
    let silent = ("QemuResponsive", "QemuSilent");
    is_explained(
        &running_without(&[full, paused, silent]),
        Reason::QemuSilent,
        &["kubectl exec vm -- vm-runner power-off"],
    );
    let mut ended = running_without(&[full, paused, silent]);
    ended.pod = with_pod(vm(json!({})), pod(json!({"phase": "Failed"}))).pod;
    assert_eq!(explain(&ended), None);
}
