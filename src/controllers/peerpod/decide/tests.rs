use super::*;
use crate::api::PeerPod;
use serde_json::{Value, json};

const ID: &str = "vms/podvm-a-12345678/u1";

/// A `PeerPod` that is being deleted. The changes are merged into it.
fn peerpod(name: &str, second: u8, changes: Value) -> PeerPod {
    let owner =
        json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "pod-a", "controller": true});
    let mut object = json!({
        "apiVersion": "confidentialcontainers.org/v1alpha1", "kind": "PeerPod",
        "metadata": {
            "name": name, "namespace": "ns", "uid": name, "finalizers": [names::FINALIZER], "ownerReferences": [owner],
            "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z"), "deletionTimestamp": "2026-01-01T01:00:00Z",
        },
        "spec": {"cloudProvider": "virtualmachine", "instanceID": ID},
    });
    for (path, value) in changes.as_object().unwrap() {
        let (parent, field) = path.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[field] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

fn decided(
    all: &[PeerPod],
    seconds: u64,
    pod_has_ended: Option<bool>,
    instance: Option<InstanceState>,
) -> Decision {
    let facts = Facts::of(&all[0], all.iter());
    let answer = instance.map(|state| Answer {
        state,
        ..Answer::default()
    });
    let read = Read {
        pod_has_ended,
        waited: Duration::from_secs(seconds),
        answer,
        ..Read::default()
    };
    decide(&facts, &read, &["vms".to_owned()])
}

fn reason(decision: &Decision) -> &'static str {
    match decision {
        Decision::Wait { reason, .. } => (*reason).into(),
        Decision::Nothing => "nothing",
        Decision::ReadPod => "read pod",
        Decision::Describe(_) => "describe",
        Decision::Note(_) => "note",
        Decision::Later(_) => "later",
        Decision::Delete(_) => "delete",
        Decision::Supersede => "supersede",
        Decision::Release(_) => "release",
    }
}

#[test]
fn instance_is_deleted_after_the_pod_and_the_adaptor_and_released_when_it_is_gone() {
    let one = [peerpod("one", 0, json!({}))];
    let ours = |is_ending| Some(InstanceState::Ours { is_ending });
    let steps = [
        (0, None, None, "read pod"),
        (0, Some(false), None, "WaitingForPod"),
        (60, Some(false), ours(false), "WaitingForPod"),
        (9, Some(true), None, "WaitingForAdaptor"),
        (10, Some(true), None, "describe"),
        (10, Some(true), ours(false), "delete"),
        (10, Some(true), ours(true), "Deleting"),
        (
            10,
            Some(true),
            Some(InstanceState::NotOurs(String::new())),
            "InstanceNotOurs",
        ),
        (
            10,
            Some(true),
            Some(InstanceState::Gone { has_remains: false }),
            "release",
        ),
    ];
    for (seconds, pod, instance, expected) in steps {
        let found = decided(&one, seconds, pod, instance.clone());
        assert_eq!(reason(&found), expected, "{seconds} {pod:?} {instance:?}");
    }
}

#[test]
fn objects_decide_before_anything_is_read() {
    for (changes, expected) in [
        (json!({"/metadata/finalizers": []}), "nothing"),
        (
            json!({"/metadata/finalizers": ["another/finalizer"]}),
            "nothing",
        ),
        (json!({"/metadata/deletionTimestamp": null}), "nothing"),
        (
            json!({"/metadata/deletionTimestamp": null, "/spec/instanceID": ""}),
            "nothing",
        ),
        (
            json!({"/metadata/deletionTimestamp": null, "/spec/instanceID": "i-1"}),
            "InstanceIDInvalid",
        ),
        (json!({"/spec/instanceID": ""}), "release"),
        (
            json!({"/spec/instanceID": "i-12345678"}),
            "InstanceIDInvalid",
        ),
        (
            json!({"/spec/cloudProvider": "gcp"}),
            "ProviderNotSupported",
        ),
        (json!({"/spec/cloudProvider": "aws"}), "InstanceIDInvalid"),
        (
            json!({"/spec/instanceID": "elsewhere/a/u"}),
            "ConfigMissing",
        ),
        (json!({"/metadata/ownerReferences": []}), "InstanceNotOurs"),
        (
            json!({"/metadata/annotations": {names::ANNOTATION_ABANDON: ID}}),
            "release",
        ),
        (
            json!({"/metadata/annotations": {names::ANNOTATION_ABANDON: "other"}}),
            "read pod",
        ),
    ] {
        let found = decided(&[peerpod("one", 0, changes.clone())], 60, None, None);
        assert_eq!(reason(&found), expected, "{changes}");
    }
}

