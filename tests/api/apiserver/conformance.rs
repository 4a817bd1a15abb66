//! The API server in memory behaves like a real one: both get the same calls in the same order. Status code, body and
//! events are equal except for UIDs, versions, times, addresses and the differences that a message appends in Go's
//! notation.

mod calls;
mod peerpods;
mod pools;
mod sip;

use calls::{CONFIG_MAPS, CUSTOM, LISTS, OTHERS, PODS, REPORTS, WATCHED};
use http::Request;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use peerpods::PEERPODS;
use pools::POOLS;
use serde_json::{Value, json};
use sip::SIP_CLUSTERS;
use std::time::Duration;
use support::install;

const NAMESPACE: &str = "conformance";

struct Candidate {
    name: &'static str,
    client: Client,
    first: String,
}

fn path(resource: &str) -> String {
    let group = match resource.split(['/', '?']).next() {
        Some("vms" | "vmreports" | "vmpools" | "vmassignments") => "apis/vmoperator.jdrupes.org/v1",
        Some("peerpods") => "apis/confidentialcontainers.org/v1alpha1",
        Some("sipclusters") => "apis/airship.airshipit.org/v1",
        Some("baremetalhosts") => "apis/metal3.io/v1alpha1",
        Some("namespaces") => return format!("/api/v1/{resource}"),
        Some("deployments") => "apis/apps/v1",
        Some("poddisruptionbudgets") => "apis/policy/v1",
        Some("leases") => "apis/coordination.k8s.io/v1",
        Some("events") => "apis/events.k8s.io/v1",
        Some("storageclasses") => return format!("/apis/storage.k8s.io/v1/{resource}"),
        _ => "api/v1",
    };
    format!("/{group}/namespaces/{NAMESPACE}/{resource}")
}

impl Candidate {
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
    let (real_server, memory_server) = (
        support::real::Server::start(),
        support::memory::Server::new(1).without_latency(),
    );
    let real = real_server.client().await;
    install::install(&real).await;
    for definition in install::definitions() {
        memory_server.install_crd(&definition);
    }
    let mut servers =
        [("real", real), ("memory", memory_server.client(NAMESPACE))].map(|(name, client)| {
            Candidate {
                name,
                client,
                first: String::new(),
            }
        });
    let namespace = json!({"metadata": {"name": NAMESPACE}}).to_string();
    for server in &mut servers {
        assert_eq!(
            server
                .send("POST", "/api/v1/namespaces", &namespace)
                .await
                .0,
            201,
            "{}",
            server.name
        );
        for _ in 0..1000 {
            let (code, text) = server.send("GET", &path("vms"), "").await;
            if code == 200 {
                let list: Value = serde_json::from_str(&text).unwrap();
                server.first = list["metadata"]["resourceVersion"]
                    .as_str()
                    .unwrap()
                    .to_owned();
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(
            !server.first.is_empty(),
            "{}: the definition is not established",
            server.name
        );
    }
    let mut found = Vec::new();
    for (method, resource, body) in [
        CONFIG_MAPS,
        PODS,
        OTHERS,
        CUSTOM,
        REPORTS,
        POOLS,
        PEERPODS,
        SIP_CLUSTERS,
        LISTS,
    ]
    .into_iter()
    .flatten()
    {
        let mut answers = Vec::new();
        for server in &servers {
            let (resource, body) = (server.filled(resource).await, server.filled(body).await);
            let (code, text) = server.send(method, &path(&resource), &body).await;
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
    let [real, memory] = &servers;
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
    assert_eq!(memory_server.unknown_calls(), [""; 0]);
    let seen = memory_server.calls_seen();
    let missing: Vec<_> = support::memory::COMPARED
        .lines()
        .filter(|call| !seen.contains_key(*call))
        .collect();
    assert_eq!(
        missing, [""; 0],
        "kinds of calls in compared.txt that this test does not make"
    );
    assert!(
        found.is_empty(),
        "{} differences, real is memory:\n{}",
        found.len(),
        found.join("\n")
    );
}
