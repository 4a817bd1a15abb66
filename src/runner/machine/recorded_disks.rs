//! (pure) Recorded values of disks: their serial numbers, their PVCs, and whether a start has used
//! them.
//!
//! Invariants: an image file that a start has used is never replaced by an empty one, unless its
//! PVC is another one. A copied VM is recognized by the UIDs of its PVCs.

use crate::api::runner::identity::ClaimIdentity;
use crate::api::runner::outcome::EndReason;
use crate::api::vm::names;
use crate::runner::failure::Failure;
use crate::runner::machine::record::{Record, RecordedDisk};
use crate::runner::spec::{Disk, Source};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

/// Maximum length of the serial number of a virtio disk, in bytes.
const SERIAL_LENGTH_MAX: usize = 20;
/// Length of the beginning of a long name in a serial number. A dash and 8 digits follow.
const SERIAL_PREFIX_LENGTH: usize = 11;

/// Differences between the disks of this start and those of earlier ones.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DiskChanges {
    /// Whether a disk has another PVC than before: the VM is a copy, or a backup.
    pub is_copy: bool,
    /// The refusal to start without an image file that existed before, or without the contents of a clone.
    pub lost: Option<Failure>,
}

/// Compares the disks with the record, and records them with their PVCs. `exists` is whether an
/// image file exists, `is_blank` whether a disk has no contents.
pub fn compare(
    record: &mut Record,
    disks: &[Disk],
    claims: &BTreeMap<String, ClaimIdentity>,
    exists: impl Fn(&Path) -> bool,
    is_blank: impl Fn(&Path) -> bool,
) -> DiskChanges {
    let mut changes = DiskChanges::default();
    for disk in disks {
        let path = disk.source.path();
        let claim = claims.get(&path.display().to_string());
        let is_legacy = record.is_legacy;
        let recorded = entry(record, path);
        let before = recorded.claim.clone();
        let uid = claim.map(|claim| claim.uid.clone()).or(before.clone());
        let is_other = before.is_some() && uid != before;
        changes.is_copy |= is_other;
        recorded.claim = uid;
        // Nothing of another PVC was used, also if the image of another disk prevents this start.
        recorded.was_used &= !is_other;
        let import = recorded.import.as_ref();
        let import =
            import.filter(|import| import.claim == recorded.claim.as_deref().unwrap_or_default());
        let is_unfinished = import.is_some_and(|import| !import.is_complete);
        let was_imported = import.is_some() || claim.is_some_and(|claim| claim.imported);
        // Only images with a size are created.
        let is_image = matches!(disk.source, Source::File(_)) && disk.size.is_some();
        let is_missing = is_image && !exists(path);
        let failure = match recorded.was_used {
            _ if is_unfinished => unfinished(path, claim),
            true if is_missing => lost(path, claim, USED_BEFORE),
            false if is_missing && was_imported => lost(path, claim, IMPORTED_BEFORE),
            // The record of a VM of the Java VM-Operator begins with its first start here, and does not know what it has used.
            false if !is_legacy && claim.is_some_and(|claim| claim.cloned) && is_blank(path) => {
                not_cloned(path, claim)
            }
            _ => continue,
        };
        changes.lost.get_or_insert(failure);
    }
    changes
}

/// The causes of [`lost`].
pub(super) const USED_BEFORE: &str = "the VM has used this image before";
pub(super) const IMPORTED_BEFORE: &str = "an import has filled this image before";

/// The failure for a disk whose import is not complete.
fn unfinished(path: &Path, claim: Option<&ClaimIdentity>) -> Failure {
    let discard = match claim {
        Some(claim) => format!(
            "set spec.vm.state to Stopped, wait for the status Stopped, delete PVC {:?}, and set spec.vm.state to Running",
            claim.name
        ),
        None => "remove the key `import` of the disk in machine.json".to_owned(),
    };
    Failure::new(
        EndReason::DataMissing,
        format!(
            "the import of the image onto the disk {} is not complete; restore the field `source` of the disk, so that the operator \
             completes the import; to start with an empty disk, {discard}",
            path.display()
        ),
    )
}

/// The failure for a disk without the contents of its `dataSource`.
pub(super) fn not_cloned(path: &Path, claim: Option<&ClaimIdentity>) -> Failure {
    let claim = claim.map_or("", |claim| &claim.name);
    let disk = path.display();
    Failure::new(
        EndReason::DiskNotCloned,
        format!(
            "the disk {disk} is empty, although it has a dataSource: the source is empty, or the provisioner of the storage \
             class ignores the field; to start without these contents, remove dataSource and dataSourceRef from the disk; to copy a PVC, use \
             source.pvc in place of dataSource, set spec.vm.state to Stopped, delete PVC {claim:?}, and start the VM"
        ),
    )
}

