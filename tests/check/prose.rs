//! Prose check: texts that the programs print, alert texts, and all pages.
//!
//! CONTRIBUTING.md has the rules. Code and addresses are left out.

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use strum::{EnumMessage, VariantArray};
use vm_operator::api::runner::metrics;
use vm_operator::api::vm::conditions::{ConditionReason, ReadyReason};
use vm_operator::operator::sets::{self, SETS};
use vm_operator::telemetry::metrics::Metrics;

const SENTENCE_WORDS_MAX: usize = 30;

/// Words that a text does not use.
const UNUSED_WORDS: [&str; 25] = [
    "all the same",
    "anew",
    "are to be",
    "be had",
    "belong into",
    "belongs into",
    "but for",
    "has it that",
    "in turn",
    "is to be",
    "lately",
    "lets run",
    "likewise",
    "of which",
    "one's own",
    "sees to",
    "stands here",
    "there and here",
    "told",
    "what stands",
    "who asks",
    "who has",
    "whose is",
    "whose it",
    "whose they",
];

/// A sentence that begins with one of these has a clause as its subject. A question may.
const CLAUSE_STARTS: [&str; 5] = ["what", "who", "that", "whoever", "where"];

const PAGES: [&str; 4] = [
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
];

/// Fields with objects of Kubernetes. Their descriptions are not of this project.
const KUBERNETES_FIELDS: [&str; 8] = [
    "affinity",
    "conditions",
    "dataSource",
    "dataSourceRef",
    "imagePullSecrets",
    "selector",
    "tolerations",
    "topologySpreadConstraints",
];

/// Sources that still have findings. A source without findings must leave this list.
const NOT_YET: [&str; 0] = [];

/// A text in Markdown and the name of its source.
struct Source {
    name: String,
    text: String,
}

impl Source {
    fn new(name: impl Into<String>, text: String) -> Self {
        let name = name.into();
        Self { name, text }
    }

    fn page(path: &Path) -> Self {
        let text = std::fs::read_to_string(root().join(path));
        let name = path.display().to_string();
        Self::new(name, text.unwrap_or_else(|e| panic!("{path:?}: {e}")))
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<Source> {
    let mut sources = vec![
        definitions(),
        ready_reasons(),
        condition_reasons(),
        operator_metrics(),
        vm_metrics(),
        alerts(),
    ];
    sources.extend(help(env!("CARGO_BIN_EXE_vm-operator"), &[]));
    sources.extend(help(env!("CARGO_BIN_EXE_vm-runner"), &[]));
    sources.extend(pages());
    sources
}

/// Texts that do not continue each other.
fn paragraphs<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> String {
    let texts = texts.into_iter().map(|text| text.as_ref().to_owned());
    texts.collect::<Vec<_>>().join("\n\n")
}

fn text_of(value: &Value, key: &str) -> Option<String> {
    value.get(key)?.as_str().map(str::to_owned)
}

/// The values of a key with a text, at any depth.
fn texts_of(value: &Value, key: &str, found: &mut Vec<String>) {
    // A quantity, with the description of Kubernetes.
    if value["x-kubernetes-int-or-string"] == true {
        return;
    }
    found.extend(text_of(value, key));
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let is_foreign = KUBERNETES_FIELDS.contains(&name.as_str());
                if is_foreign {
                    found.extend(text_of(value, key));
                } else {
                    texts_of(value, key, found);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| texts_of(item, key, found)),
        _ => {}
    }
}

fn definitions() -> Source {
    let mut texts = Vec::new();
    for definition in sets::definitions() {
        let definition = serde_json::to_value(definition).unwrap();
        texts_of(&definition, "description", &mut texts);
    }
    Source::new("vm-operator crds", paragraphs(texts))
}

fn ready_reasons() -> Source {
    let texts = ReadyReason::VARIANTS.iter().flat_map(|reason| {
        let documentation = reason.get_documentation();
        [
            documentation,
            reason.get_detailed_message(),
            reason.get_message(),
        ]
    });
    Source::new("reasons of Ready", paragraphs(texts.flatten()))
}

fn condition_reasons() -> Source {
    let texts = ConditionReason::ALL
        .iter()
        .flat_map(|reason| [reason.meaning(), reason.next_step()]);
    Source::new("reasons of other conditions", paragraphs(texts))
}

fn operator_metrics() -> Source {
    let metrics = Metrics::default();
    for set in SETS {
        (set.metrics)(&metrics);
    }
    let text = metrics.text();
    let helps = text.lines().filter_map(|line| line.strip_prefix("# HELP "));
    let helps = helps.filter_map(|line| Some(line.split_once(' ')?.1));
    Source::new("metrics of the operator", paragraphs(helps))
}

fn vm_metrics() -> Source {
    let helps = metrics::ALL.iter().map(|figure| figure.what);
    Source::new("metrics of VMs", paragraphs(helps))
}

fn alerts() -> Source {
    const FILE: &str = "deploy/monitoring/base/rules.yaml";
    let text = std::fs::read_to_string(root().join(FILE)).unwrap();
    let rules: Value = serde_saphyr::from_str(&text).unwrap();
    let mut texts = Vec::new();
    texts_of(&rules, "summary", &mut texts);
    texts_of(&rules, "description", &mut texts);
    Source::new(FILE, paragraphs(texts))
}

/// The help of a program and of all its subcommands.
fn help(program: &str, subcommands: &[&str]) -> Vec<Source> {
    let mut command = Command::new(program);
    let output = command.args(subcommands).arg("--help").output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let program_name = Path::new(program).file_name().unwrap().to_string_lossy();
    let name = [&[program_name.as_ref()], subcommands, &["--help"]]
        .concat()
        .join(" ");
    let mut sources = vec![Source::new(name, help_paragraphs(&text))];
    for subcommand in subcommand_names(&text) {
        sources.extend(help(program, &[subcommands, &[subcommand]].concat()));
    }
    sources
}

fn subcommand_names(help: &str) -> impl Iterator<Item = &str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help")
}

