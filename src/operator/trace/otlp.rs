//! (pure) Traces as OpenTelemetry's protocol has them, in JSON over HTTP (opentelemetry-proto 1.x, OTLP/HTTP).
//!
//! The ids follow from the pod's UID, which is as long as a trace's id: what is told of one start by two operators, or
//! before and after the guest has booted, is one trace, and whoever knows the pod finds it.

use super::{Cause, Span, Trace};
use crate::api::hex::hex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// `SPAN_KIND_INTERNAL`.
const INTERNAL: u8 = 1;

/// The body of a request that exports these traces.
#[must_use]
pub fn request(traces: &[Trace], namespace: &str) -> Value {
    let spans: Vec<Value> = traces.iter().flat_map(spans).collect();
    let attributes = [
        attribute("service.name", "vm-operator"),
        attribute("service.version", env!("CARGO_PKG_VERSION")),
        attribute("k8s.namespace.name", namespace),
    ];
    json!({"resourceSpans": [{
        "resource": {"attributes": attributes},
        "scopeSpans": [{"scope": {"name": "vm-operator", "version": env!("CARGO_PKG_VERSION")}, "spans": spans}],
    }]})
}

fn spans(trace: &Trace) -> Vec<Value> {
    let trace_id = trace_id(&trace.pod_uid);
    let id = |name: &str| span_id(&trace.pod_uid, name);
    let root = id("start");
    let vm = attribute("k8s.vm.name", &trace.vm);
    let attributes = [vm.clone(), attribute("k8s.pod.uid", &trace.pod_uid)];
    let span = |span: &Span, parent: Option<&str>, more: Vec<Value>| {
        let mut object = json!({
            "traceId": trace_id,
            "spanId": id(span.name),
            "name": span.name,
            "kind": INTERNAL,
            "startTimeUnixNano": nanos(span.from),
            "endTimeUnixNano": nanos(span.to.max(span.from)),
            "attributes": attributes.iter().cloned().chain(more).collect::<Vec<_>>(),
        });
        if let (Some(parent), Some(fields)) = (parent, object.as_object_mut()) {
            fields.insert("parentSpanId".to_owned(), json!(parent));
        }
        object
    };
    let objects = id("objects");
    let cause = trace.cause.map(Cause::as_str);
    let whole = trace.whole().filter(|_| cause.is_some());
    let whole =
        whole.map(|whole| span(&whole, None, cause.map(|cause| attribute("cause", cause)).into_iter().collect()));
    let steps = trace.steps.iter().map(|step| span(step, Some(&root), Vec::new()));
    let parts = trace.objects.iter().map(|part| span(part, Some(&objects), Vec::new()));
    whole.into_iter().chain(steps).chain(parts).collect()
}

fn attribute(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// 64-bit numbers are texts in protobuf's JSON.
fn nanos(time: k8s_openapi::jiff::Timestamp) -> String {
    time.as_nanosecond().to_string()
}

/// 16 bytes in hexadecimal: those of the UID, or if it is none, of its hash.
fn trace_id(pod_uid: &str) -> String {
    let digits: String = pod_uid.chars().filter(|c| *c != '-').collect::<String>().to_ascii_lowercase();
    let is_id = digits.len() == 32 && digits.chars().all(|c| c.is_ascii_hexdigit()) && digits.contains(|c| c != '0');
    if is_id { digits } else { hash(pod_uid, 16) }
}

/// 8 bytes in hexadecimal.
fn span_id(pod_uid: &str, name: &str) -> String {
    hash(&format!("{pod_uid}/{name}"), 8)
}

fn hash(text: &str, bytes: usize) -> String {
    hex(Sha256::digest(text).iter().take(bytes))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, start};
    use super::*;
    use crate::api::start_times::StartTimes;
    use std::collections::BTreeSet;

    fn times() -> StartTimes {
        StartTimes { qemu: Some(7), monitor: Some(103), guest: Some(111), boot: Some(2111) }
    }

    #[test]
    fn both_parts_of_a_start_are_one_tree() {
        let running = start().running("vm", Some(times()), at(900));
        let booted = Trace::booted("vm", &running.pod_uid, times(), at(2900)).unwrap();
        let body = request(&[running, booted], "ns");
        let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
        assert!(spans.iter().all(|span| span["traceId"] == "0a0b0c0d111122223333444455556666"), "{spans:#?}");
        let ids: BTreeSet<&str> = spans.iter().map(|span| span["spanId"].as_str().unwrap()).collect();
        assert_eq!((ids.len(), spans.len()), (11, 11), "no id twice");
        assert!(ids.iter().all(|id| id.len() == 16));
        let roots: Vec<&Value> = spans.iter().filter(|span| span["parentSpanId"].is_null()).collect();
        assert_eq!((roots.len(), &roots[0]["name"]), (1, &json!("start")));
        let parents = spans.iter().filter_map(|span| span["parentSpanId"].as_str());
        assert!(parents.into_iter().all(|parent| ids.contains(parent)));
        assert_eq!(roots[0]["startTimeUnixNano"], "1767268800000000000");
        let boot = spans.iter().find(|span| span["name"] == "boot").unwrap();
        assert_eq!(boot["endTimeUnixNano"], "1767268802900000000");
    }

    #[test]
    fn a_uid_that_is_none_still_names_a_trace() {
        for uid in ["", "uid-1", "00000000-0000-0000-0000-000000000000"] {
            let id = trace_id(uid);
            assert_eq!(id.len(), 32, "{uid}");
            assert!(id.contains(|c| c != '0'), "{uid}");
        }
    }
}
