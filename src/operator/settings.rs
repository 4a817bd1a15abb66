//! The operator's configuration file, a ConfigMap's `config.yaml`.
//!
//! The tree is the reference's, so that its files work unchanged; parts that belong to its web console are ignored.
//! What is ours stands under `/Manager` → `/Controller` → `/Reconciler` and is marked.

use serde::Deserialize;
use std::path::Path;

/// Where the file is mounted in the operator's pod.
pub const DEFAULT_PATH: &str = "/etc/opt/vmoperator/config.yaml";

/// What the operator is configured with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The namespace that is watched. Default: the operator's own.
    pub namespace: Option<String>,
    /// How VMs become objects.
    pub reconciler: Reconciler,
}

/// How VMs become objects.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Reconciler {
    /// The claims for what runners keep.
    pub runner_data_pvc: RunnerDataPvc,
    /// How many CPUs of guests share one CPU of a node. Default 2.
    pub cpu_overcommit: f64,
    /// How much memory of guests shares one of a node. Default 1.25.
    pub ram_overcommit: f64,
    /// Ours: the runner's image for VMs that name none.
    pub runner_image: RunnerImage,
    /// Ours: images of VMs that begin so are taken as [`Reconciler::runner_image`]. Default: the reference's runner,
    /// which its schema wrote into every VM that named no image.
    pub replaced_images: Vec<String>,
}

impl Default for Reconciler {
    fn default() -> Self {
        Self {
            runner_data_pvc: RunnerDataPvc::default(),
            cpu_overcommit: 2.0,
            ram_overcommit: 1.25,
            runner_image: RunnerImage::default(),
            replaced_images: vec!["ghcr.io/mnlipp/org.jdrupes.vmoperator.runner.qemu-".to_owned()],
        }
    }
}

/// The claims for what runners keep.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunnerDataPvc {
    /// Their storage class. Default: the cluster's default class.
    pub storage_class_name: Option<String>,
}

/// The runner's image.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunnerImage {
    /// The reference. Default: `localhost/vm-runner` with the operator's own version.
    pub source: String,
    /// `Always`, `Never` or `IfNotPresent` (default).
    pub pull_policy: String,
}

impl Default for RunnerImage {
    fn default() -> Self {
        Self {
            source: concat!("localhost/vm-runner:", env!("CARGO_PKG_VERSION")).to_owned(),
            pull_policy: "IfNotPresent".to_owned(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    #[serde(rename = "/Manager")]
    manager: Option<Manager>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Manager {
    #[serde(rename = "/Controller")]
    controller: Option<Controller>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Controller {
    namespace: Option<String>,
    #[serde(rename = "/Reconciler")]
    reconciler: Option<Reconciler>,
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}; give the file with -c, or mount the ConfigMap vm-operator there")]
    Unreadable {
        /// The file.
        path: String,
        /// The reason.
        source: std::io::Error,
    },
    /// The file is no YAML, or a value has the wrong type.
    #[error("{path}: {source}")]
    Malformed {
        /// The file.
        path: String,
        /// What is wrong, with its place.
        source: Box<serde_saphyr::Error>,
    },
    /// A value is not allowed.
    #[error("{path}: {key}: {value} is not allowed; {allowed}")]
    NotAllowed {
        /// The file.
        path: String,
        /// The key, from the root.
        key: &'static str,
        /// The value.
        value: String,
        /// What would be allowed.
        allowed: &'static str,
    },
}

impl Settings {
    /// Reads the file. Without `path`, the default one, whose absence means defaults.
    ///
    /// # Errors
    /// If the file cannot be read, or says something that cannot be meant.
    pub fn load(path: Option<&Path>) -> Result<Self, SettingsError> {
        let file = path.unwrap_or(Path::new(DEFAULT_PATH));
        match std::fs::read_to_string(file) {
            Ok(text) => Self::parse(&text, &file.display().to_string()),
            Err(e) if path.is_none() && e.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(SettingsError::Unreadable { path: file.display().to_string(), source }),
        }
    }

    /// Reads the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// If the text says something that cannot be meant.
    pub fn parse(text: &str, path: &str) -> Result<Self, SettingsError> {
        let malformed = |e| SettingsError::Malformed { path: path.to_owned(), source: Box::new(e) };
        let file: Option<File> =
            if text.trim().is_empty() { None } else { serde_saphyr::from_str(text).map_err(malformed)? };
        let controller = file.and_then(|f| f.manager).and_then(|m| m.controller).unwrap_or_default();
        let settings = Self { namespace: controller.namespace, reconciler: controller.reconciler.unwrap_or_default() };
        let not_allowed = |key, value: &dyn ToString, allowed| {
            Err(SettingsError::NotAllowed { path: path.to_owned(), key, value: value.to_string(), allowed })
        };
        let reconciler = &settings.reconciler;
        for (key, value) in [
            ("/Manager./Controller./Reconciler.cpuOvercommit", reconciler.cpu_overcommit),
            ("/Manager./Controller./Reconciler.ramOvercommit", reconciler.ram_overcommit),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return not_allowed(key, &value, "give a number above 0, such as 1.25");
            }
        }
        if !["Always", "Never", "IfNotPresent"].contains(&reconciler.runner_image.pull_policy.as_str()) {
            return not_allowed(
                "/Manager./Controller./Reconciler.runnerImage.pullPolicy",
                &reconciler.runner_image.pull_policy,
                "give Always, Never or IfNotPresent",
            );
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_manager_means_defaults() {
        for text in ["", "\"/Manager\":\n", "\"/Manager\": {}\n", "\"/Manager\":\n  \"/Controller\":\n"] {
            assert_eq!(Settings::parse(text, "f").unwrap(), Settings::default(), "{text:?}");
        }
    }

    #[test]
    fn a_file_of_the_reference_is_read() {
        let text = r#"
"/Manager":
  clusterName: test
  "/GuiSocketServer":
    port: 8888
  "/Controller":
    namespace: vmop-dev
    "/Reconciler":
      runnerDataPvc:
        storageClassName: local-path
      cpuOvercommit: 3
      loadBalancerService: false
"#;
        let settings = Settings::parse(text, "f").unwrap();
        assert_eq!(settings.namespace.as_deref(), Some("vmop-dev"));
        assert_eq!(settings.reconciler.runner_data_pvc.storage_class_name.as_deref(), Some("local-path"));
        assert!((settings.reconciler.cpu_overcommit - 3.0).abs() < f64::EPSILON);
    }

    #[test]
    fn a_wrong_value_is_named_with_its_key_and_what_is_allowed() {
        let text = "\"/Manager\":\n  \"/Controller\":\n    \"/Reconciler\":\n      cpuOvercommit: 0\n";
        let message = Settings::parse(text, "config.yaml").unwrap_err().to_string();
        assert!(
            message.contains("config.yaml") && message.contains("cpuOvercommit") && message.contains("above 0"),
            "{message}"
        );
    }

    #[test]
    fn a_value_of_the_wrong_type_is_named_with_its_line() {
        let text = "\"/Manager\":\n  \"/Controller\":\n    \"/Reconciler\":\n      cpuOvercommit: many\n";
        let message = Settings::parse(text, "config.yaml").unwrap_err().to_string();
        assert!(message.contains("config.yaml") && message.contains('4'), "{message}");
    }

    #[test]
    fn a_named_file_that_is_missing_is_an_error() {
        let message = Settings::load(Some(Path::new("/nowhere/config.yaml"))).unwrap_err().to_string();
        assert!(message.contains("/nowhere/config.yaml") && message.contains("-c"), "{message}");
    }
}
