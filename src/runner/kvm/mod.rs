//! (io) Whether KVM runs this machine: tried before QEMU is started for good.
//!
//! That `/dev/kvm` opens says little: a KVM may give no virtual CPU the state that its model needs, or not carry out what
//! every guest begins with. So a QEMU with the machine's CPU model runs a guest of a few dozen instructions to its end.
//! Nothing is tried where there is no device.

pub mod guest;
pub mod models;
mod probe;

pub use probe::{Running, TIME};

use crate::api::conditions::ConditionReason;
use crate::api::runner::outcome::EndReason;
use crate::runner::failure::Failure;
use crate::runner::harden::Access;
use crate::runner::machine::Acceleration;
use crate::runner::problem::Problem;
use crate::runner::qemu;
use crate::runner::resolved::{Accelerator, Spec};
use probe::Finding;
use rustix::fs::{FileType, Mode, OFlags};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// Where KVM is.
pub const DEVICE: &str = "/dev/kvm";
/// Its number, everywhere (Linux' list of devices: 10 is "misc").
const NUMBER: (u32, u32) = (10, 232);
/// Time for all that is tried, one after the other; each of them has [`probe::TIME`] at most.
pub const IN_ALL: Duration = Duration::from_secs(10);
/// The model that each host has.
const HOST_MODEL: &str = "host";

/// What KVM is tried with.
pub struct Trial<'a> {
    /// QEMU.
    pub program: &'static str,
    /// The device.
    pub device: &'a Path,
    /// Files that QEMU can reach.
    pub reach: Vec<(PathBuf, Access)>,
    /// Where the guest's program can be for a moment.
    pub guest: PathBuf,
    /// Time for all of it: [`IN_ALL`].
    pub time: Duration,
}

/// What runs the guest's instructions. `asked` is when somebody wants the end.
pub async fn settle(
    spec: &Spec,
    trial: Trial<'_>,
    asked: impl Future<Output = ()>,
) -> Result<Acceleration, Failure> {
    match spec.vm.accelerator {
        Accelerator::Tcg => return Ok(Acceleration::Tcg),
        Accelerator::Unset => return Ok(Acceleration::Unset),
        Accelerator::Auto | Accelerator::Kvm => {}
    }
    let problem = tokio::select! {
        problem = trial.problem(spec) => problem,
        () = asked => return Err(Failure::new(EndReason::Stopped, String::new())),
    };
    match problem {
        None => Ok(Acceleration::Kvm),
        Some(problem) if spec.vm.accelerator == Accelerator::Auto => {
            tracing::warn!("the guest is emulated: {}", problem.message);
            Ok(Acceleration::TcgForWantOfKvm(problem))
        }
        Some(problem) => {
            let ways = match problem.reason {
                ConditionReason::CpuModelRefused => "",
                _ => {
                    "; mend the node, or use accelerator auto or tcg, with which the guest is emulated"
                }
            };
            let message = format!("vm.accelerator is kvm, but {}{ways}", problem.message);
            Err(Failure::new(EndReason::AcceleratorUnavailable, message))
        }
    }
}

impl Trial<'_> {
    /// Why KVM does not run the machine, if it does not.
    async fn problem(&self, spec: &Spec) -> Option<Problem> {
        match usable(self.device) {
            Ok(()) => self.of_guest(spec).await,
            Err(why) => Some(Problem::new(ConditionReason::KvmNotAvailable, why)),
        }
    }

    /// Why no guest runs, if none does.
    async fn of_guest(&self, spec: &Spec) -> Option<Problem> {
        let began = Instant::now();
        let finding = self.run(&spec.vm.cpu_model, spec).await;
        let took_ms = began.elapsed().as_millis() as u64;
        tracing::info!(
            took_ms,
            model = spec.vm.cpu_model,
            ?finding,
            "KVM was tried"
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
                    probe::TIME.as_secs()
                ));
            }
        };
        if spec.vm.cpu_model != HOST_MODEL && self.run(HOST_MODEL, spec).await == Finding::Works {
            let models = models::that_work(self.program, Acceleration::Kvm.name(), &self.reach);
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
        let mut reach = self.reach.clone();
        reach.push((self.guest.clone(), Access::Read));
        let arguments = qemu::probe(model, spec.vm.firmware.is_secure(), &self.guest);
        let finding = probe::run(self.program, &arguments, &reach).await;
        let _ = std::fs::remove_file(&self.guest);
        finding
    }
}

/// Whether that is a KVM which this process may open.
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
        rustix::fs::fstat(&file).map_err(|error| format!("{path} cannot be looked at: {error}"))?;
    let number = (
        rustix::fs::major(stat.st_rdev),
        rustix::fs::minor(stat.st_rdev),
    );
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice if number == NUMBER => Ok(()),
        FileType::CharacterDevice => Err(format!(
            "{path} is device {}:{} and not KVM's, 10:232",
            number.0, number.1
        )),
        _ => Err(format!("{path} is no device; the pod needs the node's")),
    }
}

#[cfg(test)]
mod tests;
