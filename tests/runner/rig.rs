//! A runner in its own namespaces, with access to its state and its guest.

use crate::api::Api;
use crate::host::Network;
use crate::processes::children;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The time limit of waits without their own limit, such as the boot of an emulated guest, on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(180);
/// Concurrent tests with a guest. A booting guest keeps a CPU busy, because it is emulated.
const GUESTS: usize = 2;
/// Port of the display in each pod's network.
pub const DISPLAY: u16 = 5900;
/// The user of the pod.
const UID: u32 = 107;
/// The capability of `setcap cap_net_admin+ep` (linux/capability.h): version 2 and "effective", then the sets permitted
/// and inheritable, low halves first.
const CAP_NET_ADMIN: [u8; 20] = [
    1, 0, 0, 2, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// Sets up the pod around the runner and executes the runner. $1: the image's content, $2: the test's directory, which
/// is /tmp there. The runner's arguments follow.
const POD: &str = r#"set -e
root=$1 dir=$2; shift 2
mount --bind "$root" "$root" && mount -o remount,bind,ro "$root"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir -m 1777 "$root/dev/shm"
for device in null zero random urandom; do mknod -m 666 "$root/dev/$device" c $(stat -c '0x%t 0x%T' /dev/$device); done
if [ -n "$DISK" ]; then
    mknod -m 600 "$root/dev/system-disk" b $(stat -c '0x%t 0x%T' "$DISK")
    chown 107:107 "$root/dev/system-disk"
fi
if [ -n "$KVM" ]; then mknod -m "${KVM%% *}" "$root/dev/kvm" c ${KVM#* }; fi
touch "$root/dev/termination-log" && chmod 666 "$root/dev/termination-log"
mount -t proc proc "$root/proc"
mount --rbind "$dir" "$root/tmp"
if [ -n "$TAP" ]; then
    mount -t sysfs -o ro sysfs "$root/sys"
    mkdir "$root/dev/net" && mknod -m 666 "$root/dev/net/tun" c 10 200
    # The container runtime starts the program with what the pod adds, and the program's file has the same.
    caps=+net_admin,+sys_chroot
    # From there: the way to it may be root's alone, as below a home directory.
    cd "$root"
    exec setpriv --no-new-privs --reuid=107 --regid=107 --clear-groups --bounding-set=-all,$caps --inh-caps=-all,$caps \
        --ambient-caps=$caps chroot . /tmp/vm-runner-tap "$@"
fi
# As a privileged container starts root: with everything.
if [ -n "$AS_ROOT" ]; then exec setpriv --regid=107 --clear-groups chroot "$root" /tmp/vm-runner "$@"; fi
exec setpriv --no-new-privs --bounding-set=-all,+sys_chroot,+setuid,+setgid chroot --userspec=107:107 "$root" /tmp/vm-runner "$@"
"#;

/// The files of a test's VM and its pod's network. It outlives the runs of the VM.
pub struct Rig {
    dir: TempDir,
    root: PathBuf,
    _programs: Arc<TempDir>,
    /// The network of the pod.
    pub network: Network,
    /// Held by a fixture with a guest.
    _guest: Option<Arc<GuestPermit>>,
    disk: Option<String>,
    is_alone: bool,
}

/// A test's permit to run a guest. All of its fixtures share it.
struct GuestPermit;

static GUESTS_RUNNING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

impl GuestPermit {
    /// Waits until fewer than [`GUESTS`] other tests run a guest.
    fn take() -> Arc<Self> {
        thread_local!(static OF_TEST: RefCell<Weak<GuestPermit>> = RefCell::default());
        if let Some(permit) = OF_TEST.with_borrow(Weak::upgrade) {
            return permit;
        }
        let (running, ended) = &GUESTS_RUNNING;
        *ended
            .wait_while(running.lock().unwrap(), |running| *running >= GUESTS)
            .unwrap() += 1;
        let permit = Arc::new(Self);
        OF_TEST.set(Arc::downgrade(&permit));
        permit
    }
}

impl Drop for GuestPermit {
    fn drop(&mut self) {
        let (running, ended) = &GUESTS_RUNNING;
        *running.lock().unwrap() -= 1;
        ended.notify_one();
    }
}

/// A run of the VM.
pub struct Vm<'a> {
    rig: &'a Rig,
    child: Child,
}

/// The result of a run.
#[derive(Debug)]
pub struct End {
    pub code: i32,
    pub outcome: Value,
    pub log: String,
}

/// The runner with and without the capability for taps.
const PROGRAMS: [&str; 2] = ["vm-runner", "vm-runner-tap"];

/// A directory with the runner's programs, for hard links to them. All concurrent tests share it.
pub fn programs() -> Arc<TempDir> {
    static SHARED: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap();
    if let Some(dir) = shared.upgrade() {
        return dir;
    }
    let dir = Arc::new(
        tempfile::Builder::new()
            .prefix("programs")
            .tempdir_in("/tmp")
            .unwrap(),
    );
    let paths = PROGRAMS.map(|name| dir.path().join(name));
    for path in &paths {
        // Another process copies. Otherwise a process of another test could inherit the file while it is open for
        // writing, and then it could not be executed.
        run(
            "cp",
            &[env!("CARGO_BIN_EXE_vm-runner").as_ref(), path.as_ref()],
        );
    }
    rustix::fs::setxattr(
        &paths[1],
        "security.capability",
        &CAP_NET_ADMIN,
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    *shared = Arc::downgrade(&dir);
    dir
}

fn artefact(path: &str, how: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    assert!(path.exists(), "{} is missing: run `{how}`", path.display());
    path
}

impl Rig {
    pub fn new() -> Self {
        assert_eq!(
            fs::metadata("/proc/self").unwrap().uid(),
            0,
            "these tests need root"
        );
        let root = artefact(".cache/images/runner-root", "make images");
        let dir = tempfile::Builder::new()
            .prefix("vm")
            .tempdir_in("/tmp")
            .unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let programs = programs();
        for name in PROGRAMS {
            fs::hard_link(programs.path().join(name), dir.path().join(name)).unwrap();
        }
        // The runner reads further files beside its configuration and the kubeconfig.
        for name in ["data", "config", "api"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let rig = Self {
            dir,
            root,
            _programs: programs,
            network: Network::new(),
            _guest: None,
            disk: None,
            is_alone: false,
        };
        rig.own("data");
        rig
    }

    /// A fixture with the tiny guest's disk as an image file.
    pub fn with_guest() -> Self {
        Self::with_image("tiny")
    }

    /// A fixture with that guest's disk as an image file.
    pub fn with_image(name: &str) -> Self {
        let permit = GuestPermit::take();
        let rig = Self {
            _guest: Some(permit),
            ..Self::new()
        };
        let image = artefact(&format!(".cache/guests/{name}.img"), "make guests");
        run(
            "cp",
            &[
                "--sparse=always".as_ref(),
                image.as_ref(),
                rig.path("disk.img").as_ref(),
            ],
        );
        rig.own("disk.img");
        rig
    }

    /// A fixture whose pod has that block device as /dev/system-disk.
    pub fn with_device(device: &str) -> Self {
        Self {
            disk: Some(device.to_owned()),
            ..Self::new()
        }
    }

    /// The same with a runner that is an ordinary process of the host, without a PID namespace.
    pub fn alone(self) -> Self {
        Self {
            is_alone: true,
            ..self
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn own(&self, name: &str) {
        std::os::unix::fs::chown(self.path(name), Some(UID), Some(UID)).unwrap();
    }

    /// Writes the configuration: a VM `test-vm` with the given differences. The shutdown time is longer than [`LIMIT`],
    /// so that no test succeeds because the runner powers off a guest that does not shut down.
    pub fn configure(&self, runner: &Value, vm: &Value) {
        let mut file = json!({"/Runner": {
            "dataDir": "/tmp/data", "runtimeDir": "/tmp/run", "uid": "uid-1", "generation": 1,
            "vm": {
                "name": "test-vm", "firmware": "bios", "accelerator": "tcg", "maximumRam": "512 MiB",
                "powerdownTimeout": 600, "network": [], "drives": [{"type": "raw", "resource": "/tmp/disk.img"}],
            },
        }});
        let merge = |target: &mut Value, differences: &Value| {
            for (key, value) in differences.as_object().unwrap() {
                target[key] = value.clone();
            }
        };
        merge(&mut file["/Runner"], runner);
        merge(&mut file["/Runner"]["vm"], vm);
        self.write("config/config.yaml", &file.to_string());
    }

    pub fn write(&self, name: &str, content: &str) {
        let (path, part) = (self.path(name), self.path(&format!("{name}.part")));
        fs::write(&part, content).unwrap();
        fs::rename(part, path).unwrap();
    }

    pub fn start(&self, api: Option<&Api>) -> Vm<'_> {
        self.start_as(&self.network, api, |_| {})
    }

    /// Starts it with a kernel that rejects native asynchronous I/O, as when `fs.aio-max-nr` is reached.
    pub fn start_without_native_aio(&self) -> Vm<'_> {
        self.start_as(&self.network, None, crate::seccomp::forbid_native_aio)
    }

    /// Starts it in that network namespace, with the device and the capability for a tap.
    pub fn start_with_taps(&self, network: &Network) -> Vm<'_> {
        self.start_as(network, None, |command| {
            command.env("TAP", "yes");
        })
    }

    /// Starts it with a /dev/kvm of that mode and number, such as `666 10 232`.
    pub fn start_with_kvm(&self, api: Option<&Api>, device: &str) -> Vm<'_> {
        self.start_as(&self.network, api, |command| {
            command.env("KVM", device);
        })
    }

    /// The path of a file of the image.
    pub fn image(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// A command for the image's QEMU with these arguments. /tmp is the test's directory there.
    pub fn qemu(&self, arguments: &[&str]) -> Command {
        let mut command = self.image_program("/usr/bin/qemu-system-x86_64");
        command.args(arguments);
        command
    }

    /// A command for that program of the image in the pod's network. /tmp is the test's directory there.
    pub fn image_program(&self, program: &str) -> Command {
        let pod = r#"root=$1 dir=$2; shift 2; mount --bind "$root" "$root" && mount -t tmpfs tmpfs "$root/dev"
            for device in null zero random urandom; do mknod -m 666 "$root/dev/$device" c $(stat -c '0x%t 0x%T' /dev/$device); done
            mount --rbind "$dir" "$root/tmp" && exec chroot "$root" "$@""#;
        let mut command = self.network.command("unshare");
        command
            .args(["--mount", "--propagation=private", "sh", "-c", pod, "pod"])
            .arg(&self.root)
            .arg(self.dir.path());
        command.arg(program).stdin(Stdio::null());
        command
    }

    /// Starts it as root, with root's capabilities and the group of the pod's usual user.
    pub fn start_as_root(&self) -> Vm<'_> {
        self.start_as(&self.network, None, |command| {
            command.env("AS_ROOT", "1");
        })
    }

    fn start_as(
        &self,
        network: &Network,
        api: Option<&Api>,
        confine: impl FnOnce(&mut Command),
    ) -> Vm<'_> {
        let log = File::create(self.path("log")).unwrap();
        let mut command = network.command("unshare");
        // A container does not inherit the node's environment. cargo, for example, sets the paths of this machine's
        // certificates.
        command
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        command.args(["--mount", "--propagation=private"]);
        command.args(["--pid", "--fork"].iter().filter(|_| !self.is_alone));
        command
            .args(["sh", "-c", POD, "pod"])
            .arg(&self.root)
            .arg(self.dir.path());
        command
            .args(["-c", "/tmp/config/config.yaml"])
            .env("DISK", self.disk.as_deref().unwrap_or_default());
        command
            .env("VMRUNNER_IMAGE_REPOSITORY", "/tmp/images")
            .env("NODE_NAME", "node-1")
            .env("POD_IP", "10.1.2.3")
            .env("VMRUNNER_TERMINATION_LOG", "/tmp/data/end");
        if let Some(api) = api {
            self.write("api/kubeconfig", &api.kubeconfig(network));
            command.env("KUBECONFIG", "/tmp/api/kubeconfig");
        }
        confine(&mut command);
        let _ = fs::remove_file(self.path("data/end"));
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Vm { rig: self, child }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

impl Vm<'_> {
    /// The PID of the runner on the host.
    pub fn pid(&self) -> u32 {
        if self.rig.is_alone {
            return self.child.id();
        }
        self.until("the runner", || {
            children(self.child.id()).into_iter().next()
        })
    }

    /// The PID of QEMU on the host.
    pub fn qemu(&self) -> u32 {
        self.child("qemu")
    }

    /// QEMU's arguments.
    pub fn arguments(&self) -> Vec<String> {
        let line = fs::read_to_string(format!("/proc/{}/cmdline", self.qemu())).unwrap();
        line.split_terminator('\0').map(str::to_owned).collect()
    }

    /// The PID of the child whose name begins with that text.
    pub fn child(&self, program: &str) -> u32 {
        self.until(program, || {
            let name =
                |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            children(self.pid())
                .into_iter()
                .find(|pid| name(pid).starts_with(program))
        })
    }

    pub fn signal(&self, signal: &str) {
        run("kill", &[signal.as_ref(), self.pid().to_string().as_ref()]);
    }

    /// Waits until the VM has entered that phase, such as `Booting`.
    pub fn reaches(&self, phase: &str) {
        self.logged(&format!("to={phase}"));
    }

    /// Waits until the log contains that text.
    pub fn logged(&self, text: &str) {
        self.until(text, || self.rig.log().contains(text).then_some(()));
    }

    /// Waits for a value. Fails with the log after [`LIMIT`].
    pub fn until<T>(&self, what: &str, look: impl FnMut() -> Option<T>) -> T {
        self.until_within(LIMIT, what, look)
    }

    /// The same with a time limit from the documentation.
    pub fn until_within<T>(
        &self,
        time: Duration,
        what: &str,
        mut look: impl FnMut() -> Option<T>,
    ) -> T {
        let begin = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            let (took, log) = (begin.elapsed(), self.rig.log());
            assert!(
                took < time && !self.has_ended(),
                "waited {took:?} for {what:?}; the log:\n{log}"
            );
            sleep(Duration::from_millis(30));
        }
    }

    fn has_ended(&self) -> bool {
        let stat =
            fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        stat.contains(") Z ")
    }

    /// Waits for the exit.
    pub fn end(mut self) -> End {
        let status = {
            let begin = Instant::now();
            loop {
                if let Some(status) = self.child.try_wait().unwrap() {
                    break status;
                }
                assert!(
                    begin.elapsed() < LIMIT,
                    "has not ended in {LIMIT:?}; the log:\n{}",
                    self.rig.log()
                );
                sleep(Duration::from_millis(10));
            }
        };
        let outcome = fs::read_to_string(self.rig.path("data/end")).unwrap_or_default();
        End {
            code: status.code().unwrap_or(-1),
            outcome: serde_json::from_str(&outcome).unwrap_or_default(),
            log: self.rig.log(),
        }
    }

    /// Connects to the guest's serial console.
    pub fn console(&self) -> Console<'_> {
        let path = self.rig.path("run/console.sock");
        let mut stream = self.until("the console", || UnixStream::connect(&path).ok());
        stream.write_all(b"attach\n").unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        Console {
            vm: self,
            stream,
            seen: String::new(),
        }
    }

    /// Runs the runner's program in the pod, as `kubectl exec` does.
    pub fn exec(&self, arguments: &[&str]) -> Output {
        self.exec_command(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// The command of [`exec`](Self::exec).
    pub fn exec_command(&self, arguments: &[&str]) -> Command {
        let (limit, pid) = (LIMIT.as_secs().to_string(), self.pid().to_string());
        let mut command = Command::new("timeout");
        command.args([
            &limit,
            "nsenter",
            "-t",
            &pid,
            "-m",
            "-n",
            "-p",
            "-r",
            "-S",
            "107",
            "-G",
            "107",
            "/tmp/vm-runner",
        ]);
        command
            .args(["-c", "/tmp/config/config.yaml"])
            .args(arguments);
        command
    }
}

impl Drop for Vm<'_> {
    fn drop(&mut self) {
        // Killing PID 1 kills its whole namespace. Killing only unshare would not.
        for pid in children(self.child.id()) {
            let _ = Command::new("kill")
                .args(["-KILL", &pid.to_string()])
                .status();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The guest's serial console.
pub struct Console<'a> {
    vm: &'a Vm<'a>,
    stream: UnixStream,
    seen: String,
}

impl Console<'_> {
    /// Waits until the guest has written that text since the last wait. Returns and discards the output before it.
    pub fn wait(&mut self, text: &str) -> String {
        let begin = Instant::now();
        loop {
            if let Some(at) = self.seen.find(text) {
                let mut before: String = self.seen.drain(..at + text.len()).collect();
                before.truncate(at);
                return before;
            }
            let (seen, log) = (&self.seen, self.vm.rig.log());
            let waits = begin.elapsed() < LIMIT && !self.vm.has_ended();
            assert!(
                waits,
                "waited for {text:?}; the guest's output:\n{seen}\nthe log:\n{log}"
            );
            let mut buffer = [0; 4096];
            if let Ok(n) = self.stream.read(&mut buffer) {
                self.seen.push_str(&String::from_utf8_lossy(&buffer[..n]));
                if n == 0 {
                    sleep(Duration::from_millis(50));
                }
            }
        }
    }

    pub fn type_line(&mut self, line: &str) {
        self.stream
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }
}

/// Runs a program that must succeed. Returns its output.
pub fn run(program: &str, arguments: &[&std::ffi::OsStr]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
