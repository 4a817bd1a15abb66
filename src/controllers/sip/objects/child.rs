//! (pure) The parts that all services have in common: names and labels of their objects, and pods that pass Pod Security `restricted`.

use crate::api::SIPCluster;
use crate::api::hex;
use crate::api::sip;
use crate::api::sip::names::{
    ANNOTATION_APPLIED, ANNOTATION_CONFIGURATION, LABEL_CLUSTER_NAME, PART_OF,
};
use crate::k8s::error::Error;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment,
};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMap, Container, EmptyDirVolumeSource, PodSecurityContext, PodSpec,
    PodTemplateSpec, ResourceRequirements, SeccompProfile, Secret, SecretVolumeSource,
    SecurityContext, Service, ServicePort, ServiceSpec, Volume, VolumeMount,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Resource;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// The objects of a service. All but the host key have the same name.
#[derive(Clone, Debug)]
pub struct ServiceObjects {
    /// Name of the objects.
    pub name: String,
    /// Address at which users reach the node port, if the spec has it.
    pub cluster_ip: Option<String>,
    /// Hash of the configuration of its pods that needs other pods when it changes.
    pub configuration: String,
    /// The configuration, unless the user provides it.
    pub config_map: Option<ConfigMap>,
    /// The confidential part of the configuration.
    pub secret: Option<Secret>,
    /// A Secret without its data: the private key of the service, which is created once.
    pub host_key: Option<Secret>,
    /// The pods.
    pub deployment: Deployment,
    /// The node port.
    pub service: Service,
    /// At least one pod remains during a drain of nodes.
    pub budget: Option<PodDisruptionBudget>,
    /// A problem that its pods do not show, with the field and the next step.
    pub problem: Option<String>,
}

/// A service of a cluster, as far as its objects have it in common.
pub struct Child<'a> {
    /// The cluster.
    pub cluster: &'a SIPCluster,
    /// The common fields of its entry in the spec.
    pub entry: &'a sip::Service,
    /// Name of the objects.
    pub name: String,
    /// Value of the label `app.kubernetes.io/component` of upstream.
    pub component: &'static str,
    /// Value of the label `app.kubernetes.io/name` of upstream.
    pub program: &'static str,
}

/// The name of the objects of an entry. The first one has the name that upstream gives to all.
pub fn name(prefix: &str, cluster: &SIPCluster, index: usize) -> String {
    let cluster = cluster.metadata.name.as_deref().unwrap_or_default();
    match index {
        0 => format!("{prefix}-{cluster}"),
        _ => format!("{prefix}-{cluster}-{}", index + 1),
    }
}

impl Child<'_> {
    /// Address at which users reach the node port, if the spec has it.
    pub fn cluster_ip(&self) -> Option<String> {
        self.entry.cluster_ip.clone().filter(|it| !it.is_empty())
    }

    /// The labels by which the Deployment and the Service find their pods. Upstream has the same.
    pub fn selector(&self) -> BTreeMap<String, String> {
        let labels = [
            ("part-of", PART_OF),
            ("component", self.component),
            ("name", self.program),
            ("instance", &self.name),
        ];
        labels
            .map(|(label, value)| (format!("app.kubernetes.io/{label}"), value.to_owned()))
            .into()
    }

    /// The same labels, as another type.
    pub fn label_selector(&self) -> LabelSelector {
        LabelSelector {
            match_labels: Some(self.selector()),
            ..LabelSelector::default()
        }
    }

    /// The metadata of each object.
    pub fn metadata(&self) -> ObjectMeta {
        let cluster = &self.cluster.metadata;
        let mut labels = self.selector();
        labels.insert(
            LABEL_CLUSTER_NAME.to_owned(),
            cluster.name.clone().unwrap_or_default(),
        );
        ObjectMeta {
            name: Some(self.name.clone()),
            namespace: cluster.namespace.clone(),
            labels: Some(labels),
            owner_references: self.cluster.controller_owner_ref(&()).map(|it| vec![it]),
            ..ObjectMeta::default()
        }
    }

    /// The Service with these ports.
    pub fn service(&self, ports: Vec<ServicePort>) -> Service {
        Service {
            metadata: self.metadata(),
            spec: Some(ServiceSpec {
                type_: Some("NodePort".to_owned()),
                selector: Some(self.selector()),
                ports: Some(ports),
                ..ServiceSpec::default()
            }),
            status: None,
        }
    }

    /// The Deployment. Another configuration replaces the pods, with overlap.
    pub fn deployment(&self, configuration: &str, replicas: i32, pod: PodSpec) -> Deployment {
        let metadata = self.metadata();
        let configuration = (
            ANNOTATION_CONFIGURATION.to_owned(),
            configuration.to_owned(),
        );
        let template = PodTemplateSpec {
            metadata: Some(ObjectMeta {
                labels: metadata.labels.clone(),
                annotations: Some([configuration].into()),
                ..ObjectMeta::default()
            }),
            spec: Some(pod),
        };
        let strategy = DeploymentStrategy {
            type_: Some("RollingUpdate".to_owned()),
            rolling_update: Some(RollingUpdateDeployment {
                max_surge: Some(IntOrString::Int(1)),
                max_unavailable: Some(IntOrString::Int(0)),
            }),
        };
        Deployment {
            metadata,
            spec: Some(DeploymentSpec {
                replicas: Some(replicas),
                strategy: Some(strategy),
                selector: self.label_selector(),
                template,
                ..DeploymentSpec::default()
            }),
            status: None,
        }
    }

    /// A pod with the container, which runs as this user and group.
    pub fn pod(&self, user: i64, default_image: &str, container: Container) -> PodSpec {
        let image = match self.entry.image.as_str() {
            "" => default_image,
            image => image,
        };
        let container = Container {
            image: Some(image.to_owned()),
            ..container
        };
        PodSpec {
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            node_selector: Some(self.entry.node_labels.clone()).filter(|labels| !labels.is_empty()),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(user),
                run_as_group: Some(user),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                ..PodSecurityContext::default()
            }),
            containers: vec![container],
            ..PodSpec::default()
        }
    }
}

