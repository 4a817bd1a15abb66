//! (pure) Verb and resource of a request.

use http::Method;

/// Verb and resource of a request in the terms of RBAC: `patch`, `pods/status`. A request that names no resource has
/// `get`, `other`. Object names are left out, so that the number of values is bounded by the operator's roles.
pub(super) fn request_info(method: &Method, path: &str, query: &str) -> (&'static str, String) {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let rest = match parts.as_slice() {
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
        _ => &[],
    };
    let rest = match rest {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    let (resource, named) = match rest {
        [] => ("other".to_owned(), true),
        [resource] => ((*resource).to_owned(), false),
        [resource, _] => ((*resource).to_owned(), true),
        [resource, _, sub, ..] => (format!("{resource}/{sub}"), true),
    };
    let watches = query
        .split('&')
        .any(|parameter| matches!(parameter, "watch=true" | "watch=1"));
    let verb = match *method {
        Method::GET if watches => "watch",
        Method::GET if named => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if named => "delete",
        Method::DELETE => "deletecollection",
        _ => "other",
    };
    (verb, resource)
}
