//! (pure) The operator's configuration: its types, their defaults, and the limits of the values.
//!
//! The file is `config.yaml` of the ConfigMap `vm-operator`; [`file`] reads it. It has the keys of the Java VM-Operator, so
//! that its files work unchanged, and additional keys below `/Manager` → `/Controller` → `/Reconciler`.
//! The comments of the fields are their descriptions in `docs/reference.md`.

mod file;
mod limits;
pub mod peerpod;
pub mod sip;
#[cfg(test)]
mod tests;
#[cfg(feature = "web")]
pub mod web;

pub use file::{ConfigFile, DEFAULT_PATH, Section, SettingsError};

use crate::api::logging;
use crate::api::quantity::Bytes;
use crate::api::runner::fetch::SCHEMES;
use crate::api::vm::names;
use k8s_openapi::api::core::v1::{LocalObjectReference, Toleration};
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;

/// Prefix of the runner images of the Java VM-Operator. Its schema wrote one of them into each VM that named no image.
pub const REFERENCE_IMAGES: &str = "ghcr.io/mnlipp/org.jdrupes.vmoperator.runner.qemu-";

/// The operator's configuration, key `/Controller`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Settings {
    /// Namespace of the VMs that the operator manages. Default: the namespace of the operator's pod.
    pub namespace: Option<String>,
    /// Configuration of the objects that the operator creates for VMs. A change restarts no VM. Changes of `cpuOvercommit` and
    /// `ramOvercommit` take effect immediately, all others at the next start of a VM.
    #[serde(rename = "/Reconciler")]
    pub reconciler: Reconciler,
}

impl Section for Settings {
    const PATH: &'static [&'static str] = &["/Manager", "/Controller"];

    fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    fn violation(&self) -> Option<(String, &'static str)> {
        self.first_violation()
    }

    fn warnings(&self) -> Vec<(&'static str, String)> {
        let properties = self.reconciler.logging_properties.as_deref();
        let lines = logging::level(properties.unwrap_or_default()).1;
        let warning = lines.first().map(|line| {
            let message = format!(
                "the line {line:?} has no effect, because the operator reads only .level; remove the line"
            );
            ("/Reconciler.loggingProperties", message)
        });
        warning.into_iter().collect()
    }
}

/// Key `/Reconciler`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Reconciler {
    /// PVCs for runner data: UUID, firmware variables, TPM state.
    pub runner_data_pvc: RunnerDataPvc,
    /// PVCs for disks.
    pub disk_pvc: DiskPvc,
    /// Number of guest CPUs per CPU that the pod requests, greater than 0.
    #[serde(deserialize_with = "number")]
    pub cpu_overcommit: f64,
    /// Ratio of the guest's memory to the memory that the pod requests, greater than 0.
    #[serde(deserialize_with = "number")]
    pub ram_overcommit: f64,
    /// Whether each VM gets a Service of type `LoadBalancer`: `false` (default), `true`, or a map with `labels` and `annotations`
    /// of the Services. The map may be a YAML text. A VM's spec.loadBalancerService adds to it, and `{}` disables it.
    #[schemars(with = "Value")]
    pub load_balancer_service: LoadBalancerService,
    /// Logging of VMs without spec.loggingProperties, in the syntax of Java properties, such as `.level=FINE`. Only the line
    /// `.level` has an effect. The operator copies the text to the key `logging.properties` of the VMs' ConfigMaps.
    pub logging_properties: Option<String>,
    /// Container image of the runner.
    pub runner_image: RunnerImage,
    /// Prefixes of images that runnerImage replaces. A VM with another image of the Java VM-Operator's runner retains its image.
    /// It also retains the pod of the Java VM-Operator: privileged, root, in the node's network.
    pub replaced_images: Vec<String>,
    /// Images of runners that get rights beyond Pod Security `restricted` if a VM needs them: tap networks,
    /// `accelerator.privileged`, `deviceAccess: root`. An entry without a tag covers each tag and digest; an entry that
    /// ends with `/` covers all images below it. runnerImage is always trusted. With an empty replacedImages, the
    /// images of the Java VM-Operator's runner are trusted too.
    pub trusted_images: Vec<String>,
    /// PVC for CD images, shared by all VMs of the namespace.
    pub image_repository: ImageRepository,
    /// Default fields of pods, for VMs without the field of the same name in their spec.
    pub pod_defaults: PodDefaults,
    /// Hardware acceleration.
    pub accelerator: Accelerator,
    /// Tap networks, which are on bridges of the nodes.
    pub tap: Tap,
    /// The record of a shutdown by the guest of a VM with `guestShutdownStops`. `spec`: the operator sets the VM's
    /// `spec.vm.state` to `Stopped`, as the Java VM-Operator does. `status`: the operator writes `status.guestShutdown`
    /// and no field of the spec, so that GitOps tools do not start the VM again. The VM stays stopped until its spec
    /// changes.
    pub guest_shutdown_record: GuestShutdownRecord,
    /// Access of VMs to block devices. `cri`: the container runtime of the node gives the devices to the pod's user. `root`: VMs
    /// run as root, the owner of the devices, without any capabilities.
    pub device_access: DeviceAccess,
}

