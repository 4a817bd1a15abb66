//! The API server in memory behaves like a real one: both get the same calls in the same order. Status code, body and
//! events are equal except for UIDs, versions, times, addresses and the differences that a message appends in Go's
//! notation.

use http::Request;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::time::Duration;

const NAMESPACE: &str = "conformance";
const CRD: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/crds/vms.vmoperator.jdrupes.org.yaml"
);

/// Method with the kind of patch, resource with name and parameters, body. `UID(path)` and `VERSION(path)` stand for
/// those of the object at the path. `CONTINUE(path)` stands for the token of the next page of the list at the path.
type Call = (&'static str, &'static str, &'static str);

const CONFIG_MAPS: &[Call] = &[
    (
        "POST",
        "configmaps?fieldManager=m",
        r#"{"metadata":{"name":"c","labels":{"l":"1"}},"data":{"a":"1"}}"#,
    ),
    ("POST", "configmaps", r#"{"metadata":{"name":"c"}}"#),
    ("POST", "configmaps", r#"{"metadata":{}}"#),
    ("GET", "configmaps/c", ""),
    ("GET", "configmaps/none", ""),
    (
        "MERGE",
        "configmaps/c?fieldManager=n",
        r#"{"data":{"a":"2","b":"1"}}"#,
    ),
    (
        "MERGE",
        "configmaps/c?fieldManager=n",
        r#"{"data":{"a":"2"}}"#,
    ),
    (
        "MERGE",
        "configmaps/c?fieldManager=n",
        r#"{"metadata":{"resourceVersion":"1"},"data":{"a":"3"}}"#,
    ),
    (
        "MERGE",
        "configmaps/c?fieldManager=n",
        r#"{"metadata":{"uid":"1"},"data":{"a":"3"}}"#,
    ),
    (
        "MERGE",
        "configmaps/none?fieldManager=n",
        r#"{"data":{"a":"3"}}"#,
    ),
    (
        "APPLY",
        "configmaps/c?fieldManager=o",
        r#"{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"9"}}"#,
    ),
    (
        "APPLY",
        "configmaps/c?fieldManager=o&force=true",
        r#"{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"9","z":"1"}}"#,
    ),
    (
        "APPLY",
        "configmaps/c?fieldManager=o&force=true",
        r#"{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"9","z":"1"}}"#,
    ),
    (
        "APPLY",
        "configmaps/c?fieldManager=o&force=true",
        r#"{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"9"}}"#,
    ),
    (
        "APPLY",
        "configmaps/new?fieldManager=o",
        r#"{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"9"}}"#,
    ),
    (
        "APPLY",
        "configmaps/new?fieldManager=o",
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"new","labels":{"l":"1"}},"data":{"a":"9"}}"#,
    ),
    (
        "APPLY",
        "configmaps/other?fieldManager=o",
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"uid":"u"},"data":{"a":"9"}}"#,
    ),
    (
        "STRATEGIC",
        "configmaps/c?fieldManager=n",
        r#"{"metadata":{"labels":{"l":null,"k":"2"}},"data":{"y":"1"}}"#,
    ),
    (
        "PUT",
        "configmaps/c?fieldManager=p",
        r#"{"metadata":{"name":"c","resourceVersion":"1"},"data":{"a":"5"}}"#,
    ),
    (
        "PUT",
        "configmaps/c?fieldManager=p",
        r#"{"metadata":{"name":"c","uid":"1"},"data":{"a":"5"}}"#,
    ),
    (
        "PUT",
        "configmaps/c?fieldManager=p",
        r#"{"metadata":{"name":"c"},"data":{"a":"5"}}"#,
    ),
    ("GET", "configmaps?labelSelector=l%3D1", ""),
    ("GET", "configmaps?fieldSelector=metadata.name%3Dc", ""),
    ("GET", "configmaps?limit=1", ""),
    (
        "DELETE",
        "configmaps/c",
        r#"{"preconditions":{"uid":"other"}}"#,
    ),
    (
        "DELETE",
        "configmaps/c",
        r#"{"preconditions":{"uid":"UID(configmaps/c)"}}"#,
    ),
    ("DELETE", "configmaps/c", ""),
];

