//! All devices of a VM in one guest: the runner's image lacks no module of QEMU and no library.

use crate::fixture::{DISPLAY, Fixture, LIMIT};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

const MACHINE: &str = "-no-user-config -nodefaults -display none -accel tcg -cpu max -m 256 -smp 1,maxcpus=2 \
    -machine pc-q35-9.2,usb=off,vmport=off,dump-guest-core=off,hpet=off,smm=on \
    -global kvm-pit.lost_tick_policy=delay -global ICH9-LPC.disable_s3=1 -global ICH9-LPC.disable_s4=1 \
    -global driver=cfi.pflash01,property=secure,value=on \
    -sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny \
    -rtc base=utc,clock=host,driftfix=slew -device intel-iommu,device-iotlb=on \
    -device vmgenid,guid=1c4f2f0e-6f6a-4a1e-9d0c-3b1f5a7c9e24 -device pvpanic \
    -device pcie-root-port,id=spare0,bus=pcie.0,addr=0x1e.0x0,multifunction=on,chassis=1,port=0 \
    -drive if=pflash,unit=0,format=raw,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.ms.fd \
    -drive if=pflash,unit=1,format=raw,file=/tmp/vars.fd";

/// QEMU waits for a client of the serial console before the guest starts.
const CHANNELS: &str = "-chardev socket,id=serial,path=/tmp/serial.sock,server=on,wait=on -device isa-serial,chardev=serial \
    -chardev socket,id=monitor,path=/tmp/monitor.sock,server=on,wait=off -mon chardev=monitor,mode=control \
    -device virtio-serial-pci -chardev null,id=agent -device virtserialport,chardev=agent,name=org.qemu.guest_agent.0 \
    -chardev null,id=vmop -device virtserialport,name=org.jdrupes.vmop_agent.0,chardev=vmop \
    -chardev socket,id=chrtpm,path=/tmp/tpm.sock -tpmdev emulator,id=tpm0,chardev=chrtpm -device tpm-tis,tpmdev=tpm0";

const DESKTOP: &str = "-device qemu-xhci,p2=15,p3=15,id=usb -device usb-tablet \
    -device virtio-vga,id=video0,max_outputs=2,max_hostmem=536870912 -device ich9-intel-hda,id=sound0 \
    -chardev spicevmc,id=vdagent,name=vdagent -device virtserialport,chardev=vdagent,name=com.redhat.spice.0 \
    -audiodev driver=spice,id=audio1 -device hda-duplex,audiodev=audio1 \
    -chardev spicevmc,id=redir,name=usbredir -device usb-redir,chardev=redir";

const OTHERS: &str = "-device virtio-balloon-pci -object rng-random,id=rng,filename=/dev/random -device virtio-rng-pci,rng=rng \
    -netdev user,id=net0 -device virtio-net-pci,netdev=net0 -netdev user,id=net1 -device e1000e,netdev=net1 \
    -netdev user,id=net2 -device rtl8139,netdev=net2 \
    -drive if=none,id=disk,format=raw,file=/tmp/disk.img -device virtio-blk-pci,drive=disk,bootindex=1 \
    -drive if=none,id=cdrom,media=cdrom,readonly=on,format=raw,file=/tmp/cd.iso -device ide-cd,bus=ide.0,drive=cdrom \
    -drive if=none,id=empty,media=cdrom,readonly=on -device ide-cd,bus=ide.1,drive=empty";

/// The time without output after which a boot is tried again.
const SILENCE: Duration = Duration::from_secs(120);

/// The ways in which QEMU can read and write a file.
const AIO: [&str; 3] = ["threads", "native", "io_uring"];

/// QEMU or its TPM, which is killed when it is dropped.
struct Program(Child);

impl Program {
    /// The exit code.
    fn end(&mut self) -> Option<i32> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(begin.elapsed() < LIMIT, "has not exited in {LIMIT:?}");
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A socket that is read line by line.
struct Lines(BufReader<UnixStream>);

impl Lines {
    /// Connects as soon as a program listens.
    fn connect(socket: &Path, qemu: &mut Program, log: &Path) -> Self {
        let begin = Instant::now();
        loop {
            if let Ok(stream) = UnixStream::connect(socket) {
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                return Self(BufReader::new(stream));
            }
            let runs = begin.elapsed() < LIMIT && qemu.0.try_wait().unwrap().is_none();
            assert!(
                runs,
                "no program listens at {}: {}",
                socket.display(),
                fs::read_to_string(log).unwrap()
            );
            sleep(Duration::from_millis(20));
        }
    }

    /// The next line that contains that text.
    fn wait(&mut self, text: &str) -> String {
        self.find(text).unwrap()
    }