impl Default for Reconciler {
    fn default() -> Self {
        Self {
            runner_data_pvc: RunnerDataPvc::default(),
            disk_pvc: DiskPvc::default(),
            cpu_overcommit: 2.0,
            ram_overcommit: 1.25,
            load_balancer_service: LoadBalancerService::Off,
            logging_properties: None,
            runner_image: RunnerImage::default(),
            replaced_images: vec![REFERENCE_IMAGES.to_owned()],
            trusted_images: Vec::new(),
            image_repository: ImageRepository::default(),
            pod_defaults: PodDefaults::default(),
            accelerator: Accelerator::default(),
            tap: Tap::default(),
            guest_shutdown_record: GuestShutdownRecord::default(),
            device_access: DeviceAccess::default(),
        }
    }
}

impl Reconciler {
    /// Whether the administrator trusts the image with rights beyond Pod Security `restricted`.
    #[must_use]
    pub fn trusts(&self, image: &str) -> bool {
        let covers = |entry: &String| {
            let rest = image.strip_prefix(entry.as_str());
            rest.is_some_and(|rest| {
                rest.is_empty() || entry.ends_with('/') || rest.starts_with([':', '@'])
            })
        };
        image == self.runner_image.source
            || self.replaced_images.is_empty() && image.starts_with(REFERENCE_IMAGES)
            || self.trusted_images.iter().any(covers)
    }
}

/// Key `runnerDataPvc`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunnerDataPvc {
    /// Storage class of the PVCs. Default: the default class of the cluster.
    pub storage_class_name: Option<String>,
    /// Size of new PVCs. Runner data needs less than 1 MiB. Raise the size if the storage class provides no such small volumes.
    #[serde(deserialize_with = "size", serialize_with = "quantity")]
    #[schemars(with = "String")]
    pub size: Bytes,
}

impl Default for RunnerDataPvc {
    fn default() -> Self {
        Self {
            storage_class_name: None,
            size: Bytes(1 << 20),
        }
    }
}

/// Key `diskPvc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DiskPvc {
    /// Volume mode of the PVCs of disks without `volumeMode`: `Block` for block devices, or `Filesystem` for image
    /// files, for storage classes without block volumes, such as local-path and NFS. The mode applies to new PVCs only.
    /// With `Filesystem`, each disk needs a size.
    pub volume_mode: VolumeMode,
}

/// Key `volumeMode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumeMode {
    /// A block device.
    #[default]
    Block,
    /// An image file in a file system.
    Filesystem,
}

impl VolumeMode {
    /// The name in a PVC.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Block => "Block",
            Self::Filesystem => "Filesystem",
        }
    }
}

/// Key `loadBalancerService`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LoadBalancerService {
    /// VMs have no Service.
    #[default]
    Off,
    /// Each VM has a Service with these labels and annotations. Those of the VM take precedence.
    On {
        /// Additional labels of the Services.
        labels: BTreeMap<String, String>,
        /// Annotations of the Services.
        annotations: BTreeMap<String, String>,
    },
}

