//! Pools. The test plays the operator, which assigns VMs.

use super::*;
use kube::Api;
use vm_operator::api::pool::{VmAssignment, VmPool};

/// A condition `Bound` that the operator sets.
fn bound() -> Value {
    json!({"type": "Bound", "status": "True", "reason": "Assigned", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// Creates a pool in which alice has these permissions.
pub(super) async fn create_pool(world: &World, name: &str, may: Value) {
    let pools: Api<VmPool> = Api::namespaced(world.client.clone(), &world.namespace);
    let spec = json!({"permissions": [{"user": "alice", "may": may}]});
    let pool = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    pools.create(&PostParams::default(), &pool).await.unwrap();
}

/// Plays the operator: gives that VM to the first user who requests one.
pub(super) async fn assign(world: &World, vm: &str) {
    let assignments: Api<VmAssignment> = Api::namespaced(world.client.clone(), &world.namespace);
    let (vms, merge) = (world.vms(), PatchParams::default());
    let assignment = loop {
        let all = assignments.list(&Default::default()).await.unwrap();
        if let Some(assignment) = all.items.into_iter().next() {
            break assignment;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    };
    let (of, metadata) = (&assignment.spec, &assignment.metadata);
    let of_vm =
        json!({"status": {"assignment": {"pool": of.pool, "user": of.user, "uid": metadata.uid}}});
    let uid = vms.get(vm).await.unwrap().metadata.uid;
    let of_assignment =
        json!({"status": {"vm": {"name": vm, "uid": uid}, "conditions": [bound()]}});
    vms.patch_status(vm, &merge, &Patch::Merge(of_vm))
        .await
        .unwrap();
    let name = metadata.name.as_deref().unwrap();
    assignments
        .patch_status(name, &merge, &Patch::Merge(of_assignment))
        .await
        .unwrap();
}

/// The next message with pools.
async fn next_pools(page: &mut Page) -> Value {
    loop {
        let message = tokio::time::timeout(TIMEOUT, page.next()).await;
        let Message::Text(text) = message.expect("no message").unwrap().unwrap() else {
            continue;
        };
        let update: Value = serde_json::from_str(&text).unwrap();
        if update["pools"].is_array() {
            return update;
        }
    }
}

#[tokio::test]
async fn user_requests_a_vm_of_a_pool_uses_it_and_gives_it_back() {
    let console = Console::start("web-pools").await;
    let world = &console.world;
    let pools: Api<VmPool> = Api::namespaced(world.client.clone(), &world.namespace);
    let assignments: Api<VmAssignment> = Api::namespaced(world.client.clone(), &world.namespace);
    for (name, user, may) in [
        ("desktops", "alice", json!(["accessConsole", "stop"])),
        ("secret", "bob", json!(["*"])),
        ("useless", "alice", json!(["stop"])),
    ] {
        let spec = json!({"permissions": [{"user": user, "may": may}]});
        let pool = json!({"metadata": {"name": name}, "spec": spec});
        let pool = serde_json::from_value(pool).unwrap();
        pools.create(&PostParams::default(), &pool).await.unwrap();
    }
    let alice = console.login("alice", "").await;
    let mut page = console.page(&alice, "live").await;
    let mut update = next_pools(&mut page).await;
    // The pools can come after the first list of VMs.
    if update["pools"] == json!([]) {
        update = next_pools(&mut page).await;
    }
    let expected =
        json!([{"name": "desktops", "may": ["stop", "accessConsole"], "free": 0, "waiting": 0}]);
    assert_eq!(update["pools"], expected);

    let send = async |method: &str, pool: &str, headers: &str| {
        let path = format!("/api/v1/pools/{pool}/assignment");
        console.send(method, &path, headers, "{}").await.0
    };
    assert_eq!(send("POST", "desktops", "").await, 401);
    let foreign = alice.replace("same-origin", "cross-site");
    assert_eq!(send("POST", "desktops", &foreign).await, 403);
    for pool in ["secret", "useless", "missing", "..%2Fvms"] {
        assert_eq!(send("POST", pool, &alice).await, 404, "{pool}");
    }
    for _ in 0..2 {
        assert_eq!(send("POST", "desktops", &alice).await, 204);
    }
    let all = assignments.list(&Default::default()).await.unwrap();
    let [assignment] = all.items.as_slice() else {
        panic!("{all:?}");
    };
    assert_eq!(
        (assignment.spec.pool.as_str(), assignment.spec.user.as_str()),
        ("desktops", "alice")
    );
    let update = next_pools(&mut page).await;
    assert_eq!(update["pools"][0]["assignment"]["state"], "Pending");

    // The operator gives her a VM on which she has no other right.
    let merge = PatchParams::default();
    let name = assignment.metadata.name.clone().unwrap();
    let vms = world.vms();
    let vm = vms.get("other").await.unwrap().metadata.uid;
    let status = |uid: Value| json!({"status": {"assignment": {"pool": "desktops", "user": "alice", "uid": uid}}});
    let of_vm = status(json!(assignment.metadata.uid));
    vms.patch_status("other", &merge, &Patch::Merge(&of_vm))
        .await
        .unwrap();
    // Both objects must name each other.
    assert_eq!(console.act(&alice, "other", "start").await.0, 404);
    let of_assignment =
        json!({"status": {"vm": {"name": "other", "uid": vm}, "conditions": [bound()]}});
    assignments
        .patch_status(&name, &merge, &Patch::Merge(of_assignment))
        .await
        .unwrap();
    let update = next_pools(&mut page).await;
    assert_eq!(
        update["pools"][0]["assignment"],
        json!({"state": "Assigned", "message": "", "vm": "other"})
    );
    let rows = update["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == "other").unwrap();
    assert_eq!(
        (&row["pool"], &row["may"]),
        (
            &json!("desktops"),
            &json!(["start", "stop", "accessConsole"])
        )
    );
    for (action, code) in [("stop", 204), ("start", 204), ("reset", 403)] {
        assert_eq!(
            console.act(&alice, "other", action).await.0,
            code,
            "{action}"
        );
    }
    let of_other = status(json!("another assignment"));
    vms.patch_status("other", &merge, &Patch::Merge(of_other))
        .await
        .unwrap();
    assert_eq!(console.act(&alice, "other", "stop").await.0, 404);
    vms.patch_status("other", &merge, &Patch::Merge(of_vm))
        .await
        .unwrap();

    for _ in 0..2 {
        assert_eq!(send("DELETE", "desktops", &alice).await, 204);
    }
    loop {
        let update = next_pools(&mut page).await;
        let rows = update["rows"].as_array().unwrap();
        if update["pools"][0]["assignment"].is_null() {
            assert!(rows.iter().all(|row| row["name"] != "other"));
            break;
        }
    }
    assert!(
        assignments
            .list(&Default::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
    assert_eq!(console.act(&alice, "other", "stop").await.0, 404);
}
