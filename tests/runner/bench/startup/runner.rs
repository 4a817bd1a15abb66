//! The runner's start: by what it tells of itself when the guest runs.

use super::Steps;
use crate::rig::Rig;
use serde_json::json;
use std::fs;
use std::path::Path;
use vm_operator::api::start_times::StartTimes;

/// That many starts, each of a machine that has not run before.
pub fn starts(count: usize) -> Steps {
    let mut steps: Steps = ["QEMU is started", "QEMU's monitor has answered", "the guest is let run"]
        .map(|step| (step, Vec::new()))
        .into();
    for _ in 0..count {
        let image = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/images/runner-root");
        let rig = Rig::with_guest();
        // What is there is a hard link.
        fs::remove_file(rig.path("vm-runner")).unwrap();
        fs::copy(image.join("usr/local/bin/vm-runner"), rig.path("vm-runner")).unwrap();
        rig.configure(&json!({}), &json!({"network": [{"type": "user"}]}));
        let vm = rig.start(None);
        let times = vm.until("the word that the guest runs", || {
            rig.log().lines().filter_map(StartTimes::read).find(|times| times.guest.is_some())
        });
        let ends = [times.qemu, times.monitor, times.guest].map(|end| end.expect("it is told") as f64);
        steps.iter_mut().zip(ends).for_each(|((_, all), end)| all.push(end));
        vm.signal("-KILL");
        drop(vm.end());
    }
    steps
}
