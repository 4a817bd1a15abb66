//! (pure) The files that the VM's programs can access: programs, libraries and the VM's own files.
//! Only the runner can access the service account's token, the configuration with the display's
//! password, and the termination message.

use crate::runner::machine::{Directories, Machine};
use crate::runner::spec::Spec;
use std::path::{Path, PathBuf};

/// Access to a path and everything below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read and execute.
    Execute,
    Read,
    /// Read and write existing files.
    Write,
    /// Read, write, create and remove files.
    Manage,
    /// Remove empty directories.
    RemoveDir,
}

/// Files that the VM's programs can access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileAccess {
    pub qemu: Vec<(PathBuf, Access)>,
    pub tpm: Vec<(PathBuf, Access)>,
}

/// Paths that the runner needs in addition to those of the VM.
#[derive(Clone, Debug)]
pub struct RunnerPaths {
    /// Configuration files. Their directories are readable.
    pub read: Vec<PathBuf>,
    /// The image repository, if it is reachable.
    pub repository: Option<PathBuf>,
    /// The file for the termination message.
    pub termination: PathBuf,
    /// The runner's own program, which is also a child process: the KVM check.
    pub program: Option<PathBuf>,
}

/// The service account's token, namespace and certificate authority.
const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Programs and libraries, and the files that libraries read.
const PROGRAM_DIRS: [&str; 4] = ["/usr", "/lib", "/lib64", "/bin"];
const LIBRARY_FILES: [&str; 14] = [
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/hosts",
    // QEMU's user network forwards DNS queries to these servers.
    "/etc/resolv.conf",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/qemu",
    "/proc",
    "/sys",
];
const DEVICES: [&str; 6] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/kvm",
];

impl FileAccess {
    /// Files that every program needs.
    pub fn of_programs() -> Vec<(PathBuf, Access)> {
        let all = |paths: &[&str], access| {
            paths
                .iter()
                .map(|path| (path.into(), access))
                .collect::<Vec<_>>()
        };
        [
            all(&PROGRAM_DIRS, Access::Execute),
            all(&LIBRARY_FILES, Access::Read),
            all(&DEVICES, Access::Write),
        ]
        .concat()
    }

    /// Files of the runner. They include those of all programs that it starts, because a child
    /// process cannot gain access.
    pub fn of_runner(
        spec: &Spec,
        dirs: &Directories,
        paths: &RunnerPaths,
    ) -> Vec<(PathBuf, Access)> {
        let parent = |path: &Path| path.parent().map(Path::to_path_buf);
        let mut all = Self::of_programs();
        all.extend([&dirs.data, &dirs.runtime].map(|dir| (dir.clone(), Access::Manage)));
        all.extend(parent(&dirs.runtime).map(|dir| (dir, Access::RemoveDir)));
        all.extend(
            paths
                .repository
                .clone()
                .map(|repository| (repository, Access::Read)),
        );
        all.push((SERVICE_ACCOUNT_DIR.into(), Access::Read));
        all.extend(
            paths
                .read
                .iter()
                .filter_map(|file| Some((parent(file)?, Access::Read))),
        );
        all.push((paths.termination.clone(), Access::Write));
        all.extend(
            paths
                .program
                .clone()
                .map(|program| (program, Access::Execute)),
        );
        for disk in &spec.disks {
            let path = disk.source.path();
            all.push((path.clone(), Access::Write));
            // An image file with a configured size may have to be created.
            all.extend(
                disk.size
                    .and_then(|_| parent(path))
                    .map(|dir| (dir, Access::Manage)),
            );
        }
        all
    }

    /// Files of a download: those of its target, and trusted certificates.
    pub fn of_fetch(
        target: Vec<(PathBuf, Access)>,
        trusted: impl Iterator<Item = PathBuf>,
        termination: &Path,
    ) -> Vec<(PathBuf, Access)> {
        let mut all = Self::of_programs();
        all.extend(target);
        all.extend(trusted.map(|path| (path, Access::Read)));
        all.push((termination.to_owned(), Access::Write));
        all
    }

    /// Files of a program that reads its standard input and writes its standard output: itself and its libraries.
    pub fn of_filter() -> Vec<(PathBuf, Access)> {
        let programs = PROGRAM_DIRS.map(|path| (path.into(), Access::Execute));
        let mut all = Vec::from(programs);
        all.push(("/etc/ld.so.cache".into(), Access::Read));
        all
    }

    /// Files of a program that converts the image `from` to the image `to`. It reads nothing else but itself and its libraries.
    pub fn of_conversion(from: &Path, to: &Path) -> Vec<(PathBuf, Access)> {
        let mut all = Self::of_filter();
        // The standard input. QEMU opens it for writing, too, to find out whether locks of files work, and locks no file otherwise.
        all.push(("/dev/null".into(), Access::Write));
        all.push((from.to_owned(), Access::Read));
        all.push((to.to_owned(), Access::Write));
        all
    }

