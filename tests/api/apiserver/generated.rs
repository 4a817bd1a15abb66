//! Thousands of objects that the Java VM-Operator accepts and can start: none is rejected.

use crate::apiserver::definition::Definition;
use crate::apiserver::world::World;
use futures::StreamExt;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Instant;
use support::generator::specs;
use support::mutation::mutated;
use support::observed::observed_of_spec;
use vm_operator::controllers::vm::objects;
use vm_operator::controllers::vm::plan::plan;
use vm_operator::settings::Reconciler;

const SEED: [u8; 32] = *b"what runs there is admitted here";
const COUNT: usize = 2000;
/// Concurrent requests. Other tests use the same server.
const CONCURRENCY: usize = 4;

#[tokio::test]
async fn specs_valid_for_java_are_admitted() {
    let world = World::new("generated").await;
    let definition = Definition::new(&world).await;
    let began = Instant::now();
    let ask = async |spec| {
        definition
            .create("vm", &spec, true)
            .await
            .err()
            .map(|error| format!("{error}: {spec}"))
    };
    let rejected: Vec<String> = futures::stream::iter(specs(SEED, COUNT))
        .map(ask)
        .buffer_unordered(CONCURRENCY)
        .filter_map(|rejected| async { rejected })
        .collect()
        .await;
    println!(
        "{COUNT} VMs of the seed {:?} in {:?}",
        str::from_utf8(&SEED).unwrap(),
        began.elapsed()
    );
    let some: Vec<&str> = rejected.iter().take(5).map(String::as_str).collect();
    assert!(
        rejected.is_empty(),
        "{} of {COUNT} are rejected, such as\n{}",
        rejected.len(),
        some.join("\n")
    );
}

/// The blocking condition of an accepted VM, by field; or the error of the runner.
fn blocking_condition(vm: &Value) -> Result<Option<String>, String> {
    let observed = match observed_of_spec(vm["spec"].clone()) {
        Ok(observed) => observed,
        // The API server does not check `format: int32`. The event `Unreadable` names the field.
        Err(error) if error.to_string().contains("expected i32") => return Ok(None),
        Err(error) => return Err(format!("cannot be read: {error}")),
    };
    let plan = match plan(&observed, &Reconciler::default()) {
        Ok(plan) => plan,
        Err(invalid) => return Ok(Some(invalid.subject)),
    };
    let config = objects::build(&plan).config_map.data.unwrap()["config.yaml"].clone();
    vm_operator::runner::check(&config)
        .map(|_| None)
        .map_err(|why| format!("the runner refuses it: {why}"))
}

#[tokio::test]
async fn every_admitted_spec_is_run_or_rejected_with_its_field() {
    let world = World::new("mutated").await;
    let definition = Definition::new(&world).await;
    let specs = mutated(specs(SEED, 100), SEED, 1500);
    let ask = async |spec| definition.create("vm", &spec, true).await.ok();
    let admitted: Vec<Value> = futures::stream::iter(specs)
        .map(ask)
        .buffer_unordered(CONCURRENCY)
        .filter_map(|admitted| async { admitted })
        .collect()
        .await;
    assert!(admitted.len() > 100, "only {} are admitted", admitted.len());
    let mut fields = BTreeSet::new();
    for vm in &admitted {
        let field = blocking_condition(vm).unwrap_or_else(|why| panic!("{why}: {}", vm["spec"]));
        fields.extend(field.map(|field| field.replace(|c: char| c.is_ascii_digit(), "")));
    }
    println!(
        "{} are admitted; in the way of some: {fields:?}",
        admitted.len()
    );
    assert!(
        fields.iter().all(|field| field.starts_with("spec.")),
        "{fields:?}"
    );
}
