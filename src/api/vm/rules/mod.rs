//! The rules of admission: what the API server refuses, so that a mistake is told to whom makes it.
//!
//! In: the schema that follows from the types. Out: the same with [`RULES`] and [`LIMITS`] in it. All of them stand
//! in `table.rs`, none at the types.
//!
//! Who writes one should know:
//! - An object that the reference admits and its runner can start is admitted. What is refused beyond that stands in
//!   `docs/deviations.md`.
//! - What the API server stored before there was a rule can still be edited elsewhere. For a rule about one value the
//!   API server sees to that: it looks at changed values only (the items of a list count as one value). A rule that
//!   compares fields names them in [`Rule::about`] and is asked where one of them changes.
//! - Each rule has a message with the reason and what is allowed; the API server puts the field before it.
//! - A rule's cost is estimated from the limits of lists and strings that it looks at; that is what [`LIMITS`] are for.
//!   They are beyond what a machine can have.
//! - Nothing is immutable. What cannot change in a claim that exists is the claim's matter: a VM's claim may be deleted
//!   and made anew, with other content of its template. Disks may come, go and change their places; firmware, UUID and
//!   topology take effect at the next start. A VM's name is the only thing that nobody can change.
//!
//! `tests/api/apiserver/admission.rs` has an accepting and a refusing case for each.

mod table;

pub use table::{LIMITS, RULES};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, ValidationRule,
};

/// A rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Where it stands: path in the schema, `[]` for the items of a list, `{}` for the values of a map.
    pub at: &'static str,
    /// Names of the fields that it compares, if it compares some; `metadata` stands for what never changes.
    pub about: &'static [&'static str],
    /// CEL; true where the value is admitted.
    pub cel: &'static str,
    /// The reason and what is allowed.
    pub message: &'static str,
}

/// Most that a list, a map or a string can have.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// Items of a list.
    Items(i64),
    /// Entries of a map.
    Entries(i64),
    /// Characters of a string.
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
    /// As the API server takes it.
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

/// CEL: true where the field of `self` at that path below `parent` is as it was.
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

/// Puts rules and limits into the schema. Gives the places that it does not have.
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

/// The schema at that path.
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
    //! Texts for tests, made from the rules.

    use super::RULES;

    /// Texts that a rule of a place admits, as far as its pattern goes.
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
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_rule_and_limit_has_its_place() {
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
        fn a_size_that_is_admitted_is_read(text in admitted("spec.vm.maximumRam")) {
            let size = text.parse::<Bytes>();
            prop_assert!(matches!(size, Ok(_) | Err(SizeError::TooLarge(_))), "{:?}: {:?}", text, size);
        }
    }

    #[test]
    fn no_rule_stands_twice_and_each_says_something() {
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