/// Each column of each line of a help text, without the usage, defaults and possible values.
fn help_paragraphs(help: &str) -> String {
    let lines = help.lines().filter(|line| !line.starts_with("Usage:"));
    let columns = lines.flat_map(|line| line.split("  "));
    paragraphs(columns.map(|column| column.split(" [").next().unwrap_or_default()))
}

fn pages() -> Vec<Source> {
    let mut pages: Vec<_> = PAGES
        .iter()
        .map(|page| Source::page(Path::new(page)))
        .collect();
    add_pages(Path::new("docs"), &mut pages);
    pages
}

/// Adds the pages in a folder and its subfolders.
fn add_pages(folder: &Path, pages: &mut Vec<Source>) {
    let mut entries: Vec<_> = std::fs::read_dir(root().join(folder))
        .unwrap()
        .map(|entry| entry.unwrap())
        .collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = folder.join(entry.file_name());
        if entry.path().is_dir() {
            add_pages(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(Source::page(&path));
        }
    }
}

/// The paragraphs, list items, headings and table cells of a text in Markdown, without code.
fn blocks(markdown: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    let mut is_code = false;
    for line in markdown.lines().map(str::trim) {
        if line.starts_with("```") {
            is_code = !is_code;
            blocks.push(String::new());
        } else if is_code || line.starts_with("<!--") {
            continue;
        } else if line.starts_with('|') {
            let row = plain(line);
            blocks.extend(row.split('|').map(|cell| cell.trim().to_owned()));
            blocks.push(String::new());
        } else if line.is_empty() {
            blocks.push(String::new());
        } else if line.starts_with('#') {
            blocks.extend([line.trim_start_matches('#').to_owned(), String::new()]);
        } else if let Some(item) = list_item(line) {
            blocks.push(item.to_owned());
        } else if let Some(block) = blocks.last_mut() {
            block.push(' ');
            block.push_str(line);
        }
    }
    let plain = blocks.iter().map(|block| plain(block).trim().to_owned());
    plain.filter(|block| !block.is_empty()).collect()
}

/// The text of a list item without its marker.
fn list_item(line: &str) -> Option<&str> {
    let (marker, item) = line.split_once(' ')?;
    let is_number = |number: &str| number.parse::<u32>().is_ok();
    let is_marker = ["*", "-"].contains(&marker) || marker.strip_suffix('.').is_some_and(is_number);
    is_marker.then_some(item)
}

/// A text with a placeholder for each piece of code and each address, and without the marks of links and emphasis.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for (index, part) in text.replace("\\|", "/").split('`').enumerate() {
        if index % 2 == 1 {
            plain.push_str("CODE");
            continue;
        }
        let mut links = part.split("](");
        plain.push_str(links.next().unwrap_or_default());
        for link in links {
            plain.push_str(link.split_once(')').map_or("", |(_, rest)| rest));
        }
    }
    let words = plain.split(' ').map(|word| {
        let is_address = word.contains("://");
        if is_address { "URL" } else { word }
    });
    words
        .collect::<Vec<_>>()
        .join(" ")
        .replace(['*', '[', ']'], "")
}

