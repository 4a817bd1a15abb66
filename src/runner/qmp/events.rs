//! (pure) The QMP events that the runner handles.

use serde_json::{Map, Value};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QmpEvent {
    /// The VM was shut down by the guest or by QEMU.
    Shutdown {
        /// Whether the guest caused it.
        guest: bool,
        /// QEMU's name of the cause.
        reason: String,
    },
    /// The guest was stopped. Only the run state contains the cause.
    Stopped,
    /// The VM was reset.
    Reset,
    /// The guest has opened or closed a channel.
    Channel {
        /// Id of the channel's device.
        id: String,
        /// Whether it is open.
        open: bool,
    },
    /// The balloon's size has changed.
    Balloon {
        /// The guest's memory in bytes.
        actual: u64,
    },
    /// A SPICE client has connected its main channel.
    ConsoleConnected { host: String, port: String },
    /// A SPICE client has closed a channel.
    ConsoleDisconnected { host: String, port: String },
    /// A disk could not be read or written.
    IoError(IoError),
    /// The tray of a CD drive has moved.
    TrayMoved,
    /// A device was removed.
    DeviceUnplugged { device: String },
    /// The guest does not release a device.
    UnplugRejected {
        device: String,
        /// The guest's reason, as a part of a message.
        why: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoError {
    /// The disk's block node.
    pub node: String,
    /// Whether the failed operation is a write.
    pub write: bool,
    /// Whether QEMU has stopped the guest.
    pub stopped: bool,
    /// Whether the volume is full.
    pub full: bool,
    /// The text for users.
    pub reason: String,
}

impl IoError {
    /// The number of the disk, from its node's name `drive-<n>-…`.
    pub fn disk(&self) -> Option<usize> {
        self.node
            .strip_prefix("drive-")?
            .split('-')
            .next()?
            .parse()
            .ok()
    }
}

/// SPICE's number of the main channel. Each client has exactly one.
const SPICE_MAIN: u64 = 1;

impl QmpEvent {
    /// The event of that name, or None if the runner does not handle it.
    pub fn of(name: &str, data: &Map<String, Value>) -> Option<Self> {
        let flag = |key| data.get(key).and_then(Value::as_bool).unwrap_or(false);
        let text = |key| {
            data.get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let client = |key: &str| {
            let text = data
                .get("client")
                .and_then(|client| client.get(key))
                .and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let channel_type = || data.get("client")?.get("channel-type")?.as_u64();
        match name {
            "SHUTDOWN" => Some(Self::Shutdown {
                guest: flag("guest"),
                reason: text("reason"),
            }),
            "STOP" => Some(Self::Stopped),
            "RESET" => Some(Self::Reset),
            "VSERPORT_CHANGE" => Some(Self::Channel {
                id: text("id"),
                open: flag("open"),
            }),
            "BALLOON_CHANGE" => data
                .get("actual")
                .and_then(Value::as_u64)
                .map(|actual| Self::Balloon { actual }),
            "SPICE_INITIALIZED" if channel_type() == Some(SPICE_MAIN) => {
                Some(Self::ConsoleConnected {
                    host: client("host"),
                    port: client("port"),
                })
            }
            "SPICE_DISCONNECTED" => Some(Self::ConsoleDisconnected {
                host: client("host"),
                port: client("port"),
            }),
            "BLOCK_IO_ERROR" => Some(Self::IoError(IoError {
                node: text("node-name"),
                write: text("operation") == "write",
                stopped: text("action") == "stop",
                full: flag("nospace"),
                reason: text("reason"),
            })),
            "DEVICE_TRAY_MOVED" => Some(Self::TrayMoved),
            "DEVICE_DELETED" => Some(Self::DeviceUnplugged {
                device: text("device"),
            }),
            "DEVICE_UNPLUG_GUEST_ERROR" => Some(Self::UnplugRejected {
                device: text("device"),
                why: "the guest has not reported why it retains the device".to_owned(),
            }),
            "ACPI_DEVICE_OST" => unplug_rejected(data.get("info")?),
            _ => None,
        }
    }
}

/// Sources of the answer to an eject request (ACPI `_OST`): the notification and its processing.
const OST_EJECT_SOURCES: [u64; 2] = [0x03, 0x103];

/// The device that the guest does not release. A guest that is still working on the request reports
/// that too.
fn unplug_rejected(info: &Value) -> Option<QmpEvent> {
    let number = |key| info.get(key).and_then(Value::as_u64);
    let status = number("status")
        .filter(|_| number("source").is_some_and(|source| OST_EJECT_SOURCES.contains(&source)))?;
    let answer = match status {
        0x00 | 0x84 => return None,
        0x80 => "the guest does not support the removal of the device",
        0x81 => "a program in the guest uses the device",
        0x82 => "the device is busy",
        0x83 => "another device depends on this device, and that other device is busy",
        _ => "the device could not be released",
    };
    // An empty slot has no device.
    let device = info.get("device")?.as_str()?.to_owned();
    Some(QmpEvent::UnplugRejected {
        device,
        why: format!("the guest reports that {answer} (ACPI _OST status {status:#x})"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(name: &str, data: Value) -> Option<QmpEvent> {
        QmpEvent::of(name, data.as_object().unwrap())
    }

    #[test]
    fn events_are_read() {
        let client = json!({"client": {"host": "10.0.0.9", "port": "4711", "channel-type": 1, "family": "ipv4"}});
        let (host, port) = ("10.0.0.9".to_owned(), "4711".to_owned());
        let reason = "guest-shutdown".to_owned();
        let off = json!({"guest": true, "reason": reason});
        assert_eq!(
            event("SHUTDOWN", off),
            Some(QmpEvent::Shutdown {
                guest: true,
                reason
            })
        );
        assert_eq!(
            event("VSERPORT_CHANGE", json!({"id": "channel0", "open": true})),
            Some(QmpEvent::Channel {
                id: "channel0".to_owned(),
                open: true
            })
        );
        assert_eq!(
            event("SPICE_INITIALIZED", client.clone()),
            Some(QmpEvent::ConsoleConnected { host, port })
        );
        assert_eq!(
            event("SPICE_INITIALIZED", json!({"client": {"channel-type": 2}})),
            None
        );
        assert_eq!(event("SPICE_CONNECTED", client), None);
        assert_eq!(event("BALLOON_CHANGE", json!({})), None);
        let gone = json!({"device": "cpu-1", "path": "/machine/peripheral/cpu-1"});
        let device = "cpu-1".to_owned();
        assert_eq!(
            event("DEVICE_DELETED", gone.clone()),
            Some(QmpEvent::DeviceUnplugged {
                device: device.clone()
            })
        );
        let why = "the guest has not reported why it retains the device".to_owned();
        assert_eq!(
            event("DEVICE_UNPLUG_GUEST_ERROR", gone),
            Some(QmpEvent::UnplugRejected { device, why })
        );
        let full = json!({"device": "", "node-name": "drive-12-host-resource", "operation": "write", "action": "stop",
            "nospace": true, "reason": "No space left on device"});
        let Some(QmpEvent::IoError(error)) = event("BLOCK_IO_ERROR", full) else {
            panic!()
        };
        assert_eq!(
            (error.disk(), error.write, error.stopped, error.full),
            (Some(12), true, true, true)
        );
    }

    #[test]
    fn a_guest_that_does_not_let_a_device_go_says_so_by_the_status_of_its_answer() {
        let answer = |source: u64, status: u64| {
            let info = json!({"device": "cpu-2", "slot": "2", "slot-type": "CPU", "source": source, "status": status});
            event("ACPI_DEVICE_OST", json!({"info": info}))
        };
        for (source, status, word) in [
            (3, 0x80, "does not support"),
            (0x103, 0x82, "busy"),
            (3, 1, "could not be released"),
            (3, 0x99, "0x99"),
        ] {
            let Some(QmpEvent::UnplugRejected { device, why }) = answer(source, status) else {
                panic!("{status:#x}")
            };
            assert!(
                device == "cpu-2" && why.contains(word) && why.contains(&format!("{status:#x}")),
                "{why}"
            );
        }
        // Success, in progress, and a device that was added.
        for (source, status) in [
            (3, 0),
            (0x103, 0),
            (3, 0x84),
            (0x103, 0x84),
            (1, 0x80),
            (0x200, 1),
        ] {
            assert_eq!(answer(source, status), None, "{source:#x} {status:#x}");
        }
        let empty = json!({"info": {"slot": "2", "slot-type": "CPU", "source": 3, "status": 1}});
        assert_eq!(event("ACPI_DEVICE_OST", empty), None);
    }
}
