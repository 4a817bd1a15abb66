//! (io) The port for the web console: the functions of a viewer, by TLS and WebSocket.
//!
//! The port is open as long as the configuration directory has keys of web consoles. Only they can connect. One user at a time has
//! the screen.

use crate::api::runner::viewer::{Answer, Function, REQUEST_MAX, Request, SILENCE_MAX_SECONDS};
use crate::api::vm::{ConsoleConnection, ConsoleProtocol};
use crate::k8s::client::connect;
use crate::pinned_tls::{Accepted, KeyPair, PublicKey, acceptor};
use crate::runner::console::{Assignment, ConsoleServer, Functions};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::tungstenite::{self, Message, protocol::WebSocketConfig};
use tokio_tungstenite::{WebSocketStream, accept_async_with_config};
use tokio_util::bytes::{Bytes, BytesMut};

/// Time from the connection to the request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections without a request at the same time. A further one ends the oldest.
const UNKNOWN_MAX: usize = 16;
/// Time for the last messages, behind a slow browser.
const END_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after a failed attempt to listen on the port.
const LISTEN_RETRY_DELAY: Duration = Duration::from_secs(30);
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
    /// UID of the pod. None outside of pods.
    pub pod: Option<String>,
    /// The runner's own key.
    pub key: KeyPair,
    /// Keys of the consoles that may connect. Without keys, the port is closed.
    pub peers: watch::Receiver<Vec<PublicKey>>,
    /// The assignment by which a user has the VM.
    pub assignment: watch::Receiver<Assignment>,
}

