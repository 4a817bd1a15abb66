//! (io) The configuration file: found, read, and brought into the shape of [`RunnerConfig`].
//!
//! In: a path. Out: the configuration, and the keys that nobody reads, each once. What always holds: a file that
//! only repeats itself or has keys of a newer operator is accepted, and an unusable one is explained in one line.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

use crate::api::runner::config::ConfigFile;
pub use crate::api::runner::config::RunnerConfig;
use crate::api::runner::outcome::EndReason;
use crate::runner::failure::{Failure, Invalid};
use serde_json::{Map, Value};
use std::io::ErrorKind;
use std::path::Path;

/// Most values that YAML's aliases may stand for.
const REPEATED: usize = 10_000;

/// A configuration as read.
#[derive(Debug, PartialEq)]
pub struct Parsed {
    /// The configuration.
    pub config: RunnerConfig,
    /// Keys that are not ours, as `vm.watchdog`.
    pub unknown: Vec<String>,
}

/// Keys of the reference that have no effect here, and why.
const OF_THE_REFERENCE: [(&str, &str); 9] = [
    (
        "template",
        "QEMU's arguments are made of the machine's own keys",
    ),
    (
        "updateTemplate",
        "QEMU's arguments are made of the machine's own keys",
    ),
    ("swtpmSocket", "the TPM's socket has no path"),
    ("monitorSocket", "QEMU's monitor has no path"),
    (
        "vm.display.spice.ticket",
        "a display asks for the password in the file display-password, beside the configuration",
    ),
    ("firmwareRom", "vm.firmware chooses it"),
    ("firmwareVars", "they are fw-vars.fd in dataDir"),
    (
        "hasDisplayPassword",
        "there is one where there is the file display-password, beside the configuration",
    ),
    ("asOf", "the reference's runner has it for itself"),
];

impl Parsed {
    /// What to say of keys that are not ours: one line for those of the reference each, one for all others.
    pub fn about_unknown(&self) -> Vec<String> {
        let why = |key: &String| {
            OF_THE_REFERENCE
                .iter()
                .find(|(of_reference, _)| of_reference == key)
        };
        let (known, unknown): (Vec<&String>, Vec<&String>) =
            self.unknown.iter().partition(|key| why(key).is_some());
        let known = known.into_iter().filter_map(why);
        let mut all: Vec<String> = known
            .map(|(key, why)| format!("{key} has no effect: {why}"))
            .collect();
        if !unknown.is_empty() {
            let keys: Vec<&str> = unknown.into_iter().map(String::as_str).collect();
            all.push(format!("keys that nobody reads: {}", keys.join(", ")));
        }
        all
    }
}

/// Keys beside the machine's that a start takes, and whose values differ. What the operator alone acts on is not among them.
pub fn other_keys(one: &RunnerConfig, other: &RunnerConfig) -> Vec<&'static str> {
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

/// Reads the file.
pub fn read(path: &Path) -> Result<Parsed, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    parse(&text).map_err(|invalid| in_file(path, &invalid))
}

/// The file's text; none where there is no file, which is about to be replaced then.
pub fn text(path: &Path) -> Result<Option<String>, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// The failure for an invalid value, with the file's name.
pub fn in_file(path: &Path, invalid: &Invalid) -> Failure {
    Failure::new(
        EndReason::InvalidConfig,
        format!("{}: {invalid}", path.display()),
    )
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    let (path, uid) = (path.display(), rustix::process::getuid().as_raw());
    let message = match error.kind() {
        ErrorKind::InvalidData => format!("{path} is not text in UTF-8; write it anew"),
        ErrorKind::PermissionDenied => {
            format!(
                "{path} cannot be read by uid {uid}: {error}; let that user read it, and the file itself be in its folder"
            )
        }
        _ => format!("{path} cannot be read: {error}; name the file with --config"),
    };
    Failure::new(EndReason::InvalidConfig, message)
}

