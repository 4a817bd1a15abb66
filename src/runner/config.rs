//! (io) Reads the configuration file into a [`RunnerConfig`].
//!
//! Unknown keys are collected, not rejected, so that a newer operator can configure an older
//! runner. The message for an invalid file has one line.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

use crate::api::runner::config::ConfigFile;
pub use crate::api::runner::config::RunnerConfig;
use crate::api::runner::outcome::EndReason;
use crate::runner::failure::{Failure, Invalid};
use serde_json::{Map, Value};
use std::io::ErrorKind;
use std::path::Path;

/// Number of YAML events that aliases may expand to.
const ALIAS_EVENTS_MAX: usize = 10_000;

#[derive(Debug, PartialEq)]
pub struct ParsedConfig {
    pub config: RunnerConfig,
    /// Unknown keys, such as `vm.watchdog`.
    pub unknown: Vec<String>,
}

/// Keys of the Java VM-Operator that have no effect, with the reason.
const LEGACY_KEYS: [(&str, &str); 9] = [
    (
        "template",
        "the runner uses no template: it builds QEMU's arguments from the keys below vm",
    ),
    (
        "updateTemplate",
        "the runner uses no template: it builds QEMU's arguments from the keys below vm",
    ),
    (
        "swtpmSocket",
        "the runner needs no socket file to connect to the TPM",
    ),
    (
        "monitorSocket",
        "the runner needs no socket file to connect to QEMU",
    ),
    (
        "vm.display.spice.ticket",
        "the password of the display is in the file display-password, in the directory of the configuration file",
    ),
    (
        "firmwareRom",
        "the runner takes the firmware from the key vm.firmware",
    ),
    (
        "firmwareVars",
        "the firmware variables are in the file fw-vars.fd in dataDir",
    ),
    (
        "hasDisplayPassword",
        "the display requires a password if the file display-password exists in the directory of the configuration file",
    ),
    (
        "asOf",
        "only the runner of the Java VM-Operator uses this key",
    ),
];

impl ParsedConfig {
    /// Warnings about unknown keys: one line for each known key of the Java VM-Operator, and one
    /// for all others.
    pub fn unknown_key_warnings(&self) -> Vec<String> {
        let why = |key: &String| LEGACY_KEYS.iter().find(|(legacy_key, _)| legacy_key == key);
        let (known, unknown): (Vec<&String>, Vec<&String>) =
            self.unknown.iter().partition(|key| why(key).is_some());
        let known = known.into_iter().filter_map(why);
        let mut all: Vec<String> = known
            .map(|(key, why)| format!("the configuration key {key} has no effect: {why}"))
            .collect();
        if !unknown.is_empty() {
            let keys: Vec<&str> = unknown.into_iter().map(String::as_str).collect();
            all.push(format!(
                "the configuration has unknown keys, which the runner ignores: {}; correct or remove these keys",
                keys.join(", ")
            ));
        }
        all
    }
}

/// Top-level keys with different values that need a restart. Keys that only the operator uses are
/// not included.
pub fn changed_keys(one: &RunnerConfig, other: &RunnerConfig) -> Vec<&'static str> {
    let differs = [
        ("dataDir", one.data_dir != other.data_dir),
        ("runtimeDir", one.runtime_dir != other.runtime_dir),
        ("namespace", one.namespace != other.namespace),
        ("uid", one.uid != other.uid),
        ("logLevel", one.log_level != other.log_level),
        ("metricsPort", one.metrics_port != other.metrics_port),
        ("consolePort", one.console_port != other.console_port),
        ("cloudInit", one.cloud_init != other.cloud_init),
    ];
    differs
        .into_iter()
        .filter(|(_, differs)| *differs)
        .map(|(key, _)| key)
        .collect()
}

pub fn read(path: &Path) -> Result<ParsedConfig, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| read_failure(path, &error))?;
    parse(&text).map_err(|invalid| failure_in_file(path, &invalid))
}

/// The text of the file. A missing file is not an error, because editors and the kubelet replace
/// files.
pub fn text(path: &Path) -> Result<Option<String>, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(read_failure(path, &error)),
    }
}

pub fn failure_in_file(path: &Path, invalid: &Invalid) -> Failure {
    Failure::new(
        EndReason::InvalidConfig,
        format!("{}: {invalid}", path.display()),
    )
}