/// Serves until the process exits. After a change of the keys, all consoles must connect again.
pub async fn serve(mut port: Port, console: ConsoleServer) {
    let users = Users::new(port.assignment.clone());
    loop {
        let peers = port.peers.borrow_and_update().clone();
        let serving = async {
            if peers.is_empty() {
                return std::future::pending().await;
            }
            let Err(error) = accept(&port, peers, &users, &console).await;
            tracing::warn!(port = port.number, %error, "the web console cannot show the screen of the VM, because the runner \
                cannot listen on the port, and it retries; set spec.consolePort to a free port");
            tokio::time::sleep(LISTEN_RETRY_DELAY).await;
        };
        let mut peers = port.peers.clone();
        tokio::select! {
            () = serving => {}
            changed = peers.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

/// Serves consoles with these keys. Dropping it ends all connections.
async fn accept(
    port: &Port,
    peers: Vec<PublicKey>,
    users: &Users,
    console: &ConsoleServer,
) -> io::Result<Infallible> {
    let tls = acceptor(&port.key, peers).map_err(io::Error::other)?;
    let address = (Ipv6Addr::UNSPECIFIED, port.number).into();
    let listener: TcpListener = connect::listen(address).await?;
    tracing::info!(port = port.number, "the web console can connect");
    let (mut unknown, mut connections) = (JoinSet::new(), JoinSet::new());
    let mut handles: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    handles.retain(|handle| !handle.is_finished());
                    if handles.len() >= UNKNOWN_MAX && let Some(oldest) = handles.pop_front() {
                        oldest.abort();
                    }
                    let (tls, pod) = (tls.clone(), port.pod.clone());
                    let request = async move {
                        timeout(REQUEST_TIMEOUT, receive_request(&tls, pod.as_deref(), stream)).await
                    };
                    handles.push_back(unknown.spawn(request));
                }
                Err(error) => {
                    tracing::warn!(%error, "the runner cannot accept a connection of the web console, and retries after 1 s");
                    tokio::time::sleep(ACCEPT_DELAY).await;
                }
            },
            Some(received) = unknown.join_next() => match received {
                Ok(Ok(Ok((socket, request)))) => {
                    let (users, console) = (users.clone(), console.clone());
                    connections.spawn(async move { answer(socket, request, &users, &console).await });
                }
                Ok(Ok(Err(error))) => {
                    tracing::debug!(%error, "a connection to the port of the console has failed");
                }
                Ok(Err(_)) | Err(_) => {
                    tracing::debug!("a client of the port of the console has sent no request in time");
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// The connection of a console, and its request. None for a request that this runner does not know.
async fn receive_request(
    tls: &TlsAcceptor,
    pod: Option<&str>,
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
    let request: Option<Request> = serde_json::from_str(&text).ok();
    let is_for = |request: &Request| pod.is_none_or(|pod| pod == request.pod);
    if !request.as_ref().is_none_or(is_for) {
        return Err(io::Error::other("the request is for another pod").into());
    }
    Ok((socket, request))
}

/// Carries out the request, and closes the connection with the last answer.
async fn answer(
    mut socket: Socket,
    request: Option<Request>,
    users: &Users,
    console: &ConsoleServer,
) {
    let answer = match request {
        Some(request) => {
            let (user, client) = (&request.user, &request.client);
            let function: &'static str = request.open.into();
            tracing::info!(user, client, function, "a user connects by the web console");
            let end = open(&mut socket, &request, users, console).await;
            let reason = end.as_ref().map(<&'static str>::from);
            tracing::info!(
                user,
                client,
                function,
                reason,
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
    users: &Users,
    console: &ConsoleServer,
) -> Option<Answer> {
    let connected = |protocol| Connected::new(&users.connected, request, protocol, console);
    let mut assignment = users.assignment.clone();
    let own = request.assignment.as_deref();
    if assignment.borrow_and_update().has_ended(own) {
        return Some(Answer::Ended);
    }
    let reassigned = async {
        while assignment.changed().await.is_ok() {
            if assignment.borrow_and_update().excludes(own) {
                return;
            }
        }
        std::future::pending().await
    };
    match request.open {
        Function::Screen => match users.take_screen(request) {
            Ok(taken) => {
                let _connected = connected(ConsoleProtocol::Screen);
                tokio::select! {
                    end = relay_screen(socket, taken, &*console.functions) => end,
                    () = reassigned => Some(Answer::Ended),
                }
            }
            Err(answer) => Some(answer),
        },
        Function::Serial => {
            let _connected = connected(ConsoleProtocol::Serial);
            tokio::select! {
                end = relay_serial(socket, console) => end,
                () = reassigned => Some(Answer::Ended),
            }
        }
        Function::Display => Some(console.functions.open_display(request).await),
        Function::Disconnect => Some(console.functions.disconnect(&request.user)),
    }
}

fn text(answer: &Answer) -> Message {
    // Texts can always be serialized.
    Message::text(serde_json::to_string(answer).unwrap_or_default())
}

/// Connects the console with QEMU. Returns the reason of the end, or none if the console has ended the connection.
async fn relay_screen(
    socket: &mut Socket,
    taken: oneshot::Receiver<Answer>,
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
        end = taken => end.ok(),
    }
}

/// The next input of the user. None after the console has ended the connection.
async fn next_input(console: &mut SplitStream<&mut Socket>) -> Option<Bytes> {
    loop {
        match timeout(SILENCE_MAX, console.next()).await.ok()??.ok()? {
            Message::Binary(bytes) => return Some(bytes),
            Message::Close(_) => return None,
            _ => {}
        }
    }
}

/// Sends what the user does to QEMU, until the console has ended the connection.
async fn send_input(mut console: SplitStream<&mut Socket>, mut qemu: OwnedWriteHalf) {
    while let Some(bytes) = next_input(&mut console).await {
        // The end of QEMU's socket is noticed where it is read.
        let _ = qemu.write_all(&bytes).await;
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
    while let Some(bytes) = next_input(&mut console).await {
        drop(guest.send(bytes).await);
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

/// The connected users, the newest first.
type Connections = Arc<Mutex<Vec<(u64, ConsoleConnection)>>>;

/// A connection that is reported. Dropping it ends that.
struct Connected<'a> {
    number: u64,
    connections: &'a Connections,
    console: &'a ConsoleServer,
}

impl<'a> Connected<'a> {
    fn new(
        connections: &'a Connections,
        request: &Request,
        protocol: ConsoleProtocol,
        console: &'a ConsoleServer,
    ) -> Self {
        let connection = ConsoleConnection {
            user: request.user.clone(),
            client: request.client.clone(),
            protocol,
            since: Time(Timestamp::now()),
        };
        let mut all = connections.lock().unwrap_or_else(PoisonError::into_inner);
        let number = all.first().map_or(0, |(newest, _)| newest + 1);
        all.insert(0, (number, connection));
        report(&all, console);
        Self {
            number,
            connections,
            console,
        }
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        let all = self.connections.lock();
        let mut all = all.unwrap_or_else(PoisonError::into_inner);
        all.retain(|(number, _)| *number != self.number);
        report(&all, self.console);
    }
}

fn report(all: &[(u64, ConsoleConnection)], console: &ConsoleServer) {
    let all = all.iter().map(|(_, connection)| connection.clone());
    console.functions.report(all.collect());
}

/// The users of the VM's consoles.
#[derive(Clone)]
struct Users {
    connected: Connections,
    screen: Arc<Mutex<Option<Holder>>>,
    assignment: watch::Receiver<Assignment>,
}

/// The user who has the screen, and the way to take it from this user.
type Holder = (String, oneshot::Sender<Answer>);

impl Users {
    fn new(assignment: watch::Receiver<Assignment>) -> Self {
        Self {
            connected: Connections::default(),
            screen: Arc::default(),
            assignment,
        }
    }

    /// Gives the screen to a user, and takes it from the previous one. The reason is received when another user takes it. Dropping the
    /// receiver leaves the screen to others.
    ///
    /// # Errors
    /// Another user has it, and the request does not take it over.
    fn take_screen(&self, request: &Request) -> Result<oneshot::Receiver<Answer>, Answer> {
        let mut present = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        let user = request.user.clone();
        if let Some((previous, end)) = present
            .take_if(|(previous, end)| end.is_closed() || *previous == user || request.take_over)
        {
            let reason = if previous == user {
                Answer::Replaced
            } else {
                Answer::TakenOver { user: user.clone() }
            };
            let _ = end.send(reason);
        }
        if let Some((user, _)) = &*present {
            return Err(Answer::InUse { user: user.clone() });
        }
        let (end, ended) = oneshot::channel();
        *present = Some((user, end));
        Ok(ended)
    }
}
