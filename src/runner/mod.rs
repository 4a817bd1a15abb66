//! The runner: PID 1 of each VM's pod.
//!
//! ```text
//! config.yaml -> config -> resolved -> machine -> qemu (arguments) -> process
//!                  |                                                     |
//!                watch -> driver <- qmp, agent, signals <---------------+
//!                           |  ^
//!                   desired |  | state (decides)
//!                           v  |
//!                         live -> qmp            status -> report -> API server
//! ```
//!
//! | module | content |
//! |---|---|
//! | `cli`, `start` | from arguments to an exit code; from the configuration to a running QEMU |
//! | `config`, `resolved`, `machine` | the file as it is read; checked values; all paths and defaults |
//! | `qemu` | QEMU's arguments |
//! | `taps`, `harden` | host networks for the guest; the rights that are dropped afterwards |
//! | `kvm` | whether KVM runs the VM; CPU models that work |
//! | `metrics` | metrics of QEMU and the kernel, for Prometheus |
//! | `process` | QEMU as a child process |
//! | `state`, `driver` | the state of the VM (pure); the only task that owns it |
//! | `desired`, `live` | the desired state of a running VM (pure); changes of the running QEMU, one file per aspect |
//! | `qmp`, `agent` | QEMU's monitor; agents in the guest |
//! | `console`, `seed` | the serial console; the cloud-init seed |
//! | `fetch` | downloads images into the repository, in pods of their own |
//! | `status`, `problem`, `report` | what is reported about the VM (pure); the reports |
//! | `signals` | signals that request a shutdown |

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing {
    //! The fuzz targets of the runner's parsers.

    pub use super::agent::fuzzing::{check_desktop, check_guest, check_lines};
    pub use super::config::fuzzing::check_config;
    pub use super::qmp::check_qmp;
}

mod agent;
pub mod cli;
mod config;
mod console;
mod desired;
mod driver;
mod failure;
mod fetch;
mod harden;
mod kvm;
mod live;
mod machine;
mod metrics;
mod problem;
mod process;
mod qemu;
mod qmp;
mod report;
mod resolved;
mod seed;
mod signals;
mod start;
mod state;
mod status;
mod taps;
mod watch;

/// Whether a runner would take that configuration file. Gives the keys that it does not know.
///
/// # Errors
/// The first value that cannot be used, with its key and what is allowed.
pub fn check(text: &str) -> Result<Vec<String>, String> {
    let parsed = config::parse(text).map_err(|invalid| invalid.to_string())?;
    resolved::Spec::from_config(&parsed.config).map_err(|invalid| invalid.to_string())?;
    Ok(parsed.unknown)
}

/// What cloud-init in the guest finds in its seed, file by file, if the machine has that configuration file.
///
/// # Errors
/// The first value that cannot be used.
pub fn seed(text: &str) -> Result<Vec<(&'static str, String)>, String> {
    let config = config::parse(text)
        .map_err(|invalid| invalid.to_string())?
        .config;
    let name = config.vm.map(|vm| vm.name).unwrap_or_default();
    let who = config.uid.unwrap_or_default();
    let Some(cloud_init) = &config.cloud_init else {
        return Ok(Vec::new());
    };
    seed::files(cloud_init, &name, &who).map_err(|failure| failure.message)
}

/// The guest that KVM is tried with, as a BIOS, and QEMU's exit code when it is through.
#[must_use]
pub fn kvm_guest() -> (Vec<u8>, i32) {
    (kvm::guest::bios(), kvm::guest::THROUGH)
}
