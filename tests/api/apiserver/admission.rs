//! Each admission rule: accepted values, rejected values, and its message. A rule without a case fails the test.

mod disks;
mod machine;
mod pod;

use crate::apiserver::definition::Definition;
use crate::apiserver::world::World;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use vm_operator::api::vm::rules::RULES;

/// Cases of one rule.
struct Case {
    /// The path of the rule and a part of its message, because a path can have several rules.
    rule: (&'static str, &'static str),
    /// Accepted values at that path.
    admitted: Vec<Value>,
    /// Rejected values at that path.
    rejected: Vec<Value>,
}

fn case(at: &'static str, message: &'static str, admitted: Value, rejected: Value) -> Case {
    let list = |values: Value| values.as_array().unwrap().clone();
    Case {
        rule: (at, message),
        admitted: list(admitted),
        rejected: list(rejected),
    }
}

/// A spec with the value at that path of the schema, and only the required fields besides.
fn spec(at: &str, value: &Value) -> Value {
    let mut spec = embed(at.strip_prefix("spec.").unwrap(), value);
    if spec.get("vm").is_none() {
        spec["vm"] = json!({});
    }
    if [
        "spec.image.repository",
        "spec.image.path",
        "spec.image.version",
    ]
    .contains(&at)
    {
        let image = spec["image"].as_object_mut().unwrap();
        image
            .entry("repository")
            .or_insert(json!("registry.example.org"));
        image.entry("path").or_insert(json!("vm-runner"));
    }
    for from in ["userDataFrom", "networkConfigFrom"] {
        if let Some(key) = spec
            .pointer_mut(&format!("/cloudInit/{from}/secretKeyRef"))
            .and_then(Value::as_object_mut)
        {
            key.entry("name").or_insert(json!("seed"));
            key.entry("key").or_insert(json!("seed"));
        }
    }
    if at == "spec.vm.networks[].name" {
        spec["vm"]["networks"][0]["tap"] = json!({});
    }
    if at == "spec.vm.disks[].bootindex" {
        spec["vm"]["disks"][0]["cdrom"] = json!({"image": ""});
    }
    if at.starts_with("spec.vm.disks[].source") {
        spec["vm"]["disks"][0]["volumeClaimTemplate"] = json!({});
    }
    if let Some(http) = spec
        .pointer_mut("/vm/disks/0/source/http")
        .and_then(Value::as_object_mut)
    {
        http.entry("url").or_insert(json!("https://example.org/a"));
    }
    if at == "spec.vm.disks[].cdrom.checksum" {
        spec["vm"]["disks"][0]["cdrom"]["image"] = json!("https://example.org/a.iso");
    }
    if at.starts_with("spec.vm.networks[].user.forward[].") {
        let forward = spec["vm"]["networks"][0]["user"]["forward"][0]
            .as_object_mut()
            .unwrap();
        forward.entry("port").or_insert(json!(2222));
        forward.entry("guestPort").or_insert(json!(22));
    }
    spec
}

fn embed(at: &str, value: &Value) -> Value {
    let (step, rest) = match at.find(['.', '[', '{']) {
        _ if at.is_empty() => return value.clone(),
        Some(0) if at.starts_with('.') => return embed(&at[1..], value),
        Some(0) => at.split_at(2),
        Some(end) => at.split_at(end),
        None => (at, ""),
    };
    match step {
        "[]" => json!([embed(rest, value)]),
        "{}" => json!({"key": embed(rest, value)}),
        field => json!({field: embed(rest, value)}),
    }
}

/// The field in the notation of the API server.
fn field(at: &str) -> String {
    at.replace("[]", "[0]").replace("{}", "[key]")
}

#[tokio::test]
async fn each_rule_admits_valid_values_and_explains_its_rejections() {
    let world = World::new("admission").await;
    let definition = Definition::new(&world).await;
    let mut without_case: BTreeSet<_> = RULES.iter().map(|rule| (rule.at, rule.message)).collect();
    without_case.retain(|(at, _)| !at.is_empty());
    let mut wrong = Vec::new();
    let cases = [
        machine::cases(),
        machine::networks(),
        machine::display(),
        disks::cases(),
        pod::cases(),
    ];
    for cases in cases {
        for Case {
            rule: (at, message),
            admitted,
            rejected,
        } in cases
        {
            let rule = RULES
                .iter()
                .find(|rule| rule.at == at && rule.message.contains(message));
            let rule =
                rule.unwrap_or_else(|| panic!("no rule at {at} has the message {message:?}"));
            assert!(!admitted.is_empty() && !rejected.is_empty(), "{at}");
            without_case.remove(&(rule.at, rule.message));
            for value in admitted {
                if let Err(error) = definition.create("vm", &spec(at, &value), true).await {
                    wrong.push(format!("{at}: {value} is rejected: {error}"));
                }
            }
            for value in rejected {
                match definition.create("vm", &spec(at, &value), true).await {
                    Ok(_) => wrong.push(format!("{at}: {value} is admitted")),
                    Err(error) => {
                        let error = error.to_string();
                        if !error.contains(&format!("{}: ", field(at)))
                            || !error.contains(rule.message)
                        {
                            wrong.push(format!(
                                "{at}: {value} is rejected with another message: {error}"
                            ));
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        without_case.is_empty(),
        "rules without a case: {without_case:#?}"
    );
}

#[tokio::test]
async fn vm_name_length_is_limited_for_derived_names() {
    let world = World::new("name").await;
    let definition = Definition::new(&world).await;
    let spec = json!({"vm": {}});
    definition
        .create(&"x".repeat(63), &spec, true)
        .await
        .unwrap();
    let error = definition
        .create(&"x".repeat(64), &spec, true)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("metadata.name is too long") && error.contains("63"),
        "{error}"
    );
}

#[tokio::test]
async fn schema_rejection_names_the_field() {
    let world = World::new("schema").await;
    let definition = Definition::new(&world).await;
    let vm = |machine: Value| json!({"vm": machine});
    for (spec, field, message) in [
        (json!({}), "spec.vm", "Required"),
        (
            vm(json!({"state": "Paused"})),
            "spec.vm.state",
            "\"Stopped\", \"Running\"",
        ),
        (
            vm(json!({"firmware": "openfirmware"})),
            "spec.vm.firmware",
            "uefi-4m",
        ),
        (
            vm(json!({"maximumRam": 8})),
            "spec.vm.maximumRam",
            "must be of type string",
        ),
        (
            vm(json!({"disks": [{"cdrom": {}}]})),
            "spec.vm.disks[0].cdrom.image",
            "Required",
        ),
        (
            vm(json!({"disks": vec![json!({"volumeClaimTemplate": {}}); 33]})),
            "spec.vm.disks",
            "at most 29 items",
        ),
        (
            json!({"vm": {}, "image": {"source": "a", "pullPolicy": "Often"}}),
            "spec.image.pullPolicy",
            "IfNotPresent",
        ),
        (
            json!({"vm": {}, "nodeSelector": {"a": "x".repeat(64)}}),
            "spec.nodeSelector.a",
            "more than 63",
        ),
        (
            json!({"vm": {}, "permissions": [{"user": "a", "may": ["fly"]}]}),
            "spec.permissions[0].may[0]",
            "takeConsole",
        ),
    ] {
        let error = definition
            .create("vm", &spec, true)
            .await
            .expect_err(&spec.to_string())
            .to_string();
        assert!(
            error.contains(field) && error.contains(message),
            "{spec}: {error}"
        );
    }
}
