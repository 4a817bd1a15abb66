//! (client) Changes the images of the CD drives.
//!
//! A drive that has its configured image belongs to the guest: the runner does not undo what the
//! guest does with the tray.

use crate::api::vm::conditions::{CD_DRIVE_PREFIX, ConditionReason};
use crate::runner::failure::Problem;
use crate::runner::live::{LiveUpdater, Progress};
use crate::runner::qemu::{cd_device, cd_image, cd_node};
use crate::runner::qmp::{Command, Error};
use std::path::PathBuf;

/// A CD drive.
#[derive(Debug)]
pub struct CdDrive {
    /// The configured image that was inserted last.
    image: Option<PathBuf>,
    /// Whether the drive has it, as far as QEMU has answered.
    known: bool,
    /// The block node from the start. QEMU deletes all later ones itself.
    start_node: Option<String>,
}

impl CdDrive {
    /// A drive as QEMU was started with: with the configured image, or empty.
    pub fn at_start(n: usize, image: Option<PathBuf>) -> Self {
        Self {
            start_node: image.as_ref().map(|_| cd_node(n)),
            image,
            known: true,
        }
    }
}

impl LiveUpdater {
    /// Changes the medium of each drive, and returns whether all have theirs.
    pub(super) async fn follow_media(&mut self, wanted: &[Option<PathBuf>]) -> Result<bool, Error> {
        if wanted.is_empty() || self.cd_drives.is_empty() {
            return Ok(true);
        }
        let (mut problem, mut result) = (None, Ok(()));
        let mut cd_drives = std::mem::take(&mut self.cd_drives);
        for (n, (tray, image)) in cd_drives.iter_mut().zip(wanted).enumerate() {
            match self.change_medium(n, tray, image).await {
                Ok(Some(why)) if problem.is_none() => {
                    problem = Some(Problem::new(
                        why.reason,
                        format!("{CD_DRIVE_PREFIX}{n}: {}", why.message),
                    ));
                }
                Ok(_) => {}
                Err(error) => result = result.and(Err(error)),
            }
        }
        self.cd_drives = cd_drives;
        result?;
        let complete = problem.is_none();
        let _ = self.progress.send(Progress::Media(problem));
        Ok(complete)
    }

    /// Inserts the image, or ejects the present one. Returns the problem if the drive retains its present image.
    async fn change_medium(
        &mut self,
        n: usize,
        tray: &mut CdDrive,
        image: &Option<PathBuf>,
    ) -> Result<Option<Problem>, Error> {
        if tray.known && tray.image == *image {
            return Ok(None);
        }
        let device = cd_device(n);
        let command = match image {
            Some(image) => match self.image_lookup.find(image).await {
                Ok(path) => Command::change_medium(&device, &cd_image(&path)),
                Err(problem) => return Ok(Some(problem)),
            },
            None => Command::eject(&device),
        };
        let was_known = std::mem::replace(&mut tray.known, false);
        let mut changed = self.client.execute(command).await;
        // A rejected command leaves the drive as it was. QEMU may carry out an unanswered one later.
        tray.known = was_known && matches!(changed, Err(Error::Rejected { .. }));
        if changed.is_ok() && image.is_none() {
            changed = self.client.execute(Command::close_tray(&device)).await;
        }
        if let Err(Error::Rejected { description, .. }) = changed {
            return Ok(Some(change_problem(image.is_some(), description)));
        }
        changed?;
        (tray.known, tray.image) = (true, image.clone());
        let image = image.as_ref().map(|image| image.display().to_string());
        tracing::info!(drive = n, image, "the image in a CD drive was changed");
        if let Some(node) = tray.start_node.take() {
            self.try_command(Command::remove_node(&node)).await?;
        }
        Ok(None)
    }
}

/// The reason why QEMU has not changed the medium. A drive that the guest has locked is retried
/// when its tray moves.
fn change_problem(inserts: bool, description: String) -> Problem {
    // QEMU has one error class for both: it opens the image first, and then asks the guest to release the medium.
    if description.contains("is locked") {
        let message = format!(
            "the guest has locked the CD drive, so QEMU cannot change the CD image yet; unmount or eject the CD in the \
             guest ({description})"
        );
        return Problem::new(ConditionReason::GuestHoldsMedium, message);
    }
    let reason = if inserts {
        ConditionReason::ImageNotReadable
    } else {
        ConditionReason::NotFollowed
    };
    Problem::new(reason, description)
}
