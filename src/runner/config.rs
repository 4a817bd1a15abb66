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
        "the runner builds QEMU's arguments from the other keys of vm",
    ),
    (
        "updateTemplate",
        "the runner builds QEMU's arguments from the other keys of vm",
    ),
    (
        "swtpmSocket",
        "the runner connects to the TPM without a socket file",
    ),
    (
        "monitorSocket",
        "the runner connects to QEMU without a socket file",
    ),
    (
        "vm.display.spice.ticket",
        "the password of the display is in the file display-password, in the directory of the configuration file",
    ),
    ("firmwareRom", "vm.firmware selects the firmware"),
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
                "the configuration has unknown keys without effect: {}; correct or remove them",
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
            format!("the configuration file {path} is not UTF-8 text; write it again as UTF-8")
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
            "the configuration file is not valid YAML",
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
            "this key is missing; add it, and write all other keys below it",
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
mod tests {
    use super::*;
    use crate::api::quantity::Bytes;
    use crate::api::runner::config::{NetworkConfig, StreamingVideo};

    fn vm(yaml: &str) -> crate::api::runner::config::VmConfig {
        parse(&format!("\"/Runner\":\n  vm:\n    name: t\n{yaml}"))
            .unwrap()
            .config
            .vm
            .unwrap()
    }

    #[test]
    fn a_file_of_the_reference_is_read() {
        let text = include_str!("testdata/reference.yaml");
        let parsed = parse(text).unwrap();
        assert_eq!(parsed.unknown, ["template", "updateTemplate"]);
        let vm = parsed.config.vm.unwrap();
        assert_eq!(
            (vm.name.as_str(), vm.maximum_cpus, vm.current_cpus),
            ("test-vm", Some(4), Some(2))
        );
        assert_eq!(
            vm.display.spice.unwrap().streaming_video,
            Some(StreamingVideo::Filter)
        );
    }

    #[test]
    fn b11_streaming_video_is_read_by_either_of_its_names() {
        for name in ["streamingVideo", "streaming-video"] {
            let spice = vm(&format!("    display: {{spice: {{{name}: all}}}}\n"))
                .display
                .spice
                .unwrap();
            assert_eq!(spice.streaming_video, Some(StreamingVideo::All), "{name}");
        }
    }

    #[test]
    fn unknown_keys_are_named_once_and_do_not_matter() {
        let parsed = parse(
            "\"/Runner\": {vm: {name: t, watchdog: 1, drives: [{speed: 9}]}, x: {y: 1}}\nother: 1\n",
        );
        assert_eq!(
            parsed.unwrap().unknown,
            ["vm.drives.0.speed", "vm.watchdog", "x"]
        );
    }

    #[test]
    fn keys_of_the_reference_are_told_for_what_they_are() {
        let text = "\"/Runner\": {template: a, monitorSocket: /m, x: 1, vm: {name: t, display: {spice: {ticket: secret}}, y: 1}}";
        let reported = parse(text).unwrap().unknown_key_warnings();
        let [socket, template, ticket, others] =
            &reported.iter().map(String::as_str).collect::<Vec<_>>()[..]
        else {
            panic!("{reported:?}")
        };
        assert!(ticket.contains(
            "vm.display.spice.ticket has no effect: the password of the display is in the file"
        ));
        assert!(
            socket.contains("monitorSocket has no effect")
                && template.contains("template has no effect")
        );
        assert!(others.contains("without effect: vm.y, x;"), "{others}");
        assert!(!reported.concat().contains("secret"));
    }

    #[test]
    fn b31_a_null_is_no_value_but_no_network_is_none() {
        assert_eq!(vm("    network: null\n").network, []);
        assert_eq!(vm("").network, [NetworkConfig::default()]);
        let vm =
            vm("    drives: null\n    sockets: null\n    display: {outputs: null, spice: null}\n");
        assert_eq!((vm.drives, vm.sockets), (Vec::new(), 0));
    }

    #[test]
    fn a_size_may_be_a_number() {
        assert_eq!(
            vm("    maximumRam: 1073741824\n").maximum_ram,
            Bytes(1 << 30)
        );
    }

    #[test]
    fn a_value_of_the_wrong_type_is_named_with_its_key() {
        let error = parse("\"/Runner\": {vm: {name: t, currentCpus: many}}").unwrap_err();
        assert_eq!(error.key, "vm.currentCpus");
        assert!(error.problem.contains("many"), "{error}");
        assert_eq!(parse("a: 1").unwrap_err().key, "/Runner");
        assert!(!parse("{").unwrap_err().to_string().contains('\n'));
    }

    #[test]
    fn a_secret_is_in_no_message() {
        const SECRET: &str = "hunter2, expected nothing";
        let file = |value: &str| {
            format!("{{\"/Runner\": {{\"vm\": {{\"name\": \"t\"}}, \"cloudInit\": {value}}}}}")
        };
        for (value, key) in [
            (format!("{SECRET:?}"), "cloudInit"),
            (
                format!("{{\"userData\": \"#cloud-config\\npassword: {SECRET}\"}}"),
                "cloudInit.userData",
            ),
            (
                format!("{{\"userData\": [{SECRET:?}]}}"),
                "cloudInit.userData",
            ),
            (
                format!("{{\"networkConfig\": {SECRET:?}}}"),
                "cloudInit.networkConfig",
            ),
            (
                format!("{{\"metaData\": {SECRET:?}}}"),
                "cloudInit.metaData",
            ),
            (
                format!("{{\"userDataFile\": {{{SECRET:?}: 1}}}}"),
                "cloudInit.userDataFile",
            ),
        ] {
            let reported = parse(&file(&value)).unwrap_err();
            assert_eq!(reported.key, key);
            assert!(
                !reported.problem.contains("hunter2") && reported.problem.contains("not shown"),
                "{reported}"
            );
        }
        let reported = parse(&file("{\"userData\": \"x\"}"))
            .unwrap_err()
            .to_string();
        assert_eq!(
            reported,
            "cloudInit.userData: the value has the wrong type (it is not shown, because it may be secret); use a map"
        );
        // Invalid YAML is reported with its position only.
        for broken in [
            "    userData: {password: hunter2",
            "    userData:\n      password: hunter2\n     x: 1\n\ty",
            "    userData: *hunter2\n",
        ] {
            let reported = parse(&format!(
                "\"/Runner\":\n  vm: {{name: t}}\n  cloudInit:\n{broken}"
            ))
            .unwrap_err();
            assert!(!reported.to_string().contains("hunter2"), "{reported}");
        }
    }

    #[test]
    fn nulls_inside_cloud_init_stay() {
        let parsed =
            parse("\"/Runner\": {vm: {name: t}, cloudInit: {userData: {swap: null}}}").unwrap();
        let user_data = parsed.config.cloud_init.unwrap().user_data.unwrap();
        assert_eq!(user_data.get("swap"), Some(&Value::Null));
    }

    #[test]
    fn b35_keys_with_any_first_letter_stay() {
        let parsed = parse(
            "\"/Runner\": {vm: {name: t}, cloudInit: {userData: {/etc/motd: a, _b: {/c: d}}}}",
        )
        .unwrap();
        let user_data = serde_json::to_value(parsed.config.cloud_init.unwrap().user_data).unwrap();
        assert_eq!(
            user_data,
            serde_json::json!({"/etc/motd": "a", "_b": {"/c": "d"}})
        );
    }

    #[test]
    fn what_is_repeated_without_end_is_refused() {
        let error = parse(include_str!("../../fuzz/seeds/config/laughs.yaml")).unwrap_err();
        assert!(error.problem.contains("alias"), "{error}");
    }
}