impl<'de> Deserialize<'de> for LoadBalancerService {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        struct Metadata {
            labels: BTreeMap<String, String>,
            annotations: BTreeMap<String, String>,
        }
        let problem = || {
            D::Error::custom(
                "use true, false, or an object with labels and annotations; their values must be strings",
            )
        };
        let mut value = Value::deserialize(deserializer)?;
        if let Value::String(text) = &value {
            value = serde_saphyr::from_str(text).map_err(|_| problem())?;
            file::drop_nulls(&mut value);
        }
        let metadata = match value {
            Value::Bool(false) => return Ok(Self::Off),
            Value::Bool(true) => Metadata::default(),
            Value::Object(_) => serde_json::from_value(value).map_err(|_| problem())?,
            _ => return Err(problem()),
        };
        Ok(Self::On {
            labels: metadata.labels,
            annotations: metadata.annotations,
        })
    }
}

/// Key `runnerImage`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunnerImage {
    /// Image for VMs that do not name an image. The default image must already be on the nodes.
    pub source: String,
    /// Pull policy of the image: `Always`, `Never` or `IfNotPresent`.
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

/// Key `imageRepository`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageRepository {
    /// Whether the operator creates the PVC if it does not exist.
    pub create: bool,
    /// Storage class of the PVC. Default: the default class of the cluster.
    pub storage_class_name: Option<String>,
    /// Size of the PVC.
    #[serde(deserialize_with = "size", serialize_with = "quantity")]
    #[schemars(with = "String")]
    pub size: Bytes,
    /// Access modes of the PVC. CD images by URL need a mode with which pods can write, such as `ReadWriteMany`. With
    /// `ReadWriteOnce`, all VMs with CD drives run on one node.
    pub access_modes: Vec<String>,
    /// Download of CD images by URL. A change takes effect for new downloads and for failed downloads.
    pub fetch: FetchSettings,
}

impl Default for ImageRepository {
    fn default() -> Self {
        Self {
            create: true,
            storage_class_name: None,
            size: Bytes(100 << 30),
            access_modes: vec!["ReadOnlyMany".to_owned()],
            fetch: FetchSettings::default(),
        }
    }
}

/// Key `fetch`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FetchSettings {
    /// Allowed schemes of URLs, `https` and `http`. With `[]`, the operator downloads no image.
    pub schemes: Vec<String>,
    /// Maximum size of a downloaded image.
    #[serde(deserialize_with = "size", serialize_with = "quantity")]
    #[schemars(with = "String")]
    pub max_size: Bytes,
    /// Maximum duration of one download, in seconds, 1 to 604800.
    #[serde(deserialize_with = "number")]
    pub deadline: u64,
    /// Maximum time that the start of a VM waits for the image from which it boots, in seconds, 0 to 604800. Then it starts with
    /// an empty drive.
    #[serde(deserialize_with = "number")]
    pub start_deadline: u64,
    /// Proxy for `http` URLs, such as `http://proxy.example.org:3128`. Default: none.
    pub http_proxy: Option<String>,
    /// Proxy for `https` URLs, such as `http://proxy.example.org:3128`. Default: none.
    pub https_proxy: Option<String>,
    /// Hosts, domains and networks that download pods access without a proxy, such as `.example.org,10.0.0.0/8`.
    pub no_proxy: Option<String>,
    /// Name of a Secret for proxies that need a password. Its keys are environment variables of the download pods, such as
    /// `HTTPS_PROXY` with the value `http://user:password@proxy.example.org:3128`.
    pub proxy_secret: Option<String>,
    /// Additional trusted certificate authorities, in PEM.
    pub authorities: Authorities,
}

impl Default for FetchSettings {
    fn default() -> Self {
        Self {
            schemes: SCHEMES.map(str::to_owned).into(),
            max_size: Bytes(20 << 30),
            deadline: 3600,
            start_deadline: 600,
            http_proxy: None,
            https_proxy: None,
            no_proxy: None,
            proxy_secret: None,
            authorities: Authorities::default(),
        }
    }
}

