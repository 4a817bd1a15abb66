//! A restarted kubelet.

use crate::devices::{OPENED, TUN, node_offers, registered, registers_again, slots, tap_in_pod};
use crate::harness::{e2e, environment};
use serde_json::json;

#[test]
fn devices_are_offered_again_after_a_restart_of_the_kubelet() {
    e2e(environment::SLOTS, async |space| {
        node_offers(TUN, slots("/dev/net/tun")).await;
        let before = registered(TUN).await;
        environment::cluster(&["restart-kubelet"]);
        registers_again(TUN, before).await;
        node_offers(TUN, slots("/dev/net/tun")).await;
        let log = tap_in_pod(space, "asks", json!({TUN: "1"})).await;
        assert!(log.contains(OPENED), "{log}");
    });
}
