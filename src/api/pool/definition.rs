//! The custom resource definitions of pools and assignments, as they are in `crds/`.

use crate::api::conditions::Reason;
use crate::api::pool::{BOUND, BoundReason, VmAssignment, VmPool};
use crate::api::vm::{names, rules, without_nulls};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, ValidationRule,
};
use kube::CustomResourceExt;
use serde_json::json;

/// The pattern of the Java VM-Operator.
const RETENTION_PATTERN: &str = r"^(?:\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3])(?:|:?[0-5]\d))|P(?:\d+Y)?(?:\d+M)?(?:\d+W)?(?:\d+D)?(?:T(?:\d+[Hh])?(?:\d+[Mm])?(?:\d+(?:\.\d{1,9})?[Ss])?)?)$";

/// The message of an assignment that no operator has processed.
const PENDING: &str = "the operator has not processed the assignment. Check that spec.pool names an existing VmPool, and that the operator's argument --controllers includes pool";

/// Both definitions.
#[must_use]
pub fn definitions() -> [CustomResourceDefinition; 2] {
    [
        with_rules(VmPool::crd(), restrict_pool),
        with_rules(VmAssignment::crd(), restrict_assignment),
    ]
}

fn with_rules(
    mut crd: CustomResourceDefinition,
    restrict: fn(&mut JSONSchemaProps),
) -> CustomResourceDefinition {
    crd.metadata.labels =
        Some([(names::LABEL_NAME.to_owned(), names::MANAGED_BY.to_owned())].into());
    let schemas = crd.spec.versions.iter_mut();
    for root in schemas.filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut()) {
        without_nulls(root);
        restrict(root);
    }
    crd
}

fn rule(cel: &str, message: &str) -> ValidationRule {
    ValidationRule {
        rule: cel.to_owned(),
        message: Some(message.to_owned()),
        ..ValidationRule::default()
    }
}

/// The schema of the field at that path.
fn field<'a>(root: &'a mut JSONSchemaProps, path: &[&str]) -> Option<&'a mut JSONSchemaProps> {
    path.iter().try_fold(root, |schema, name| {
        schema.properties.as_mut()?.get_mut(*name)
    })
}

fn restrict_pool(root: &mut JSONSchemaProps) {
    if let Some(retention) = field(root, &["spec", "retention"]) {
        retention.pattern = Some(RETENTION_PATTERN.to_owned());
        let existing_date = format!("self.startsWith('P') || self.matches(r'^{}T')", rules::DATE);
        retention.x_kubernetes_validations = Some(vec![
            rule(
                "!self.startsWith('P') || (self.matches('[0-9]') && !self.endsWith('T'))",
                "is a duration without a number; write a duration such as PT4H, P1D or PT30M",
            ),
            rule(
                &existing_date,
                "is neither a duration nor an existing date; write a value such as PT4H, P1D or 2030-01-31T18:00:00Z",
            ),
        ]);
    }
    let permission = field(root, &["spec", "permissions"]).and_then(|list| list.items.as_mut());
    if let Some(JSONSchemaPropsOrArray::Schema(permission)) = permission {
        permission.x_kubernetes_validations = Some(vec![rule(
            "has(self.user) != has(self.role)",
            "must have exactly one of user and role; write a separate entry for each user and each role",
        )]);
    }
}

fn restrict_assignment(root: &mut JSONSchemaProps) {
    for name in ["pool", "user"] {
        if let Some(field) = field(root, &["spec", name]) {
            field.x_kubernetes_validations = Some(vec![rule(
                "self == oldSelf",
                "cannot be changed; delete this VmAssignment, which gives the VM back to the pool, and create a new VmAssignment",
            )]);
        }
    }
    if let Some(status) = field(root, &["status"]) {
        let initial = json!({
            "type": BOUND, "status": "False", "reason": BoundReason::Pending.as_str(), "message": PENDING,
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        });
        // The definition of a field without the status is not applied.
        status.default = Some(JSON(json!({"conditions": [initial]})));
    }
}
