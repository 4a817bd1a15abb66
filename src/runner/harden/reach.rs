//! (pure) Which files the programs of a machine can reach: what they are made of, and the machine's own. The pod's token,
//! the configuration with the display's password and the termination message are not among them.

use crate::runner::machine::{Directories, Machine};
use std::path::{Path, PathBuf};

/// What may be done below a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read and execute.
    Program,
    /// Read.
    Read,
    /// Read and write what is there.
    Write,
    /// The same, make and remove.
    Keep,
}

/// Files that programs can reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// QEMU.
    pub qemu: Vec<(PathBuf, Access)>,
    /// The TPM.
    pub tpm: Vec<(PathBuf, Access)>,
}

/// What every program is made of, and what its libraries read.
const PROGRAMS: [&str; 4] = ["/usr", "/lib", "/lib64", "/bin"];
const READ: [&str; 12] = [
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/hosts",
    // QEMU's user network hands on names to the servers there.
    "/etc/resolv.conf",
    "/etc/ssl",
    "/etc/qemu",
    "/proc",
    "/sys",
];
const DEVICES: [&str; 7] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/kvm", "/dev/vhost-net"];

impl Reach {
    /// What each program is made of, and nothing of a machine.
    pub fn of_any() -> Vec<(PathBuf, Access)> {
        let all = |paths: &[&str], access| paths.iter().map(|path| (path.into(), access)).collect::<Vec<_>>();
        [all(&PROGRAMS, Access::Program), all(&READ, Access::Read), all(&DEVICES, Access::Write)].concat()
    }

    /// That of the machine's programs; `repository` is where CD images are, also those that come later.
    pub fn of(machine: &Machine, dirs: &Directories, repository: &Path) -> Self {
        let common = Self::of_any();
        let mut qemu = common.clone();
        qemu.push((repository.to_owned(), Access::Read));
        qemu.extend(machine.seed.iter().map(|seed| (seed.clone(), Access::Read)));
        qemu.extend(machine.disks.iter().map(|disk| (disk.path.clone(), Access::Write)));
        if let Some(firmware) = &machine.firmware {
            qemu.push((firmware.rom.clone(), Access::Read));
            qemu.push((firmware.vars.clone(), Access::Write));
        }
        let mut tpm = common;
        tpm.push((dirs.data.clone(), Access::Keep));
        Self { qemu, tpm }
    }
}
