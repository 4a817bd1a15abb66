//! The throughput of the guest's disk and network: a VM of the runner, compared with two QEMU processes that are
//! started by hand. One has only the best known options. The other has the VM's own command line, which separates the
//! cost of the hardware from the cost of the runner. All three run at the same time and are measured in turns, so that
//! other load affects them equally. Each round gives ratios of consecutive measurements. The output is the median of
//! these ratios, the interval that contains the true median with 95 %, and the quartiles. The same is printed for the
//! processor time of QEMU, which other load affects less.
//!
//! `BENCH_QEMU` has further options of the best QEMU, such as `-sandbox on`, to measure the cost of one option of the
//! runner. `BENCH_MEASURE` selects measurements by a part of their names.
//!
//! The disk is a file in memory with direct I/O. The host's disk is slower than the effect of any option, and its speed
//! varies, so it would hide the differences.

use super::{image, shipped};
use crate::fixture::{Fixture, LIMIT};
use crate::host::SmallVolume;
use crate::processes::children;
use serde_json::json;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The time for the rounds of each measurement.
const BUDGET: Duration = Duration::from_secs(30);
/// The minimum number of rounds.
const ROUNDS: usize = 12;
const MIB: usize = 1 << 20;
/// The size of the disk.
const SIZE: usize = 64 * MIB;
/// The amount of data of a network measurement.
const STREAM: usize = 8 * MIB;

/// Starts QEMU in the content of the runner's image and as its user. $1: the content, $2: the directory with the disks,
/// which is /tmp there.
const ALONE: &str = r#"set -e
root=$1 dir=$2; shift 2
mount --bind "$root" "$root" && mount --rbind /dev "$root/dev" && mount -t proc proc "$root/proc" && mount --rbind "$dir" "$root/tmp"
exec chroot --userspec=107:107 "$root" /usr/bin/qemu-system-x86_64 "$@""#;

/// QEMU without a runner. It is killed when this is dropped.
struct Alone(Child);

