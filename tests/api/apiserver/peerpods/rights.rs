//! The permissions in the manifests of the controller, and the requests that need them.

use crate::apiserver::world::root;
use kube::client::Body;
use serde_json::Value;
use std::collections::BTreeSet;

/// Verb, resource with its group and subresource, and the name of the object. Without a name, a permission is for all objects.
pub type Right = (String, String, Option<String>);

/// The permission that the request needs.
pub fn right(request: &http::Request<Body>) -> Right {
    let (path, query) = (
        request.uri().path(),
        request.uri().query().unwrap_or_default(),
    );
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
    let verb = match (request.method().as_str(), &name) {
        ("GET", Some(_)) => "get",
        ("GET", None) if query.contains("watch=true") => "watch",
        ("GET", None) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", _) => "delete",
        (method, _) => panic!("{method} {path}"),
    };
    let resource = [&[group, rest[0]][..], rest.get(2..).unwrap_or_default()].concat();
    (verb.to_owned(), resource.join("/"), name)
}

fn texts(value: &Value) -> Vec<&str> {
    let texts = value.as_array().into_iter().flatten();
    texts.filter_map(Value::as_str).collect()
}

/// The permissions of the controller, with those of the overlay about VirtualMachines.
pub fn granted() -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for file in [
        "peerpod/cluster-role.yaml",
        "peerpod/role.yaml",
        "overlays/peerpod-local/role.yaml",
    ] {
        let text = std::fs::read_to_string(root().join("deploy").join(file)).unwrap();
        let role: Value = serde_saphyr::from_str(&text).unwrap();
        for rule in role["rules"].as_array().unwrap() {
            let mut names: Vec<_> = texts(&rule["resourceNames"])
                .into_iter()
                .map(Some)
                .collect();
            if names.is_empty() {
                names.push(None);
            }
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    for verb in texts(&rule["verbs"]) {
                        let right = |name: &Option<&str>| {
                            let name = name.map(str::to_owned);
                            (verb.to_owned(), format!("{group}/{resource}"), name)
                        };
                        rights.extend(names.iter().map(right));
                    }
                }
            }
        }
    }
    rights
}

fn covers(granted: &Right, request: &Right) -> bool {
    let is_named = granted.2.is_none() || granted.2 == request.2;
    is_named && (&granted.0, &granted.1) == (&request.0, &request.1)
}

/// Permissions that no request has needed, and requests without a permission.
pub fn differences(granted: &BTreeSet<Right>, requests: &BTreeSet<Right>) -> Vec<String> {
    let is_used = |it: &&Right| requests.iter().any(|request| covers(it, request));
    let unused = granted.iter().filter(|it| !is_used(it));
    let is_granted = |it: &&Right| granted.iter().any(|right| covers(right, it));
    let missing = requests.iter().filter(|it| !is_granted(it));
    let unused = unused.map(|it| format!("granted and not used: {it:?}"));
    let missing = missing.map(|it| format!("requested and not granted: {it:?}"));
    unused.chain(missing).collect()
}
