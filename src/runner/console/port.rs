//! (io) The port for the web console: the functions of a viewer, by TLS and WebSocket.
//!
//! The port is open as long as the configuration directory has keys of web consoles. Only they can connect. One user at a time has
//! the screen.

use crate::api::runner::viewer::{Answer, Function, REQUEST_MAX, Request, SILENCE_MAX_SECONDS};
use crate::k8s::client::connect;
use crate::pinned_tls::{Accepted, KeyPair, PublicKey, acceptor};
use crate::runner::console::{ConsoleServer, Functions};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use std::io;
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::tungstenite::{self, Message, protocol::WebSocketConfig};
use tokio_tungstenite::{WebSocketStream, accept_async_with_config};
use tokio_util::bytes::{Bytes, BytesMut};

/// Time from the connection to the request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections without a request at the same time. Further ones wait.
const UNKNOWN_MAX: usize = 16;
/// Time for the last message.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time without a message of the console.
const SILENCE_MAX: Duration = Duration::from_secs(SILENCE_MAX_SECONDS);
/// Maximum size of a message of the console. Clients of VNC send keys, movements and the content of a clipboard.
const MESSAGE_MAX: usize = 1 << 20;
/// Size of the buffer for data of QEMU.
const BUFFER_SIZE: usize = 64 << 10;
/// Time after a failed accept.
const ACCEPT_DELAY: Duration = Duration::from_secs(1);

type Socket = WebSocketStream<Accepted<TcpStream>>;

/// The port and its keys.
pub struct Port {
    pub number: u16,
    /// The runner's own key.
    pub key: KeyPair,
    /// Keys of the consoles that may connect. Without keys, the port is closed.
    pub peers: watch::Receiver<Vec<PublicKey>>,
}

/// Serves until the process exits. After a change of the keys, all consoles must connect again.
pub async fn serve(mut port: Port, console: ConsoleServer) {
    let screen = Arc::new(Screen::default());
    loop {
        let peers = port.peers.borrow_and_update().clone();
        let serving = async {
            if peers.is_empty() {
                return std::future::pending().await;
            }
            accept(port.number, &port.key, peers, &screen, &console).await
        };
        tokio::select! {
            Err(error) = serving => {
                tracing::warn!(port = port.number, %error, "the web console cannot show the screen of the VM, because the \
                    runner cannot listen on the port; set spec.consolePort to a free port");
                if port.peers.changed().await.is_err() {
                    return;
                }
            }
            changed = port.peers.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

/// Serves consoles with these keys. Dropping it ends all connections.
async fn accept(
    port: u16,
    key: &KeyPair,
    peers: Vec<PublicKey>,
    screen: &Arc<Screen>,
    console: &ConsoleServer,
) -> io::Result<()> {
    let tls = acceptor(key, peers).map_err(io::Error::other)?;
    let listener: TcpListener = connect::listen((Ipv6Addr::UNSPECIFIED, port).into()).await?;
    tracing::info!(port, "the web console can connect");
    let unknown = Arc::new(Semaphore::new(UNKNOWN_MAX));
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(&unknown).acquire_owned().await else {
            return Ok(());
        };
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "the runner cannot accept a connection of the web console, and retries after 1 s");
                    tokio::time::sleep(ACCEPT_DELAY).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
        };
        let (tls, screen, console) = (tls.clone(), screen.clone(), console.clone());
        connections.spawn(async move {
            let request = timeout(REQUEST_TIMEOUT, receive_request(&tls, stream)).await;
            drop(permit);
            match request {
                Ok(Ok((socket, request))) => answer(socket, request, &screen, &console).await,
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a connection to the port of the console has failed")
                }
                Err(_) => tracing::debug!(
                    "a client of the port of the console has sent no request in time"
                ),
            }
        });
    }
}

/// The connection of a console, and its request. None for a request that this runner does not know.
async fn receive_request(
    tls: &TlsAcceptor,
    stream: TcpStream,
) -> Result<(Socket, Option<Request>), tungstenite::Error> {
    // Keys and movements are small, and wait for no others.
    stream.set_nodelay(true)?;
    let stream = tls.accept(stream).await?;
    let limits = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_MAX))
        .max_frame_size(Some(MESSAGE_MAX));
    let mut socket = accept_async_with_config(stream, Some(limits)).await?;
    let first = socket.next().await;
    let text = match first.ok_or(tungstenite::Error::ConnectionClosed)?? {
        Message::Text(text) if text.len() <= REQUEST_MAX => text,
        _ => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
    };
    Ok((socket, serde_json::from_str(&text).ok()))
}

/// Carries out the request, and closes the connection with the last answer.
async fn answer(
    mut socket: Socket,
    request: Option<Request>,
    screen: &Arc<Screen>,
    console: &ConsoleServer,
) {
    let answer = match request {
        Some(request) => {
            let (user, client, function) = (&request.user, &request.client, request.open);
            tracing::info!(
                user,
                client,
                ?function,
                "a user connects by the web console"
            );
            let end = open(&mut socket, &request, screen, console).await;
            tracing::info!(
                user,
                client,
                ?function,
                ?end,
                "the connection of the user has ended"
            );
            end
        }
        None => Some(Answer::Unsupported),
    };
    let close = async {
        if let Some(answer) = answer {
            socket.send(text(&answer)).await?;
        }
        socket.close(None).await?;
        while let Some(Ok(_)) = socket.next().await {}
        Ok::<_, tungstenite::Error>(())
    };
    drop(timeout(END_TIMEOUT, close).await);
}

