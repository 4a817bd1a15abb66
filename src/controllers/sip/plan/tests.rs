use super::{Plan, plan};
use crate::api::SIPCluster;
use crate::controllers::sip::facts::{Host, roles};
use crate::controllers::sip::views::{HostView, Networks};
use serde_json::{Value, json};

/// A cluster with these roles, whose claims are complete or begin.
fn cluster(nodes: Value, has_been_complete: bool) -> SIPCluster {
    let since =
        |uid: &str, time: &str| json!({"uid": uid, "name": uid, "role": "r", "since": time});
    serde_json::from_value(json!({
        "apiVersion": "airship.airshipit.org/v1", "kind": "SIPCluster", "metadata": {"name": "tenant", "namespace": "ns"},
        "spec": {"nodes": nodes, "services": {}},
        "status": {
            "observedGeneration": 1, "hasBeenComplete": has_been_complete,
            "members": [since("a", "2026-01-01T00:00:00Z"), since("b", "2026-01-02T00:00:00Z"), since("c", "2026-01-01T00:00:00Z")],
        },
    }))
    .unwrap()
}

/// A free and available host, changed by the merge of another object.
fn host(name: &str, change: Value) -> HostView {
    let mut host = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"rack": name}},
        "status": {"provisioning": {"state": "available"}},
    });
    merge(&mut host, change);
    serde_json::from_value(host).unwrap()
}

fn merge(object: &mut Value, change: Value) {
    match change {
        Value::Object(fields) if object.is_object() => {
            for (name, value) in fields {
                merge(&mut object[name], value);
            }
        }
        value => *object = value,
    }
}

fn member(name: &str, role: &str, change: Value) -> HostView {
    let of = |cluster: &str| {
        json!({"metadata": {"labels": {
            "sip.airshipit.org/cluster-namespace": "ns", "sip.airshipit.org/cluster-name": cluster, "sip.airshipit.org/node-type": role,
        }}})
    };
    let mut all = of("tenant");
    merge(&mut all, change);
    host(name, all)
}

fn consumed() -> Value {
    json!({"spec": {"consumerRef": {"kind": "Metal3Machine", "name": "m"}}})
}

/// The names of the hosts that join, leave, and are in use, and the roles with a shortage.
fn planned(cluster: &SIPCluster, hosts: &[HostView]) -> String {
    let networks = Networks::Missing;
    let hosts: Vec<Host> = hosts
        .iter()
        .map(|view| Host {
            view,
            networks: Some(&networks),
        })
        .collect();
    let roles = roles(cluster).unwrap();
    let states = ["available".to_owned(), "ready".to_owned()];
    let Plan {
        claims,
        leaving,
        in_use,
        shortages,
        ..
    } = plan(cluster, &roles, &hosts, &states);
    let mut text = String::new();
    for (mark, placed) in [("+", &claims), ("-", &leaving), ("!", &in_use)] {
        for it in placed {
            text += &format!("{mark}{} ", it.host.name());
        }
    }
    for shortage in shortages {
        text += &format!("{}:{} ", shortage.role, shortage.missing);
    }
    text.trim_end().to_owned()
}

fn count(active: u8) -> Value {
    json!({"r": {"count": {"active": active}}})
}

#[test]
fn members_remain_and_only_the_difference_joins_or_leaves() {
    let none = || json!({});
    let three = [
        member("a", "r", none()),
        member("b", "r", none()),
        member("c", "r", none()),
    ];
    let free = || host("d", none());
    let and_free = [three.to_vec(), vec![free()]].concat();
    let other = member(
        "o",
        "r",
        json!({"metadata": {"labels": {"sip.airshipit.org/cluster-name": "other"}}}),
    );
    for (nodes, hosts, expected) in [
        // S1: no free host is needed.
        (count(3), three.to_vec(), ""),
        (count(4), and_free.clone(), "+d"),
        (count(5), and_free.clone(), "+d r:1"),
        // S2: the youngest member, of several the first by name.
        (count(2), and_free.clone(), "-b"),
        (count(1), and_free.clone(), "-b -a"),
        // S3: the role is gone.
        (json!({}), and_free.clone(), "-b -a -c"),
        // S9: a role without count and selector.
        (json!({"r": {}}), vec![free()], ""),
        (count(1), vec![other], "r:1"),
        // An unhealthy member leaves first, one in use never.
        (
            count(1),
            vec![
                member("a", "r", json!({"status": {"errorMessage": "broken"}})),
                member("b", "r", none()),
                member("c", "r", consumed()),
            ],
            "-a -b",
        ),
        (
            count(0),
            vec![member("a", "r", consumed()), member("b", "r", none())],
            "-b !a",
        ),
    ] {
        assert_eq!(
            planned(&cluster(nodes.clone(), true), &hosts),
            expected,
            "{nodes}"
        );
    }
}

