//! (io) What a guest knows its machine by: the UUID and the machine type, which outlive the pod and QEMU's versions.

use crate::runner::failure::Failure;
use crate::runner::machine::access::User;
use crate::runner::machine::durable;
use crate::runner::machine::record::{Record, newest_machine};
use std::path::Path;
use std::{fs, io};

/// Where the reference keeps the UUID.
const UUID_FILE: &str = "uuid.txt";
/// Where the reference keeps the machine's template, which names the machine type.
const TEMPLATE_FILE: &str = "VM.ftl.yaml";
/// What tells a VM of the reference; it kept no UUID where one was configured.
const TRACES_OF_REFERENCE: [&str; 3] = [UUID_FILE, TEMPLATE_FILE, "fw-vars.fd"];
/// The machine type of every VM of the reference with its own template.
const MACHINE_OF_REFERENCE: &str = "pc-q35-9.2";
/// QEMU's names for machines of this kind begin so.
const KIND: &str = "pc-q35-";

/// The machine's record, or its first. That is kept at once: what a new machine leaves later would look like the
/// reference's.
pub fn settle(data: &Path) -> Result<Record, Failure> {
    if let Some(record) = Record::read(data)? {
        return Ok(record);
    }
    // Looked at before a UUID is made: a UUID without a record means a VM of the reference.
    let of_reference = TRACES_OF_REFERENCE
        .iter()
        .any(|name| data.join(name).exists());
    let record = if of_reference {
        let template = fs::read_to_string(data.join(TEMPLATE_FILE)).unwrap_or_default();
        Record::new(
            &machine_of(&template).unwrap_or_else(|| MACHINE_OF_REFERENCE.to_owned()),
            true,
        )
    } else {
        Record::new(&newest_machine(), false)
    };
    record.write(data)?;
    Ok(record)
}

/// The machine type that a template of the reference names.
fn machine_of(template: &str) -> Option<String> {
    let line = |line: &str| {
        let version = line.split('#').next()?.split_once(KIND)?.1;
        let end = version
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(version.len());
        version
            .get(..end)
            .filter(|version| version.contains('.'))
            .map(|version| format!("{KIND}{version}"))
    };
    template.lines().find_map(line)
}

/// The machine's UUID. A configured one wins and is not kept.
pub fn uuid(data: &Path, configured: Option<&str>) -> Result<String, Failure> {
    match configured {
        Some(uuid) => Ok(uuid.to_owned()),
        None => stored_uuid(data).map_err(|error| {
            User::of_process().cannot(
                "cannot be read or written",
                &data.join(UUID_FILE),
                data,
                &error,
            )
        }),
    }
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
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?
        .trim()
        .to_owned();
    durable::write(&path, format!("{uuid}\n").as_bytes())?;
    Ok(uuid)
}

/// Keeps the machine type that QEMU's alias stood for at the first start, so that a newer QEMU does not change the
/// guest's machine. `type_` is QEMU's name of the class, as `pc-q35-10.0-machine`.
pub fn record_machine_type(data: &Path, type_: &str) -> Result<(), Failure> {
    let name = type_.strip_suffix("-machine").unwrap_or(type_);
    Record::change(data, |record| record.machine_type = name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_machine_keeps_what_its_first_start_made() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(settle(dir.path()).unwrap(), Record::new("q35", false));
        let first = uuid(dir.path(), None).unwrap();
        record_machine_type(dir.path(), "pc-q35-10.0-machine").unwrap();
        assert_eq!(
            settle(dir.path()).unwrap(),
            Record::new("pc-q35-10.0", false)
        );
        assert_eq!((first.len(), uuid(dir.path(), None).unwrap()), (36, first));
    }

    #[test]
    fn a_machine_of_the_reference_keeps_its_uuid_and_type() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("uuid.txt"),
            "2f3c1f9e-8e6e-4d6e-9f0e-0d5f6f2d9b11\n",
        )
        .unwrap();
        assert_eq!(settle(dir.path()).unwrap(), Record::new("pc-q35-9.2", true));
        assert_eq!(
            uuid(dir.path(), None).unwrap(),
            "2f3c1f9e-8e6e-4d6e-9f0e-0d5f6f2d9b11"
        );
        fs::remove_file(dir.path().join("machine.json")).unwrap();
        let template = "    - [ \"-global\", \"x\" ]\n    # once pc-q35-5.2\n    - - \"-machine\"\n      \
            - \"pc-q35-8.1,usb=off,vmport=off\"\n";
        fs::write(dir.path().join("VM.ftl.yaml"), template).unwrap();
        assert_eq!(settle(dir.path()).unwrap().machine_type, "pc-q35-8.1");
    }

    #[test]
    fn a_template_that_names_no_machine_leaves_the_references() {
        assert_eq!(machine_of("- \"q35,usb=off\""), None);
        assert_eq!(machine_of("- \"pc-q35-,usb=off\""), None);
        assert_eq!(
            machine_of("machine: pc-q35-10.0.1"),
            Some("pc-q35-10.0.1".to_owned())
        );
    }

    #[test]
    fn a_machine_of_the_reference_with_a_configured_uuid_is_known_by_its_firmware_variables() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("fw-vars.fd"), "x").unwrap();
        assert!(settle(dir.path()).unwrap().of_reference);
        assert_eq!(uuid(dir.path(), Some("configured")).unwrap(), "configured");
        assert!(!dir.path().join("uuid.txt").exists());
    }
}
