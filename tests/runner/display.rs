//! The display with a real client: passwords, encryption, screens, USB redirection.

use crate::api::{Api, condition};
use crate::fixture::{DISPLAY, Fixture, LIMIT, Vm};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use support::web::Authority;

/// The time limit for the effect of a changed password: five times the runner's 2 s, because the test machine is busy.
const IN_EFFECT: Duration = Duration::from_secs(10);

/// Connects `spicy-screenshot` (of Debian's spice-client-gtk) to the display, by TLS if there is an authority to trust.
/// Returns whether it has a picture, and its output.
fn client(fixture: &Fixture, authority: Option<&Path>) -> (bool, String) {
    client_with(fixture, authority, &[])
}

/// Whether a client with that password is accepted. A rejection must be for the password.
fn admitted(fixture: &Fixture, password: &str) -> bool {
    let (admitted, output) = client_with(fixture, None, &["--password", password]);
    // SPICE_CHANNEL_ERROR_AUTH
    assert!(admitted || output.contains("channel event: 23"), "{output}");
    admitted
}

fn client_with(fixture: &Fixture, authority: Option<&Path>, options: &[&str]) -> (bool, String) {
    let home = tempfile::tempdir().unwrap();
    let picture = home.path().join("screen.ppm");
    let (limit, port) = (LIMIT.as_secs().to_string(), DISPLAY.to_string());
    let mut command = fixture.network.command("timeout");
    command
        .args([
            &limit,
            "spicy-screenshot",
            "--host",
            "localhost",
            "--out-file",
        ])
        .arg(&picture);
    command
        .args([
            if authority.is_some() {
                "--secure-port"
            } else {
                "--port"
            },
            &port,
        ])
        .args(options);
    if let Some(authority) = authority {
        command.env("SSL_CERT_FILE", authority);
    }
    let output = command
        .env("HOME", home.path())
        .env("SPICE_DEBUG", "1")
        .env("G_MESSAGES_DEBUG", "all")
        .output();
    let output = output.unwrap_or_else(|e| panic!("spicy-screenshot: {e}; run `make install`"));
    let text = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    (
        fs::read(&picture).is_ok_and(|content| content.starts_with(b"P6")),
        text,
    )
}

/// A VM without a guest, with that display.
fn start(fixture: &Fixture, display: Value) -> Vm<'_> {
    start_with(fixture, display, None)
}

fn start_with<'a>(fixture: &'a Fixture, display: Value, api: Option<&Api>) -> Vm<'a> {
    let mut display = display;
    display["spice"]["port"] = json!(DISPLAY);
    fixture.configure(
        &json!({"namespace": "ns"}),
        &json!({"drives": [], "powerdownTimeout": 0, "display": display}),
    );
    let vm = fixture.start(api);
    vm.reaches("Booting");
    vm
}

/// Installs the certificate for the display.
pub fn certify(fixture: &Fixture, authority: &Path) {
    for (file, name) in [
        ("server.pem", "tls.crt"),
        ("server.key", "tls.key"),
        ("ca.pem", "ca.crt"),
    ] {
        fixture.write(
            &format!("config/{name}"),
            &fs::read_to_string(authority.join(file)).unwrap(),
        );
    }
}

fn serials(api: &Api) -> Vec<i64> {
    api.statuses()
        .iter()
        .filter_map(|status| status["status"]["displayPasswordSerial"].as_i64())
        .collect()
}

#[test]
fn changed_password_applies_immediately_and_the_old_one_is_rejected() {
    let (fixture, api) = (Fixture::new(), Api::start());
    fixture.write("config/display-password", "first\n");
    let vm = start_with(&fixture, json!({}), Some(&api));
    vm.until("a password", || serials(&api).contains(&1).then_some(()));
    assert!(admitted(&fixture, "first") && !admitted(&fixture, "second"));
    fixture.write("config/display-password", "second\n");
    // The client's own connection time is in it, and no time of a client with the old password.
    vm.until_within(IN_EFFECT, "the new password", || {
        admitted(&fixture, "second").then_some(())
    });
    assert!(!admitted(&fixture, "first"));
    vm.until_within(IN_EFFECT, "the report", || {
        serials(&api).contains(&2).then_some(())
    });
}

