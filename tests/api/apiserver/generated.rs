//! Thousands of objects that the reference admits and its runner can start: none is refused.

use crate::apiserver::definition::Definition;
use crate::apiserver::world::World;
use futures::StreamExt;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Instant;
use support::alone::of_spec;
use support::generator::specs;
use support::nonsense::mutated;
use vm_operator::controllers::vm::objects;
use vm_operator::controllers::vm::plan::plan;
use vm_operator::settings::Reconciler;

const SEED: [u8; 32] = *b"what runs there is admitted here";
const COUNT: usize = 2000;
/// So many requests at once: the server has others to serve.
const CONCURRENCY: usize = 4;

#[tokio::test]
async fn what_the_reference_can_run_is_admitted() {
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
    let refused: Vec<String> = futures::stream::iter(specs(SEED, COUNT))
        .map(ask)
        .buffer_unordered(CONCURRENCY)
        .filter_map(|refused| async { refused })
        .collect()
        .await;
    println!(
        "{COUNT} VMs of the seed {:?} in {:?}",
        str::from_utf8(&SEED).unwrap(),
        began.elapsed()
    );
    let some: Vec<&str> = refused.iter().take(5).map(String::as_str).collect();
    assert!(
        refused.is_empty(),
        "{} of {COUNT} are refused, such as\n{}",
        refused.len(),
        some.join("\n")
    );
}

/// What is in the way of a VM that the API server has admitted, by field; and what the runner says where nothing is.
fn obstacle(vm: &Value) -> Result<Option<String>, String> {
    let observed =
        of_spec(vm["spec"].clone()).map_err(|error| format!("cannot be read: {error}"))?;
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
async fn what_is_admitted_is_run_or_explained_whatever_it_is() {
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
        let field = obstacle(vm).unwrap_or_else(|why| panic!("{why}: {}", vm["spec"]));
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
