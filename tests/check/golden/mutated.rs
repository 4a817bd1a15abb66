//! Nonsense breaks nothing: it is taken, or refused with the place where it is.

use super::generated::{settings, stored};
use serde_json::{Value, json};
use support::alone::of_spec;
use support::nonsense::mutated;
use vm_operator::controllers::vm::objects;
use vm_operator::controllers::vm::plan::plan;
use vm_operator::settings::Settings;

const SEED: [u8; 32] = *b"nonsense, the same for everyone!";

fn config(spec: Value) -> Option<Value> {
    let plan = plan(&of_spec(spec).ok()?, &settings()).ok()?;
    let text = objects::build(&plan).config_map.data.unwrap()["config.yaml"].clone();
    Some(serde_json::from_str(&text).unwrap())
}

#[test]
fn a_vm_of_nonsense_is_planned_or_refused_by_its_field() {
    let (mut planned, mut refused) = (0, 0);
    for spec in mutated(stored().take(200).collect(), SEED, 4000) {
        let Ok(observed) = of_spec(spec.clone()) else {
            continue;
        };
        match plan(&observed, &settings()) {
            Ok(plan) => {
                planned += 1;
                assert_eq!(objects::build(&plan), objects::build(&plan), "{spec}");
            }
            Err(invalid) => {
                refused += 1;
                assert!(invalid.subject.starts_with("spec."), "{spec}: {invalid:?}");
                assert!(
                    !invalid.problem.is_empty() && !invalid.next_step.is_empty(),
                    "{spec}: {invalid:?}"
                );
            }
        }
    }
    assert!(planned > 200 && refused > 30, "{planned} and {refused}");
}

#[test]
fn a_configuration_of_nonsense_is_taken_or_refused_by_its_key() {
    let (mut taken, mut refused) = (0, 0);
    let configs: Vec<Value> = stored().filter_map(config).take(100).collect();
    for config in mutated(configs, SEED, 4000) {
        match vm_operator::runner::check(&config.to_string()) {
            Ok(_) => taken += 1,
            Err(why) => {
                refused += 1;
                assert!(why.contains(": ") && !why.contains('\n'), "{config}: {why}");
            }
        }
    }
    assert!(taken > 200 && refused > 500, "{taken} and {refused}");
}

#[test]
fn settings_of_nonsense_are_taken_or_refused_with_their_file() {
    let fetch = json!({
        "schemes": ["https"], "maxSize": "20Gi", "deadline": 3600, "startDeadline": "600", "noProxy": "a",
        "httpProxy": "http://p:1", "proxySecret": "p", "authorities": {"configMap": "a", "key": "ca.crt"},
    });
    let pod_defaults = json!({"nodeSelector": {"vms": "here"}, "tolerations": [], "imagePullSecrets": [{"name": "a"}]});
    let reconciler = json!({
        "runnerDataPvc": {"storageClassName": "a"}, "cpuOvercommit": 2, "ramOvercommit": "1.25",
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
    let (mut taken, mut refused) = (0, 0);
    for settings in mutated(vec![file], SEED, 4000) {
        match Settings::parse(&settings.to_string(), "config.yaml") {
            Ok(_) => taken += 1,
            Err(error) => {
                refused += 1;
                assert!(
                    error.to_string().starts_with("config.yaml"),
                    "{settings}: {error}"
                );
            }
        }
    }
    assert!(taken > 50 && refused > 500, "{taken} and {refused}");
}
