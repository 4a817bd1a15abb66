//! (io) Imports of images onto disks, in the record of the VM. The decision is pure.
//!
//! | disk | record | decision |
//! |---|---|---|
//! | device | unfinished import onto this PVC | import |
//! | device with contents | neither used nor imported, and the user allows to overwrite this PVC | import |
//! | with contents | used, or a complete import, or any import onto this PVC | nothing to do |
//! | with contents | else | refused: the contents are unknown |
//! | blank device | used, without an import | nothing to do: the guest may never have written to it |
//! | blank | used, or a complete import, on this PVC | refused: the contents are lost |
//! | blank, with a `dataSource` | no import onto this PVC | refused: the disk is no copy of its `dataSource` |
//! | blank | else | import |
//!
//! Invariant: an import is recorded before the first byte is written to the volume. An image file gets its name last.

use crate::api::runner::identity::ClaimIdentity;
use crate::runner::failure::Failure;
use crate::runner::machine::record::{Record, RecordedDisk, RecordedImport};
use crate::runner::machine::{identity, recorded_disks};
use std::path::PathBuf;

/// The decision about an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportDecision {
    /// The disk is blank and gets the image.
    Import,
    /// The disk has the contents of this VM.
    AlreadyThere,
    /// The disk has contents that no start and no import of this VM has written.
    NotEmpty,
    /// The disk is blank, although a start has used it.
    LostAfterUse,
    /// The disk is blank, although an import has filled it.
    LostAfterImport,
    /// The disk is blank, although its `dataSource` should have filled it.
    NotCloned,
}

/// What is on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// The image file is missing or has 0 bytes.
    Blank,
    /// The image file has contents.
    File,
    /// The first and the last bytes of the device are zeros.
    BlankDevice,
    /// The device has contents.
    Device,
}

/// A disk onto which an image is imported, and the record of its VM.
#[derive(Clone, Debug)]
pub struct ImportTarget {
    /// The directory of the runner data.
    pub data: PathBuf,
    /// The image file or the block device of the disk.
    pub disk: PathBuf,
    /// The PVC of the disk. None outside of pods.
    pub claim: Option<ClaimIdentity>,
}

impl ImportTarget {
    /// Reads or creates the record, and decides. `used_claim` names the PVC of the runner data if a start has written to it.
    pub fn decide(
        &self,
        used_claim: Option<&str>,
        contents: Contents,
    ) -> Result<ImportDecision, Failure> {
        let mut record = identity::read_or_create_record(&self.data, used_claim)?;
        let recorded = recorded_disks::entry(&mut record, &self.disk);
        Ok(decide(recorded, self.claim.as_ref(), contents))
    }

    /// Records that an import onto the present PVC begins, or is complete.
    pub fn record_import(&self, is_complete: bool) -> Result<(), Failure> {
        let claim = self.claim.as_ref().map(|claim| claim.uid.clone());
        Record::update(&self.data, |record| {
            recorded_disks::entry(record, &self.disk).import = Some(RecordedImport {
                claim: claim.unwrap_or_default(),
                is_complete,
            });
        })
    }

    /// Records that the import, if there is one, is complete.
    pub fn complete_import(&self) -> Result<(), Failure> {
        let claim = self.claim.as_ref().map(|claim| claim.uid.clone());
        Record::update(&self.data, |record| {
            if let Some(import) = &mut recorded_disks::entry(record, &self.disk).import {
                import.claim = claim.unwrap_or_default();
                import.is_complete = true;
            }
        })
    }

    /// Removes the record of an import that has written nothing to the disk.
    pub fn remove_import(&self) -> Result<(), Failure> {
        Record::update(&self.data, |record| {
            recorded_disks::entry(record, &self.disk).import = None;
        })
    }

    /// The failure for lost or missing contents.
    pub fn lost(&self, decision: ImportDecision) -> Failure {
        let cause = match decision {
            ImportDecision::NotCloned => {
                return recorded_disks::not_cloned(&self.disk, self.claim.as_ref());
            }
            ImportDecision::LostAfterImport => recorded_disks::IMPORTED_BEFORE,
            _ => recorded_disks::USED_BEFORE,
        };
        recorded_disks::lost(&self.disk, self.claim.as_ref(), cause)
    }
}

