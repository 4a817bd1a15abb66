//! (pure) The operator's configuration: its types, their defaults, and the limits of the values.
//!
//! The file is `config.yaml` of the ConfigMap `vm-operator`; [`file`] reads it. Its keys are those of the Java VM-Operator,
//! so that files written for that one work unchanged, and extensions below `/Manager` → `/Controller` → `/Reconciler`.
//! The comments of the fields are their descriptions in `docs/reference.md`.

mod file;
#[cfg(test)]
mod tests;

pub use file::{ConfigFile, DEFAULT_PATH, SettingsError};

use crate::api::quantity::Bytes;
use crate::api::runner::fetch::SCHEMES;
use crate::api::vm::names;
use k8s_openapi::api::core::v1::{LocalObjectReference, Toleration};
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;

/// The images of the Java VM-Operator's runner begin so. Its schema wrote one of them into every VM that named no image.
pub const REFERENCE_IMAGES: &str = "ghcr.io/mnlipp/org.jdrupes.vmoperator.runner.qemu-";

/// The operator's configuration, key `/Controller`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Settings {
    /// The namespace that is watched. Default: the operator's own.
    pub namespace: Option<String>,
    /// How VMs become objects. A change restarts no VM: its requests follow `cpuOvercommit` and `ramOvercommit` at once, and
    /// the rest is used at its next start.
    #[serde(rename = "/Reconciler")]
    pub reconciler: Reconciler,
}

/// Key `/Reconciler`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Reconciler {
    /// The claims for the data of runners: UUID, firmware variables, TPM state.
    pub runner_data_pvc: RunnerDataPvc,
    /// CPUs of guests per CPU that their pods request; above 0.
    #[serde(deserialize_with = "number")]
    pub cpu_overcommit: f64,
    /// Memory of guests per memory that their pods request; above 0.
    #[serde(deserialize_with = "number")]
    pub ram_overcommit: f64,
    /// Whether each VM gets a service of type `LoadBalancer`: `false` (default), `true`, or `labels` and `annotations` of
    /// the services, also as a text in YAML. A VM's spec.loadBalancerService adds to it or, being `{}`, disables it.
    #[schemars(with = "Value")]
    pub load_balancer_service: LoadBalancerService,
    /// Logging of VMs that have no spec.loggingProperties, in Java's syntax: `.level=FINE` and the like. Other lines have no
    /// effect. The text is copied to the VMs' ConfigMaps, key `logging.properties`.
    pub logging_properties: Option<String>,
    /// The runner's image.
    pub runner_image: RunnerImage,
    /// VMs whose image begins with one of these get runnerImage. A VM whose image is the Java VM-Operator's runner and is
    /// not among them, as with `[]`, keeps it, and gets the pod that it gets there: privileged, root, in the node's network.
    pub replaced_images: Vec<String>,
    /// The claim for CD images, one for all VMs of the namespace.
    pub image_repository: ImageRepository,
    /// Fields of the pods of VMs that do not have the field of the same name in their spec.
    pub pod_defaults: PodDefaults,
    /// Hardware acceleration.
    pub accelerator: Accelerator,
    /// Networks on bridges of the nodes.
    pub tap: Tap,
    /// How VMs access block devices: `cri` (the nodes' container runtime gives them to the pod's user) or `root` (VMs run as
    /// root, the owner of the devices, without any of root's capabilities).
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

/// Key `runnerDataPvc`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunnerDataPvc {
    /// Their storage class. Default: the cluster's default class.
    pub storage_class_name: Option<String>,
}

