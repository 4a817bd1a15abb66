//! (pure) The events that the runner acts on.

use serde_json::{Map, Value};

/// What has happened in QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The machine was shut down: by the guest, or by QEMU's own end.
    Shutdown {
        /// Whether the guest did it.
        guest: bool,
        /// QEMU's word for the cause.
        reason: String,
    },
    /// The guest was stopped; why, only the run state tells.
    Stopped,
    /// The machine was reset.
    Reset,
    /// The guest has opened or closed a channel.
    Channel {
        /// The channel's device.
        id: String,
        /// Whether it is open.
        open: bool,
    },
    /// The balloon has moved.
    Balloon {
        /// Bytes that the guest has.
        actual: u64,
    },
    /// A SPICE client has connected its main channel.
    ConsoleConnected {
        /// The client's address.
        host: String,
        /// The client's port.
        port: String,
    },
    /// A SPICE client has gone.
    ConsoleDisconnected {
        /// The client's address.
        host: String,
        /// The client's port.
        port: String,
    },
    /// A disk could not be read or written.
    IoError(IoError),
    /// The tray of a CD drive has moved.
    TrayMoved,
    /// A device is unplugged.
    DeviceUnplugged {
        /// Its id.
        device: String,
    },
    /// The guest does not let a device go.
    UnplugRefused {
        /// Its id.
        device: String,
        /// What the guest says, for people.
        why: String,
    },
}

/// An error of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoError {
    /// The disk's block node.
    pub node: String,
    /// Whether it was written, not read.
    pub write: bool,
    /// Whether the guest was stopped.
    pub stopped: bool,
    /// Whether there is no room left.
    pub full: bool,
    /// For people.
    pub reason: String,
}

impl IoError {
    /// Which of the disks it is; its node is named `drive-<n>-…`.
    pub fn disk(&self) -> Option<usize> {
        self.node
            .strip_prefix("drive-")?
            .split('-')
            .next()?
            .parse()
            .ok()
    }
}

/// SPICE's number of the channel that each client has exactly once.
const SPICE_MAIN: u64 = 1;

impl Event {
    /// The event of that name; none if the runner does nothing about it.
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
            "DEVICE_UNPLUG_GUEST_ERROR" => Some(Self::UnplugRefused {
                device: text("device"),
                why: "gives no reason".to_owned(),
            }),
            "ACPI_DEVICE_OST" => refused(data.get("info")?),
            _ => None,
        }
    }
}

/// By what a guest can be asked for a device, as it names that in its answer (ACPI, `_OST`): by a notification, and its
/// processing.
const EJECT: [u64; 2] = [0x03, 0x103];

/// The device that a guest does not let go, if its answer says that. While it works on it, it says so too.
fn refused(info: &Value) -> Option<Event> {
    let number = |key| info.get(key).and_then(Value::as_u64);
    let status = number("status")
        .filter(|_| number("source").is_some_and(|source| EJECT.contains(&source)))?;
    let words = match status {
        0x00 | 0x84 => return None,
        0x80 => "it cannot give such a device back",
        0x81 => "a program of it uses the device",
        0x82 => "the device is busy",
        0x83 => "a device that depends on it is busy",
        _ => "it could not",
    };
    // A place without a device has none to lose.
    let device = info.get("device")?.as_str()?.to_owned();
    Some(Event::UnplugRefused {
        device,
        why: format!("says that {words} (_OST status {status:#x})"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(name: &str, data: Value) -> Option<Event> {
        Event::of(name, data.as_object().unwrap())
    }

    #[test]
    fn events_are_read() {
        let client = json!({"client": {"host": "10.0.0.9", "port": "4711", "channel-type": 1, "family": "ipv4"}});
        let (host, port) = ("10.0.0.9".to_owned(), "4711".to_owned());
        let reason = "guest-shutdown".to_owned();
        let off = json!({"guest": true, "reason": reason});
        assert_eq!(
            event("SHUTDOWN", off),
            Some(Event::Shutdown {
                guest: true,
                reason
            })
        );
        assert_eq!(
            event("VSERPORT_CHANGE", json!({"id": "channel0", "open": true})),
            Some(Event::Channel {
                id: "channel0".to_owned(),
                open: true
            })
        );
        assert_eq!(
            event("SPICE_INITIALIZED", client.clone()),
            Some(Event::ConsoleConnected { host, port })
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
            Some(Event::DeviceUnplugged {
                device: device.clone()
            })
        );
        let why = "gives no reason".to_owned();
        assert_eq!(
            event("DEVICE_UNPLUG_GUEST_ERROR", gone),
            Some(Event::UnplugRefused { device, why })
        );
        let full = json!({"device": "", "node-name": "drive-12-host-resource", "operation": "write", "action": "stop",
            "nospace": true, "reason": "No space left on device"});
        let Some(Event::IoError(error)) = event("BLOCK_IO_ERROR", full) else {
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
            (3, 0x80, "cannot"),
            (0x103, 0x82, "busy"),
            (3, 1, "could not"),
            (3, 0x99, "0x99"),
        ] {
            let Some(Event::UnplugRefused { device, why }) = answer(source, status) else {
                panic!("{status:#x}")
            };
            assert!(
                device == "cpu-2" && why.contains(word) && why.contains(&format!("{status:#x}")),
                "{why}"
            );
        }
        // Done, under way, and what is said of a device that has come.
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
