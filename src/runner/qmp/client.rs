//! (io) The QMP connection to QEMU. QEMU inherits one end of a socket pair. One task owns the other
//! end, and all users hold a [`Client`].
//!
//! Invariants: each command gets exactly one result, at its timeout at the latest. A command that
//! no caller waits for any more is not sent. The end of a connection fails all pending and later
//! commands, and never ends QEMU.

use crate::runner::qmp::codec::{Codec, Message};
use crate::runner::qmp::{Command, QmpEvent};
use futures::{SinkExt, StreamExt};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::codec::Framed;

/// Time for QEMU to answer a command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The connection has ended. QEMU may have carried out the command.
    #[error("QEMU closed its QMP connection before it answered the command {0}")]
    Lost(&'static str),
    /// QEMU did not answer in time. It may still carry out the command.
    #[error("QEMU has not answered the QMP command {0} within {limit} s; check the node and the storage of the VM for overload", limit = COMMAND_TIMEOUT.as_secs())]
    Timeout(&'static str),
    /// QEMU has rejected the command.
    #[error("QEMU rejects the QMP command {command}: {description}")]
    Rejected {
        command: &'static str,
        /// QEMU's message.
        description: String,
    },
}

/// Events of the connection.
#[derive(Debug, PartialEq, Eq)]
pub enum QmpSignal {
    /// QEMU has accepted the connection.
    Ready,
    /// The connection has ended, for that reason. It is not restored.
    Lost(String),
    /// An event of QEMU.
    Event(QmpEvent),
}

type Reply = oneshot::Sender<Result<Value, Error>>;

struct Request {
    command: Command,
    /// Is sent with the command.
    descriptor: Option<OwnedFd>,
    reply: Reply,
}

/// Sends commands to QEMU.
#[derive(Clone)]
pub struct Client(mpsc::Sender<Request>);

impl Client {
    /// Sends the command and waits for its result.
    pub async fn execute(&self, command: Command) -> Result<Value, Error> {
        self.send(command, None).await
    }

    /// Sends the command with a file descriptor, and waits for its result.
    pub async fn execute_with(
        &self,
        command: Command,
        descriptor: OwnedFd,
    ) -> Result<Value, Error> {
        self.send(command, Some(descriptor)).await
    }

    async fn send(&self, command: Command, descriptor: Option<OwnedFd>) -> Result<Value, Error> {
        let name = command.name;
        tracing::debug!(?command, "QMP command");
        let (reply, answer) = oneshot::channel();
        let exchange = async {
            self.0
                .send(Request {
                    command,
                    descriptor,
                    reply,
                })
                .await
                .map_err(|_| Error::Lost(name))?;
            answer.await.unwrap_or(Err(Error::Lost(name)))
        };
        timeout(COMMAND_TIMEOUT, exchange)
            .await
            .unwrap_or(Err(Error::Timeout(name)))
    }

    /// Sends the command and parses its result. A result of another type counts as a rejection.
    pub async fn query<T: serde::de::DeserializeOwned>(
        &self,
        command: Command,
    ) -> Result<T, Error> {
        let name = command.name;
        let value = self.execute(command).await?;
        let refused = |e: serde_json::Error| Error::Rejected {
            command: name,
            description: format!("unreadable: {e}"),
        };
        serde_json::from_value(value).map_err(refused)
    }
}

/// A client for the connection, and the task that must run for it. The task ends with the
/// connection, or when all clients are dropped.
pub fn connect(
    stream: UnixStream,
    signals: mpsc::UnboundedSender<QmpSignal>,
) -> (Client, impl Future<Output = ()>) {
    let (sender, requests) = mpsc::channel(16);
    (Client(sender), run(stream, requests, signals))
}

async fn run(
    stream: UnixStream,
    mut requests: mpsc::Receiver<Request>,
    signals: mpsc::UnboundedSender<QmpSignal>,
) {
    let lost = match open(stream).await {
        Ok(framed) => {
            let _ = signals.send(QmpSignal::Ready);
            serve(framed, &mut requests, &signals).await
        }
        Err(error) => Some(error),
    };
    if let Some(why) = lost {
        let _ = signals.send(QmpSignal::Lost(why));
    }
}

type Connection = Framed<UnixStream, Codec>;

/// Waits for QEMU's greeting. The caller has a timeout for the whole start.
async fn open(stream: UnixStream) -> Result<Connection, String> {
    let mut framed = Framed::new(stream, Codec::default());
    let closed = || "QEMU has closed its QMP connection".to_owned();
    loop {
        match framed
            .next()
            .await
            .ok_or_else(closed)?
            .map_err(|error| error.to_string())?
        {
            Message::Greeting => break,
            other => tracing::debug!(
                ?other,
                "the runner ignores a QMP message that QEMU sent before its greeting"
            ),
        }
    }
    framed
        .send(encode(0, &Command::capabilities()))
        .await
        .map_err(|error| error.to_string())?;
    loop {
        match framed
            .next()
            .await
            .ok_or_else(closed)?
            .map_err(|error| error.to_string())?
        {
            Message::Return { id: 0, .. } => return Ok(framed),
            Message::Error { description, .. } => return Err(description),
            _ => {}
        }
    }
}

fn encode(id: u64, command: &Command) -> Value {
    json!({"execute": command.name, "arguments": command.arguments, "id": id})
}

/// Sends a command with a file descriptor. QEMU takes the descriptor with the first byte.
async fn send_with(
    framed: &mut Connection,
    command: &Value,
    descriptor: &OwnedFd,
) -> io::Result<()> {
    // `send` leaves nothing in the buffer of the codec.
    let stream = framed.get_mut();
    let text = format!("{command}\n");
    let send = || {
        let descriptors = [descriptor.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let text = [IoSlice::new(text.as_bytes())];
        Ok(sendmsg(&*stream, &text, &mut control, SendFlags::NOSIGNAL)?)
    };
    let sent = stream.async_io(Interest::WRITABLE, send).await?;
    let rest = text.as_bytes().get(sent..).unwrap_or_default();
    stream.write_all(rest).await
}

/// Exchanges commands and events. Returns the reason if the connection is lost, or None if all
/// clients are dropped.
async fn serve(
    mut framed: Connection,
    requests: &mut mpsc::Receiver<Request>,
    signals: &mpsc::UnboundedSender<QmpSignal>,
) -> Option<String> {
    let mut waiting: HashMap<u64, (&'static str, Reply)> = HashMap::new();
    let mut id = 0;
    // Pending commands fail because their channels are dropped.
    let lost = loop {
        tokio::select! {
            request = requests.recv() => {
                let Request { command, descriptor, reply } = request?;
                waiting.retain(|_, (_, reply)| !reply.is_closed());
                if reply.is_closed() {
                    continue;
                }
                id += 1;
                let sent = match descriptor {
                    None => framed.send(encode(id, &command)).await.map_err(|error| error.to_string()),
                    Some(descriptor) => {
                        let sent = send_with(&mut framed, &encode(id, &command), &descriptor).await;
                        sent.map_err(|error| error.to_string())
                    }
                };
                if let Err(error) = sent {
                    break error;
                }
                waiting.insert(id, (command.name, reply));
            }
            message = framed.next() => match message {
                Some(Ok(Message::Return { id, value })) => {
                    if let Some((_, reply)) = waiting.remove(&id) {
                        let _ = reply.send(Ok(value));
                    }
                }
                Some(Ok(Message::Error { id, class, description })) => {
                    match id.and_then(|id| waiting.remove(&id)) {
                        Some((command, reply)) => {
                            let _ = reply.send(Err(Error::Rejected { command, description }));
                        }
                        None => tracing::warn!(class, description, "the runner ignores a QMP error that belongs to no pending \
                            command; the command may have timed out"),
                    }
                }
                Some(Ok(Message::Event { name, data })) => {
                    tracing::debug!(name, "QMP event");
                    if let Some(event) = QmpEvent::of(&name, &data) {
                        let _ = signals.send(QmpSignal::Event(event));
                    }
                }
                Some(Ok(Message::Greeting | Message::Other)) => {}
                Some(Err(error)) => break error.to_string(),
                None => break "QEMU has closed its QMP connection".to_owned(),
            }
        }
    };
    Some(lost)
}

#[cfg(test)]
mod tests;
