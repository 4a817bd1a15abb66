use super::super::fixtures::{alone, now, pod, vm, with_pod};
use super::starting::GRACE_STATIC;
use super::*;
use crate::api::conditions::ReadyReason as Reason;
use crate::operator::warnings::Warning;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::sync::Arc;

fn running(status: Value) -> Observed {
    with_pod(vm(json!({"state": "Running"})), pod(status))
}

fn ago(seconds: i64) -> Timestamp {
    now().checked_sub(SignedDuration::from_secs(seconds)).unwrap()
}

fn unschedulable_for(seconds: i64, message: &str) -> Observed {
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": message, "lastTransitionTime": ago(seconds),
    });
    running(json!({"phase": "Pending", "conditions": [condition]}))
}

fn with_claim(mut observed: Observed, name: &str, class: &str, phase: &str) -> Observed {
    let spec = json!({"storageClassName": class});
    let claim = json!({"metadata": {"name": name}, "spec": spec, "status": {"phase": phase}});
    observed.claims.insert(name.to_owned(), Arc::new(serde_json::from_value(claim).unwrap()));
    observed
}

fn warned(reason: &str, note: &str, seconds: i64) -> Observed {
    let mut observed = running(json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}));
    let warning = Warning { reason: reason.to_owned(), note: note.to_owned(), at: ago(seconds) };
    observed.pod_warning = Some(Arc::new(warning));
    observed
}

/// Says that reason now, with those words.
#[track_caller]
fn is_told(observed: &Observed, reason: Reason, words: &[&str]) {
    let problem = explain(observed).unwrap_or_else(|| panic!("nothing is told, but {reason:?} should be"));
    assert_eq!(problem.reason, reason, "{}", problem.message);
    for words in words {
        assert!(problem.message.contains(words), "{words:?} is not in {:?}", problem.message);
    }
    assert_eq!(recheck(observed), None);
}

#[track_caller]
fn is_told_after(observed: &Observed, seconds: u64) {
    assert_eq!(explain(observed), None);
    assert_eq!(recheck(observed), Some(Duration::from_secs(seconds)));
}

/// Says that as part of the start, and looks again after that time.
#[track_caller]
fn is_told_as_waiting(observed: &Observed, seconds: u64, words: &[&str]) {
    let told = explain(observed).unwrap();
    assert_eq!((told.reason, recheck(observed)), (Reason::Starting, Some(Duration::from_secs(seconds))));
    assert!(words.iter().all(|word| told.message.contains(word)), "{}", told.message);
}

#[test]
fn an_image_that_cannot_be_had_is_named() {
    for reason in ["ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName"] {
        let waiting = json!({"waiting": {"reason": reason, "message": "Back-off pulling"}});
        let observed = running(json!({"containerStatuses": [{"image": "no/such:1", "state": waiting}]}));
        is_told(&observed, Reason::ImagePullFailed, &["no/such:1", reason, "correct spec.image"]);
    }
    let waiting = json!({"waiting": {"reason": "CreateContainerConfigError", "message": "no secret"}});
    let observed = running(json!({"containerStatuses": [{"image": "i", "state": waiting}]}));
    is_told(&observed, Reason::ContainerFailed, &["no secret", "kubectl describe pod vm"]);
}

#[test]
fn what_does_not_go_away_by_itself_is_told_at_once() {
    for (words, reason, next_step) in [
        ("0/1 nodes are available: 1 Insufficient memory.", Reason::Unschedulable, "make room"),
        ("0/2 nodes are available: 2 node(s) had untolerated taint(s).", Reason::Unschedulable, "node selection"),
        (
            "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
            Reason::Unschedulable,
            "make",
        ),
        (
            "0/1 nodes are available: 1 Insufficient devices.kubevirt.io/kvm. preemption: 0/1 nodes are available",
            Reason::AcceleratorResourceMissing,
            "(kubectl apply -k deploy/device-plugin), or set accelerator.policy to tcg",
        ),
        (
            "0/1 nodes are available: 1 Insufficient vmoperator.jdrupes.org/tun.",
            Reason::TapResourceMissing,
            "set tap.hostPath to true",
        ),
        (
            "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.",
            Reason::Unschedulable,
            "no node has the VM's ports free",
        ),
        (
            "0/1 nodes are available: 1 node(s) had volume node affinity conflict.",
            Reason::VolumeBindingFailed,
            "spec.nodeSelector",
        ),
        (
            "running PreBind plugin \"VolumeBinding\": binding volumes: context deadline exceeded",
            Reason::VolumeBindingFailed,
            "kubectl describe pod vm",
        ),
    ] {
        is_told(&unschedulable_for(0, words), reason, &[words, next_step]);
    }
}