/// Brings the text of the file into shape.
pub fn parse(text: &str) -> Result<Parsed, Invalid> {
    let one_line = |error: String| error.lines().next().unwrap_or_default().to_owned();
    // The operator writes JSON. A reader of YAML would take some of its numbers and characters for something else.
    let json = serde_json::from_str(text);
    // A file of a few lines can repeat itself to billions of values.
    let repeated = serde_saphyr::alias_limits! { max_total_replayed_events: REPEATED };
    let value = json.or_else(|_| {
        serde_saphyr::from_str_with_options(text, serde_saphyr::options! { alias_limits: repeated })
    });
    let mut value: Value =
        value.map_err(|e| Invalid::new("the file is not YAML", one_line(e.to_string())))?;
    let root = value
        .as_object_mut()
        .and_then(|file| file.get_mut("/Runner"))
        .and_then(Value::as_object_mut);
    let Some(root) = root else {
        return Err(Invalid::new(
            "/Runner",
            "missing; everything is below this root key",
        ));
    };
    tolerate(root);
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(&value, &mut track);
    let file: Result<ConfigFile, _> =
        serde_ignored::deserialize(deserializer, |path| unknown.push(path.to_string()));
    let file = file.map_err(|error| {
        let (key, error) = (key(&track.path().to_string()), one_line(error.to_string()));
        let problem = if is_secret(&key) {
            without_value(&error)
        } else {
            error
        };
        Invalid::new(key, problem)
    })?;
    let unknown = unknown
        .iter()
        .filter(|path| path.starts_with("/Runner"))
        .map(|path| key(path))
        .collect();
    Ok(Parsed {
        config: file.runner,
        unknown,
    })
}

/// Whether the values of that key are for nobody but the guest: its users' passwords are among them.
fn is_secret(key: &str) -> bool {
    key.split(['.', '[']).next() == Some("cloudInit")
}

/// What is wrong with a value, without the value, which comes first.
fn without_value(error: &str) -> String {
    match error.rsplit_once(", expected ") {
        Some((_, expected)) => {
            format!("the value, which is not shown, has another type; use {expected}")
        }
        None => "the value, which is not shown, cannot be used".to_owned(),
    }
}

/// The path of a key without the root and without the marks of optional values.
fn key(path: &str) -> String {
    path.trim_start_matches("/Runner")
        .replace(".?", "")
        .trim_start_matches('.')
        .to_owned()
}

/// Reads null as the reference does: it means absent, but for `network` no network at all.
fn tolerate(root: &mut Map<String, Value>) {
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
        let told = parse(text).unwrap().about_unknown();
        let [socket, template, ticket, others] =
            &told.iter().map(String::as_str).collect::<Vec<_>>()[..]
        else {
            panic!("{told:?}")
        };
        assert!(ticket.starts_with(
            "vm.display.spice.ticket has no effect: a display asks for the password in the file"
        ));
        assert!(
            socket.starts_with("monitorSocket has no effect")
                && template.starts_with("template has no effect")
        );
        assert_eq!(*others, "keys that nobody reads: vm.y, x");
        assert!(!told.concat().contains("secret"));
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
            let told = parse(&file(&value)).unwrap_err();
            assert_eq!(told.key, key);
            assert!(
                !told.problem.contains("hunter2") && told.problem.contains("not shown"),
                "{told}"
            );
        }
        let told = parse(&file("{\"userData\": \"x\"}"))
            .unwrap_err()
            .to_string();
        assert_eq!(
            told,
            "cloudInit.userData: the value, which is not shown, has another type; use a map"
        );
        // What is no YAML is told with its place only.
        for broken in [
            "    userData: {password: hunter2",
            "    userData:\n      password: hunter2\n     x: 1\n\ty",
            "    userData: *hunter2\n",
        ] {
            let told = parse(&format!(
                "\"/Runner\":\n  vm: {{name: t}}\n  cloudInit:\n{broken}"
            ))
            .unwrap_err();
            assert!(!told.to_string().contains("hunter2"), "{told}");
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
