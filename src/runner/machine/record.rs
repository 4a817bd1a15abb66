//! (io) What a machine must not forget between its starts: one small file in the data directory.
//!
//! What always holds: the file is whole; keys of a newer runner stay where an older one writes.

use crate::runner::failure::Failure;
use crate::runner::machine::access::User;
use crate::runner::machine::durable;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

/// Its name.
const FILE: &str = "machine.json";

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// QEMU's machine type; none if it was taken out, so that the newest is taken.
    #[serde(default = "newest_machine")]
    pub machine_type: String,
    /// Whether the VM's first start was one by the reference's runner.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_reference: bool,
    /// Places of the devices on the PCI bus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<Places>,
    /// What shows the guest's picture; none before the first start, or with an older runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub screen: Option<Screen>,
    /// What a newer runner keeps.
    #[serde(flatten)]
    other: Map<String, Value>,
}

/// Slots of the PCI bus, as the guest knows its devices by them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// Slot of the first of the devices that every machine has.
    pub first: u8,
    /// Slots of networks and disks, also of those that are not there at the moment.
    #[serde(default)]
    pub slots: BTreeMap<String, u8>,
}

/// What shows the guest's picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Screen {
    /// A screen without a driver of its own; it has one head.
    #[serde(rename = "VGA")]
    Vga,
    /// The reference's, of several heads.
    #[serde(rename = "virtio-vga")]
    VirtioVga,
}

/// QEMU's name for its newest machine of this kind.
pub fn newest_machine() -> String {
    "q35".to_owned()
}

impl Record {
    /// A first record.
    pub fn new(machine_type: &str, of_reference: bool) -> Self {
        Self {
            machine_type: machine_type.to_owned(),
            of_reference,
            ..Self::default()
        }
    }

    /// The machine's record, if it has one yet.
    pub fn read(data: &Path) -> Result<Option<Self>, Failure> {
        let path = data.join(FILE);
        let parsed = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        parsed.map_err(|error| User::of_process().cannot("cannot be read", &path, data, &error))
    }

    /// Keeps it.
    pub fn write(&self, data: &Path) -> Result<(), Failure> {
        let path = data.join(FILE);
        let written = serde_json::to_vec(self)
            .map_err(io::Error::from)
            .and_then(|text| durable::write(&path, &text));
        written.map_err(|error| User::of_process().cannot("cannot be written", &path, data, &error))
    }

    /// Changes what is kept.
    pub fn change(data: &Path, change: impl FnOnce(&mut Self)) -> Result<(), Failure> {
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
    fn what_a_newer_runner_keeps_survives_an_older_one() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join(FILE),
            r#"{"machineType": "pc-q35-10.0", "tomorrow": {"a": 1}}"#,
        )
        .unwrap();
        Record::change(dir.path(), |record| {
            record.machine_type = "pc-q35-11.0".to_owned()
        })
        .unwrap();
        let text = fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert!(
            text.contains(r#""tomorrow":{"a":1}"#) && text.contains("pc-q35-11.0"),
            "{text}"
        );
    }

    #[test]
    fn a_broken_record_is_an_explained_failure() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(
            Record::read(dir.path())
                .unwrap_err()
                .message
                .contains("machine.json cannot be read")
        );
    }
}
