//! Who should say something and does not, and what is said too late.

use super::*;

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
    is_told_after(&ready_for(0), 60);
    is_told_after(&ready_for(59), 1);
    for observed in [ready_for(60), with_running(ready_for(60), "False", "Creation", 90)] {
        let problem = explain(&observed).expect("something is told");
        assert_eq!(problem.reason.as_str(), "RunnerSilent");
        for words in ["kubectl logs vm", "NetworkPolicy", "Role vm-runner"] {
            assert!(problem.message.contains(words), "{}", problem.message);
        }
        assert_eq!(recheck(&observed), None);
    }
    // It has told the end of its machine, and ends in a moment.
    is_told_after(&with_running(ready_for(3600), "False", "VmStopped", 1), 59);
    for (status, reason) in [("True", "VmStarted"), ("False", "RunnerStarted"), ("False", "VmTerminating")] {
        let observed = with_running(ready_for(3600), status, reason, 3600);
        assert_eq!((explain(&observed), recheck(&observed)), (None, None), "{reason}");
    }
    let mut stopped = ready_for(3600);
    Arc::make_mut(&mut stopped.vm).spec.vm.state = State::Stopped;
    assert_eq!(explain(&stopped), None);
}

fn scheduled_for(seconds: i64, containers: Value) -> Observed {
    let scheduled = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": ago(seconds)});
    let mut observed = running(json!({"phase": "Pending", "conditions": [scheduled], "containerStatuses": containers}));
    // Where the VM has run before.
    Arc::make_mut(&mut observed.vm).status.as_mut().unwrap().node_name = Some("earlier".to_owned());
    let mut pod = serde_json::to_value(observed.pod.as_deref().unwrap()).unwrap();
    pod["spec"] = json!({"nodeName": "node7"});
    observed.pod = Some(Arc::new(serde_json::from_value(pod).unwrap()));
    observed
}

#[test]
fn a_node_that_has_got_a_pod_and_says_nothing_of_it_is_told_of_by_its_name() {
    is_told_after(&scheduled_for(0, json!([])), 120);
    is_told_after(&scheduled_for(119, json!([])), 1);
    let words = ["\"node7\"", "kubectl taint node node7", "bring the node back"];
    is_told(&scheduled_for(120, json!([])), Reason::NodeUnreachable, &words);
    let creating = json!([{"name": "vm", "image": "i", "state": {"waiting": {"reason": "ContainerCreating"}}}]);
    let observed = scheduled_for(600, creating);
    assert_eq!((explain(&observed), recheck(&observed)), (None, None));
    // What is known of why it does not start says more.
    let mut warned = scheduled_for(600, json!([]));
    let warning = Warning { reason: "FailedAttachVolume".to_owned(), note: "n".to_owned(), at: ago(500) };
    warned.pod_warning = Some(Arc::new(warning));
    is_told(&warned, Reason::VolumeAttachFailed, &[]);
}

#[test]
fn a_warning_of_volumes_or_of_the_sandbox_is_over_once_the_containers_can_be_started() {
    let ready = |status: &str| json!({"type": "PodReadyToStartContainers", "status": status});
    for event in ["FailedMount", "FailedMapVolume", "FailedAttachVolume", "FailedCreatePodSandBox"] {
        let with = |status: &str| {
            let mut observed = warned(event, "once", 0);
            let pod = running(json!({"phase": "Pending", "conditions": [ready(status)]})).pod;
            observed.pod = pod;
            explain(&observed).is_some()
        };
        assert_eq!((with("False"), with("True")), (true, false), "{event}");
    }
    let mut strange = warned("Strange", "never heard of", 10);
    strange.pod = running(json!({"phase": "Pending", "conditions": [ready("True")]})).pod;
    is_told(&strange, Reason::PodWarning, &["never heard of"]);
}

#[test]
fn a_clock_that_was_far_ahead_delays_nothing_and_one_that_is_a_little_ahead_not_much() {
    let since = |seconds: i64| with_claim(unschedulable_for(-seconds, UNBOUND), "vm-runner-data", "fast", "Pending");
    is_told_after(&since(5), 15);
    is_told(&since(3600), Reason::ClaimPending, &[]);
    is_told(&warned("Strange", "never heard of", -3600), Reason::PodWarning, &[]);
    let problem = explain(&ready_for(-3600)).expect("something is told");
    assert_eq!(problem.reason.as_str(), "RunnerSilent");
}
