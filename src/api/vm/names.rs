//! Names that other programs see: labels, annotations, field managers, and names of child objects.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use std::collections::BTreeMap;

/// API group of `VirtualMachine`.
pub const GROUP: &str = "vmoperator.jdrupes.org";
/// The only served version of `VirtualMachine`.
pub const VERSION: &str = "v1";

/// `app.kubernetes.io/name` of everything that belongs to one VM.
pub const APP_NAME: &str = "vm-runner";
/// `app.kubernetes.io/name` of PVCs that users created after the examples of the Java VM-Operator.
pub const LEGACY_APP_NAME: &str = "vmrunner";
/// `app.kubernetes.io/managed-by` of all objects that the operator creates for a VM.
pub const MANAGED_BY: &str = "vm-operator";

listed! {
/// The labels with their documentation.
LABELS {
/// Label: the application; `vm-runner` on the objects of a VM.
pub const LABEL_NAME: &str = "app.kubernetes.io/name";
/// Label: the name of the VM that an object belongs to.
pub const LABEL_INSTANCE: &str = "app.kubernetes.io/instance";
/// Label: the role of an object within its VM.
pub const LABEL_COMPONENT: &str = "app.kubernetes.io/component";
/// Label: the creator of an object.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
}}
/// Value of [`LABEL_COMPONENT`] on the display Secret.
pub const COMPONENT_DISPLAY_SECRET: &str = "display-secret";
/// `app.kubernetes.io/name` and [`LABEL_COMPONENT`] of download pods.
pub const APP_FETCH: &str = "vm-fetch";

listed! {
/// The annotations with their documentation.
ANNOTATIONS {
/// Annotation: version of the operator that wrote the object last.
pub const ANNOTATION_VERSION: &str = "vmoperator.jdrupes.org/version";
/// Annotation on the pod: `resourceVersion` of the ConfigMap. A changed value makes the kubelet refresh the volume soon.
pub const ANNOTATION_CONFIG_VERSION: &str = "vmrunner.jdrupes.org/cmVersion";
/// Annotation on the pod: `resourceVersion` of the display Secret. A changed value makes the kubelet refresh the volume soon.
pub const ANNOTATION_SECRET_VERSION: &str = "vmrunner.jdrupes.org/dpVersion";

/// Annotation on the pod: the CPU and memory that the operator requested last, granted or not. JSON in the form of a
/// container's `resources`.
pub const ANNOTATION_RESOURCES: &str = "vmoperator.jdrupes.org/resources";
/// Annotation on the pod: for each field of the VM that takes effect at the next start, a hash of its value when the pod was
/// created. JSON.
pub const ANNOTATION_STARTED_WITH: &str = "vmoperator.jdrupes.org/started-with";
/// Annotation on the pod: the template hash, which covers all fields except CPU and memory. The operator re-creates a pod
/// that has not run yet if its hash differs.
pub const ANNOTATION_TEMPLATE_HASH: &str = "vmoperator.jdrupes.org/made-of";
/// Annotation on the pod: the value of `spec.vm.restartRequest` when the pod was created.
pub const ANNOTATION_RESTART_REQUEST: &str = "vmoperator.jdrupes.org/restart-request";
/// Annotation on the pod: it only imports an image onto the disk with this PVC. The value is the name of the PVC.
pub const ANNOTATION_IMPORTS: &str = "vmoperator.jdrupes.org/imports";
/// Annotation on a PVC, set by users: UID of this PVC. It allows an import to overwrite the contents of the block device, such as those of
/// a deleted volume that the provisioner hands out again. A restored PVC has another UID, so its contents are safe.
/// The operator removes the annotation after the import.
pub const ANNOTATION_OVERWRITE: &str = "vmoperator.jdrupes.org/overwrite";
/// Condition in the readiness gates of an import pod. No program sets it, so that no Service sends connections to the pod.
pub const CONDITION_NEVER_READY: &str = "vmoperator.jdrupes.org/never-ready";
/// Annotation on the Service: names of the labels and annotations that come from the VM or from the operator's
/// configuration. JSON.
pub const ANNOTATION_APPLIED: &str = "vmoperator.jdrupes.org/applied";
/// Annotation on the pod: refreshes of the volume for a configuration that the runner has not confirmed. JSON with their
/// number, the VM's generation and the time of the last refresh.
pub const ANNOTATION_VOLUME_REFRESH: &str = "vmoperator.jdrupes.org/poked";
/// Annotation on the ConfigMap of a VM that the Java VM-Operator created: the retained `instance-id`, and the content of
/// `spec.cloudInit` for which it is retained. JSON.
pub const ANNOTATION_INSTANCE_ID: &str = "vmoperator.jdrupes.org/instance-id";
/// Annotation on a VM, set by users: UIDs of lost PVCs, separated by commas. It allows the operator to create new, empty PVCs in
/// place of these. The UIDs are in the message of the condition `Ready` with the reason `DataMissing`.
pub const ANNOTATION_ACCEPT_LOSS: &str = "vmoperator.jdrupes.org/accept-loss";
/// Annotation on a download pod: the URL of the CD image, without user, password and query.
pub const ANNOTATION_FETCHES: &str = "vmoperator.jdrupes.org/fetches";
/// Annotation on a download pod: the number of the attempt, its configuration, and the outcome of the previous attempt.
/// JSON.
pub const ANNOTATION_FETCH_TRY: &str = "vmoperator.jdrupes.org/fetch-try";
/// Annotation on the PVC `vmop-image-repository`: the file of a downloaded image. The name continues with a slash and 16
/// hexadecimal digits for URL and checksum. Without the annotation, the operator downloads the image again.
pub const ANNOTATION_FETCHED: &str = "fetched.vmoperator.jdrupes.org";
}}

