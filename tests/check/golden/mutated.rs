//! Mutated specs are accepted, or rejected with the path of the error. They break nothing.

use super::generated::{settings, stored};
use serde_json::{Value, json};
use support::mutation::mutated;
use support::observed::observed_of_spec;
use vm_operator::controllers::vm::objects;
use vm_operator::controllers::vm::plan::plan;
use vm_operator::settings::{Section, Settings};

const SEED: [u8; 32] = *b"nonsense, the same for everyone!";

fn config(spec: Value) -> Option<Value> {
    let plan = plan(&observed_of_spec(spec).ok()?, &settings()).ok()?;
    let text = objects::build(&plan).config_map.data.unwrap()["config.yaml"].clone();
    Some(serde_json::from_str(&text).unwrap())
}

#[test]
fn a_vm_of_nonsense_is_planned_or_refused_by_its_field() {
    let (mut planned, mut rejected) = (0, 0);
    for spec in mutated(stored().take(200).collect(), SEED, 4000) {
        let Ok(observed) = observed_of_spec(spec.clone()) else {
            continue;
        };
        match plan(&observed, &settings()) {
            Ok(plan) => {
                planned += 1;
                assert_eq!(objects::build(&plan), objects::build(&plan), "{spec}");
            }
            Err(invalid) => {
                rejected += 1;
                assert!(invalid.subject.starts_with("spec."), "{spec}: {invalid:?}");
                assert!(
                    !invalid.problem.is_empty() && !invalid.next_step.is_empty(),
                    "{spec}: {invalid:?}"
                );
            }
        }
    }
    assert!(planned > 200 && rejected > 30, "{planned} and {rejected}");
}

#[test]
fn a_configuration_of_nonsense_is_taken_or_refused_by_its_key() {
    let (mut accepted, mut rejected) = (0, 0);
    let configs: Vec<Value> = stored().filter_map(config).take(100).collect();
    for config in mutated(configs, SEED, 4000) {
        match vm_operator::runner::check(&config.to_string()) {
            Ok(_) => accepted += 1,
            Err(why) => {
                rejected += 1;
                assert!(why.contains(": ") && !why.contains('\n'), "{config}: {why}");
            }
        }
    }
    assert!(
        accepted > 200 && rejected > 500,
        "{accepted} and {rejected}"
    );
}

#[test]
fn settings_of_nonsense_are_taken_or_refused_with_their_file() {
    let fetch = json!({
        "schemes": ["https"], "maxSize": "20Gi", "deadline": 3600, "startDeadline": "600", "noProxy": "a",
        "httpProxy": "http://p:1", "proxySecret": "p", "authorities": {"configMap": "a", "key": "ca.crt"},
    });
    let pod_defaults = json!({"nodeSelector": {"vms": "here"}, "tolerations": [], "imagePullSecrets": [{"name": "a"}]});
    let reconciler = json!({
        "runnerDataPvc": {"storageClassName": "a", "size": "1Gi"}, "cpuOvercommit": 2, "ramOvercommit": "1.25",
        "loadBalancerService": {"labels": {"a": "b"}}, "loggingProperties": ".level=FINE", "replacedImages": ["a"],
        "runnerImage": {"source": "a", "pullPolicy": "Always"}, "podDefaults": pod_defaults,
        "imageRepository": {"create": true, "size": "1Gi", "accessModes": ["ReadWriteMany"], "fetch": fetch},
        "accelerator": {"policy": "kvm", "kvmResource": "a/b", "privileged": false}, "tap": {"tunResource": "a/b"},
        "deviceAccess": "cri",
    });
    let file =
        json!({"/Manager": {"/Controller": {"namespace": "vms", "/Reconciler": reconciler}}});
    assert_eq!(
        Settings::parse(&file.to_string(), "config.yaml").unwrap().1,
        [""; 0]
    );
    let (mut accepted, mut rejected) = (0, 0);
    for settings in mutated(vec![file], SEED, 4000) {
        match Settings::parse(&settings.to_string(), "config.yaml") {
            Ok(_) => accepted += 1,
            Err(error) => {
                rejected += 1;
                assert!(
                    error.to_string().starts_with("config.yaml"),
                    "{settings}: {error}"
                );
            }
        }
    }
    assert!(accepted > 50 && rejected > 500, "{accepted} and {rejected}");
}
