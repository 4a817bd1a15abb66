//! Mutations: values in which parts are replaced by values that no user would write.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

/// This number of mutations of the values, each with one or two replaced parts.
pub fn mutated(values: Vec<Value>, seed: [u8; 32], count: usize) -> Vec<Value> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let changes = (select(values), vec((any::<Index>(), nonsense()), 1..=2)).prop_map(
        |(mut value, changes)| {
            for (index, nonsense) in changes {
                let mut place = index.index(places(&value));
                change(&mut value, &mut place, nonsense);
            }
            value
        },
    );
    (0..count)
        .map(|_| changes.new_tree(&mut runner).unwrap().current())
        .collect()
}

fn nonsense() -> BoxedStrategy<Value> {
    let numbers = [
        json!(-1),
        json!(0),
        json!(1),
        json!(65_536),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(0.5),
        json!(1e300),
    ];
    let texts = [
        "",
        " ",
        "-",
        "..",
        "/",
        "a,b=c",
        "0",
        "-1",
        "1e99",
        "\u{0}",
        "\n",
        "ä",
        "null",
        "~",
        "${x}",
        "2024-01-01",
        "<<",
    ];
    let others = [
        json!(null),
        json!(true),
        json!([]),
        json!({}),
        json!([null]),
        json!({"": ""}),
        json!("x".repeat(5000)),
    ];
    let texts = texts.into_iter().map(Value::from);
    select(
        numbers
            .into_iter()
            .chain(texts)
            .chain(others)
            .collect::<Vec<_>>(),
    )
    .boxed()
}

/// The number of values inside the value, including itself.
fn places(value: &Value) -> usize {
    match value {
        Value::Object(fields) => 1 + fields.values().map(places).sum::<usize>(),
        Value::Array(items) => 1 + items.iter().map(places).sum::<usize>(),
        _ => 1,
    }
}

/// Replaces the value at that position, counted from the root.
fn change(value: &mut Value, place: &mut usize, other: Value) -> Option<Value> {
    if *place == 0 {
        *value = other;
        return None;
    }
    *place -= 1;
    match value {
        Value::Object(fields) => fields
            .values_mut()
            .try_fold(other, |other, value| change(value, place, other)),
        Value::Array(items) => items
            .iter_mut()
            .try_fold(other, |other, value| change(value, place, other)),
        _ => Some(other),
    }
}
