//! The pages of `docs/` and the README, and the commands in them.

use std::path::{Path, PathBuf};

/// A block of commands.
#[derive(Debug)]
pub struct Block {
    /// Whether a test can run it on the local cluster: it has no comment `<!-- not run: REASON -->` before it.
    pub is_run: bool,
    /// The last heading of the second level before it.
    pub section: String,
    /// The lines without their indentation.
    pub text: String,
}

/// A page and its commands.
#[derive(Debug)]
pub struct Page {
    /// Its path in the repository.
    pub name: String,
    /// The blocks of commands in their order.
    pub blocks: Vec<Block>,
    /// Commands in inline code, without names of subcommands such as `kubectl config use-context`.
    pub inline: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The home directory of a reader, with the parts of a checkout that the pages name, and an empty `.ssh`.
///
/// # Panics
/// It cannot be created.
#[must_use]
#[expect(clippy::unwrap_used, reason = "for tests only")]
pub fn reader() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    for name in ["crds", "deploy", "examples"] {
        std::os::unix::fs::symlink(root().join(name), home.path().join(name)).unwrap();
    }
    std::fs::create_dir(home.path().join(".ssh")).unwrap();
    home
}

/// The pages in the order of the table of contents, then the README.
///
/// # Panics
/// A page of the table of contents cannot be read.
#[must_use]
#[expect(clippy::unwrap_used, reason = "for tests only")]
pub fn pages() -> Vec<Page> {
    let summary = std::fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let links = summary.split("](").skip(1);
    let names = links.filter_map(|link| Some(format!("docs/{}", link.split_once(')')?.0)));
    let names = names.chain(["README.md".to_owned()]);
    names.map(page).collect()
}

#[expect(clippy::unwrap_used, reason = "for tests only")]
fn page(name: String) -> Page {
    let text = std::fs::read_to_string(root().join(&name)).unwrap();
    let (mut blocks, mut prose, mut section) = (Vec::new(), String::new(), String::new());
    let mut lines = text.lines();
    let mut previous = "";
    while let Some(line) = lines.next() {
        let fence = line.trim_start();
        if fence.starts_with("```") {
            let indent = line.len() - fence.len();
            let body = lines
                .by_ref()
                .take_while(|line| line.trim() != "```")
                .map(|line| line.get(indent..).unwrap_or_default().to_owned() + "\n");
            let text: String = body.collect();
            if ["```sh", "```console"].contains(&fence) {
                let is_run = !previous.trim_start().starts_with("<!-- not run: ");
                blocks.push(Block {
                    is_run,
                    section: section.clone(),
                    text,
                });
            }
        } else {
            if let Some(heading) = line.strip_prefix("## ") {
                heading.clone_into(&mut section);
            }
            prose += line;
            prose.push('\n');
        }
        previous = line;
    }
    let code = prose.split('`').skip(1).step_by(2);
    let inline = code
        .map(|code| code.replace('\n', " "))
        .filter(|code| code.split_whitespace().count() > 3)
        .filter(|code| is_complete(code))
        .collect();
    Page {
        name,
        blocks,
        inline,
    }
}

/// The lines of a block that are assignments or commands in one line.
pub fn complete_lines(block: &str) -> impl Iterator<Item = &str> {
    block
        .lines()
        .filter(|line| is_assignment(line) || is_complete(line))
}

fn is_assignment(line: &str) -> bool {
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase());
    let is_value = |value: &str| {
        value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    line.split_once('=')
        .is_some_and(|(name, value)| is_name(name) && is_value(value))
}

/// Whether the line is a command of kubectl without input, placeholders, or files that the reader creates.
fn is_complete(line: &str) -> bool {
    let missing = ["<", "dist/", "my-", "backup/", "NAME", "KEY"];
    line.starts_with("kubectl ") && !missing.iter().any(|part| line.contains(part))
}
