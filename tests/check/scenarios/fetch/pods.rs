//! Download pods.

use super::*;

#[tokio::test]
async fn rejected_fetch_pod_is_explained_and_does_not_block_the_vm() {
    let world = World::new(has_besides(URL));
    let quota = "pods \"vmop-fetch-1\" is forbidden: exceeded quota: small, requested: pods=1, used: pods=3, limited: pods=3";
    world.api.reject_creation(Some(("vmop-fetch", 403, quota)));
    world.reconcile().await.unwrap();
    assert_eq!(media_condition(&world).1, "QuotaExceeded");
    assert!(
        media_condition(&world).2.contains("exceeded quota: small"),
        "{:?}",
        media_condition(&world)
    );
    assert!(world.api.get(PODS, "vm").is_some());
    let outcome = world.reconcile().await.unwrap();
    // No event reports free space.
    assert_eq!(
        outcome,
        vm_operator::k8s::controller::Outcome::Recheck(Duration::from_secs(60))
    );
    world.api.reject_creation(None);
    world.settle().await;
    assert_eq!(media_condition(&world).1, "Fetching");
}

#[tokio::test]
async fn a_fetch_pod_that_does_not_start_says_why() {
    let world = begun(boots_from(URL)).await;
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": now(),
        "message": "0/3 nodes are available: 3 node(s) had volume node affinity conflict"});
    world.api.change(PODS, &pod_of(URL), |pod| {
        pod["status"] = json!({"phase": "Pending", "conditions": [condition]});
    });
    world.settle().await;
    assert_eq!(
        (media_condition(&world).1.as_str(), world.ready().0.as_str()),
        ("Unschedulable", "MediaFetchFailed")
    );
    assert!(
        media_condition(&world).2.contains(&pod_of(URL)),
        "{:?}",
        media_condition(&world)
    );
}

#[tokio::test]
async fn only_unneeded_fetch_pods_are_removed() {
    let world = begun(boots_from(URL)).await;
    fetch_runs(&world, URL, "");
    let vms = |world: &World| vec![Arc::new(world.vm())];
    let seen = sweep(&vms(&world), &BTreeSet::new(), &world.ctx).await;
    assert_eq!(seen, BTreeSet::new());
    world.edit(|machine| machine["disks"][1]["cdrom"]["image"] = OTHER.into());
    let seen = sweep(&vms(&world), &BTreeSet::new(), &world.ctx).await;
    assert_eq!(
        (seen.len(), world.api.requests()),
        (1, Vec::new()),
        "it may be wanted again at once"
    );
    sweep(&vms(&world), &seen, &world.ctx).await;
    assert_eq!(
        world.api.requests(),
        [request("DELETE", PODS, &pod_of(URL))]
    );
}

#[tokio::test]
async fn a_fetch_that_has_failed_is_tried_again_also_if_nothing_says_when_it_ended() {
    let failed = r#"{"reason":"ServerFailed","message":"503"}"#;
    let uid = |world: &World| world.api.get(PODS, &pod_of(URL)).unwrap()["metadata"]["uid"].clone();
    let world = begun(boots_from(URL)).await;
    fetch_ends(&world, URL, failed);
    let first = uid(&world);
    world.settle().await;
    assert_eq!(uid(&world), first, "within the pause");
    pass(1);
    world.settle().await;
    let second = uid(&world);
    assert_ne!(second, first);
    // The kubelet has rejected the pod.
    world.api.change(PODS, &pod_of(URL), |pod| {
        pod["metadata"]["creationTimestamp"] = json!(now());
        pod["status"] =
            json!({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no room"});
    });
    world.settle().await;
    assert_eq!(uid(&world), second, "within the pause");
    pass(2);
    world.settle().await;
    assert_ne!(uid(&world), second);
}

#[tokio::test]
async fn the_kubelet_replaces_no_variable_in_the_url_of_an_image() {
    let url = "https://example.org/$(HTTPS_PROXY)/a$$b.iso";
    let world = World::new(boots_from(url));
    world.settle().await;
    let pod = world.api.get(PODS, &pod_of(url)).unwrap();
    let arguments = &pod["spec"]["containers"][0]["args"];
    assert_eq!(
        arguments[1],
        "--url=https://example.org/$$(HTTPS_PROXY)/a$$$$b.iso"
    );
}
