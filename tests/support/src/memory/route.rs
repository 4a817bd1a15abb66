//! Parsing of requests.

use super::resource::Resource;
use super::status::Failure;
use super::store::Key;
use http::{HeaderMap, Method, Uri, header};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Apply,
    Merge,
    Strategic,
    Delete,
}

/// A parsed request.
#[derive(Debug)]
pub struct Call {
    pub verb: Verb,
    pub resource: Arc<Resource>,
    pub namespace: Option<String>,
    pub name: Option<String>,
    /// Empty for the object itself.
    pub subresource: String,
    query: BTreeMap<String, String>,
    pub metadata_only: bool,
    /// The field manager of a request without one.
    pub agent: String,
    pub body: Value,
}

impl Call {
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }

    pub fn key(&self) -> Key {
        (
            self.namespace.clone().unwrap_or_default(),
            self.name.clone().unwrap_or_default(),
        )
    }

    pub fn manager(&self) -> &str {
        self.query("fieldManager").unwrap_or(&self.agent)
    }

    pub fn is_dry_run(&self) -> bool {
        self.query("dryRun").is_some() || self.body["dryRun"].is_array()
    }

    /// Verb, resource, subresource, and the parameters that change the meaning.
    pub fn signature(&self) -> String {
        let subresource = if self.subresource.is_empty() {
            String::new()
        } else {
            format!("/{}", self.subresource)
        };
        let mut parameters: Vec<&str> = self.query.keys().map(String::as_str).collect();
        if self.metadata_only {
            parameters.push("PartialObjectMetadata");
        }
        if self.verb == Verb::Delete {
            parameters.extend(
                self.body
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(name, _)| name.as_str()),
            );
            parameters.retain(|name| !matches!(*name, "kind" | "apiVersion"));
        }
        format!(
            "{:?} {}{subresource} {}",
            self.verb,
            self.resource.qualified(),
            parameters.join(",")
        )
    }
}

/// The parameters that a verb may have.
fn known(verb: Verb) -> &'static [&'static str] {
    match verb {
        Verb::Get => &["resourceVersion", "tailLines", "container"],
        Verb::List => &[
            "labelSelector",
            "fieldSelector",
            "limit",
            "continue",
            "resourceVersion",
            "resourceVersionMatch",
            "timeoutSeconds",
        ],
        Verb::Watch => &[
            "watch",
            "labelSelector",
            "fieldSelector",
            "resourceVersion",
            "resourceVersionMatch",
            "timeoutSeconds",
            "allowWatchBookmarks",
            "sendInitialEvents",
        ],
        Verb::Create | Verb::Update | Verb::Merge | Verb::Strategic => &["fieldManager", "dryRun"],
        Verb::Apply => &["fieldManager", "force", "dryRun"],
        Verb::Delete => &["gracePeriodSeconds", "propagationPolicy"],
    }
}

/// Parses a request. `find` returns the resource of a group, version and plural.
pub fn read(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: &[u8],
    find: impl Fn(&str, &str, &str) -> Option<Arc<Resource>>,
) -> Result<Call, Failure> {
    let parts: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    let (group, version, rest) = match &parts[..] {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return Err(Failure::unknown(format!("{method} {uri}"))),
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() && !is_of_namespace(rest) => {
            (Some(*namespace), rest)
        }
        rest => (None, rest),
    };
    let (plural, name, subresource) = match rest {
        [plural] => (*plural, None, ""),
        [plural, name] => (*plural, Some(*name), ""),
        [plural, name, subresource] => (*plural, Some(*name), *subresource),
        _ => return Err(Failure::unknown(format!("{method} {uri}"))),
    };
    // A missing custom kind is a normal state. A missing built-in kind is a gap of this server.
    let Some(resource) = find(group, version, plural) else {
        return Err(
            match group.ends_with(".k8s.io") || matches!(group, "" | "apps" | "batch" | "policy") {
                true => Failure::unknown(format!("{method} {uri}")),
                false => Failure::no_such_path(),
            },
        );
    };
    let query = query(uri.query().unwrap_or_default());
    let text = |name: header::HeaderName| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let verb = verb(method, name, &query, text(header::CONTENT_TYPE)).ok_or_else(|| {
        Failure::unknown(format!(
            "{method} {uri} as {:?}",
            text(header::CONTENT_TYPE)
        ))
    })?;
    if let Some(name) = query
        .keys()
        .find(|name| !known(verb).contains(&name.as_str()))
    {
        return Err(Failure::unknown(format!(
            "parameter {name} of {method} {uri}"
        )));
    }
    let body = match body {
        b"" => Value::Null,
        body if verb == Verb::Apply => {
            serde_saphyr::from_slice(body).map_err(|e| Failure::bad_request(e.to_string()))?
        }
        body => serde_json::from_slice(body).map_err(|e| Failure::bad_request(e.to_string()))?,
    };
    let agent = text(header::USER_AGENT)
        .split('/')
        .next()
        .unwrap_or_default();
    Ok(Call {
        verb,
        namespace: namespace.map(ToOwned::to_owned),
        name: name.map(ToOwned::to_owned),
        subresource: subresource.to_owned(),
        metadata_only: text(header::ACCEPT).contains("as=PartialObjectMetadata"),
        agent: if agent.is_empty() {
            "unknown".to_owned()
        } else {
            agent.to_owned()
        },
        query,
        body,
        resource,
    })
}

/// Whether the path continues below a namespace itself.
fn is_of_namespace(rest: &[&str]) -> bool {
    matches!(rest, ["status" | "finalize"])
}

fn verb(
    method: &Method,
    name: Option<&str>,
    query: &BTreeMap<String, String>,
    content: &str,
) -> Option<Verb> {
    let watches = query
        .get("watch")
        .is_some_and(|watch| matches!(watch.as_str(), "true" | "1"));
    let patch = content.split(';').next().unwrap_or_default();
    match (method.as_str(), name) {
        ("GET", Some(_)) => Some(Verb::Get),
        ("GET", None) => Some(if watches { Verb::Watch } else { Verb::List }),
        ("POST", _) => Some(Verb::Create),
        ("PUT", Some(_)) => Some(Verb::Update),
        ("DELETE", Some(_)) => Some(Verb::Delete),
        ("PATCH", Some(_)) => match patch {
            "application/apply-patch+yaml" => Some(Verb::Apply),
            "application/merge-patch+json" => Some(Verb::Merge),
            "application/strategic-merge-patch+json" => Some(Verb::Strategic),
            _ => None,
        },
        _ => None,
    }
}

fn query(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| (decoded(name), decoded(value)))
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail
            .get(..2)
            .and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
                continue;
            }
            (b'+', _) => bytes.push(b' '),
            (byte, _) => bytes.push(*byte),
        }
        rest = tail;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