mod scheduling;
mod silence;

const UNBOUND: &str = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found";

#[test]
fn a_volume_that_is_being_made_is_a_problem_only_if_that_lasts() {
    let made_for = |seconds| with_claim(unschedulable_for(seconds, UNBOUND), "vm-runner-data", "fast", "Pending");
    is_told_after(&made_for(0), 10);
    is_told_after(&made_for(9), 1);
    is_told_as_waiting(&made_for(10), 20, &["\"vm-runner-data\"", "has no volume"]);
    let next_step = "kubectl describe pvc vm-runner-data";
    is_told(&made_for(30), Reason::ClaimPending, &["\"vm-runner-data\"", "provide a volume", next_step]);
    // The claim has just been made and the scheduler has not seen it yet.
    let missing = "0/1 nodes are available: persistentvolumeclaim \"vm-runner-data\" not found.";
    is_told_after(&unschedulable_for(0, missing), 10);
    is_told_as_waiting(&unschedulable_for(29, missing), 1, &["is not there"]);
    is_told(&unschedulable_for(30, missing), Reason::ClaimPending, &["is not there"]);
}

#[test]
fn a_volume_that_must_be_there_already_is_waited_for_less_long() {
    let two = |seconds| {
        let dynamic = with_claim(unschedulable_for(seconds, UNBOUND), "vm-runner-data", "fast", "Pending");
        with_claim(dynamic, "vm-system-disk", "", "Pending")
    };
    is_told_after(&two(0), GRACE_STATIC.as_secs().unsigned_abs());
    is_told(&two(10), Reason::ClaimPending, &["kubectl describe pvc vm-system-disk"]);
    is_told(&with_claim(two(0), "vm-a-disk", "fast", "Lost"), Reason::ClaimLost, &["\"vm-a-disk\"", "restore"]);
}

#[test]
fn a_class_that_makes_no_volume_is_told_at_once() {
    let mut observed = with_claim(unschedulable_for(0, UNBOUND), "vm-system-disk", "no-such", "Pending");
    let note = "storageclass.storage.k8s.io \"no-such\" not found".to_owned();
    let warning = Warning { reason: "ProvisioningFailed".to_owned(), note: note.clone(), at: now() };
    observed.claim_warnings.insert("vm-system-disk".to_owned(), Arc::new(warning));
    let observed = with_claim(observed, "vm-a-disk", "", "Pending");
    is_told(&observed, Reason::ProvisioningFailed, &[&note, "\"vm-system-disk\"", "storage class"]);
}

#[test]
fn what_is_published_as_an_event_only_is_told_with_its_words() {
    for (event, note, reason) in [
        ("FailedMount", "MountVolume.SetUp failed for volume \"runner-data\"", Reason::VolumeMountFailed),
        ("FailedMapVolume", "MapVolume.SetUpDevice failed for volume \"pv\"", Reason::VolumeMountFailed),
        (
            "FailedMount",
            "MountVolume.SetUp failed for volume \"seed\" : secret \"seed\" not found",
            Reason::SecretMissing,
        ),
        (
            "FailedMount",
            "MountVolume.SetUp failed for volume \"config\" : references non-existent secret key: display-password",
            Reason::SecretMissing,
        ),
        (
            "FailedMount",
            "volume d has volumeMode Filesystem, but is specified in volumeDevices",
            Reason::ClaimWrongMode,
        ),
        ("FailedAttachVolume", "Multi-Attach error for volume \"pvc-1\"", Reason::VolumeAttachFailed),
        ("FailedCreatePodSandBox", "plugin type=\"bridge\" failed", Reason::SandboxFailed),
    ] {
        is_told(&warned(event, note, 0), reason, &[note]);
    }
}

#[test]
fn an_unknown_warning_is_passed_on_where_the_pod_does_not_start() {
    is_told_after(&warned("Strange", "never heard of", 0), 10);
    is_told_after(&warned("Strange", "never heard of", 9), 1);
    is_told(&warned("Strange", "never heard of", 10), Reason::PodWarning, &["\"vm\"", "Strange", "never heard of"]);
}

