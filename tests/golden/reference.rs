//! `docs/reference.md` has everything that the code has.

use super::root;
use std::collections::BTreeSet;
use std::path::Path;
use vm_operator::api::conditions::{self, ReadyReason};
use vm_operator::api::names;
use vm_operator::operator::docs::REASONS;

/// The sources in that folder, without their tests.
fn source(folder: &Path) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("tests") {
            continue;
        }
        if path.is_dir() {
            all += &source(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            all += &without_tests(&path);
        }
    }
    all
}

fn without_tests(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap().split("#[cfg(test)]").next().unwrap().to_owned()
}

/// The words in quotes that could be reasons.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_word = |word: &&str| {
        word.starts_with(|c: char| c.is_ascii_uppercase()) && word.chars().all(|c| c.is_ascii_alphabetic())
    };
    text.split('"').filter(is_word)
}

#[test]
fn every_condition_has_its_reasons() {
    let described: BTreeSet<_> = REASONS.iter().map(|(condition, _)| *condition).collect();
    let mut all: BTreeSet<_> = conditions::TYPES.iter().map(|(name, _)| *name).collect();
    // Whose reasons are a type of their own, and in docs/troubleshooting.md.
    assert!(all.remove(conditions::READY) && ReadyReason::ALL.len() > 20);
    assert_eq!(described, all, "each condition of src/api/conditions.rs stands in src/operator/docs/reasons.rs");
}

#[test]
fn every_reason_is_described_and_each_that_is_described_occurs() {
    let runner = source(&root().join("src/runner"));
    let folder = root().join("src/runner");
    let status =
        ["status.rs", "status/note.rs", "status/parts.rs"].map(|file| without_tests(&folder.join(file))).concat();
    let of_problems = runner.split("Problem::new(").skip(1).filter_map(|call| call.trim_start().strip_prefix('"'));
    let of_problems = of_problems.filter_map(|word| word.split('"').next());
    // The kind, and what events say.
    let others =
        ["VirtualMachine", "StatusUpdate", "ConsoleConnectionUpdate", "ConsoleConnected", "ConsoleDisconnected"];
    let of_status = words(&status).filter(|word| !others.contains(word));
    let of_operator = conditions::REASONS.iter().map(|(reason, _)| *reason);
    let initial = [conditions::REASON_CREATION, conditions::REASON_VM_STOPPED];
    let occurring: BTreeSet<_> = of_problems.chain(of_status).chain(of_operator).chain(initial).collect();
    assert!(occurring.len() > 30, "{occurring:?}");
    let described: BTreeSet<_> =
        REASONS.iter().flat_map(|(_, reasons)| reasons.iter().map(|(reason, _)| *reason)).collect();
    assert_eq!(described, occurring, "each reason stands in src/operator/docs/reasons.rs");
}

#[test]
fn every_label_annotation_condition_and_reason_is_in_its_list() {
    let listed: BTreeSet<&str> = [names::LABELS, names::ANNOTATIONS, conditions::TYPES, conditions::REASONS]
        .iter()
        .flat_map(|list| list.iter().map(|(name, _)| *name))
        .collect();
    for file in ["src/api/names.rs", "src/api/conditions.rs"] {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        let mut about = "";
        for line in text.lines().map(str::trim) {
            let of_a_list = ["/// Label", "/// Annotation", "/// Condition:", "/// Reason:"];
            if of_a_list.iter().any(|start| about.starts_with(start)) && line.starts_with("pub const") {
                let name = line.split('"').nth(1).unwrap_or(line);
                let is_prefixes = line.contains("ANNOTATION_PREFIXES");
                assert!(
                    is_prefixes || listed.contains(name),
                    "{file}: {name} stands outside of its list, listed! {{ … }}"
                );
            }
            match line.strip_prefix("///") {
                None => about = "",
                Some(_) if about.is_empty() => about = line,
                Some(_) => {}
            }
        }
    }
}
