//! A command line, parsed into options and their parts.

use serde_json::{Map, Value};

/// An option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// As `-device`.
    pub option: String,
    /// The option and its identity among options of its kind, such as `-device virtio-blk-pci drive-0-backend`.
    pub name: String,
    /// The other parts, such as `bootindex=1`.
    pub parts: Vec<String>,
    /// The fields of an option in JSON.
    pub json: Map<String, Value>,
}

/// Keys that identify a JSON option among others of its kind: the first of [`KINDS`], and the first of [`IDENTITIES`] that it has.
const KINDS: [&str; 3] = ["driver", "qom-type", "type"];
const IDENTITIES: [&str; 7] = [
    "id",
    "node-name",
    "drive",
    "netdev",
    "chardev",
    "audiodev",
    "tpmdev",
];

impl Line {
    /// The part of that key.
    pub fn part(&self, key: &str) -> Option<&str> {
        self.parts
            .iter()
            .find_map(|part| part.strip_prefix(key)?.strip_prefix('='))
    }

    /// The text of that field, where it is written as JSON.
    pub fn field(&self, key: &str) -> Option<&str> {
        self.json.get(key).and_then(Value::as_str)
    }

    fn of(option: &str, value: Option<&str>) -> Self {
        let option = option.to_owned();
        let Some(value) = value else {
            return Self {
                name: option.clone(),
                option,
                parts: Vec::new(),
                json: Map::new(),
            };
        };
        match serde_json::from_str::<Value>(value) {
            Ok(Value::Object(fields)) => Self::of_json(option, fields),
            _ => Self::of_text(option, value),
        }
    }

    fn of_json(option: String, json: Map<String, Value>) -> Self {
        let first =
            |keys: &[&'static str]| keys.iter().copied().find(|key| json.contains_key(*key));
        let named: Vec<&str> = first(&KINDS)
            .into_iter()
            .chain(first(&IDENTITIES))
            .collect();
        let text = |key: &&str| json[*key].as_str().unwrap().to_owned();
        let name = [vec![option.clone()], named.iter().map(text).collect()]
            .concat()
            .join(" ");
        let part = |(key, value): (&String, &Value)| match value {
            Value::String(text) => format!("{key}={text}"),
            other => format!("{key}={other}"),
        };
        let parts = json
            .iter()
            .filter(|(key, _)| !named.contains(&key.as_str()))
            .map(part)
            .collect();
        Self {
            option,
            name,
            parts,
            json,
        }
    }

    /// In QEMU's own syntax, where two commas are one in a value, and one ends it.
    fn of_text(option: String, value: &str) -> Self {
        let parts: Vec<String> = value
            .replace(",,", "\0")
            .split(',')
            .map(|part| part.replace('\0', ","))
            .collect();
        // Such an option can occur repeatedly, or has no kind.
        let named: Vec<&String> = match option.as_str() {
            "-global" => parts.iter().collect(),
            _ => parts
                .iter()
                .filter(|part| part.starts_with("id="))
                .collect(),
        };
        let name = named
            .iter()
            .fold(option.clone(), |name, part| format!("{name} {part}"));
        let parts = parts
            .iter()
            .filter(|part| !named.contains(part))
            .cloned()
            .collect();
        Self {
            option,
            name,
            parts,
            json: Map::new(),
        }
    }
}

/// The options of a command line.
pub fn lines(arguments: &[String]) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut rest = arguments;
    while let [option, more @ ..] = rest {
        assert!(
            option.starts_with('-'),
            "{option} is a value without an option"
        );
        let value = more.first().filter(|value| !value.starts_with('-'));
        lines.push(Line::of(option, value.map(String::as_str)));
        rest = &more[usize::from(value.is_some())..];
    }
    lines
}

#[test]
fn line_is_identified_by_its_option_and_identifier() {
    let arguments = [
        "-S",
        "-device",
        r#"{"driver":"a","drive":"b","c":1}"#,
        "-chardev",
        "d,id=e,f=g,,h",
    ];
    let lines = lines(&arguments.map(str::to_owned));
    let seen: Vec<(&str, String)> = lines
        .iter()
        .map(|line| (line.name.as_str(), line.parts.join(" ")))
        .collect();
    let expected = [
        ("-S", ""),
        ("-device a b", "c=1"),
        ("-chardev id=e", "d f=g,h"),
    ];
    assert_eq!(seen, expected.map(|(name, parts)| (name, parts.to_owned())));
}
