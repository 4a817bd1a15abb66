//! CD drives while the guest runs.

use crate::api::{Api, condition};
use crate::fixture::{Fixture, Vm};
use crate::host::SilentServer;
use crate::processes::is_in_kernel_function;
use serde_json::{Value, json};
use std::fs;

fn configure(fixture: &Fixture, generation: i64, image: &str) {
    let drives = json!([{"type": "ide-cd", "file": image}, {"type": "ide-cd", "file": "/tmp/images/stays.iso"}]);
    let vm = json!({"drives": drives, "powerdownTimeout": 0});
    fixture.configure(&json!({"namespace": "ns", "generation": generation}), &vm);
}

/// Whether QEMU has that image open.
fn is_open(vm: &Vm, name: &str) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", vm.qemu())).unwrap();
    let targets = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.into_iter().any(|target| target.ends_with(name))
}

#[test]
fn b05_a_medium_is_changed_ejected_and_inserted_while_the_guest_runs() {
    let (fixture, api) = (Fixture::new(), Api::start());
    fs::create_dir(fixture.path("images")).unwrap();
    for name in ["a.iso", "b.iso", "stays.iso"] {
        fs::write(fixture.path("images").join(name), vec![0; 1 << 20]).unwrap();
    }
    configure(&fixture, 1, "/tmp/images/a.iso");
    let vm = fixture.start(Some(&api));
    let media = |generation: i64| -> Value {
        vm.until("the media", || {
            let last = api.statuses().pop()?;
            let done = condition(&last, "Running")["observedGeneration"] == generation;
            done.then(|| condition(&last, "MediaReady").clone())
        })
    };
    vm.reaches("Booting");
    assert_eq!(media(1)["status"], "True");
    assert!(is_open(&vm, "a.iso") && is_open(&vm, "stays.iso"));
    configure(&fixture, 2, "/tmp/images/b.iso");
    assert_eq!(media(2)["status"], "True", "{}", fixture.log());
    assert!(is_open(&vm, "b.iso") && !is_open(&vm, "a.iso"));
    configure(&fixture, 3, "");
    assert_eq!(media(3)["status"], "True");
    assert!(!is_open(&vm, "b.iso"));
    configure(&fixture, 4, "late.iso");
    let ready = media(4);
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("False"), &json!("ImageMissing"))
    );
    assert!(
        ready["message"]
            .as_str()
            .unwrap()
            .starts_with("CD drive 0: the CD image late.iso"),
        "{ready}"
    );
    fs::write(fixture.path("images/late.iso"), vec![0; 1 << 20]).unwrap();
    vm.until("the late image", || is_open(&vm, "late.iso").then_some(()));
    vm.until("a report", || {
        (condition(&api.statuses().pop()?, "MediaReady")["status"] == "True").then_some(())
    });
    assert!(is_open(&vm, "stays.iso"), "the other drive is unchanged");
}

#[test]
fn unresponsive_repository_leaves_drives_empty_and_does_not_block_shutdown() {
    let (fixture, api) = (Fixture::new(), Api::start());
    let _server = SilentServer::at(&fixture.path("images"));
    configure(&fixture, 1, "/tmp/images/a.iso");
    let vm = fixture.start(Some(&api));
    // During the first request.
    vm.until("the request", || {
        is_in_kernel_function(vm.pid(), "fuse_get_req").then_some(())
    });
    vm.signal("-TERM");
    let end = vm.end();
    assert_eq!(
        (end.code, end.outcome["reason"].as_str()),
        (10, Some("Stopped")),
        "{}",
        end.log
    );
    assert!(!end.log.contains("to=Booting"), "{}", end.log);
    let vm = fixture.start(Some(&api));
    vm.reaches("Booting");
    let ready = vm.until("the media", || {
        let ready = condition(&api.statuses().pop()?, "MediaReady").clone();
        (ready["status"] == "False").then_some(ready)
    });
    assert_eq!(ready["reason"], "ImageNotReadable");
    let message = ready["message"].as_str().unwrap();
    assert!(
        message
            .starts_with("CD drive 0: the CD image /tmp/images/a.iso is not available: the storage of the image repository /tmp/images did not answer"),
        "{message}"
    );
    vm.signal("-TERM");
    let end = vm.end();
    assert_eq!(end.code, 10, "{}", end.log);
}

#[test]
fn b01_b25_a_request_resets_the_guest_once_and_it_boots_again() {
    let (fixture, api) = (Fixture::with_guest(), Api::start());
    let configure = |request: i64| {
        fixture.configure(
            &json!({"namespace": "ns", "resetCounter": request}),
            &json!({}),
        )
    };
    configure(7);
    let vm = fixture.start(Some(&api));
    let mut console = vm.console();
    console.wait("TINY boot=1");
    vm.reaches("Booted");
    configure(8);
    console.wait("TINY boot=2");
    vm.logged("from=Booted to=Booting");
    let observed = |request: i64| {
        vm.until("a report", || {
            let last = api.statuses().pop()?;
            let up = condition(&last, "Booted")["status"] == "True";
            (up && last["status"]["observedResetRequest"] == request).then_some(())
        });
    };
    observed(8);
    let was_false = |s: &Value| {
        condition(s, "Booted")["status"] == "False" && condition(s, "Running")["status"] == "True"
    };
    assert!(api.statuses().iter().filter(|s| was_false(s)).count() >= 1);
    // A new start with the same request causes no second reset.
    vm.signal("-TERM");
    assert_eq!(vm.end().code, 10);
    let vm = fixture.start(Some(&api));
    vm.console().wait("TINY boot=3");
    vm.reaches("Booted");
    assert_eq!(
        fixture
            .log()
            .matches("the VM was reset as requested")
            .count(),
        0
    );
}
