//! Names that other programs see.

/// Finalizer of a `SIPCluster` with hosts. The Airship SIP operator honours the same one.
pub const FINALIZER: &str = "sip.airship.airshipit.org/finalizer";
/// Field manager and name of the controller's Deployment.
pub const MANAGER: &str = "vm-operator-sip";
/// Reporting controller of its events.
pub const REPORTER: &str = "sip.vmoperator.jdrupes.org/controller";
/// `action` of its events.
pub const ACTION: &str = "Gather";
/// The Lease of the controller.
pub const LEASE: &str = "vm-operator-sip";

/// Label of a `BareMetalHost`: namespace of its `SIPCluster`.
pub const LABEL_CLUSTER_NAMESPACE: &str = "sip.airshipit.org/cluster-namespace";
/// Label of a `BareMetalHost`: name of its `SIPCluster`. A host without this label is free. Children and their pods have the label too.
pub const LABEL_CLUSTER_NAME: &str = "sip.airshipit.org/cluster-name";
/// Label of a `BareMetalHost`: its role.
pub const LABEL_NODE_TYPE: &str = "sip.airshipit.org/node-type";

/// The role with the API servers of a tenant cluster.
pub const ROLE_CONTROL_PLANE: &str = "ControlPlane";
/// The role with the workload of a tenant cluster.
pub const ROLE_WORKER: &str = "Worker";

/// Value of the label `app.kubernetes.io/part-of` of all children and their pods.
pub const PART_OF: &str = "sip";
/// Annotation of children: hash of the applied object, so that removed fields are noticed.
pub const ANNOTATION_APPLIED: &str = "sip.vmoperator.jdrupes.org/applied";
/// Annotation of the pods of a service: hash of their configuration.
pub const ANNOTATION_CONFIGURATION: &str = "sip.vmoperator.jdrupes.org/configuration";

/// ConfigMaps with the templates of load balancers that the Airship SIP operator reads.
pub const TEMPLATES: [&str; 2] = ["loadbalancercontrolplane", "loadbalancerworker"];
