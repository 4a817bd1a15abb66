//! (io) Handles growing volumes and disk errors while the guest runs.

use crate::api::quantity::Bytes;
use crate::api::vm::conditions::ConditionReason;
use crate::runner::driver::{Driver, TaskResult};
use crate::runner::failure::Problem;
use crate::runner::machine::HeldDevice;
use crate::runner::qmp::IoError;
use crate::runner::spec::{Disk, Spec};
use std::time::Duration;
use tokio::sync::mpsc;

/// Delay between two checks of the devices' sizes. The kernel sends no event for a change.
const DEVICE_SIZE_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Reports devices that have grown. Keeps the devices open until the driver is dropped.
pub(super) async fn follow(
    devices: Vec<HeldDevice>,
    task_results: mpsc::UnboundedSender<TaskResult>,
) {
    let mut sizes: Vec<u64> = devices.iter().map(HeldDevice::size).collect();
    while !task_results.is_closed() {
        tokio::time::sleep(DEVICE_SIZE_POLL_INTERVAL).await;
        for (device, known) in devices.iter().zip(&mut sizes) {
            let size = device.size();
            if size > *known {
                *known = size;
                let _ = task_results.send(TaskResult::DiskGrown(device.disk, size));
            }
        }
    }
}

impl Driver {
    /// The configured size of each disk of the running VM. The configuration may list the disks in
    /// another order, or omit some.
    pub(super) fn sizes(&self, spec: &Spec) -> Vec<Option<Bytes>> {
        let same = |disk: &Disk| spec.disks.iter().find(|other| other.source == disk.source);
        self.spec
            .disks
            .iter()
            .map(|disk| same(disk).and_then(|other| other.size))
            .collect()
    }

    pub(super) fn disk_grown(&mut self, disk: usize, size: u64) {
        tracing::info!(
            disk,
            size,
            "the block device of a disk has grown; the runner resizes the disk in QEMU"
        );
        self.change_desired(|desired| {
            if let Some(known) = desired.sizes.get_mut(disk) {
                *known = size.max(*known);
            }
        });
    }

    /// A disk could not be read or written.
    pub(super) fn io_error(&mut self, error: &IoError) {
        let path = error
            .disk()
            .and_then(|n| self.spec.disks.get(n))
            .map(|disk| disk.source.path().display().to_string());
        let disk = path.unwrap_or_else(|| error.node.clone());
        let what = if error.write { "write to" } else { "read" };
        let why = &error.reason;
        let problem = match (error.full, error.stopped) {
            (true, true) => Problem::new(
                ConditionReason::DiskFull,
                format!(
                    "the volume of disk {disk} has no free space, so QEMU has paused the guest; the guest \
                     continues when the volume has free space"
                ),
            ),
            (_, true) => Problem::new(
                ConditionReason::DiskError,
                format!(
                    "QEMU cannot {what} disk {disk} ({why}) and has paused the guest; the guest continues when the disk works again"
                ),
            ),
            _ => Problem::new(
                ConditionReason::DiskError,
                format!(
                    "QEMU could not {what} disk {disk} ({why}) and has reported the error to the guest; check the guest's kernel \
                     log and the disk's storage. The condition StorageHealthy shows this error until the guest reboots"
                ),
            ),
        };
        let known = if error.stopped {
            &mut self.observed.stalled
        } else {
            &mut self.observed.disk_error
        };
        if known.as_ref() != Some(&problem) {
            tracing::error!("{}", problem.message);
            *known = Some(problem);
        }
        if error.stopped {
            self.disk_stalled();
        }
    }

    /// QEMU has stopped the guest because of a disk error.
    pub(super) fn disk_stalled(&mut self) {
        if self.observed.stalled.is_none() {
            self.observed.stalled = Some(Problem::new(
                ConditionReason::DiskError,
                "QEMU has paused the guest because of an I/O error of a disk; the guest continues when the disk works again",
            ));
        }
        self.change_desired(|desired| desired.stalls += 1);
    }
}
