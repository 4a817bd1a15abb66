//! Guests on a bridge of the host, and the privileges of the runner and its children.

use crate::fixture::{DISPLAY, Fixture};
use crate::host::Network;
use crate::processes::{children, field, without_capabilities};
use serde_json::json;
use std::fs;
use std::path::Path;

/// Asserts that no effective capability set has the right to configure networks.
fn has_no_net_admin(pid: u32) -> bool {
    let sets = ["CapEff", "CapPrm", "CapInh", "CapAmb"]
        .map(|set| u64::from_str_radix(&field(pid, set), 16).unwrap());
    sets.iter().all(|set| set & (1 << 12) == 0)
}

#[test]
fn two_guests_on_a_bridge_reach_each_other_and_leave_nothing_behind() {
    let network = Network::with_bridge();
    let (one, two) = (Fixture::with_guest(), Fixture::with_guest());
    for (fixture, uid) in [(&one, "uid-1"), (&two, "uid-2")] {
        fixture.configure(
            &json!({"uid": uid}),
            &json!({"network": [{"type": "tap", "bridge": "br0"}], "powerdownTimeout": 0}),
        );
    }
    let vms = [&one, &two].map(|fixture| fixture.start_with_taps(&network));
    // Both are searched from the start, because an unread line is not repeated.
    let [mut first, mut second] = [vms[0].console(), vms[1].console()];
    first.wait("ready");
    second.wait("ready");
    first.type_line(
        "sh ip address add 10.9.0.1/24 dev eth0; cat /sys/class/net/eth0/address; echo done",
    );
    let address = first.wait("TINY sh done");
    second.type_line(
        "sh ip address add 10.9.0.2/24 dev eth0; cat /sys/class/net/eth0/address; echo done",
    );
    assert_ne!(
        second.wait("TINY sh done"),
        address,
        "each has its own address"
    );
    second.type_line(r#"sh printf "GET / HTTP/1.0\r\n\r\n" | nc -w 20 10.9.0.1 8080"#);
    second.wait("TINY sh TINY http");
    let links = network.ip(&["-o", "link", "show", "master", "br0"]);
    assert_eq!(links.lines().count(), 2, "{links}");
    assert!(
        links.lines().all(|line| line.contains("vmtap")
            && line.contains("mtu 1400")
            && line.contains(" fe:")),
        "{links}"
    );
    for vm in &vms {
        let pids = [vec![vm.pid()], children(vm.pid())].concat();
        assert!(
            pids.len() == 2 && pids.iter().all(|pid| has_no_net_admin(*pid)),
            "{pids:?}"
        );
        assert!(pids.iter().all(|pid| field(*pid, "NoNewPrivs") == "1"));
    }
    for vm in vms {
        vm.signal("-TERM");
        assert_eq!(vm.end().code, 10);
    }
    assert_eq!(network.ip(&["-o", "link", "show", "master", "br0"]), "");
}

/// The response to `GET /metrics` in the network's namespace.
fn metrics(network: &Network, port: u16) -> String {
    let ask = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET /metrics HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3"
    );
    network.bash(&ask)
}

