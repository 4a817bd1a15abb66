//! The runner: PID 1 of each VM's pod.
//!
//! ```text
//! config.yaml -> config -> spec -> machine -> qemu (arguments) -> process
//!                  |                                                |
//!                watch -> driver <- qmp, agent, signals <-----------+
//!                           |  ^
//!                   desired |  | state (decides)
//!                           v  |
//!                         live -> qmp            status -> report -> API server
//! ```
//!
//! | module | content |
//! |---|---|
//! | `cli`, `start` | command line and exit code; start of QEMU from the configuration |
//! | `config`, `spec`, `machine` | the file as it is read; checked values; all paths and defaults |
//! | `qemu` | QEMU's arguments |
//! | `taps`, `harden` | host networks for the guest; the rights that are dropped afterwards |
//! | `kvm`, `cpu_model`, `out_of_memory` | whether KVM runs a guest; CPU models that QEMU rejects; kills by the kernel |
//! | `metrics` | metrics of QEMU and the kernel, for Prometheus |
//! | `process` | QEMU as a child process |
//! | `state`, `driver` | the state of the VM (pure); the only task that owns it |
//! | `watch` | notices changes of the configuration |
//! | `desired`, `live` | the desired state of a running VM (pure); changes of the running QEMU, one file per aspect |
//! | `qmp`, `agent` | the QMP connection; agents in the guest |
//! | `console`, `screen` | the serial console; the screen by VNC |
//! | `seed` | the cloud-init seed |
//! | `fetch`, `import` | downloads images into the repository, in pods of their own; onto disks |
//! | `status`, `report` | the reported state of the VM (pure); the reports |
//! | `failure` | errors: of a start or a VM, of a condition, of a value |
//! | `signals` | signals that request a shutdown |

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing {
    //! The fuzz targets of the runner's parsers.

    pub use super::agent::fuzzing::{check_desktop, check_guest, check_lines};
    pub use super::config::fuzzing::check_config;
    pub use super::import::check_image;
    pub use super::qmp::check_qmp;
}

mod agent;
pub mod cli;
mod config;
mod console;
mod cpu_model;
mod desired;
mod driver;
mod failure;
mod fetch;
mod harden;
mod import;
mod kvm;
mod live;
mod machine;
mod metrics;
mod out_of_memory;
mod process;
mod qemu;
mod qmp;
mod report;
mod screen;
mod seed;
mod signals;
mod spec;
mod start;
mod state;
mod status;
mod taps;
mod watch;

/// Checks a configuration file as a start does. Returns the unknown keys.
///
/// # Errors
///
/// The first value that cannot be used, with its key and the allowed values.
pub fn check(text: &str) -> Result<Vec<String>, String> {
    let parsed = config::parse(text).map_err(|invalid| invalid.to_string())?;
    spec::Spec::from_config(&parsed.config).map_err(|invalid| invalid.to_string())?;
    Ok(parsed.unknown)
}

/// The files of the cloud-init seed for a configuration file.
///
/// # Errors
///
/// The first value that cannot be used.
pub fn seed(text: &str) -> Result<Vec<(&'static str, Vec<u8>)>, String> {
    let config = config::parse(text)
        .map_err(|invalid| invalid.to_string())?
        .config;
    let name = config.vm.map(|vm| vm.name).unwrap_or_default();
    let instance = config.uid.unwrap_or_default();
    let Some(cloud_init) = &config.cloud_init else {
        return Ok(Vec::new());
    };
    seed::files(cloud_init, &name, &instance).map_err(|failure| failure.message)
}