#[test]
fn b20_a_password_that_qemu_refuses_is_not_confirmed() {
    let (fixture, api) = (Fixture::new(), Api::start());
    fixture.write("config/display-password", "first");
    let vm = start_with(&fixture, json!({}), Some(&api));
    vm.until("a password", || serials(&api).contains(&1).then_some(()));
    let wait_for_condition = |status: &str, reason: &str, text: &str| {
        vm.until_within(IN_EFFECT, reason, || {
            let last = api.statuses().pop()?;
            let condition = condition(&last, "ConfigInSync");
            let has_text = condition["message"]
                .as_str()
                .unwrap_or_default()
                .contains(text);
            (condition["status"] == status && condition["reason"] == reason && has_text)
                .then_some(())
        });
    };
    // QEMU accepts 60 bytes, and clients can send 59.
    fixture.write("config/display-password", &"x".repeat(60));
    wait_for_condition("False", "PasswordNotSet", "display-password");
    assert!(admitted(&fixture, "first"));
    fixture.write("config/display-password", &"x".repeat(59));
    vm.until_within(IN_EFFECT, "the longest password", || {
        admitted(&fixture, &"x".repeat(59)).then_some(())
    });
    fixture.write("config/display-password", "second");
    vm.until_within(IN_EFFECT, "another password", || {
        serials(&api).contains(&3).then_some(())
    });
    wait_for_condition("True", "Applied", "");
    fixture.write("config/password-expiry", "whenever");
    wait_for_condition("False", "PasswordNotSet", "password-expiry");
    assert!(admitted(&fixture, "second"), "as it was");
    fixture.write("config/password-expiry", "never");
    vm.until_within(IN_EFFECT, "an expiry", || {
        serials(&api).contains(&4).then_some(())
    });
    wait_for_condition("True", "Applied", "");
    fixture.write("config/password-expiry", "now");
    vm.until_within(IN_EFFECT, "an end", || {
        serials(&api).contains(&5).then_some(())
    });
    assert!(!admitted(&fixture, "second"));
    vm.signal("-TERM");
    let end = vm.end();
    assert_eq!(serials(&api).into_iter().max(), Some(5), "{}", end.log);
}

#[test]
fn password_with_invalid_expiry_admits_no_client() {
    let (fixture, api) = (Fixture::new(), Api::start());
    fixture.write("config/display-password", "first");
    fixture.write("config/password-expiry", "tomorrow");
    let vm = start_with(&fixture, json!({}), Some(&api));
    let last = vm.until("a rejection", || {
        api.statuses()
            .pop()
            .filter(|last| condition(last, "ConfigInSync")["status"] == "False")
    });
    let condition = condition(&last, "ConfigInSync");
    assert!(
        condition["message"]
            .as_str()
            .unwrap()
            .contains("the invalid value \"tomorrow\""),
        "{condition}"
    );
    assert!(!admitted(&fixture, "first"));
    fixture.write("config/password-expiry", "+600");
    vm.until_within(IN_EFFECT, "an end", || {
        admitted(&fixture, "first").then_some(())
    });
}

#[test]
fn display_with_certificate_accepts_only_tls_clients_that_trust_it() {
    let (fixture, ours, others) = (
        Fixture::new(),
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
    );
    Authority::make(ours.path());
    Authority::make(others.path());
    certify(&fixture, ours.path());
    let _vm = start(&fixture, json!({}));
    let (admitted, output) = client(&fixture, Some(&ours.path().join("ca.pem")));
    assert!(admitted && output.contains("Using TLS"), "{output}");
    let (admitted, output) = client(&fixture, Some(&others.path().join("ca.pem")));
    // SPICE_CHANNEL_ERROR_TLS
    assert!(
        !admitted && output.contains("channel event: 21"),
        "{output}"
    );
    let (admitted, output) = client(&fixture, None);
    assert!(!admitted && output.contains("Using plain text"), "{output}");
}

/// QEMU reads the certificates of a SPICE display once (`display-reload` is for VNC). The runner reports a change that
/// QEMU does not follow.
#[test]
fn renewed_certificate_is_reported_until_the_next_start() {
    let (fixture, api, first, second) = (
        Fixture::new(),
        Api::start(),
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
    );
    Authority::make(first.path());
    Authority::make(second.path());
    let admitted = |dir: &Path| client(&fixture, Some(&dir.join("ca.pem"))).0;
    let wait_for_condition = |vm: &Vm<'_>, status: &str, reason: &str| {
        vm.until_within(IN_EFFECT, reason, || {
            let last = api.statuses().pop()?;
            let condition = condition(&last, "ConfigInSync").clone();
            (condition["status"] == status && condition["reason"] == reason).then_some(condition)
        })
    };
    certify(&fixture, first.path());
    let vm = start_with(&fixture, json!({}), Some(&api));
    wait_for_condition(&vm, "True", "Applied");
    certify(&fixture, second.path());
    let condition = wait_for_condition(&vm, "False", "RestartNeeded");
    assert!(
        condition["message"]
            .as_str()
            .unwrap()
            .contains("certificate"),
        "{condition}"
    );
    assert!(admitted(first.path()) && !admitted(second.path()));
    certify(&fixture, first.path());
    wait_for_condition(&vm, "True", "Applied");
    certify(&fixture, second.path());
    wait_for_condition(&vm, "False", "RestartNeeded");
    vm.signal("-TERM");
    vm.end();
    let vm = start_with(&fixture, json!({}), Some(&api));
    wait_for_condition(&vm, "True", "Applied");
    assert!(admitted(second.path()) && !admitted(first.path()));
}

#[test]
fn password_added_to_an_open_display_needs_a_restart_and_is_reported() {
    let (fixture, api) = (Fixture::new(), Api::start());
    let vm = start_with(&fixture, json!({}), Some(&api));
    fixture.write("config/display-password", "late");
    let condition = vm.until_within(IN_EFFECT, "the report", || {
        let last = api.statuses().pop()?;
        Some(condition(&last, "ConfigInSync").clone())
            .filter(|condition| condition["reason"] == "RestartNeeded")
    });
    assert!(
        condition["message"].as_str().unwrap().contains("password"),
        "{condition}"
    );
    assert!(client(&fixture, None).0);
}

