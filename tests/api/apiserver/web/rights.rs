//! The Role of the console has exactly the permissions that the console uses. The requests are in the API server's audit log.

use super::*;
use kube::Api;
use std::time::{Duration, Instant};
use support::real::AUDITED;
use support::rights::{audited, complaints, granted};
use vm_operator::api::pool::VmPool;

const ACCOUNT: &str = "vm-web";

/// The first list of a watch is read in pages where the API server does not stream it, as before 1.34.
const NEED_NO_LIST: [&str; 3] = ["vms", "vmpools", "vmassignments"];

#[tokio::test]
async fn permissions_of_the_console_are_those_that_it_uses() {
    let console = Console::start(AUDITED.strip_prefix("test-").unwrap()).await;
    let (world, merge) = (&console.world, PatchParams::default());
    let pools: Api<VmPool> = Api::namespaced(world.client.clone(), &world.namespace);
    let permissions = json!([{"user": "alice", "may": ["accessConsole", "stop"]}]);
    let pool = json!({"metadata": {"name": "desktops"}, "spec": {"permissions": permissions}});
    let pool = serde_json::from_value(pool).unwrap();
    pools.create(&PostParams::default(), &pool).await.unwrap();
    let running = json!({"type": "Running", "status": "True", "reason": "VmBooted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let vms = world.vms();
    let permissions = Patch::Merge(json!({"spec": {"permissions": permissions}}));
    vms.patch("vm", &merge, &permissions).await.unwrap();
    let status = Patch::Merge(json!({"status": {"conditions": [running]}}));
    vms.patch_status("vm", &merge, &status).await.unwrap();

    let alice = console.login("alice", "").await;
    // The second request changes nothing.
    for _ in 0..2 {
        assert_eq!(console.act(&alice, "vm", "stop").await.0, 204);
    }
    eventually("the console knows the VM", async || {
        console.send("GET", "/api/v1/vms/vm", &alice, "").await.0 == 200
    })
    .await;
    let mut page = console.page(&alice, "vms/vm/serial").await;
    let reason = page.next().await.unwrap().unwrap().into_text().unwrap();
    assert!(reason.contains("Unsupported"), "no pod: {reason}");
    eventually("the console knows the pool", async || {
        let path = "/api/v1/pools/desktops/assignment";
        let mut codes = BTreeSet::new();
        for method in ["POST", "POST", "DELETE"] {
            codes.insert(console.send(method, path, &alice, "{}").await.0);
        }
        assert_eq!(codes, [204].into());
        let notes = console.notes().await;
        notes.last().is_some_and(|it| it.starts_with("VmReturned"))
    })
    .await;
    let notes: BTreeSet<_> = console.notes().await.into_iter().collect();
    let expected = [
        "StopRequested vm: user alice (web console) stops the VM",
        "VmRequested desktops: user alice (web console) requests a VM of the pool",
        "VmReturned desktops: user alice (web console) withdraws the request for a VM",
    ];
    assert_eq!(notes, expected.map(str::to_owned).into());

    let role = world.kustomize("deploy/web").into_iter();
    let role = role.filter(|object| object["kind"] == "Role");
    let granted: BTreeSet<_> = role.flat_map(|role| granted(ACCOUNT, &role)).collect();
    let list = |resource: &str| {
        let resource = format!("vmoperator.jdrupes.org/{resource}");
        (ACCOUNT.to_owned(), resource, "list".to_owned(), None)
    };
    let exceptions = NEED_NO_LIST.map(list).into();
    let user = format!("system:serviceaccount:{AUDITED}:{ACCOUNT}");
    let found = || {
        let log = std::fs::read_to_string(world.server.path("audit.log")).unwrap();
        // The last line may be incomplete.
        let entries = log
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let own = entries.filter(|entry: &Value| entry["impersonatedUser"]["username"] == *user);
        let requested = own.filter_map(|entry| audited(ACCOUNT, &entry)).collect();
        complaints(&granted, &requested, &exceptions)
    };
    let began = Instant::now();
    // The key of the console is created in the background.
    while !found().is_empty() && began.elapsed() < Duration::from_secs(30) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(found(), [""; 0]);
}
