//! The runner with a real QEMU.