#[test]
fn peerpod_without_a_spec_is_released() {
    let mut object = json!(peerpod("one", 0, json!({})));
    object.as_object_mut().unwrap().remove("spec");
    let peerpod: PeerPod = serde_json::from_value(object).unwrap();
    let found = decided(&[peerpod], 0, None, None);
    assert_eq!(found, Decision::Release(Release::NoInstance));
}

#[test]
fn younger_peerpod_of_the_pod_replaces_the_older_one() {
    let alive = json!({"/metadata/deletionTimestamp": null});
    let another = json!({"/metadata/deletionTimestamp": null, "/spec/instanceID": "vms/b/u2"});
    let released = json!({"/metadata/deletionTimestamp": null, "/metadata/finalizers": []});
    let ending = || peerpod("one", 0, json!({}));
    let present = || peerpod("one", 0, alive.clone());
    for (first, second, expected) in [
        (present(), peerpod("two", 1, another.clone()), "supersede"),
        (present(), peerpod("two", 0, another.clone()), "nothing"),
        (ending(), peerpod("two", 1, alive.clone()), "release"),
        // The pod runs, with the instance of the younger one.
        (ending(), peerpod("two", 1, another.clone()), "describe"),
        (ending(), peerpod("two", 1, released), "read pod"),
        (ending(), peerpod("two", 0, another), "read pod"),
    ] {
        let found = decided(&[first, second.clone()], 60, None, None);
        assert_eq!(reason(&found), expected, "{second:?}");
    }
}

#[test]
fn oldest_peerpod_of_different_pods_has_the_instance_in_whatever_namespace() {
    let other = json!([{"apiVersion": "v1", "kind": "Pod", "name": "b", "uid": "pod-b"}]);
    let other = |second, namespace: &str| {
        let changes = json!({"/metadata/ownerReferences": other, "/metadata/namespace": namespace, "/metadata/deletionTimestamp": null});
        peerpod("two", second, changes)
    };
    for (second, namespace, expected) in [
        (0, "other", "InstanceNotOurs"),
        (2, "other", "read pod"),
        // Within a second, namespace and name decide.
        (1, "another", "InstanceNotOurs"),
        (1, "zone", "read pod"),
    ] {
        let all = [peerpod("one", 1, json!({})), other(second, namespace)];
        let found = decided(&all, 60, None, None);
        assert_eq!(reason(&found), expected, "{second} {namespace}");
    }
}

const PLACE: &str = "1234/region";

/// An answer of EC2 at [`PLACE`].
fn answer(state: InstanceState) -> Answer {
    let is_seen = matches!(
        state,
        InstanceState::Ours { .. } | InstanceState::Gone { has_remains: true }
    );
    let seen = is_seen.then(|| seen(PLACE, "podvm-a-0123abcd"));
    Answer {
        state,
        seen,
        place: PLACE.to_owned(),
        ..Answer::default()
    }
}

fn seen(place: &str, name: &str) -> Seen {
    Seen {
        place: place.to_owned(),
        name: name.to_owned(),
        volumes: Vec::new(),
    }
}

