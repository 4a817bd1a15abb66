//! (io) Tests before the start of QEMU whether KVM can run the VM.
//!
//! Opening `/dev/kvm` is not sufficient: KVM may be unable to set up the CPU model, or to execute the first instructions of a
//! guest. A QEMU with the VM's CPU model therefore runs a guest of a few dozen instructions. Without the device there is no test.

pub mod guest;
pub mod models;
mod probe;

pub use probe::{KillOnDrop, QEMU_TEST_TIMEOUT};

use crate::api::conditions::ConditionReason;
use crate::api::runner::outcome::EndReason;
use crate::runner::failure::{Failure, Problem};
use crate::runner::harden::Access;
use crate::runner::machine::Acceleration;
use crate::runner::qemu;
use crate::runner::spec::{Accelerator, Spec};
use probe::Finding;
use rustix::fs::{FileType, Mode, OFlags};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// The device of KVM.
pub const DEVICE: &str = "/dev/kvm";
/// Major and minor number of the device, which are the same on all systems.
const DEVICE_NUMBER: (u32, u32) = (10, 232);
/// Time for all tests. Each has [`probe::QEMU_TEST_TIMEOUT`] at most.
pub const KVM_TEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The CPU model that every node supports.
const HOST_MODEL: &str = "host";

/// Inputs of the test.
pub struct KvmTest<'a> {
    /// QEMU.
    pub program: &'static str,
    /// The device.
    pub device: &'a Path,
    /// Files that QEMU can access.
    pub files: Vec<(PathBuf, Access)>,
    /// Temporary file for the guest's program.
    pub guest: PathBuf,
    /// Time for all tests: [`KVM_TEST_TIMEOUT`].
    pub time: Duration,
}

/// Selects the accelerator. `shutdown_request` completes when a shutdown is requested.
pub async fn select_acceleration(
    spec: &Spec,
    kvm_test: KvmTest<'_>,
    shutdown_request: impl Future<Output = ()>,
) -> Result<Acceleration, Failure> {
    match spec.vm.accelerator {
        Accelerator::Tcg => return Ok(Acceleration::Tcg),
        Accelerator::Unset => return Ok(Acceleration::Unset),
        Accelerator::Auto | Accelerator::Kvm => {}
    }
    let problem = tokio::select! {
        problem = kvm_test.problem(spec) => problem,
        () = shutdown_request => return Err(Failure::new(EndReason::Stopped, String::new())),
    };
    match problem {
        None => Ok(Acceleration::Kvm),
        Some(problem) if spec.vm.accelerator == Accelerator::Auto => {
            tracing::warn!("the guest is emulated: {}", problem.message);
            Ok(Acceleration::TcgFallback(problem))
        }
        Some(problem) => {
            let ways = match problem.reason {
                ConditionReason::CpuModelRefused => "",
                _ => "; repair the node, or use accelerator auto or tcg for an emulated guest",
            };
            let message = format!("vm.accelerator is kvm, but {}{ways}", problem.message);
            Err(Failure::new(EndReason::AcceleratorUnavailable, message))
        }
    }
}

impl KvmTest<'_> {
    /// The reason why KVM cannot run the VM.
    async fn problem(&self, spec: &Spec) -> Option<Problem> {
        match usable(self.device) {
            Ok(()) => self.of_guest(spec).await,
            Err(why) => Some(Problem::new(ConditionReason::KvmNotAvailable, why)),
        }
    }

    /// The reason why the test guest fails.
    async fn of_guest(&self, spec: &Spec) -> Option<Problem> {
        let began = Instant::now();
        let finding = self.run(&spec.vm.cpu_model, spec).await;
        let took_ms = began.elapsed().as_millis() as u64;
        tracing::info!(
            took_ms,
            model = spec.vm.cpu_model,
            ?finding,
            "KVM was tested"
        );
        let broken = |why: &str| {
            let device = self.device.display();
            Some(Problem::new(
                ConditionReason::KvmDoesNotWork,
                format!("the KVM of {device} runs no guest: {why}"),
            ))
        };
        let why = match finding {
            Finding::Works => return None,
            Finding::Failed(why) => why,
            Finding::Hangs => {
                return broken(&format!(
                    "a hundred instructions were not done within {} s",
                    probe::QEMU_TEST_TIMEOUT.as_secs()
                ));
            }
        };
        if spec.vm.cpu_model != HOST_MODEL && self.run(HOST_MODEL, spec).await == Finding::Works {
            let models =
                models::working_models(self.program, Acceleration::Kvm.name(), &self.files);
            let models = tokio::time::timeout_at(began + self.time, models)
                .await
                .unwrap_or_default();
            return Some(Problem::new(
                ConditionReason::CpuModelRefused,
                models::refused(&spec.vm.cpu_model, &why, &models),
            ));
        }
        broken(&why)
    }

    async fn run(&self, model: &str, spec: &Spec) -> Finding {
        if let Err(error) = guest::write(&self.guest) {
            return Finding::Failed(format!(
                "{} cannot be written: {error}",
                self.guest.display()
            ));
        }
        let mut files = self.files.clone();
        files.push((self.guest.clone(), Access::Read));
        let arguments = qemu::probe(model, spec.vm.firmware.is_secure(), &self.guest);
        let finding = probe::run(self.program, &arguments, &files).await;
        let _ = std::fs::remove_file(&self.guest);
        finding
    }
}

/// Checks that the device is KVM and that this process can open it.
fn usable(device: &Path) -> Result<(), String> {
    use rustix::io::Errno;
    let (path, uid) = (device.display(), rustix::process::getuid().as_raw());
    let file = rustix::fs::open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| match error {
        Errno::NOENT => format!("the pod has no {path}; give it the device (setting accelerator)"),
        Errno::ACCESS | Errno::PERM => format!(
            "{path} cannot be opened by uid {uid}: {error}; let that user open it on the node, or set deviceAccess where \
             it is root's"
        ),
        Errno::NODEV | Errno::NXIO => format!("{path} has no KVM behind it ({error}); load kvm_amd or kvm_intel on the node"),
        error => format!("{path} cannot be opened: {error}"),
    })?;
    let stat =
        rustix::fs::fstat(&file).map_err(|error| format!("{path} cannot be examined: {error}"))?;
    let number = (
        rustix::fs::major(stat.st_rdev),
        rustix::fs::minor(stat.st_rdev),
    );
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice if number == DEVICE_NUMBER => Ok(()),
        FileType::CharacterDevice => Err(format!(
            "{path} is device {}:{} and not KVM's, 10:232",
            number.0, number.1
        )),
        _ => Err(format!("{path} is no device; the pod needs the node's")),
    }
}

#[cfg(test)]
mod tests;