/// Key `loadBalancerService`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LoadBalancerService {
    /// They get none.
    #[default]
    Off,
    /// They get one each, with these besides the operator's own labels and before the VM's own.
    On {
        /// Labels.
        labels: BTreeMap<String, String>,
        /// Annotations.
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
                "use true, false, or labels and annotations, each with texts as values",
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
    /// The image for VMs that name none. The default has to be on the nodes already.
    pub source: String,
    /// When that image is pulled: `Always`, `Never` or `IfNotPresent`.
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
    /// Whether the operator creates the claim if it does not exist.
    pub create: bool,
    /// Its storage class. Default: the cluster's default class.
    pub storage_class_name: Option<String>,
    /// Its size.
    #[serde(deserialize_with = "size", serialize_with = "quantity")]
    #[schemars(with = "String")]
    pub size: Bytes,
    /// Its access modes. CD images by URL need one with which a pod can write: `ReadWriteMany`, or `ReadWriteOnce` with all
    /// VMs that have CD drives on one node.
    pub access_modes: Vec<String>,
    /// How CD images given by URL are fetched. A change takes effect for fetches that begin, and for those that have failed.
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
    /// Schemes of the URLs that are allowed; `[]`: no image is fetched.
    pub schemes: Vec<String>,
    /// The largest image that is fetched.
    #[serde(deserialize_with = "size", serialize_with = "quantity")]
    #[schemars(with = "String")]
    pub max_size: Bytes,
    /// Seconds that one fetch may take, 1 to 604800.
    #[serde(deserialize_with = "number")]
    pub deadline: u64,
    /// Seconds that the start of a VM waits for the image that it boots from, 0 to 604800. Then it starts with the drive empty.
    #[serde(deserialize_with = "number")]
    pub start_deadline: u64,
    /// The proxy for URLs of http, such as `http://proxy.example.org:3128`. Default: none.
    pub http_proxy: Option<String>,
    /// The proxy for URLs of https. Default: none.
    pub https_proxy: Option<String>,
    /// Hosts, domains and networks that are requested without a proxy, such as `.example.org,10.0.0.0/8`.
    pub no_proxy: Option<String>,
    /// A Secret for proxies that need a password: its keys, such as `HTTPS_PROXY` with
    /// `http://user:password@proxy.example.org:3128`, are the environment of the pods that fetch.
    pub proxy_secret: Option<String>,
    /// Certificate authorities in PEM that are trusted besides the public ones.
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
    /// The ConfigMap with the certificates. Default: none.
    pub config_map: Option<String>,
    /// The key of the ConfigMap.
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
    /// Labels of the nodes.
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Tolerations, as in a pod's spec.
    pub tolerations: Option<Vec<Toleration>>,
    /// The priority class.
    pub priority_class_name: Option<String>,
    /// Pull secrets, as in a pod's spec.
    pub image_pull_secrets: Option<Vec<LocalObjectReference>>,
}

/// Key `accelerator`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Accelerator {
    /// Whether VMs use hardware acceleration: `kvm` (no VM starts without it), `auto` (where it is available) or `tcg`
    /// (never). With `auto` and a kvmResource, every node that may run VMs has to offer the resource.
    pub policy: Policy,
    /// The resource of a device plugin by which a pod gets /dev/kvm. Default: none is requested.
    pub kvm_resource: Option<String>,
    /// For clusters without a device plugin: `true` makes all VMs' pods privileged, unless the policy is `tcg`, so that they
    /// have the node's /dev/kvm. Its risks are in docs/security.md. Where only root may open /dev/kvm, `deviceAccess: root`
    /// is needed too.
    pub privileged: bool,
}

impl Accelerator {
    /// The resource that pods request.
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
    /// Where it is available.
    #[default]
    Auto,
    /// Always: no VM starts without it.
    Kvm,
    /// Never.
    Tcg,
}

impl Policy {
    /// The name in the file and in the runner's configuration.
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
    /// The resource of a device plugin by which the pod of a VM with `tap` networks gets /dev/net/tun.
    pub tun_resource: String,
    /// For clusters without a device plugin: such pods mount the node's own /dev/net/tun and request no resource. The node
    /// has to let the pod's user open it (mode 0666, which is usual), and its container runtime has to allow it in pods
    /// (runc does, except 1.2.0 to 1.2.3).
    pub host_path: bool,
}

impl Default for Tap {
    fn default() -> Self {
        Self {
            tun_resource: names::RESOURCE_TUN.to_owned(),
            host_path: false,
        }
    }
}

/// Key `deviceAccess`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceAccess {
    /// As the pod's user, to whom the container runtime gives them.
    #[default]
    Cri,
    /// As root.
    Root,
}

/// A number, or a text that is one, as in the Java VM-Operator.
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

impl Settings {
    /// The first value beyond its limits: its key below `/Controller`, and the values to use instead.
    fn violation(&self) -> Option<(String, &'static str)> {
        if !self.namespace.as_deref().is_none_or(is_namespace) {
            return Some(("namespace".to_owned(), "the name of a namespace"));
        }
        self.reconciler
            .violation()
            .map(|(key, values)| (format!("/Reconciler.{key}"), values))
    }
}