/// A container without rights and with a read-only root.
pub fn container(
    name: &str,
    command: &[&str],
    memory_limit: &str,
    mounts: Vec<VolumeMount>,
) -> Container {
    let amounts = |amounts: &[(&str, &str)]| {
        let amounts = amounts
            .iter()
            .map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned())));
        Some(amounts.collect())
    };
    Container {
        name: name.to_owned(),
        command: Some(command.iter().map(|it| (*it).to_owned()).collect()),
        resources: Some(ResourceRequirements {
            requests: amounts(&[("cpu", "10m"), ("memory", "32Mi")]),
            limits: amounts(&[("memory", memory_limit)]),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                ..Capabilities::default()
            }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

/// A volume at that path.
pub fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: volume.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    }
}

/// A volume at that path, to which the container writes.
pub fn writable(volume: &str, path: &str) -> VolumeMount {
    VolumeMount {
        read_only: None,
        ..mount(volume, path)
    }
}

/// An empty volume.
pub fn empty_dir(volume: &str) -> Volume {
    Volume {
        name: volume.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    }
}

/// A Secret as a volume. Without an optional one, the pod starts, and gets its files when it exists.
pub fn secret_volume(volume: &str, name: &str, is_optional: bool) -> Volume {
    Volume {
        name: volume.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(name.to_owned()),
            default_mode: Some(0o440),
            optional: Some(is_optional),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// Makes the files of Secrets readable for the group. They belong to root.
pub fn share_files(pod: &mut PodSpec, group: i64) {
    let context = pod.security_context.get_or_insert_default();
    context.fs_group = Some(group);
}

/// A port of a Service. With node port 0, Kubernetes selects one.
pub fn port(name: &str, port: i32, target: i32, node_port: i32) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port,
        target_port: Some(IntOrString::Int(target)),
        protocol: Some("TCP".to_owned()),
        node_port: Some(node_port).filter(|port| *port != 0),
        ..ServicePort::default()
    }
}

/// The hash of a text.
pub fn hash(text: &str) -> String {
    let digest = Sha256::digest(text);
    hex(digest.iter().take(8))
}

/// The object with its own hash as an annotation.
///
/// # Errors
/// It cannot be serialized.
pub fn marked<K: Serialize + Resource<DynamicType = ()>>(mut object: K) -> Result<K, Error> {
    let text = serde_json::to_string(&object).map_err(|error| Error::Panic(error.to_string()))?;
    let annotations = object.meta_mut().annotations.get_or_insert_default();
    annotations.insert(ANNOTATION_APPLIED.to_owned(), hash(&text));
    Ok(object)
}
