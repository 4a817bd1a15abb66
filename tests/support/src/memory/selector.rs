//! Label and field selectors.

use super::status::Failure;
use serde_json::Value;

/// The selection of a list or watch. For the client, other objects do not exist.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    namespace: Option<String>,
    labels: Vec<Term>,
    fields: Vec<Term>,
}

#[derive(Clone, Debug)]
enum Term {
    Is(String, String),
    IsNot(String, String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
}

impl Selector {
    /// Parses the selectors of a request.
    pub fn new(
        namespace: Option<&str>,
        labels: Option<&str>,
        fields: Option<&str>,
    ) -> Result<Self, Failure> {
        let labels = labels.map(terms).transpose()?.unwrap_or_default();
        let fields = fields.map(terms).transpose()?.unwrap_or_default();
        let is_known = |term: &Term| match term {
            Term::Is(field, _) | Term::IsNot(field, _) => is_known_field(field),
            _ => false,
        };
        if let Some(term) = fields.iter().find(|term| !is_known(term)) {
            return Err(Failure::unknown(format!("field selector {term:?}")));
        }
        Ok(Self {
            namespace: namespace.map(ToOwned::to_owned),
            labels,
            fields,
        })
    }

    /// Whether labels or fields are selected.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether the object is selected.
    pub fn matches(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        let in_namespace = self
            .namespace
            .as_ref()
            .is_none_or(|namespace| metadata["namespace"] == **namespace);
        let label = |name: &str| metadata["labels"][name].as_str();
        let field = |path: &str| {
            path.split('.')
                .try_fold(object, |value, name| value.get(name))
                .and_then(Value::as_str)
        };
        in_namespace
            && self.labels.iter().all(|term| term.holds(label))
            && self
                .fields
                .iter()
                .all(|term| term.holds(|path| Some(field(path).unwrap_or_default())))
    }
}

impl Term {
    fn holds<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> bool {
        match self {
            Self::Is(name, wanted) => value(name) == Some(wanted),
            Self::IsNot(name, other) => value(name) != Some(other),
            Self::In(name, wanted) => {
                value(name).is_some_and(|value| wanted.iter().any(|wanted| wanted == value))
            }
            Self::NotIn(name, others) => {
                value(name).is_none_or(|value| others.iter().all(|other| other != value))
            }
            Self::Exists(name) => value(name).is_some(),
            Self::Missing(name) => value(name).is_none(),
        }
    }
}

fn is_known_field(field: &str) -> bool {
    matches!(
        field,
        "metadata.name"
            | "metadata.namespace"
            | "type"
            | "spec.nodeName"
            | "status.phase"
            | "regarding.uid"
    )
}

/// Splits at the commas outside parentheses.
fn parts(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0, 0, Vec::new());
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
        .into_iter()
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect()
}

fn terms(text: &str) -> Result<Vec<Term>, Failure> {
    parts(text).into_iter().map(term).collect()
}

fn term(text: &str) -> Result<Term, Failure> {
    let pair = |(name, value): (&str, &str)| (name.trim().to_owned(), value.trim().to_owned());
    let values = |list: &str| {
        list.trim()
            .trim_matches(['(', ')'])
            .split(',')
            .map(|v| v.trim().to_owned())
            .collect()
    };
    if let Some((name, list)) = text.split_once(" notin ") {
        return Ok(Term::NotIn(name.trim().to_owned(), values(list)));
    }
    if let Some((name, list)) = text.split_once(" in ") {
        return Ok(Term::In(name.trim().to_owned(), values(list)));
    }
    if let Some((name, value)) = text.split_once("!=").map(pair) {
        return Ok(Term::IsNot(name, value));
    }
    if let Some((name, value)) = text
        .split_once("==")
        .or_else(|| text.split_once('='))
        .map(pair)
    {
        return Ok(Term::Is(name, value));
    }
    if text.contains(' ') {
        return Err(Failure::bad_request(format!(
            "unable to parse requirement: {text}"
        )));
    }
    Ok(match text.strip_prefix('!') {
        Some(name) => Term::Missing(name.to_owned()),
        None => Term::Exists(text.to_owned()),
    })
}
