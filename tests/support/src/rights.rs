//! Permissions of roles, and their comparison with requests.

use serde_json::Value;
use std::collections::BTreeSet;

/// Account, resource with its group and subresource, verb.
pub type Right = (String, String, String);

/// The resource with its group, as in [`Right`].
#[must_use]
pub fn with_group(group: &str, resource: &str) -> String {
    if group.is_empty() {
        resource.to_owned()
    } else {
        format!("{group}/{resource}")
    }
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

/// The permissions of a role.
#[must_use]
pub fn granted(account: &str, role: &Value) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().into_iter().flatten() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    rights.insert((
                        account.to_owned(),
                        with_group(group, resource),
                        verb.to_owned(),
                    ));
                }
            }
        }
    }
    rights
}

/// Unused permissions, and requests without a permission.
#[must_use]
pub fn complaints(
    granted: &BTreeSet<Right>,
    requested: &BTreeSet<(Right, bool)>,
    exceptions: &BTreeSet<Right>,
) -> Vec<String> {
    let used = |right: &Right| requested.contains(&(right.clone(), true));
    let unused = granted
        .iter()
        .filter(|right| !used(right) && !exceptions.contains(right));
    let unused = unused.map(|right| format!("granted and not used: {right:?}"));
    // While a namespace is removed, its roles may be deleted before its operator.
    let rejected = requested
        .iter()
        .filter(|(right, allowed)| !allowed && !granted.contains(right));
    let rejected = rejected.map(|(right, _)| format!("requested and not granted: {right:?}"));
    let beside = requested
        .iter()
        .filter(|(right, allowed)| *allowed && !granted.contains(right));
    let beside = beside.map(|(right, _)| format!("used, but granted by another role: {right:?}"));
    let idle = exceptions.iter().filter(|right| !granted.contains(right));
    let idle = idle.map(|right| format!("an exception that is not granted: {right:?}"));
    unused.chain(rejected).chain(beside).chain(idle).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_too_much_and_a_right_too_few_are_seen() {
        let right = |verb: &str| (String::from("a"), String::from("pods"), String::from(verb));
        let rights = |verbs: &[&str]| {
            verbs
                .iter()
                .map(|verb| right(verb))
                .collect::<BTreeSet<_>>()
        };
        let requested: BTreeSet<_> = [
            (right("get"), true),
            (right("delete"), false),
            (right("list"), false),
        ]
        .into();
        assert_eq!(
            complaints(&rights(&["get", "list"]), &requested, &rights(&["list"])).len(),
            1,
            "delete is rejected"
        );
        let complaints = complaints(
            &rights(&["get", "list", "watch"]),
            &requested,
            &rights(&["watch"]),
        );
        assert_eq!(
            complaints[0],
            r#"granted and not used: ("a", "pods", "list")"#
        );
        let role = serde_json::json!({"rules": [{"apiGroups": ["", "g"], "resources": ["pods/resize"], "verbs": ["patch"]}]});
        let granted: Vec<String> = granted("a", &role)
            .into_iter()
            .map(|(_, resource, _)| resource)
            .collect();
        assert_eq!(granted, ["g/pods/resize", "pods/resize"]);
    }
}