impl Reconciler {
    /// The same below `/Reconciler`.
    fn violation(&self) -> Option<(&'static str, &'static str)> {
        const WEEK: u64 = 7 * 24 * 3600;
        const PULL_POLICIES: [&str; 3] = ["Always", "Never", "IfNotPresent"];
        const MODES: [&str; 4] = [
            "ReadOnlyMany",
            "ReadWriteMany",
            "ReadWriteOnce",
            "ReadWriteOncePod",
        ];
        const MODE_LIST: &str = "a list of ReadOnlyMany, ReadWriteMany, ReadWriteOnce or ReadWriteOncePod with at least one";
        const PROXY: &str = "an address such as http://proxy.example.org:3128; a proxy with user and password belongs in \
                             the Secret of proxySecret, as HTTP_PROXY or HTTPS_PROXY";
        const RESOURCE: &str = "a resource of a device plugin, such as vmoperator.jdrupes.org/kvm";
        let Self {
            runner_image,
            image_repository: repository,
            accelerator,
            tap,
            ..
        } = self;
        let fetch = &repository.fetch;
        let authorities = &fetch.authorities;
        let any = |text: &Option<String>, is_legal: fn(&str) -> bool| {
            text.as_deref().is_none_or(is_legal)
        };
        let all = |texts: &[String], allowed: &[&str]| {
            texts.iter().all(|text| allowed.contains(&text.as_str()))
        };
        let is_pull_policy = PULL_POLICIES.contains(&runner_image.pull_policy.as_str());
        let has_modes =
            all(&repository.access_modes, &MODES) && !repository.access_modes.is_empty();
        let is_complete =
            authorities.config_map.is_some() || *authorities == Authorities::default();
        let has_one_device = !accelerator.privileged || accelerator.kvm_resource.is_none();
        let has_device = accelerator.privileged || accelerator.kvm_resource.is_some();
        let limits = [
            (
                "cpuOvercommit",
                self.cpu_overcommit > 0.0,
                "a number above 0, such as 2",
            ),
            (
                "ramOvercommit",
                self.ram_overcommit > 0.0,
                "a number above 0, such as 1.25",
            ),
            (
                "runnerImage.pullPolicy",
                is_pull_policy,
                "Always, Never or IfNotPresent",
            ),
            (
                "imageRepository.size",
                repository.size.0 > 0,
                "a size such as 20Gi",
            ),
            ("imageRepository.accessModes", has_modes, MODE_LIST),
            (
                "imageRepository.fetch.schemes",
                all(&fetch.schemes, &SCHEMES),
                "a list of https or http",
            ),
            (
                "imageRepository.fetch.maxSize",
                fetch.max_size.0 > 0,
                "a size such as 20Gi",
            ),
            (
                "imageRepository.fetch.deadline",
                (1..=WEEK).contains(&fetch.deadline),
                "1 to 604800 seconds",
            ),
            (
                "imageRepository.fetch.startDeadline",
                fetch.start_deadline <= WEEK,
                "0 to 604800 seconds",
            ),
            (
                "imageRepository.fetch.httpProxy",
                any(&fetch.http_proxy, is_proxy),
                PROXY,
            ),
            (
                "imageRepository.fetch.httpsProxy",
                any(&fetch.https_proxy, is_proxy),
                PROXY,
            ),
            (
                "imageRepository.fetch.proxySecret",
                any(&fetch.proxy_secret, is_name),
                "the name of a Secret",
            ),
            (
                "imageRepository.fetch.authorities.configMap",
                any(&authorities.config_map, is_name),
                "the name of a ConfigMap",
            ),
            (
                "imageRepository.fetch.authorities.key",
                is_name(&authorities.key),
                "the name of a key of the ConfigMap",
            ),
            (
                "imageRepository.fetch.authorities",
                is_complete,
                "configMap too, which has the key",
            ),
            (
                "accelerator.kvmResource",
                any(&accelerator.kvm_resource, is_resource),
                RESOURCE,
            ),
            (
                "accelerator.privileged",
                has_one_device,
                "false, as kvmResource brings /dev/kvm, or leave kvmResource out",
            ),
            (
                "accelerator.policy",
                has_device || accelerator.policy != Policy::Kvm,
                "kvm with kvmResource, by which a pod gets /dev/kvm, or with privileged: true",
            ),
            (
                "tap.tunResource",
                is_resource(&tap.tun_resource),
                "a resource such as vmoperator.jdrupes.org/tun",
            ),
        ];
        limits
            .into_iter()
            .find(|(_, holds, _)| !holds)
            .map(|(key, _, values)| (key, values))
    }
}

fn is_namespace(text: &str) -> bool {
    let is_legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len()) && text.chars().all(is_legal)
}

/// The name of an object, or a key of one.
fn is_name(text: &str) -> bool {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !text.is_empty() && text.chars().all(is_legal)
}

/// An extended resource has a domain before its name.
fn is_resource(text: &str) -> bool {
    text.split_once('/')
        .is_some_and(|(domain, name)| is_name(domain) && is_name(name))
}

/// Proxies are reached without TLS. A password would be readable in the ConfigMap and in the pods.
fn is_proxy(text: &str) -> bool {
    text.parse::<http::Uri>().is_ok_and(|uri| {
        uri.scheme_str() == Some("http")
            && uri.host().is_some_and(|host| !host.is_empty())
            && !uri
                .authority()
                .is_some_and(|authority| authority.as_str().contains('@'))
            && uri.path() == "/"
            && uri.query().is_none()
    })
}
