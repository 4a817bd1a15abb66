//! (io) The connection to QEMU's monitor, a pair of sockets of which QEMU inherits one: one task owns ours, everybody else holds a
//! [`Client`].
//!
//! What always holds: each command gets exactly one answer, at its time limit at the latest; one that nobody waits for any more
//! is not given; a connection that has ended fails what waits and what comes, and never ends QEMU.

use crate::runner::qmp::codec::{Codec, Message};
use crate::runner::qmp::{Command, Event};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::codec::Framed;

/// Time for QEMU to answer a command.
const COMMAND_TIME: Duration = Duration::from_secs(10);

/// Why a command did not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The connection has ended. If QEMU was given the command, it may have carried it out.
    #[error("the connection to QEMU's monitor has ended; {0} was not answered")]
    Lost(&'static str),
    /// QEMU has not answered in time: it may still carry the command out.
    #[error("QEMU has not answered {0} within {limit} s", limit = COMMAND_TIME.as_secs())]
    Timeout(&'static str),
    /// QEMU has refused.
    #[error("QEMU refuses {command}: {description}")]
    Refused {
        /// The command.
        command: &'static str,
        /// What QEMU says about it.
        description: String,
    },
}

/// What the connection tells its owner.
#[derive(Debug, PartialEq, Eq)]
pub enum Signal {
    /// QEMU has answered for the first time.
    Ready,
    /// The connection has ended, for good.
    Lost(String),
    /// Something has happened in QEMU.
    Event(Event),
}

type Reply = oneshot::Sender<Result<Value, Error>>;

struct Request {
    command: Command,
    reply: Reply,
}

/// Gives commands to QEMU.
#[derive(Clone)]
pub struct Client(mpsc::Sender<Request>);

impl Client {
    /// Gives the command and waits for its answer.
    pub async fn execute(&self, command: Command) -> Result<Value, Error> {
        let name = command.name;
        tracing::debug!(?command, "monitor");
        let (reply, answer) = oneshot::channel();
        let exchange = async {
            self.0
                .send(Request { command, reply })
                .await
                .map_err(|_| Error::Lost(name))?;
            answer.await.unwrap_or(Err(Error::Lost(name)))
        };
        timeout(COMMAND_TIME, exchange)
            .await
            .unwrap_or(Err(Error::Timeout(name)))
    }

    /// Gives the command; an answer of the wrong shape is an error.
    pub async fn query<T: serde::de::DeserializeOwned>(
        &self,
        command: Command,
    ) -> Result<T, Error> {
        let name = command.name;
        let value = self.execute(command).await?;
        let refused = |e: serde_json::Error| Error::Refused {
            command: name,
            description: format!("unreadable: {e}"),
        };
        serde_json::from_value(value).map_err(refused)
    }
}

/// The client for the monitor at the other end, and the task that must run for it. The task ends with the connection, or when all
/// clients are gone.
pub fn connect(
    stream: UnixStream,
    signals: mpsc::UnboundedSender<Signal>,
) -> (Client, impl Future<Output = ()>) {
    let (sender, requests) = mpsc::channel(16);
    (Client(sender), run(stream, requests, signals))
}

async fn run(
    stream: UnixStream,
    mut requests: mpsc::Receiver<Request>,
    signals: mpsc::UnboundedSender<Signal>,
) {
    let lost = match open(stream).await {
        Ok(framed) => {
            let _ = signals.send(Signal::Ready);
            serve(framed, &mut requests, &signals).await
        }
        Err(error) => Some(error),
    };
    if let Some(why) = lost {
        let _ = signals.send(Signal::Lost(why));
    }
}

type Connection = Framed<UnixStream, Codec>;

/// Waits for QEMU's greeting, without a time limit: who starts QEMU has one.
async fn open(stream: UnixStream) -> Result<Connection, String> {
    let mut framed = Framed::new(stream, Codec::default());
    let closed = || "QEMU has closed its monitor".to_owned();
    loop {
        match framed
            .next()
            .await
            .ok_or_else(closed)?
            .map_err(|error| error.to_string())?
        {
            Message::Greeting => break,
            other => tracing::debug!(?other, "before the monitor's greeting"),
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

/// Commands and events of one connection: until it is lost (why), or nobody needs it any more (nothing).
async fn serve(
    mut framed: Connection,
    requests: &mut mpsc::Receiver<Request>,
    signals: &mpsc::UnboundedSender<Signal>,
) -> Option<String> {
    let mut waiting: HashMap<u64, (&'static str, Reply)> = HashMap::new();
    let mut id = 0;
    // Those that wait when this ends are told by their channels.
    let lost = loop {
        tokio::select! {
            request = requests.recv() => {
                let Request { command, reply } = request?;
                waiting.retain(|_, (_, reply)| !reply.is_closed());
                if reply.is_closed() {
                    continue;
                }
                id += 1;
                if let Err(error) = framed.send(encode(id, &command)).await {
                    break error.to_string();
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
                            let _ = reply.send(Err(Error::Refused { command, description }));
                        }
                        None => tracing::warn!(class, description, "QEMU's monitor"),
                    }
                }
                Some(Ok(Message::Event { name, data })) => {
                    tracing::debug!(name, "event of QEMU");
                    if let Some(event) = Event::of(&name, &data) {
                        let _ = signals.send(Signal::Event(event));
                    }
                }
                Some(Ok(Message::Greeting | Message::Other)) => {}
                Some(Err(error)) => break error.to_string(),
                None => break "QEMU has closed its monitor".to_owned(),
            }
        }
    };
    Some(lost)
}

#[cfg(test)]
mod tests;
