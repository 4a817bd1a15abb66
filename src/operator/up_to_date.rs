//! (pure) Lists as events that are not older than the moment when they were asked for.
//!
//! `kube`'s watcher asks for them with `resourceVersion=0`, for which any state will do that the API server has: of several, one
//! may be behind by minutes. Without a version it waits until it has all that etcd had when it was asked, as it does for
//! Kubernetes' own controllers, but for some seconds only: see `streams`. (Lists in pages are of now, too.)

use http::uri::PathAndQuery;
use http::{Request, Uri};

/// The same request; such a list as of now.
pub(super) fn up_to_date<B>(mut request: Request<B>) -> Request<B> {
    if let Some(uri) = of_now(request.uri()) {
        *request.uri_mut() = uri;
    }
    request
}

/// The same list as of now, if it is a list as events of whenever.
fn of_now(uri: &Uri) -> Option<Uri> {
    let query = uri.query()?;
    if !query.split('&').any(|part| part == "sendInitialEvents=true") {
        return None;
    }
    let kept = query.split('&').filter(|part| *part != "resourceVersion=0").collect::<Vec<_>>().join("&");
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(format!("{}?{kept}", uri.path())).ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_as_events_is_asked_for_as_of_now_and_nothing_else_is_changed() {
        let with = |query: &str| format!("https://host/api/v1/namespaces/ns/pods?{query}");
        let of_now = |query: &str| of_now(&with(query).parse().unwrap()).map(|uri| uri.to_string());
        let list = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        assert_eq!(of_now(&format!("{list}&resourceVersion=0")), Some(with(list)));
        assert_eq!(of_now(&format!("{list}&resourceVersion=07")), Some(with(&format!("{list}&resourceVersion=07"))));
        for other in ["watch=true&resourceVersion=0", "limit=500", "watch=true&resourceVersion=7"] {
            assert_eq!(of_now(other), None, "{other}");
        }
        assert_eq!(super::of_now(&"/api/v1/namespaces/ns/pods/vm".parse().unwrap()), None);
    }
}
