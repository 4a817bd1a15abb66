//! (io) Choices of the first start that must not change later: a JSON file in the data directory.
//!
//! Invariants: the file is written atomically. Keys of a newer runner are retained.

use crate::runner::failure::Failure;
use crate::runner::machine::atomic_file;
use crate::runner::machine::path_failure::ProcessUser;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

const RECORD_FILE: &str = "machine.json";

/// Recorded choices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// QEMU's machine type. A user can remove the key to get the newest one.
    #[serde(default = "newest_machine")]
    pub machine_type: String,
    /// Whether the Java VM-Operator has created the VM.
    #[serde(
        rename = "ofReference",
        default,
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub is_legacy: bool,
    /// PCI slots of the devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<RecordedPciSlots>,
    /// The graphics device. None before the first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub screen: Option<Screen>,
    /// Version of the VM's hardware.
    #[serde(default, skip_serializing_if = "HardwareVersion::is_first")]
    pub hardware: HardwareVersion,
    /// Generated MAC addresses by the key of their network, including absent networks. None before
    /// the first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub macs: Option<BTreeMap<String, String>>,
    /// Disks by path, including absent ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub disks: BTreeMap<String, RecordedDisk>,
    /// GUID of the device vmgenid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation_id: Option<String>,
    /// The generated `instance-id` for cloud-init.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<RecordedInstance>,
    /// Keys of a newer runner.
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// Version of the hardware that a VM gets at its first start and keeps.
///
/// | version | hardware |
/// |---|---|
/// | 1 | of the Java VM-Operator |
/// | 2 | no emulated IOMMU; pvpanic, vmgenid, serial numbers of disks, spare PCIe root ports; slots of networks do not follow MAC addresses |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HardwareVersion(u32);

impl Default for HardwareVersion {
    fn default() -> Self {
        Self(1)
    }
}

impl HardwareVersion {
    /// The version of VMs that are started for the first time.
    pub const NEWEST: Self = Self(2);

    pub fn is_first(&self) -> bool {
        *self == Self::default()
    }
}

/// Recorded values of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RecordedDisk {
    /// Whether a start has used the disk. Its image file has existed then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub was_used: bool,
    /// Serial number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// UID of its PVC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// The last import of an image onto it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub import: Option<RecordedImport>,
}

/// An import of an image onto a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RecordedImport {
    /// UID of the PVC. Empty outside of pods.
    pub claim: String,
    /// Whether the image file is complete.
    pub is_complete: bool,
}

/// A generated `instance-id`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedInstance {
    /// The id.
    pub id: String,
    /// Hash of `spec.cloudInit`.
    pub content: String,
}

/// Recorded PCI slots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedPciSlots {
    /// Slot of the first standard device.
    pub first: u8,
    /// Slots of networks and disks, including absent ones.
    #[serde(default)]
    pub slots: BTreeMap<String, u8>,
}

/// A graphics device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Screen {
    /// Works without a driver in the guest, and has one output.
    #[serde(rename = "VGA")]
    Vga,
    /// The device of the Java VM-Operator, with several outputs.
    #[serde(rename = "virtio-vga")]
    VirtioVga,
}

/// QEMU's alias for its newest machine type of this kind.
pub fn newest_machine() -> String {
    "q35".to_owned()
}

impl Record {
    /// The record of a VM without one.
    pub fn new(machine_type: &str, is_legacy: bool) -> Self {
        Self {
            machine_type: machine_type.to_owned(),
            is_legacy,
            hardware: if is_legacy {
                HardwareVersion::default()
            } else {
                HardwareVersion::NEWEST
            },
            ..Self::default()
        }
    }

    /// Reads the VM's record, if there is one.
    pub fn read(data: &Path) -> Result<Option<Self>, Failure> {
        let path = data.join(RECORD_FILE);
        let parsed = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        parsed.map_err(|error| {
            ProcessUser::current().access_failure("cannot be read", &path, data, &error)
        })
    }

    pub fn write(&self, data: &Path) -> Result<(), Failure> {
        let path = data.join(RECORD_FILE);
        let written = serde_json::to_vec(self)
            .map_err(io::Error::from)
            .and_then(|text| atomic_file::write(&path, &text));
        written.map_err(|error| {
            ProcessUser::current().access_failure("cannot be written", &path, data, &error)
        })
    }

    /// Applies the change to the stored record, or to a new one. An unchanged record is not written.
    pub fn update(data: &Path, change: impl FnOnce(&mut Self)) -> Result<(), Failure> {
        let mut record = Self::read(data)?.unwrap_or_else(|| Self::new(&newest_machine(), false));
        let before = record.clone();
        change(&mut record);
        if record == before {
            Ok(())
        } else {
            record.write(data)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_record_fields_survive_an_older_runner() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join(RECORD_FILE),
            r#"{"machineType": "pc-q35-10.0", "tomorrow": {"a": 1}}"#,
        )
        .unwrap();
        Record::update(dir.path(), |record| {
            record.machine_type = "pc-q35-11.0".to_owned()
        })
        .unwrap();
        let text = fs::read_to_string(dir.path().join(RECORD_FILE)).unwrap();
        assert!(
            text.contains(r#""tomorrow":{"a":1}"#) && text.contains("pc-q35-11.0"),
            "{text}"
        );
    }

    #[test]
    fn a_broken_record_is_an_explained_failure() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(RECORD_FILE), "{").unwrap();
        assert!(
            Record::read(dir.path())
                .unwrap_err()
                .message
                .contains("machine.json cannot be read")
        );
    }
}
