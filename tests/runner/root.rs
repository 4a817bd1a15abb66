//! A VM that runs as root if block devices belong to root (setting `deviceAccess: root`), and the change in both
//! directions.

use crate::fixture::{Fixture, run};
use crate::processes::{field, without_capabilities};
use serde_json::json;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Runs the VM until its guest starts, and terminates it.
fn runs(fixture: &Fixture, user: &str) {
    let vm = if user == "0" {
        fixture.start_as_root()
    } else {
        fixture.start(None)
    };
    vm.reaches("Booting");
    for pid in without_capabilities(&vm) {
        let name = field(pid, "Name");
        assert_eq!(
            ["NoNewPrivs", "Seccomp", "Uid"].map(|of| field(pid, of)),
            ["1", "2", user],
            "{name}"
        );
    }
    vm.signal("-TERM");
    let end = vm.end();
    assert_eq!(end.code, 10, "{}", end.log);
}

#[test]
fn root_and_the_usual_user_take_each_others_data_over() {
    let fixture = Fixture::new();
    let firmware = json!({"drives": [], "useTpm": true, "powerdownTimeout": 0, "firmware": "uefi"});
    fixture.configure(&json!({}), &firmware);
    runs(&fixture, "107");

    // A volume that ignores fsGroup: root has no capability that would help.
    let end = fixture.start_as_root().end();
    assert_eq!(end.code, 66, "{}", end.log);
    assert!(
        end.log.contains("/tmp/data is not writable by uid 0"),
        "{}",
        end.log
    );

    // The kubelet's changes for fsGroup.
    let data = fixture.path("data");
    run("chmod", &["-R".as_ref(), "g+rwX".as_ref(), data.as_ref()]);
    run("chmod", &["g+s".as_ref(), data.as_ref()]);
    runs(&fixture, "0");

    // Also files that root has created.
    for name in ["fw-vars.fd", "tpm2-00.permall"] {
        fs::remove_file(data.join(name)).unwrap();
    }
    runs(&fixture, "0");
    for name in ["fw-vars.fd", "tpm2-00.permall"] {
        let file = fs::metadata(data.join(name)).unwrap();
        assert_eq!((file.uid(), file.mode() & 0o007), (0, 0), "{name}");
    }
    runs(&fixture, "107");
}
