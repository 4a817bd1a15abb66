use crate::api::conditions::ReadyReason as Reason;
use crate::controllers::vm::diagnose::*;
use crate::controllers::vm::fixtures::{alone, now, pod, seen_running, vm, with_pod};
use crate::controllers::vm::views::Warning;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::sync::Arc;

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
fn pod_without_a_node_is_explained_with_the_schedulers_message() {
    for (message, reason, next_step) in [
        (
            "0/1 nodes are available: 1 Insufficient memory.",
            Reason::Unschedulable,
            "free resources",
        ),
        (
            "0/1 nodes are available: 1 node(s) had volume node affinity conflict.",
            Reason::Unschedulable,
            "describe pod vm",
        ),
        (
            "0/1 nodes are available: persistentvolumeclaim \"a\" not found. not found",
            Reason::Unschedulable,
            "volumes",
        ),
        (
            "0/1 nodes are available: 1 Insufficient devices.kubevirt.io/kvm. preemption: 0/1 nodes are available",
            Reason::AcceleratorResourceMissing,
            "install cluster.yaml of the release, or change accelerator.kvmResource",
        ),
        (
            "0/1 nodes are available: 1 Insufficient vmoperator.jdrupes.org/kvm-if-present.",
            Reason::AcceleratorResourceMissing,
            "(kubectl get daemonset vm-device-plugin -n kube-system)",
        ),
        (
            "0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 Insufficient vmoperator.jdrupes.org/tun.",
            Reason::TapResourceMissing,
            "set tap.hostPath to true",
        ),
        // The node that lacks CPU may have the device.
        (
            "0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient a.org/kvm.",
            Reason::Unschedulable,
            "free resources",
        ),
    ] {
        let bound = |seconds| {
            with_claim(
                unschedulable_for(seconds, message),
                "vm-system-disk",
                "fast",
                "Bound",
            )
        };
        is_explained(&bound(10), reason, &[message, next_step]);
        assert!(
            !explain(&bound(10))
                .unwrap()
                .to_string()
                .contains("delete the PVC")
        );
        assert_eq!(
            explain(&bound(9)).is_none(),
            message.contains("persistent"),
            "only volumes have a delay"
        );
    }
    for (waited, next) in [(5, 10), (50, 50), (70, 50), (150, 120)] {
        let observed = unschedulable_for(waited, "");
        assert_eq!(
            recheck(&observed),
            Some(Duration::from_secs(next)),
            "the interval grows, and one check is at 120 s"
        );
    }
}

const UNBOUND: &str =
    "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found";

#[test]
fn claim_without_a_volume_is_named_and_only_an_empty_one_may_be_deleted() {
    let pending = with_claim(
        unschedulable_for(10, UNBOUND),
        "vm-runner-data",
        "fast",
        "Pending",
    );
    let next_step = "delete the PVC while its phase is Pending";
    let words = [
        "\"vm-runner-data\"",
        "provide a volume",
        next_step,
        "kubectl describe pvc vm-runner-data",
    ];
    is_explained(&pending, Reason::ClaimPending, &words);
    let two = with_claim(pending, "vm-system-disk", "", "Pending");
    is_explained(
        &two,
        Reason::ClaimPending,
        &["kubectl describe pvc vm-system-disk"],
    );
    let note = "storageclass.storage.k8s.io \"fast\" not found";
    let refused = warned(two, "vm-runner-data-uid", "ProvisioningFailed", note);
    is_explained(
        &refused,
        Reason::ProvisioningFailed,
        &[note, "\"vm-runner-data\"", "storage class"],
    );
    let lost = with_claim(refused, "vm-x-disk", "fast", "Lost");
    is_explained(&lost, Reason::ClaimLost, &["\"vm-x-disk\"", "restore"]);
    assert!(!explain(&lost).unwrap().to_string().contains("delete"));
    // The PVC waits until the pod has a node.
    let room = "0/1 nodes are available: 1 Insufficient memory.";
    let waits = with_claim(
        unschedulable_for(10, room),
        "vm-system-disk",
        "fast",
        "Pending",
    );
    is_explained(&waits, Reason::Unschedulable, &[room]);
}