/// The facts about an instance of EC2 with that note.
fn of_aws(is_ending: bool, note: Option<Seen>) -> Facts {
    let changes = json!({"/spec/cloudProvider": "aws", "/spec/instanceID": "i-12345678"});
    let mut facts = Facts::of(&peerpod("one", 0, changes), [].into_iter());
    (facts.is_ending, facts.seen) = (is_ending, note);
    facts
}

const ABSENT: InstanceState = InstanceState::Absent;
const RUNNING: InstanceState = InstanceState::Ours { is_ending: false };

#[test]
fn instance_of_a_running_pod_is_described_once_and_noted() {
    let noted = Some(seen(PLACE, "podvm-a-0123abcd"));
    for (note, answered, absent, expected) in [
        (None, None, 0, "describe"),
        (None, Some(RUNNING), 0, "note"),
        (None, Some(ABSENT), 0, "later"),
        (None, Some(ABSENT), 300, "InstanceNeverSeen"),
        (
            None,
            Some(InstanceState::Gone { has_remains: false }),
            0,
            "later",
        ),
        (
            None,
            Some(InstanceState::NotOurs(String::new())),
            0,
            "InstanceNotOurs",
        ),
        (noted, None, 0, "nothing"),
    ] {
        let read = Read {
            answer: answered.clone().map(answer),
            absent: Duration::from_secs(absent),
            ..Read::default()
        };
        let found = decide(&of_aws(false, note.clone()), &read, &[]);
        assert_eq!(reason(&found), expected, "{note:?} {answered:?} {absent}");
    }
}

#[test]
fn instance_of_aws_is_gone_if_it_is_terminated_or_absent_twice_where_it_was_seen() {
    let here = Some(seen(PLACE, "podvm-a-0123abcd"));
    let elsewhere = Some(seen("1234/other", "podvm-a-0123abcd"));
    for (note, answered, absent, expected) in [
        (&None, RUNNING, 0, "note"),
        (&here, RUNNING, 0, "delete"),
        (
            &here,
            InstanceState::Ours { is_ending: true },
            0,
            "Deleting",
        ),
        (
            &None,
            InstanceState::Gone { has_remains: false },
            0,
            "release",
        ),
        (
            &here,
            InstanceState::Gone { has_remains: true },
            0,
            "delete",
        ),
        (&None, ABSENT, 9999, "InstanceNeverSeen"),
        (&elsewhere, ABSENT, 9999, "ScopeChanged"),
        (&here, ABSENT, 0, "Deleting"),
        (&here, ABSENT, 299, "Deleting"),
        (&here, ABSENT, 300, "release"),
        (
            &here,
            InstanceState::NotOurs(String::new()),
            9999,
            "InstanceNotOurs",
        ),
    ] {
        let read = Read {
            pod_has_ended: Some(true),
            waited: ADAPTOR_TIME,
            answer: Some(answer(answered.clone())),
            absent: Duration::from_secs(absent),
        };
        let found = decide(&of_aws(true, note.clone()), &read, &[]);
        assert_eq!(reason(&found), expected, "{note:?} {answered:?} {absent}");
    }
}

#[test]
fn domain_of_libvirt_is_gone_at_once_where_it_was_seen_and_its_noted_volumes_are_deleted() {
    let with = |place: &str, volumes: &[&str]| Seen {
        volumes: volumes.iter().map(|it| (*it).to_owned()).collect(),
        ..seen(place, "podvm-a-0123abcd")
    };
    let (here, elsewhere) = (Some(with(PLACE, &["p/a"])), Some(with("host", &["p/a"])));
    for (note, state, noted_remain, expected) in [
        (&None, ABSENT, false, "InstanceNeverSeen"),
        (&elsewhere, ABSENT, true, "ScopeChanged"),
        (&here, ABSENT, true, "delete"),
        (&here, ABSENT, false, "release"),
        // The note must have all volumes before the domain is deleted.
        (&None, RUNNING, false, "note"),
        (&elsewhere, RUNNING, false, "note"),
        (&Some(with(PLACE, &[])), RUNNING, false, "note"),
        (&here, RUNNING, false, "delete"),
    ] {
        let changes = json!({"/spec/cloudProvider": "libvirt", "/spec/instanceID": "0123abcd-0001-0203-0405-060708090a0b"});
        let mut facts = Facts::of(&peerpod("one", 0, changes), [].into_iter());
        facts.seen.clone_from(note);
        let read = Read {
            pod_has_ended: Some(true),
            waited: ADAPTOR_TIME,
            answer: Some(Answer {
                seen: (state == RUNNING).then(|| with(PLACE, &["p/a"])),
                noted_remain,
                ..answer(state.clone())
            }),
            absent: Duration::ZERO,
        };
        let found = decide(&facts, &read, &[]);
        assert_eq!(
            reason(&found),
            expected,
            "{note:?} {state:?} {noted_remain}"
        );
    }
}

