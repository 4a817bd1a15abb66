//! Every name that leaves the process, once: labels, annotations, field managers, names of children.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use std::collections::BTreeMap;

/// API group of our kinds.
pub const GROUP: &str = "vmoperator.jdrupes.org";
/// The only served version of our kinds.
pub const VERSION: &str = "v1";

/// `app.kubernetes.io/name` of everything that belongs to one VM.
pub const APP_NAME: &str = "vm-runner";
/// The same in the examples of the reference, for claims that users make themselves.
pub const OLD_APP_NAME: &str = "vmrunner";
/// `app.kubernetes.io/managed-by` of everything that the operator made for a VM.
pub const MANAGED_BY: &str = "vm-operator";

listed! {
/// The labels, and what they say.
LABELS {
/// Label: the application; its value on a VM's objects is `vm-runner`.
pub const LABEL_NAME: &str = "app.kubernetes.io/name";
/// Label: the VM that an object belongs to.
pub const LABEL_INSTANCE: &str = "app.kubernetes.io/instance";
/// Label: what an object is within its VM.
pub const LABEL_COMPONENT: &str = "app.kubernetes.io/component";
/// Label: who made an object.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
}}
/// Value of [`LABEL_COMPONENT`] on the display secret.
pub const COMPONENT_DISPLAY_SECRET: &str = "display-secret";
/// `app.kubernetes.io/name` and [`LABEL_COMPONENT`] of the pods that fetch CD images.
pub const APP_FETCH: &str = "vm-fetch";

listed! {
/// The annotations, and what they say.
ANNOTATIONS {
/// Annotation: version of the operator that wrote the object.
pub const ANNOTATION_VERSION: &str = "vmoperator.jdrupes.org/version";
/// Annotation on the pod: `resourceVersion` of the ConfigMap; changing it makes the kubelet look at the volume soon.
pub const ANNOTATION_CONFIG_VERSION: &str = "vmrunner.jdrupes.org/cmVersion";
/// Annotation on the pod: `resourceVersion` of the display secret, for the same purpose.
pub const ANNOTATION_SECRET_VERSION: &str = "vmrunner.jdrupes.org/dpVersion";

/// Annotation on the pod: the CPU and memory that were asked for last, granted or not, as a container's `resources` in
/// JSON.
pub const ANNOTATION_RESOURCES: &str = "vmoperator.jdrupes.org/resources";
/// Annotation on the pod: for each field of the VM that a pod cannot follow, a hash of what it was when the pod was made,
/// as JSON.
pub const ANNOTATION_STARTED_WITH: &str = "vmoperator.jdrupes.org/started-with";
/// Annotation on the pod: a hash of all that it was made of, but for CPU and memory. A pod that has not run yet is made
/// anew where this differs.
pub const ANNOTATION_MADE_OF: &str = "vmoperator.jdrupes.org/made-of";
/// Annotation on the pod: `spec.vm.restartRequest` when the pod was made.
pub const ANNOTATION_RESTART_REQUEST: &str = "vmoperator.jdrupes.org/restart-request";
/// Annotation on the service: names of the labels and annotations that are on it because the VM or the settings say so,
/// as JSON.
pub const ANNOTATION_APPLIED: &str = "vmoperator.jdrupes.org/applied";
/// Annotation on the pod: how often the kubelet was told that there is a new configuration that the runner has not
/// confirmed, for which generation of the VM, and when last, as JSON.
pub const ANNOTATION_POKED: &str = "vmoperator.jdrupes.org/poked";
/// Annotation on the ConfigMap of a VM that was taken over: the `instance-id` that it had, and for which content of
/// `spec.cloudInit` it is kept, as JSON.
pub const ANNOTATION_INSTANCE_ID: &str = "vmoperator.jdrupes.org/instance-id";
/// Annotation on a pod that fetches a CD image: the URL, without what can be secret in it.
pub const ANNOTATION_FETCHES: &str = "vmoperator.jdrupes.org/fetches";
/// Annotation on a pod that fetches a CD image: the number of the try, by which settings, and how the one before ended, as
/// JSON.
pub const ANNOTATION_FETCH_TRY: &str = "vmoperator.jdrupes.org/fetch-try";
/// Annotation on the claim `vmop-image-repository`, followed by a slash and 16 hexadecimal digits for URL and checksum: the
/// file that was fetched from there. Without it, it is fetched anew.
pub const ANNOTATION_FETCHED: &str = "fetched.vmoperator.jdrupes.org";
}}
/// Annotations whose names begin so are set by the operator or the runner only.
pub const ANNOTATION_PREFIXES: [&str; 2] = ["vmoperator.jdrupes.org/", "vmrunner.jdrupes.org/"];

/// Field manager of the operator, for children and for its own status fields.
pub const MANAGER_OPERATOR: &str = "vm-operator";
/// Field manager of the runner, for its status fields.
pub const MANAGER_RUNNER: &str = "vm-runner";

/// Events' `reportingController` of the operator.
pub const REPORTER_OPERATOR: &str = "vmoperator.jdrupes.org/vm-operator";
/// Events' `reportingController` of the runner.
pub const REPORTER_RUNNER: &str = "vmoperator.jdrupes.org/vm-runner";

/// Service account of the VMs' pods.
pub const RUNNER_SERVICE_ACCOUNT: &str = "vm-runner";
/// Events' action of the operator: it brings the objects of a VM in line.
pub const ACTION_RECONCILE: &str = "Reconcile";

