//! (io) The VM's UUID and machine type, which outlive the pod and updates of QEMU.

use crate::api::runner::outcome::EndReason;
use crate::runner::failure::Failure;
use crate::runner::machine::atomic_file;
use crate::runner::machine::path_failure::ProcessUser;
use crate::runner::machine::record::{Record, newest_machine};
use std::path::Path;
use std::{fs, io};

/// The UUID, under the name that the Java VM-Operator uses.
const UUID_FILE: &str = "uuid.txt";
/// Template of the Java VM-Operator, which contains the machine type.
const LEGACY_TEMPLATE_FILE: &str = "VM.ftl.yaml";
/// Files that identify a VM of the Java VM-Operator. It stored no UUID if one was configured.
const LEGACY_FILES: [&str; 3] = [UUID_FILE, LEGACY_TEMPLATE_FILE, "fw-vars.fd"];
/// The machine type of all VMs of the Java VM-Operator without their own template.
const LEGACY_MACHINE_TYPE: &str = "pc-q35-9.2";
const KERNEL_UUID_FILE: &str = "/proc/sys/kernel/random/uuid";
const MACHINE_TYPE_PREFIX: &str = "pc-q35-";

/// The VM's record, or a new one. A new record is written immediately, because the files of a new
/// VM would later identify it as one of the Java VM-Operator.
///
/// `used_claim` names the PVC of the directory if an earlier start has written to it. Without files
/// of that start, the PVC has lost its content, and probably those of the disks have as well.
pub fn read_or_create_record(data: &Path, used_claim: Option<&str>) -> Result<Record, Failure> {
    if let Some(record) = Record::read(data)? {
        return Ok(record);
    }
    // Checked before a UUID is stored: a UUID without a record identifies a VM of the Java
    // VM-Operator.
    let is_legacy = LEGACY_FILES.iter().any(|name| data.join(name).exists());
    let record = if is_legacy {
        let template = fs::read_to_string(data.join(LEGACY_TEMPLATE_FILE)).unwrap_or_default();
        Record::new(
            &machine_type_in_template(&template).unwrap_or_else(|| LEGACY_MACHINE_TYPE.to_owned()),
            true,
        )
    } else if let Some(claim) = used_claim {
        return Err(lost(data, claim));
    } else {
        Record::new(&newest_machine(), false)
    };
    record.write(data)?;
    Ok(record)
}

/// The failure for lost runner data, with the way to accept the loss.
fn lost(data: &Path, claim: &str) -> Failure {
    Failure::new(
        EndReason::DataMissing,
        format!(
            "the VM does not start: the directory {} has no runner data (UUID, firmware variables, TPM state), although the VM \
             has run before. Check that the volume of the directory is mounted, or restore the data. To accept the loss of \
             this data, set spec.vm.state to Stopped, wait for the status Stopped, delete PVC {claim:?}, and set spec.vm.state to Running",
            data.display()
        ),
    )
}

/// The machine type in a template of the Java VM-Operator.
fn machine_type_in_template(template: &str) -> Option<String> {
    let line = |line: &str| {
        let version = line.split('#').next()?.split_once(MACHINE_TYPE_PREFIX)?.1;
        let end = version
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(version.len());
        version
            .get(..end)
            .filter(|version| version.contains('.'))
            .map(|version| format!("{MACHINE_TYPE_PREFIX}{version}"))
    };
    template.lines().find_map(line)
}

/// The VM's UUID. A configured one has priority and is not stored.
pub fn uuid(data: &Path, configured: Option<&str>) -> Result<String, Failure> {
    match configured {
        Some(uuid) => Ok(uuid.to_owned()),
        None => stored_uuid(data).map_err(|error| {
            ProcessUser::current().access_failure(
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
    let uuid = kernel_uuid()?;
    atomic_file::write(&path, format!("{uuid}\n").as_bytes())?;
    Ok(uuid)
}

/// A new random UUID.
pub fn random_uuid() -> Result<String, Failure> {
    kernel_uuid().map_err(|error| {
        Failure::data(format!(
            "the runner cannot read {KERNEL_UUID_FILE}, from which it takes a random UUID for the VM: {error}; mount /proc"
        ))
    })
}

/// The kernel returns a new random UUID (version 4) at each read.
fn kernel_uuid() -> io::Result<String> {
    let uuid = fs::read_to_string(KERNEL_UUID_FILE)?;
    Ok(uuid.trim().to_owned())
}

/// Records the machine type behind QEMU's alias at the first start, so that a newer QEMU does not
/// change the guest's hardware. `type_` is QEMU's class name, such as `pc-q35-10.0-machine`.
pub fn record_machine_type(data: &Path, type_: &str) -> Result<(), Failure> {
    let name = type_.strip_suffix("-machine").unwrap_or(type_);
    Record::update(data, |record| record.machine_type = name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_machine_retains_the_identity_of_its_first_start() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            read_or_create_record(dir.path(), None).unwrap(),
            Record::new("q35", false)
        );
        let first = uuid(dir.path(), None).unwrap();
        record_machine_type(dir.path(), "pc-q35-10.0-machine").unwrap();
        assert_eq!(
            read_or_create_record(dir.path(), None).unwrap(),
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
        assert_eq!(
            read_or_create_record(dir.path(), None).unwrap(),
            Record::new("pc-q35-9.2", true)
        );
        assert_eq!(
            uuid(dir.path(), None).unwrap(),
            "2f3c1f9e-8e6e-4d6e-9f0e-0d5f6f2d9b11"
        );
        fs::remove_file(dir.path().join("machine.json")).unwrap();
        let template = "    - [ \"-global\", \"x\" ]\n    # once pc-q35-5.2\n    - - \"-machine\"\n      \
            - \"pc-q35-8.1,usb=off,vmport=off\"\n";
        fs::write(dir.path().join("VM.ftl.yaml"), template).unwrap();
        assert_eq!(
            read_or_create_record(dir.path(), None)
                .unwrap()
                .machine_type,
            "pc-q35-8.1"
        );
    }

    #[test]
    fn a_template_that_names_no_machine_leaves_the_references() {
        assert_eq!(machine_type_in_template("- \"q35,usb=off\""), None);
        assert_eq!(machine_type_in_template("- \"pc-q35-,usb=off\""), None);
        assert_eq!(
            machine_type_in_template("machine: pc-q35-10.0.1"),
            Some("pc-q35-10.0.1".to_owned())
        );
    }

    #[test]
    fn a_machine_of_the_reference_with_a_configured_uuid_is_known_by_its_firmware_variables() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("fw-vars.fd"), "x").unwrap();
        assert!(read_or_create_record(dir.path(), None).unwrap().is_legacy);
        assert_eq!(uuid(dir.path(), Some("configured")).unwrap(), "configured");
        assert!(!dir.path().join("uuid.txt").exists());
    }

    #[test]
    fn lost_runner_data_of_a_vm_that_has_run_is_refused_and_not_created_again() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let failure = read_or_create_record(dir.path(), Some("vm-runner-data")).unwrap_err();
            assert_eq!(failure.reason, EndReason::DataMissing);
            let accept = "delete PVC \"vm-runner-data\"";
            assert!(failure.message.contains(accept), "{}", failure.message);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let new = read_or_create_record(dir.path(), None).unwrap();
        let known = read_or_create_record(dir.path(), Some("vm-runner-data"));
        assert_eq!(known, Ok(new));
    }
}
