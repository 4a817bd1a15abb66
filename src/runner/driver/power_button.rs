//! (io) Finds out whether the guest can react to its power button. QEMU ignores the button as long as no operating system has enabled it,
//! so firmware without a bootable disk never reacts.

use crate::runner::driver::{Driver, TaskResult};
use crate::runner::qmp::{Client, Command};
use crate::runner::state::Event;

/// I/O port of the ACPI register PM1 enable, where SeaBIOS and OVMF put it on both types of PC. Operating systems with ACPI enable the global
/// lock event (GBL_EN) early in their boot, and the power button (PWRBTN_EN) with its driver. Firmware and boot loaders enable no event.
const PM1_ENABLE_PORT: u16 = 0x602;

impl Driver {
    pub(super) fn check_power_button(&self) {
        let (monitor, task_results) = (self.monitor.clone(), self.task_results.clone());
        tokio::spawn(async move {
            if is_unused(&monitor).await {
                tracing::info!(
                    "the guest has not enabled its ACPI power button; usually no operating system has booted. The runner stops QEMU \
                     without a shutdown of the guest, unless the guest agent has been asked and has not rejected it"
                );
                let _ = task_results.send(TaskResult::Event(Event::PowerButtonUnused));
            }
        });
    }
}

/// Whether the guest has enabled no ACPI event. If the register cannot be read, the guest is assumed to react: all bits of a port without a
/// device are set.
async fn is_unused(monitor: &Client) -> bool {
    let value = monitor.execute(Command::read_port(PM1_ENABLE_PORT)).await;
    let value = value.ok().and_then(|value| port_value(value.as_str()?));
    value == Some(0)
}

/// The value in the output of QEMU's command `i`, such as `portw[0x0602] = 0x0100`.
fn port_value(output: &str) -> Option<u16> {
    let (_, value) = output.trim().rsplit_once("= 0x")?;
    u16::from_str_radix(value, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_of_a_port_is_parsed() {
        assert_eq!(port_value("portw[0x0602] = 0x0100\r\n"), Some(0x100));
        assert_eq!(port_value("portw[0x0602] = 0xffff\r\n"), Some(0xffff));
        assert_eq!(port_value("unknown command: 'i'\r\n"), None);
    }
}