    /// Files of the VM's programs. `repository` is the image repository, if it is reachable. QEMU
    /// can access all its images, because CD images can change while the VM runs.
    pub fn of_machine(machine: &Machine, dirs: &Directories, repository: Option<&Path>) -> Self {
        let common = Self::of_programs();
        let mut qemu = common.clone();
        qemu.extend(repository.map(|repository| (repository.to_owned(), Access::Read)));
        qemu.extend(machine.seed.iter().map(|seed| (seed.clone(), Access::Read)));
        qemu.extend(
            machine
                .disks
                .iter()
                .map(|disk| (disk.path.clone(), Access::Write)),
        );
        if let Some(firmware) = &machine.firmware {
            qemu.push((firmware.rom.clone(), Access::Read));
            qemu.push((firmware.vars.clone(), Access::Write));
        }
        let certificate = machine
            .certificate
            .iter()
            .flat_map(|certificate| certificate.files());
        qemu.extend(certificate.map(|file| (file.clone(), Access::Read)));
        let mut tpm = common;
        tpm.push((dirs.data.clone(), Access::Manage));
        Self { qemu, tpm }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::runner::identity::PodIdentity;
    use crate::runner::config;
    use crate::runner::harden::run_confined;
    use crate::runner::machine::{self, Acceleration, MachineInputs};
    use std::fs;
    use std::process::{Command, Stdio};

    /// Which of those files a program can read that reaches only that.
    fn read(access: &[(PathBuf, Access)], files: &[PathBuf]) -> Vec<bool> {
        let (access, files) = (access.to_vec(), files.to_vec());
        run_confined(access, move |tell| {
            let cat = |file: &PathBuf| {
                Command::new("/bin/cat")
                    .arg(file)
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .status()
            };
            tell(Ok(files
                .iter()
                .map(|file| cat(file).is_ok_and(|status| status.success()))
                .collect()));
        })
        .unwrap()
    }

    #[test]
    fn qemu_and_tpm_cannot_open_private_files_of_the_runner() {
        let pod = tempfile::tempdir().unwrap();
        let path = |name: &str| pod.path().join(name);
        for dir in ["config", "data", "run", "images", "token"] {
            fs::create_dir(path(dir)).unwrap();
        }
        let disk = path("disk.img");
        let file = format!(
            r#"{{"/Runner": {{"vm": {{"name": "t", "firmware": "bios", "useTpm": true, "network": [], "drives": [{{"file": {disk:?}}}]}}}}}}"#
        );
        let all = [
            "disk.img",
            "images/a.iso",
            "config/config.yaml",
            "config/display-password",
            "token/token",
            "data/tpm2-00.permall",
            "end",
        ];
        for name in all {
            fs::write(path(name), &file).unwrap();
        }
        let config = config::read(&path("config/config.yaml")).unwrap().config;
        let spec = Spec::from_config(&config).unwrap();
        let dirs = Directories {
            data: path("data"),
            runtime: path("run"),
        };
        let paths = RunnerPaths {
            read: vec![path("config/config.yaml")],
            repository: Some(path("images")),
            termination: path("end"),
            program: None,
        };
        let of_runner = FileAccess::of_runner(&spec, &dirs, &paths);
        let inputs = MachineInputs {
            uid: None,
            pod: &PodIdentity::default(),
            cloud_init: None,
            acceleration: Acceleration::Tcg,
            ticketing: true,
            certificate: None,
            images: Vec::new(),
            seed: None,
        };
        let machine = machine::prepare(spec, &dirs, inputs).unwrap().machine;
        let access = FileAccess::of_machine(&machine, &dirs, Some(&path("images")));
        let files = all.map(path);
        if !read(&[], &files[..1]).contains(&true) {
            assert_eq!(
                read(&of_runner, &files),
                [true, true, true, true, false, true, true],
                "its token is elsewhere"
            );
            assert_eq!(
                read(&access.qemu, &files),
                [true, true, false, false, false, false, false],
                "QEMU"
            );
            assert_eq!(
                read(&access.tpm, &files),
                [false, false, false, false, false, true, false],
                "the TPM"
            );
        } else {
            println!("this kernel has no Landlock: nothing was tried");
        }
        // The paths in a pod.
        for place in [
            SERVICE_ACCOUNT_DIR,
            crate::api::vm::names::CONFIG_DIR,
            crate::api::runner::outcome::TERMINATION_MESSAGE_PATH,
        ] {
            let reaches = |(path, _): &(PathBuf, Access)| Path::new(place).starts_with(path);
            assert!(
                !access.qemu.iter().chain(&access.tpm).any(reaches),
                "{place}"
            );
        }
    }
}