#[test]
fn a_warning_of_the_past_is_nothing_to_a_pod_that_runs() {
    let mut observed = warned("FailedMount", "once", 0);
    observed.pod = Some(Arc::new(pod(json!({"phase": "Running"}))));
    assert_eq!((explain(&observed), recheck(&observed)), (None, None));
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
    Arc::make_mut(&mut observed.vm).status.as_mut().unwrap().node_name = Some("node7".to_owned());
    let taint = "kubectl taint node node7 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
    is_told(&observed, Reason::NodeUnreachable, &["\"node7\"", "bring the node back", taint]);
    is_told(&running(json!({"phase": "Unknown"})), Reason::NodeUnreachable, &["the pod's node"]);
    is_told(&running(json!({"phase": "Running", "reason": "NodeLost"})), Reason::NodeUnreachable, &[]);
    // A kubelet that lives gives a reason.
    let not_ready = json!([{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}]);
    assert_eq!(explain(&running(json!({"phase": "Running", "conditions": not_ready}))), None);
}

#[test]
fn a_pod_that_does_not_end_in_its_time_is_explained_whatever_is_wanted() {
    let taint = json!([{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]);
    for state in ["Running", "Stopped"] {
        let observed = |status| with_pod(vm(json!({"state": state})), pod(status));
        is_told_after(&ending(observed(json!({"phase": "Running"})), -30), 40);
        // A node that does not answer does not use the pod's time to end either.
        for seconds_past_due in [-900, 9, 10] {
            is_told(&ending(observed(lost()), seconds_past_due), Reason::NodeUnreachable, &["out-of-service"]);
        }
        let overdue = ending(observed(json!({"phase": "Running"})), 10);
        is_told(&overdue, Reason::TerminationOverdue, &["2026-01-01T11:59:50Z", "kubectl describe pod vm"]);
        let tainted = observed(json!({"phase": "Running", "conditions": taint}));
        is_told(&ending(tainted, 10), Reason::NodeUnreachable, &["out-of-service"]);
        let mut held = overdue;
        Arc::make_mut(held.pod.as_mut().unwrap()).metadata.finalizers = Some(vec!["example.org/hold".to_owned()]);
        is_told(&held, Reason::TerminationOverdue, &["held by the finalizer example.org/hold"]);
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
        let status = json!({"status": "Failure", "code": code, "message": message, "reason": "Forbidden"});
        let source = kube::Error::Api(serde_json::from_value(status).unwrap());
        Problem::rejected(&Error::Api { verb: "create", kind: "Pod", name: "vm".to_owned(), source })
    };
    for (message, reason) in [
        ("pods \"vm\" is forbidden: exceeded quota: small, requested: requests.memory=1Gi", Reason::QuotaExceeded),
        ("pods \"vm\" is forbidden: violates PodSecurity \"restricted:latest\": hostNetwork", Reason::PolicyRefused),
        ("admission webhook \"w\" denied the request: no", Reason::PolicyRefused),
        ("ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", Reason::PolicyRefused),
        ("pods is forbidden: User \"u\" cannot create resource \"pods\" in API group \"\"", Reason::NotAuthorized),
        ("pods \"vm\" is forbidden: error looking up service account ns/vm-runner", Reason::Rejected),
    ] {
        let problem = refused(403, message);
        assert_eq!(problem.reason, reason, "{message}");
        assert!(problem.message.contains(message) && problem.message.contains("Pod vm"), "{}", problem.message);
        let says_how = problem.message.contains("enforce=privileged), or do without");
        assert_eq!(says_how, message.contains("PodSecurity"), "{}", problem.message);
    }
}

#[test]
fn every_problem_is_in_the_table_once_with_a_next_step() {
    for reason in Reason::ALL.iter().copied().filter(|reason| reason.is_problem()) {
        let entries = reasons::ENTRIES.iter().filter(|entry| entry.reason == reason).collect::<Vec<_>>();
        assert_eq!(entries.len(), 1, "{reason:?}");
        assert!(!entries[0].cause.is_empty() && !entries[0].next_step.is_empty(), "{reason:?}");
    }
    assert!(reasons::ENTRIES.iter().all(|entry| entry.reason.is_problem()));
}

#[test]
fn every_end_that_a_runner_can_tell_of_is_in_the_table() {
    use crate::api::outcome::EndReason::*;
    let all = [
        GuestShutdown,
        Stopped,
        InvalidConfig,
        FirmwareMissing,
        DataNotAccessible,
        DiskInUse,
        DeviceNotPermitted,
        AcceleratorUnavailable,
        StartFailed,
        QemuCrashed,
        GuestHalted,
        MonitorLost,
    ];
    for end in all {
        assert!(reasons::ENDS.iter().any(|(name, ..)| *name == format!("{end:?}")), "{end:?}");
    }
}