fn sentences(block: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let mut begin = 0;
    for (position, mark) in block.match_indices(['.', '!', '?']) {
        let rest = &block[position + mark.len()..];
        let after = rest.trim_start_matches([')', '"']);
        // A sentence may begin with the name of a file.
        let next = after.split_whitespace().next().unwrap_or_default();
        let is_start = next.contains('/') || next.starts_with(|c: char| !c.is_lowercase());
        if after.starts_with(' ') && is_start {
            let end = block.len() - after.len();
            sentences.push(block[begin..end].trim());
            begin = end;
        }
    }
    sentences.push(block[begin..].trim());
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

/// The words of a sentence, in lower case.
fn words(sentence: &str) -> Vec<String> {
    let is_mark = |c: char| !c.is_alphanumeric();
    let words = sentence
        .split_whitespace()
        .map(|word| word.trim_matches(is_mark));
    let words = words.filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

/// The rules that a sentence breaks.
fn problems(sentence: &str) -> Vec<String> {
    let words = words(sentence);
    let mut problems = Vec::new();
    if words.len() > SENTENCE_WORDS_MAX {
        problems.push(format!("{} words", words.len()));
    }
    let begins_with_clause = words.len() > 1 && CLAUSE_STARTS.contains(&words[0].as_str());
    if begins_with_clause && !sentence.ends_with('?') {
        problems.push(format!("begins with \"{}\"", words[0]));
    }
    if words.last().is_some_and(|word| word == "meanwhile") {
        problems.push("ends with \"meanwhile\"".to_owned());
    }
    let spaced = format!(" {} ", words.join(" "));
    let unused = UNUSED_WORDS
        .iter()
        .filter(|word| spaced.contains(&format!(" {word} ")));
    problems.extend(unused.map(|word| format!("uses \"{word}\"")));
    problems
}

/// The findings of a text in Markdown, a line each.
fn findings(markdown: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for block in blocks(markdown) {
        for sentence in sentences(&block) {
            let problems = problems(sentence);
            if !problems.is_empty() {
                findings.push(format!("{}: {sentence}", problems.join(", ")));
            }
        }
    }
    findings
}

#[test]
fn texts_follow_the_rules_for_prose() {
    let sources = sources();
    let (mut wrong, mut clean) = (Vec::new(), Vec::new());
    for Source { name, text } in &sources {
        assert!(!blocks(text).is_empty(), "{name} has no text");
        let findings = findings(text);
        match (findings.is_empty(), NOT_YET.contains(&name.as_str())) {
            (true, true) => clean.push(name),
            (false, false) => wrong.extend(findings.iter().map(|it| format!("{name}: {it}"))),
            _ => {}
        }
    }
    println!("{} sources", sources.len());
    let is_source = |name: &&str| sources.iter().any(|source| source.name == *name);
    assert!(
        NOT_YET.iter().all(is_source),
        "NOT_YET names an unknown source"
    );
    assert!(
        wrong.is_empty(),
        "{} findings:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(clean.is_empty(), "remove from NOT_YET: {clean:?}");
}

#[test]
fn planted_violations_are_found() {
    let long = format!("A VM has{}.", " one disk and".repeat(10));
    for (text, problem) in [
        (long.as_str(), "33 words"),
        ("What the VM needs is read.", "begins with \"what\""),
        (
            "It runs. Whoever may create pods\nmay read it.",
            "begins with \"whoever\"",
        ),
        ("| name | who may read it |", "begins with \"who\""),
        (
            "* Where a node has no KVM, it waits.",
            "begins with \"where\"",
        ),
        ("## That a VM is restarted", "begins with \"that\""),
        ("The pod is created\nanew.", "uses \"anew\""),
        ("The VMs run on (meanwhile).", "ends with \"meanwhile\""),
        (
            "It has a [disk](a.md), all of which\nis used.",
            "uses \"of which\"",
        ),
    ] {
        let findings = findings(text);
        assert_eq!(findings.len(), 1, "{text}: {findings:?}");
        assert!(findings[0].starts_with(problem), "{text}: {findings:?}");
    }
    for word in UNUSED_WORDS {
        assert!(
            !findings(&format!("A VM {word} runs.")).is_empty(),
            "{word}"
        );
    }
}

#[test]
fn clean_texts_have_no_findings() {
    let code = format!("```\nWhat is told anew{}\n```", " word".repeat(40));
    for text in [
        "The operator recreates the pod. A VM in version 1.30 keeps its disk.",
        "What does a guest reach?",
        "The label `whose it is` and https://example.org/what-stands name the owner.",
        "| what | reason |\n|---|---|\n| `what it is` | the disk whose node is lost |",
        "* one item\n* another item\n\n1. a step",
        &code,
    ] {
        assert_eq!(findings(text), [""; 0], "{text}");
    }
}

#[test]
fn subcommands_and_columns_of_help_are_found() {
    let help = "A program\n\nUsage: x <COMMAND>\n\nCommands:\n  run   Run it\n  help  Print this\n\n\
        Options:\n  -d, --dir <DIR>  A directory [default: what it is]\n";
    assert_eq!(subcommand_names(help).collect::<Vec<_>>(), ["run"]);
    let blocks = blocks(&help_paragraphs(help));
    assert!(
        blocks.iter().any(|block| block == "A directory"),
        "{blocks:?}"
    );
    assert!(blocks.iter().any(|block| block == "Run it"), "{blocks:?}");
}
