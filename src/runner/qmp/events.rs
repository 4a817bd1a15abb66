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
    /// A device is unplugged, or the guest did not let it go.
    DeviceUnplugged {
        /// Whether it is gone.
        done: bool,
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
        self.node.strip_prefix("drive-")?.split('-').next()?.parse().ok()
    }
}

/// SPICE's number of the channel that each client has exactly once.
const SPICE_MAIN: u64 = 1;

impl Event {
    /// The event of that name; none if the runner does nothing about it.
    pub fn of(name: &str, data: &Map<String, Value>) -> Option<Self> {
        let flag = |key| data.get(key).and_then(Value::as_bool).unwrap_or(false);
        let text = |key| data.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let client = |key: &str| {
            let text = data.get("client").and_then(|client| client.get(key)).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let channel_type = || data.get("client")?.get("channel-type")?.as_u64();
        match name {
            "SHUTDOWN" => Some(Self::Shutdown { guest: flag("guest"), reason: text("reason") }),
            "STOP" => Some(Self::Stopped),
            "RESET" => Some(Self::Reset),
            "VSERPORT_CHANGE" => Some(Self::Channel { id: text("id"), open: flag("open") }),
            "BALLOON_CHANGE" => data.get("actual").and_then(Value::as_u64).map(|actual| Self::Balloon { actual }),
            "SPICE_INITIALIZED" if channel_type() == Some(SPICE_MAIN) => {
                Some(Self::ConsoleConnected { host: client("host"), port: client("port") })
            }
            "SPICE_DISCONNECTED" => Some(Self::ConsoleDisconnected { host: client("host"), port: client("port") }),
            "BLOCK_IO_ERROR" => Some(Self::IoError(IoError {
                node: text("node-name"),
                write: text("operation") == "write",
                stopped: text("action") == "stop",
                full: flag("nospace"),
                reason: text("reason"),
            })),
            "DEVICE_TRAY_MOVED" => Some(Self::TrayMoved),
            "DEVICE_DELETED" => Some(Self::DeviceUnplugged { done: true }),
            "DEVICE_UNPLUG_GUEST_ERROR" => Some(Self::DeviceUnplugged { done: false }),
            _ => None,
        }
    }
}

/// Address and port of each SPICE client, by what QEMU knows of its display's channels.
pub fn consoles(display: &Value) -> Vec<(String, String)> {
    let channels = display.get("channels").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let main = channels.iter().filter(|c| c.get("channel-type").and_then(Value::as_u64) == Some(SPICE_MAIN));
    let text = |c: &Value, key| c.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    main.map(|c| (text(c, "host"), text(c, "port"))).collect()
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
        let display = json!({"enabled": true, "channels": [client["client"], {"channel-type": 2, "host": "10.0.0.8"}]});
        assert_eq!(consoles(&display), [(host.clone(), port.clone())]);
        assert_eq!(consoles(&json!({"enabled": true})), []);
        let reason = "guest-shutdown".to_owned();
        let off = json!({"guest": true, "reason": reason});
        assert_eq!(event("SHUTDOWN", off), Some(Event::Shutdown { guest: true, reason }));
        assert_eq!(
            event("VSERPORT_CHANGE", json!({"id": "channel0", "open": true})),
            Some(Event::Channel { id: "channel0".to_owned(), open: true })
        );
        assert_eq!(event("SPICE_INITIALIZED", client.clone()), Some(Event::ConsoleConnected { host, port }));
        assert_eq!(event("SPICE_INITIALIZED", json!({"client": {"channel-type": 2}})), None);
        assert_eq!(event("SPICE_CONNECTED", client), None);
        assert_eq!(event("BALLOON_CHANGE", json!({})), None);
        let full = json!({"device": "", "node-name": "drive-12-host-resource", "operation": "write", "action": "stop",
            "nospace": true, "reason": "No space left on device"});
        let Some(Event::IoError(error)) = event("BLOCK_IO_ERROR", full) else { panic!() };
        assert_eq!((error.disk(), error.write, error.stopped, error.full), (Some(12), true, true, true));
    }
}
