//! (io) The serial console: sends the guest's output to all viewers and their input to the guest,
//! and stores the end of the output.
//!
//! The web console connects by [`port`]. A local viewer connects to a socket in the runtime directory and sends one line: `attach`, `log`, `vnc` or
//! `off`. To `off`, the runner replies `off`, and powers the VM off after the client has disconnected. After `vnc`, QEMU
//! gets the connection: it shows the screen to the VNC client at the other end.
//!
//! Invariants: the guest's output is always read, so the guest never blocks. A viewer that reads
//! too slowly loses output.

mod assignment;
mod attach;
mod port;

pub use assignment::Assignment;
pub use attach::{attach, log, power_off, vnc};
pub use port::{Port, serve as serve_port};

use crate::api::runner::viewer::{Answer, Request};
use crate::api::vm::ConsoleConnection;
use futures::future::BoxFuture;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{broadcast, mpsc};
use tokio_util::bytes::Bytes;
use tokio_util::sync::CancellationToken;

/// Size of the stored output in bytes.
const LOG_SIZE_MAX: usize = 64 << 10;
/// Time for a viewer to send its request.
const VIEWER_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the client of a power-off to disconnect. The end of the VM kills all processes of its
/// container, and the client must exit successfully before.
const POWER_OFF_CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

/// Requests of viewers.
const ATTACH: &[u8] = b"attach\n";
const LOG: &[u8] = b"log\n";
const VNC: &[u8] = b"vnc\n";
const OFF: &[u8] = b"off\n";

/// The functions of the VM that viewers can use.
pub trait Functions: Send + Sync + 'static {
    /// Powers the VM off.
    fn power_off(&self);
    /// Shows the screen to the VNC client at that socket.
    fn show_screen(&self, client: OwnedFd);
    /// The SPICE display, with a password for the user of the request.
    fn open_display(&self, request: &Request) -> BoxFuture<'static, Answer>;
    /// Disconnects the SPICE client of the user, or replaces the password that the user was the last to get.
    fn disconnect(&self, user: &str) -> Answer;
    /// Reports the connected users of the web console, the newest first.
    fn report(&self, viewers: Vec<ConsoleConnection>);
}

/// The last part of the guest's output since its boot.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<VecDeque<u8>>>);

impl Log {
    /// Discards the output, because the guest reboots.
    pub fn clear(&self) {
        self.with_buffer(VecDeque::clear);
    }

    /// Stores the bytes and sends them to the viewers.
    fn push(&self, bytes: &[u8], viewers: &broadcast::Sender<Bytes>) {
        self.with_buffer(|kept| {
            kept.extend(bytes);
            let surplus = kept.len().saturating_sub(LOG_SIZE_MAX);
            kept.drain(..surplus);
            if viewers.receiver_count() > 0 {
                let _ = viewers.send(Bytes::copy_from_slice(bytes));
            }
        });
    }

    /// The stored output, and all output after it.
    fn follow(&self, viewers: &broadcast::Sender<Bytes>) -> (Vec<u8>, broadcast::Receiver<Bytes>) {
        self.with_buffer(|kept| (kept.iter().copied().collect(), viewers.subscribe()))
    }

    fn content(&self) -> Vec<u8> {
        self.with_buffer(|kept| kept.iter().copied().collect())
    }

