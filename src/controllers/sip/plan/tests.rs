use super::{Plan, plan};
use crate::api::SIPCluster;
use crate::api::conditions::find;
use crate::api::sip::{DEGRADED, READY, SIPClusterStatus};
use crate::controllers::sip::facts::{Host, roles};
use crate::controllers::sip::report::{Progress, status};
use crate::controllers::sip::views::{HostView, Networks};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::time::Instant;

mod model;

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
            name: view.metadata.name.as_deref().unwrap(),
            networks: Some(&networks),
            credentials: None,
            may_use_bmc: true,
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
            text += &format!("{mark}{} ", it.host.name);
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
    // S5: a member whose network data have disappeared stays.
    let present = [member("a", "ControlPlane", json!({}))];
    assert_eq!(planned(&with_service, &present), "");
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

/// Prints the time of each plan, which is a figure of docs/figures.md.
#[test]
fn plan_with_a_thousand_candidates_has_all_requested_hosts() {
    let candidate = |n: usize| {
        let rack = format!("{:02}", n % 100);
        host(
            &format!("h{n:03}"),
            json!({"metadata": {"labels": {"rack": rack}}}),
        )
    };
    let hosts: Vec<HostView> = (0..1000).map(candidate).collect();
    // The usual request, and the largest one that the definition permits.
    for (control_plane, worker) in [(3, 7), (100, 900)] {
        let nodes = json!({
            "ControlPlane": {"topologyKey": "rack", "count": {"active": control_plane}},
            "Worker": {"count": {"active": worker}},
        });
        let (cluster, wanted) = (cluster(nodes, true), control_plane + worker);
        let began = Instant::now();
        let planned = planned(&cluster, &hosts);
        println!("{wanted} of 1000 candidates: {:?}", began.elapsed());
        assert_eq!(planned.matches('+').count(), wanted);
    }
}

/// The status of a cluster with these hosts, and the messages of `Ready` and `Degraded`, each with its reason.
fn reported(cluster: &SIPCluster, views: &[HostView]) -> (SIPClusterStatus, [String; 2]) {
    let networks = Networks::Missing;
    let hosts = views.iter().map(|view| Host {
        view,
        name: view.metadata.name.as_deref().unwrap(),
        networks: Some(&networks),
        credentials: None,
        may_use_bmc: true,
    });
    let hosts: Vec<Host> = hosts.collect();
    let (roles, states) = (roles(cluster).unwrap(), ["available".to_owned()]);
    let plan = plan(cluster, &roles, &hosts, &states);
    let progress = Progress {
        plan: Some((&roles, &plan)),
        ..Progress::default()
    };
    let status = status(cluster, &progress, Timestamp::UNIX_EPOCH);
    let text = |type_| {
        let condition = find(&status.conditions, type_);
        condition.map_or(String::new(), |it| format!("{}: {}", it.reason, it.message))
    };
    let texts = [READY, DEGRADED].map(text);
    (status, texts)
}

#[test]
fn status_names_hosts_with_their_reasons_and_the_next_step() {
    let broken = || json!({"status": {"errorMessage": "no power"}});
    let hosts = [
        host("a", consumed()),
        host("b", broken()),
        host("c", json!({})),
    ];
    let (status, [ready, _]) = reported(&cluster(count(2), true), &hosts);
    assert!(
        ready.starts_with("Unschedulable: role r: 2 hosts wanted, 0 members, 1 candidates, "),
        "{ready}"
    );
    let rejected = status.rejected.iter();
    let rejected: Vec<_> = rejected
        .map(|it| (&*it.name, &*it.reason, &*it.message))
        .collect();
    let expected = [
        ("a", "Consumed", "it is used by Metal3Machine m"),
        ("b", "Failed", "no power"),
    ];
    assert_eq!(rejected, expected);

    let in_use = [member("a", "r", consumed())];
    let (_, [ready, _]) = reported(&cluster(count(0), true), &in_use);
    assert!(ready.starts_with("HostsInUse: "), "{ready}");
    assert!(
        ready.contains("a (Metal3Machine m)") && ready.contains("raise the count"),
        "{ready}"
    );

    let (_, [ready, degraded]) = reported(&cluster(count(1), true), &[member("a", "r", broken())]);
    assert!(
        ready.starts_with("ReconciliationSucceeded: 1 of 1 hosts"),
        "{ready}"
    );
    assert!(
        degraded.starts_with("MembersDegraded: ") && degraded.contains("no power"),
        "{degraded}"
    );

    // At most 20 hosts are named, and all are counted.
    let many: Vec<HostView> = (0..30)
        .map(|n| host(&format!("h{n}"), consumed()))
        .collect();
    let (status, [ready, _]) = reported(&cluster(count(1), true), &many);
    assert_eq!(status.rejected.len(), 20);
    assert!(ready.contains(": 30"), "{ready}");
}
