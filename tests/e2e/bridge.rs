//! VMs on a bridge of their node, with the device plugin.

use super::harness::bridge::Bridge;
use super::harness::vm::{BOOT, SHUTDOWN, condition};
use super::harness::{e2e, e2e_with, kubectl, process};
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use tokio::net::TcpSocket;

const BRIDGE: &str = "vmop-e2e0";

/// A reserved port of the node, which is this machine. It is bound with `SO_REUSEPORT` and does not listen, so that no
/// other program gets it, but a display can use it.
struct Port(TcpSocket);

impl Port {
    fn reserve() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        Self(socket)
    }

    fn number(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }
}

/// A VM on that bridge, and so in the node's network, where its display needs a port.
fn on(bridge: &str, port: &Port) -> Value {
    json!({"spec": {"vm": {"networks": [{"tap": {"bridge": bridge}}], "display": {"spice": {"port": port.number()}}}}})
}

/// Asserts that no process of the pod has a capability or can get one.
fn has_no_capability(pod_uid: &str) {
    for program in ["vm-runner-tap", "qemu-system-x86"] {
        let pids = process::of_pod(pod_uid, program);
        assert_eq!(pids.len(), 1, "{program} of pod {pod_uid}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(
                process::field(&pids[0], set),
                "0000000000000000",
                "{set} of {program}"
            );
        }
        assert_eq!(
            ["Uid", "NoNewPrivs", "Seccomp"].map(|name| process::field(&pids[0], name)),
            ["107", "1", "2"]
        );
    }
}

#[test]
fn vms_on_a_bridge_of_their_node_reach_each_other() {
    e2e_with(2, "privileged", json!({}), async |space| {
        let bridge = Bridge::make(BRIDGE);
        let ports = [Port::reserve(), Port::reserve()];
        let one = space.create("one", on(BRIDGE, &ports[0])).await;
        let two = space.create("two", on("vmop-e2e1", &ports[1])).await;

        // A missing bridge is reported with the next step, and retried.
        two.until("reports the missing bridge", BOOT, |vm| {
            let ready = condition(vm, "Ready");
            let message = ready["message"].as_str().unwrap_or_default();
            message.contains("cannot attach the tap device to the bridge \"vmop-e2e1\"")
                && message.contains("spec.nodeSelector")
        })
        .await;
        two.patch(&on(BRIDGE, &ports[1])).await;
        for vm in [&one, &two] {
            vm.booted().await;
            has_no_capability(&vm.pod_uid());
        }
        let members = bridge.members();
        assert!(
            members.len() == 2 && members.iter().all(|link| link.contains("vmtap")),
            "{members:#?}"
        );
        let node = kubectl::run(&[
            "get",
            "nodes",
            "--output",
            "jsonpath={.items[0].status.addresses[0].address}",
        ])
        .await;
        assert_eq!(
            one.now()["status"]["podIP"],
            node,
            "the pod is in the node's network"
        );

        one.guest("ip address add 10.9.0.1/24 dev eth0; echo done")
            .await;
        two.guest("ip address add 10.9.0.2/24 dev eth0; echo done")
            .await;
        let answer = two
            .guest(r#"printf "GET / HTTP/1.0\r\n\r\n" | nc -w 10 10.9.0.1 8080"#)
            .await;
        assert!(answer.contains("TINY http"), "{answer}");

        for vm in [&one, &two] {
            vm.set_state("Stopped").await;
        }
        for vm in [&one, &two] {
            vm.pod_gone(SHUTDOWN).await;
        }
        assert!(bridge.members().is_empty(), "{:#?}", bridge.members());
    });
}

#[test]
fn a_namespace_that_does_not_admit_a_tap_says_how_to_let_it() {
    e2e(1, async |space| {
        let vm = space.create("vm", on(BRIDGE, &Port::reserve())).await;
        let vm_object = vm.wait_for_reason("PolicyRefused", 30).await;
        let message = condition(&vm_object, "Ready")["message"].to_string();
        for text in [
            "violates PodSecurity",
            "hostNetwork",
            "remove spec.vm.networks[",
            "in a namespace with a Pod Security level that admits the VM's pod",
        ] {
            assert!(message.contains(text), "{text}: {message}");
        }
    });
}
