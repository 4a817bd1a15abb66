//! The operator's configuration: what it is, and its defaults.
//!
//! The file is the ConfigMap's `config.yaml`. Its tree is the reference's, so that its files work unchanged; what is
//! ours stands in the same tree under `/Manager` → `/Controller` → `/Reconciler` and is marked so here.
//!
//! | module | what |
//! |---|---|
//! | [`file`] | the file's text becomes [`Settings`], or an error with line, key and what is allowed |
//! | [`ours`] | the part of it that the reference does not have |
//! | [`tree`] | YAML whose values know their lines |
//! | [`follow`] | later versions of the ConfigMap |
//! | [`keys`] | the keys, for the documentation |

mod fetch;
mod file;
pub mod follow;
pub mod keys;
mod ours;
mod tree;

pub use fetch::{Authorities, FetchSettings, Proxies};

use crate::api::names;
use k8s_openapi::api::core::v1::{LocalObjectReference, Toleration};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Where the file is mounted in the operator's pod.
pub const DEFAULT_PATH: &str = "/etc/opt/vmoperator/config.yaml";

/// The images of the reference's runner begin so. Its schema wrote one of them into every VM that named no image.
pub const REFERENCE_IMAGES: &str = "ghcr.io/mnlipp/org.jdrupes.vmoperator.runner.qemu-";

/// What the operator is configured with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The namespace that is watched. Default: the operator's own. A change takes effect at the operator's next start.
    pub namespace: Option<String>,
    /// How VMs become objects.
    pub reconciler: Reconciler,
}

/// How VMs become objects. A change takes effect at the next reconcile, and for what a pod is made of at the VM's next
/// start.
#[derive(Clone, Debug, PartialEq)]
pub struct Reconciler {
    /// The claims for what runners keep.
    pub runner_data_pvc: RunnerDataPvc,
    /// How many CPUs of guests share one CPU of a node. Default 2.
    pub cpu_overcommit: f64,
    /// How much memory of guests shares one of a node. Default 1.25.
    pub ram_overcommit: f64,
    /// Whether VMs get a service of type `LoadBalancer`. Default: none.
    pub load_balancer_service: LoadBalancerService,
    /// Logging of the runners of VMs that name none, in Java's properties syntax.
    pub logging_properties: Option<String>,
    /// How long a password that a console front end makes can be used. Default 10 s.
    pub password_validity: Duration,
    /// Ours: the runner's image for VMs that name none.
    pub runner_image: RunnerImage,
    /// Ours: images of VMs that begin so are taken as [`Reconciler::runner_image`]. Default: [`REFERENCE_IMAGES`].
    pub replaced_images: Vec<String>,
    /// Ours: the claim for CD images.
    pub image_repository: ImageRepository,
    /// Ours: what a VM's pod has where the VM says nothing of it.
    pub pod_defaults: PodDefaults,
    /// Ours: hardware acceleration.
    pub accelerator: Accelerator,
    /// Ours: networks on bridges of the nodes.
    pub tap: Tap,
    /// Ours: how VMs get at block devices.
    pub device_access: DeviceAccess,
}

impl Default for Reconciler {
    fn default() -> Self {
        Self {
            runner_data_pvc: RunnerDataPvc::default(),
            cpu_overcommit: 2.0,
            ram_overcommit: 1.25,
            load_balancer_service: LoadBalancerService::Off,
            logging_properties: None,
            password_validity: Duration::from_secs(10),
            runner_image: RunnerImage::default(),
            replaced_images: vec![REFERENCE_IMAGES.to_owned()],
            image_repository: ImageRepository::default(),
            pod_defaults: PodDefaults::default(),
            accelerator: Accelerator::default(),
            tap: Tap::default(),
            device_access: DeviceAccess::default(),
        }
    }
}

/// The claim for CD images, one for all VMs of the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRepository {
    /// Whether the operator makes it where it is missing. Default: true.
    pub create: bool,
    /// Its storage class. Default: the cluster's default class.
    pub storage_class_name: Option<String>,
    /// Its size. Default: `100Gi`, as in the reference.
    pub size: String,
    /// Its access modes. Default: `ReadOnlyMany`, as in the reference.
    pub access_modes: Vec<String>,
    /// How images given by URL get into it.
    pub fetch: FetchSettings,
}

impl Default for ImageRepository {
    fn default() -> Self {
        let (size, access_modes) = ("100Gi".to_owned(), vec!["ReadOnlyMany".to_owned()]);
        Self { create: true, storage_class_name: None, size, access_modes, fetch: FetchSettings::default() }
    }
}

