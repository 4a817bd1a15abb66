//! The calls about pools and their assignments.

use super::calls::Call;

pub const POOLS: &[Call] = &[
    (
        "POST",
        "vmpools",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VmPool","metadata":{"name":"p"},"spec":{"permissions":[]}}"#,
    ),
    ("GET", "vmpools/p", ""),
    (
        "MERGE",
        "vmpools/p?fieldManager=n",
        r#"{"spec":{"prewarm":1}}"#,
    ),
    (
        "APPLY",
        "vmpools/p/status?fieldManager=r&force=true",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VmPool","metadata":{"name":"p","resourceVersion":"1"},"status":{"members":1}}"#,
    ),
    (
        "APPLY",
        "vmpools/p/status?fieldManager=r&force=true",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VmPool","metadata":{"name":"p","resourceVersion":"VERSION(vmpools/p)"},"status":{"members":1,"free":0}}"#,
    ),
    (
        "POST",
        "vmassignments",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VmAssignment","metadata":{"name":"a"},"spec":{"pool":"p","user":"u"}}"#,
    ),
    (
        "POST",
        "vmassignments?fieldManager=m",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VmAssignment","metadata":{"name":"a"},"spec":{"pool":"p","user":"u"}}"#,
    ),
    (
        "POST",
        "vmassignments?fieldManager=m",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VmAssignment","metadata":{"name":"b"},"spec":{"pool":"p","user":"v"}}"#,
    ),
    (
        "MERGE",
        "vmassignments/a?fieldManager=m",
        r#"{"metadata":{"resourceVersion":"VERSION(vmassignments/a)","annotations":{"a":"1"}}}"#,
    ),
    (
        "MERGE",
        "vmassignments/a/status?fieldManager=m",
        r#"{"metadata":{"resourceVersion":"VERSION(vmassignments/a)"},"status":{"vm":{"name":"v","uid":"1"},"lastUsed":"2026-01-01T00:00:00Z","expires":null,"conditions":[{"type":"Bound","status":"True","reason":"R","message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#,
    ),
    (
        "MERGE",
        "vmassignments/a/status?fieldManager=m",
        r#"{"metadata":{"resourceVersion":"1"},"status":{"vm":null}}"#,
    ),
    (
        "MERGE",
        "vmassignments/a/status?fieldManager=m",
        r#"{"metadata":{"resourceVersion":"VERSION(vmassignments/a)"},"status":{"vm":null,"lastUsed":null}}"#,
    ),
    (
        "POST",
        "vms",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VirtualMachine","metadata":{"name":"v"},"spec":{"vm":{"state":"Stopped","maximumRam":"1Gi","networks":[]}}}"#,
    ),
    (
        "MERGE",
        "vms/v/status?fieldManager=m",
        r#"{"metadata":{"resourceVersion":"VERSION(vms/v)"},"status":{"assignment":{"pool":"p","user":"u","uid":"1","lastUsed":"2026-01-01T00:00:00Z","login":null}}}"#,
    ),
    (
        "MERGE",
        "vms/v/status?fieldManager=m",
        r#"{"metadata":{"resourceVersion":"1"},"status":{"assignment":{"user":"w"}}}"#,
    ),
    (
        "MERGE",
        "vms/v/status?fieldManager=n",
        r#"{"metadata":{"resourceVersion":"VERSION(vms/v)"},"status":{"assignment":{"pool":null,"user":null,"uid":null,"lastUsed":null,"login":null}}}"#,
    ),
    ("GET", "vms/v", ""),
    ("DELETE", "vms/v", ""),
    ("GET", "vmassignments/none", ""),
    ("GET", "vmassignments", ""),
    ("GET", "vmassignments?limit=500", ""),
    (
        "GET",
        "vmassignments?limit=500&resourceVersion=VERSION(vmassignments/a)&resourceVersionMatch=Exact",
        "",
    ),
    (
        "DELETE",
        "vmassignments/a",
        r#"{"preconditions":{"uid":"another"}}"#,
    ),
    (
        "DELETE",
        "vmassignments/a",
        r#"{"preconditions":{"uid":"UID(vmassignments/a)"}}"#,
    ),
    ("DELETE", "vmassignments/b", ""),
    (
        "DELETE",
        "vmassignments/none",
        r#"{"gracePeriodSeconds":0,"preconditions":{"uid":"another"}}"#,
    ),
    ("GET", "vmassignments/a", ""),
    ("GET", "vmpools", ""),
    ("GET", "vmpools?limit=500", ""),
    (
        "GET",
        "vmpools?limit=500&resourceVersion=VERSION(vmpools/p)&resourceVersionMatch=Exact",
        "",
    ),
    ("DELETE", "vmpools/p", ""),
];
