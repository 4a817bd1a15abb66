//! The calls of the comparison.

/// Method with the kind of patch, resource with name and parameters, body. `UID(path)` and `VERSION(path)` stand for
/// those of the object at the path. `CONTINUE(path)` stands for the token of the next page of the list at the path.
pub type Call = (&'static str, &'static str, &'static str);

pub const CONFIG_MAPS: &[Call] = &[
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

pub const POD: &str = r#"{"metadata":{"name":"p","labels":{"l":"1"}},"spec":{"containers":[{"name":"c","image":"i:1",
    "resources":{"requests":{"cpu":"1","memory":"1Gi"}},"ports":[{"containerPort":5900}],
    "env":[{"name":"N","valueFrom":{"fieldRef":{"fieldPath":"spec.nodeName"}}}],
    "volumeMounts":[{"name":"v","mountPath":"/v"}]}],
    "volumes":[{"name":"v","configMap":{"name":"c"}}],"restartPolicy":"Never","serviceAccountName":"s"}}"#;

pub const PODS: &[Call] = &[
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

pub const OTHERS: &[Call] = &[
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

pub const CUSTOM: &[Call] = &[
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
    (
        "MERGE",
        "vms/vm/status?fieldManager=o",
        r#"{"status":{"ram":null,"cpus":1,"conditions":[{"type":"Running","status":"True","reason":"R","message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"},{"type":"Ready","status":"False","reason":"S","message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#,
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

pub const REPORTS: &[Call] = &[
    (
        "POST",
        "vmreports?fieldManager=m",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VmReport","metadata":{"name":"a-uid"},"spec":{"vm":"vm"}}"#,
    ),
    (
        "POST",
        "vmreports?fieldManager=m",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VmReport","metadata":{"name":"a-uid"},"spec":{"vm":"vm"}}"#,
    ),
    (
        "APPLY",
        "vmreports/a-uid/status?fieldManager=r&force=true",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VmReport","status":{"cpus":1,"ram":"1","guestIPs":["10.0.0.1"]}}"#,
    ),
    (
        "APPLY",
        "vmreports/a-uid/status?fieldManager=r&force=true",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VmReport","status":{"cpus":2,"ram":"1","conditions":[{"type":"Running","status":"True","reason":"R","message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#,
    ),
    (
        "APPLY",
        "vmreports/none/status?fieldManager=r&force=true",
        r#"{"apiVersion":"vmoperator.jdrupes.org/v1","kind":"VmReport","status":{"cpus":1}}"#,
    ),
    ("GET", "vmreports/a-uid", ""),
    ("GET", "vmreports/none", ""),
    ("GET", "vmreports", ""),
    ("GET", "vmreports?limit=500", ""),
    (
        "GET",
        "vmreports?limit=500&resourceVersion=VERSION(vmreports/a-uid)&resourceVersionMatch=Exact",
        "",
    ),
    (
        "DELETE",
        "vmreports/a-uid",
        r#"{"gracePeriodSeconds":0,"preconditions":{"uid":"UID(vmreports/a-uid)"}}"#,
    ),
    ("GET", "vmreports/a-uid", ""),
];

/// Additional calls of the operator and the simulated components.
pub const LISTS: &[Call] = &[
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
pub const WATCHED: &[&str] = &[
    "configmaps?",
    "configmaps?labelSelector=l%3D1&",
    "pods?",
    "persistentvolumeclaims?",
    "secrets?",
    "secrets?labelSelector=l%3D1&",
    "services?",
    "services?labelSelector=l%3D1&",
    "vms?",
    "vmreports?",
    "vmpools?",
    "vmassignments?",
    "peerpods?",
    "sipclusters?",
    "baremetalhosts?",
    "deployments?",
    "poddisruptionbudgets?",
    "poddisruptionbudgets?labelSelector=l%3D1&",
    "deployments?labelSelector=l%3D1&",
    "pods?labelSelector=l%3D1&",
    "leases?",
];