#[test]
fn first_claim_is_all_or_nothing() {
    let none = || json!({});
    let two = [host("a", none()), host("b", none())];
    assert_eq!(planned(&cluster(count(2), false), &two), "+a +b");
    assert_eq!(planned(&cluster(count(3), false), &two), "r:1");
    // One label was written before the other host was lost. A host in use remains.
    let half = [member("a", "r", none()), member("c", "r", consumed())];
    assert_eq!(planned(&cluster(count(3), false), &half), "-a r:1");
    // The Airship SIP operator has completed the cluster.
    let mut adopted = cluster(count(3), false);
    let ready = json!([{
        "type": "Ready", "status": "True", "reason": "ReconciliationSucceeded", "message": "", "lastTransitionTime": "2021-01-01T00:00:00Z",
    }]);
    adopted.status = serde_json::from_value(json!({"conditions": ready})).unwrap();
    assert_eq!(planned(&adopted, &half), "r:1");
}

#[test]
fn hosts_that_cannot_be_used_are_no_candidates() {
    let annotated = |name: &str| json!({"metadata": {"annotations": {name: "1"}}});
    // S10.
    for change in [
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        annotated("baremetalhost.metal3.io/paused"),
        annotated("baremetalhost.metal3.io/detached"),
        annotated("capm3.metal3.io/unhealthy"),
        json!({"metadata": {"labels": {"infrastructure.cluster.x-k8s.io/node-reuse": "x"}}}),
        json!({"status": {"errorMessage": "broken"}}),
        json!({"status": {"operationalStatus": "error"}}),
        json!({"status": {"provisioning": {"state": "provisioned"}}}),
        json!({"status": {"provisioning": {"state": ""}}}),
        consumed(),
    ] {
        let hosts = [host("a", change.clone()), host("b", json!({}))];
        assert_eq!(planned(&cluster(count(1), true), &hosts), "+b", "{change}");
    }
    // S4: the network data is needed by a load balancer of the control plane only.
    let mut with_service = cluster(json!({"ControlPlane": {"count": {"active": 1}}}), true);
    let balancer = json!([{"image": "", "nodePort": 0, "nodeInterfaceId": "oam"}]);
    with_service.spec.services.load_balancer_control_plane =
        serde_json::from_value(balancer).unwrap();
    assert_eq!(
        planned(&with_service, &[host("a", json!({}))]),
        "ControlPlane:1"
    );
}

#[test]
fn members_occupy_the_values_of_their_topology_key() {
    let rack = |rack: &str| json!({"metadata": {"labels": {"rack": rack}}});
    let nodes = json!({"r": {"topologyKey": "rack", "count": {"active": 2}}});
    // S6.
    let hosts = [
        member("a", "r", rack("1")),
        host("b", rack("1")),
        host("c", rack("2")),
    ];
    assert_eq!(planned(&cluster(nodes.clone(), true), &hosts), "+c");
    assert_eq!(planned(&cluster(nodes, true), &hosts[..2]), "r:1");
    // S7: only one assignment gives both roles a host.
    let both = json!({
        "any": {"count": {"active": 1}}, "special": {"count": {"active": 1}, "labelSelector": {"matchLabels": {"rack": "1"}}},
    });
    assert_eq!(
        planned(
            &cluster(both, false),
            &[host("a", rack("1")), host("b", rack("2"))]
        ),
        "+b +a"
    );
}