    /// The next line that contains that text, or the output without it.
    fn find(&mut self, text: &str) -> Result<String, String> {
        let mut seen = String::new();
        loop {
            let mut line = Vec::new();
            let read = self.0.read_until(b'\n', &mut line);
            let line = String::from_utf8_lossy(&line);
            if !matches!(read, Ok(n) if n > 0) {
                return Err(format!("{read:?}, no {text:?} in\n{seen}{line}"));
            }
            if line.contains(text) {
                return Ok(line.into_owned());
            }
            seen.push_str(&line);
        }
    }

    fn send(&mut self, line: &str) {
        self.0
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }
}

#[test]
fn a_machine_with_every_device_boots_by_uefi_with_smm_and_shuts_down() {
    let fixture = Fixture::with_guest();
    fs::copy(
        fixture.image("usr/share/OVMF/OVMF_VARS_4M.fd"),
        fixture.path("vars.fd"),
    )
    .unwrap();
    File::create(fixture.path("cd.iso"))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let mut arguments: Vec<String> = [MACHINE, CHANNELS, DESKTOP, OTHERS]
        .iter()
        .flat_map(|part| part.split(' '))
        .map(str::to_owned)
        .collect();
    for aio in AIO {
        File::create(fixture.path(&format!("{aio}.img")))
            .unwrap()
            .set_len(1 << 20)
            .unwrap();
        let file = format!(
            "driver=file,node-name={aio}-file,filename=/tmp/{aio}.img,aio={aio},cache.direct=on,discard=unmap"
        );
        let disk = format!("virtio-blk-pci,drive={aio},iothread={aio}-thread");
        let options = [
            "-blockdev",
            &file,
            "-blockdev",
            &format!("driver=raw,node-name={aio},file={aio}-file"),
        ];
        arguments.extend(options.map(str::to_owned));
        arguments.extend(
            [
                "-object",
                &format!("iothread,id={aio}-thread"),
                "-device",
                &disk,
            ]
            .map(str::to_owned),
        );
    }
    let spice = format!(
        "port={DISPLAY},disable-ticketing=off,seamless-migration=on,streaming-video=filter"
    );
    arguments.extend(["-spice".to_owned(), spice]);

    let (log, arguments) = (
        fixture.path("log"),
        arguments.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    let boot = || {
        let mut tpm = fixture.image_program("/usr/bin/swtpm");
        tpm.args(
            "socket --tpm2 --tpmstate dir=/tmp --ctrl type=unixio,path=/tmp/tpm.sock --flags startup-clear --terminate"
                .split(' '),
        );
        let tpm = Program(tpm.spawn().unwrap());
        let begin = Instant::now();
        while !fixture.path("tpm.sock").exists() {
            assert!(begin.elapsed() < LIMIT, "the TPM does not listen");
            sleep(Duration::from_millis(20));
        }
        let output = File::create(&log).unwrap();
        let mut qemu = fixture.qemu(&arguments);
        let mut qemu = Program(
            qemu.stdout(output.try_clone().unwrap())
                .stderr(output)
                .spawn()
                .unwrap(),
        );
        let mut serial = Lines::connect(&fixture.path("serial.sock"), &mut qemu, &log);
        serial.0.get_ref().set_read_timeout(Some(SILENCE)).unwrap();
        let ready = serial.find("TINY boot=1")?;
        serial.0.get_ref().set_read_timeout(Some(LIMIT)).unwrap();
        Ok((tpm, qemu, serial, ready))
    };
    // QEMU without KVM has a deadlock: while the guest resets virtio-vga, the vCPU waits for the main loop, and the main loop for the vCPU
    // if it refreshes the SPICE display. On a busy machine, that is one of about 30 boots.
    let booted = boot().or_else(|output: String| {
        println!("a boot is tried again after\n{output}");
        let _ = fs::remove_file(fixture.path("tpm.sock"));
        boot()
    });
    let (mut tpm, mut qemu, mut serial, ready) = booted.unwrap();
    assert!(ready.contains("ready"), "{ready}");
    serial.send("disks");
    // The guest's own disk, and one for each kind of I/O.
    let disks = serial.wait("TINY disks");
    assert!(
        disks.trim().ends_with("vdb=2048 vdc=2048 vdd=2048"),
        "{disks}"
    );
    serial.send("sh cat /sys/class/tpm/tpm0/tpm_version_major");
    serial.wait("TINY sh 2");
    let mut monitor = Lines::connect(&fixture.path("monitor.sock"), &mut qemu, &log);
    monitor.wait("QMP");
    monitor.send(r#"{"execute": "qmp_capabilities"}"#);
    monitor.wait("return");
    monitor.send(r#"{"execute": "query-spice"}"#);
    let spice: Value = serde_json::from_str(&monitor.wait("return")).unwrap();
    assert_eq!(
        (&spice["return"]["auth"], &spice["return"]["port"]),
        (&"spice".into(), &DISPLAY.into())
    );
    serial.send("poweroff");
    assert_eq!(qemu.end(), Some(0), "{}", fs::read_to_string(&log).unwrap());
    assert_eq!(tpm.end(), Some(0));
}