/// What a VM's pod has where the VM says nothing of it. A VM's own value takes the whole value's place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodDefaults {
    /// Labels of the node.
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Taints that do not keep it away.
    pub tolerations: Option<Vec<Toleration>>,
    /// Priority class.
    pub priority_class_name: Option<String>,
    /// Secrets with which images are pulled.
    pub image_pull_secrets: Option<Vec<LocalObjectReference>>,
}

/// Hardware acceleration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accelerator {
    /// Whether it has to be there.
    pub policy: Policy,
    /// The resource by which a pod gets `/dev/kvm`. Default: none is asked for.
    pub kvm_resource: Option<String>,
    /// Whether pods are privileged instead, and so have all of the node's devices. Default: false.
    pub privileged: bool,
}

impl Accelerator {
    /// The resource that pods ask for.
    #[must_use]
    pub fn requested(&self) -> Option<&str> {
        self.kvm_resource.as_deref().filter(|_| self.policy != Policy::Tcg)
    }
}

/// Whether hardware acceleration has to be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// It is used where it is. The resource, if one is named, has to be offered by every node that may run VMs.
    #[default]
    Auto,
    /// A VM does not start without it.
    Kvm,
    /// It is not used.
    Tcg,
}

impl Policy {
    /// What it is called, in the file and in the runner's configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// How VMs get at block devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceAccess {
    /// The container runtime gives them to the pod's user.
    #[default]
    Cri,
    /// They belong to root, as which VMs run then, without any of root's capabilities.
    Root,
}

/// Networks on bridges of the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tap {
    /// The resource by which a pod gets `/dev/net/tun`. Default: [`names::RESOURCE_TUN`].
    pub tun_resource: String,
    /// Whether pods get the node's own `/dev/net/tun` instead. Default: false.
    pub host_path: bool,
}

impl Default for Tap {
    fn default() -> Self {
        Self { tun_resource: names::RESOURCE_TUN.to_owned(), host_path: false }
    }
}

/// The claims for what runners keep.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunnerDataPvc {
    /// Their storage class. Default: the cluster's default class.
    pub storage_class_name: Option<String>,
}

/// Whether VMs get a service of type `LoadBalancer`, unless a VM says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LoadBalancerService {
    /// They get none.
    #[default]
    Off,
    /// They get one each.
    On {
        /// Its labels besides ours, before the VM's own.
        labels: BTreeMap<String, String>,
        /// Its annotations besides ours, before the VM's own.
        annotations: BTreeMap<String, String>,
    },
}

/// The runner's image.
#[derive(Clone, Debug, PartialEq)]
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

/// Something in the file that is allowed and that its author should know about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Where it is.
    pub line: u64,
    /// The key, from the root.
    pub key: String,
    /// What there is to know.
    pub text: String,
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read {file}: {source}; give the file with -c, or mount the ConfigMap vm-operator there")]
    Unreadable {
        /// The file.
        file: String,
        /// The reason.
        source: std::io::Error,
    },
    /// The file is no YAML.
    #[error("{file}: {source}")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong, with its place.
        source: Box<serde_saphyr::Error>,
    },
    /// A value is not allowed.
    #[error("{file}, line {line}: {key}: {value} is not allowed; {allowed}")]
    NotAllowed {
        /// The file.
        file: String,
        /// Its line.
        line: u64,
        /// The key, from the root.
        key: String,
        /// The value.
        value: String,
        /// What would be allowed.
        allowed: String,
    },
}

impl Settings {
    /// Reads the file, and logs what its author should know. Without `path`, the default one, whose absence means
    /// defaults.
    ///
    /// # Errors
    /// If the file cannot be read, or says something that cannot be meant.
    pub fn load(path: Option<&Path>) -> Result<Self, SettingsError> {
        let file = path.unwrap_or(Path::new(DEFAULT_PATH));
        match std::fs::read_to_string(file) {
            Ok(text) => Self::parse_and_tell(&text, &file.display().to_string()),
            Err(e) if path.is_none() && e.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(SettingsError::Unreadable { file: file.display().to_string(), source }),
        }
    }

    /// Reads the text of a file, and logs what its author should know. `file` is for messages.
    ///
    /// # Errors
    /// If the text says something that cannot be meant.
    pub fn parse_and_tell(text: &str, file: &str) -> Result<Self, SettingsError> {
        let (settings, notes) = Self::parse(text, file)?;
        for Note { line, key, text } in notes {
            tracing::warn!("{file}, line {line}: {key}: {text}");
        }
        Ok(settings)
    }

    /// Reads the text of a file; `file` is for messages.
    ///
    /// # Errors
    /// If the text says something that cannot be meant.
    pub fn parse(text: &str, file: &str) -> Result<(Self, Vec<Note>), SettingsError> {
        file::parse(text, file)
    }
}
