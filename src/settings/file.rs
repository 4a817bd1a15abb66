//! (io) The configuration file: it is read at the start and watched for changes while the operator runs.

use crate::telemetry::logs::LogLevel;
use prometheus_client::metrics::gauge::Gauge;
use serde::de::{DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_saphyr::Spanned;
use std::fmt;
use std::io::ErrorKind;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Path of the configuration file in the operator's pod, where the ConfigMap `vm-operator` is mounted.
pub const DEFAULT_PATH: &str = "/etc/opt/vmoperator/config.yaml";

/// Interval between two reads of the file. The kubelet takes up to 90 s to write a new version of the ConfigMap.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Keys that only web consoles read.
const CONSOLE_KEYS: [&str; 3] = [
    "/Manager.clusterName",
    "/Manager./GuiSocketServer",
    "/Manager./GuiHttpServer",
];

/// The reason for keys that the web console of the Java VM-Operator reads, and ours does not.
const NOT_YET: &str =
    "the web console does not support this key yet, so it has no effect; it can remain in the file";

/// Keys without effect, and the reason.
const KEYS_WITHOUT_EFFECT: [(&str, &str); 5] = [
    (
        "/Manager./Controller./Reconciler.openTelemetry",
        "this key has no effect, because the operator sends no OpenTelemetry traces; remove the key. The metric \
         vm_operator_vm_start_seconds shows how long VMs take to start",
    ),
    (
        "/Manager./Controller./Reconciler./DisplaySecretReconciler",
        "this key has no effect in the operator; a web console reads the key",
    ),
    (
        "/Manager./Controller./DisplaySecretMonitor",
        "this key has no effect in the operator; remove the key. If a web console of the Java VM-Operator reads this file, use \
         the key /Manager./Controller./Reconciler./DisplaySecretReconciler instead",
    ),
    (
        "/Manager./GuiHttpServer./ConsoleWeblet./WebConsole./UserLogger",
        NOT_YET,
    ),
    (
        "/Manager./GuiHttpServer./ConsoleWeblet./WebConsole./ComponentCollector./VmMgmt",
        NOT_YET,
    ),
];

/// The reason that the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error(
        "cannot read the configuration file {0}: {1}; mount the ConfigMap vm-operator at this path, or name another file with \
            --config"
    )]
    Unreadable(String, std::io::Error),
    /// The text is not YAML, or a value is not allowed. The message names file, line, key and the allowed values.
    #[error("{0}")]
    Invalid(String),
}

