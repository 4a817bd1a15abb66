//! (pure) Fields of the Java VM-Operator that are accepted and have no effect.

use crate::api::VirtualMachineSpec;
use crate::api::logging::level;
use crate::api::vm::conditions::{self, ConditionReason, DesiredCondition};

/// The condition that names the fields without effect, if the VM has any.
#[must_use]
pub fn ignored(spec: &VirtualMachineSpec) -> Option<DesiredCondition> {
    let template = "the field has no effect, because the runner computes QEMU's arguments from spec.vm; remove the field";
    let logging = "only the line .level=LEVEL has an effect, which sets the log level of the runner; remove the other lines";
    let other_lines = spec
        .logging_properties
        .as_deref()
        .is_some_and(|text| !level(text).1.is_empty());
    let fields = [
        (
            "spec.runnerTemplate.source",
            spec.runner_template.source.is_some(),
            template,
        ),
        (
            "spec.runnerTemplate.update",
            !spec.runner_template.update,
            template,
        ),
        ("spec.loggingProperties", other_lines, logging),
    ];
    let reported: Vec<String> = fields
        .into_iter()
        .filter(|(_, is_set, _)| *is_set)
        .map(|(field, _, effect)| format!("{field}: {effect}"))
        .collect();
    (!reported.is_empty()).then(|| DesiredCondition {
        type_: conditions::IGNORED_FIELD,
        status: true,
        reason: ConditionReason::NoEffect,
        message: format!("the VM has fields without effect: {}", reported.join("; ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::vm::fixtures::vm;
    use serde_json::json;

    #[test]
    fn only_fields_without_effect_are_reported() {
        let mut spec = vm(json!({})).spec;
        assert_eq!(ignored(&spec), None);
        spec.runner_template.update = false;
        spec.logging_properties = Some(".level=FINE".to_owned());
        assert!(
            !ignored(&spec)
                .unwrap()
                .message
                .contains("spec.loggingProperties")
        );
        spec.logging_properties = Some("handlers=java.util.logging.ConsoleHandler".to_owned());
        let message = ignored(&spec).unwrap().message;
        assert!(
            message.contains("spec.runnerTemplate.update")
                && message.contains("spec.loggingProperties"),
            "{message}"
        );
        assert!(!message.contains("spec.runnerTemplate.source"), "{message}");
    }
}