#[test]
fn a_display_that_should_be_encrypted_never_comes_up_without() {
    let fixture = Fixture::new();
    fixture.configure(
        &json!({}),
        &json!({"drives": [], "display": {"spice": {"port": DISPLAY}}}),
    );
    fixture.write("config/tls.crt", "nonsense");
    let end = fixture.start(None).end();
    assert_eq!(
        (end.code, &end.outcome["reason"]),
        (64, &json!("InvalidConfig")),
        "{}",
        end.log
    );
    fixture.write("config/tls.key", "nonsense");
    let end = fixture.start(None).end();
    assert_eq!(
        (end.code, &end.outcome["reason"]),
        (70, &json!("StartFailed")),
        "{}",
        end.log
    );
}

/// The start of a UTF-16 file is not UTF-8 text.
const NO_TEXT: [u8; 2] = [0xff, 0xfe];

#[test]
fn a_display_that_should_ask_for_a_password_never_comes_up_open() {
    let fixture = Fixture::new();
    fixture.configure(
        &json!({}),
        &json!({"drives": [], "display": {"spice": {"port": DISPLAY}}}),
    );
    for (name, code, text) in [
        ("display-password", 64, "UTF-8"),
        ("password-expiry", 64, "UTF-8"),
    ] {
        fixture.write("config/display-password", "geheim");
        fs::write(fixture.path("config").join(name), NO_TEXT).unwrap();
        let end = fixture.start(None).end();
        assert_eq!(
            (end.code, &end.outcome["reason"]),
            (code, &json!("InvalidConfig")),
            "{}",
            end.log
        );
        let message = end.outcome["message"].as_str().unwrap();
        assert!(
            message.contains(&format!("config/{name}")) && message.contains(text),
            "{message}"
        );
    }
    fixture.write("config/password-expiry", "never");
    fs::set_permissions(
        fixture.path("config/display-password"),
        fs::Permissions::from_mode(0o000),
    )
    .unwrap();
    let end = fixture.start(None).end();
    assert_eq!(
        (end.code, &end.outcome["reason"]),
        (66, &json!("DataNotAccessible")),
        "{}",
        end.log
    );
}

#[test]
fn unreadable_password_is_reported_and_the_previous_one_remains() {
    let (fixture, api) = (Fixture::new(), Api::start());
    fixture.write("config/display-password", "first");
    let vm = start_with(&fixture, json!({}), Some(&api));
    let wait_for_condition = |status: &str, reason: &str| {
        vm.until_within(IN_EFFECT, reason, || {
            let condition = condition(&api.statuses().pop()?, "ConfigInSync").clone();
            (condition["status"] == status && condition["reason"] == reason).then_some(condition)
        })
    };
    vm.until("a password", || serials(&api).contains(&1).then_some(()));
    wait_for_condition("True", "Applied");
    for name in ["display-password", "password-expiry"] {
        fs::write(fixture.path("config").join(name), NO_TEXT).unwrap();
        let condition = wait_for_condition("False", "InvalidConfig");
        assert!(
            condition["message"].as_str().unwrap().contains(name),
            "{condition}"
        );
        assert!(admitted(&fixture, "first"));
        fixture.write("config/display-password", "first");
        let _ = fs::remove_file(fixture.path("config/password-expiry"));
        wait_for_condition("True", "Applied");
    }
    fixture.write("config/display-password", "second");
    vm.until_within(IN_EFFECT, "the new password", || {
        admitted(&fixture, "second").then_some(())
    });
}

#[test]
fn a_client_finds_as_many_screens_and_usb_channels_as_configured() {
    for (outputs, redirects) in [(1, 0), (3, 4)] {
        let fixture = Fixture::new();
        let _vm = start(
            &fixture,
            json!({"outputs": outputs, "spice": {"usbRedirects": redirects}}),
        );
        let (admitted, output) = client(&fixture, None);
        assert!(admitted, "{output}");
        let count = |kind: &str| {
            (0..9)
                .filter(|n| output.contains(&format!("{kind}:{n}: ")))
                .count()
        };
        assert_eq!(
            (count("display-2"), count("usbredir-9")),
            (outputs, redirects),
            "{output}"
        );
    }
}

#[test]
fn each_way_of_streaming_video_is_taken_by_qemu() {
    for way in ["off", "all", "filter"] {
        let fixture = Fixture::new();
        let vm = start(&fixture, json!({"spice": {"streamingVideo": way}}));
        let arguments = vm.arguments();
        let spice = arguments
            .iter()
            .skip_while(|argument| *argument != "-spice")
            .nth(1)
            .unwrap();
        assert!(
            spice.ends_with(&format!(",streaming-video={way}")),
            "{spice}"
        );
        assert!(client(&fixture, None).0);
        vm.signal("-TERM");
        assert_eq!(vm.end().code, 10);
    }
}