/// Returns the last answer, or none if the console has ended the connection.
async fn open(
    socket: &mut Socket,
    request: &Request,
    screen: &Arc<Screen>,
    console: &ConsoleServer,
) -> Option<Answer> {
    match request.open {
        Function::Screen => match screen.enter(request) {
            Ok(viewer) => relay_screen(socket, viewer, &*console.functions).await,
            Err(answer) => Some(answer),
        },
        Function::Serial => relay_serial(socket, console).await,
        Function::Display => Some(console.functions.open_display(request.valid_seconds).await),
    }
}

fn text(answer: &Answer) -> Message {
    // Texts can always be serialized.
    Message::text(serde_json::to_string(answer).unwrap_or_default())
}

/// Connects the console with QEMU. Returns the reason of the end, or none if the console has ended the connection.
async fn relay_screen(
    socket: &mut Socket,
    mut viewer: Viewer,
    functions: &dyn Functions,
) -> Option<Answer> {
    let (own, of_qemu) = UnixStream::pair().ok()?;
    let of_qemu = of_qemu.into_std().ok()?;
    socket.send(text(&Answer::Connected)).await.ok()?;
    functions.show_screen(of_qemu.into());
    let (from_qemu, to_qemu) = own.into_split();
    let (to_console, from_console) = socket.split();
    tokio::select! {
        () = send_input(from_console, to_qemu) => None,
        end = send_screen(from_qemu, to_console) => end,
        end = &mut viewer.ended => end.ok(),
    }
}

/// Sends what the user does to QEMU, until the console has ended the connection.
async fn send_input(mut console: SplitStream<&mut Socket>, mut qemu: OwnedWriteHalf) {
    while let Ok(Some(Ok(message))) = timeout(SILENCE_MAX, console.next()).await {
        match message {
            Message::Binary(bytes) => {
                // The end of QEMU's socket is noticed where it is read.
                let _ = qemu.write_all(&bytes).await;
            }
            Message::Close(_) => return,
            _ => {}
        }
    }
}

/// Sends the screen to the console, until QEMU or the console has ended the connection.
async fn send_screen(
    mut qemu: OwnedReadHalf,
    mut console: SplitSink<&mut Socket, Message>,
) -> Option<Answer> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(BUFFER_SIZE);
        match qemu.read_buf(&mut buffer).await {
            Ok(1..) => console
                .send(Message::Binary(buffer.split().freeze()))
                .await
                .ok()?,
            _ => return Some(Answer::Ended),
        }
    }
}

/// Connects the console with the serial line. Several consoles can be connected at once.
async fn relay_serial(socket: &mut Socket, console: &ConsoleServer) -> Option<Answer> {
    let (log, output) = console.log.follow(&console.output);
    socket.send(text(&Answer::Connected)).await.ok()?;
    socket.send(Message::Binary(log.into())).await.ok()?;
    let (to_console, from_console) = socket.split();
    tokio::select! {
        () = type_input(from_console, &console.input) => None,
        () = send_output(output, to_console) => None,
        () = console.ended.cancelled() => Some(Answer::Ended),
    }
}

/// Sends what the user types to the guest, until the console has ended the connection.
async fn type_input(mut console: SplitStream<&mut Socket>, guest: &mpsc::Sender<Bytes>) {
    while let Ok(Some(Ok(message))) = timeout(SILENCE_MAX, console.next()).await {
        match message {
            Message::Binary(bytes) => drop(guest.send(bytes).await),
            Message::Close(_) => return,
            _ => {}
        }
    }
}

/// Sends the guest's output, until the console has ended the connection. A console that reads too slowly loses output.
async fn send_output(
    mut guest: broadcast::Receiver<Bytes>,
    mut console: SplitSink<&mut Socket, Message>,
) {
    loop {
        match guest.recv().await {
            Ok(bytes) => {
                if console.send(Message::Binary(bytes)).await.is_err() {
                    return;
                }
            }
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// The user who has the screen.
#[derive(Default)]
struct Screen(Mutex<State>);

#[derive(Default)]
struct State {
    /// Number of the newest viewer.
    newest: u64,
    present: Option<Present>,
}

struct Present {
    number: u64,
    user: String,
    end: oneshot::Sender<Answer>,
}

/// A viewer that has the screen. Dropping it leaves the screen to others.
struct Viewer {
    number: u64,
    screen: Arc<Screen>,
    /// The reason to give the screen to another viewer.
    ended: oneshot::Receiver<Answer>,
}

impl Screen {
    /// Gives the screen to a user, and takes it from the previous viewer.
    ///
    /// # Errors
    /// Another user has it, and the request does not take it over.
    fn enter(self: &Arc<Self>, request: &Request) -> Result<Viewer, Answer> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let previous = state.present.take();
        if let Some(previous) = previous {
            let is_same = previous.user == request.user;
            if !is_same && !request.take_over {
                let user = previous.user.clone();
                state.present = Some(previous);
                return Err(Answer::InUse { user });
            }
            let reason = if is_same {
                Answer::Replaced
            } else {
                let user = request.user.clone();
                Answer::TakenOver { user }
            };
            let _ = previous.end.send(reason);
        }
        state.newest += 1;
        let (number, user) = (state.newest, request.user.clone());
        let (end, ended) = oneshot::channel();
        state.present = Some(Present { number, user, end });
        Ok(Viewer {
            number,
            screen: self.clone(),
            ended,
        })
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let state = &self.screen.0;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state
            .present
            .take_if(|present| present.number == self.number);
    }
}
