//! Failures, as `Status` objects with the reasons, codes and messages of a Kubernetes API server.

use super::resource::Resource;
use serde_json::{Value, json};

/// A call that failed.
#[derive(Debug)]
pub struct Failure {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    pub details: Value,
}

/// The reason of a failure that no real server has: the call is not implemented.
pub const NOT_IMPLEMENTED: &str = "NotImplementedInMemory";

impl Failure {
    fn of(code: u16, reason: &'static str, message: String, details: Value) -> Self {
        Self {
            code,
            reason,
            message,
            details,
        }
    }

    /// The server does not implement the call.
    pub fn unknown(what: impl Into<String>) -> Self {
        Self::of(501, NOT_IMPLEMENTED, what.into(), Value::Null)
    }

    pub fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.qualified());
        Self::of(
            404,
            "NotFound",
            message,
            resource.details(name, &resource.plural),
        )
    }

    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Self::of(
            409,
            "AlreadyExists",
            message,
            resource.details(name, &resource.plural),
        )
    }

    pub fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {why}",
            resource.qualified()
        );
        Self::of(
            409,
            "Conflict",
            message,
            resource.details(name, &resource.plural),
        )
    }

    /// The resource version of the request differs from that of the object.
    pub fn modified(resource: &Resource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    /// The UID or resource version of the request differs from that of the object.
    pub fn precondition(
        resource: &Resource,
        namespace: &str,
        name: &str,
        what: &str,
        given: &str,
        found: &str,
    ) -> Self {
        let key = resource.storage_key(namespace, name);
        let detail = format!(
            "Precondition failed: {what} in precondition: {given}, {what} in object meta: {found}"
        );
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {detail}"
        );
        Self::conflict(resource, name, &why)
    }

    pub fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!("{} {name:?} is forbidden: {why}", resource.qualified());
        Self::of(
            403,
            "Forbidden",
            message,
            resource.details(name, &resource.plural),
        )
    }

    /// One field is invalid. `reason` is the cause of the field, such as `FieldValueInvalid`.
    pub fn invalid(resource: &Resource, name: &str, reason: &str, field: &str, why: &str) -> Self {
        let qualified = resource.qualified_kind();
        let message = format!("{qualified} {name:?} is invalid: {field}: {why}");
        let mut details = resource.details(name, &resource.kind);
        details["causes"] = json!([{"reason": reason, "message": why, "field": field}]);
        Self::of(422, "Invalid", message, details)
    }

    /// An update without a resource version, of a kind that requires one.
    pub fn version_required(resource: &Resource, name: &str) -> Self {
        let (field, why) = (
            "metadata.resourceVersion",
            "Invalid value: 0: must be specified for an update",
        );
        let message = format!(
            "{} {name:?} is invalid: {field}: {why}",
            resource.qualified()
        );
        let mut details = resource.details(name, &resource.plural);
        details["causes"] =
            json!([{"reason": "FieldValueInvalid", "message": why, "field": field}]);
        Self::of(422, "Invalid", message, details)
    }

    /// A patch names another UID. The server lists the cause twice.
    pub fn other_uid(resource: &Resource, name: &str, uid: &str) -> Self {
        let why = format!("Invalid value: {uid:?}: field is immutable");
        let mut failure = Self::invalid(resource, name, "FieldValueInvalid", "metadata.uid", &why);
        let cause = failure.details["causes"][0].clone();
        failure.details["causes"] = json!([cause, cause]);
        failure
    }

    /// The UID or resource version in the preconditions of a deletion differs from that of the object.
    pub fn delete_precondition(
        resource: &Resource,
        name: &str,
        what: &str,
        given: &str,
        found: &str,
    ) -> Self {
        let became = if what == "UID" {
            "deleted and then recreated"
        } else {
            "modified"
        };
        let why = format!(
            "the {what} in the precondition ({given}) does not match the {what} in record ({found}). The object might have \
             been {became}"
        );
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {why}",
            resource.qualified_kind()
        );
        Self::of(
            409,
            "Conflict",
            message,
            resource.details(name, &resource.kind),
        )
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::of(400, "BadRequest", message.into(), Value::Null)
    }

    pub fn expired(message: impl Into<String>) -> Self {
        Self::of(410, "Expired", message.into(), Value::Null)
    }

    /// The list or watch requests a future revision.
    pub fn too_large(revision: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {revision}, current: {current}");
        let causes =
            json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]);
        let details = json!({"causes": causes, "retryAfterSeconds": 1});
        Self::of(504, "Timeout", format!("Timeout: {message}"), details)
    }

    /// The server does not have this path.
    pub fn no_such_path() -> Self {
        let message = "the server could not find the requested resource".to_owned();
        Self::of(404, "NotFound", message, json!({}))
    }

    /// Other field managers own fields of the applied configuration: pairs of manager and field.
    pub fn apply_conflict(conflicts: &[(String, String)]) -> Self {
        let causes = conflicts.iter().map(|(manager, field)| {
            json!({"reason": "FieldManagerConflict", "message": format!("conflict with {manager}"), "field": field})
        });
        let details = json!({"causes": causes.collect::<Vec<_>>()});
        let message = match conflicts {
            [(manager, field)] => {
                format!("Apply failed with 1 conflict: conflict with {manager}: {field}")
            }
            _ => format!(
                "Apply failed with {} conflicts: {}",
                conflicts.len(),
                by_manager(conflicts)
            ),
        };
        Self::of(409, "Conflict", message, details)
    }

    /// The body of the response.
    pub fn body(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message,
            "reason": self.reason, "code": self.code,
        });
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}

fn by_manager(conflicts: &[(String, String)]) -> String {
    let mut managers: Vec<&String> = conflicts.iter().map(|(manager, _)| manager).collect();
    managers.sort();
    managers.dedup();
    let of = |manager: &String| {
        let fields = conflicts
            .iter()
            .filter(|(of, _)| of == manager)
            .map(|(_, field)| format!("- {field}"));
        format!(
            "conflicts with {manager}:\n{}",
            fields.collect::<Vec<_>>().join("\n")
        )
    };
    managers.into_iter().map(of).collect::<Vec<_>>().join("\n")
}

/// The response to a completed deletion, for kinds that do not return the object.
pub fn deleted(resource: &Resource, name: &str, uid: &Value) -> Value {
    let mut details = resource.details(name, &resource.plural);
    details["uid"] = uid.clone();
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
