//! (pure) The QMP commands that the runner sends, and the results that it parses.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::fmt;

/// Name of the command that adds a CPU. The runner adds no other device.
pub const ADD_CPU: &str = "device_add";

/// A command. `Debug` hides the arguments if they contain a secret.
#[derive(Clone, PartialEq)]
pub struct Command {
    pub name: &'static str,
    pub arguments: Value,
    secret: bool,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.secret {
            true => write!(f, "{} (arguments not shown)", self.name),
            false => write!(f, "{} {}", self.name, self.arguments),
        }
    }
}

impl Command {
    fn new(name: &'static str, arguments: Value) -> Self {
        Self {
            name,
            arguments,
            secret: false,
        }
    }

    /// The first command of a connection.
    pub fn capabilities() -> Self {
        Self::new("qmp_capabilities", json!({}))
    }

    /// Runs the guest.
    pub fn cont() -> Self {
        Self::new("cont", json!({}))
    }

    /// Ends QEMU.
    pub fn quit() -> Self {
        Self::new("quit", json!({}))
    }

    /// Presses the power button.
    pub fn system_powerdown() -> Self {
        Self::new("system_powerdown", json!({}))
    }

    /// Reads 16 bits from an I/O port of the guest. The result is a text. QMP itself has no such command.
    pub fn read_port(port: u16) -> Self {
        Self::new(
            "human-monitor-command",
            json!({"command-line": format!("i/h {port:#x}")}),
        )
    }

    /// The run state of the guest.
    pub fn query_status() -> Self {
        Self::new("query-status", json!({}))
    }

    /// QEMU's class name of the machine type, such as `pc-q35-10.0-machine`.
    pub fn machine_type() -> Self {
        Self::new("qom-get", json!({"path": "/machine", "property": "type"}))
    }

    /// The CPU slots; see [`CpuSlot`].
    pub fn query_cpu_slots() -> Self {
        Self::new("query-hotpluggable-cpus", json!({}))
    }

    /// Adds a CPU.
    pub fn add_cpu(id: &str, slot: &CpuSlot) -> Self {
        let mut arguments = slot.props.clone();
        arguments.insert("driver".to_owned(), json!(slot.type_));
        arguments.insert("id".to_owned(), json!(id));
        Self::new(ADD_CPU, Value::Object(arguments))
    }

    /// Asks the guest to release a device.
    pub fn remove_device(id: &str) -> Self {
        Self::new("device_del", json!({"id": id}))
    }

    /// Sets the guest's memory by the balloon.
    pub fn balloon(bytes: u64) -> Self {
        Self::new("balloon", json!({"value": bytes}))
    }

    /// The guest's memory, as set by the balloon.
    pub fn query_balloon() -> Self {
        Self::new("query-balloon", json!({}))
    }

    /// Statistics of the disks.
    pub fn query_block_stats() -> Self {
        Self::new("query-blockstats", json!({}))
    }

    /// The guest's CPUs and their threads.
    pub fn query_cpus() -> Self {
        Self::new("query-cpus-fast", json!({}))
    }

    /// Sets the interval in seconds at which the guest's balloon driver reports memory.
    pub fn set_guest_stats_interval(balloon: &str, seconds: u64) -> Self {
        let property = "guest-stats-polling-interval";
        Self::new(
            "qom-set",
            json!({"path": balloon, "property": property, "value": seconds}),
        )
    }

    /// The last report of the guest's balloon driver.
    pub fn guest_stats(balloon: &str) -> Self {
        Self::new(
            "qom-get",
            json!({"path": balloon, "property": "guest-stats"}),
        )
    }

    /// Presses the reset button.
    pub fn system_reset() -> Self {
        Self::new("system_reset", json!({}))
    }

    /// Deletes an unused block node.
    pub fn remove_node(node: &str) -> Self {
        Self::new("blockdev-del", json!({"node-name": node}))
    }

    /// Replaces a drive's medium by a new block node. A guest that has locked the tray is asked to open it.
    pub fn change_medium(device: &str, node: &Value) -> Self {
        Self::new(
            "blockdev-change-medium",
            json!({"id": device, "filename": format!("json:{node}")}),
        )
    }

    /// Opens a drive's tray and removes the medium. A guest that has locked the tray is asked to open it.
    pub fn eject(device: &str) -> Self {
        Self::new("eject", json!({"id": device}))
    }

    /// Closes the tray.
    pub fn close_tray(device: &str) -> Self {
        Self::new("blockdev-close-tray", json!({"id": device}))
    }

    /// Sets the size of a disk and reports it to the guest. An image file is enlarged.
    pub fn resize(node: &str, size: u64) -> Self {
        Self::new("block_resize", json!({"node-name": node, "size": size}))
    }

    /// Gives a name to the file descriptor that is sent with the command.
    pub fn get_descriptor(name: &str) -> Self {
        Self::new("getfd", json!({"fdname": name}))
    }

    /// Closes the file descriptor of that name.
    pub fn close_descriptor(name: &str) -> Self {
        Self::new("closefd", json!({"fdname": name}))
    }

    /// Shows the screen to the VNC client at that descriptor, which needs no password.
    pub fn add_vnc_client(descriptor: &str) -> Self {
        Self::new(
            "add_client",
            json!({"protocol": "vnc", "fdname": descriptor, "skipauth": true}),
        )
    }

    /// Sets the display's password.
    pub fn set_password(password: &str) -> Self {
        let arguments = json!({"protocol": "spice", "password": password});
        Self {
            name: "set_password",
            arguments,
            secret: true,
        }
    }

    /// The same command for a new password, which also disconnects clients of the display.
    pub fn and_disconnect(mut self) -> Self {
        if let Some(arguments) = self.arguments.as_object_mut() {
            arguments.insert("connected".to_owned(), "disconnect".into());
        }
        self
    }

    /// Sets the expiry of the display's password: `now`, `never`, `+<seconds>` or seconds since
    /// 1970.
    pub fn expire_password(time: &str) -> Self {
        Self::new(
            "expire_password",
            json!({"protocol": "spice", "time": time}),
        )
    }
}

/// A slot for a CPU.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CpuSlot {
    /// The type of CPU.
    #[serde(rename = "type")]
    pub type_: String,
    /// Its position: `socket-id`, `die-id`, `core-id`, `thread-id` and so on.
    pub props: Map<String, Value>,
    /// QOM path of the CPU in the slot.
    #[serde(default)]
    pub qom_path: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b40_a_password_is_in_no_log() {
        let command = Command::set_password("geheim");
        assert!(!format!("{command:?}").contains("geheim"));
        assert_eq!(command.arguments["password"], "geheim");
    }
}
