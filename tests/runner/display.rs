//! The display with a real client: passwords, encryption, screens, USB redirection.

use crate::api::{Api, condition};
use crate::rig::{DISPLAY, LIMIT, Rig, Vm};
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
fn client(rig: &Rig, authority: Option<&Path>) -> (bool, String) {
    client_with(rig, authority, &[])
}

/// Whether a client with that password is accepted. A rejection must be for the password.
fn admitted(rig: &Rig, password: &str) -> bool {
    let (admitted, said) = client_with(rig, None, &["--password", password]);
    // SPICE_CHANNEL_ERROR_AUTH
    assert!(admitted || said.contains("channel event: 23"), "{said}");
    admitted
}

fn client_with(rig: &Rig, authority: Option<&Path>, options: &[&str]) -> (bool, String) {
    let home = tempfile::tempdir().unwrap();
    let picture = home.path().join("screen.ppm");
    let (limit, port) = (LIMIT.as_secs().to_string(), DISPLAY.to_string());
    let mut command = rig.network.command("timeout");
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
    let said = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    (
        fs::read(&picture).is_ok_and(|content| content.starts_with(b"P6")),
        said,
    )
}

/// A VM without a guest, with that display.
fn start(rig: &Rig, display: Value) -> Vm<'_> {
    start_with(rig, display, None)
}

fn start_with<'a>(rig: &'a Rig, display: Value, api: Option<&Api>) -> Vm<'a> {
    let mut display = display;
    display["spice"]["port"] = json!(DISPLAY);
    rig.configure(
        &json!({"namespace": "ns"}),
        &json!({"drives": [], "powerdownTimeout": 0, "display": display}),
    );
    let vm = rig.start(api);
    vm.reaches("Booting");
    vm
}

