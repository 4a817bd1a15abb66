//! The calls about PeerPods, and the deletion of an object in the foreground.

use super::calls::Call;

pub const PEERPODS: &[Call] = &[
    (
        "POST",
        "namespaces",
        r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"second"}}"#,
    ),
    ("GET", "namespaces/second", ""),
    ("GET", "namespaces/none", ""),
    (
        "POST",
        "peerpods",
        r#"{"apiVersion":"confidentialcontainers.org/v1alpha1","kind":"PeerPod","metadata":{"name":"a","finalizers":["peer.pod/finalizer"]},"spec":{"cloudProvider":"virtualmachine","instanceID":"n/v/u"}}"#,
    ),
    (
        "POST",
        "peerpods",
        r#"{"apiVersion":"confidentialcontainers.org/v1alpha1","kind":"PeerPod","metadata":{"name":"b"},"spec":{"cloudProvider":"aws","instanceID":""}}"#,
    ),
    (
        "MERGE",
        "peerpods/a/status?fieldManager=m",
        r#"{"metadata":{"resourceVersion":"VERSION(peerpods/a)"},"status":{"conditions":[{"type":"Ready","status":"False","reason":"R","message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#,
    ),
    (
        "MERGE",
        "peerpods/a/status?fieldManager=m",
        r#"{"metadata":{"resourceVersion":"1"},"status":{"conditions":[]}}"#,
    ),
    (
        "MERGE",
        "peerpods/a?fieldManager=m",
        r#"{"metadata":{"annotations":{"a":"1"}}}"#,
    ),
    (
        "DELETE",
        "peerpods/a",
        r#"{"preconditions":{"uid":"UID(peerpods/a)"}}"#,
    ),
    (
        "MERGE",
        "peerpods/a?fieldManager=m",
        r#"{"metadata":{"resourceVersion":"1","finalizers":[]}}"#,
    ),
    (
        "MERGE",
        "peerpods/a?fieldManager=m",
        r#"{"metadata":{"resourceVersion":"VERSION(peerpods/a)","finalizers":[]}}"#,
    ),
    ("GET", "peerpods", ""),
    ("GET", "peerpods?limit=500", ""),
    (
        "GET",
        "peerpods?limit=500&resourceVersion=VERSION(peerpods/b)&resourceVersionMatch=Exact",
        "",
    ),
    (
        "DELETE",
        "peerpods/none",
        r#"{"gracePeriodSeconds":0,"preconditions":{"uid":"another"}}"#,
    ),
    (
        "DELETE",
        "peerpods/b",
        r#"{"preconditions":{"uid":"another"},"propagationPolicy":"Background"}"#,
    ),
    (
        "DELETE",
        "peerpods/b",
        r#"{"preconditions":{"uid":"UID(peerpods/b)"},"propagationPolicy":"Background"}"#,
    ),
    ("GET", "deployments/none", ""),
    (
        "POST",
        "configmaps",
        r#"{"metadata":{"name":"peer-pods-cm"},"data":{"a":"1","b":"1"}}"#,
    ),
    (
        "MERGE",
        "configmaps/peer-pods-cm?fieldManager=m",
        r#"{"data":{"a":"2"}}"#,
    ),
    ("GET", "configmaps/peer-pods-cm", ""),
    ("DELETE", "peerpods/b", ""),
    (
        "POST",
        "vms",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VirtualMachine","metadata":{"name":"f"},"spec":{"vm":{"state":"Stopped","maximumRam":"1Gi","networks":[]}}}"#,
    ),
    (
        "DELETE",
        "vms/f",
        r#"{"preconditions":{"uid":"another"},"propagationPolicy":"Foreground"}"#,
    ),
    (
        "DELETE",
        "vms/f",
        r#"{"preconditions":{"uid":"UID(vms/f)"},"propagationPolicy":"Foreground"}"#,
    ),
    (
        "MERGE",
        "vms/f?fieldManager=m",
        r#"{"metadata":{"resourceVersion":"VERSION(vms/f)","finalizers":[]}}"#,
    ),
    ("GET", "vms/f", ""),
];