/// Annotations of PVCs, by which Argo CD neither prunes nor deletes them, and does not count them as a difference to
/// Git. An application with the name of a VM would otherwise take the VM's PVCs for its own, because of their label
/// `app.kubernetes.io/instance`.
pub const ANNOTATIONS_KEPT: [(&str, &str); 2] = [
    ("argocd.argoproj.io/compare-options", "IgnoreExtraneous"),
    (
        "argocd.argoproj.io/sync-options",
        "Prune=false,Delete=false",
    ),
];

/// Prefixes of annotations that only the operator and the runner set.
pub const ANNOTATION_PREFIXES: [&str; 2] = ["vmoperator.jdrupes.org/", "vmrunner.jdrupes.org/"];

/// Field manager of the operator, for child objects and for its status fields.
pub const MANAGER_OPERATOR: &str = "vm-operator";
/// Field manager of the runner in its report.
pub const MANAGER_RUNNER: &str = "vm-runner";

/// `reportingController` of the operator's events.
pub const REPORTER_OPERATOR: &str = "vmoperator.jdrupes.org/vm-operator";

/// Service account of VMs' pods with runners that write to a `VmReport`.
pub const REPORTER_SERVICE_ACCOUNT: &str = "vm-reporter";
/// Service account of VMs' pods with the runner of the Java VM-Operator, which writes to the VM.
pub const RUNNER_SERVICE_ACCOUNT: &str = "vm-runner";
/// `action` of the operator's events.
pub const ACTION_RECONCILE: &str = "Reconcile";

/// `app.kubernetes.io/name` of the operator's own objects.
pub const OPERATOR_APP: &str = "vm-operator";
/// Name of the ConfigMap with the operator's configuration, in the operator's namespace.
pub const OPERATOR_CONFIG_MAP: &str = "vm-operator";

/// Name of the PVC of the image repository, which all VMs of a namespace share.
pub const IMAGE_REPOSITORY_CLAIM: &str = "vmop-image-repository";

