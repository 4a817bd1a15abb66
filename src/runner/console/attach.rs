//! (io) `vm-runner console` and `vm-runner power-off`: the viewer's side of the console.

use crate::runner::console::{ATTACH, LOG, OFF};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};
use std::io::{self, Read, Write, stdin, stdout};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

/// Ctrl-], as in telnet and virsh.
const DETACH: u8 = 0x1d;

/// Prints what the guest has written since it boots.
pub fn log(socket: &Path) -> io::Result<()> {
    let mut stream = open(socket, LOG)?;
    io::copy(&mut stream, &mut stdout().lock())?;
    Ok(())
}

/// Switches the machine's power off. Comes back when the runner has taken that: the machine ends once who asked is gone.
pub fn power_off(socket: &Path) -> io::Result<()> {
    let mut stream = open(socket, OFF)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let has_understood = answer == OFF;
    has_understood
        .then_some(())
        .ok_or_else(|| io::Error::other("the runner has not answered; see its log"))
}

/// Connects the terminal to the guest until Ctrl-] or the machine's end. The end of an input that is no terminal
/// only ends the typing.
pub fn attach(socket: &Path) -> io::Result<()> {
    let mut stream = open(socket, ATTACH)?;
    let _terminal = Raw::enter();
    eprint!("attached; Ctrl-] detaches, `console --log` shows what was written before\r\n");
    let typing = stream.try_clone()?;
    thread::spawn(move || {
        if let Ok(true) = type_into(&typing) {
            let _ = typing.shutdown(Shutdown::Both);
        }
    });
    let mut buffer = [0; 4096];
    loop {
        let n = stream.read(&mut buffer)?;
        let bytes = buffer.get(..n).unwrap_or_default();
        if bytes.is_empty() {
            eprint!("\r\ndetached\r\n");
            return Ok(());
        }
        let mut stdout = stdout().lock();
        stdout.write_all(bytes)?;
        stdout.flush()?;
    }
}

/// Passes the input on; says whether it ended by the wish to detach.
fn type_into(mut stream: &UnixStream) -> io::Result<bool> {
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

fn open(socket: &Path, hello: &[u8]) -> io::Result<UnixStream> {
    let explain = |error: io::Error| {
        io::Error::new(
            error.kind(),
            format!(
                "{}: {error}; does the VM run in this container?",
                socket.display()
            ),
        )
    };
    let mut stream = UnixStream::connect(socket).map_err(explain)?;
    stream.write_all(hello)?;
    Ok(stream)
}

/// A terminal that passes every key on, until this is dropped.
struct Raw(Option<Termios>);

impl Raw {
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

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = tcsetattr(stdin(), OptionalActions::Now, before);
        }
    }
}
