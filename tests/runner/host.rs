//! What a machine is given of its host: a bridge, a block device, a volume.

use crate::rig::{Rig, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A network namespace with a bridge `br0`.
pub struct Network(String);

impl Network {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let network = Self(format!("vmtest{}-{n}", std::process::id()));
        run("ip", &["netns", "add", &network.0].map(AsRef::as_ref));
        network.ip(&["link", "add", "br0", "mtu", "1400", "type", "bridge"]);
        network.ip(&["link", "set", "br0", "up"]);
        network
    }

    pub fn path(&self) -> String {
        format!("/run/netns/{}", self.0)
    }

    pub fn ip(&self, arguments: &[&str]) -> String {
        let arguments = [&["-netns", self.0.as_str()], arguments].concat();
        run("ip", &arguments.iter().map(AsRef::as_ref).collect::<Vec<_>>())
    }
}

impl Network {
    /// What that script for bash prints there.
    pub fn bash(&self, script: &str) -> String {
        let net = format!("--net={}", self.path());
        run("timeout", &["60", "nsenter", &net, "bash", "-c", script].map(AsRef::as_ref))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// An image file as a block device.
pub struct LoopDevice(pub String);

impl LoopDevice {
    pub fn of(image: &Path) -> Self {
        Self(run("losetup", &["-f".as_ref(), "--show".as_ref(), image.as_ref()]))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// A volume of a few MiB, which can be full.
pub struct SmallVolume(PathBuf);

impl SmallVolume {
    pub fn of(rig: &Rig, name: &str, mib: u32) -> Self {
        fs::create_dir(rig.path(name)).unwrap();
        let volume = Self(rig.path(name));
        let options = format!("mode=777,size={mib}m");
        run(
            "mount",
            &["-t".as_ref(), "tmpfs".as_ref(), "-o".as_ref(), options.as_ref(), "small".as_ref(), volume.0.as_ref()],
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
        let _ = Command::new("umount").args(["--lazy".as_ref(), self.0.as_os_str()]).status();
    }
}

/// A file system on a server that never answers: a mount of FUSE whose program reads no request.
pub struct SilentServer {
    program: Child,
    mount: PathBuf,
}

impl SilentServer {
    pub fn at(dir: &Path) -> Self {
        let script = r#"exec 5<>/dev/fuse
            mount -i -t fuse -o fd=5,rootmode=40000,user_id=0,group_id=0,allow_other silent "$1" && exec sleep 600"#;
        fs::create_dir(dir).unwrap();
        let program = Command::new("sh").args(["-c", script, "silent"]).arg(dir).spawn().unwrap();
        let server = Self { program, mount: dir.to_owned() };
        let began = Instant::now();
        let is_mounted = || fs::read_to_string("/proc/self/mounts").unwrap().contains(&*dir.to_string_lossy());
        while !is_mounted() {
            assert!(began.elapsed() < Duration::from_secs(10), "FUSE mounts nothing here");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }
}

impl Drop for SilentServer {
    fn drop(&mut self) {
        // The kernel answers in its place then.
        let _ = self.program.kill();
        let _ = self.program.wait();
        let _ = Command::new("umount").args(["--lazy".as_ref(), self.mount.as_os_str()]).status();
    }
}
