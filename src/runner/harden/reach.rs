//! (pure) Which files the programs of a machine can reach: what they are made of, and the machine's own. The pod's token,
//! the configuration with the display's password and the termination message are the runner's alone.

use crate::runner::machine::{Directories, Machine};
use crate::runner::resolved::Spec;
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
    /// Remove empty directories.
    Leave,
}

/// Files that programs can reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// QEMU.
    pub qemu: Vec<(PathBuf, Access)>,
    /// The TPM.
    pub tpm: Vec<(PathBuf, Access)>,
}

/// What the runner reads and writes besides what its machine has.
#[derive(Clone, Debug)]
pub struct Places {
    /// Files of configuration; their neighbours are read too.
    pub read: Vec<PathBuf>,
    /// Where CD images are, if that can be reached.
    pub repository: Option<PathBuf>,
    /// The file for the outcome.
    pub termination: PathBuf,
}

/// Where a pod finds what it needs to talk to the API server.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// What every program is made of, and what its libraries read.
const PROGRAMS: [&str; 4] = ["/usr", "/lib", "/lib64", "/bin"];
const READ: [&str; 14] = [
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
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/qemu",
    "/proc",
    "/sys",
];
const DEVICES: [&str; 7] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/kvm",
    "/dev/vhost-net",
];

impl Reach {
    /// What each program is made of, and nothing of a machine.
    pub fn of_any() -> Vec<(PathBuf, Access)> {
        let all = |paths: &[&str], access| {
            paths
                .iter()
                .map(|path| (path.into(), access))
                .collect::<Vec<_>>()
        };
        [
            all(&PROGRAMS, Access::Program),
            all(&READ, Access::Read),
            all(&DEVICES, Access::Write),
        ]
        .concat()
    }

    /// That of the runner, which is never less than that of the programs it starts.
    pub fn of_runner(spec: &Spec, dirs: &Directories, places: &Places) -> Vec<(PathBuf, Access)> {
        let parent = |path: &Path| path.parent().map(Path::to_path_buf);
        let mut all = Self::of_any();
        all.extend([&dirs.data, &dirs.runtime].map(|dir| (dir.clone(), Access::Keep)));
        all.extend(parent(&dirs.runtime).map(|dir| (dir, Access::Leave)));
        all.extend(
            places
                .repository
                .clone()
                .map(|repository| (repository, Access::Read)),
        );
        all.push((TOKEN.into(), Access::Read));
        all.extend(
            places
                .read
                .iter()
                .filter_map(|file| Some((parent(file)?, Access::Read))),
        );
        all.push((places.termination.clone(), Access::Write));
        for disk in &spec.disks {
            let path = disk.source.path();
            all.push((path.clone(), Access::Write));
            // An image file with a size may have to be made.
            all.extend(
                disk.size
                    .and_then(|_| parent(path))
                    .map(|dir| (dir, Access::Keep)),
            );
        }
        all
    }

    /// That of a fetch: where images are kept, and whom to trust.
    pub fn of_fetch(
        images: &Path,
        trusted: impl Iterator<Item = PathBuf>,
        termination: &Path,
    ) -> Vec<(PathBuf, Access)> {
        let mut all = Self::of_any();
        all.push((images.to_owned(), Access::Keep));
        all.extend(trusted.map(|path| (path, Access::Read)));
        all.push((termination.to_owned(), Access::Write));
        all
    }

    /// That of the machine's programs; `repository` is where CD images are, also those that come later, if it can be reached.
    pub fn of(machine: &Machine, dirs: &Directories, repository: Option<&Path>) -> Self {
        let common = Self::of_any();
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
        tpm.push((dirs.data.clone(), Access::Keep));
        Self { qemu, tpm }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::config;
    use crate::runner::harden::confined;
    use crate::runner::machine::{self, Acceleration, Around};
    use std::fs;
    use std::process::{Command, Stdio};

    /// Which of those files a program can read that reaches only that.
    fn read(reach: &[(PathBuf, Access)], files: &[PathBuf]) -> Vec<bool> {
        let (reach, files) = (reach.to_vec(), files.to_vec());
        confined(reach, move |tell| {
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
    fn neither_qemu_nor_the_tpm_can_open_what_is_the_runners_alone() {
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
        let places = Places {
            read: vec![path("config/config.yaml")],
            repository: Some(path("images")),
            termination: path("end"),
        };
        let of_runner = Reach::of_runner(&spec, &dirs, &places);
        let around = Around {
            uid: None,
            acceleration: Acceleration::Tcg,
            ticketing: true,
            certificate: None,
            images: Vec::new(),
            seed: None,
        };
        let machine = machine::resolve(spec, &dirs, around).unwrap().machine;
        let reach = Reach::of(&machine, &dirs, Some(&path("images")));
        let files = all.map(path);
        if !read(&[], &files[..1]).contains(&true) {
            assert_eq!(
                read(&of_runner, &files),
                [true, true, true, true, false, true, true],
                "its token is elsewhere"
            );
            assert_eq!(
                read(&reach.qemu, &files),
                [true, true, false, false, false, false, false],
                "QEMU"
            );
            assert_eq!(
                read(&reach.tpm, &files),
                [false, false, false, false, false, true, false],
                "the TPM"
            );
        } else {
            println!("this kernel has no Landlock: nothing was tried");
        }
        // Where the real ones are in a pod.
        for place in [
            TOKEN,
            crate::api::vm::names::CONFIG_DIR,
            crate::api::runner::outcome::TERMINATION_MESSAGE_PATH,
        ] {
            let reaches = |(path, _): &(PathBuf, Access)| Path::new(place).starts_with(path);
            assert!(!reach.qemu.iter().chain(&reach.tpm).any(reaches), "{place}");
        }
    }
}
