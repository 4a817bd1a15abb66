//! The runner's start, from the times in its log.

use super::Steps;
use crate::rig::Rig;
use serde_json::json;
use std::fs;
use std::path::Path;

/// The text in the log line that ends a step.
const STEPS: [(&str, &str); 3] = [
    ("QEMU was started", "QEMU was started"),
    (
        "QEMU has accepted the QMP connection",
        "QEMU has accepted the QMP connection",
    ),
    ("the guest is let run", "to=Booting"),
];

/// Measures that number of starts, each of a new VM.
pub fn starts(count: usize) -> Steps {
    let mut steps: Steps = STEPS.map(|(step, _)| (step, Vec::new())).into();
    for _ in 0..count {
        let image = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/images/runner-root");
        let rig = Rig::with_guest();
        // The existing file is a hard link.
        fs::remove_file(rig.path("vm-runner")).unwrap();
        fs::copy(image.join("usr/local/bin/vm-runner"), rig.path("vm-runner")).unwrap();
        rig.configure(&json!({}), &json!({"network": [{"type": "user"}]}));
        let vm = rig.start(None);
        vm.reaches("Booting");
        let log = rig.log();
        for ((_, all), (step, words)) in steps.iter_mut().zip(STEPS) {
            let line = log
                .lines()
                .find(|line| line.contains(words))
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
