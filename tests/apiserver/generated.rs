//! Thousands of objects that the reference admits and its runner can start: none is refused.

use crate::definition::Definition;
use crate::generator::specs;
use crate::world::World;
use futures::StreamExt;
use std::time::Instant;

const SEED: [u8; 32] = *b"what runs there is admitted here";
const COUNT: usize = 2000;
/// So many requests at once: the server has others to serve.
const CONCURRENCY: usize = 4;

#[tokio::test]
async fn what_the_reference_can_run_is_admitted() {
    let world = World::without_definitions("generated").await;
    let definition = Definition::new(&world).await;
    let began = Instant::now();
    let ask = async |spec| definition.create("vm", &spec, true).await.err().map(|error| format!("{error}: {spec}"));
    let refused: Vec<String> = futures::stream::iter(specs(SEED, COUNT))
        .map(ask)
        .buffer_unordered(CONCURRENCY)
        .filter_map(|refused| async { refused })
        .collect()
        .await;
    println!("{COUNT} VMs of the seed {:?} in {:?}", str::from_utf8(&SEED).unwrap(), began.elapsed());
    let some: Vec<&str> = refused.iter().take(5).map(String::as_str).collect();
    assert!(refused.is_empty(), "{} of {COUNT} are refused, such as\n{}", refused.len(), some.join("\n"));
}
