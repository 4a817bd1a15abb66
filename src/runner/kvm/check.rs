//! (io) The steps of the KVM check, which runs before QEMU starts a guest.
//!
//! | step | fails |
//! |---|---|
//! | open, interface | without the device, without permission, without KVM in the node's kernel |
//! | VM, vCPU, real mode | if KVM cannot use the processor, for example beside another hypervisor |
//! | long mode | in some nested VMs: their KVM emulates instructions, but not those of OVMF and Linux |

use crate::sys::kvm::{self, API_VERSION, DATA, Errno, Exit, Guest, Mode};
use kvm_ioctls::Kvm;
use rustix::fs::{FileType, Mode as FileMode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::Path;
use strum::VariantArray;

/// Major and minor number of the device, which are the same on all systems.
const DEVICE_NUMBER: (u32, u32) = (10, 232);

/// A step of the check, in the order of their execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, VariantArray)]
pub enum Step {
    Open,
    Interface,
    CreateVm,
    CreateVcpu,
    RealMode,
    LongMode,
    Fninit,
    Cmpxchg16b,
    Xsave,
}

/// The extent of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Steps without which no guest runs.
    Basic,
    /// Also the instructions that operating systems execute at their start.
    Full,
}

impl Step {
    /// The text in messages, after "the step".
    pub fn text(self) -> &'static str {
        match self {
            Self::Open => "open the device",
            Self::Interface => "query the version of the KVM interface",
            Self::CreateVm => "create a VM",
            Self::CreateVcpu => "create a vCPU",
            Self::RealMode => "run a program in real mode",
            Self::LongMode => "run a program in 64-bit mode",
            Self::Fninit => "run FNINIT in 64-bit mode",
            Self::Cmpxchg16b => "run CMPXCHG16B in 64-bit mode",
            Self::Xsave => "run XSAVE and XRSTOR in 64-bit mode",
        }
    }

    /// Whether no guest runs if the step fails.
    pub fn is_basic(self) -> bool {
        self.program().is_none_or(|(mode, _)| mode == Mode::Real)
    }

    /// The instructions that the vCPU executes in this step. The last one is `hlt`.
    fn program(self) -> Option<(Mode, Vec<u8>)> {
        const HLT: &[u8] = &[0xf4];
        let [low, high, ..] = DATA.to_le_bytes();
        // mov $DATA,%rdi
        let data = &[0x48, 0xc7, 0xc7, low, high, 0, 0];
        let (mode, code): (Mode, &[&[u8]]) = match self {
            Self::Open | Self::Interface | Self::CreateVm | Self::CreateVcpu => return None,
            // mov $0x2a,%al
            Self::RealMode => (Mode::Real, &[&[0xb0, 0x2a], HLT]),
            // xor %rax,%rax
            Self::LongMode => (Mode::Long, &[&[0x48, 0x31, 0xc0], HLT]),
            Self::Fninit => (Mode::Long, &[&[0xdb, 0xe3], HLT]),
            // lock cmpxchg16b (%rdi)
            Self::Cmpxchg16b => (Mode::Long, &[data, &[0xf0, 0x48, 0x0f, 0xc7, 0x0f], HLT]),
            Self::Xsave => (
                Mode::Long,
                &[
                    // xor %ecx,%ecx; mov $3,%eax; xor %edx,%edx; xsetbv       x87 and SSE
                    &[0x31, 0xc9, 0xb8, 3, 0, 0, 0, 0x31, 0xd2, 0x0f, 0x01, 0xd1],
                    data,
                    // xsave64 (%rdi); xrstor64 (%rdi)
                    &[0x48, 0x0f, 0xae, 0x27, 0x48, 0x0f, 0xae, 0x2f],
                    HLT,
                ],
            ),
        };
        Some((mode, code.concat()))
    }
}

/// A step that has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedStep {
    pub step: Step,
    /// The cause, and the next step if one is known.
    pub why: String,
}

/// Executes the steps until one fails. `begin` is called before each of them.
pub fn run(device: &Path, extent: Extent, begin: &mut dyn FnMut(Step)) -> Result<(), FailedStep> {
    begin(Step::Open);
    let file = open(device).map_err(|why| FailedStep {
        step: Step::Open,
        why,
    })?;
    run_on(&kvm::kvm(file), extent, begin)
}

/// Executes all steps after the opening of the device.
fn run_on(kvm: &Kvm, extent: Extent, begin: &mut dyn FnMut(Step)) -> Result<(), FailedStep> {
    let is_wanted = |step: &&Step| extent == Extent::Full || step.is_basic();
    let mut steps = Step::VARIANTS.iter().skip(1).filter(is_wanted);
    steps.try_for_each(|step| execute(kvm, *step, begin))
}

