//! (io) `vm-runner console`, `vm-runner vnc` and `vm-runner power-off`: clients of the console's socket.

use crate::runner::console::{ATTACH, LOG, OFF, VNC};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};
use std::io::{self, Read, Write, stdin, stdout};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Ctrl-], as in telnet and virsh.
const DETACH: u8 = 0x1d;

/// Time for a reader of the output. If `kubectl exec` is killed, its process in the pod remains, and nobody reads its output.
const READER_TIMEOUT: Duration = Duration::from_secs(120);

/// Bytes that a pipe accepts at once if it is ready (`PIPE_BUF`).
const CHUNK_SIZE: usize = 4096;

/// Prints the guest's output since it started to boot.
pub fn log(socket: &Path) -> io::Result<()> {
    let mut stream = open(socket, LOG)?;
    print(&mut stream)
}

/// Requests a power-off. Returns after the runner has accepted it. The runner powers the VM off
/// after this process has exited.
pub fn power_off(socket: &Path) -> io::Result<()> {
    let mut stream = open(socket, OFF)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let is_accepted = answer == OFF;
    is_accepted.then_some(()).ok_or_else(|| {
        io::Error::other("the runner has not confirmed the power-off, so the VM may still run; read the log of the VM's pod")
    })
}

/// Connects the standard input and output, which are those of a VNC client, to the screen until one side closes its end.
pub fn vnc(socket: &Path) -> io::Result<()> {
    let mut stream = open(socket, VNC)?;
    let mut sending = stream.try_clone()?;
    thread::spawn(move || {
        // The end of the input ends the connection, as that of the screen does.
        let _ = io::copy(&mut stdin().lock(), &mut sending);
        let _ = sending.shutdown(Shutdown::Both);
    });
    match print(&mut stream) {
        // QEMU has ended with unread input.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(()),
        end => end,
    }
}

/// Writes what arrives to the standard output, without delay, until the end of the connection.
fn print(stream: &mut UnixStream) -> io::Result<()> {
    let mut buffer = [0; 64 << 10];
    loop {
        let n = stream.read(&mut buffer)?;
        let bytes = buffer.get(..n).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(());
        }
        write(&mut stdout().lock(), bytes, READER_TIMEOUT)?;
    }
}

/// Writes while somebody reads.
fn write<W: Write + AsFd>(output: &mut W, bytes: &[u8], timeout: Duration) -> io::Result<()> {
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    for chunk in bytes.chunks(CHUNK_SIZE) {
        let ready = poll(&mut [PollFd::new(output, PollFlags::OUT)], Some(&timeout))?;
        if ready == 0 {
            return Err(io::Error::other(
                "nobody reads the output of this process, so it exits",
            ));
        }
        output.write_all(chunk)?;
        output.flush()?;
    }
    Ok(())
}

/// Connects the terminal to the guest until Ctrl-] or the end of the VM. If the input is not a
/// terminal, its end stops the input only.
pub fn attach(socket: &Path) -> io::Result<()> {
    let mut stream = open(socket, ATTACH)?;
    let _terminal = RawTerminal::enter();
    eprint!(
        "attached to the serial console of the VM; Ctrl-] detaches, `vm-runner console --log` prints the guest's recent output\r\n"
    );
    let typing = stream.try_clone()?;
    thread::spawn(move || {
        if let Ok(true) = forward_input(&typing) {
            let _ = typing.shutdown(Shutdown::Both);
        }
    });
    print(&mut stream)?;
    eprint!("\r\ndetached\r\n");
    Ok(())
}

/// Sends the input to the guest. Returns whether the user has detached.
fn forward_input(mut stream: &UnixStream) -> io::Result<bool> {
    let mut buffer = [0; 1024];
    loop {
        let n = stdin().lock().read(&mut buffer)?;
        let bytes = buffer.get(..n).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(false);
        }
        let end = bytes.iter().position(|byte| *byte == DETACH);
        stream.write_all(bytes.get(..end.unwrap_or(n)).unwrap_or_default())?;
        if end.is_some() {
            return Ok(true);
        }
    }
}

fn open(socket: &Path, request: &[u8]) -> io::Result<UnixStream> {
    let failure = |error: io::Error| {
        io::Error::new(
            error.kind(),
            format!(
                "cannot connect to {}: {error}; run this command in the pod of a running VM",
                socket.display()
            ),
        )
    };
    let mut stream = UnixStream::connect(socket).map_err(failure)?;
    stream.write_all(request)?;
    Ok(stream)
}

/// A terminal in raw mode. Dropping it restores the previous mode.
struct RawTerminal(Option<Termios>);

impl RawTerminal {
    fn enter() -> Self {
        let before = Some(stdin())
            .filter(|stdin| isatty(stdin))
            .and_then(|stdin| tcgetattr(stdin).ok());
        if let Some(before) = &before {
            let mut raw = before.clone();
            raw.make_raw();
            let _ = tcsetattr(stdin(), OptionalActions::Now, &raw);
        }
        Self(before)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(stdin(), OptionalActions::Now, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_output_ends_the_process_and_a_slow_reader_receives_everything() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut output = io::PipeWriter::try_clone(&writer).unwrap();
        let bytes = vec![7; 1 << 20];
        let error = write(&mut output, &bytes, Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("nobody reads"), "{error}");
        let reading = thread::spawn(move || {
            let (mut all, mut buffer) = (0, [0; 3000]);
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                all += n;
            }
            all
        });
        write(&mut output, &bytes, READER_TIMEOUT).unwrap();
        drop((output, writer));
        assert!(reading.join().unwrap() > 1 << 20);
    }
}