/// The failure for a lost image file, with the way to accept the loss.
pub(super) fn lost(path: &Path, claim: Option<&ClaimIdentity>, cause: &str) -> Failure {
    let accept = match claim {
        Some(claim) => format!(
            "to accept the loss, set spec.vm.state to Stopped, wait for the status Stopped, delete PVC {:?}, and set spec.vm.state to \
             Running",
            claim.name
        ),
        None => "to accept the loss, create a file of 0 bytes at the path of the image".to_owned(),
    };
    Failure::new(
        EndReason::DataMissing,
        format!(
            "the disk image {} does not exist, or is empty, although {cause}; check that the volume of the image is mounted, or \
             restore the image; {accept}",
            path.display()
        ),
    )
}

/// Records that these disks are in use.
pub fn record_use(record: &mut Record, disks: &[Disk]) {
    for disk in disks {
        entry(record, disk.source.path()).was_used = true;
    }
}

/// The recorded values of a disk.
pub(super) fn entry<'a>(record: &'a mut Record, path: &Path) -> &'a mut RecordedDisk {
    record.disks.entry(path.display().to_string()).or_default()
}

/// The serial number of a disk. VMs of the Java VM-Operator have none.
pub fn serial(record: &mut Record, path: &Path) -> Option<String> {
    if record.hardware.is_first() {
        return None;
    }
    let present = entry(record, path).serial.clone();
    let serial = present.unwrap_or_else(|| {
        let taken = |serial: &String| {
            let mut others = record.disks.values();
            others.any(|disk| disk.serial.as_ref() == Some(serial))
        };
        let name = disk_name(path);
        let legible = Some(name.to_owned()).filter(|name| is_serial(name) && !taken(name));
        legible.unwrap_or_else(|| hashed_serial(name, path))
    });
    entry(record, path).serial = Some(serial.clone());
    Some(serial)
}

/// The name of a disk: of its device or file, or of the directory of its image.
pub fn disk_name(path: &Path) -> &str {
    let named = match path.parent().filter(|_| path.ends_with(names::DISK_FILE)) {
        Some(directory) => directory,
        None => path,
    };
    named
        .file_name()
        .and_then(OsStr::to_str)
        .unwrap_or_default()
}

fn is_serial(name: &str) -> bool {
    (1..=SERIAL_LENGTH_MAX).contains(&name.len()) && name.chars().all(is_legible)
}