/// Extended resource of the device plugin that gives a pod `/dev/kvm`.
pub const RESOURCE_KVM: &str = "vmoperator.jdrupes.org/kvm";
/// Extended resource of the device plugin that gives a pod `/dev/kvm` if the node has it, and nothing on other nodes.
pub const RESOURCE_KVM_IF_PRESENT: &str = "vmoperator.jdrupes.org/kvm-if-present";
/// Label of nodes with hardware acceleration, with the value `true`. Administrators set it.
pub const LABEL_NODE_KVM: &str = "vmoperator.jdrupes.org/kvm";
/// Extended resource of the device plugin that gives a pod `/dev/net/tun`.
pub const RESOURCE_TUN: &str = "vmoperator.jdrupes.org/tun";

/// Directory of the runner's configuration in a VM's pod.
pub const CONFIG_DIR: &str = "/etc/opt/vmrunner";
/// File name of the configuration in the ConfigMap and in [`CONFIG_DIR`].
pub const CONFIG_FILE: &str = "config.yaml";
/// Directory of the runner data in a VM's pod: UUID, firmware variables, TPM state.
pub const DATA_DIR: &str = "/var/local/vm-data";
/// Directory of the image repository in a VM's pod.
pub const IMAGE_REPOSITORY_DIR: &str = "/var/local/vmop-image-repository";

/// Key of the display Secret: the password.
pub const SECRET_PASSWORD: &str = "display-password";
/// Key of the display Secret: the expiry of the password, in the syntax of QEMU's `expire_password`.
pub const SECRET_EXPIRY: &str = "password-expiry";
/// Key of the display Secret, as in a Secret of type `kubernetes.io/tls`: the certificate.
pub const SECRET_TLS_CERTIFICATE: &str = "tls.crt";
/// Key of the display Secret: the private key of the certificate.
pub const SECRET_TLS_KEY: &str = "tls.key";
/// Key of the display Secret: the certificate authority; optional.
pub const SECRET_TLS_AUTHORITY: &str = "ca.crt";

/// Directory of the cloud-init data from Secrets in a VM's pod.
pub const SEED_DIR: &str = "/etc/opt/vmrunner-seed";
/// Name of `user-data` in [`SEED_DIR`].
pub const SEED_USER_DATA: &str = "user-data";
/// Name of `network-config` in [`SEED_DIR`].
pub const SEED_NETWORK_CONFIG: &str = "network-config";

/// Directory in a VM's pod with the mounts of disks in `Filesystem` mode, each named after its disk.
pub const DISKS_DIR: &str = "/var/local/vm-disks";
/// Mount path of the file system that is copied onto a disk.
pub const SOURCE_DIR: &str = "/var/local/vm-source";
/// Path of the block device that is copied onto a disk.
pub const SOURCE_DEVICE: &str = "/dev/vm-source";
/// Name of the image file in the file system of a disk in `Filesystem` mode.
pub const DISK_FILE: &str = "disk.img";

/// Default port of the runner's `/metrics` in a VM's pod; its name is `metrics`.
pub const METRICS_PORT: u16 = 9180;
/// Default port of the runner for web consoles in a VM's pod; its name is [`CONSOLE_PORT_NAME`].
pub const CONSOLE_PORT: u16 = 9181;
/// Name of the pod's port for web consoles.
pub const CONSOLE_PORT_NAME: &str = "console";
/// ConfigMap of the web console.
pub const WEB_CONFIG_MAP: &str = "vm-web";
/// Key of the ConfigMap [`WEB_CONFIG_MAP`], and file in [`CONFIG_DIR`]: the public keys of web consoles, one on each line.
pub const CONSOLE_KEYS: &str = "console-keys";
/// Environment variable in a VM's pod: the name of the node, from the downward API.
pub const ENV_NODE_NAME: &str = "NODE_NAME";
/// Environment variable in a VM's pod: the UID of the pod, from the downward API. It is the name of the VM's report. Without it,
/// the runner reports to its log only.
pub const ENV_POD_UID: &str = "POD_UID";
/// Environment variable in a VM's pod: the address of the pod, from the downward API.
pub const ENV_POD_IP: &str = "POD_IP";
/// Environment variable in a VM's pod: the disks' PVCs and generated values, JSON of
/// [`PodIdentity`](crate::api::runner::identity::PodIdentity).
pub const ENV_IDENTITY: &str = "VM_IDENTITY";

