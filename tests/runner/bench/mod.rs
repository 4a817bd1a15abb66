//! The cost of the runner for its guest and its node, without the cluster: a part of `make bench`, or alone `cargo test
//! --test runner bench:: -- --nocapture --test-threads 1`. They measure the released runner of the image, not the one
//! that is built with the tests.
//!
//! | file | content |
//! |---|---|
//! | `imports` | the import of an image, compared with `curl` and `qemu-img` |
//! | `startup` | the duration of each step of the programs' start: `make bench-startup` |
//! | `throughput` | the throughput of the guest's disk and network, compared with QEMU alone |
//! | `writes` | the runner's memory after few and after many writes of its VM's status (`STATUS_WRITES`, 300) |
//!
//! Like the runner's tests they need root, `make images` and `make guests`, and use the same fixture. Each result is a
//! line `| title | value |`.

mod imports;
mod startup;
mod throughput;
mod writes;

use crate::fixture::Fixture;
use std::fs;
use std::path::{Path, PathBuf};

/// The content of the runner's image.
fn image() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/images/runner-root")
}

/// A fixture with the tiny guest and the image's runner.
fn shipped() -> Fixture {
    let fixture = Fixture::with_guest();
    // The existing file is a hard link.
    fs::remove_file(fixture.path("vm-runner")).unwrap();
    fs::copy(
        image().join("usr/local/bin/vm-runner"),
        fixture.path("vm-runner"),
    )
    .unwrap();
    fixture
}