fn execute(kvm: &Kvm, step: Step, begin: &mut dyn FnMut(Step)) -> Result<(), FailedStep> {
    begin(step);
    let result = match step {
        Step::Open => Ok(()),
        Step::Interface => interface(kvm),
        Step::CreateVm => repeat(|| kvm.create_vm())
            .map(drop)
            .map_err(creation_problem),
        Step::CreateVcpu => guest(kvm, Mode::Real, &[]).map(drop),
        _ => step
            .program()
            .map_or(Ok(()), |(mode, code)| run_until_halt(kvm, mode, &code)),
    };
    result.map_err(|why| FailedStep { step, why })
}

fn interface(kvm: &Kvm) -> Result<(), String> {
    match kvm.get_api_version() {
        API_VERSION => Ok(()),
        version if version < 0 => Err(format!(
            "the pod's /dev/kvm has rejected KVM_GET_API_VERSION ({}); check /dev/kvm on the node, and the device plugin that \
             gives pods the device",
            Errno::last()
        )),
        version => Err(format!(
            "the KVM interface has version {version}, but QEMU needs version {API_VERSION}; update the node's kernel"
        )),
    }
}

/// A VM that has this code.
fn guest(kvm: &Kvm, mode: Mode, code: &[u8]) -> Result<Guest, String> {
    let vm = repeat(|| kvm.create_vm()).map_err(creation_problem)?;
    Guest::new(kvm, vm, mode, code).map_err(|error| error.to_string())
}

/// Checks that a vCPU executes the code until `hlt`.
fn run_until_halt(kvm: &Kvm, mode: Mode, code: &[u8]) -> Result<(), String> {
    let mut guest = guest(kvm, mode, code)?;
    match repeat(|| guest.run()) {
        Ok(Exit::Halt) => Ok(()),
        Ok(Exit::InternalError { suberror }) => Err(format!(
            "KVM cannot execute a test instruction (KVM internal error, suberror {suberror}); use a different node, or set \
             accelerator.policy to tcg in the operator's ConfigMap"
        )),
        Ok(Exit::Other(exit)) => Err(format!(
            "the test vCPU has stopped with the unexpected KVM exit reason {exit}; use a different node, or set \
             accelerator.policy to tcg in the operator's ConfigMap"
        )),
        Err(error) => Err(error.to_string()),
    }
}

/// Repeats a call that a signal has interrupted or that returns EAGAIN. The time limit of the check ends the loop.
fn repeat<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => {}
            result => return result,
        }
    }
}

/// The message for a VM that KVM does not create.
fn creation_problem(error: Errno) -> String {
    let next = match error.errno() {
        libc::EBUSY => {
            "; another hypervisor on the node uses hardware virtualization; stop that hypervisor"
        }
        libc::ENOMEM => "; free some memory on the node",
        _ => "; see the kernel log of the node",
    };
    format!("{error}{next}")
}

/// Opens the device, and checks that it is KVM's.
fn open(device: &Path) -> Result<File, String> {
    use rustix::io::Errno;
    let (path, uid) = (device.display(), rustix::process::getuid().as_raw());
    let opened = rustix::fs::open(device, OFlags::RDWR | OFlags::CLOEXEC, FileMode::empty());
    let file = opened.map_err(|error| match error {
        Errno::NOENT => format!(
            "the pod has no {path}. Enable KVM on the node, or use a different node. If the node has {path}, set \
             accelerator.kvmResource in the operator's ConfigMap"
        ),
        Errno::ACCESS | Errno::PERM => format!(
            "uid {uid} cannot open {path}: {error}; give that user access to the device on the node, or set deviceAccess to \
             root in the operator's ConfigMap"
        ),
        Errno::NODEV | Errno::NXIO => format!(
            "the node's kernel does not provide KVM ({path}: {error}); load the module kvm_amd or kvm_intel on the node, and \
             enable virtualization in the node's firmware"
        ),
        error => format!("the runner cannot open {path}: {error}; check {path} on the node"),
    })?;
    let stat = rustix::fs::fstat(&file).map_err(|error| {
        format!("the runner cannot read the file type of {path}: {error}; check {path} on the node")
    })?;
    let number = (
        rustix::fs::major(stat.st_rdev),
        rustix::fs::minor(stat.st_rdev),
    );
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice if number == DEVICE_NUMBER => Ok(file.into()),
        FileType::CharacterDevice => Err(format!(
            "the pod's {path} has the device number {}:{}, but KVM has 10:232; check {path} on the node, and the device plugin \
             that gives pods the device",
            number.0, number.1
        )),
        _ => Err(format!(
            "the pod's {path} is not a character device; check {path} on the node, and the device plugin that gives pods the \
             device"
        )),
    }
}

#[cfg(test)]
mod tests;
