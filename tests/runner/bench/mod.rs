//! What the runner costs its guest and its node, without the cluster: a part of `make bench`, and by itself
//! `cargo test --test runner bench:: -- --nocapture --test-threads 1`. It is the runner of the image that is measured, as it ships,
//! not the one that is built with the tests.
//!
//! | file | what |
//! |---|---|
//! | `startup` | where the time of the programs' own start goes: `make bench-startup` |
//! | `throughput` | what the guest's disk and network carry, beside QEMU alone |
//! | `writes` | the runner's memory after some writes of its VM's status, and after many (`STATUS_WRITES`, 300) |
//!
//! Like the runner's tests it needs root, `make images` and `make guests`, and uses their rig. Each figure is a line
//! `| what | figure |`.

mod startup;
mod throughput;
mod writes;

use crate::rig::Rig;
use std::fs;
use std::path::{Path, PathBuf};

/// What the runner's image holds.
fn image() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/images/runner-root")
}

/// One with the tiny guest and the image's runner.
fn shipped() -> Rig {
    let rig = Rig::with_guest();
    // What is there is a hard link.
    fs::remove_file(rig.path("vm-runner")).unwrap();
    fs::copy(
        image().join("usr/local/bin/vm-runner"),
        rig.path("vm-runner"),
    )
    .unwrap();
    rig
}
