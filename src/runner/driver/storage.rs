//! (io) What becomes of disks while the guest runs: volumes that grow, and errors.

use crate::api::conditions::ConditionReason;
use crate::api::quantity::Bytes;
use crate::runner::driver::{Driver, News};
use crate::runner::machine::Held;
use crate::runner::problem::Problem;
use crate::runner::qmp::IoError;
use crate::runner::resolved::{Disk, Spec};
use std::time::Duration;
use tokio::sync::mpsc;

/// How often the size of a device is looked at; nobody tells.
const LOOK: Duration = Duration::from_secs(5);

/// Tells when a device has grown, and keeps it open until nobody listens.
pub(super) async fn follow(held: Vec<Held>, news: mpsc::UnboundedSender<News>) {
    let mut sizes: Vec<u64> = held.iter().map(Held::size).collect();
    while !news.is_closed() {
        tokio::time::sleep(LOOK).await;
        for (device, known) in held.iter().zip(&mut sizes) {
            let size = device.size();
            if size > *known {
                *known = size;
                let _ = news.send(News::DiskGrown(device.disk, size));
            }
        }
    }
}

impl Driver {
    /// The sizes that a configuration gives to the machine's disks, which it may have in another order, or not at all.
    pub(super) fn sizes(&self, spec: &Spec) -> Vec<Option<Bytes>> {
        let same = |disk: &Disk| spec.disks.iter().find(|other| other.source == disk.source);
        self.spec
            .disks
            .iter()
            .map(|disk| same(disk).and_then(|other| other.size))
            .collect()
    }

    pub(super) fn disk_grown(&mut self, disk: usize, size: u64) {
        tracing::info!(disk, size, "the disk's device has grown");
        self.wish(|desired| {
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
        let (write, why) = (error.write, &error.reason);
        let problem = match (error.full, error.stopped) {
            (true, _) => Problem::new(
                ConditionReason::DiskFull,
                format!("there is no room left for disk {disk}; the guest waits for it"),
            ),
            (_, true) => Problem::new(
                ConditionReason::DiskError,
                format!("disk {disk} cannot be read: {why}; the guest waits for it"),
            ),
            _ => {
                let what = if write { "written" } else { "read" };
                Problem::new(
                    ConditionReason::DiskError,
                    format!(
                        "disk {disk} could not be {what}: {why}; the guest was told so, look there for what it has made of it; \
                         this is told until the guest boots anew"
                    ),
                )
            }
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
            self.stalled();
        }
    }

    /// The guest was stopped because a disk could not go on.
    pub(super) fn stalled(&mut self) {
        if self.observed.stalled.is_none() {
            self.observed.stalled = Some(Problem::new(
                ConditionReason::DiskError,
                "a disk cannot go on; the guest waits for it",
            ));
        }
        self.wish(|desired| desired.stalls += 1);
    }
}