#[test]
fn claim_that_does_not_fit_its_class_is_explained_with_the_setting() {
    let with = |name: &str, spec: Value| {
        let mut observed = with_claim(unschedulable_for(10, UNBOUND), name, "nfs", "Pending");
        let claim = json!({"metadata": {"name": name, "uid": "1"}, "spec": spec, "status": {"phase": "Pending"}});
        let claim = serde_json::from_value(claim).unwrap();
        observed.claims.insert(name.to_owned(), Arc::new(claim));
        observed
    };
    let block = with(
        "vm-system-disk",
        json!({"storageClassName": "nfs", "volumeMode": "Block"}),
    );
    let settings = [
        "set volumeMode to Filesystem",
        "diskPvc.volumeMode",
        "kubectl delete pvc vm-system-disk",
        "kubectl delete pod vm",
    ];
    is_explained(&block, Reason::ClaimPending, &settings);
    let note = "only supports filesystem volumes";
    let failed = warned(block, "1", "ProvisioningFailed", note);
    is_explained(&failed, Reason::ProvisioningFailed, &settings);
    let file = with(
        "vm-system-disk",
        json!({"storageClassName": "nfs", "volumeMode": "Filesystem"}),
    );
    assert!(!explain(&file).unwrap().to_string().contains("diskPvc"));

    let name = "vmop-image-repository";
    let mut observed = with(
        name,
        json!({"volumeMode": "Filesystem", "accessModes": ["ReadOnlyMany"]}),
    );
    observed.image_repository = observed.claims.remove(name);
    let fetch = of_fetch(&observed, &observed.pod.clone().unwrap())
        .0
        .unwrap();
    for words in [
        "ReadOnlyMany",
        "imageRepository.accessModes to [ReadWriteOnce]",
        "kubectl delete pvc vmop-image-repository",
    ] {
        assert!(fetch.to_string().contains(words), "{fetch}");
    }
}

#[test]
fn fetch_pod_without_a_node_is_explained_by_the_claim_of_the_repository() {
    let mut observed = with_claim(
        unschedulable_for(60, UNBOUND),
        "vm-system-disk",
        "fast",
        "Pending",
    );
    let pod = observed.pod.clone().unwrap();
    is_explained(&observed, Reason::ClaimPending, &["vm-system-disk"]);
    assert_eq!(
        of_fetch(&observed, &pod).0.unwrap().reason,
        Reason::Unschedulable
    );
    observed.image_repository = Some(observed.claims["vm-system-disk"].clone());
    assert_eq!(
        of_fetch(&observed, &pod).0.unwrap().reason,
        Reason::ClaimPending
    );
}

#[test]
fn what_is_published_as_an_event_only_is_told_with_its_words() {
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
fn events_are_listed_only_about_what_keeps_a_pod_from_starting() {
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
fn a_runner_that_says_nothing_is_told_of_with_what_may_keep_it_from_that() {
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

fn lost() -> Value {
    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]})
}

fn ending(mut observed: Observed, seconds_past_due: i64) -> Observed {
    let pod = Arc::make_mut(observed.pod.as_mut().unwrap());
    pod.metadata.deletion_timestamp = Some(Time(ago(seconds_past_due)));
    observed
}

#[test]
fn a_node_that_does_not_answer_is_told_with_the_way_out_and_nothing_is_forced() {
    let mut observed = running(lost());
    Arc::make_mut(&mut observed.vm)
        .status
        .as_mut()
        .unwrap()
        .node_name = Some("node7".to_owned());
    let taint = "kubectl taint node node7 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
    is_explained(
        &observed,
        Reason::NodeUnreachable,
        &["\"node7\"", "bring the node back", taint],
    );
    is_explained(
        &running(json!({"phase": "Unknown"})),
        Reason::NodeUnreachable,
        &["the node of the VM's pod"],
    );
    is_explained(
        &running(json!({"phase": "Running", "reason": "NodeLost"})),
        Reason::NodeUnreachable,
        &[],
    );
    // A reachable kubelet sets a reason.
    let not_ready = json!([{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}]);
    assert_eq!(
        explain(&running(
            json!({"phase": "Running", "conditions": not_ready})
        )),
        None
    );
}

