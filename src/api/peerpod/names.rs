//! Names that other programs see.

/// Finalizer that the cloud-api-adaptor sets and removes. Its absence means that there is nothing to delete.
pub const FINALIZER: &str = "peer.pod/finalizer";
/// Field manager and name of the controller's Deployment.
pub const MANAGER: &str = "vm-operator-peerpod";
/// Reporting controller of its events.
pub const REPORTER: &str = "peerpod.vmoperator.jdrupes.org/controller";
/// `action` of its events.
pub const ACTION: &str = "Delete";
/// The Lease of peerpod-ctrl, so that it and this controller are never active at the same time in one namespace.
pub const LEASE: &str = "33f6c5d6.confidentialcontainers.org";

/// Annotation with which a person gives an instance up: its value is the instance's identifier. The controller then deletes nothing.
pub const ANNOTATION_ABANDON: &str = "peerpod.vmoperator.jdrupes.org/abandon";

/// Annotation in which the controller notes that it has seen the instance: JSON of place, name and volumes. It is a hint, since other accounts can write it.
pub const ANNOTATION_SEEN: &str = "peerpod.vmoperator.jdrupes.org/seen";

/// Key in the ConfigMap of the cloud-api-adaptor: while its value is `true`, the adaptor retains instances.
pub const KEY_DEVELOPER_MODE: &str = "PEERPODS_DEVELOPER_MODE";

/// Key in the ConfigMap of the cloud-api-adaptor: name of the provider that it uses.
pub const KEY_PROVIDER: &str = "CLOUD_PROVIDER";
/// Key in the ConfigMap of the cloud-api-adaptor: region of instances of EC2.
pub const KEY_REGION: &str = "AWS_REGION";
/// Key in the ConfigMap of the cloud-api-adaptor: tags of all instances, as `key=value` with commas between them.
pub const KEY_TAGS: &str = "TAGS";

/// Provider: instances of Amazon EC2.
pub const PROVIDER_AWS: &str = "aws";
/// Tag of an instance: UID of the namespace `kube-system` in the cluster of its pod.
pub const TAG_CLUSTER: &str = "caa-cluster-uid";

/// Provider: domains of libvirt.
pub const PROVIDER_LIBVIRT: &str = "libvirt";

/// Provider: a `VirtualMachine` of this project.
pub const PROVIDER_VIRTUAL_MACHINE: &str = "virtualmachine";
/// Label of a `VirtualMachine` that is an instance: UID of the namespace `kube-system` in the cluster of its pod.
pub const LABEL_CLUSTER: &str = "peerpod.vmoperator.jdrupes.org/cluster";
/// Annotation of a `VirtualMachine` that is an instance: namespace, name and UID of its pod, with slashes between them.
pub const ANNOTATION_POD: &str = "peerpod.vmoperator.jdrupes.org/pod";
