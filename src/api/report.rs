//! The `VmReport` kind (`vmreports.vmoperator.jdrupes.org`): the report of a runner about its VM.
//!
//! The operator creates a report for each pod of a VM, with the pod's UID as its name. The runner writes the status of
//! its report, and the operator copies checked fields into the status of the VM. A runner needs no permission for VMs,
//! and cannot learn of other VMs: an API server can answer a patch with the patched object.
//!
//! All fields are limited, so that a report has at most 10 KiB.

use crate::api::vm::conditions;
use crate::api::vm::{ConsoleConnection, names, without_nulls};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use kube::{CustomResource, CustomResourceExt};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Maximum number of IP addresses in a report.
pub const GUEST_IPS_MAX: usize = 32;
/// Maximum number of entries of `osinfo` in a report.
pub const OSINFO_ENTRIES_MAX: usize = 16;
/// Maximum length of the name of an entry of `osinfo`, in bytes.
pub const OSINFO_NAME_MAX: usize = 32;
/// Maximum length of the text of an entry of `osinfo`, in bytes.
pub const OSINFO_TEXT_MAX: usize = 128;
/// Maximum length of the name of a user, in bytes.
pub const USER_MAX: usize = 253;
/// Maximum number of connected users in a report.
pub const CONSOLES_MAX: usize = 4;
/// Maximum length of the address of a client, in bytes.
pub const HOST_MAX: usize = 64;
/// Maximum length of the key of the port for web consoles, in bytes.
pub const CONSOLE_KEY_MAX: usize = 128;
/// Maximum length of the message of a condition, in bytes.
pub const MESSAGE_MAX: usize = 512;
/// Maximum length of all messages, all texts of `osinfo` and the names of users together, in bytes. In JSON, a byte can take two.
pub const TEXTS_MAX: usize = 2200;

/// The VM that the report describes.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "vmoperator.jdrupes.org",
    version = "v1",
    kind = "VmReport",
    plural = "vmreports",
    singular = "vmreport",
    namespaced,
    status = "VmReportStatus",
    derive = "PartialEq",
    doc = "Report of a runner about its VM. The name of the report is the UID of the VM's pod. The operator creates the report \
        and copies it into the status of the VM.",
    printcolumn(name = "VM", type_ = "string", json_path = ".spec.vm"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct VmReportSpec {
    /// Name of the VM. Written by the operator.
    pub vm: String,
}

/// The state of the VM as its runner reports it. Each update by the runner contains all fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VmReportStatus {
    /// Last value of `spec.vm.resetRequest` that a reset or a start of the VM has fulfilled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_reset_request: Option<i64>,
    /// Version of `vm-runner` in the VM's pod.
    #[schemars(length(max = 32), regex(pattern = r"^[0-9A-Za-z.+-]*$"))]
    pub runner_version: String,
    /// Number of CPUs that the guest has.
    #[schemars(range(min = 0, max = 100_000))]
    pub cpus: i64,
    /// Current memory size of the guest, as QEMU reports it.
    #[schemars(
        length(max = 24),
        regex(pattern = r"^([0-9]+(\.[0-9]+)?([kKMGTPE]i?)?)?$")
    )]
    pub ram: String,
    /// IP addresses of the guest, as the guest agent reports them.
    #[serde(rename = "guestIPs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        inner(length(max = 39), regex(pattern = r"^[0-9A-Fa-f.:]+$"))
    )]
    pub guest_ips: Vec<String>,
    /// Address of the connected SPICE client, or else of the newest browser. Empty if no client is connected.
    #[schemars(length(max = 64), regex(pattern = r"^[0-9A-Za-z.:%_-]*$"))]
    pub console_client: String,
    /// User that the desktop agent has logged in to the guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = r"^[^\x00-\x1f]*$"))]
    pub logged_in_user: Option<String>,
    /// Number of times that the display's password has changed; -1 if the display has no password.
    pub display_password_serial: i64,
    /// Operating system of the guest, as the guest agent reports it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "osinfo")]
    pub osinfo: BTreeMap<String, String>,
    /// Number of boots of the guest. A boot counts when the guest agent answers for the first time after a start or a reset.
    #[schemars(range(min = 0))]
    pub boots: i64,
    /// Number of resets of the guest since the start of the VM's pod, including reboots by the guest.
    #[schemars(range(min = 0))]
    pub resets: i64,
    /// Number of connections of SPICE clients and of consoles in browsers since the start of the VM's pod.
    #[schemars(range(min = 0))]
    pub console_connections: i64,
    /// Connected users, the newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub consoles: Vec<ConsoleConnection>,
    /// Public key of the runner on the pod's port `console`: a SubjectPublicKeyInfo in base64. Web consoles connect to no runner
    /// with another key.
    #[schemars(length(max = 128), regex(pattern = r"^[0-9A-Za-z+/=]*$"))]
    pub console_key: String,
    /// Conditions of the VM that the runner observes.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

