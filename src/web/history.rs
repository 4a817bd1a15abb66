//! (pure) Totals of all VMs over the last day.

use crate::web::view::VmView;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Interval between two samples.
pub const INTERVAL: Duration = Duration::from_secs(60);

/// A day.
const SAMPLES_MAX: usize = 24 * 60;

/// The totals at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// In seconds since 1970.
    time: i64,
    /// Number of VMs that run.
    running: u64,
    cpus: u64,
    /// In bytes.
    ram: u64,
}

impl Sample {
    /// The totals of these VMs.
    #[must_use]
    pub fn of(vms: &[Arc<VmView>], time: i64) -> Self {
        let mut all = Self {
            time,
            running: 0,
            cpus: 0,
            ram: 0,
        };
        for vm in vms {
            let (cpus, ram) = vm.used();
            all.running += u64::from(vm.is_running());
            all.cpus = all.cpus.saturating_add(cpus);
            all.ram = all.ram.saturating_add(ram);
        }
        all
    }
}

/// The samples of the last day, the oldest first. A restart of the console loses them.
#[derive(Default)]
pub struct History(Mutex<VecDeque<Sample>>);

impl History {
    /// Adds the newest sample.
    pub fn add(&self, sample: Sample) {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() == SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// All samples.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        let samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        samples.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, to_value};

    #[test]
    fn sample_has_the_totals_of_all_vms() {
        let vm = |status: &str, cpus: u32, ram: &str| {
            let running = json!({"type": "Running", "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let machine = json!({"maximumCpus": 2, "maximumRam": "1 GiB"});
            let vm = json!({"metadata": {"name": "vm"}, "spec": {"vm": machine}, "status": {"cpus": cpus, "ram": ram, "conditions": [running]}});
            Arc::new(serde_json::from_value(vm).unwrap())
        };
        let vms = [
            vm("True", 2, "1 GiB"),
            vm("True", 1, "512 MiB"),
            vm("False", 0, "?"),
            vm("False", 9, "15E"),
        ];
        let expected = json!({"time": 7, "running": 2, "cpus": 5, "ram": 2560u64 << 20});
        assert_eq!(to_value(Sample::of(&vms, 7)).unwrap(), expected);
    }

    #[test]
    fn history_has_the_last_day() {
        let history = History::default();
        for time in 0..2000 {
            history.add(Sample::of(&[], time));
        }
        let samples = history.samples();
        let ends = [samples[0], samples[samples.len() - 1]].map(|sample| sample.time);
        assert_eq!((samples.len(), ends), (1440, [560, 1999]));
    }
}
