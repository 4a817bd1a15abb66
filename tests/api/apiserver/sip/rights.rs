//! The permissions of `deploy/sip` are exactly those that the controller and its leader election use.

use super::{change, create_host, extended, install, with_layer};
use crate::apiserver::world::{World, eventually};
use http::Response;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use support::rights::{Right, complaints, granted, right_of};
use support::sip::operate;
use vm_operator::api::SIPCluster;
use vm_operator::api::sip::names;
use vm_operator::controllers::sip::MANAGER;
use vm_operator::k8s::cluster::Cluster;
use vm_operator::k8s::leader::{Candidate, Leadership};

const ACCOUNT: &str = "vm-operator-sip";

/// Server-side apply needs these permissions for an object that it creates, and the request is a patch.
const CREATED_BY_APPLY: [&str; 4] = [
    "configmaps",
    "services",
    "apps/deployments",
    "policy/poddisruptionbudgets",
];

type Requested = Arc<Mutex<BTreeSet<(Right, bool)>>>;

/// The client of the account, whose requests are recorded. Another program changes the first host before its first patch.
fn client_of_account(world: &World, requested: &Requested) -> Client {
    let mut config = world.config.clone();
    config.auth_info.impersonate = Some(format!(
        "system:serviceaccount:{}:{ACCOUNT}",
        world.namespace
    ));
    let (requested, conflicts) = (requested.clone(), Arc::new(Mutex::new(true)));
    let client = Client::try_from(config).unwrap();
    with_layer(&client, move |client, request| {
        let (requested, conflicts) = (requested.clone(), conflicts.clone());
        async move {
            let right = right_of(ACCOUNT, &request);
            let is_patch = right.1 == "metal3.io/baremetalhosts" && right.2 == "patch";
            if is_patch && std::mem::take(&mut *conflicts.lock().unwrap()) {
                let conflict = json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "changed", "reason": "Conflict", "code": 409,
                });
                let answer = Response::builder().status(409);
                return Ok(answer
                    .body(conflict.to_string().into_bytes().into())
                    .unwrap());
            }
            let answer = client.send(request).await?;
            let is_allowed = answer.status() != 403;
            requested.lock().unwrap().insert((right, is_allowed));
            Ok(answer)
        }
    })
}

/// Applies account, Role and RoleBinding of `deploy/sip`. Returns the permissions.
async fn grant(world: &World) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for mut object in world.kustomize("deploy/sip") {
        let kind = object["kind"].as_str().unwrap().to_owned();
        if !["ServiceAccount", "Role", "RoleBinding"].contains(&kind.as_str()) {
            continue;
        }
        object["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("namespace");
        if kind == "RoleBinding" {
            object["subjects"][0]["namespace"] = world.namespace.clone().into();
        }
        world.apply(&object, false).await.unwrap();
        rights.extend(granted(ACCOUNT, &object));
    }
    rights
}

#[tokio::test]
async fn permissions_of_the_controller_are_those_that_it_uses() {
    let world = World::new("sip-rights").await;
    let clusters = install(&world).await;
    for (n, name) in ["a", "b"].into_iter().enumerate() {
        create_host(&world, name, &format!("10.0.0.{n}"), json!({})).await;
    }
    let granted = grant(&world).await;
    let requested = Requested::default();
    let client = client_of_account(&world, &requested);
    let leases = Api::<Lease>::namespaced(client.clone(), &world.namespace);
    let mut candidate = Candidate::new(leases, names::LEASE, "test", Leadership::waiting());
    let election = tokio::spawn(async move { candidate.run().await });
    let controller = operate(Cluster::new(client, MANAGER), &world.namespace);

    let service = json!({"image": "", "nodePort": 0, "nodeInterfaceId": "oam-ipv4"});
    let with = |own| json!([extended(&service, own)]);
    let spec = json!({
        "nodes": {"ControlPlane": {"count": {"active": 2}}},
        "services": {
            "loadBalancerControlPlane": with(json!({})), "jumpHost": with(json!({"nodeSSHPrivateKeys": "a-bmc"})),
            "auth": with(json!({"image": "dex"})),
        },
    });
    let object = json!({"apiVersion": "airship.airshipit.org/v1", "kind": "SIPCluster", "metadata": {"name": "tenant"}, "spec": spec});
    let object: SIPCluster = serde_json::from_value(object).unwrap();
    clusters
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
    let endpoints = async |count: usize| {
        super::run_deployments(&world).await;
        let status = clusters
            .get("tenant")
            .await
            .unwrap()
            .status
            .unwrap_or_default();
        status.endpoints.len() == count && status.hosts.members == status.hosts.wanted
    };
    eventually("the services exist", || endpoints(3)).await;
    // Services, hosts and cluster are removed, one after the other.
    for spec in [
        json!({"services": {"loadBalancerControlPlane": null, "jumpHost": null, "auth": null}}),
        json!({"nodes": {"ControlPlane": {"count": {"active": 1}}}}),
    ] {
        change(&world, spec).await;
        eventually("the spec is reported", async || {
            let cluster = clusters.get("tenant").await.unwrap();
            let observed = cluster
                .status
                .as_ref()
                .and_then(|it| it.observed_generation);
            observed == cluster.metadata.generation && endpoints(0).await
        })
        .await;
    }
    clusters
        .delete("tenant", &DeleteParams::default())
        .await
        .unwrap();
    eventually("the cluster is gone", async || {
        clusters.get_opt("tenant").await.unwrap().is_none()
    })
    .await;
    let renewed = || {
        let requested = requested.lock().unwrap();
        let mut allowed = requested.iter().filter(|(_, allowed)| *allowed);
        allowed.any(|(right, _)| right.1.ends_with("/leases") && right.2 == "update")
    };
    eventually("the Lease is renewed", async || renewed()).await;
    election.abort();
    controller.task.abort();

    let create = |resource: &str| {
        let (account, verb) = (ACCOUNT.to_owned(), "create".to_owned());
        (account, resource.to_owned(), verb, None)
    };
    let exceptions = CREATED_BY_APPLY.map(create).into();
    let complaints = complaints(&granted, &requested.lock().unwrap(), &exceptions);
    assert!(complaints.is_empty(), "{complaints:#?}");
}
