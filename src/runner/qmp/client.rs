//! (io) The connection to QEMU's monitor: one task owns it, everybody else holds a [`Client`].
//!
//! What always holds: each command gets exactly one answer, at its time limit at the latest, which says whether QEMU may
//! have carried it out; one that nobody waits for any more is not given; a lost connection fails what waits, is made again
//! while QEMU lives, and never ends QEMU.

use super::codec::{Codec, Message};
use super::{Command, Event};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::codec::Framed;

/// Time for QEMU to answer a command.
const COMMAND_TIME: Duration = Duration::from_secs(10);
/// Time for QEMU to greet on a connection made again.
const GREETING_TIME: Duration = Duration::from_secs(30);
/// Pauses between attempts to connect again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Why a command did not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no connection: QEMU was not given the command, and will not be.
    #[error("QEMU's monitor is not connected; {0} was not given")]
    NotConnected(&'static str),
    /// QEMU was given the command, and the connection was lost before its answer: it may have carried it out.
    #[error("the connection to QEMU's monitor was lost; {0} was not answered")]
    Unanswered(&'static str),
    /// QEMU was given the command, and has not answered in time: it may still carry it out.
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
    /// Commands can be given, for the first time or again.
    Ready,
    /// The connection was lost.
    Lost(String),
    /// Something has happened in QEMU.
    Event(Event),
}

type Reply = oneshot::Sender<Result<Value, Error>>;

struct Request {
    command: Command,
    reply: Reply,
    given: Arc<AtomicBool>,
}

impl Request {
    /// Whether QEMU is to be given the command. First it counts as given, then it is looked whether somebody waits; whoever
    /// gives up waiting does so the other way round.
    fn is_wanted(&self) -> bool {
        self.given.store(true, Ordering::SeqCst);
        !self.reply.is_closed()
    }
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
        let given = Arc::new(AtomicBool::new(false));
        let request = Request { command, reply, given: Arc::clone(&given) };
        let exchange = async move {
            self.0.send(request).await.map_err(|_| Error::NotConnected(name))?;
            answer.await.unwrap_or(Err(Error::NotConnected(name)))
        };
        // The exchange is over, and nobody waits for the answer, before it is looked whether the command was given.
        let result = timeout(COMMAND_TIME, exchange).await;
        result.unwrap_or_else(|_| {
            Err(if given.load(Ordering::SeqCst) { Error::Timeout(name) } else { Error::NotConnected(name) })
        })
    }

    /// Gives the command; an answer of the wrong shape is an error.
    pub async fn query<T: serde::de::DeserializeOwned>(&self, command: Command) -> Result<T, Error> {
        let name = command.name;
        let value = self.execute(command).await?;
        let refused = |e: serde_json::Error| Error::Refused { command: name, description: format!("unreadable: {e}") };
        serde_json::from_value(value).map_err(refused)
    }
}

/// The client for the monitor at that path, and the task that must run for it. The task ends when all clients are gone.
pub fn connect(path: PathBuf, signals: mpsc::UnboundedSender<Signal>) -> (Client, impl Future<Output = ()>) {
    let (sender, requests) = mpsc::channel(16);
    (Client(sender), run(path, requests, signals))
}

async fn run(path: PathBuf, mut requests: mpsc::Receiver<Request>, signals: mpsc::UnboundedSender<Signal>) {
    // The first greeting has no time limit here: who starts QEMU has one.
    let mut connection = open(&path).await;
    let mut pause = BACKOFF.0;
    loop {
        let lost = match connection {
            Ok(framed) => {
                let _ = signals.send(Signal::Ready);
                pause = BACKOFF.0;
                match serve(framed, &mut requests, &signals).await {
                    Some(error) => error,
                    None => return,
                }
            }
            Err(error) => error,
        };
        let _ = signals.send(Signal::Lost(lost));
        connection = loop {
            if refuse_during(pause, &mut requests).await.is_err() {
                return;
            }
            pause = (pause * 2).min(BACKOFF.1);
            match timeout(GREETING_TIME, open(&path)).await {
                Ok(Ok(framed)) => break Ok(framed),
                Ok(Err(error)) => tracing::debug!(error, "monitor"),
                Err(_) => tracing::warn!("QEMU's monitor accepts connections, but does not greet"),
            }
        };
    }
}

/// Waits, answering what comes meanwhile; fails when nobody can come any more.
async fn refuse_during(pause: Duration, requests: &mut mpsc::Receiver<Request>) -> Result<(), ()> {
    let pause = sleep(pause);
    tokio::pin!(pause);
    loop {
        tokio::select! {
            () = &mut pause => return Ok(()),
            request = requests.recv() => match request {
                Some(Request { command, reply, .. }) => {
                    let _ = reply.send(Err(Error::NotConnected(command.name)));
                }
                None => return Err(()),
            }
        }
    }
}

type Connection = Framed<UnixStream, Codec>;

async fn open(path: &Path) -> Result<Connection, String> {
    let stream = UnixStream::connect(path).await.map_err(|error| format!("{}: {error}", path.display()))?;
    let mut framed = Framed::new(stream, Codec::default());
    let closed = || "QEMU has closed its monitor".to_owned();
    loop {
        match framed.next().await.ok_or_else(closed)?.map_err(|error| error.to_string())? {
            Message::Greeting => break,
            other => tracing::debug!(?other, "before the monitor's greeting"),
        }
    }
    framed.send(encode(0, &Command::capabilities())).await.map_err(|error| error.to_string())?;
    loop {
        match framed.next().await.ok_or_else(closed)?.map_err(|error| error.to_string())? {
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
    let lost = loop {
        tokio::select! {
            request = requests.recv() => {
                let request = request?;
                waiting.retain(|_, (_, reply)| !reply.is_closed());
                if !request.is_wanted() {
                    continue;
                }
                let Request { command, reply, .. } = request;
                id += 1;
                if let Err(error) = framed.send(encode(id, &command)).await {
                    let _ = reply.send(Err(Error::NotConnected(command.name)));
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
    for (_, (command, reply)) in waiting {
        let _ = reply.send(Err(Error::Unanswered(command)));
    }
    Some(lost)
}

#[cfg(test)]
mod tests;