#[test]
fn nothing_is_deleted_while_the_adaptor_retains_instances() {
    let here = || Some(seen(PLACE, "podvm-a-0123abcd"));
    for state in [RUNNING, InstanceState::Gone { has_remains: true }] {
        let retained = Answer {
            is_developer_mode: true,
            ..answer(state)
        };
        let read = Read {
            pod_has_ended: Some(true),
            waited: ADAPTOR_TIME,
            answer: Some(retained),
            absent: Duration::ZERO,
        };
        let found = decide(&of_aws(true, here()), &read, &[]);
        assert_eq!(reason(&found), "DeveloperMode");
        let Decision::Wait { message, .. } = found else {
            panic!("{found:?}");
        };
        assert!(message.contains(names::KEY_DEVELOPER_MODE), "{message}");
    }
}

/// What an adaptor, a pod and a provider can show at one moment.
struct Moment {
    has_ended: bool,
    waited: Duration,
    answer: Answer,
}

fn moments() -> Vec<Moment> {
    let states = [
        RUNNING,
        ABSENT,
        InstanceState::Gone { has_remains: true },
        InstanceState::Gone { has_remains: false },
        InstanceState::Ours { is_ending: true },
        InstanceState::NotOurs(String::new()),
    ];
    let mut moments = Vec::new();
    for state in states {
        for bits in 0..8 {
            let mut answer = answer(state.clone());
            if bits & 1 > 0 {
                answer.place = "1234/other".to_owned();
                answer.seen = answer.seen.map(|it| seen("1234/other", &it.name));
            }
            moments.push(Moment {
                has_ended: bits & 2 > 0,
                waited: if bits & 4 > 0 {
                    ADAPTOR_TIME
                } else {
                    Duration::ZERO
                },
                answer,
            });
        }
    }
    moments
}

/// The facts about an instance of one `PeerPod`, each with the length of the sequences of moments. Then those about an instance of two: that
/// of a younger one of the pod, which has the same instance or another one, and that of an older one of another pod.
fn relations() -> [(Facts, u32); 4] {
    let with = |younger, older: Option<&str>| Facts {
        younger,
        older_peerpod: older.map(str::to_owned),
        ..of_aws(true, None)
    };
    [
        (with(None, None), 3),
        (with(Some(Younger::SameInstance), None), 1),
        (with(Some(Younger::OtherInstance), None), 1),
        (with(None, Some("other/one")), 1),
    ]
}

