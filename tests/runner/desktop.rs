//! The agent of the guest's desktop, simulated by a shell in the guest.

use crate::api::{Api, condition};
use crate::fixture::Fixture;
use serde_json::json;

/// Opens the agent's port in the guest, sends the greeting, and answers requests. Its exit closes the port.
const AGENT: &str = "sh for n in /sys/class/virtio-ports/*/name; do \
    if [ $(cat $n) = org.jdrupes.vmop_agent.0 ]; then n=${n%/name}; p=/dev/${n##*/}; fi; done; \
    exec 3<>$p; echo 220 Hello >&3; while read -r c u <&3; do echo got $c $u >/dev/ttyS0; \
    case $c in login) echo 102 wait >&3; echo 201 in >&3;; logout) echo 202 out >&3; break;; esac; done";

#[test]
fn b18_b19_b25_a_user_is_logged_in_and_out_and_in_again_after_a_reboot() {
    let (fixture, api) = (Fixture::with_guest(), Api::start());
    let configure = |generation: i64, user: Option<&str>| {
        let display = json!({"display": {"loggedInUser": user}});
        fixture.configure(
            &json!({"namespace": "ns", "generation": generation}),
            &display,
        );
    };
    configure(1, Some("anna"));
    let vm = fixture.start(Some(&api));
    let mut console = vm.console();
    console.wait("TINY boot=1");
    vm.reaches("Booted");
    let login = |expected: (&str, &str, &str)| {
        let state = || {
            let last = api.statuses().pop()?;
            let (agent, login) = (
                condition(&last, "VmopAgentConnected"),
                condition(&last, "UserLoggedIn"),
            );
            let text = |value: &serde_json::Value| value.as_str().unwrap_or("-").to_owned();
            Some((
                text(&agent["status"]),
                text(&login["reason"]),
                text(&last["status"]["loggedInUser"]),
            ))
        };
        let expected = (
            expected.0.to_owned(),
            expected.1.to_owned(),
            expected.2.to_owned(),
        );
        vm.until(&format!("{expected:?}"), || {
            (state()? == expected).then_some(())
        });
    };
    login(("False", "VmopAgentDisconnected", "-"));
    console.type_line(AGENT);
    console.wait("got login anna");
    login(("True", "LoggedIn", "anna"));
    // The configuration changes, but not its user, so no request is sent.
    configure(2, Some("anna"));
    vm.until("generation 2", || {
        (condition(&api.statuses().pop()?, "Running")["observedGeneration"] == 2).then_some(())
    });
    configure(3, None);
    assert!(!console.wait("got logout").contains("got"));
    // The shell has exited, and its port is closed.
    login(("False", "NotRequested", "-"));
    configure(4, Some("berta"));
    console.type_line("reboot");
    console.wait("TINY boot=2");
    console.type_line(AGENT);
    console.wait("got login berta");
    login(("True", "LoggedIn", "berta"));
}
