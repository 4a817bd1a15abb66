//! Resources of the host for a VM: a bridge, a block device, a volume.

use crate::fixture::{Fixture, LIMIT, run};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A network namespace like that of a pod: each port is free in it, and it is separate from other tests. It ends with
/// this value, its sockets and its processes.
pub struct Network(File);

impl Network {
    /// A namespace with a loopback device only.
    pub fn new() -> Self {
        let script = "ip link set lo up && echo up && read -r _";
        let mut command = Command::new("unshare");
        command
            .args(["--net", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut first = command.spawn().unwrap();
        let mut is_up = String::new();
        BufReader::new(first.stdout.take().unwrap())
            .read_line(&mut is_up)
            .unwrap();
        assert_eq!(is_up, "up\n");
        let network = Self(File::open(format!("/proc/{}/ns/net", first.id())).unwrap());
        drop(first.stdin.take());
        first.wait().unwrap();
        network
    }

    /// A namespace with an additional bridge `br0`.
    pub fn with_bridge() -> Self {
        let network = Self::new();
        network.ip(&["link", "add", "br0", "mtu", "1400", "type", "bridge"]);
        network.ip(&["link", "set", "br0", "up"]);
        network
    }

    /// The namespace's file in `/proc`, for other processes.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// A command that runs that program in the namespace.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg(program);
        command
    }

    /// Runs `work` on a thread in the namespace: sockets that it creates belong to the namespace.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let work = || {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// A connection to that port on the loopback device.
    pub fn connect(&self, port: u16) -> io::Result<TcpStream> {
        self.enter(|| TcpStream::connect(("127.0.0.1", port)))
    }

    pub fn ip(&self, arguments: &[&str]) -> String {
        let output = self.command("ip").args(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "ip {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// The output of that bash script in the namespace.
    pub fn bash(&self, script: &str) -> String {
        let output = self
            .command("timeout")
            .args(["60", "bash", "-c", script])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{script}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }
}

/// An image file as a block device.
pub struct LoopDevice(pub String);

impl LoopDevice {
    pub fn of(image: &Path) -> Self {
        Self(run(
            "losetup",
            &["-f".as_ref(), "--show".as_ref(), image.as_ref()],
        ))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// A volume of a few MiB, which can be filled.
pub struct SmallVolume(PathBuf);

impl SmallVolume {
    pub fn of(fixture: &Fixture, name: &str, mib: u32) -> Self {
        fs::create_dir(fixture.path(name)).unwrap();
        let volume = Self(fixture.path(name));
        let options = format!("mode=777,size={mib}m");
        run(
            "mount",
            &[
                "-t".as_ref(),
                "tmpfs".as_ref(),
                "-o".as_ref(),
                options.as_ref(),
                "small".as_ref(),
                volume.0.as_ref(),
            ],
        );
        volume
    }

    pub fn grow(&self, mib: u32) {
        let options = format!("remount,size={mib}m");
        run("mount", &["-o".as_ref(), options.as_ref(), self.0.as_ref()]);
    }
}

impl Drop for SmallVolume {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .args(["--lazy".as_ref(), self.0.as_os_str()])
            .status();
    }
}

/// A file system on a server that never responds: a FUSE mount with a program that reads no request.
pub struct SilentServer {
    program: Child,
    mount: PathBuf,
}

impl SilentServer {
    pub fn at(dir: &Path) -> Self {
        let script = r#"exec 5<>/dev/fuse
            mount -i -t fuse -o fd=5,rootmode=40000,user_id=0,group_id=0,allow_other silent "$1" && exec sleep 600"#;
        fs::create_dir(dir).unwrap();
        let program = Command::new("sh")
            .args(["-c", script, "silent"])
            .arg(dir)
            .spawn()
            .unwrap();
        let server = Self {
            program,
            mount: dir.to_owned(),
        };
        let began = Instant::now();
        let is_mounted = || {
            fs::read_to_string("/proc/self/mounts")
                .unwrap()
                .contains(&*dir.to_string_lossy())
        };
        while !is_mounted() {
            assert!(began.elapsed() < LIMIT, "FUSE mounts nothing here");
            thread::sleep(Duration::from_millis(20));
        }
        server
    }
}

impl Drop for SilentServer {
    fn drop(&mut self) {
        // Then the kernel answers in its place.
        let _ = self.program.kill();
        let _ = self.program.wait();
        let _ = Command::new("umount")
            .args(["--lazy".as_ref(), self.mount.as_os_str()])
            .status();
    }
}