fn osinfo(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": OSINFO_ENTRIES_MAX,
        "additionalProperties": {"type": "string", "maxLength": OSINFO_TEXT_MAX, "pattern": r"^[^\x00-\x1f]*$"},
    })
}

/// The text without control characters, cut to that many bytes.
#[must_use]
pub fn plain_text(text: &str, bytes: usize) -> String {
    let plain: String = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    plain
        .get(..plain.floor_char_boundary(bytes))
        .unwrap_or_default()
        .to_owned()
}

/// Whether other hosts can use that address of a guest.
#[must_use]
pub fn is_usable(address: &IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !is_link_local && !address.is_loopback() && !address.is_unspecified() && !address.is_multicast()
}

/// The owner reference to a VM's pod, by which Kubernetes deletes the report with the pod. The report does not block the
/// deletion.
#[must_use]
pub fn owner(pod: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// The custom resource definition, as it is in `crds/`.
#[must_use]
pub fn crd() -> CustomResourceDefinition {
    let mut crd = VmReport::crd();
    crd.metadata.labels =
        Some([(names::LABEL_NAME.to_owned(), names::MANAGED_BY.to_owned())].into());
    let schemas = crd.spec.versions.iter_mut();
    let roots = schemas.filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut());
    for root in roots {
        without_nulls(root);
        if let Some(status) = property(root, "status") {
            limit_status(status);
        }
    }
    crd
}

fn property<'a>(schema: &'a mut JSONSchemaProps, name: &str) -> Option<&'a mut JSONSchemaProps> {
    schema.properties.as_mut()?.get_mut(name)
}

/// Adds the limits of conditions, which have the type of Kubernetes, and the limit of all texts together.
fn limit_status(status: &mut JSONSchemaProps) {
    let texts = format!(
        "(has(self.conditions) ? self.conditions.map(c, size(bytes(c.message))).sum() : 0) + \
         (has(self.osinfo) ? self.osinfo.map(name, size(bytes(self.osinfo[name]))).sum() : 0) + \
         (has(self.consoles) ? self.consoles.map(c, size(bytes(c.user))).sum() : 0) + \
         (has(self.loggedInUser) ? size(bytes(self.loggedInUser)) : 0) <= {TEXTS_MAX}"
    );
    let users = format!(
        "!has(self.consoles) || self.consoles.all(console, size(bytes(console.user)) <= {USER_MAX})"
    );
    let names = format!(
        "!has(self.osinfo) || self.osinfo.all(name, size(bytes(name)) <= {OSINFO_NAME_MAX})"
    );
    let rule = |rule: String, message: String| {
        serde_json::from_value(json!({"rule": rule, "message": message})).ok()
    };
    let rules = [
        rule(
            texts,
            format!(
                "condition messages, values of osinfo and names of users must have at most {TEXTS_MAX} bytes in total; shorten the condition messages"
            ),
        ),
        rule(
            names,
            format!(
                "each key of osinfo must have at most {OSINFO_NAME_MAX} bytes; omit entries with longer keys"
            ),
        ),
        rule(
            users,
            format!("each user of consoles must have at most {USER_MAX} bytes; shorten the names"),
        ),
    ];
    status.x_kubernetes_validations = Some(rules.into_iter().flatten().collect());
    let Some(conditions) = property(status, "conditions") else {
        return;
    };
    conditions.max_items = i64::try_from(conditions::OF_RUNNER.len()).ok();
    let Some(JSONSchemaPropsOrArray::Schema(condition)) = &mut conditions.items else {
        return;
    };
    let limits: [(&str, usize, Option<&str>); 4] = [
        ("type", 32, None),
        ("status", 8, None),
        ("reason", 32, Some("^[A-Za-z]+$")),
        ("message", MESSAGE_MAX, Some(r"^[^\x00-\x1f]*$")),
    ];
    for (name, length, pattern) in limits {
        if let Some(field) = property(condition, name) {
            field.max_length = i64::try_from(length).ok();
            field.pattern = pattern.map(str::to_owned);
        }
    }
    let values = |values: &[&str]| Some(values.iter().map(|value| JSON(json!(value))).collect());
    if let Some(field) = property(condition, "type") {
        field.enum_ = values(&conditions::OF_RUNNER);
    }
    if let Some(field) = property(condition, "status") {
        field.enum_ = values(&["True", "False"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_has_no_control_characters_and_whole_letters() {
        assert_eq!(plain_text("a\nb\u{1b}[c", 10), "a b [c");
        assert_eq!(plain_text("aßß", 4), "aß");
    }

    #[test]
    fn addresses_that_only_the_guest_or_its_link_can_use_are_not_usable() {
        for (address, usable) in [
            ("10.0.0.1", true),
            ("2001:db8::1", true),
            ("127.0.0.1", false),
            ("::1", false),
            ("169.254.1.1", false),
            ("fe80::1", false),
            ("224.0.0.1", false),
            ("ff02::1", false),
            ("0.0.0.0", false),
            ("255.255.255.255", false),
        ] {
            assert_eq!(is_usable(&address.parse().unwrap()), usable, "{address}");
        }
    }
}
