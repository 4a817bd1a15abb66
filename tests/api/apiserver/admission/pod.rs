//! Rules of the pod and of fields outside `spec.vm`.

use super::{Case, case};
use serde_json::json;

pub fn cases() -> Vec<Case> {
    let key = |at, message| {
        case(
            at,
            message,
            json!(["user-data", "a.B_c"]),
            json!(["", "a/b", "a b"]),
        )
    };
    let name = |at| {
        case(
            at,
            "an object name",
            json!(["seed", "a.b-c"]),
            json!(["", "Seed", "-a", "a_b"]),
        )
    };
    let image = |at, message| {
        case(
            at,
            message,
            json!(["registry.example.org:5000/a/b"]),
            json!(["", "a b", "a\n"]),
        )
    };
    let label = |at| {
        case(
            at,
            "a label value",
            json!(["", "fast", "A.b_c-d"]),
            json!(["-fast", "a/b", "a b"]),
        )
    };
    let amount = |at| {
        case(
            at,
            "Kubernetes quantity",
            json!(["500m", 2, "8Gi", "0"]),
            json!(["8 GiB", -1, "", "many"]),
        )
    };
    let bounded = |at| {
        case(
            at,
            "at most 4Pi",
            json!(["4Pi", "12Ti"]),
            json!(["1e99", "1000000000000000000Gi", "5Pi"]),
        )
    };
    vec![
        case(
            "spec.image",
            "either source, or repository and path",
            json!([{"source": "a"}, {"repository": "a", "path": "b"}, {"source": "a", "repository": "b"}]),
            json!([{}, {"version": "1"}, {"repository": "a"}, {"source": "a", "repository": "b", "path": "c"}]),
        ),
        image("spec.image.source", "an image reference"),
        image("spec.image.repository", "a registry with a project"),
        image("spec.image.path", "an image path"),
        case(
            "spec.image.version",
            "an image tag",
            json!(["7", "v1.2_3-rc"]),
            json!(["", "a b", "-1", "sha256:1"]),
        ),
        case(
            "spec.resources",
            "exceeds the limit",
            json!([{}, {"requests": {"cpu": 2, "memory": "1G"}, "limits": {"cpu": "2000m"}}]),
            json!([{"requests": {"cpu": 3}, "limits": {"cpu": "2000m"}}]),
        ),
        amount("spec.resources.limits{}"),
        amount("spec.resources.requests{}"),
        bounded("spec.resources.limits{}"),
        bounded("spec.resources.requests{}"),
        case(
            "spec.nodeName",
            "a node name",
            json!(["", "node-1.example.org"]),
            json!(["Node", "-a", "a_b"]),
        ),
        label("spec.nodeSelector{}"),
        label("spec.podLabels{}"),
        case(
            "spec.metricsPort",
            "1024 to 65535",
            json!([1024, 9180, 65535]),
            json!([-1, 0, 80, 65536]),
        ),
        case(
            "spec.consolePort",
            "1024 to 65535",
            json!([1024, 9181, 65535]),
            json!([-1, 0, 80, 65536]),
        ),
        label("spec.loadBalancerService.labels{}"),
        case(
            "spec.cloudInit",
            "both userData and userDataFrom",
            json!([{"userData": {}}, {"userDataFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]),
            json!([{"userData": {}, "userDataFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]),
        ),
        case(
            "spec.cloudInit",
            "both networkConfig and networkConfigFrom",
            json!([{"networkConfig": {}}, {"networkConfigFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]),
            json!([{"networkConfig": {}, "networkConfigFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]),
        ),
        name("spec.cloudInit.userDataFrom.secretKeyRef.name"),
        key(
            "spec.cloudInit.userDataFrom.secretKeyRef.key",
            "a key of a Secret",
        ),
        name("spec.cloudInit.networkConfigFrom.secretKeyRef.name"),
        key(
            "spec.cloudInit.networkConfigFrom.secretKeyRef.key",
            "a key of a Secret",
        ),
        case(
            "spec.permissions[]",
            "either user or role",
            json!([{"user": "a"}, {"role": "b"}]),
            json!([{}, {"user": "a", "role": "b"}]),
        ),
    ]
}