/// Whether tools in the guest show the character unchanged.
fn is_legible(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// The beginning of the name, and a hash of the path.
fn hashed_serial(name: &str, path: &Path) -> String {
    let prefix = name.chars().filter(|c| is_legible(*c));
    let prefix: String = prefix.take(SERIAL_PREFIX_LENGTH).collect();
    let hash = Sha256::digest(path.display().to_string());
    format!("{prefix}-{}", crate::api::hex(hash.iter().take(4)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::quantity::Bytes;
    use crate::runner::machine::record::RecordedImport;

    const IMAGE: &str = "/disks/system-disk/disk.img";

    fn image() -> [Disk; 1] {
        [Disk {
            source: Source::File(IMAGE.into()),
            size: Some(Bytes(1 << 20)),
            bootindex: None,
        }]
    }

    fn claims(uid: &str) -> BTreeMap<String, ClaimIdentity> {
        let claim = ClaimIdentity {
            name: "vm-system-disk".to_owned(),
            uid: uid.to_owned(),
            ..ClaimIdentity::default()
        };
        [(IMAGE.to_owned(), claim)].into()
    }

    /// One start: whether the VM is a copy, and the refusal.
    fn start(record: &mut Record, uid: Option<&str>, exists: bool) -> (bool, Option<String>) {
        let claims = uid.map(claims).unwrap_or_default();
        let changes = compare(record, &image(), &claims, |_| exists, |_| false);
        if changes.lost.is_none() {
            record_use(record, &image());
        }
        *record = serde_json::from_str(&serde_json::to_string(record).unwrap()).unwrap();
        let lost = changes.lost.map(|failure| {
            assert_eq!(failure.reason, EndReason::DataMissing);
            failure.message
        });
        (changes.is_copy, lost)
    }

    #[test]
    fn a_lost_image_is_refused_until_its_claim_is_another_one() {
        let mut record = Record::new("q35", false);
        assert_eq!(start(&mut record, Some("one"), false), (false, None));
        assert_eq!(start(&mut record, Some("one"), true), (false, None));
        for _ in 0..2 {
            let (is_copy, lost) = start(&mut record, Some("one"), false);
            let lost = lost.unwrap();
            assert!(!is_copy && lost.contains(IMAGE), "{lost}");
            assert!(lost.contains("delete PVC \"vm-system-disk\""), "{lost}");
        }
        assert_eq!(start(&mut record, Some("two"), false), (true, None));
        assert!(start(&mut record, Some("two"), false).1.is_some());
    }

    #[test]
    fn an_imported_disk_is_not_replaced_by_an_empty_one() {
        let import = |claim: &str, is_complete| RecordedImport {
            claim: claim.to_owned(),
            is_complete,
        };
        // The recorded import, whether the operator knows of an import, whether the image file exists, and the refusal.
        for (import, imported, exists, refusal) in [
            (
                Some(import("one", false)),
                false,
                true,
                Some("is not complete"),
            ),
            (
                Some(import("one", false)),
                true,
                false,
                Some("is not complete"),
            ),
            (
                Some(import("one", true)),
                false,
                false,
                Some(IMPORTED_BEFORE),
            ),
            (Some(import("one", true)), true, true, None),
            (Some(import("two", true)), false, false, None),
            (Some(import("two", false)), false, false, None),
            (
                Some(import("two", false)),
                true,
                false,
                Some(IMPORTED_BEFORE),
            ),
            (None, true, false, Some(IMPORTED_BEFORE)),
            (None, true, true, None),
        ] {
            let mut record = Record::new("q35", false);
            entry(&mut record, Path::new(IMAGE)).import = import.clone();
            let mut claims = claims("one");
            claims.get_mut(IMAGE).unwrap().imported = imported;
            let lost = compare(&mut record, &image(), &claims, |_| exists, |_| false).lost;
            let message = lost.map(|failure| failure.message);
            let expected = |message: &String| refusal.is_some_and(|part| message.contains(part));
            assert_eq!(message.is_some(), refusal.is_some(), "{import:?}");
            assert!(message.iter().all(expected), "{import:?}: {message:?}");
        }
    }

    #[test]
    fn a_blank_clone_is_refused_at_its_first_start_only() {
        let mut record = Record::new("q35", false);
        let mut refusal = |cloned, is_blank| {
            let mut claims = claims("one");
            claims.get_mut(IMAGE).unwrap().cloned = cloned;
            let lost = compare(&mut record, &image(), &claims, |_| true, |_| is_blank).lost;
            if lost.is_none() {
                record_use(&mut record, &image());
            }
            lost.map(|failure| (failure.reason, failure.message))
        };
        for _ in 0..2 {
            let (reason, message) = refusal(true, true).unwrap();
            assert_eq!(reason, EndReason::DiskNotCloned);
            assert!(
                message.contains("delete PVC \"vm-system-disk\""),
                "{message}"
            );
        }
        // The user has removed the field; later starts do not depend on it.
        assert_eq!(refusal(false, true), None);
        assert_eq!(refusal(true, true), None);
    }

    #[test]
    fn losses_of_two_images_are_accepted_one_after_the_other() {
        let disk = |n: u32| Disk {
            source: Source::File(format!("/disks/{n}/disk.img").into()),
            size: Some(Bytes(1 << 20)),
            bootindex: None,
        };
        let disks = [disk(1), disk(2)];
        let mut record = Record::new("q35", false);
        let mut start = |uids: [&str; 2]| {
            let claim = |(disk, uid): (&Disk, &str)| {
                let (name, uid) = (format!("claim-{uid}"), uid.to_owned());
                (
                    disk.source.path().display().to_string(),
                    ClaimIdentity {
                        name,
                        uid,
                        ..ClaimIdentity::default()
                    },
                )
            };
            let claims = disks.iter().zip(uids).map(claim).collect();
            let lost = compare(&mut record, &disks, &claims, |_| false, |_| false).lost;
            if lost.is_none() {
                record_use(&mut record, &disks);
            }
            lost.map(|failure| failure.message)
        };
        assert_eq!(start(["a", "b"]), None);
        assert!(start(["a", "b"]).unwrap().contains("claim-a"));
        assert!(start(["c", "b"]).unwrap().contains("claim-b"));
        assert_eq!(start(["c", "d"]), None);
    }

    #[test]
    fn without_claims_an_empty_file_accepts_the_loss() {
        let mut record = Record::new("q35", false);
        start(&mut record, None, false);
        let lost = start(&mut record, None, false).1.unwrap();
        assert!(
            lost.contains("create a file of 0 bytes at the path of the image"),
            "{lost}"
        );
        assert_eq!(start(&mut record, None, true), (false, None));
    }

    #[test]
    fn a_vm_is_a_copy_if_a_claim_is_another_one() {
        let mut record = Record::new("q35", false);
        let mut is_copy = |uid| start(&mut record, uid, true).0;
        let uids = [Some("one"), Some("one"), None, Some("one"), Some("two")];
        assert_eq!(uids.map(&mut is_copy), [false, false, false, false, true]);
        assert!(!is_copy(Some("two")));
    }

    #[test]
    fn a_serial_number_is_the_name_of_the_disk_and_unique() {
        let mut record = Record::new("q35", false);
        let mut serial = |path: &str| serial(&mut record, Path::new(path)).unwrap();
        assert_eq!(serial(IMAGE), "system-disk");
        assert_eq!(serial("/dev/data-disk"), "data-disk");
        let others = [
            serial("/dev/system-disk"),
            serial("/dev/a-disk-with-a-very-long-name"),
            serial("/images/ä,b.img"),
        ];
        assert!(others[0].starts_with("system-disk-"), "{others:?}");
        assert!(others[1].starts_with("a-disk-with-"), "{others:?}");
        assert!(others[2].starts_with("b.img-"), "{others:?}");
        assert!(others.iter().all(|serial| is_serial(serial)), "{others:?}");
        assert_eq!(serial("/dev/system-disk"), others[0]);
        record.hardware = Default::default();
        assert_eq!(super::serial(&mut record, Path::new("/dev/x")), None);
    }
}