impl Alone {
    fn start(fixture: &Fixture, arguments: &[String]) -> Self {
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--propagation=private",
            "--pid",
            "--fork",
            "--kill-child",
        ]);
        command
            .args(["sh", "-c", ALONE, "alone"])
            .arg(image())
            .arg(fixture.path(""))
            .args(arguments);
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    /// The child of `unshare`, which starts a moment after `unshare` itself.
    fn qemu(&self) -> u32 {
        let begin = Instant::now();
        loop {
            match children(self.0.id()).first() {
                Some(qemu) => return *qemu,
                None => assert!(begin.elapsed() < LIMIT, "unshare has begun nothing"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // QEMU does not exit with its parent: the kernel resets that setting when QEMU changes its user.
        for qemu in children(self.0.id()) {
            let _ = Command::new("kill")
                .args(["-KILL", &qemu.to_string()])
                .status();
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A VM with only the measured devices, and the options of `BENCH_QEMU`.
fn best() -> Vec<String> {
    let fixed = "-nodefaults -no-user-config -display none -machine q35,usb=off,hpet=off -accel tcg -cpu max -smp 1 -m 512M \
        -chardev socket,id=serial,path=/tmp/serial.sock,server=on,wait=off -device isa-serial,chardev=serial \
        -netdev user,id=net -device virtio-net-pci,netdev=net";
    let further = std::env::var("BENCH_QEMU").unwrap_or_default();
    let arguments = fixed
        .split_whitespace()
        .chain(further.split_whitespace())
        .map(str::to_owned);
    arguments
        .chain(disk("disk", "disk.img"))
        .chain(disk("data", "volume/data.img"))
        .collect()
}

/// The command line of that QEMU without the runner's parts: the inherited sockets, and the stop before the start.
fn as_by_hand(qemu: u32) -> Vec<String> {
    let line = fs::read_to_string(format!("/proc/{qemu}/cmdline")).unwrap();
    let arguments = line
        .trim_end_matches('\0')
        .split('\0')
        .skip(1)
        .filter(|argument| *argument != "-S");
    let own = |argument: &str| match argument
        .strip_prefix("socket,id=")
        .and_then(|rest| rest.split_once(",fd="))
    {
        Some((id, _)) if id.starts_with("serial0") => {
            format!("socket,id={id},path=/tmp/serial.sock,server=on,wait=off")
        }
        Some((id, _)) => format!("null,id={id}"),
        None => argument.to_owned(),
    };
    arguments.map(own).collect()
}

/// A disk with direct I/O, io_uring and its own thread, without further layers.
fn disk(name: &str, file: &str) -> Vec<String> {
    [
        ("-object", json!({"qom-type": "iothread", "id": format!("{name}-thread")})),
        (
            "-blockdev",
            json!({
                "driver": "file", "node-name": name, "filename": format!("/tmp/{file}"), "aio": "io_uring",
                "cache": {"direct": true},
            }),
        ),
        (
            "-device",
            json!({
                "driver": "virtio-blk-pci", "drive": name, "iothread": format!("{name}-thread"), "num-queues": 1,
            }),
        ),
    ]
    .into_iter()
    .flat_map(|(option, value)| [option.to_owned(), value.to_string()])
    .collect()
}

/// A guest's serial console.
struct Line {
    stream: UnixStream,
    seen: String,
    qemu: u32,
}

impl Line {
    fn open(qemu: u32, path: PathBuf, hello: &[u8]) -> Self {
        let begin = Instant::now();
        let mut stream = loop {
            match UnixStream::connect(&path) {
                Ok(stream) => break stream,
                Err(error) => assert!(begin.elapsed() < LIMIT, "{}: {error}", path.display()),
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        stream.write_all(hello).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Self {
            stream,
            seen: String::new(),
            qemu,
        }
    }

    /// Runs a command in a shell of the guest. Returns its duration by the host's clock. The guest prints begin and end
    /// outside of the pipe with the output of the command.
    fn time(&mut self, command: &str) -> f64 {
        let all = format!(
            "sh echo '[begin]' >/dev/ttyS0; {command} || echo failed >/dev/ttyS0; echo '[end]' >/dev/ttyS0\n"
        );
        self.stream.write_all(all.as_bytes()).unwrap();
        self.wait("[begin]");
        let begin = Instant::now();
        let output = self.wait("[end]");
        assert!(!output.contains("failed"), "{command}: {output}");
        begin.elapsed().as_secs_f64()
    }

    /// Nanoseconds of processor time that QEMU's threads have used.
    fn cost(&self) -> f64 {
        let threads = fs::read_dir(format!("/proc/{}/task", self.qemu)).unwrap();
        let stats = threads
            .filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("schedstat")).ok());
        stats
            .map(|stat| stat.split(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    }

    /// The output before that text.
    fn wait(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.seen.find(text) {
                let before = self.seen[..at].to_owned();
                self.seen.drain(..at + text.len());
                return before;
            }
            let mut bytes = [0; 4096];
            let n = self
                .stream
                .read(&mut bytes)
                .unwrap_or_else(|error| panic!("{error}; {}", self.seen));
            assert!(n > 0, "the guest has exited: {}", self.seen);
            self.seen.push_str(&String::from_utf8_lossy(&bytes[..n]));
        }
    }
}

/// MB/s of that many copies with that many bytes each.
fn dd(line: &mut Line, options: &str, times: usize, bytes: usize) -> f64 {
    let each = format!("dd {options} 2>/dev/null");
    let all = vec![each.as_str(); times].join(" && ");
    (times * bytes) as f64 / 1e6 / line.time(&format!("{{ {all}; }}"))
}

/// MB/s between the first byte and the last.
fn stream(line: &mut Line, from_guest: bool) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let host = std::thread::spawn(move || {
        let connection = listener.accept().unwrap().0;
        if from_guest {
            receive(connection)
        } else {
            send(connection)
        }
    });
    // `nc` passes the connection to another program, because it would itself use pieces of a kilobyte.
    let program = match from_guest {
        true => format!("dd if=/dev/zero bs=64k count={}", STREAM >> 16),
        false => "dd of=/dev/null bs=64k".to_owned(),
    };
    line.time(&format!("nc 10.0.2.2 {port} -e {program} 2>/dev/null"));
    STREAM as f64 / 1e6 / host.join().unwrap()
}

/// The seconds from the first byte to the last.
fn receive(mut connection: TcpStream) -> f64 {
    let mut bytes = vec![0; 1 << 16];
    let mut taken = connection.read(&mut bytes).unwrap();
    let begin = Instant::now();
    while taken < STREAM {
        let n = connection.read(&mut bytes).unwrap();
        assert!(n > 0, "only {taken} bytes came");
        taken += n;
    }
    begin.elapsed().as_secs_f64()
}

/// The seconds until the guest closes the connection, after it has received everything.
fn send(mut connection: TcpStream) -> f64 {
    let mut bytes = vec![b'x'; 1 << 16];
    let begin = Instant::now();
    for _ in 0..STREAM / bytes.len() {
        connection.write_all(&bytes).unwrap();
    }
    connection.shutdown(Shutdown::Write).unwrap();
    let _ = connection.read(&mut bytes);
    begin.elapsed().as_secs_f64()
}

type Measure = fn(&mut Line) -> f64;

/// Large pieces are copied from one half of the disk to the other, because creating data in the guest would take longer
/// than writing it. The data is not zeros, which the runner's disks turn into holes.
const MEASURES: [(&str, Measure); 6] = [
    ("disk, read in pieces of 1 MiB", |line| {
        dd(
            line,
            "if=/dev/vdb of=/dev/null bs=1M count=64 iflag=direct",
            4,
            SIZE,
        )
    }),
    ("disk, copied within itself in pieces of 1 MiB", |line| {
        dd(
            line,
            "if=/dev/vdb of=/dev/vdb bs=1M count=32 seek=32 iflag=direct oflag=direct",
            6,
            SIZE / 2,
        )
    }),
    ("disk, read in pieces of 4 KiB", |line| {
        dd(
            line,
            "if=/dev/vdb of=/dev/null bs=4k count=1024 iflag=direct",
            1,
            4 * MIB,
        )
    }),
    ("disk, written in pieces of 4 KiB", |line| {
        dd(
            line,
            "if=/ones of=/dev/vdb bs=4k count=1024 oflag=direct",
            1,
            4 * MIB,
        )
    }),
    ("user network, TCP from the guest", |line| {
        stream(line, true)
    }),
    ("user network, TCP to the guest", |line| stream(line, false)),
];

/// The throughput of one of them in MB/s, and its processor time.
#[derive(Clone, Copy)]
struct Sample {
    speed: f64,
    cost: f64,
}

fn sample(measure: Measure, line: &mut Line) -> Sample {
    let before = line.cost();
    let speed = measure(line);
    Sample {
        speed,
        cost: line.cost() - before,
    }
}

/// A VM of the runner, the best QEMU, and a QEMU with the VM's command line.
type Round = [Sample; 3];

/// Measures all of them, round by round. The order rotates, so that each is first equally often.
fn rounds(measure: Measure, lines: &mut [Line; 3]) -> Vec<Round> {
    // The first round is slower: caches are filled, and the guest's code is translated.
    for line in &mut *lines {
        measure(line);
    }
    let (begin, mut all) = (Instant::now(), Vec::new());
    while begin.elapsed() < BUDGET || all.len() < ROUNDS {
        for order in [
            [0, 1, 2],
            [2, 1, 0],
            [1, 2, 0],
            [0, 2, 1],
            [2, 0, 1],
            [1, 0, 2],
        ] {
            let mut round = [Sample {
                speed: 0.0,
                cost: 0.0,
            }; 3];
            for n in order {
                round[n] = sample(measure, &mut lines[n]);
            }
            all.push(round);
        }
    }
    all
}

/// The median of the rounds' values, their quartiles, and the interval that contains the true median with 95 %. The
/// interval follows from the binomial distribution of the number of values below the median.
struct Spread {
    median: f64,
    sure: [f64; 2],
    half: [f64; 2],
}

impl Spread {
    fn of(rounds: &[Round], value: impl Fn(&Round) -> f64) -> Self {
        let mut values: Vec<f64> = rounds.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        let at = |part: f64| values[(part * (values.len() - 1) as f64).round() as usize];
        let sure = 0.98 / (values.len() as f64).sqrt();
        Self {
            median: at(0.5),
            sure: [at(0.5 - sure), at(0.5 + sure)],
            half: [at(0.25), at(0.75)],
        }
    }

    fn ratio(&self) -> String {
        format!(
            "× {:.3} (95 %: {:.3} to {:.3})",
            self.median, self.sure[0], self.sure[1]
        )
    }
}

/// The second cell of a row.
fn cell(rounds: &[Round]) -> String {
    let speed = |n: usize| Spread::of(rounds, |round| round[n].speed).median;
    let compared = |n: usize| {
        let speed = Spread::of(rounds, |round| round[0].speed / round[n].speed);
        let cost = Spread::of(rounds, |round| round[0].cost / round[n].cost);
        let half = format!(
            "half of {} rounds {:.2} to {:.2}",
            rounds.len(),
            speed.half[0],
            speed.half[1]
        );
        format!("{}, {half}; processor time {}", speed.ratio(), cost.ratio())
    };
    let ours = format!("{:.0} MB/s", speed(0));
    let best = format!("the best QEMU alone {:.0} MB/s: {}", speed(1), compared(1));
    let same = format!("the same QEMU alone {:.0} MB/s: {}", speed(2), compared(2));
    format!("{ours}; {best}; {same}")
}

#[test]
fn a_guest_beside_qemu_alone() {
    let fixtures = [shipped(), shipped(), shipped()];
    let _volumes = fixtures.each_ref().map(|fixture| {
        let volume = SmallVolume::of(fixture, "volume", 80);
        fs::write(fixture.path("volume/data.img"), vec![b'x'; SIZE]).unwrap();
        fixture.own("volume/data.img");
        volume
    });
    let drives = json!([{"type": "raw", "resource": "/tmp/disk.img"}, {"type": "raw", "resource": "/tmp/volume/data.img"}]);
    fixtures[0].configure(
        &json!({}),
        &json!({"drives": drives, "network": [{"type": "user"}]}),
    );
    let vm = fixtures[0].start(None);
    let best = Alone::start(&fixtures[1], &best());
    let same = Alone::start(&fixtures[2], &as_by_hand(vm.qemu()));
    let mut lines = [
        Line::open(vm.qemu(), fixtures[0].path("run/console.sock"), b"attach\n"),
        Line::open(best.qemu(), fixtures[1].path("serial.sock"), b""),
        Line::open(same.qemu(), fixtures[2].path("serial.sock"), b""),
    ];
    for line in &mut lines {
        line.wait("ready");
        // Creates the data to write. The network needs a moment.
        line.time(&format!(
            "tr '\\0' x </dev/zero | head -c {} >/ones; until ip route | grep -q default; do usleep 100000; done",
            4 * MIB
        ));
    }
    let only = std::env::var("BENCH_MEASURE").unwrap_or_default();
    for (name, measure) in MEASURES.iter().filter(|(name, _)| name.contains(&only)) {
        println!("| {name} | {} |", cell(&rounds(*measure, &mut lines)));
    }
}
