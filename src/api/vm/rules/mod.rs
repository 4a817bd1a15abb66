//! Validation rules in the schema: the API server rejects an object with a mistake when a user writes it.
//!
//! [`add_to`] adds [`RULES`] and [`LIMITS`] to the schema that schemars derives from the types. All of them are in
//! `table.rs`, none at the types.
//!
//! A new rule must follow these principles:
//! - The rules admit each object that the Java VM-Operator admits and its runner can start. `docs/deviations.md` lists the
//!   exceptions.
//! - An object that was stored before a rule existed must remain editable in its other fields. For a rule about one value
//!   the API server ensures this, because it validates only changed values. The items of a list count as one value. A rule
//!   that compares fields names them in [`Rule::about`], and is evaluated only if one of them changes.
//! - Each rule has a message with the reason and the allowed values. The API server puts the field before it.
//! - The API server estimates the cost of a rule from the limits of its lists and strings. [`LIMITS`] exist for this
//!   estimate and exceed the capacity of any VM.
//! - No field is immutable. A user may delete a PVC, and the operator then creates it again from a changed template. Users
//!   may add, remove and reorder disks. Changes of firmware, UUID and topology take effect at the next start.
//!
//! `tests/api/apiserver/admission.rs` has an admitted and a rejected case for each rule.

mod table;

pub use table::{DATE, LIMITS, RULES};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, ValidationRule,
};

/// A validation rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Path in the schema; `[]` stands for the items of a list, `{}` for the values of a map.
    pub at: &'static str,
    /// Names of the compared fields; empty for a rule about one value. `metadata` stands for fields that never change.
    pub about: &'static [&'static str],
    /// CEL expression; true if the value is admitted.
    pub cel: &'static str,
    /// The reason of a rejection, and the allowed values.
    pub message: &'static str,
}

/// Upper limit of a list, a map or a string.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// Number of items of a list.
    Items(i64),
    /// Number of entries of a map.
    Entries(i64),
    /// Number of characters of a string.
    Length(i64),
}

/// A rule about one value.
const fn value(at: &'static str, cel: &'static str, message: &'static str) -> Rule {
    Rule {
        at,
        about: &[],
        cel,
        message,
    }
}

/// A rule that compares fields of one object.
const fn compare(
    at: &'static str,
    about: &'static [&'static str],
    cel: &'static str,
    message: &'static str,
) -> Rule {
    Rule {
        at,
        about,
        cel,
        message,
    }
}

impl Rule {
    /// The rule in the form of the API server.
    fn validation(&self) -> ValidationRule {
        let unchanged = match self.about {
            [] => None,
            ["metadata"] => Some("oldSelf.hasValue()".to_owned()),
            fields => {
                let same = fields
                    .iter()
                    .map(|field| format!(" && {}", unchanged_field("", field)));
                Some(format!("(oldSelf.hasValue(){})", same.collect::<String>()))
            }
        };
        ValidationRule {
            optional_old_self: unchanged.as_ref().map(|_| true),
            rule: unchanged.map_or_else(
                || self.cel.to_owned(),
                |same| format!("{same} || ({})", self.cel),
            ),
            message: Some(self.message.to_owned()),
            ..ValidationRule::default()
        }
    }
}

/// CEL expression that is true if an update leaves the field at `path` below `parent` unchanged.
fn unchanged_field(parent: &str, path: &str) -> String {
    let (field, rest) = path
        .split_once('.')
        .map_or((path, None), |(field, rest)| (field, Some(rest)));
    let (old, new) = (
        format!("oldSelf.value(){parent}.{field}"),
        format!("self{parent}.{field}"),
    );
    let same = match rest {
        Some(rest) => unchanged_field(&format!("{parent}.{field}"), rest),
        None => format!("{old} == {new}"),
    };
    format!("has({old}) == has({new}) && (!has({new}) || {same})")
}

/// Adds rules and limits to the schema. Returns the paths that the schema does not have.
pub fn add_to(root: &mut JSONSchemaProps) -> Vec<&'static str> {
    let mut missing = Vec::new();
    for rule in RULES {
        match at(root, rule.at) {
            Some(schema) => {
                schema
                    .x_kubernetes_validations
                    .get_or_insert_default()
                    .push(rule.validation());
            }
            None => missing.push(rule.at),
        }
    }
    for (place, limit) in LIMITS {
        match (at(root, place), limit) {
            (Some(schema), Limit::Items(n)) => schema.max_items = Some(*n),
            (Some(schema), Limit::Entries(n)) => schema.max_properties = Some(*n),
            (Some(schema), Limit::Length(n)) => schema.max_length = Some(*n),
            (None, _) => missing.push(place),
        }
    }
    missing
}

/// The schema at a path.
fn at<'a>(root: &'a mut JSONSchemaProps, path: &str) -> Option<&'a mut JSONSchemaProps> {
    let path = path.replace("[]", ".[]").replace("{}", ".{}");
    path.split('.')
        .filter(|step| !step.is_empty())
        .try_fold(root, |schema, step| match step {
            "[]" => match schema.items.as_mut()? {
                JSONSchemaPropsOrArray::Schema(items) => Some(items.as_mut()),
                JSONSchemaPropsOrArray::Schemas(_) => None,
            },
            "{}" => match schema.additional_properties.as_mut()? {
                JSONSchemaPropsOrBool::Schema(values) => Some(values.as_mut()),
                JSONSchemaPropsOrBool::Bool(_) => None,
            },
            field => schema.properties.as_mut()?.get_mut(field),
        })
}

#[cfg(test)]
pub mod samples {
    //! Texts for tests, generated from the rules.

    use super::RULES;

    /// Texts that match the pattern of the first rule at a path.
    pub fn admitted(at: &str) -> impl proptest::strategy::Strategy<Value = String> {
        let rule = RULES.iter().find(|rule| rule.at == at).unwrap();
        let (_, pattern) = rule.cel.split_once("r'^").unwrap();
        proptest::string::string_regex(pattern.split_once("$')").unwrap().0).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::samples::admitted;
    use super::*;
    use crate::api::quantity::{Bytes, SizeError};
    use k8s_openapi::jiff::civil;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_rule_and_limit_is_at_a_path_of_the_schema() {
        let mut crd = crate::api::vm::crd();
        let schema = crd.spec.versions[0]
            .schema
            .as_mut()
            .unwrap()
            .open_api_v3_schema
            .as_mut()
            .unwrap();
        assert_eq!(add_to(schema), Vec::<&str>::new());
    }

    proptest! {
        #[test]
        fn an_admitted_size_can_be_parsed(text in admitted("spec.vm.maximumRam")) {
            let size = text.parse::<Bytes>();
            prop_assert!(matches!(size, Ok(_) | Err(SizeError::TooLarge(_))), "{:?}: {:?}", text, size);
        }

        #[test]
        fn an_admitted_date_exists(text in proptest::string::string_regex(DATE).unwrap()) {
            let parts: Vec<i16> = text.split('-').map(|part| part.parse().unwrap()).collect();
            let (month, day) = (i8::try_from(parts[1]).unwrap(), i8::try_from(parts[2]).unwrap());
            prop_assert!(civil::Date::new(parts[0], month, day).is_ok(), "{}", text);
        }
    }

    #[test]
    fn rules_are_unique_and_have_a_message() {
        let rules: BTreeSet<_> = RULES.iter().map(|rule| (rule.at, rule.cel)).collect();
        assert_eq!(rules.len(), RULES.len());
        for rule in RULES {
            assert!(
                rule.message.len() > 20 && !rule.message.contains('\n'),
                "{rule:?}"
            );
        }
    }
}