/// The configuration of one set of controllers: a section of the file.
pub trait Section: DeserializeOwned + Default + Clone + PartialEq + Send + Sync + 'static {
    /// The keys that lead to the section.
    const PATH: &'static [&'static str];

    /// Namespace of the operator, if the section names it.
    fn namespace(&self) -> Option<&str> {
        None
    }

    /// The first value that is not allowed: its key below the section, and the next step.
    fn violation(&self) -> Option<(String, &'static str)> {
        None
    }

    /// Parses the text of a file. Returns the configuration, and warnings about keys without effect. `file` is the file name in
    /// messages.
    ///
    /// # Errors
    /// The text is not YAML, or has a value that is not allowed.
    fn parse(text: &str, file: &str) -> Result<(Self, Vec<String>), SettingsError> {
        parse(text, file)
    }

    /// Whether only other programs read this key, so that no warning names it.
    fn is_of_others(key: &str) -> bool {
        CONSOLE_KEYS.contains(&key)
    }

    /// Values without effect: their keys below the section, and the reason.
    fn warnings(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// The configuration file: path, last text, and the configuration in use.
#[derive(Clone, Debug)]
pub struct ConfigFile<S> {
    path: PathBuf,
    /// Whether a missing file means the default values, also later.
    is_optional: bool,
    content: Content,
    /// The configuration in use.
    pub settings: S,
}

/// The last content of a file.
#[derive(Clone, Debug, PartialEq)]
enum Content {
    Text(String),
    Missing,
    Unreadable,
}

impl Content {
    fn of(read: &std::io::Result<String>) -> Self {
        match read {
            Ok(text) => Self::Text(text.clone()),
            Err(error) if error.kind() == ErrorKind::NotFound => Self::Missing,
            Err(_) => Self::Unreadable,
        }
    }
}

impl<S: Section> ConfigFile<S> {
    /// Reads the file at `path` and logs its warnings. Without `path`, it reads [`DEFAULT_PATH`]; if that does not exist, all
    /// values are defaults.
    ///
    /// # Errors
    /// The file cannot be read, is not YAML, or has a value that is not allowed.
    pub fn load(path: Option<&Path>) -> Result<Self, SettingsError> {
        Self::read(
            path.unwrap_or(Path::new(DEFAULT_PATH)),
            path.is_none(),
            false,
        )
    }

    /// Reads the file at `path` and logs its warnings. If it does not exist, now or later, all values are defaults.
    ///
    /// # Errors
    /// The file cannot be read, is not YAML, or has a value that is not allowed.
    pub fn load_optional(path: &Path) -> Result<Self, SettingsError> {
        Self::read(path, true, true)
    }

    fn read(path: &Path, may_be_missing: bool, is_optional: bool) -> Result<Self, SettingsError> {
        let read = std::fs::read_to_string(path);
        let content = Content::of(&read);
        let settings = match read {
            Ok(text) => parse_and_log(&text, path)?,
            Err(_) if may_be_missing && content == Content::Missing => S::default(),
            Err(error) => return Err(SettingsError::Unreadable(path.display().to_string(), error)),
        };
        Ok(Self {
            path: path.to_owned(),
            is_optional,
            content,
            settings,
        })
    }

    /// Waits until the file has another valid configuration, and returns it. Until then, `log_level` follows the file
    /// `logging.properties` in the same directory. An invalid or removed file only sets `valid`
    /// to 0.
    pub async fn changed(mut self, valid: &Gauge, log_level: Option<&LogLevel>) -> Self {
        loop {
            if let Some(log_level) = log_level {
                log_level.follow(&self.path);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            let text = tokio::fs::read_to_string(&self.path).await;
            let content = Content::of(&text);
            if content == self.content {
                continue;
            }
            self.content = content;
            let parsed = match text {
                Ok(text) => parse_and_log(&text, &self.path),
                Err(error) if self.is_optional && error.kind() == ErrorKind::NotFound => {
                    Ok(S::default())
                }
                Err(error) => Err(SettingsError::Unreadable(
                    self.path.display().to_string(),
                    error,
                )),
            };
            valid.set(parsed.is_ok().into());
            match parsed {
                Ok(settings) if settings == self.settings => {}
                Ok(settings) => return Self { settings, ..self },
                Err(error) => {
                    tracing::error!(
                        "the operator cannot use the changed configuration and continues with the previous one: {error}"
                    )
                }
            }
        }
    }
}

fn parse_and_log<S: Section>(text: &str, path: &Path) -> Result<S, SettingsError> {
    let (settings, warnings) = S::parse(text, &path.display().to_string())?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    Ok(settings)
}

fn parse<S: Section>(text: &str, file: &str) -> Result<(S, Vec<String>), SettingsError> {
    let about = |key: &str, message: &str| match line_of(text, key) {
        Some(line) => format!("{file}, line {line}: {key}: {message}"),
        None => format!("{file}: {key}: {message}"),
    };
    let options = serde_saphyr::options! { with_snippet: false };
    let mut value: Value = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| SettingsError::Invalid(format!("{file}: {error}")))?;
    drop_nulls(&mut value);
    let (mut unknown, mut track) = (Vec::new(), serde_path_to_error::Track::new());
    let deserializer = serde_path_to_error::Deserializer::new(&value, &mut track);
    let below = Below::<S>(S::PATH, PhantomData);
    let mut ignored = |path: serde_ignored::Path<'_>| unknown.push(key(&path));
    let deserializer = serde_ignored::Deserializer::new(deserializer, &mut ignored);
    let section = below
        .deserialize(deserializer)
        .map_err(|error| SettingsError::Invalid(about(&key(&track.path()), &error.to_string())))?;
    let prefix: String = S::PATH.iter().map(|key| format!("{key}.")).collect();
    if let Some((key, next_step)) = section.violation() {
        let message = format!("the value is not allowed; {next_step}");
        return Err(SettingsError::Invalid(about(
            &format!("{prefix}{key}"),
            &message,
        )));
    }
    unknown.retain(|key| !S::is_of_others(key));
    let unknown = unknown
        .iter()
        .map(|key| about(key, reason_without_effect(key)));
    let warnings = section.warnings();
    let warnings = warnings
        .iter()
        .map(|(key, message)| about(&format!("{prefix}{key}"), message));
    let all = unknown.chain(warnings).collect();
    Ok((section, all))
}

/// Deserializer seed that follows these keys to the section. A missing section has the default values.
struct Below<S>(&'static [&'static str], PhantomData<S>);

impl<'de, S: Section> DeserializeSeed<'de> for Below<S> {
    type Value = S;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S, D::Error> {
        match self.0 {
            [] => S::deserialize(deserializer),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de, S: Section> Visitor<'de> for Below<S> {
    type Value = S;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    /// An empty file.
    fn visit_unit<E>(self) -> Result<S, E> {
        Ok(S::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<S, A::Error> {
        let Some((first, rest)) = self.0.split_first() else {
            return Ok(S::default());
        };
        let mut section = S::default();
        while let Some(key) = map.next_key::<String>()? {
            if key == *first {
                section = map.next_value_seed(Self(rest, PhantomData))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(section)
    }
}

/// The path of a key, without serde's marks of optional values.
fn key(path: &impl ToString) -> String {
    path.to_string().replace(".?", "")
}

fn reason_without_effect(key: &str) -> &'static str {
    let known = KEYS_WITHOUT_EFFECT.iter().find(|(known, _)| *known == key);
    known.map_or(
        "this key is unknown and has no effect; correct or remove it",
        |(_, reason)| reason,
    )
}

/// Removes keys with the value null, which mean the same as missing keys.
pub(super) fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// The line of the value of `key` in a YAML text. For an item, it is the line of its list.
fn line_of(text: &str, key: &str) -> Option<u64> {
    serde_saphyr::with_deserializer_from_str(text, |deserializer| {
        LineOf(key).deserialize(deserializer)
    })
    .ok()?
}

/// Deserializer seed that follows a key through nested maps to the line of its value.
struct LineOf<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for LineOf<'_> {
    type Value = Option<u64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        match self.0 {
            key if key.is_empty() || key.starts_with('[') => {
                Spanned::<IgnoredAny>::deserialize(deserializer)
                    .map(|value| Some(value.referenced.line()))
            }
            _ => deserializer.deserialize_map(self),
        }
    }
}

impl<'de> Visitor<'de> for LineOf<'_> {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut line = None;
        while let Some(key) = map.next_key::<String>()? {
            match self.0.strip_prefix(&key) {
                Some(rest) if rest.is_empty() || rest.starts_with(['.', '[']) => {
                    line = map.next_value_seed(LineOf(rest.trim_start_matches('.')))?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(line)
    }
}
