//! The examples in `examples/`, with values in place of their placeholders.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// The YAML files in `examples/` and its folders, without the kustomization for the takeover: path below `examples/`, and text.
///
/// # Panics
///
/// If one cannot be read.
#[must_use]
#[expect(clippy::unwrap_used, reason = "for tests only")]
pub fn files() -> Vec<(String, String)> {
    let (mut files, mut folders) = (Vec::new(), vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("takeover") {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == "yaml")
            {
                let name = path.strip_prefix(root()).unwrap().display().to_string();
                files.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

/// The text with these values in place of placeholders such as `<SSH-PUBLIC-KEY>`, or of a scheme and host such as
/// `https://example.org`. Comments are unchanged. Prints the difference.
///
/// # Panics
///
/// If a placeholder has no value, or if another part of a line would change.
#[must_use]
pub fn filled_in(name: &str, text: &str, values: &[(&str, &str)]) -> String {
    let fill_in = |line: &str| {
        if is_comment(line) {
            return line.to_owned();
        }
        let replace = |line: String, (from, to): &(&str, &str)| line.replace(from, to);
        values.iter().fold(line.to_owned(), replace)
    };
    let filled: Vec<String> = text.lines().map(fill_in).collect();
    for (line, filled) in text.lines().zip(&filled) {
        if line != filled {
            println!("{name}:\n-{line}\n+{filled}");
        }
        assert!(placeholder(filled).is_none(), "{name}: {filled}");
    }
    let filled = filled.join("\n") + "\n";
    let other = other_changes(text, &filled);
    assert!(other.is_empty(), "{name}: {other:?}");
    filled
}

/// The changed lines of an example that have neither a placeholder nor a URL with another host.
#[must_use]
pub fn other_changes(before: &str, after: &str) -> Vec<String> {
    if before.lines().count() != after.lines().count() {
        return vec!["the number of lines".to_owned()];
    }
    let changed = before.lines().zip(after.lines());
    changed
        .filter(|(before, after)| before != after && !is_allowed(before, after))
        .map(|(before, after)| format!("-{before}\n+{after}"))
        .collect()
}

fn is_allowed(before: &str, after: &str) -> bool {
    let differs_in_placeholder = placeholder(before).is_some_and(|(start, end)| {
        after.len() >= start.len() + end.len() && after.starts_with(start) && after.ends_with(end)
    });
    let differs_in_host =
        || without_host(before).is_some_and(|before| without_host(after).as_ref() == Some(&before));
    !is_comment(before) && (differs_in_placeholder || differs_in_host())
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

/// The parts of the line before and after a placeholder.
fn placeholder(line: &str) -> Option<(&str, &str)> {
    let (start, rest) = line.split_once('<')?;
    let (name, end) = rest.split_once('>')?;
    let is_name = !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    (is_name && !is_comment(line)).then_some((start, end))
}

/// The line without scheme and host of its URL.
fn without_host(line: &str) -> Option<(String, String)> {
    let (start, rest) = line.split_once("://")?;
    let start = start.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let path = rest.split_once('/')?.1;
    Some((start.to_owned(), path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# <KEY>\nkey: <KEY>\nurl: https://example.org/a.img\nport: 22\n";

    #[test]
    fn placeholders_and_hosts_are_replaced_outside_of_comments() {
        let values = [("<KEY>", "ssh A"), ("https://example.org", "http://h:1")];
        let filled = filled_in("a", TEXT, &values);
        assert_eq!(
            filled,
            "# <KEY>\nkey: ssh A\nurl: http://h:1/a.img\nport: 22\n"
        );
    }

    #[test]
    fn each_other_change_is_found() {
        for (from, to) in [
            ("port: 22", "port: 23"),
            ("/a.img", "/b.img"),
            ("key: <KEY>", "kex: A"),
            ("# <KEY>", "# A"),
            ("port: 22\n", ""),
        ] {
            assert_eq!(
                other_changes(TEXT, &TEXT.replace(from, to)).len(),
                1,
                "{to}"
            );
        }
        assert!(other_changes(TEXT, TEXT).is_empty());
    }

    #[test]
    #[should_panic(expected = "<KEY>")]
    fn placeholder_without_value_is_refused() {
        let _ = filled_in("a", TEXT, &[]);
    }

    #[test]
    #[should_panic(expected = "port: 23")]
    fn value_for_another_text_is_refused() {
        let _ = filled_in("a", TEXT, &[("<KEY>", "A"), ("22", "23")]);
    }
}
