//! (pure) What is in a CD drive: the tray opens, the old medium goes, the new one comes, the tray closes.
//!
//! What always holds: a drive whose medium was brought there as configured is the guest's: what the guest then does
//! with its tray is not undone.

use crate::runner::qmp::Command;
use serde::Deserialize;
use std::path::Path;

/// A drive as QEMU has it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Drive {
    /// The device, as `cd0`.
    #[serde(default)]
    pub qdev: String,
    /// Whether the tray is open.
    #[serde(default)]
    pub tray_open: bool,
    /// The medium.
    #[serde(default)]
    pub inserted: Option<Medium>,
}

/// A medium.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Medium {
    /// The block node that it is.
    #[serde(default)]
    pub node_name: String,
}

/// The next step.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// The drive is as it should be.
    Done,
    /// This.
    Give(Command),
    /// The guest holds the drive, and was asked to let it go.
    WaitForGuest,
}

/// The device of that drive.
pub fn device(n: usize) -> String {
    format!("cd{n}")
}

/// The medium of an image; images are shared between VMs, so nothing locks or writes them.
pub fn medium(node: &str, image: &Path) -> serde_json::Value {
    serde_json::json!({
        "driver": "raw", "node-name": node, "read-only": true,
        "file": {"driver": "file", "filename": image, "locking": "off", "read-only": true},
    })
}

/// The step that takes a drive closer to holding that node, or nothing. `asked` says whether it was asked to open
/// already.
pub fn next(drive: &Drive, node: Option<&str>, asked: bool) -> Step {
    let inserted = drive.inserted.as_ref().map(|medium| medium.node_name.as_str());
    match (drive.tray_open, inserted == node) {
        (false, true) => Step::Done,
        (false, false) if asked => Step::WaitForGuest,
        (false, false) => Step::Give(Command::open_tray(&drive.qdev)),
        (true, true) => Step::Give(Command::close_tray(&drive.qdev)),
        (true, false) => match (inserted, node) {
            (None, Some(node)) => Step::Give(Command::insert_medium(&drive.qdev, node)),
            _ => Step::Give(Command::remove_medium(&drive.qdev)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(tray_open: bool, node: Option<&str>) -> Drive {
        let inserted = node.map(|node| Medium { node_name: node.to_owned() });
        Drive { qdev: "cd0".to_owned(), tray_open, inserted }
    }

    /// The names of the steps from that drive to that node, played by a drive that does as it is told.
    fn steps(mut drive: Drive, node: Option<&str>) -> Vec<&'static str> {
        let mut steps = Vec::new();
        while let Step::Give(command) = next(&drive, node, false) {
            match command.name {
                "blockdev-open-tray" => drive.tray_open = true,
                "blockdev-close-tray" => drive.tray_open = false,
                "blockdev-remove-medium" => drive.inserted = None,
                "blockdev-insert-medium" => {
                    drive.inserted =
                        Some(Medium { node_name: command.arguments["node-name"].as_str().unwrap().into() });
                }
                other => panic!("{other}"),
            }
            steps.push(command.name);
        }
        assert_eq!(drive.inserted.map(|medium| medium.node_name).as_deref(), node);
        steps
    }

    #[test]
    fn a_medium_is_changed_ejected_and_inserted() {
        let (open, remove) = ("blockdev-open-tray", "blockdev-remove-medium");
        let (insert, close) = ("blockdev-insert-medium", "blockdev-close-tray");
        assert_eq!(steps(drive(false, Some("a")), Some("b")), [open, remove, insert, close]);
        assert_eq!(steps(drive(false, Some("a")), None), [open, remove, close]);
        assert_eq!(steps(drive(false, None), Some("b")), [open, insert, close]);
        assert_eq!(steps(drive(true, Some("a")), Some("b")), [remove, insert, close]);
        assert_eq!(steps(drive(false, Some("a")), Some("a")), Vec::<&str>::new());
    }

    #[test]
    fn a_drive_that_the_guest_holds_is_asked_once_and_waited_for() {
        assert_eq!(next(&drive(false, Some("a")), None, true), Step::WaitForGuest);
    }
}
