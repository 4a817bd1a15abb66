//! The decision for every combination of pod and past exits.

use super::*;

/// The decision by the table of the module: the first row that matches.
fn by_the_table(
    wanted: State,
    present: Present,
    valid: bool,
    stops: bool,
    past: Past,
) -> &'static str {
    use Past as P;
    use Present as Pod;
    use State::*;
    match (wanted, present, past) {
        (Stopped, Pod::None | Pod::Foreign, _) => "keep",
        (Running, Pod::Foreign, _) => "wait for the other pod",
        (Running, Pod::Ending, P::OfEarlierNotDue | P::OfEarlierDue) => "remember 4",
        (Running, Pod::Ending, P::None) => "remember 1",
        (_, Pod::Ending, _) => "wait for the end",
        (Stopped, ..) => "delete",
        (Running, Pod::None, _) if !valid => "wait for a spec",
        (Running, Pod::None, P::OfThisNotDue | P::OfEarlierNotDue) => "wait for the backoff",
        (Running, Pod::None, _) => "create",
        (Running, Pod::Alive, _) => "keep",
        (Running, _, P::OfThisNotDue) => "wait for the backoff",
        (Running, _, P::OfThisDue) => "delete",
        (Running, Pod::PoweredOff, _) if stops => "stop the VM",
        (Running, _, P::OfEarlierNotDue | P::OfEarlierDue) => "remember 4",
        (Running, _, P::None) => "remember 1",
    }
}

#[derive(Clone, Copy, Debug)]
enum Present {
    None,
    Foreign,
    Ending,
    Alive,
    PoweredOff,
    Ended,
}

#[derive(Clone, Copy, Debug)]
enum Past {
    None,
    OfThisDue,
    OfThisNotDue,
    OfEarlierDue,
    OfEarlierNotDue,
}

fn named(decision: &Decision) -> String {
    match decision {
        Decision::Keep => "keep".to_owned(),
        Decision::Create => "create".to_owned(),
        Decision::Delete { uid, .. } => {
            assert_eq!(uid, "pod-uid");
            "delete".to_owned()
        }
        Decision::Remember(past) => format!("remember {}", past.attempts),
        Decision::StopAfterShutdown => "stop the VM".to_owned(),
        Decision::RecordImport { .. } => "record the import".to_owned(),
        Decision::Wait(WaitFor::Correction) => "wait for a correction".to_owned(),
        Decision::Wait(WaitFor::PodEnd) => "wait for the end".to_owned(),
        Decision::Wait(WaitFor::OtherPod) => "wait for the other pod".to_owned(),
        Decision::Wait(WaitFor::Pause { .. }) => "wait for the backoff".to_owned(),
        Decision::Wait(WaitFor::ValidSpec) => "wait for a spec".to_owned(),
        Decision::Wait(WaitFor::ClaimDeletion) => "wait for the end of a PVC".to_owned(),
        Decision::Wait(WaitFor::Medium { .. }) => "wait for an image".to_owned(),
    }
}

/// Statuses of pods, with their row of the table.
fn statuses() -> Vec<(Value, Present)> {
    let failed = |reason: &str| json!({"phase": "Failed", "reason": reason, "message": "why"});
    let killed = |reason: &str, code: i32| {
        let mut status = ended("", 5);
        status["containerStatuses"][0]["state"]["terminated"]["reason"] = reason.into();
        status["containerStatuses"][0]["state"]["terminated"]["exitCode"] = code.into();
        status
    };
    let waiting = json!([{"name": "vm", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]);
    let unreachable = json!([{"type": "Ready", "status": "False"}]);
    let disrupted =
        json!([{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]);
    let mut statuses: Vec<(Value, Present)> = [
        json!({}),
        json!({"phase": "Pending"}),
        json!({"phase": "Pending", "containerStatuses": waiting}),
        json!({"phase": "Running"}),
        json!({"phase": "Unknown"}),
        json!({"phase": "Running", "conditions": unreachable}),
        json!({"phase": "Running", "conditions": disrupted}),
    ]
    .map(|status| (status, Present::Alive))
    .into();
    let ends = [
        "Evicted",
        "NodeLost",
        "NodeShutdown",
        "UnexpectedAdmissionError",
        "Preempting",
    ]
    .map(failed);
    let kills = [
        ("OOMKilled", 137),
        ("Unknown", 255),
        ("ContainerStatusUnknown", 137),
        ("Error", 137),
    ];
    let words = [
        CRASHED,
        "garbled {",
        r#"{"reason":"DiskInUse"}"#,
        r#"{"reason":"Stopped"}"#,
    ];
    let ends = ends
        .into_iter()
        .chain(kills.map(|(reason, code)| killed(reason, code)));
    statuses.extend(
        ends.chain(words.map(|word| ended(word, 5)))
            .map(|status| (status, Present::Ended)),
    );
    statuses.push((ended(POWERED_OFF, 5), Present::PoweredOff));
    statuses
}

#[test]
fn every_combination_is_decided_as_the_table_says() {
    let pasts = [
        (Past::None, None),
        (Past::OfThisDue, Some(("pod-uid", 60))),
        (Past::OfThisNotDue, Some(("pod-uid", 1))),
        (Past::OfEarlierDue, Some(("earlier", 60))),
        (Past::OfEarlierNotDue, Some(("earlier", 1))),
    ];
    let mut pods = vec![(None, Present::None)];
    for (status, present) in statuses() {
        let own = pod(status);
        let (mut foreign, mut ending) = (own.clone(), own.clone());
        foreign.metadata.owner_references = None;
        ending.metadata.deletion_timestamp = Some(Time(now()));
        pods.extend([
            (Some(own), present),
            (Some(foreign), Present::Foreign),
            (Some(ending), Present::Ending),
        ]);
    }
    let mut combinations = 0;
    for (wanted, valid, stops) in [State::Running, State::Stopped]
        .into_iter()
        .flat_map(|wanted| {
            [(true, true), (true, false), (false, true), (false, false)]
                .map(|(v, s)| (wanted, v, s))
        })
    {
        for ((past, before), (pod, present)) in pasts
            .iter()
            .flat_map(|past| pods.iter().map(move |pod| (past, pod)))
        {
            let mut machine = before.map_or_else(running, |(uid, ago)| with_past(3, uid, ago));
            machine.spec.vm.state = wanted;
            machine.spec.guest_shutdown_stops = stops;
            let observed = pod.clone().map_or_else(
                || alone(machine.clone()),
                |pod| with_pod(machine.clone(), pod),
            );
            let decided = decide(&observed, valid);
            let expected = by_the_table(wanted, *present, valid, stops, *past);
            // A missing image prevents the creation of a pod, and has no other effect.
            let waiting = named(&decided.clone().unless_boot_image_is_missing(Some(now())));
            assert_eq!(
                waiting,
                if expected == "create" {
                    "wait for an image"
                } else {
                    expected
                }
            );
            let decision = named(&decided.unless_boot_image_is_missing(None));
            assert_eq!(
                decision, expected,
                "{wanted:?} {present:?} valid {valid} stops {stops} {past:?} {pod:?}"
            );
            combinations += 1;
        }
    }
    assert_eq!(combinations, 2 * 4 * 5 * (1 + 3 * statuses().len()));
}
