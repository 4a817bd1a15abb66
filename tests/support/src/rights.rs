//! Permissions of roles, and their comparison with requests.

use http::Request;
use serde_json::Value;
use std::collections::BTreeSet;

/// Account, resource with its group and subresource, verb, name of the object. Without a name, a permission is for all objects.
pub type Right = (String, String, String, Option<String>);

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

/// The permission that a request of the account needs.
///
/// # Panics
/// The request is about no resource.
pub fn right_of<B>(account: &str, request: &Request<B>) -> Right {
    let (path, query) = (request.uri().path(), request.uri().query());
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, rest) = match parts.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => panic!("{path} has no resource"),
    };
    let rest = match rest {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    let name = rest.get(1).map(|name| (*name).to_owned());
    let is_watch = query.is_some_and(|query| query.contains("watch=true"));
    let verb = match (request.method().as_str(), &name) {
        ("GET", Some(_)) => "get",
        ("GET", None) if is_watch => "watch",
        ("GET", None) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        (method, _) => panic!("{method} {path}"),
    };
    let resource = [&rest[..1], rest.get(2..).unwrap_or_default()].concat();
    let resource = with_group(group, &resource.join("/"));
    (account.to_owned(), resource, verb.to_owned(), name)
}

/// The account, the request and its result in an entry of the audit log. `None` if it is about no resource, or about a
/// request that each account may send.
#[must_use]
pub fn audited(account: &str, entry: &Value) -> Option<(Right, bool)> {
    let object = &entry["objectRef"];
    let part = |name: &str| object[name].as_str().unwrap_or_default();
    let slash = if part("subresource").is_empty() {
        ""
    } else {
        "/"
    };
    let resource = with_group(
        part("apiGroup"),
        &format!(
            "{}{slash}{}",
            object["resource"].as_str()?,
            part("subresource")
        ),
    );
    let right = (
        account.to_owned(),
        resource,
        entry["verb"].as_str()?.to_owned(),
        object["name"].as_str().map(ToOwned::to_owned),
    );
    Some((
        right,
        entry["annotations"]["authorization.k8s.io/decision"] == "allow",
    ))
}

/// The permissions of a role.
#[must_use]
pub fn granted(account: &str, role: &Value) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().into_iter().flatten() {
        let named = texts(&rule["resourceNames"]).map(|name| Some(name.to_owned()));
        let mut names: Vec<_> = named.collect();
        if names.is_empty() {
            names.push(None);
        }
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    let resource = with_group(group, resource);
                    let right = |name: &Option<String>| {
                        let (account, resource) = (account.to_owned(), resource.clone());
                        (account, resource, verb.to_owned(), name.clone())
                    };
                    rights.extend(names.iter().map(right));
                }
            }
        }
    }
    rights
}

/// Whether the permission includes the other one.
fn covers(right: &Right, other: &Right) -> bool {
    let is_named = right.3.is_none() || right.3 == other.3;
    is_named && (&right.0, &right.1, &right.2) == (&other.0, &other.1, &other.2)
}

/// Unused permissions, and requests without a permission.
#[must_use]
pub fn complaints(
    granted: &BTreeSet<Right>,
    requested: &BTreeSet<(Right, bool)>,
    exceptions: &BTreeSet<Right>,
) -> Vec<String> {
    let is_used = |right: &Right| {
        requested
            .iter()
            .any(|(it, allowed)| *allowed && covers(right, it))
    };
    let is_exception = |right: &Right| exceptions.iter().any(|it| covers(it, right));
    let is_granted = |right: &Right| granted.iter().any(|it| covers(it, right));
    let unused = granted
        .iter()
        .filter(|right| !is_used(right) && !is_exception(right));
    let unused = unused.map(|right| format!("granted and not used: {right:?}"));
    // While a namespace is removed, its roles may be deleted before its operator.
    let rejected = requested
        .iter()
        .filter(|(right, allowed)| !allowed && !is_granted(right));
    let rejected = rejected.map(|(right, _)| format!("requested and not granted: {right:?}"));
    let beside = requested
        .iter()
        .filter(|(right, allowed)| *allowed && !is_granted(right));
    let beside = beside.map(|(right, _)| format!("used, but granted by another role: {right:?}"));
    let idle = exceptions
        .iter()
        .filter(|it| !granted.iter().any(|right| covers(it, right)));
    let idle = idle.map(|right| format!("an exception that is not granted: {right:?}"));
    unused.chain(rejected).chain(beside).chain(idle).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_too_much_and_a_right_too_few_are_seen() {
        let right = |verb: &str| {
            (
                String::from("a"),
                String::from("pods"),
                String::from(verb),
                None,
            )
        };
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
            r#"granted and not used: ("a", "pods", "list", None)"#
        );
        let role = serde_json::json!({"rules": [{"apiGroups": ["", "g"], "resources": ["pods/resize"], "verbs": ["patch"]}]});
        let granted: Vec<String> = granted("a", &role)
            .into_iter()
            .map(|(_, resource, ..)| resource)
            .collect();
        assert_eq!(granted, ["g/pods/resize", "pods/resize"]);
    }

    #[test]
    fn a_permission_with_a_name_is_for_that_object() {
        let role = serde_json::json!({"rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"], "verbs": ["get"]}]});
        let granted = granted("account", &role);
        for (path, expected) in [("secrets/a", 0), ("secrets/b", 2), ("secrets", 2)] {
            let request = Request::get(format!("/api/v1/namespaces/n/{path}"));
            let request = right_of("account", &request.body(()).unwrap());
            let complaints = complaints(&granted, &[(request, true)].into(), &BTreeSet::new());
            assert_eq!(complaints.len(), expected, "{complaints:?}");
        }
    }
}
