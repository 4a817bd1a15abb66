//! The link checker of the documents: linked files and headings, files in commands, and make targets exist.

use super::root;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The pages of the root folder, and all pages in `docs/`.
fn documents() -> Vec<PathBuf> {
    let mut documents = Vec::new();
    add_pages(root(), false, &mut documents);
    add_pages(&root().join("docs"), true, &mut documents);
    documents
}

fn add_pages(folder: &Path, is_recursive: bool, pages: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && is_recursive {
            add_pages(&path, true, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}

/// Text outside and inside of code blocks.
fn prose_and_code(text: &str) -> (String, String) {
    let parts = |is_code| {
        text.split("```")
            .skip(is_code)
            .step_by(2)
            .collect::<Vec<_>>()
            .join("\n")
    };
    (parts(0), parts(1))
}

/// The anchors that GitHub gives to the headings of a text.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#').trim());
    let anchor = |heading: &str| -> String {
        let kept = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.map(|c| {
            if c == ' ' {
                '-'
            } else {
                c.to_ascii_lowercase()
            }
        })
        .collect()
    };
    let ids = text.split("<a id=\"").skip(1);
    let ids = ids.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()));
    headings.map(anchor).chain(ids).collect()
}

/// The reason why a link of the document at `path` is broken.
fn broken_link(path: &Path, link: &str) -> Option<String> {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() {
        path.to_owned()
    } else {
        path.parent().unwrap().join(file)
    };
    if !target.exists() {
        return Some(format!("no file {file}"));
    }
    let is_found =
        anchor.is_empty() || anchors(&std::fs::read_to_string(target).unwrap()).contains(anchor);
    (!is_found).then(|| format!("no heading {link}"))
}

/// Files of this repository that commands name, without copies that the reader creates.
fn files(commands: &str) -> impl Iterator<Item = &str> {
    let is_ours = |word: &&str| {
        ["crds", "deploy/", "examples/"]
            .iter()
            .any(|top| word.starts_with(top))
    };
    commands
        .split_whitespace()
        .filter(is_ours)
        .filter(|word| !word.contains("/my-"))
}

/// Targets of `make`, in inline code or alone in a line.
fn make_targets(text: &str) -> impl Iterator<Item = &str> {
    let commands = text
        .split(['`', '\n'])
        .filter(|code| code.starts_with("make ") || code.contains("=current make "));
    commands.filter_map(|code| code.split("make ").nth(1)?.split_whitespace().next())
}

#[test]
fn links_files_and_make_targets_of_the_documents_exist() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let (mut found, mut broken) = ([0; 3], Vec::new());
    for path in documents() {
        let text = std::fs::read_to_string(&path).unwrap();
        let (prose, code) = prose_and_code(&text);
        let mut wrong = Vec::new();
        let links = prose
            .split("](")
            .skip(1)
            .filter_map(|link| link.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            found[0] += 1;
            wrong.extend(broken_link(&path, link));
        }
        for file in files(&code) {
            found[1] += 1;
            wrong.extend((!root().join(file).exists()).then(|| format!("no file {file}")));
        }
        for target in make_targets(&text) {
            found[2] += 1;
            wrong.extend(
                (!makefile.contains(&format!("\n{target}:")))
                    .then(|| format!("no make target {target}")),
            );
        }
        broken.extend(
            wrong
                .into_iter()
                .map(|why| format!("{}: {why}", path.display())),
        );
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let [links, files, targets] = found;
    assert!(
        links > 30 && files > 5 && targets > 3,
        "{found:?} links, files and make targets were found"
    );
}

/// A page that the table of contents lacks is not in the static site.
#[test]
fn the_table_of_contents_has_every_page() {
    let docs = root().join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let missing: Vec<_> = documents()
        .into_iter()
        .filter_map(|path| Some(path.strip_prefix(&docs).ok()?.display().to_string()))
        .filter(|page| page != "SUMMARY.md" && !summary.contains(&format!("]({page})")))
        .collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
}

#[test]
fn a_broken_link_is_found() {
    let readme = root().join("README.md");
    for link in [
        "docs/nowhere.md",
        "#no-heading",
        "docs/security.md#no-heading",
    ] {
        assert!(broken_link(&readme, link).is_some(), "{link}");
    }
    assert_eq!(
        broken_link(&readme, "docs/security.md#security-model"),
        None
    );
}
