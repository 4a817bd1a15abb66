//! Pages and their commands.

use crate::apiserver::world::root;

/// A block of commands.
pub struct Block {
    /// Whether a test can run it on the local cluster: it has no comment `<!-- not run: REASON -->` before it.
    pub is_run: bool,
    pub text: String,
}

pub struct Page {
    pub name: String,
    pub blocks: Vec<Block>,
    /// Commands in inline code, without names of subcommands such as `kubectl config use-context`.
    pub inline: Vec<String>,
}

/// The pages in the order of the table of contents, then the README.
pub fn pages() -> Vec<Page> {
    let summary = std::fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let links = summary.split("](").skip(1);
    let names = links.filter_map(|link| Some(format!("docs/{}", link.split_once(')')?.0)));
    let names = names.chain(["README.md".to_owned()]);
    names.map(page).collect()
}

fn page(name: String) -> Page {
    let text = std::fs::read_to_string(root().join(&name)).unwrap();
    let (mut blocks, mut prose) = (Vec::new(), String::new());
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
                blocks.push(Block { is_run, text });
            }
        } else {
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