/// The bytes that the guest has received or sent on its first network.
fn counted(text: &str, what: &str) -> f64 {
    let begin = format!("kubevirt_vmi_network_{what}_total{{");
    let line = text
        .lines()
        .find(|line| line.starts_with(&begin) && line.contains("interface=\"hostnet0\""));
    line.unwrap_or_else(|| panic!("no {what} in\n{text}"))
        .rsplit(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
fn tap_traffic_to_the_guest_is_counted_as_received_and_tap_capability_is_dropped() {
    const PORT: u16 = 9180;
    let network = Network::with_bridge();
    network.ip(&["address", "add", "10.9.0.254/24", "dev", "br0"]);
    let fixture = Fixture::with_guest();
    fixture.configure(
        &json!({"metricsPort": PORT}),
        &json!({"network": [{"type": "tap", "bridge": "br0"}], "useTpm": true, "powerdownTimeout": 0}),
    );
    let vm = fixture.start_with_taps(&network);
    let mut console = vm.console();
    console.wait("ready");
    let pids = [vec![vm.pid()], children(vm.pid())].concat();
    let names: Vec<String> = pids.iter().map(|pid| field(*pid, "Name")).collect();
    assert!(
        pids.len() == 3 && names.iter().any(|name| name == "swtpm"),
        "{names:?}"
    );
    assert!(pids.iter().all(|pid| has_no_net_admin(*pid)), "{names:?}");
    console.type_line("sh ip address add 10.9.0.1/24 dev eth0; echo done");
    console.wait("TINY sh done");
    let before = metrics(&network, PORT);
    let grown = |after: &str, what: &str| counted(after, what) - counted(&before, what);
    // Repeated: packets may be lost until the bridge knows the guest's address.
    let mut given = 0.0;
    let after = vm.until("what was sent", || {
        // No program listens there, and the guest responds only sometimes.
        network.bash("for n in {1..100}; do printf %01000d 0 >/dev/udp/10.9.0.1/9 || true; done");
        given += 100.0;
        let after = metrics(&network, PORT);
        let is_whole = after
            .lines()
            .any(|line| line.starts_with("vmoperator_qemu_answers{") && line.ends_with(" 1.0"));
        let is_counted =
            grown(&after, "receive_bytes") > 400_000.0 && grown(&after, "receive_packets") > 400.0;
        (is_whole && is_counted).then_some(after)
    });
    assert!(
        grown(&after, "receive_packets") < given + 100.0,
        "{given} were sent\n{after}"
    );
    let sent = grown(&after, "transmit_bytes");
    assert!(sent > 0.0 && sent < 100_000.0, "{sent} of\n{after}");
    // With a tap and a disk, each documented metric exists.
    let missing = vm_operator::api::runner::metrics::ALL
        .iter()
        .filter(|figure| !after.contains(&format!("\n{}{{", figure.name)));
    let missing: Vec<&str> = missing
        .map(|figure| figure.name)
        .filter(|name| !name.starts_with("kubevirt_vmi_memory_"))
        .collect();
    assert_eq!(missing, [""; 0]);
    let served = after
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    assert!(
        served.clone().count() > 30
            && served
                .clone()
                .all(|name| vm_operator::api::runner::metrics::metric(name).is_some())
    );
    let complete = vm.until("the guest's memory", || {
        let text = metrics(&network, PORT);
        let is_complete = vm_operator::api::runner::metrics::ALL
            .iter()
            .all(|figure| text.contains(&format!("\n{}{{", figure.name)));
        is_complete.then_some(text)
    });
    record(&complete);
}

/// Writes the input of `tests/monitoring/selftest`.
fn record(answer: &str) {
    let (_, text) = answer.split_once("\r\n\r\n").unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/scrapes");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("runner.prom"), text).unwrap();
}

#[test]
fn a_tap_that_cannot_be_made_is_explained() {
    let fixture = Fixture::new();
    fixture.configure(
        &json!({}),
        &json!({"network": [{"type": "tap"}], "drives": []}),
    );
    let end = fixture.start(None).end();
    assert_eq!(end.code, 66, "{}", end.log);
    let message = end.outcome["message"].as_str().unwrap();
    assert!(
        message.starts_with(
            "vm.network[0]: the runner cannot open /dev/net/tun as uid 107: No such file"
        ),
        "{message}"
    );
    assert!(message.contains("tap.tunResource"), "{message}");
    let network = Network::new();
    fixture.configure(
        &json!({}),
        &json!({"network": [{"type": "tap", "bridge": "none"}], "drives": []}),
    );
    let end = fixture.start_with_taps(&network).end();
    let message = end.outcome["message"].as_str().unwrap();
    assert!(
        message.starts_with(
            "vm.network[0]: the runner cannot attach the tap device to the bridge \"none\": No such device"
        ),
        "{message}"
    );
}

#[test]
fn no_process_has_privileges_and_qemu_is_confined() {
    const PASSWORD: &str = "not-for-anybody-else";
    let fixture = Fixture::new();
    fixture.write("config/display-password", PASSWORD);
    let display = json!({"spice": {"port": DISPLAY, "usbRedirects": 0}});
    fixture.configure(
        &json!({}),
        &json!({"drives": [], "useTpm": true, "powerdownTimeout": 0, "display": display, "firmware": "uefi"}),
    );
    let vm = fixture.start(None);
    vm.reaches("Booting");
    for pid in without_capabilities(&vm) {
        let name = field(pid, "Name");
        let others = ["NoNewPrivs", "Seccomp", "Uid", "Umask"].map(|of| field(pid, of));
        assert_eq!(others, ["1", "2", "107", "0077"], "{name}");
        for file in ["cmdline", "environ"] {
            let content = fs::read(format!("/proc/{pid}/{file}")).unwrap();
            assert!(
                !String::from_utf8_lossy(&content).contains(PASSWORD),
                "{file} of {name}"
            );
        }
    }
    vm.signal("-TERM");
    let end = vm.end();
    assert_eq!(end.code, 10, "{}", end.log);
    assert!(
        end.log.contains("qemu-system") && !end.log.contains(PASSWORD),
        "{}",
        end.log
    );
    // The firmware's variables and the TPM's state are still written.
    for name in ["fw-vars.fd", "tpm2-00.permall"] {
        assert!(
            fs::metadata(fixture.path("data").join(name)).unwrap().len() > 0,
            "{name}"
        );
    }
}

#[test]
fn files_of_another_user_are_reported_with_the_chown_command() {
    let fixture = Fixture::new();
    fixture.configure(&json!({}), &json!({"drives": [], "firmware": "uefi"}));
    // The files of the Java VM-Operator's runner, which is root, on a volume that ignores fsGroup.
    fs::write(fixture.path("data/fw-vars.fd"), vec![0; 540_672]).unwrap();
    let end = fixture.start(None).end();
    let message = end.outcome["message"].as_str().unwrap();
    assert_eq!(
        (end.code, end.outcome["reason"].as_str()),
        (66, Some("DataNotAccessible")),
        "{}",
        end.log
    );
    assert!(
        message.starts_with("/tmp/data/fw-vars.fd belongs to uid 0"),
        "{message}"
    );
    assert!(message.ends_with("chown -R 107:107 /tmp/data"), "{message}");
}