const POD: &str = r#"{"metadata":{"name":"p","labels":{"l":"1"}},"spec":{"containers":[{"name":"c","image":"i:1",
    "resources":{"requests":{"cpu":"1","memory":"1Gi"}},"ports":[{"containerPort":5900}],
    "env":[{"name":"N","valueFrom":{"fieldRef":{"fieldPath":"spec.nodeName"}}}],
    "volumeMounts":[{"name":"v","mountPath":"/v"}]}],
    "volumes":[{"name":"v","configMap":{"name":"c"}}],"restartPolicy":"Never","serviceAccountName":"s"}}"#;

const PODS: &[Call] = &[
    ("POST", "pods?fieldManager=m", POD),
    (
        "STRATEGIC",
        "pods/p?fieldManager=m",
        r#"{"spec":{"containers":[{"name":"c","image":"i:2"}]}}"#,
    ),
    (
        "MERGE",
        "pods/p?fieldManager=m",
        r#"{"spec":{"nodeName":"x"}}"#,
    ),
    (
        "MERGE",
        "pods/p?fieldManager=m",
        r#"{"metadata":{"uid":"UID(pods/p)","annotations":{"a":"1"}}}"#,
    ),
    (
        "POST",
        "pods/p/binding",
        r#"{"metadata":{"name":"p","uid":"other"},"target":{"kind":"Node","name":"node1"}}"#,
    ),
    (
        "POST",
        "pods/p/binding",
        r#"{"metadata":{"name":"p"},"target":{"kind":"Node","name":"node1"}}"#,
    ),
    (
        "POST",
        "pods/p/binding",
        r#"{"metadata":{"name":"p"},"target":{"kind":"Node","name":"node2"}}"#,
    ),
    ("GET", "pods/p", ""),
    (
        "STRATEGIC",
        "pods/p/resize?fieldManager=m",
        r#"{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"2"}}}]}}"#,
    ),
    (
        "MERGE",
        "pods/p/status?fieldManager=k",
        r#"{"status":{"phase":"Running","containerStatuses":[{"name":"c","image":"i","imageID":"i","ready":true,"restartCount":0,"state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}}}]}}"#,
    ),
    (
        "MERGE",
        "pods/p/status?fieldManager=k",
        r#"{"metadata":{"uid":"other"},"status":{"phase":"Failed"}}"#,
    ),
    ("DELETE", "pods/p", r#"{"gracePeriodSeconds":20}"#),
    ("DELETE", "pods/p", r#"{"gracePeriodSeconds":25}"#),
    ("DELETE", "pods/p", r#"{"gracePeriodSeconds":10}"#),
    ("GET", "pods/p", ""),
    (
        "DELETE",
        "pods/p",
        r#"{"gracePeriodSeconds":0,"preconditions":{"uid":"UID(pods/p)"}}"#,
    ),
    ("GET", "pods/p", ""),
    (
        "POST",
        "pods?fieldManager=m",
        r#"{"metadata":{"name":"q"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#,
    ),
    ("DELETE", "pods/q", ""),
];

const OTHERS: &[Call] = &[
    (
        "POST",
        "persistentvolumeclaims?fieldManager=m",
        r#"{"metadata":{"name":"d"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}"#,
    ),
    (
        "MERGE",
        "persistentvolumeclaims/d?fieldManager=m",
        r#"{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}"#,
    ),
    (
        "MERGE",
        "persistentvolumeclaims/d/status?fieldManager=k",
        r#"{"status":{"phase":"Bound","capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"]}}"#,
    ),
    (
        "MERGE",
        "persistentvolumeclaims/d?fieldManager=m",
        r#"{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}"#,
    ),
    ("DELETE", "persistentvolumeclaims/d", ""),
    ("DELETE", "persistentvolumeclaims/d", ""),
    (
        "MERGE",
        "persistentvolumeclaims/d?fieldManager=k",
        r#"{"metadata":{"finalizers":null}}"#,
    ),
    ("GET", "persistentvolumeclaims/d", ""),
    (
        "POST",
        "secrets?fieldManager=m",
        r#"{"metadata":{"name":"s"},"stringData":{"a":"x"}}"#,
    ),
    (
        "MERGE",
        "secrets/s?fieldManager=n",
        r#"{"stringData":{"a":"y"}}"#,
    ),
    ("DELETE", "secrets/s", ""),
    (
        "POST",
        "services?fieldManager=m",
        r#"{"metadata":{"name":"s"},"spec":{"type":"LoadBalancer","selector":{"a":"b"},"ports":[{"name":"x","port":5900}]}}"#,
    ),
    (
        "MERGE",
        "services/s?fieldManager=m",
        r#"{"spec":{"selector":{"a":"c"}}}"#,
    ),
    ("DELETE", "services/s", ""),
];

const CUSTOM: &[Call] = &[
    (
        "POST",
        "vms?fieldManager=m",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VirtualMachine","metadata":{"name":"vm"},"spec":{"unknown":1,"vm":{"maximumCpus":2}},"status":{"cpus":7}}"#,
    ),
    (
        "MERGE",
        "vms/vm?fieldManager=n",
        r#"{"spec":{"vm":{"state":"Running"}}}"#,
    ),
    (
        "MERGE",
        "vms/vm?fieldManager=n",
        r#"{"spec":{"vm":{"state":"Running"}}}"#,
    ),
    (
        "MERGE",
        "vms/vm?fieldManager=n",
        r#"{"metadata":{"annotations":{"a":"1"}},"status":{"cpus":7}}"#,
    ),
    (
        "APPLY",
        "vms/vm/status?fieldManager=r&force=true",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VirtualMachine","status":{"cpus":1,"ram":"1","conditions":[{"type":"Running","status":"True","reason":"R","message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#,
    ),
    (
        "APPLY",
        "vms/vm/status?fieldManager=o&force=true",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VirtualMachine","status":{"observedGeneration":2,"conditions":[{"type":"Ready","status":"True","reason":"R","message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#,
    ),
    (
        "APPLY",
        "vms/vm/status?fieldManager=o&force=true",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VirtualMachine","status":{"conditions":[]}}"#,
    ),
    ("STRATEGIC", "vms/vm?fieldManager=n", r#"{"spec":{}}"#),
    (
        "PUT",
        "vms/vm?fieldManager=n",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VirtualMachine","metadata":{"name":"vm"},"spec":{"vm":{}}}"#,
    ),
    ("GET", "vms", ""),
    (
        "DELETE",
        "vms/vm",
        r#"{"preconditions":{"uid":"UID(vms/vm)","resourceVersion":"1"}}"#,
    ),
    ("DELETE", "vms/vm", ""),
    ("GET", "vms/vm", ""),
    (
        "POST",
        "leases",
        r#"{"metadata":{"name":"l"},"spec":{"holderIdentity":"a"}}"#,
    ),
    (
        "PUT",
        "leases/l",
        r#"{"metadata":{"name":"l"},"spec":{"holderIdentity":"b"}}"#,
    ),
    (
        "PUT",
        "leases/l",
        r#"{"metadata":{"name":"l","resourceVersion":"VERSION(leases/l)"},"spec":{"holderIdentity":"b"}}"#,
    ),
];

/// Additional calls of the operator and the simulated components.
const LISTS: &[Call] = &[
    (
        "POST",
        "configmaps",
        r#"{"metadata":{"name":"d","labels":{"l":"1"}}}"#,
    ),
    (
        "POST",
        "configmaps",
        r#"{"metadata":{"name":"e","labels":{"l":"1"}}}"#,
    ),
    ("GET", "configmaps?labelSelector=l%3D1&limit=1", ""),
    (
        "GET",
        "configmaps?labelSelector=l%3D1&limit=1&continue=CONTINUE(configmaps?labelSelector=l%3D1&limit=1)",
        "",
    ),
    (
        "MERGE",
        "configmaps/e?fieldManager=m",
        r#"{"data":{"a":"1"}}"#,
    ),
    (
        "GET",
        "configmaps?labelSelector=l%3D1&limit=500&resourceVersion=VERSION(configmaps/d)&resourceVersionMatch=Exact",
        "",
    ),
    (
        "DELETE",
        "configmaps/d",
        r#"{"gracePeriodSeconds":0,"preconditions":{"uid":"UID(configmaps/d)"}}"#,
    ),
    ("GET", "configmaps", ""),
    (
        "POST",
        "secrets",
        r#"{"metadata":{"name":"t","labels":{"l":"1"}},"stringData":{"a":"x"}}"#,
    ),
    ("GET", "secrets/t", ""),
    ("GET", "secrets?labelSelector=l%3D1&limit=500", ""),
    (
        "MERGE",
        "secrets/t?fieldManager=m",
        r#"{"metadata":{"labels":{"l":"2"}}}"#,
    ),
    (
        "MERGE",
        "secrets/t?fieldManager=m",
        r#"{"metadata":{"labels":{"l":"1"}}}"#,
    ),
    (
        "GET",
        "secrets?labelSelector=l%3D1&limit=500&resourceVersion=VERSION(secrets/t)&resourceVersionMatch=Exact",
        "",
    ),
    (
        "DELETE",
        "secrets/t",
        r#"{"preconditions":{"uid":"other"}}"#,
    ),
    (
        "DELETE",
        "secrets/t",
        r#"{"gracePeriodSeconds":0,"preconditions":{"uid":"UID(secrets/t)"}}"#,
    ),
    ("GET", "secrets", ""),
    (
        "POST",
        "services",
        r#"{"metadata":{"name":"t","labels":{"l":"1"}},"spec":{"selector":{"a":"b"},"ports":[{"port":1}]}}"#,
    ),
    ("GET", "services/t", ""),
    ("GET", "services?labelSelector=l%3D1&limit=500", ""),
    (
        "GET",
        "services?labelSelector=l%3D1&limit=500&resourceVersion=VERSION(services/t)&resourceVersionMatch=Exact",
        "",
    ),
    (
        "DELETE",
        "services/t",
        r#"{"preconditions":{"uid":"other"}}"#,
    ),
    (
        "DELETE",
        "services/t",
        r#"{"gracePeriodSeconds":0,"preconditions":{"uid":"UID(services/t)"}}"#,
    ),
    ("GET", "services", ""),
    (
        "POST",
        "persistentvolumeclaims",
        r#"{"metadata":{"name":"t"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}"#,
    ),
    ("GET", "persistentvolumeclaims", ""),
    ("GET", "persistentvolumeclaims?limit=500", ""),
    (
        "GET",
        "persistentvolumeclaims?limit=500&resourceVersion=VERSION(persistentvolumeclaims/t)&resourceVersionMatch=Exact",
        "",
    ),
    (
        "POST",
        "pods",
        r#"{"metadata":{"name":"failed"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#,
    ),
    (
        "POST",
        "pods/failed/binding",
        r#"{"metadata":{"name":"failed"},"target":{"kind":"Node","name":"node1"}}"#,
    ),
    ("GET", "pods", ""),
    (
        "MERGE",
        "pods/failed/status?fieldManager=k",
        r#"{"status":{"phase":"Failed"}}"#,
    ),
    ("GET", "pods?limit=500", ""),
    (
        "GET",
        "pods?limit=500&resourceVersion=VERSION(pods/failed)&resourceVersionMatch=Exact",
        "",
    ),
    (
        "DELETE",
        "pods/failed",
        r#"{"preconditions":{"uid":"other"}}"#,
    ),
    (
        "DELETE",
        "pods/failed",
        r#"{"preconditions":{"uid":"UID(pods/failed)"}}"#,
    ),
    ("GET", "pods/failed", ""),
    (
        "POST",
        "vms",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VirtualMachine","metadata":{"name":"t"},"spec":{"vm":{}}}"#,
    ),
    ("GET", "vms/t", ""),
    ("GET", "vms?limit=500", ""),
    (
        "GET",
        "vms?limit=500&resourceVersion=VERSION(vms/t)&resourceVersionMatch=Exact",
        "",
    ),
    (
        "POST",
        "events",
        r#"{"metadata":{"name":"ev"},"eventTime":"2026-01-01T00:00:00.000000Z","action":"A","reason":"R","note":"n","type":"Warning",
            "reportingController":"a/b","reportingInstance":"a/b",
            "regarding":{"apiVersion":"v1","kind":"Pod","name":"p","namespace":"conformance","uid":"u"}}"#,
    ),
    (
        "GET",
        "events?fieldSelector=regarding.uid%3Du%2Ctype%3DWarning",
        "",
    ),
    (
        "GET",
        "events?fieldSelector=regarding.uid%3Dother%2Ctype%3DWarning",
        "",
    ),
    (
        "POST",
        "storageclasses",
        r#"{"metadata":{"name":"grows"},"provisioner":"test","allowVolumeExpansion":true}"#,
    ),
];

/// The watched resources, with all their events.
const WATCHED: &[&str] = &[
    "configmaps?",
    "configmaps?labelSelector=l%3D1&",
    "pods?",
    "persistentvolumeclaims?",
    "secrets?",
    "secrets?labelSelector=l%3D1&",
    "services?",
    "services?labelSelector=l%3D1&",
    "vms?",
    "leases?",
];

struct Side {
    name: &'static str,
    client: Client,
    first: String,
}

fn path(resource: &str) -> String {
    let group = match resource.split(['/', '?']).next() {
        Some("vms") => "apis/vmoperator.jdrupes.org/v1",
        Some("leases") => "apis/coordination.k8s.io/v1",
        Some("events") => "apis/events.k8s.io/v1",
        Some("storageclasses") => return format!("/apis/storage.k8s.io/v1/{resource}"),
        _ => "api/v1",
    };
    format!("/{group}/namespaces/{NAMESPACE}/{resource}")
}

impl Side {
    async fn send(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let (method, content) = match method {
            "MERGE" => ("PATCH", "application/merge-patch+json"),
            "APPLY" => ("PATCH", "application/apply-patch+yaml"),
            "STRATEGIC" => ("PATCH", "application/strategic-merge-patch+json"),
            other => (other, "application/json"),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", content);
        let request = request
            .header("User-Agent", "conformance/1")
            .body(Body::from(body.as_bytes().to_vec()));
        let answer = self.client.send(request.unwrap()).await.unwrap();
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(bytes.to_vec()).unwrap())
    }

    /// Replaces `UID(path)`, `VERSION(path)` and `CONTINUE(path)`.
    async fn filled(&self, body: &str) -> String {
        let mut body = body.to_owned();
        for (mark, field) in [
            ("UID(", "uid"),
            ("VERSION(", "resourceVersion"),
            ("CONTINUE(", "continue"),
        ] {
            while let Some((before, (of, after))) = body
                .split_once(mark)
                .and_then(|(b, rest)| Some((b, rest.split_once(')')?)))
            {
                let (_, text) = self.send("GET", &path(of), "").await;
                let object: Value = serde_json::from_str(&text).unwrap();
                body = format!(
                    "{before}{}{after}",
                    object["metadata"][field].as_str().unwrap()
                );
            }
        }
        body
    }

    async fn events(&self, resource: &str) -> Vec<Value> {
        let query = format!(
            "{resource}watch=true&allowWatchBookmarks=true&timeoutSeconds=2&resourceVersion={}",
            self.first
        );
        let (_, text) = self.send("GET", &path(&query), "").await;
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        // A real server sends bookmarks at any time.
        let lines = lines.filter(|event| event["type"] != "BOOKMARK");
        lines
            .map(|mut event| {
                plain(&mut event);
                event
            })
            .collect()
    }
}

/// Replaces UIDs, versions, times and addresses by placeholders.
fn plain(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::Array(managed)) = fields.get_mut("managedFields") {
                managed
                    .iter_mut()
                    .for_each(|entry| drop(entry.as_object_mut().unwrap().remove("time")));
                managed.sort_by_key(ToString::to_string);
            }
            for (name, value) in fields {
                match name.as_str() {
                    "uid" | "resourceVersion" | "creationTimestamp" | "deletionTimestamp"
                    | "lastTransitionTime" | "clusterIP" | "nodePort" | "continue" => {
                        *value = "X".into()
                    }
                    "clusterIPs" => *value = json!([]),
                    "message" => {
                        let text = value
                            .as_str()
                            .unwrap_or_default()
                            .lines()
                            .next()
                            .unwrap_or_default();
                        *value = without_identities(text).into();
                    }
                    _ => plain(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(plain),
        _ => {}
    }
}

fn without_identities(text: &str) -> String {
    let is_uid =
        |word: &str| word.len() == 36 && word.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let words = text.split_inclusive([' ', ',', '(', ')']);
    let hidden = |word: &str| match is_uid(word.trim_end_matches([' ', ',', '(', ')']))
        || word.starts_with(|c: char| c.is_ascii_digit())
    {
        true => "X ".to_owned(),
        false => word.to_owned(),
    };
    words.map(hidden).collect()
}

fn differ(path: &str, real: &Value, memory: &Value, lines: &mut Vec<String>) {
    match (real, memory) {
        (Value::Object(a), Value::Object(b)) => {
            let mut names: Vec<&String> = a.keys().chain(b.keys()).collect();
            names.sort();
            names.dedup();
            for name in names {
                let of = |fields: &serde_json::Map<String, Value>| {
                    fields.get(name).cloned().unwrap_or_default()
                };
                if a.contains_key(name) != b.contains_key(name) {
                    lines.push(format!("{path}.{name}: {} is {}", of(a), of(b)));
                } else {
                    differ(&format!("{path}.{name}"), &of(a), &of(b), lines);
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter()
                .zip(b)
                .enumerate()
                .for_each(|(n, (a, b))| differ(&format!("{path}[{n}]"), a, b, lines));
        }
        (a, b) if a != b => lines.push(format!("{path}: {a} is {b}")),
        _ => {}
    }
}

fn difference(what: &str, real: &Value, memory: &Value) -> Option<String> {
    let mut lines = Vec::new();
    differ("", real, memory, &mut lines);
    (!lines.is_empty()).then(|| format!("{what}\n    {}", lines.join("\n    ")))
}

#[tokio::test]
async fn the_server_in_memory_answers_as_a_real_one() {
    let crd = std::fs::read_to_string(CRD).unwrap();
    let (server, server_in_memory) = (
        support::real::Server::start(),
        support::memory::Server::new(1).without_latency(),
    );
    let real = server.client().await;
    let definition: Value = serde_saphyr::from_str(&crd).unwrap();
    server_in_memory.install_crd(&crd);
    let mut sides = [
        ("real", real),
        ("memory", server_in_memory.client(NAMESPACE)),
    ]
    .map(|(name, client)| Side {
        name,
        client,
        first: String::new(),
    });
    let namespace = json!({"metadata": {"name": NAMESPACE}}).to_string();
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(
        sides[0]
            .send("POST", definitions, &definition.to_string())
            .await
            .0,
        201
    );
    for side in &mut sides {
        assert_eq!(
            side.send("POST", "/api/v1/namespaces", &namespace).await.0,
            201,
            "{}",
            side.name
        );
        for _ in 0..1000 {
            let (code, text) = side.send("GET", &path("vms"), "").await;
            if code == 200 {
                let list: Value = serde_json::from_str(&text).unwrap();
                side.first = list["metadata"]["resourceVersion"]
                    .as_str()
                    .unwrap()
                    .to_owned();
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(
            !side.first.is_empty(),
            "{}: the definition is not established",
            side.name
        );
    }
    let mut found = Vec::new();
    for (method, resource, body) in [CONFIG_MAPS, PODS, OTHERS, CUSTOM, LISTS]
        .into_iter()
        .flatten()
    {
        let mut answers = Vec::new();
        for side in &sides {
            let (resource, body) = (side.filled(resource).await, side.filled(body).await);
            let (code, text) = side.send(method, &path(&resource), &body).await;
            let mut answer = json!({"answer": code, "body": serde_json::from_str::<Value>(&text).unwrap_or_default()});
            plain(&mut answer);
            answers.push(answer);
        }
        found.extend(difference(
            &format!("{method} {resource} {body:.100}"),
            &answers[0],
            &answers[1],
        ));
    }
    let [real, memory] = &sides;
    let watches = WATCHED
        .iter()
        .map(|resource| futures::future::join(real.events(resource), memory.events(resource)));
    for (resource, (real, memory)) in WATCHED.iter().zip(futures::future::join_all(watches).await) {
        let types = |events: &[Value]| {
            events
                .iter()
                .map(|e| json!([e["type"], e["object"]["metadata"]["name"]]))
                .collect::<Vec<_>>()
        };
        let events = difference(
            &format!("events of {resource}"),
            &types(&real).into(),
            &types(&memory).into(),
        );
        found.extend(events.or_else(|| {
            difference(
                &format!("objects of events of {resource}"),
                &real.into(),
                &memory.into(),
            )
        }));
    }
    assert_eq!(server_in_memory.unknown_calls(), [""; 0]);
    let seen = server_in_memory.calls_seen();
    let missing: Vec<_> = support::memory::COMPARED
        .lines()
        .filter(|call| !seen.contains_key(*call))
        .collect();
    assert_eq!(
        missing, [""; 0],
        "kinds of calls in compared.txt that are not made here"
    );
    assert!(
        found.is_empty(),
        "{} differences, real is memory:\n{}",
        found.len(),
        found.join("\n")
    );
}
