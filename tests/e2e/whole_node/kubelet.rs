//! A restarted kubelet.

use crate::devices::{OPENED, TUN, node_offers, plugin_container, slots, tap_in_pod};
use crate::harness::{e2e, environment, eventually};
use serde_json::json;

#[test]
fn devices_are_offered_again_after_a_restart_of_the_kubelet() {
    e2e(environment::SLOTS, async |space| {
        node_offers(TUN, slots("/dev/net/tun")).await;
        let before = plugin_container().await["containerID"].clone();
        environment::cluster(&["restart-kubelet"]);
        eventually("the kubelet starts the plugin again", 60, async || {
            let container = plugin_container().await;
            if container["containerID"] != before && container["ready"] == true {
                Ok(())
            } else {
                Err(container.to_string())
            }
        })
        .await;
        node_offers(TUN, slots("/dev/net/tun")).await;
        let log = tap_in_pod(space, "asks", json!({TUN: "1"})).await;
        assert!(log.contains(OPENED), "{log}");
    });
}
