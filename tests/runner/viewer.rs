//! A connected viewer: its report, and the traffic to it.

use crate::api::{Api, condition};
use crate::fixture::{DISPLAY, Fixture, Vm};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::process::{Child, Stdio};
use tempfile::TempDir;

/// A client without a window that stays connected: `spicy-stats` (of Debian's spice-client-gtk).
pub struct Viewer {
    child: Child,
    home: TempDir,
}

impl Viewer {
    pub fn connect(fixture: &Fixture, password: Option<&str>) -> Self {
        let home = tempfile::tempdir().unwrap();
        let log = File::create(home.path().join("log")).unwrap();
        let mut command = fixture.network.command("spicy-stats");
        command.args(["--host", "127.0.0.1", "--port", &DISPLAY.to_string()]);
        command.args(
            password
                .into_iter()
                .flat_map(|password| ["--password", password]),
        );
        command
            .env("HOME", home.path())
            .env("SPICE_DEBUG", "1")
            .env("G_MESSAGES_DEBUG", "all");
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        Self {
            child: child.unwrap_or_else(|e| panic!("spicy-stats: {e}; run `make install`")),
            home,
        }
    }

    /// Its output.
    fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.home.path().join("log")).unwrap()).into_owned()
    }

    pub fn is_there(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A VM with that display and those disks.
fn start<'a>(fixture: &'a Fixture, mut spice: Value, drives: &Value, api: Option<&Api>) -> Vm<'a> {
    spice["port"] = json!(DISPLAY);
    let vm = json!({"drives": drives, "powerdownTimeout": 0, "display": {"spice": spice}});
    fixture.configure(&json!({"namespace": "ns"}), &vm);
    let vm = fixture.start(api);
    vm.reaches("Booting");
    vm
}

/// The console in the newest status: status, reason and message of its condition, and the client.
fn console(api: &Api) -> Option<[String; 4]> {
    let last = api.statuses().pop()?;
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let connected = condition(&last, "ConsoleConnected");
    Some(
        [
            &connected["status"],
            &connected["reason"],
            &connected["message"],
            &last["status"]["consoleClient"],
        ]
        .map(text),
    )
}

const CONNECTED: [&str; 4] = [
    "True",
    "Connected",
    "a console client is connected from 127.0.0.1",
    "127.0.0.1",
];
const ALONE: [&str; 4] = [
    "False",
    "Disconnected",
    "no console client is connected",
    "",
];
const STOPPED: [&str; 4] = ["False", "VmStopped", "the VM is not running", ""];

fn wait_for_report(vm: &Vm<'_>, api: &Api, expected: [&str; 4]) {
    vm.until(&format!("{expected:?}"), || {
        (console(api)? == expected).then_some(())
    });
}

/// Waits for the report of that number of connections.
fn until_connections(vm: &Vm<'_>, api: &Api, expected: i64) {
    vm.until(&format!("connection {expected}"), || {
        (api.statuses().pop()?["status"]["consoleConnections"] == expected).then_some(())
    });
}

#[test]
fn b42_connections_to_the_display_are_reported() {
    let (fixture, api) = (Fixture::new(), Api::start());
    let vm = start(&fixture, json!({}), &json!([]), Some(&api));
    wait_for_report(&vm, &api, ALONE);
    let viewer = Viewer::connect(&fixture, None);
    wait_for_report(&vm, &api, CONNECTED);
    until_connections(&vm, &api, 1);
    drop(viewer);
    wait_for_report(&vm, &api, ALONE);
    // The display serves one client. A second client replaces the first.
    let mut first = Viewer::connect(&fixture, None);
    until_connections(&vm, &api, 2);
    let mut second = Viewer::connect(&fixture, None);
    until_connections(&vm, &api, 3);
    vm.until("the end of the first", || (!first.is_there()).then_some(()));
    assert!(second.is_there(), "{}", second.output());
    wait_for_report(&vm, &api, CONNECTED);
    // The connection ends with the VM.
    vm.signal("-TERM");
    assert_eq!(vm.end().code, 10);
    assert_eq!(console(&api).unwrap(), STOPPED);
}

#[test]
fn rejected_viewer_is_not_reported_as_connected() {
    let (fixture, api) = (Fixture::new(), Api::start());
    fixture.write("config/display-password", "right");
    let vm = start(&fixture, json!({}), &json!([]), Some(&api));
    let mut rejected = Viewer::connect(&fixture, Some("wrong"));
    // SPICE_CHANNEL_ERROR_AUTH
    vm.until("a rejection", || {
        (rejected.output().contains("channel event: 23") || !rejected.is_there()).then_some(())
    });
    let viewer = Viewer::connect(&fixture, Some("right"));
    wait_for_report(&vm, &api, CONNECTED);
    until_connections(&vm, &api, 1);
    drop(viewer);
    wait_for_report(&vm, &api, ALONE);
}

/// A boot sector with a picture that changes all the time: 320 by 200 points (BIOS mode 13h), in another colour each time.
const PICTURES: [u8; 27] = [
    0xb8, 0x13, 0x00, // mov ax, 13h
    0xcd, 0x10, // int 10h
    0xb8, 0x00, 0xa0, // mov ax, a000h
    0x8e, 0xc0, // mov es, ax
    0x43, // picture: inc bx
    0x31, 0xff, // xor di, di
    0xb9, 0x00, 0xfa, // mov cx, 64000
    0x89, 0xc8, // point: mov ax, cx
    0x01, 0xd8, // add ax, bx
    0x30, 0xe0, // xor al, ah
    0xaa, // stosb
    0xe2, 0xf7, // loop point
    0xeb, 0xef, // jmp picture
];

/// Messages of the client: its picture is complete; a video stream starts; a picture of a stream has arrived.
const PICTURE: &str = "display_handle_mark";
const STREAM: &str = "display_handle_stream_create";
const PICTURE_OF_STREAM: &str = "video margin";

/// The number of bytes that the display has sent.
fn sent(fixture: &Fixture) -> u64 {
    let filter = format!("sport = :{DISPLAY}");
    let output = fixture
        .network
        .command("ss")
        .args(["-tinH", &filter])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let counts = text
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("bytes_sent:")?.parse::<u64>().ok());
    counts.sum()
}

#[test]
fn b11_video_is_streamed_only_where_configured() {
    for (way, streams) in [("all", true), ("off", false)] {
        let fixture = Fixture::new();
        let mut disk = vec![0; 1 << 20];
        disk[..PICTURES.len()].copy_from_slice(&PICTURES);
        disk[510..512].copy_from_slice(&[0x55, 0xaa]);
        fs::write(fixture.path("disk.img"), disk).unwrap();
        fixture.own("disk.img");
        let drives = json!([{"type": "raw", "resource": "/tmp/disk.img"}]);
        let vm = start(&fixture, json!({"streamingVideo": way}), &drives, None);
        let viewer = Viewer::connect(&fixture, None);
        vm.until("a picture", || {
            viewer.output().contains(PICTURE).then_some(())
        });
        if streams {
            vm.until("a stream", || {
                viewer.output().contains(STREAM).then_some(())
            });
            let pictures = || viewer.output().matches(PICTURE_OF_STREAM).count();
            vm.until("a stream's pictures", || (pictures() > 20).then_some(()));
        } else {
            // Twenty pictures start a stream, and a picture has at most 4 bytes for each of its 64,000 points.
            vm.until("forty pictures", || {
                (sent(&fixture) > 40 * 4 * 64_000).then_some(())
            });
            assert!(!viewer.output().contains(STREAM), "{}", viewer.output());
        }
    }
}