/// Key `authorities`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Authorities {
    /// Name of the ConfigMap with the certificates. Default: none.
    pub config_map: Option<String>,
    /// Key in the ConfigMap.
    pub key: String,
}

impl Default for Authorities {
    fn default() -> Self {
        Self {
            config_map: None,
            key: "ca.crt".to_owned(),
        }
    }
}

/// Key `podDefaults`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodDefaults {
    /// Labels that a node must have to run VMs.
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Tolerations, as in a pod's spec.
    pub tolerations: Option<Vec<Toleration>>,
    /// Priority class of the pods.
    pub priority_class_name: Option<String>,
    /// Pull secrets, as in a pod's spec.
    pub image_pull_secrets: Option<Vec<LocalObjectReference>>,
}

/// Key `accelerator`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Accelerator {
    /// Use of hardware acceleration: `kvm` (required), `auto` (if available) or `tcg` (never). With `auto` and a kvmResource, each
    /// node that may run VMs must offer the resource.
    pub policy: Policy,
    /// Extended resource of a device plugin that gives a pod /dev/kvm. With `vmoperator.jdrupes.org/kvm`, VMs run on nodes with
    /// /dev/kvm only. With `vmoperator.jdrupes.org/kvm-if-present`, they run on all nodes with the device plugin, and prefer nodes
    /// with the label `vmoperator.jdrupes.org/kvm=true`. Default: none. The configuration in `deploy` has `kvm-if-present`.
    pub kvm_resource: Option<String>,
    /// Whether the pods of VMs are privileged, for clusters without a device plugin. Privileged pods have the node's /dev/kvm. With
    /// policy `tcg`, the key has no effect. If only root may open /dev/kvm, set `deviceAccess: root` too. The risks are in
    /// docs/security.md.
    pub privileged: bool,
}

impl Accelerator {
    /// The extended resource that pods request, if any.
    #[must_use]
    pub fn requested(&self) -> Option<&str> {
        self.kvm_resource
            .as_deref()
            .filter(|_| self.policy != Policy::Tcg)
    }
}

/// Key `policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Hardware acceleration if it is available.
    #[default]
    Auto,
    /// Hardware acceleration is required: no VM starts without it.
    Kvm,
    /// No hardware acceleration.
    Tcg,
}

impl Policy {
    /// The name in the configuration of operator and runner.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// Key `tap`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Tap {
    /// Extended resource of a device plugin that gives the pods of VMs with `tap` networks /dev/net/tun.
    pub tun_resource: String,
    /// Whether these pods mount the node's /dev/net/tun and request no resource, for clusters without a device plugin. The pod's
    /// user must have access to the device; mode 0666 is usual. The container runtime must allow the device in pods. All
    /// versions of runc allow it, except 1.2.0 to 1.2.3.
    pub host_path: bool,
    /// Bridges that VMs may use. Default: any bridge of the node.
    pub bridges: Option<Vec<String>>,
}

impl Default for Tap {
    fn default() -> Self {
        Self {
            tun_resource: names::RESOURCE_TUN.to_owned(),
            host_path: false,
            bridges: None,
        }
    }
}

/// Key `guestShutdownRecord`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GuestShutdownRecord {
    /// In `spec.vm.state`.
    #[default]
    Spec,
    /// In `status.guestShutdown`.
    Status,
}

/// Key `deviceAccess`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceAccess {
    /// VMs run as the pod's user, to whom the container runtime gives the devices.
    #[default]
    Cri,
    /// VMs run as root.
    Root,
}

/// Deserializes a number or a text with a number, as the Java VM-Operator does.
fn number<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<T, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let number = value
        .as_str()
        .and_then(|text| text.trim().parse().ok())
        .map(Value::Number);
    serde_json::from_value(number.unwrap_or(value)).map_err(D::Error::custom)
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    String::deserialize(deserializer)?
        .parse()
        .map_err(D::Error::custom)
}

fn quantity<S: Serializer>(size: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&size.to_quantity())
}