    fn with_buffer<T>(&self, f: impl FnOnce(&mut VecDeque<u8>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Handles that a viewer's connection needs.
#[derive(Clone)]
pub struct ConsoleServer {
    output: broadcast::Sender<Bytes>,
    input: mpsc::Sender<Bytes>,
    log: Log,
    functions: Arc<dyn Functions>,
    /// Is cancelled when QEMU closes the serial line.
    ended: CancellationToken,
}

/// A console for that serial line, and the task that serves it until QEMU closes the line.
pub fn serve(
    line: UnixStream,
    listener: UnixListener,
    log: Log,
    functions: Arc<dyn Functions>,
) -> (ConsoleServer, impl Future<Output = ()> + Send + 'static) {
    let (reader, writer) = line.into_split();
    let (output, _) = broadcast::channel(64);
    let (input, typed) = mpsc::channel(16);
    let ended = CancellationToken::new();
    let server = ConsoleServer {
        output: output.clone(),
        input,
        log: log.clone(),
        functions,
        ended: ended.clone(),
    };
    let accept = accept(listener, server.clone());
    let serving = async move {
        tokio::spawn(write(writer, typed));
        tokio::select! {
            () = read(reader, output, log) => {}
            () = accept => {}
        }
        ended.cancel();
    };
    (server, serving)
}

async fn read(mut line: OwnedReadHalf, output: broadcast::Sender<Bytes>, log: Log) {
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = line.read(&mut buffer).await {
        log.push(buffer.get(..n).unwrap_or_default(), &output);
    }
}

async fn write(mut line: OwnedWriteHalf, mut typed: mpsc::Receiver<Bytes>) {
    while let Some(bytes) = typed.recv().await {
        if line.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn accept(listener: UnixListener, server: ConsoleServer) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let server = server.clone();
                tokio::spawn(async move {
                    if let Err(error) = serve_viewer(stream, server).await {
                        tracing::debug!(%error, "the connection of a client of the serial console has failed");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the runner cannot accept a connection to the serial console; it retries after 1 s");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn serve_viewer(mut stream: UnixStream, server: ConsoleServer) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\n") && request.len() < ATTACH.len() {
        request.push(tokio::time::timeout(VIEWER_REQUEST_TIMEOUT, stream.read_u8()).await??);
    }
    match request.as_slice() {
        LOG => stream.write_all(&server.log.content()).await,
        ATTACH => attach_viewer(stream, server).await,
        VNC => {
            let client = stream.into_std()?;
            server.functions.show_screen(client.into());
            Ok(())
        }
        OFF => {
            let answered = stream.write_all(OFF).await;
            let _ = stream.shutdown().await;
            let _ = tokio::time::timeout(POWER_OFF_CLIENT_TIMEOUT, stream.read_u8()).await;
            server.functions.power_off();
            answered
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

async fn attach_viewer(stream: UnixStream, server: ConsoleServer) -> io::Result<()> {
    let (input, mut output) = (server.input, server.output.subscribe());
    let (mut reader, mut writer) = stream.into_split();
    let mut buffer = [0; 1024];
    let mut typing = true;
    loop {
        tokio::select! {
            // The last output comes before the end.
            biased;
            bytes = output.recv() => match bytes {
                Ok(bytes) => writer.write_all(&bytes).await?,
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return Ok(()),
            },
            read = reader.read(&mut buffer), if typing => match read? {
                0 => typing = false,
                n => {
                    let bytes = Bytes::copy_from_slice(buffer.get(..n).unwrap_or_default());
                    let _ = input.send(bytes).await;
                }
            },
            () = server.ended.cancelled() => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Rig {
        guest: UnixStream,
        path: std::path::PathBuf,
        log: Log,
        is_off: Arc<AtomicBool>,
        _dir: tempfile::TempDir,
    }

    struct Switch(Arc<AtomicBool>);

    impl Functions for Switch {
        fn power_off(&self) {
            self.0.store(true, Ordering::Relaxed);
        }

        fn show_screen(&self, _: OwnedFd) {}

        fn report(&self, _: Vec<ConsoleConnection>) {}

        fn open_display(&self, _: &Request) -> BoxFuture<'static, Answer> {
            Box::pin(async { Answer::NoDisplay })
        }

        fn disconnect(&self, _: &str) -> Answer {
            Answer::Ended
        }
    }

    fn rig() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console.sock");
        let (guest, line) = UnixStream::pair().unwrap();
        let log = Log::default();
        let is_off = Arc::new(AtomicBool::new(false));
        let off = is_off.clone();
        let listener = UnixListener::bind(&path).unwrap();
        let (_, serving) = serve(line, listener, log.clone(), Arc::new(Switch(off)));
        tokio::spawn(serving);
        Rig {
            guest,
            path,
            log,
            is_off,
            _dir: dir,
        }
    }

    async fn view(rig: &Rig, hello: &[u8]) -> UnixStream {
        let mut stream = UnixStream::connect(&rig.path).await.unwrap();
        stream.write_all(hello).await.unwrap();
        stream
    }

    async fn hear(stream: &mut UnixStream, n: usize) -> String {
        let mut bytes = vec![0; n];
        stream.read_exact(&mut bytes).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[tokio::test]
    async fn all_clients_share_the_console_input_and_output() {
        let mut rig = rig();
        let (mut one, mut two) = (view(&rig, ATTACH).await, view(&rig, ATTACH).await);
        one.write_all(b"1").await.unwrap();
        assert_eq!(hear(&mut rig.guest, 1).await, "1");
        two.write_all(b"2").await.unwrap();
        assert_eq!(hear(&mut rig.guest, 1).await, "2");
        rig.guest.write_all(b"hello").await.unwrap();
        assert_eq!(hear(&mut one, 5).await, "hello");
        assert_eq!(hear(&mut two, 5).await, "hello");
    }

    #[tokio::test]
    async fn console_log_contains_the_output_since_the_last_boot() {
        let mut rig = rig();
        rig.guest.write_all(b"first boot").await.unwrap();
        let content = |mut stream: UnixStream| async move {
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            text
        };
        while rig.log.content().is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(content(view(&rig, LOG).await).await, "first boot");
        rig.log.clear();
        assert_eq!(content(view(&rig, LOG).await).await, "");
    }

    #[tokio::test]
    async fn power_off_request_is_acknowledged() {
        let rig = rig();
        let path = rig.path.clone();
        tokio::task::spawn_blocking(move || log(&path))
            .await
            .unwrap()
            .unwrap();
        assert!(!rig.is_off.load(Ordering::Relaxed));
        let path = rig.path.clone();
        tokio::task::spawn_blocking(move || power_off(&path))
            .await
            .unwrap()
            .unwrap();
        is_off(&rig).await;
        // A runner that accepts the request and does not answer does not support it.
        let silent = UnixListener::bind(rig.path.with_extension("silent")).unwrap();
        let path = rig.path.with_extension("silent");
        let asking = tokio::task::spawn_blocking(move || power_off(&path));
        drop(silent.accept().await.unwrap());
        assert!(asking.await.unwrap().is_err());
    }

    #[tokio::test]
    async fn power_is_switched_off_after_the_requester_disconnects() {
        let rig = rig();
        let mut asking = view(&rig, OFF).await;
        let mut answer = Vec::new();
        asking.read_to_end(&mut answer).await.unwrap();
        assert_eq!(
            (answer.as_slice(), rig.is_off.load(Ordering::Relaxed)),
            (OFF, false)
        );
        drop(asking);
        is_off(&rig).await;
    }

    async fn is_off(rig: &Rig) {
        let is_off = async {
            while !rig.is_off.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), is_off)
            .await
            .unwrap();
    }

    #[test]
    fn only_the_last_of_the_output_is_kept() {
        let (log, viewers) = (Log::default(), broadcast::channel(4).0);
        log.push(&vec![b'a'; LOG_SIZE_MAX], &viewers);
        log.push(b"the end", &viewers);
        let (content, mut next) = log.follow(&viewers);
        log.push(b".", &viewers);
        assert_eq!(next.try_recv().unwrap(), ".");
        assert_eq!(content.len(), LOG_SIZE_MAX);
        assert!(content.ends_with(b"the end"));
    }

    #[tokio::test]
    async fn a_viewer_that_does_not_read_does_not_hold_up_the_guest() {
        let mut rig = rig();
        let _sleeper = view(&rig, ATTACH).await;
        let block = vec![b'x'; 4096];
        for _ in 0..1000 {
            rig.guest.write_all(&block).await.unwrap();
        }
    }
}
