//! (io) What a guest knows its machine by: the UUID and the machine type, which outlive the pod and QEMU's versions.

use super::durable;
use crate::runner::failure::Failure;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::Path;

/// Where the reference keeps the UUID.
const UUID_FILE: &str = "uuid.txt";
/// Where we keep the machine type.
const RECORD_FILE: &str = "machine.json";
/// What tells a VM of the reference where it kept no UUID.
const TRACES_OF_REFERENCE: [&str; 3] = [UUID_FILE, "VM.ftl.yaml", "fw-vars.fd"];
/// The machine type of every VM of the reference.
const MACHINE_OF_REFERENCE: &str = "pc-q35-9.2";
/// QEMU's name for its newest machine of this kind.
const NEWEST_MACHINE: &str = "q35";

/// Identity of a machine.
#[derive(Debug, PartialEq, Eq)]
pub struct Identity {
    pub uuid: String,
    pub machine_type: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    machine_type: String,
}

/// Reads the identity, or makes one. A configured UUID wins and is not kept.
pub fn settle(data: &Path, uuid: Option<&str>) -> Result<Identity, Failure> {
    let problem = |name: &str, error: io::Error| {
        Failure::data(format!("{} cannot be read or written: {error}", data.join(name).display()))
    };
    // In this order: a UUID without a record means a VM of the reference.
    let machine_type = machine_type(data).map_err(|error| problem(RECORD_FILE, error))?;
    let uuid = match uuid {
        Some(uuid) => uuid.to_owned(),
        None => stored_uuid(data).map_err(|error| problem(UUID_FILE, error))?,
    };
    Ok(Identity { uuid, machine_type })
}

fn machine_type(data: &Path) -> io::Result<String> {
    let path = data.join(RECORD_FILE);
    match fs::read(&path) {
        Ok(text) => return Ok(serde_json::from_slice::<Record>(&text)?.machine_type),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let moved = TRACES_OF_REFERENCE.iter().any(|name| data.join(name).exists());
    let machine_type = if moved { MACHINE_OF_REFERENCE } else { NEWEST_MACHINE }.to_owned();
    write_record(data, &machine_type)?;
    Ok(machine_type)
}

fn write_record(data: &Path, machine_type: &str) -> io::Result<()> {
    let record = Record { machine_type: machine_type.to_owned() };
    durable::write(&data.join(RECORD_FILE), &serde_json::to_vec(&record)?)
}

fn stored_uuid(data: &Path) -> io::Result<String> {
    let path = data.join(UUID_FILE);
    match fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // The kernel's own generator makes a random UUID of version 4 at each reading.
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned();
    durable::write(&path, format!("{uuid}\n").as_bytes())?;
    Ok(uuid)
}

/// Keeps the machine type that QEMU's alias stood for at the first start, so that a newer QEMU does not change the
/// guest's machine. `type_` is QEMU's name of the class, as `pc-q35-10.0-machine`.
pub fn record_machine_type(data: &Path, type_: &str) -> io::Result<()> {
    write_record(data, type_.strip_suffix("-machine").unwrap_or(type_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_machine_keeps_what_its_first_start_made() {
        let dir = tempfile::tempdir().unwrap();
        let first = settle(dir.path(), None).unwrap();
        assert_eq!((first.uuid.len(), first.machine_type.as_str()), (36, "q35"));
        assert_eq!(settle(dir.path(), None).unwrap(), first);
        record_machine_type(dir.path(), "pc-q35-10.0-machine").unwrap();
        let second = settle(dir.path(), None).unwrap();
        assert_eq!((second.uuid, second.machine_type.as_str()), (first.uuid, "pc-q35-10.0"));
    }

    #[test]
    fn a_machine_of_the_reference_keeps_its_uuid_and_type() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("uuid.txt"), "2f3c1f9e-8e6e-4d6e-9f0e-0d5f6f2d9b11\n").unwrap();
        let identity = settle(dir.path(), None).unwrap();
        assert_eq!(identity.uuid, "2f3c1f9e-8e6e-4d6e-9f0e-0d5f6f2d9b11");
        assert_eq!(identity.machine_type, "pc-q35-9.2");
    }

    #[test]
    fn a_machine_of_the_reference_with_a_configured_uuid_is_known_by_its_firmware_variables() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("fw-vars.fd"), "x").unwrap();
        let identity = settle(dir.path(), Some("configured")).unwrap();
        assert_eq!((identity.uuid.as_str(), identity.machine_type.as_str()), ("configured", "pc-q35-9.2"));
        assert!(!dir.path().join("uuid.txt").exists());
    }

    #[test]
    fn a_broken_record_is_an_explained_failure() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("machine.json"), "{").unwrap();
        assert!(settle(dir.path(), None).unwrap_err().message.contains("machine.json"));
    }
}
