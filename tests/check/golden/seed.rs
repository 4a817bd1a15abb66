//! cloud-init reads the values that a user has written in `spec.cloudInit`: value and type survive the operator, the
//! runner's configuration file, the runner, and the YAML 1.1 parser of cloud-init.

use super::vm_of;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::process::{Command, Stdio};
use vm_operator::controllers::vm::objects;
use vm_operator::controllers::vm::plan::plan;
use vm_operator::settings::Reconciler;

const SEED: [u8; 32] = *b"the same for everyone, every day";
const COUNT: usize = 300;

/// Strings that YAML takes for another type without quotes, or that need escapes.
const SPECIAL: [&str; 32] = [
    "22:22",
    "0644",
    "0o644",
    "on",
    "no",
    "~",
    "",
    "null",
    "2024-01-01",
    "<<",
    "=",
    "/etc",
    "_x",
    "1e3",
    "1_000",
    "0x1f",
    ".inf",
    ".5",
    "- a",
    "a: b",
    "# a",
    "&a",
    "*a",
    "!!int 1",
    "%TAG",
    "`",
    "@",
    "{{ ds.meta_data }}",
    "a\nb\n",
    "\u{85}x",
    "x\u{2028}\u{feff}",
    "\u{7f}\u{1f600}\u{0}",
];

fn string() -> impl Strategy<Value = String> {
    prop_oneof![3 => prop::sample::select(SPECIAL.as_slice()).prop_map(str::to_owned), 1 => any::<String>()]
}

fn value() -> impl Strategy<Value = Value> {
    // Numbers as the API server returns them: 64-bit integers, or floating-point numbers.
    let floats = prop::sample::select(vec![0.5, -2.5, 100_000.0]);
    let leaf = prop_oneof![
        4 => string().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => floats.prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(string(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn map() -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::btree_map(string(), value(), 0..6).prop_map(|map| map.into_iter().collect())
}

/// The seed of a VM with that `spec.cloudInit`, through all conversions.
fn seed(cloud_init: &Value) -> Vec<(&'static str, String)> {
    let spec =
        serde_json::from_str(&json!({"vm": {}, "cloudInit": cloud_init}).to_string()).unwrap();
    let objects = objects::build(&plan(&vm_of(spec), &Reconciler::default()).unwrap());
    let config = &objects.config_map.data.unwrap()["config.yaml"];
    let files = vm_operator::runner::seed(config).unwrap().into_iter();
    files
        .map(|(name, data)| (name, String::from_utf8(data).unwrap()))
        .collect()
}

/// The content of each of the documents, read by PyYAML. A value of another type, such as a date, is replaced by the
/// name of its type.
fn read_by_cloud_init(documents: &[String]) -> Vec<Value> {
    let script = "import json, sys, yaml\n\
        plain = lambda v: {'not plain': str(type(v))}\n\
        print(json.dumps([yaml.safe_load(d) for d in json.load(sys.stdin)], default=plain))";
    let python = Command::new("python3")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut python = python.expect("python3 is missing; install python3-yaml");
    python
        .stdin
        .take()
        .unwrap()
        .write_all(json!(documents).to_string().as_bytes())
        .unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "python3 with PyYAML cannot read it; its error is above; is python3-yaml installed?"
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn values_and_types_are_preserved_for_cloud_init() {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &SEED);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut documents = Vec::new();
    let mut expected = Vec::new();
    for _ in 0..COUNT {
        let meta_data = prop::collection::btree_map(string(), string(), 0..6);
        let tree = (map(), map(), meta_data).new_tree(&mut runner).unwrap();
        let (user_data, network, mut meta_data) = tree.current();
        let cloud_init =
            json!({"userData": user_data, "networkConfig": network, "metaData": meta_data});
        let files = seed(&cloud_init);
        assert!(files[1].1.starts_with("#cloud-config\n"), "{}", files[1].1);
        documents.extend(files.iter().map(|(_, text)| text.clone()));
        let ours = ["instance-id", "local-hostname"].map(str::to_owned);
        let read: Map<String, Value> = serde_json::from_str(&files[0].1).unwrap();
        for name in ours {
            meta_data
                .entry(name.clone())
                .or_insert_with(|| read[&name].as_str().unwrap().to_owned());
        }
        expected.extend([json!(meta_data), json!(user_data), json!(network)]);
    }
    let read = read_by_cloud_init(&documents);
    assert_eq!(read.len(), 3 * COUNT);
    for ((read, expected), document) in read.iter().zip(&expected).zip(&documents) {
        assert_eq!(read, expected, "{document}");
    }
}

#[test]
fn nothing_is_lost_of_a_large_seed() {
    // The image of the Java VM-Operator has room for 1.4 MB less its tables.
    let files: Vec<Value> = (0..200)
        .map(|i| json!({"path": format!("/{i}"), "content": "x".repeat(4000)}))
        .collect();
    let files = seed(&json!({"userData": {"write_files": files}}));
    let read: Value =
        serde_json::from_str(files[1].1.trim_start_matches("#cloud-config\n")).unwrap();
    assert_eq!(read["write_files"].as_array().unwrap().len(), 200);
}