/// Installs the certificate for the display.
pub fn certify(rig: &Rig, authority: &Path) {
    for (file, name) in [
        ("server.pem", "tls.crt"),
        ("server.key", "tls.key"),
        ("ca.pem", "ca.crt"),
    ] {
        rig.write(
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
fn a_changed_password_is_in_effect_at_once_and_the_old_one_lets_nobody_in() {
    let (rig, api) = (Rig::new(), Api::start());
    rig.write("config/display-password", "first\n");
    let vm = start_with(&rig, json!({}), Some(&api));
    vm.until("a password", || serials(&api).contains(&1).then_some(()));
    assert!(admitted(&rig, "first") && !admitted(&rig, "second"));
    rig.write("config/display-password", "second\n");
    // The client's own connection time is in it, and no time of a client with the old password.
    vm.until_within(IN_EFFECT, "the new password", || {
        admitted(&rig, "second").then_some(())
    });
    assert!(!admitted(&rig, "first"));
    vm.until_within(IN_EFFECT, "the word of it", || {
        serials(&api).contains(&2).then_some(())
    });
}

#[test]
fn b20_a_password_that_qemu_refuses_is_not_confirmed() {
    let (rig, api) = (Rig::new(), Api::start());
    rig.write("config/display-password", "first");
    let vm = start_with(&rig, json!({}), Some(&api));
    vm.until("a password", || serials(&api).contains(&1).then_some(()));
    let told = |status: &str, reason: &str, word: &str| {
        vm.until_within(IN_EFFECT, reason, || {
            let last = api.statuses().pop()?;
            let condition = condition(&last, "ConfigInSync");
            let says = condition["message"]
                .as_str()
                .unwrap_or_default()
                .contains(word);
            (condition["status"] == status && condition["reason"] == reason && says).then_some(())
        });
    };
    // A SPICE ticket has at most 60 bytes (SPICE_MAX_PASSWORD_LENGTH).
    rig.write("config/display-password", &"x".repeat(61));
    told("False", "PasswordNotSet", "display-password");
    assert!(admitted(&rig, "first"));
    rig.write("config/display-password", "second");
    vm.until_within(IN_EFFECT, "another password", || {
        serials(&api).contains(&2).then_some(())
    });
    told("True", "Applied", "");
    rig.write("config/password-expiry", "whenever");
    told("False", "InvalidConfig", "password-expiry");
    assert!(admitted(&rig, "second"), "as it was");
    rig.write("config/password-expiry", "never");
    vm.until_within(IN_EFFECT, "an expiry", || {
        serials(&api).contains(&3).then_some(())
    });
    told("True", "Applied", "");
    rig.write("config/password-expiry", "now");
    vm.until_within(IN_EFFECT, "an end", || {
        serials(&api).contains(&4).then_some(())
    });
    assert!(!admitted(&rig, "second"));
    vm.signal("-TERM");
    let end = vm.end();
    assert_eq!(serials(&api).into_iter().max(), Some(4), "{}", end.log);
}

#[test]
fn a_password_whose_end_cannot_be_used_lets_nobody_in_from_the_start_on() {
    let (rig, api) = (Rig::new(), Api::start());
    rig.write("config/display-password", "first");
    rig.write("config/password-expiry", "tomorrow");
    let vm = start_with(&rig, json!({}), Some(&api));
    let last = vm.until("a refusal", || {
        api.statuses()
            .pop()
            .filter(|last| condition(last, "ConfigInSync")["status"] == "False")
    });
    let condition = condition(&last, "ConfigInSync");
    assert!(
        condition["message"]
            .as_str()
            .unwrap()
            .contains("\"tomorrow\" is not allowed"),
        "{condition}"
    );
    assert!(!admitted(&rig, "first"));
    rig.write("config/password-expiry", "+600");
    vm.until_within(IN_EFFECT, "an end", || {
        admitted(&rig, "first").then_some(())
    });
}

#[test]
fn a_display_with_a_certificate_is_reached_by_tls_alone_and_by_who_trusts_it() {
    let (rig, ours, others) = (
        Rig::new(),
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
    );
    Authority::make(ours.path());
    Authority::make(others.path());
    certify(&rig, ours.path());
    let _vm = start(&rig, json!({}));
    let (admitted, said) = client(&rig, Some(&ours.path().join("ca.pem")));
    assert!(admitted && said.contains("Using TLS"), "{said}");
    let (admitted, said) = client(&rig, Some(&others.path().join("ca.pem")));
    // SPICE_CHANNEL_ERROR_TLS
    assert!(!admitted && said.contains("channel event: 21"), "{said}");
    let (admitted, said) = client(&rig, None);
    assert!(!admitted && said.contains("Using plain text"), "{said}");
}

/// QEMU reads the certificates of a SPICE display once (`display-reload` is for VNC). The runner reports a change that
/// QEMU does not follow.
#[test]
fn a_renewed_certificate_is_told_as_long_as_it_waits_for_the_next_start() {
    let (rig, api, first, second) = (
        Rig::new(),
        Api::start(),
        tempfile::tempdir().unwrap(),
        tempfile::tempdir().unwrap(),
    );
    Authority::make(first.path());
    Authority::make(second.path());
    let admitted = |dir: &Path| client(&rig, Some(&dir.join("ca.pem"))).0;
    let told = |vm: &Vm<'_>, status: &str, reason: &str| {
        vm.until_within(IN_EFFECT, reason, || {
            let last = api.statuses().pop()?;
            let condition = condition(&last, "ConfigInSync").clone();
            (condition["status"] == status && condition["reason"] == reason).then_some(condition)
        })
    };
    certify(&rig, first.path());
    let vm = start_with(&rig, json!({}), Some(&api));
    told(&vm, "True", "Applied");
    certify(&rig, second.path());
    let condition = told(&vm, "False", "RestartNeeded");
    assert!(
        condition["message"]
            .as_str()
            .unwrap()
            .contains("certificate"),
        "{condition}"
    );
    assert!(admitted(first.path()) && !admitted(second.path()));
    certify(&rig, first.path());
    told(&vm, "True", "Applied");
    certify(&rig, second.path());
    told(&vm, "False", "RestartNeeded");
    vm.signal("-TERM");
    vm.end();
    let vm = start_with(&rig, json!({}), Some(&api));
    told(&vm, "True", "Applied");
    assert!(admitted(second.path()) && !admitted(first.path()));
}

#[test]
fn a_password_for_a_display_that_was_started_open_waits_for_the_next_start_and_is_told() {
    let (rig, api) = (Rig::new(), Api::start());
    let vm = start_with(&rig, json!({}), Some(&api));
    rig.write("config/display-password", "late");
    let condition = vm.until_within(IN_EFFECT, "word of it", || {
        let last = api.statuses().pop()?;
        Some(condition(&last, "ConfigInSync").clone())
            .filter(|condition| condition["reason"] == "RestartNeeded")
    });
    assert!(
        condition["message"].as_str().unwrap().contains("password"),
        "{condition}"
    );
    assert!(client(&rig, None).0);
}

#[test]
fn a_display_that_should_be_encrypted_never_comes_up_without() {
    let rig = Rig::new();
    rig.configure(
        &json!({}),
        &json!({"drives": [], "display": {"spice": {"port": DISPLAY}}}),
    );
    rig.write("config/tls.crt", "nonsense");
    let end = rig.start(None).end();
    assert_eq!(
        (end.code, &end.outcome["reason"]),
        (64, &json!("InvalidConfig")),
        "{}",
        end.log
    );
    rig.write("config/tls.key", "nonsense");
    let end = rig.start(None).end();
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
    let rig = Rig::new();
    rig.configure(
        &json!({}),
        &json!({"drives": [], "display": {"spice": {"port": DISPLAY}}}),
    );
    for (name, code, word) in [
        ("display-password", 64, "UTF-8"),
        ("password-expiry", 64, "UTF-8"),
    ] {
        rig.write("config/display-password", "geheim");
        fs::write(rig.path("config").join(name), NO_TEXT).unwrap();
        let end = rig.start(None).end();
        assert_eq!(
            (end.code, &end.outcome["reason"]),
            (code, &json!("InvalidConfig")),
            "{}",
            end.log
        );
        let message = end.outcome["message"].as_str().unwrap();
        assert!(
            message.contains(&format!("config/{name}")) && message.contains(word),
            "{message}"
        );
    }
    rig.write("config/password-expiry", "never");
    fs::set_permissions(
        rig.path("config/display-password"),
        fs::Permissions::from_mode(0o000),
    )
    .unwrap();
    let end = rig.start(None).end();
    assert_eq!(
        (end.code, &end.outcome["reason"]),
        (66, &json!("DataNotAccessible")),
        "{}",
        end.log
    );
}

#[test]
fn a_password_that_cannot_be_read_leaves_the_one_before_and_is_told() {
    let (rig, api) = (Rig::new(), Api::start());
    rig.write("config/display-password", "first");
    let vm = start_with(&rig, json!({}), Some(&api));
    let told = |status: &str, reason: &str| {
        vm.until_within(IN_EFFECT, reason, || {
            let condition = condition(&api.statuses().pop()?, "ConfigInSync").clone();
            (condition["status"] == status && condition["reason"] == reason).then_some(condition)
        })
    };
    vm.until("a password", || serials(&api).contains(&1).then_some(()));
    told("True", "Applied");
    for name in ["display-password", "password-expiry"] {
        fs::write(rig.path("config").join(name), NO_TEXT).unwrap();
        let condition = told("False", "InvalidConfig");
        assert!(
            condition["message"].as_str().unwrap().contains(name),
            "{condition}"
        );
        assert!(admitted(&rig, "first"));
        rig.write("config/display-password", "first");
        let _ = fs::remove_file(rig.path("config/password-expiry"));
        told("True", "Applied");
    }
    rig.write("config/display-password", "second");
    vm.until_within(IN_EFFECT, "the new password", || {
        admitted(&rig, "second").then_some(())
    });
}

#[test]
fn a_client_finds_as_many_screens_and_usb_channels_as_configured() {
    for (outputs, redirects) in [(1, 0), (3, 4)] {
        let rig = Rig::new();
        let _vm = start(
            &rig,
            json!({"outputs": outputs, "spice": {"usbRedirects": redirects}}),
        );
        let (admitted, said) = client(&rig, None);
        assert!(admitted, "{said}");
        let count = |kind: &str| {
            (0..9)
                .filter(|n| said.contains(&format!("{kind}:{n}: ")))
                .count()
        };
        assert_eq!(
            (count("display-2"), count("usbredir-9")),
            (outputs, redirects),
            "{said}"
        );
    }
}

#[test]
fn each_way_of_streaming_video_is_taken_by_qemu() {
    for way in ["off", "all", "filter"] {
        let rig = Rig::new();
        let vm = start(&rig, json!({"spice": {"streamingVideo": way}}));
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
        assert!(client(&rig, None).0);
        vm.signal("-TERM");
        assert_eq!(vm.end().code, 10);
    }
}