/// Runs the decision over all sequences of moments. A provider can lie: EC2 in the wrong region, with lost instances and with stale
/// answers. Returns the outcomes, or the first deletion or release without a proof.
fn outcomes(
    decide: impl Fn(&Facts, &Read) -> Decision,
) -> Result<std::collections::BTreeSet<String>, String> {
    const SECONDS: u64 = 300;
    let moments = moments();
    let mut outcomes = std::collections::BTreeSet::new();
    let all = relations().into_iter().flat_map(|(base, steps)| {
        let sequences = 0..moments.len().pow(steps);
        sequences.map(move |sequence| (base.clone(), steps, sequence))
    });
    for (base, steps, sequence) in all {
        let is_of_another =
            base.younger == Some(Younger::SameInstance) || base.older_peerpod.is_some();
        let (mut rest, mut note, mut absent_since) = (sequence, None, None::<u64>);
        let mut seen_at = std::collections::BTreeSet::new();
        for step in 0..steps {
            let (moment, now) = (&moments[rest % moments.len()], u64::from(step) * SECONDS);
            rest /= moments.len();
            let Moment {
                has_ended,
                waited,
                answer,
            } = moment;
            let is_absent = matches!(answer.state, InstanceState::Absent);
            absent_since = is_absent.then(|| absent_since.unwrap_or(now));
            let absent = absent_since.map_or(0, |since| now - since);
            let read = Read {
                pod_has_ended: Some(*has_ended),
                waited: *waited,
                absent: Duration::from_secs(absent),
                answer: Some(answer.clone()),
            };
            let mut facts = base.clone();
            facts.seen.clone_from(&note);
            let mut decision = decide(&facts, &read);
            if let Decision::Note(new) = decision {
                seen_at.insert(new.place.clone());
                (note, facts.seen) = (Some(new.clone()), Some(new));
                decision = decide(&facts, &read);
            }
            outcomes.insert(reason(&decision).to_owned());
            // The adaptor has started the pod again with another instance.
            let has_ended = *has_ended || base.younger == Some(Younger::OtherInstance);
            let has_waited = has_ended && *waited >= ADAPTOR_TIME;
            let is_gone = matches!(answer.state, InstanceState::Gone { has_remains: false });
            let was_here = seen_at.contains(&answer.place);
            let is_right = match &decision {
                Decision::Delete(_) => !is_of_another && has_waited && answer.seen.is_some(),
                Decision::Release(Release::Replaced) => base.younger == Some(Younger::SameInstance),
                Decision::Release(release) => {
                    let is_proved = is_gone || is_absent && was_here && absent >= SECONDS;
                    !is_of_another && *release == Release::Gone && has_ended && is_proved
                }
                _ => true,
            };
            if !is_right {
                return Err(format!(
                    "{} after {sequence}: {read:?} {note:?}",
                    reason(&decision)
                ));
            }
        }
    }
    Ok(outcomes)
}

#[test]
fn wrong_provider_data_never_deletes_used_instances_or_releases_without_proof() {
    let found = outcomes(|facts, read| decide(facts, read, &[])).unwrap();
    for outcome in [
        "delete",
        "release",
        "ScopeChanged",
        "InstanceNeverSeen",
        "WaitingForPod",
        "Deleting",
    ] {
        assert!(found.contains(outcome), "{found:?}");
    }
    // The model finds each rule that is left out.
    let without = |change: fn(&mut Facts, &mut Read)| {
        let found = outcomes(|facts, read| {
            let (mut facts, mut read) = (facts.clone(), read.clone());
            change(&mut facts, &mut read);
            decide(&facts, &read, &[])
        });
        found.unwrap_err()
    };
    let pod = without(|_, read| read.pod_has_ended = Some(true));
    let adaptor = without(|_, read| read.waited = ADAPTOR_TIME);
    let proof = without(|_, read| {
        let answer = read.answer.as_mut().unwrap();
        if matches!(answer.state, InstanceState::NotOurs(_)) {
            answer.state = RUNNING;
        }
    });
    let younger = without(|facts, _| facts.younger = None);
    let older = without(|facts, _| facts.older_peerpod = None);
    assert!(
        [pod, adaptor, proof, younger, older]
            .iter()
            .all(|it| it.starts_with("delete "))
    );
    let once = without(|_, read| read.absent = Duration::from_secs(3600));
    let place = without(|facts, read| {
        if let (Some(note), Some(answer)) = (&mut facts.seen, &read.answer) {
            note.place.clone_from(&answer.place);
        }
    });
    assert!([once, place].iter().all(|it| it.starts_with("release ")));
}