/// Device with which a program creates tap interfaces.
pub const TUN_DEVICE: &str = "/dev/net/tun";
/// Path of the runner for VMs with tap networks: the same program with a file capability.
pub const TAP_RUNNER: &str = "/usr/local/bin/vm-runner-tap";
/// Name pattern of a tap interface on its node; the kernel replaces `%d` with the next free number.
pub const TAP_INTERFACE: &str = "vmtap%d";

/// User and group that VMs run as; the runner image has them as `qemu`.
pub const RUNNER_UID: i64 = 107;

/// Name of the pod's container: the name of the VM, as in the Java VM-Operator. Dots become dashes, because the name of a
/// container must not have dots.
#[must_use]
pub fn container(vm: &str) -> String {
    vm.replace('.', "-")
}

/// Name of the PVC for the runner data.
#[must_use]
pub fn runner_data_claim(vm: &str) -> String {
    format!("{vm}-runner-data")
}

/// Name of a disk: `<name>-disk` with the name of its template, else `disk-<n>`, where `n` counts the disks with a PVC from
/// 0. The disk is a device of this name under `/dev` in the pod, and the PVC's name contains it.
#[must_use]
pub fn disk(template_name: Option<&str>, n: usize) -> String {
    template_name.map_or_else(|| format!("disk-{n}"), |name| format!("{name}-disk"))
}

/// Name of the PVC of a disk.
#[must_use]
pub fn disk_claim(vm: &str, disk: &str) -> String {
    format!("{vm}-{disk}")
}

/// Name of a PVC that an early version of the Java VM-Operator created by a StatefulSet. `what` is the disk's name or
/// `runner-data`.
#[must_use]
pub fn legacy_claim(vm: &str, what: &str) -> String {
    format!("{what}-{vm}-0")
}

/// Names of the VMs that a PVC can belong to by its name alone. It inverts [`disk_claim`], [`runner_data_claim`] and
/// [`legacy_claim`] by a split at each dash.
pub fn vms_of_claim(claim: &str) -> impl Iterator<Item = &str> {
    let ours = claim
        .match_indices('-')
        .filter_map(|(dash, _)| claim.get(..dash));
    let legacy = claim.strip_suffix("-0").unwrap_or_default();
    ours.chain(
        legacy
            .match_indices('-')
            .filter_map(|(dash, _)| legacy.get(dash + 1..)),
    )
}

/// Name of the display Secret that the operator generates.
#[must_use]
pub fn display_secret(vm: &str) -> String {
    format!("{vm}-display-secret")
}

/// The labels of all objects that belong to the VM.
#[must_use]
pub fn labels(vm: &str) -> BTreeMap<String, String> {
    [
        (LABEL_NAME, APP_NAME),
        (LABEL_INSTANCE, vm),
        (LABEL_MANAGED_BY, MANAGED_BY),
    ]
    .map(|(k, v)| (k.to_owned(), v.to_owned()))
    .into()
}

/// The owner reference to a VM, by which Kubernetes deletes a child with its VM.
#[must_use]
pub fn owner(vm: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: "VirtualMachine".to_owned(),
        name: vm.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vms_of_claim_contains_the_vm_of_each_claim_name() {
        for vm in ["vm", "web-1", "a.b-c-0"] {
            for disk in [
                disk(None, 3),
                disk(Some("system"), 0),
                disk(Some("more-data"), 0),
            ] {
                for claim in [disk_claim(vm, &disk), legacy_claim(vm, &disk)] {
                    assert!(vms_of_claim(&claim).any(|name| name == vm), "{claim}");
                }
            }
            for claim in [runner_data_claim(vm), legacy_claim(vm, "runner-data")] {
                assert!(vms_of_claim(&claim).any(|name| name == vm), "{claim}");
            }
        }
        assert_eq!(vms_of_claim("plain").count(), 0);
    }
}
