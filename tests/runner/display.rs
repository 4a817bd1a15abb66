//! The display, seen by a real client: encryption, screens, USB redirection. (Passwords: tests/e2e/display.rs.)

use crate::fetch::server::Authority;
use crate::rig::{BOOT, Rig, Vm};
use serde_json::{Value, json};
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const TIME: Duration = Duration::from_secs(20);

/// Connects `spicy-screenshot` (Debian's spice-client-gtk) to the port, by TLS if there is an authority to trust; gives
/// whether it has a picture, and what it has said.
fn client(port: u16, authority: Option<&Path>) -> (bool, String) {
    let home = tempfile::tempdir().unwrap();
    let picture = home.path().join("screen.ppm");
    let mut command = Command::new("timeout");
    command.args(["20", "spicy-screenshot", "--host", "localhost", "--out-file"]).arg(&picture);
    command.args([if authority.is_some() { "--secure-port" } else { "--port" }, &port.to_string()]);
    if let Some(authority) = authority {
        command.env("SSL_CERT_FILE", authority);
    }
    let output = command.env("HOME", home.path()).env("SPICE_DEBUG", "1").env("G_MESSAGES_DEBUG", "all").output();
    let output = output.unwrap_or_else(|e| panic!("spicy-screenshot: {e}; run `make install`"));
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (fs::read(&picture).is_ok_and(|content| content.starts_with(b"P6")), said)
}

/// A machine without a guest, whose display has that port.
fn start(rig: &Rig, display: Value) -> (Vm<'_>, u16) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut display = display;
    display["spice"]["port"] = json!(port);
    rig.configure(&json!({}), &json!({"drives": [], "powerdownTimeout": 0, "display": display}));
    let vm = rig.start(None);
    vm.logged("to=Booting", TIME);
    (vm, port)
}

#[test]
fn a_display_with_a_certificate_is_reached_by_tls_alone_and_by_who_trusts_it() {
    let (rig, ours, others) = (Rig::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Authority::make(ours.path());
    Authority::make(others.path());
    for (file, name) in [("server.pem", "tls.crt"), ("server.key", "tls.key"), ("ca.pem", "ca.crt")] {
        rig.write(&format!("config/{name}"), &fs::read_to_string(ours.path().join(file)).unwrap());
    }
    let (_vm, port) = start(&rig, json!({}));
    let (admitted, said) = client(port, Some(&ours.path().join("ca.pem")));
    assert!(admitted && said.contains("Using TLS"), "{said}");
    let (admitted, said) = client(port, Some(&others.path().join("ca.pem")));
    // SPICE_CHANNEL_ERROR_TLS
    assert!(!admitted && said.contains("channel event: 21"), "{said}");
    let (admitted, said) = client(port, None);
    assert!(!admitted && said.contains("Using plain text"), "{said}");
}

#[test]
fn a_display_that_should_be_encrypted_never_comes_up_without() {
    let rig = Rig::new();
    rig.configure(&json!({}), &json!({"drives": [], "display": {"spice": {"port": 5999}}}));
    rig.write("config/tls.crt", "nonsense");
    let end = rig.start(None).end(TIME);
    assert_eq!((end.code, &end.outcome["reason"]), (64, &json!("InvalidConfig")), "{}", end.log);
    rig.write("config/tls.key", "nonsense");
    let end = rig.start(None).end(TIME);
    assert_eq!((end.code, &end.outcome["reason"]), (70, &json!("StartFailed")), "{}", end.log);
}

#[test]
fn a_client_finds_as_many_screens_and_usb_channels_as_configured() {
    for (outputs, redirects) in [(1, 0), (3, 4)] {
        let rig = Rig::new();
        let (_vm, port) = start(&rig, json!({"outputs": outputs, "spice": {"usbRedirects": redirects}}));
        let (admitted, said) = client(port, None);
        assert!(admitted, "{said}");
        let count = |kind: &str| (0..9).filter(|n| said.contains(&format!("{kind}:{n}: "))).count();
        assert_eq!((count("display-2"), count("usbredir-9")), (outputs, redirects), "{said}");
    }
}

#[test]
fn each_way_of_streaming_video_is_taken_by_qemu() {
    for way in ["off", "all", "filter"] {
        let rig = Rig::new();
        let (vm, port) = start(&rig, json!({"spice": {"streamingVideo": way}}));
        assert!(rig.log().contains(&format!(",streaming-video={way}")), "{}", rig.log());
        assert!(client(port, None).0);
        vm.signal("-TERM");
        assert_eq!(vm.end(BOOT).code, 10);
    }
}
