//! Images that are fetched while a clock is set, or wrong.

use super::fake_api::PODS;
use super::fetch::{URL, begun, boots_from, fetch_ends, pod_of};
use super::world::{World, now, pass, set_clock};
use serde_json::json;

#[tokio::test]
async fn a_clock_that_is_set_makes_no_start_wait_longer_than_the_deadline_nor_shorter() {
    for (by, with_restart) in [(-3600, false), (-3600, true), (3600, false), (-3, false), (-3, true)] {
        let mut world = begun(boots_from(URL)).await;
        fetch_ends(&world, URL, r#"{"reason":"TooLarge","message":"more than there may be"}"#);
        world.settle().await;
        pass(290);
        world.settle().await;
        set_clock(by);
        if with_restart {
            // It knows of no other time than that in the condition, which lies in the future: it begins anew.
            world.restart_operator();
            pass(if by < -300 { 0 } else { 290 });
        }
        world.settle().await;
        assert!(world.api.get(PODS, "vm").is_none(), "{by} s");
        // What is told of it is told once.
        for _ in 0..3 {
            pass(7);
            world.deliver();
            assert_eq!(world.step().await, [""; 0], "{by} s");
        }
        assert!(world.api.get(PODS, "vm").is_none(), "{by} s");
        pass(if with_restart && by < -300 { 590 } else { 300 });
        world.settle().await;
        assert!(world.api.get(PODS, "vm").is_some(), "{by} s, restart: {with_restart}");
    }
}

#[tokio::test]
async fn a_fetch_that_has_failed_is_tried_again_though_a_clock_is_wrong_or_nothing_says_when_it_ended() {
    let failed = r#"{"reason":"ServerFailed","message":"503"}"#;
    let uid = |world: &World| world.api.get(PODS, &pod_of(URL)).unwrap()["metadata"]["uid"].clone();
    let world = begun(boots_from(URL)).await;
    // The node's clock is an hour ahead.
    set_clock(3600);
    fetch_ends(&world, URL, failed);
    set_clock(-3600);
    let first = uid(&world);
    world.settle().await;
    assert_eq!(uid(&world), first, "within the pause");
    pass(1);
    world.settle().await;
    let second = uid(&world);
    assert_ne!(second, first);
    // The kubelet has refused the pod.
    world.api.change(PODS, &pod_of(URL), |pod| {
        pod["metadata"]["creationTimestamp"] = json!(now());
        pod["status"] = json!({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no room"});
    });
    world.settle().await;
    assert_eq!(uid(&world), second, "within the pause");
    pass(2);
    world.settle().await;
    assert_ne!(uid(&world), second);
}
