//! Bounds of the values in `spec`. The rules of the schema contain a bound as text, so each one is a macro, from which both the
//! constant and the text are built.

use crate::api::quantity::Bytes;

/// Defines a constant, and a macro with its value for `concat!`.
macro_rules! bounds {
    ($($(#[$doc:meta])* $name:ident, $text:ident: $type:ty = $value:literal;)*) => {$(
        $(#[$doc])*
        pub const $name: $type = $value;
        macro_rules! $text {
            () => {
                $value
            };
        }
        pub(in crate::api::vm) use $text;
    )*};
}

bounds! {
    /// Maximum length of a label value, and of the name of a volume in a pod.
    LABEL_VALUE_LENGTH_MAX, label_value_length_max: usize = 63;
    /// Maximum length of a disk's name. With the suffix `-disk` it is the name of a volume of the pod.
    DISK_NAME_LENGTH_MAX, disk_name_length_max: usize = 58;
    /// Maximum number of CD drives: the ports of QEMU's SATA controller.
    CD_DRIVES_MAX, cd_drives_max: usize = 6;
    /// Maximum number of networks and disks with PVCs in total: the free slots of the PCI bus, without one for the cloud-init seed.
    PCI_DEVICES_MAX, pci_devices_max: usize = 23;
    /// Maximum number of CPUs.
    CPUS_MAX, cpus_max: u32 = 4096;
    /// Maximum time for the guest to shut down, in seconds: a year.
    POWERDOWN_TIMEOUT_MAX, powerdown_timeout_max: u64 = 31_536_000;
    /// Maximum number of screens.
    OUTPUTS_MAX, outputs_max: u32 = 16;
    /// Maximum number of USB redirection channels: the ports of the USB controller, minus one for the tablet.
    USB_REDIRECTS_MAX, usb_redirects_max: u32 = 14;
}

/// Minimum size of a guest's memory in MiB.
macro_rules! ram_min_mib {
    () => {
        1
    };
}
/// Maximum size of a guest's memory in TiB.
macro_rules! ram_max_tib {
    () => {
        127
    };
}
pub(in crate::api::vm) use {ram_max_tib, ram_min_mib};

/// Minimum size of a guest's memory. A smaller size is usually a number with a forgotten unit.
pub const RAM_MIN: Bytes = Bytes(ram_min_mib!() << 20);

/// Maximum size of a guest's memory. QEMU must map it, and x86-64 programs have 47 address bits.
pub const RAM_MAX: Bytes = Bytes(ram_max_tib!() << 40);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::vm::names;

    #[test]
    fn the_longest_disk_name_makes_the_longest_volume_name() {
        let name = "x".repeat(DISK_NAME_LENGTH_MAX);
        assert_eq!(names::disk(Some(&name), 0).len(), LABEL_VALUE_LENGTH_MAX);
    }
}