/// `app.kubernetes.io/name` of the operator's own objects.
pub const OPERATOR_APP: &str = "vm-operator";
/// The ConfigMap with the operator's settings, in its own namespace.
pub const OPERATOR_CONFIG_MAP: &str = "vm-operator";

/// The claim that holds the CD images, shared by all VMs of a namespace.
pub const IMAGE_REPOSITORY_CLAIM: &str = "vmop-image-repository";

/// The resource by which a pod gets `/dev/kvm` of our device plugin.
pub const RESOURCE_KVM: &str = "vmoperator.jdrupes.org/kvm";
/// The resource by which a pod gets `/dev/net/tun` of our device plugin.
pub const RESOURCE_TUN: &str = "vmoperator.jdrupes.org/tun";
/// The resource by which a pod gets `/dev/vhost-net` of our device plugin.
pub const RESOURCE_VHOST_NET: &str = "vmoperator.jdrupes.org/vhost-net";

/// Where a VM's pod has its configuration.
pub const CONFIG_DIR: &str = "/etc/opt/vmrunner";
/// The configuration's file name, in the ConfigMap and in [`CONFIG_DIR`].
pub const CONFIG_FILE: &str = "config.yaml";
/// The file with the level of the log, in the ConfigMaps of the operator and of VMs.
pub const LOGGING_FILE: &str = "logging.properties";
/// Where a VM's pod keeps what outlives it: UUID, firmware variables, TPM state.
pub const DATA_DIR: &str = "/var/local/vm-data";
/// Where CD images are found in a VM's pod.
pub const IMAGE_REPOSITORY_DIR: &str = "/var/local/vmop-image-repository";

/// Key of the display secret: the password.
pub const SECRET_PASSWORD: &str = "display-password";
/// Key of the display secret: when the password expires, in the syntax of QEMU's `expire_password`.
pub const SECRET_EXPIRY: &str = "password-expiry";
/// Keys of the display's secret, as a secret of type `kubernetes.io/tls` has them: its certificate.
pub const SECRET_TLS_CERTIFICATE: &str = "tls.crt";
/// The certificate's key.
pub const SECRET_TLS_KEY: &str = "tls.key";
/// The certificate's authority; optional.
pub const SECRET_TLS_AUTHORITY: &str = "ca.crt";

/// Where a VM's pod has the parts of its seed for cloud-init that come from secrets.
pub const SEED_DIR: &str = "/etc/opt/vmrunner-seed";
/// Name of `user-data` in [`SEED_DIR`].
pub const SEED_USER_DATA: &str = "user-data";
/// Name of `network-config` in [`SEED_DIR`].
pub const SEED_NETWORK_CONFIG: &str = "network-config";

/// Where the file systems of disks in `Filesystem` mode are found in a VM's pod, each below its disk's name.
pub const DISKS_DIR: &str = "/var/local/vm-disks";
/// Name of the image file in the file system of such a disk.
pub const DISK_FILE: &str = "disk.img";

/// Port of a VM's pod, named `metrics`, where its runner counts what QEMU does.
pub const METRICS_PORT: u16 = 9180;
/// Environment variable of the VM's pod: the node that it runs on (downward API).
pub const ENV_NODE_NAME: &str = "NODE_NAME";
/// Environment variable of the VM's pod: the pod's address (downward API).
pub const ENV_POD_IP: &str = "POD_IP";

/// The device behind taps.
pub const TUN_DEVICE: &str = "/dev/net/tun";
/// The runner of VMs with taps: the same program with a file capability.
pub const TAP_RUNNER: &str = "/usr/local/bin/vm-runner-tap";
/// Name of a tap on its node; the kernel puts a number in place of `%d`, and counts up.
pub const TAP_INTERFACE: &str = "vmtap%d";

/// User and group that VMs run as; the runner image has them as `qemu`.
pub const RUNNER_UID: i64 = 107;

/// Name of the pod's container: the VM's, as in the reference, but without the dots that a container's name must not
/// have.
#[must_use]
pub fn container(vm: &str) -> String {
    vm.replace('.', "-")
}

/// Name of the claim for what the runner keeps.
#[must_use]
pub fn runner_data_claim(vm: &str) -> String {
    format!("{vm}-runner-data")
}

/// Name of a disk: `<name>-disk` from its claim template's name, else `disk-<n>`, `n` counting from 0 the disks
/// that have a claim. It is the device's name under `/dev` in the pod and part of the claim's name.
#[must_use]
pub fn disk(template_name: Option<&str>, n: usize) -> String {
    template_name.map_or_else(|| format!("disk-{n}"), |name| format!("{name}-disk"))
}

/// Name of the claim of a disk.
#[must_use]
pub fn disk_claim(vm: &str, disk: &str) -> String {
    format!("{vm}-{disk}")
}

/// Name of a claim as early versions of the reference had them, made by a stateful set. `what` is the disk's name or
/// `runner-data`.
#[must_use]
pub fn legacy_claim(vm: &str, what: &str) -> String {
    format!("{what}-{vm}-0")
}

/// The VMs that a claim of that name can be meant for, whatever its labels say: what [`disk_claim`],
/// [`runner_data_claim`] and [`legacy_claim`] put together is taken apart at each dash.
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

/// Name of the display secret that the operator generates.
#[must_use]
pub fn display_secret(vm: &str) -> String {
    format!("{vm}-display-secret")
}

/// The labels of everything that belongs to the VM.
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

/// The reference that makes a child go when its VM goes.
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
    fn the_vm_of_each_claim_is_among_those_that_its_name_can_mean() {
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
