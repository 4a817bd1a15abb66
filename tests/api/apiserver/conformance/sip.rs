//! The calls about `SIPClusters`, hosts of Metal3, and Deployments.

use super::calls::Call;

pub const SIP_CLUSTERS: &[Call] = &[
    (
        "POST",
        "sipclusters",
        r#"{"apiVersion":"airship.airshipit.org/v1","kind":"SIPCluster","metadata":{"name":"a"},"spec":{"nodes":{"ControlPlane":{"count":{"active":2}}},"services":{}}}"#,
    ),
    (
        "POST",
        "sipclusters",
        r#"{"apiVersion":"airship.airshipit.org/v1","kind":"SIPCluster","metadata":{"name":"b"},"spec":{"services":{}}}"#,
    ),
    (
        "MERGE",
        "sipclusters/a?fieldManager=m",
        r#"{"metadata":{"finalizers":["sip.airship.airshipit.org/finalizer"],"resourceVersion":"VERSION(sipclusters/a)"}}"#,
    ),
    (
        "MERGE",
        "sipclusters/a/status?fieldManager=m",
        r#"{"metadata":{"resourceVersion":"VERSION(sipclusters/a)"},"status":{"nodes":{"ControlPlane":{"wanted":2,"members":0,"candidates":0},"Worker":null}}}"#,
    ),
    (
        "MERGE",
        "sipclusters/a/status?fieldManager=m",
        r#"{"metadata":{"resourceVersion":"1"},"status":{"nodes":{}}}"#,
    ),
    ("GET", "sipclusters/a", ""),
    ("GET", "sipclusters", ""),
    ("GET", "sipclusters?limit=500", ""),
    (
        "GET",
        "sipclusters?limit=500&resourceVersion=VERSION(sipclusters/a)&resourceVersionMatch=Exact",
        "",
    ),
    ("DELETE", "sipclusters/b", ""),
    ("DELETE", "sipclusters/a", ""),
    (
        "MERGE",
        "sipclusters/a?fieldManager=m",
        r#"{"metadata":{"finalizers":[],"resourceVersion":"VERSION(sipclusters/a)"}}"#,
    ),
    (
        "POST",
        "baremetalhosts",
        r#"{"apiVersion":"metal3.io/v1alpha1","kind":"BareMetalHost","metadata":{"name":"a"},"spec":{"online":true,"networkData":{"name":"a-network"}}}"#,
    ),
    (
        "MERGE",
        "baremetalhosts/a/status?fieldManager=m",
        r#"{"status":{"provisioning":{"state":"available","ID":""},"operationalStatus":"OK","errorMessage":"","errorCount":0,"poweredOn":true,"provisioningFailCount":0}}"#,
    ),
    (
        "MERGE",
        "baremetalhosts/a?fieldManager=m",
        r#"{"metadata":{"resourceVersion":"1","labels":{"l":"1"}}}"#,
    ),
    (
        "MERGE",
        "baremetalhosts/a?fieldManager=m",
        r#"{"metadata":{"resourceVersion":"VERSION(baremetalhosts/a)","labels":{"l":"1","m":null}}}"#,
    ),
    ("GET", "baremetalhosts/a", ""),
    ("GET", "baremetalhosts/none", ""),
    ("GET", "baremetalhosts", ""),
    ("GET", "baremetalhosts?limit=500", ""),
    (
        "GET",
        "baremetalhosts?limit=500&resourceVersion=VERSION(baremetalhosts/a)&resourceVersionMatch=Exact",
        "",
    ),
    ("GET", "baremetalhosts?labelSelector=l%3D1", ""),
    (
        "GET",
        "baremetalhosts?labelSelector=l%3D1&resourceVersion=VERSION(baremetalhosts/a)&resourceVersionMatch=Exact",
        "",
    ),
    (
        "POST",
        "configmaps",
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"taken"}}"#,
    ),
    ("DELETE", "configmaps/taken", ""),
    ("GET", "secrets?limit=500", ""),
    (
        "GET",
        "secrets?limit=500&resourceVersion=VERSION(baremetalhosts/a)&resourceVersionMatch=Exact",
        "",
    ),
    ("GET", "pods?labelSelector=l%3D1&limit=500", ""),
    (
        "GET",
        "pods?labelSelector=l%3D1&limit=500&resourceVersion=VERSION(baremetalhosts/a)&resourceVersionMatch=Exact",
        "",
    ),
    ("DELETE", "baremetalhosts/a", ""),
    (
        "APPLY",
        "services/balancer?fieldManager=m&force=true",
        r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"balancer"},"spec":{"type":"NodePort","selector":{"l":"1"},"ports":[{"name":"http","nodePort":30643,"port":6443,"protocol":"TCP","targetPort":6443}]}}"#,
    ),
    (
        "APPLY",
        "services/balancer?fieldManager=m&force=true",
        r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"balancer"},"spec":{"type":"NodePort","selector":{"l":"1"},"ports":[{"name":"http","nodePort":30644,"port":6443,"protocol":"TCP","targetPort":6443}]}}"#,
    ),
    ("DELETE", "services/balancer", ""),
    (
        "APPLY",
        "secrets/jump-host?fieldManager=m&force=true",
        r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"jump-host"},"data":{"hosts.json":"W10="}}"#,
    ),
    (
        "APPLY",
        "secrets/jump-host?fieldManager=m&force=true",
        r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"jump-host"},"data":{"hosts.json":"WzFd"}}"#,
    ),
    ("GET", "secrets/jump-host", ""),
    (
        "DELETE",
        "secrets/jump-host",
        r#"{"preconditions":{"uid":"UID(secrets/jump-host)"}}"#,
    ),
    (
        "APPLY",
        "deployments/d?fieldManager=m&force=true",
        DEPLOYMENT,
    ),
    (
        "APPLY",
        "deployments/d?fieldManager=m&force=true",
        DEPLOYMENT,
    ),
    (
        "MERGE",
        "deployments/d/status?fieldManager=m",
        r#"{"status":{"observedGeneration":1,"replicas":2,"updatedReplicas":2,"availableReplicas":2,"readyReplicas":2}}"#,
    ),
    ("GET", "deployments/d", ""),
    ("GET", "deployments", ""),
    ("GET", "deployments?labelSelector=l%3D1&limit=500", ""),
    (
        "GET",
        "deployments?labelSelector=l%3D1&limit=500&resourceVersion=VERSION(deployments/d)&resourceVersionMatch=Exact",
        "",
    ),
    (
        "DELETE",
        "deployments/d",
        r#"{"gracePeriodSeconds":0,"preconditions":{"uid":"another"}}"#,
    ),
    (
        "DELETE",
        "deployments/d",
        r#"{"preconditions":{"uid":"UID(deployments/d)"}}"#,
    ),
    (
        "APPLY",
        "poddisruptionbudgets/b?fieldManager=m&force=true",
        r#"{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":"b","labels":{"l":"1"}},"spec":{"minAvailable":1,"selector":{"matchLabels":{"l":"1"}}}}"#,
    ),
    ("GET", "poddisruptionbudgets/none", ""),
    ("GET", "poddisruptionbudgets", ""),
    (
        "GET",
        "poddisruptionbudgets?labelSelector=l%3D1&limit=500",
        "",
    ),
    (
        "GET",
        "poddisruptionbudgets?labelSelector=l%3D1&limit=500&resourceVersion=VERSION(poddisruptionbudgets/b)&resourceVersionMatch=Exact",
        "",
    ),
    (
        "DELETE",
        "poddisruptionbudgets/b",
        r#"{"gracePeriodSeconds":0,"preconditions":{"uid":"another"}}"#,
    ),
    (
        "DELETE",
        "poddisruptionbudgets/b",
        r#"{"preconditions":{"uid":"UID(poddisruptionbudgets/b)"}}"#,
    ),
];