/// Decides from the recorded disk, the present PVC, and what is on the disk.
fn decide(
    recorded: &RecordedDisk,
    claim: Option<&ClaimIdentity>,
    contents: Contents,
) -> ImportDecision {
    let may_overwrite = claim.is_some_and(|claim| claim.may_overwrite);
    let is_cloned = claim.is_some_and(|claim| claim.cloned);
    let claim = claim.map(|claim| claim.uid.as_str());
    let import = recorded.import.as_ref();
    let is_complete = import.is_some_and(|import| import.is_complete);
    let is_onto_claim = import.is_some_and(|import| import.claim == claim.unwrap_or_default());
    let is_other =
        claim.is_some() && recorded.claim.is_some() && recorded.claim.as_deref() != claim;
    let is_device = matches!(contents, Contents::Device | Contents::BlankDevice);
    let was_used_here = recorded.was_used && !is_other;
    match contents {
        _ if is_device && is_onto_claim && !is_complete => ImportDecision::Import,
        Contents::Device if may_overwrite && !recorded.was_used && !is_complete => {
            ImportDecision::Import
        }
        // A complete import onto another PVC: this PVC is a restored backup.
        Contents::File | Contents::Device if recorded.was_used || is_complete || is_onto_claim => {
            ImportDecision::AlreadyThere
        }
        Contents::File | Contents::Device => ImportDecision::NotEmpty,
        Contents::BlankDevice if was_used_here && import.is_none() => ImportDecision::AlreadyThere,
        _ if was_used_here => ImportDecision::LostAfterUse,
        _ if is_complete && is_onto_claim => ImportDecision::LostAfterImport,
        _ if is_cloned && !is_onto_claim => ImportDecision::NotCloned,
        _ => ImportDecision::Import,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ImportDecision::{AlreadyThere, Import, LostAfterImport, LostAfterUse, NotEmpty};

    /// A recorded disk: the PVC of its last start, and the PVC of its import with the completion.
    fn disk(used: Option<Option<&str>>, import: Option<(&str, bool)>) -> RecordedDisk {
        RecordedDisk {
            was_used: used.is_some(),
            claim: used.flatten().map(str::to_owned),
            import: import.map(|(claim, is_complete)| RecordedImport {
                claim: claim.to_owned(),
                is_complete,
            }),
            ..RecordedDisk::default()
        }
    }

    fn claim(uid: &str, may_overwrite: bool) -> ClaimIdentity {
        ClaimIdentity {
            uid: uid.to_owned(),
            may_overwrite,
            ..ClaimIdentity::default()
        }
    }

    #[test]
    fn record_and_claim_and_contents_decide() {
        let (here, other) = (Some(Some("here")), Some(Some("other")));
        // The recorded disk, and the decisions for a disk with contents and for a blank one, on the PVC "here".
        for (recorded, with_contents, blank) in [
            (disk(None, None), NotEmpty, Import),
            (disk(here, None), AlreadyThere, LostAfterUse),
            (disk(Some(None), None), AlreadyThere, LostAfterUse),
            (disk(other, None), AlreadyThere, Import),
            (disk(None, Some(("here", false))), AlreadyThere, Import),
            (disk(None, Some(("other", false))), NotEmpty, Import),
            (
                disk(None, Some(("here", true))),
                AlreadyThere,
                LostAfterImport,
            ),
            (disk(None, Some(("other", true))), AlreadyThere, Import),
            (disk(other, Some(("here", false))), AlreadyThere, Import),
            (
                disk(other, Some(("here", true))),
                AlreadyThere,
                LostAfterImport,
            ),
            (disk(here, Some(("here", true))), AlreadyThere, LostAfterUse),
        ] {
            let decide = |contents| decide(&recorded, Some(&claim("here", false)), contents);
            assert_eq!(
                [decide(Contents::File), decide(Contents::Blank)],
                [with_contents, blank],
                "{recorded:?}"
            );
        }
    }

    #[test]
    fn an_unfinished_import_onto_a_device_is_repeated() {
        let (here, other) = (Some(Some("here")), Some(Some("other")));
        // The recorded disk, and the decisions for a device with contents and for a blank one, on the PVC "here".
        for (recorded, with_contents, blank) in [
            (disk(None, None), NotEmpty, Import),
            (disk(here, None), AlreadyThere, AlreadyThere),
            (disk(None, Some(("here", false))), Import, Import),
            (disk(other, Some(("here", false))), Import, Import),
            (disk(None, Some(("other", false))), NotEmpty, Import),
            (
                disk(None, Some(("here", true))),
                AlreadyThere,
                LostAfterImport,
            ),
            (disk(here, Some(("here", true))), AlreadyThere, LostAfterUse),
            (disk(None, Some(("other", true))), AlreadyThere, Import),
        ] {
            let decide = |contents| decide(&recorded, Some(&claim("here", false)), contents);
            assert_eq!(
                [decide(Contents::Device), decide(Contents::BlankDevice)],
                [with_contents, blank],
                "{recorded:?}"
            );
        }
    }

    #[test]
    fn a_disk_that_should_be_a_copy_gets_no_image() {
        let claim = ClaimIdentity {
            cloned: true,
            ..claim("here", false)
        };
        for (import, blank) in [
            (None, ImportDecision::NotCloned),
            // A VM that returns to a snapshot, and a provisioner that ignores the snapshot.
            (Some(("other", true)), ImportDecision::NotCloned),
            // The import has begun before `dataSource` was added.
            (Some(("here", false)), Import),
        ] {
            let recorded = disk(None, import);
            for contents in [Contents::Blank, Contents::BlankDevice] {
                let seen = decide(&recorded, Some(&claim), contents);
                assert_eq!(seen, blank, "{recorded:?}");
            }
            let seen = decide(
                &disk(Some(Some("other")), None),
                Some(&claim),
                Contents::Device,
            );
            assert_eq!(seen, AlreadyThere);
        }
    }

    #[test]
    fn only_unknown_contents_of_a_device_are_overwritten_on_request() {
        let (here, other) = (Some(Some("here")), Some(Some("other")));
        for (recorded, contents, decision) in [
            (disk(None, None), Contents::Device, Import),
            (disk(None, Some(("other", false))), Contents::Device, Import),
            (disk(None, None), Contents::File, NotEmpty),
            (disk(here, None), Contents::Device, AlreadyThere),
            (
                disk(None, Some(("here", true))),
                Contents::Device,
                AlreadyThere,
            ),
            // A restored backup.
            (
                disk(other, Some(("other", true))),
                Contents::Device,
                AlreadyThere,
            ),
        ] {
            let seen = decide(&recorded, Some(&claim("here", true)), contents);
            assert_eq!(seen, decision, "{recorded:?}");
        }
    }

    #[test]
    fn unknown_pvc_is_assumed_to_be_the_recorded_pvc() {
        for (recorded, with_contents, blank) in [
            (disk(Some(Some("one")), None), AlreadyThere, LostAfterUse),
            (disk(None, Some(("", false))), AlreadyThere, Import),
            (disk(None, Some(("one", false))), NotEmpty, Import),
            (disk(None, Some(("", true))), AlreadyThere, LostAfterImport),
        ] {
            let decide = |contents| decide(&recorded, None, contents);
            assert_eq!(
                [decide(Contents::File), decide(Contents::Blank)],
                [with_contents, blank],
                "{recorded:?}"
            );
        }
    }

    #[test]
    fn the_record_follows_the_import_and_is_removed_after_a_refusal() {
        let dir = tempfile::tempdir().unwrap();
        let target = ImportTarget {
            data: dir.path().to_owned(),
            disk: "/disks/a/disk.img".into(),
            claim: None,
        };
        assert_eq!(target.decide(None, Contents::Blank), Ok(Import));
        target.record_import(false).unwrap();
        assert_eq!(target.decide(None, Contents::File), Ok(AlreadyThere));
        target.remove_import().unwrap();
        assert_eq!(target.decide(None, Contents::File), Ok(NotEmpty));
        target.record_import(true).unwrap();
        assert_eq!(target.decide(None, Contents::Blank), Ok(LostAfterImport));
        let files = std::fs::read_dir(dir.path()).unwrap();
        assert_eq!(files.count(), 1, "only the record");
    }
}
