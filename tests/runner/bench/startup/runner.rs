//! The runner's start, from the times in its log.

use super::Steps;
use crate::fixture::Fixture;
use serde_json::json;
use std::fs;
use std::path::Path;

/// The text in the log line that ends a step.
const STEPS: [(&str, &str); 3] = [
    ("QEMU was started", "the runner has started QEMU"),
    (
        "the QMP connection to QEMU is established",
        "the QMP connection to QEMU is established",
    ),
    ("the guest is continued", "to=Booting"),
];

/// Measures that number of starts, each of a new VM.
pub fn starts(count: usize) -> Steps {
    let mut steps: Steps = STEPS.map(|(step, _)| (step, Vec::new())).into();
    for _ in 0..count {
        let image = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/images/runner-root");
        let fixture = Fixture::with_guest();
        // The existing file is a hard link.
        fs::remove_file(fixture.path("vm-runner")).unwrap();
        fs::copy(
            image.join("usr/local/bin/vm-runner"),
            fixture.path("vm-runner"),
        )
        .unwrap();
        fixture.configure(&json!({}), &json!({"network": [{"type": "user"}]}));
        let vm = fixture.start(None);
        vm.reaches("Booting");
        let log = fixture.log();
        for ((_, all), (step, text)) in steps.iter_mut().zip(STEPS) {
            let line = log
                .lines()
                .find(|line| line.contains(text))
                .unwrap_or_else(|| panic!("{step} is logged:\n{log}"));
            let (_, ms) = line.split_once("ms_since_start=").expect("with its time");
            all.push(
                ms.split(' ')
                    .next()
                    .and_then(|ms| ms.parse().ok())
                    .expect("a number"),
            );
        }
        vm.signal("-KILL");
        drop(vm.end());
    }
    steps
}