/// A Deployment with the fields of a load balancer.
const DEPLOYMENT: &str = r#"{
    "apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d","labels":{"l":"1"}},
    "spec":{
        "replicas":2,"selector":{"matchLabels":{"l":"1"}},
        "strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":1,"maxUnavailable":0}},
        "template":{
            "metadata":{"labels":{"l":"1"},"annotations":{"a":"1"}},
            "spec":{
                "automountServiceAccountToken":false,"enableServiceLinks":false,"terminationGracePeriodSeconds":315,
                "securityContext":{"runAsNonRoot":true,"runAsUser":65534,"runAsGroup":65534,"seccompProfile":{"type":"RuntimeDefault"}},
                "topologySpreadConstraints":[{
                    "maxSkew":1,"topologyKey":"kubernetes.io/hostname","whenUnsatisfiable":"ScheduleAnyway",
                    "labelSelector":{"matchLabels":{"l":"1"}}
                }],
                "containers":[{
                    "name":"haproxy","image":"localhost/vm-load-balancer:0.2.0","command":["haproxy"],
                    "ports":[{"name":"health","containerPort":8404,"protocol":"TCP"}],
                    "readinessProbe":{"httpGet":{"path":"/healthz","port":"health","scheme":"HTTP"},"periodSeconds":2},
                    "lifecycle":{"preStop":{"sleep":{"seconds":5}}},
                    "resources":{"requests":{"cpu":"10m","memory":"32Mi"},"limits":{"memory":"128Mi"}},
                    "securityContext":{"allowPrivilegeEscalation":false,"readOnlyRootFilesystem":true,"capabilities":{"drop":["ALL"]}},
                    "volumeMounts":[{"name":"configuration","mountPath":"/usr/local/etc/haproxy","readOnly":true}]
                }],
                "volumes":[{"name":"configuration","configMap":{"name":"d"}}]
            }
        }
    }
}"#;