#[test]
fn a_pod_that_does_not_end_in_its_time_is_explained_whatever_is_wanted() {
    let taint =
        json!([{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]);
    for state in ["Running", "Stopped"] {
        let observed = |status| with_pod(vm(json!({"state": state})), pod(status));
        is_explained_after(&ending(observed(json!({"phase": "Running"})), -30), 40);
        // A node that does not answer does not use the grace period.
        for seconds_past_due in [-900, 9, 10] {
            is_explained(
                &ending(observed(lost()), seconds_past_due),
                Reason::NodeUnreachable,
                &["out-of-service"],
            );
        }
        let overdue = ending(observed(json!({"phase": "Running"})), 10);
        is_explained(
            &overdue,
            Reason::TerminationOverdue,
            &["2026-01-01T11:59:50Z", "kubectl describe pod vm"],
        );
        let tainted = observed(json!({"phase": "Running", "conditions": taint}));
        is_explained(
            &ending(tainted, 10),
            Reason::NodeUnreachable,
            &["out-of-service"],
        );
        let mut held = overdue;
        Arc::make_mut(held.pod.as_mut().unwrap())
            .metadata
            .finalizers = Some(vec!["example.org/hold".to_owned()]);
        is_explained(
            &held,
            Reason::TerminationOverdue,
            &["has the finalizer example.org/hold"],
        );
    }
}

#[test]
fn nothing_is_in_the_way_of_a_vm_that_runs_or_should_not() {
    assert_eq!(explain(&running(json!({"phase": "Running"}))), None);
    assert_eq!(explain(&alone(vm(json!({"state": "Running"})))), None);
    let mut stopped = unschedulable_for(60, "no node");
    Arc::make_mut(&mut stopped.vm).spec.vm.state = State::Stopped;
    assert_eq!(explain(&stopped), None);
}

#[test]
fn a_refusal_says_what_refuses() {
    let refused = |code: u16, message: &str| {
        let status =
            json!({"status": "Failure", "code": code, "message": message, "reason": "Forbidden"});
        let source = kube::Error::Api(serde_json::from_value(status).unwrap());
        let error = Error::Api {
            verb: "create",
            kind: "Pod",
            name: "vm".to_owned(),
            source,
        };
        rejected(&error, None)
    };
    for (message, reason) in [
        (
            "pods \"vm\" is forbidden: exceeded quota: small, requested: requests.memory=1Gi",
            Reason::QuotaExceeded,
        ),
        (
            "pods \"vm\" is forbidden: violates PodSecurity \"restricted:latest\": hostNetwork",
            Reason::PolicyRefused,
        ),
        (
            "admission webhook \"w\" denied the request: no",
            Reason::PolicyRefused,
        ),
        (
            "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
            Reason::PolicyRefused,
        ),
        (
            "pods is forbidden: User \"u\" cannot create resource \"pods\" in API group \"\"",
            Reason::NotAuthorized,
        ),
        (
            "pods \"vm\" is forbidden: error looking up service account ns/vm-runner",
            Reason::Rejected,
        ),
    ] {
        let problem = refused(403, message);
        assert_eq!(problem.reason, reason, "{message}");
        assert!(
            problem.to_string().contains(message) && problem.to_string().contains("Pod vm"),
            "{}",
            problem
        );
        let has_step = problem
            .to_string()
            .contains("remove accelerator.privileged");
        assert_eq!(has_step, message.contains("PodSecurity"), "{}", problem);
    }
}

#[test]
fn rejection_by_pod_security_names_the_fields_that_ask_for_more() {
    let step = |violation: &str, spec: Value| {
        let message = format!("violates PodSecurity \"restricted:latest\": {violation}");
        let status =
            json!({"status": "Failure", "code": 403, "message": message, "reason": "Forbidden"});
        let error = Error::Api {
            verb: "create",
            kind: "Pod",
            name: "vm".to_owned(),
            source: kube::Error::Api(serde_json::from_value(status).unwrap()),
        };
        let mut vm = vm(json!({"networks": [{"user": {}}, {"tap": {}}]}));
        if spec.is_object() {
            vm.spec = serde_json::from_value(spec).unwrap();
        }
        let step = rejected(&error, Some(&vm.spec)).next_step;
        assert!(
            !step.contains("privileged)") && !step.starts_with("let"),
            "{step}"
        );
        step
    };
    let tap = step("host namespaces (hostNetwork=true)", Value::Null);
    assert!(
        tap.starts_with("remove spec.vm.networks[1].tap, or"),
        "{tap}"
    );
    let profile = json!({"container.apparmor.security.beta.kubernetes.io/vm": "unconfined"});
    let annotated = json!({"podAnnotations": profile, "vm": {}});
    let apparmor = step("forbidden AppArmor profile (unconfined)", annotated.clone());
    assert!(
        apparmor.starts_with("remove spec.podAnnotations, or"),
        "{apparmor}"
    );
    let other = step("privileged (container must not)", annotated);
    assert!(
        other.starts_with("remove accelerator.privileged"),
        "{other}"
    );
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
fn guest_that_a_disk_has_paused_is_explained() {
    let full = ("StorageHealthy", "DiskFull");
    let error = ("StorageHealthy", "DiskError");
    let paused = ("CpusInSync", "GuestPaused");
    // Runners of earlier versions report the first alone.
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
