//! (client) The operator's way to the API server: every request is counted, and who does not lead writes nothing.

use super::leader::Leadership;
use super::metrics::Metrics;
use crate::connect;
use http::{Method, Request};
use kube::client::Body;
use kube::{Client, Config};
use std::sync::Arc;
use tower::filter::FilterLayer;

/// A write of an operator that does not lead; it was not sent.
#[derive(Debug, thiserror::Error)]
#[error("this operator does not lead (any more)")]
pub struct NotLeading;

/// A client whose requests are counted, and whose writes are sent only while `leadership` says that this operator
/// leads. The look at the clock is the last thing before a request is sent: a process that was stopped for a while
/// writes nothing when it goes on.
///
/// # Errors
/// If the configuration is of no use.
pub fn client(config: Config, metrics: Arc<Metrics>, leadership: Leadership) -> kube::Result<Client> {
    let layer = FilterLayer::new(move |request: Request<Body>| {
        if is_write(request.method()) && !leadership.leads() {
            return Err(NotLeading);
        }
        count(&request, &metrics);
        Ok(request)
    });
    Ok(connect::builder(config)?.with_layer(&layer).build())
}

/// A client whose requests are counted.
///
/// # Errors
/// If the configuration is of no use.
pub fn unguarded(config: Config, metrics: Arc<Metrics>) -> kube::Result<Client> {
    client(config, metrics, Leadership::alone())
}

fn is_write(method: &Method) -> bool {
    method != Method::GET && method != Method::HEAD
}

fn count(request: &Request<Body>, metrics: &Metrics) {
    let (verb, resource) = what(request.method(), request.uri().path(), request.uri().query().unwrap_or_default());
    metrics.requested(verb, &resource);
}

/// Verb and resource of a request, as RBAC names them: `patch`, `vms/status`. `get`, `other` where it is about no
/// resource. There are as many as there are in the operator's roles: no name of an object is among them.
fn what(method: &Method, path: &str, query: &str) -> (&'static str, String) {
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
    let watches = query.split('&').any(|parameter| matches!(parameter, "watch=true" | "watch=1"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_verbs_and_resources_of_rbac() {
        let ns = "/api/v1/namespaces/a/pods";
        let vms = "/apis/vmoperator.jdrupes.org/v1/namespaces/a/vms";
        for (method, path, query, verb, resource) in [
            (Method::GET, ns.to_owned(), "limit=50", "list", "pods"),
            (Method::GET, ns.to_owned(), "watch=true&sendInitialEvents=true", "watch", "pods"),
            (Method::GET, format!("{ns}/vm"), "", "get", "pods"),
            (Method::POST, ns.to_owned(), "fieldManager=a", "create", "pods"),
            (Method::PATCH, format!("{ns}/vm/resize"), "", "patch", "pods/resize"),
            (Method::DELETE, format!("{ns}/vm"), "", "delete", "pods"),
            (Method::PATCH, format!("{vms}/vm/status"), "", "patch", "vms/status"),
            (Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/a/leases/b".to_owned(), "", "update", "leases"),
            (Method::GET, "/api/v1/namespaces/a".to_owned(), "", "get", "namespaces"),
            (Method::GET, "/version".to_owned(), "", "get", "other"),
        ] {
            assert_eq!(what(&method, &path, query), (verb, resource.to_owned()), "{method} {path}");
        }
    }
}