fn read_failure(path: &Path, error: &std::io::Error) -> Failure {
    let (path, uid) = (path.display(), rustix::process::getuid().as_raw());
    let message = match error.kind() {
        ErrorKind::InvalidData => {
            format!("the configuration file {path} is not UTF-8 text; save the file as UTF-8")
        }
        ErrorKind::PermissionDenied => {
            format!(
                "uid {uid} cannot read the configuration file {path}: {error}; give that user read access to the file and its \
                 directory"
            )
        }
        _ => format!(
            "cannot read the configuration file {path}: {error}; check the path, or name another file with --config"
        ),
    };
    Failure::new(EndReason::InvalidConfig, message)
}

/// Parses the text of the file.
pub fn parse(text: &str) -> Result<ParsedConfig, Invalid> {
    let one_line = |error: String| error.lines().next().unwrap_or_default().to_owned();
    // The operator writes JSON. A YAML parser would read some of its numbers and characters
    // differently.
    let json = serde_json::from_str(text);
    // Nested aliases can expand a few lines to billions of values.
    let repeated = serde_saphyr::alias_limits! { max_total_replayed_events: ALIAS_EVENTS_MAX };
    let value = json.or_else(|_| {
        serde_saphyr::from_str_with_options(text, serde_saphyr::options! { alias_limits: repeated })
    });
    let mut value: Value = value.map_err(|e| {
        Invalid::new(
            "the configuration file is not valid YAML; correct this error",
            one_line(e.to_string()),
        )
    })?;
    let root = value
        .as_object_mut()
        .and_then(|file| file.get_mut("/Runner"))
        .and_then(Value::as_object_mut);
    let Some(root) = root else {
        return Err(Invalid::new(
            "/Runner",
            "the file has no key /Runner; add this key, and write all other keys below /Runner",
        ));
    };
    normalize_nulls(root);
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(&value, &mut track);
    let file: Result<ConfigFile, _> =
        serde_ignored::deserialize(deserializer, |path| unknown.push(path.to_string()));
    let file = file.map_err(|error| {
        let (key, error) = (
            user_key(&track.path().to_string()),
            one_line(error.to_string()),
        );
        let problem = if is_secret(&key) {
            redact_value(&error)
        } else {
            error
        };
        Invalid::new(key, problem)
    })?;
    let unknown = unknown
        .iter()
        .filter(|path| path.starts_with("/Runner"))
        .map(|path| user_key(path))
        .collect();
    Ok(ParsedConfig {
        config: file.runner,
        unknown,
    })
}

/// Whether the values of that key are secret. `cloudInit` can contain passwords of the guest's
/// users.
fn is_secret(key: &str) -> bool {
    key.split(['.', '[']).next() == Some("cloudInit")
}

/// The message of an error without the value, which comes first in it.
fn redact_value(error: &str) -> String {
    match error.rsplit_once(", expected ") {
        Some((_, expected)) => {
            format!(
                "the value has the wrong type (it is not shown, because it may be secret); use {expected}"
            )
        }
        None => {
            "the value is invalid (it is not shown, because it may be secret); correct the value"
                .to_owned()
        }
    }
}

/// The path of a key without the root and without the marks of optional values.
fn user_key(path: &str) -> String {
    path.trim_start_matches("/Runner")
        .replace(".?", "")
        .trim_start_matches('.')
        .to_owned()
}

/// Treats null as the Java VM-Operator does: as an absent key. `network: null` means no network.
fn normalize_nulls(root: &mut Map<String, Value>) {
    let cloud_init = root.remove("cloudInit").filter(|value| !value.is_null());
    if let Some(network) = root
        .get_mut("vm")
        .and_then(|vm| vm.get_mut("network"))
        .filter(|network| network.is_null())
    {
        *network = Value::Array(Vec::new());
    }
    drop_nulls(root);
    if let Some(cloud_init) = cloud_init {
        root.insert("cloudInit".to_owned(), cloud_init);
    }
}

fn drop_nulls(map: &mut Map<String, Value>) {
    map.retain(|_, value| !value.is_null());
    for value in map.values_mut() {
        match value {
            Value::Object(inner) => drop_nulls(inner),
            Value::Array(items) => items
                .iter_mut()
                .filter_map(Value::as_object_mut)
                .for_each(drop_nulls),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
