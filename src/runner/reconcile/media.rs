//! (client) Brings media into the CD drives, each for itself.

use super::{Machine, Progress};
use crate::api::conditions::ConditionReason;
use crate::runner::desired::media::{self, Drive, Step};
use crate::runner::problem::Problem;
use crate::runner::qmp::{Command, Error};
use std::path::{Path, PathBuf};

/// Open, remove, insert, close, and a look at the end.
const MOST_STEPS: usize = 6;

/// A drive as far as it is known what was brought there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tray {
    /// The configured image that is there.
    image: Option<PathBuf>,
    /// Its node; none of ours is there at first but the one of the start.
    node: Option<String>,
    /// Counts the nodes of the drive.
    nodes: u32,
    /// What is being brought there: the image, and the node that was made for it.
    next: Option<(Option<PathBuf>, Option<String>)>,
    /// Nodes that nobody needs, and that QEMU may still have.
    unwanted: Vec<String>,
}

impl Tray {
    /// A drive as QEMU was started with: with the configured image, or empty.
    pub fn at_start(n: usize, image: Option<PathBuf>) -> Self {
        let node = image.as_ref().map(|_| start_node(n));
        Self { image, node, ..Self::default() }
    }
}

/// Node of the medium that a drive has from the start.
pub fn start_node(n: usize) -> String {
    format!("drive-cdrom{n}")
}

impl Machine {
    /// Gives each drive its medium; says whether all have theirs.
    pub(super) async fn follow_media(&mut self, wanted: &[Option<PathBuf>]) -> Result<bool, Error> {
        if wanted.is_empty() || self.trays.is_empty() {
            return Ok(true);
        }
        let (mut problem, mut all) = (None, Ok(()));
        for (n, image) in wanted.iter().enumerate().take(self.trays.len()) {
            let Some(mut tray) = self.trays.get(n).cloned() else { continue };
            let result = self.follow_tray(n, &mut tray, image).await;
            if let Some(known) = self.trays.get_mut(n) {
                *known = tray;
            }
            match result {
                Ok(why) => {
                    let why = why.map(|why| Problem::new(why.reason, format!("CD drive {n}: {}", why.message)));
                    problem = problem.or(why);
                }
                Err(error) => all = all.and(Err(error)),
            }
        }
        all?;
        let complete = problem.is_none();
        let _ = self.progress.send(Progress::Media(problem));
        Ok(complete)
    }

    async fn follow_tray(
        &mut self,
        n: usize,
        tray: &mut Tray,
        image: &Option<PathBuf>,
    ) -> Result<Option<Problem>, Error> {
        self.close_unwanted(tray).await?;
        if tray.image == *image && tray.next.is_none() {
            return Ok(None);
        }
        if tray.next.as_ref().is_none_or(|(next, _)| next != image) {
            // What was on its way there is not wanted any more.
            let before = tray.next.take().and_then(|(_, node)| node);
            self.forget(before, tray).await?;
            let node = match tray.image == *image {
                true => tray.node.clone(),
                false => match self.make_node(n, tray, image.as_deref()).await? {
                    Ok(node) => node,
                    Err(problem) => return Ok(Some(problem)),
                },
            };
            tray.next = Some((image.clone(), node));
        }
        let node = tray.next.as_ref().and_then(|(_, node)| node.clone());
        let problem = self.move_tray(n, node.as_deref()).await?;
        if problem.is_none() {
            let before = std::mem::replace(&mut tray.node, node);
            tray.image.clone_from(image);
            tray.next = None;
            self.forget(before, tray).await?;
            tracing::info!(drive = n, image = ?tray.image, "the CD drive has its medium");
        }
        Ok(problem)
    }

    /// A node of the image, which is not in the drive yet: one that cannot be used leaves the drive as it is.
    async fn make_node(
        &mut self,
        n: usize,
        tray: &mut Tray,
        image: Option<&Path>,
    ) -> Result<Result<Option<String>, Problem>, Error> {
        let Some(image) = image else { return Ok(Ok(None)) };
        let path = match self.looks.look(image).await {
            Ok(path) => path,
            Err(problem) => return Ok(Err(problem)),
        };
        tray.nodes += 1;
        let node = format!("{}-{}", start_node(n), tray.nodes);
        match self.client.execute(Command::add_node(media::medium(&node, &path))).await {
            Ok(_) => Ok(Ok(Some(node))),
            Err(Error::Refused { description, .. }) => {
                Ok(Err(Problem::new(ConditionReason::ImageNotReadable, description)))
            }
            Err(error @ Error::Lost(_)) => Err(error),
            // QEMU may have opened it, or still do.
            Err(error) => {
                tray.unwanted.push(node);
                Err(error)
            }
        }
    }

    async fn forget(&self, node: Option<String>, tray: &mut Tray) -> Result<(), Error> {
        tray.unwanted.extend(node.filter(|node| tray.node.as_ref() != Some(node)));
        self.close_unwanted(tray).await
    }

    /// Closes the nodes that nobody needs. One that QEMU does not have, or does not close, is tried once.
    async fn close_unwanted(&self, tray: &mut Tray) -> Result<(), Error> {
        while let Some(node) = tray.unwanted.last() {
            match self.client.execute(Command::remove_node(node)).await {
                Err(error @ Error::Refused { .. }) => tracing::debug!(%error, "an image that nobody needs"),
                result => drop(result?),
            }
            tray.unwanted.pop();
        }
        Ok(())
    }

    async fn move_tray(&self, n: usize, node: Option<&str>) -> Result<Option<Problem>, Error> {
        let mut asked = false;
        for _ in 0..MOST_STEPS {
            let drives: Vec<Drive> = self.client.query(Command::query_block()).await?;
            let Some(drive) = drives.into_iter().find(|drive| drive.qdev == media::device(n)) else {
                return Ok(Some(Problem::new(ConditionReason::NoSuchDrive, "the machine was started without it")));
            };
            match media::next(&drive, node, asked) {
                Step::Done => return Ok(None),
                Step::WaitForGuest => {
                    let message = "the guest holds the medium and was asked to release it; unmount or eject it there";
                    return Ok(Some(Problem::new(ConditionReason::GuestHoldsMedium, message)));
                }
                Step::Give(command) => {
                    asked |= command.name == "blockdev-open-tray";
                    match self.client.execute(command).await {
                        Err(Error::Refused { description, .. }) => {
                            return Ok(Some(Problem::new(ConditionReason::NotFollowed, description)));
                        }
                        result => drop(result?),
                    }
                }
            }
        }
        Ok(Some(Problem::new(ConditionReason::NotFollowed, "the guest moves the tray at the same time")))
    }
}
