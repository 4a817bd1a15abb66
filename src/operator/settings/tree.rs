//! (pure) A YAML file as a tree whose values know their lines, and sections that know which of their keys were asked
//! for.

use super::{Note, SettingsError};
use serde::de::{DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::Value;
use serde_saphyr::Spanned;
use std::fmt;

/// A value of the file.
#[derive(Clone, Debug, Default)]
enum Yaml {
    #[default]
    Null,
    Scalar(Value),
    List(Vec<Spanned<Yaml>>),
    Map(Vec<(String, Spanned<Yaml>)>),
}

impl<'de> Deserialize<'de> for Yaml {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyYaml)
    }
}

struct AnyYaml;

impl<'de> Visitor<'de> for AnyYaml {
    type Value = Yaml;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Yaml, E> {
        Ok(Yaml::Null)
    }

    fn visit_none<E>(self) -> Result<Yaml, E> {
        Ok(Yaml::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Yaml, D::Error> {
        Yaml::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Yaml, E> {
        Ok(Yaml::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Yaml, E> {
        Ok(Yaml::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Yaml, E> {
        Ok(Yaml::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Yaml, E> {
        // Infinity and NaN are no JSON; as text they are refused where a number is asked for.
        Ok(Yaml::Scalar(serde_json::Number::from_f64(value).map_or_else(|| value.to_string().into(), Value::Number)))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Yaml, E> {
        Ok(Yaml::Scalar(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Yaml, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Yaml::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Yaml, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Yaml::Map(entries))
    }
}

impl Yaml {
    fn json(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Scalar(value) => value.clone(),
            Self::List(items) => items.iter().map(|item| item.value.json()).collect(),
            Self::Map(entries) => {
                Value::Object(entries.iter().map(|(key, value)| (key.clone(), value.value.json())).collect())
            }
        }
    }
}

/// A value, with its place.
pub struct Node<'a> {
    file: &'a str,
    key: String,
    value: Spanned<Yaml>,
}

impl<'a> Node<'a> {
    /// Reads a whole file.
    ///
    /// # Errors
    /// If it is no YAML.
    pub fn parse(text: &str, file: &'a str) -> Result<Self, SettingsError> {
        let malformed = |source| SettingsError::Malformed { file: file.to_owned(), source: Box::new(source) };
        let empty = text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
        let value = if empty {
            Spanned::new(Yaml::Null, serde_saphyr::Location::UNKNOWN, serde_saphyr::Location::UNKNOWN)
        } else {
            serde_saphyr::from_str_with_options(text, serde_saphyr::options! { with_snippet: false })
                .map_err(malformed)?
        };
        Ok(Self { file, key: String::new(), value })
    }

    /// The refusal of this value.
    ///
    /// # Errors
    /// Always.
    pub fn refuse<T>(&self, allowed: impl Into<String>) -> Result<T, SettingsError> {
        let value = self.value.value.json();
        self.refuse_as(value.as_str().map_or_else(|| value.to_string(), |text| format!("{text:?}")), allowed)
    }

    /// The refusal of a value that may be a secret.
    ///
    /// # Errors
    /// Always.
    pub fn refuse_unseen<T>(&self, allowed: impl Into<String>) -> Result<T, SettingsError> {
        self.refuse_as("what stands there".to_owned(), allowed)
    }

    fn refuse_as<T>(&self, value: String, allowed: impl Into<String>) -> Result<T, SettingsError> {
        Err(SettingsError::NotAllowed {
            file: self.file.to_owned(),
            line: self.value.referenced.line(),
            key: self.key.clone(),
            value,
            allowed: allowed.into(),
        })
    }

    /// That there is something to tell about this value.
    pub fn note(&self, text: impl Into<String>) -> Note {
        Note { line: self.value.referenced.line(), key: self.key.clone(), text: text.into() }
    }

    /// Its keys; none where there is nothing.
    ///
    /// # Errors
    /// If it is something else.
    pub fn section(self) -> Result<Section<'a>, SettingsError> {
        match self.value.value {
            Yaml::Null => Ok(Section { file: self.file, key: self.key, entries: Vec::new() }),
            Yaml::Map(entries) => Ok(Section { file: self.file, key: self.key, entries }),
            _ => self.refuse("give keys with values"),
        }
    }

    /// The text.
    ///
    /// # Errors
    /// If it is something else.
    pub fn text(&self) -> Result<String, SettingsError> {
        match &self.value.value {
            Yaml::Scalar(Value::String(text)) => Ok(text.clone()),
            _ => self.refuse("give a text, in quotes"),
        }
    }

    /// The number. As in the reference, text that is a number is one.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match &self.value.value {
            Yaml::Scalar(Value::Number(number)) => number.as_f64(),
            Yaml::Scalar(Value::String(text)) => text.trim().parse().ok(),
            _ => None,
        }
    }

    /// Whether it is true or false.
    #[must_use]
    pub fn boolean(&self) -> Option<bool> {
        match &self.value.value {
            Yaml::Scalar(Value::Bool(value)) => Some(*value),
            _ => None,
        }
    }

    /// Whatever a type makes of it, such as one of Kubernetes'.
    ///
    /// # Errors
    /// If the type cannot take it.
    pub fn typed<T: DeserializeOwned>(&self, allowed: &str) -> Result<T, SettingsError> {
        serde_json::from_value(self.value.value.json()).or_else(|error| self.refuse(format!("{allowed} ({error})")))
    }

    /// The items of a list.
    ///
    /// # Errors
    /// If it is something else.
    pub fn items(self) -> Result<Vec<Node<'a>>, SettingsError> {
        match self.value.value {
            Yaml::List(items) => {
                let node = |(n, value)| Node { file: self.file, key: format!("{}[{n}]", self.key), value };
                Ok(items.into_iter().enumerate().map(node).collect())
            }
            _ => self.refuse("give a list"),
        }
    }
}

/// Keys of the file with their values.
pub struct Section<'a> {
    file: &'a str,
    key: String,
    entries: Vec<(String, Spanned<Yaml>)>,
}

impl<'a> Section<'a> {
    /// The value of a key, if there is one; a null is none. It counts as asked for.
    pub fn take(&mut self, key: &str) -> Option<Node<'a>> {
        let at = self.entries.iter().position(|(name, _)| name == key)?;
        let (name, value) = self.entries.swap_remove(at);
        let node = Node { file: self.file, key: self.path(&name), value };
        Some(node).filter(|node| !matches!(node.value.value, Yaml::Null))
    }

    /// The keys below that one; none where there is nothing.
    ///
    /// # Errors
    /// If it has a value that is no section.
    pub fn section(&mut self, key: &str) -> Result<Section<'a>, SettingsError> {
        match self.take(key) {
            Some(node) => node.section(),
            None => Ok(Section { file: self.file, key: self.path(key), entries: Vec::new() }),
        }
    }

    /// What nobody has asked for.
    pub fn rest(self) -> impl Iterator<Item = Node<'a>> {
        let path = self.key;
        let mut entries = self.entries;
        entries.sort_by_key(|(_, value)| value.referenced.line());
        entries.into_iter().map(move |(name, value)| Node { file: self.file, key: joined(&path, &name), value })
    }

    /// Says of what nobody has asked for that nobody does.
    pub fn note_rest(self, notes: &mut Vec<Note>) {
        notes.extend(self.rest().map(|node| node.note("no such setting; it has no effect")));
    }

    fn path(&self, key: &str) -> String {
        joined(&self.key, key)
    }
}

fn joined(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
