//! (io) Client of the QEMU guest agent: JSON lines over a virtio-serial channel.
//!
//! Invariants: each exchange starts with a synchronization that the agent must answer, so a late
//! reply is never taken for another one. Each wait has a timeout.

use crate::api::report::is_usable;
use crate::runner::agent::{LineBuffer, TooLong};
use serde_json::{Map, Value, json};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{Mutex, watch};
use tokio::time::{sleep, timeout};

/// Time for the agent to answer a synchronization, and then a command.
const AGENT_REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the agent to reject a shutdown. An agent that shuts the guest down sends no reply.
const SHUTDOWN_ERROR_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay between two address queries. It starts short because networks come up after the agent, and
/// doubles up to the maximum.
const ADDRESS_POLL_INTERVAL_MIN: Duration = Duration::from_secs(2);
const ADDRESS_POLL_INTERVAL_MAX: Duration = Duration::from_secs(60);
/// Delay between two queries for the guest's CPUs. It starts again with the minimum when the number of present CPUs changes.
const CPU_POLL_INTERVAL_MIN: Duration = Duration::from_secs(2);
const CPU_POLL_INTERVAL_MAX: Duration = Duration::from_secs(60);
/// Size of a reply in bytes.
pub(super) const LINE_SIZE_MAX: usize = 256 << 10;
/// Limits for the parts of a guest's reply that are stored: entries of a list, and bytes of a text.
const LIST_ENTRIES_MAX: usize = 16;
const TEXT_SIZE_MAX: usize = 256;
/// Byte that discards a partial message, in both directions.
const DELIMITER: u8 = 0xFF;

/// Client of one guest agent. The connection stays open. Without one, QEMU reports the channel as
/// closed to the agent.
#[derive(Clone)]
pub struct GuestAgent {
    path: PathBuf,
    connection: Arc<Mutex<Option<Connection>>>,
}

struct Connection {
    stream: UnixStream,
    lines: LineBuffer,
    sync_id: u64,
}

impl GuestAgent {
    /// A client for the socket at that path. It does not connect yet.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            connection: Arc::default(),
        }
    }

    /// Connects, unless there is a connection.
    pub async fn connect(&self) -> io::Result<()> {
        let mut connection = self.connection.lock().await;
        if connection.is_none() {
            let stream = UnixStream::connect(&self.path).await?;
            *connection = Some(Connection {
                stream,
                lines: LineBuffer::new(LINE_SIZE_MAX),
                sync_id: 0,
            });
        }
        Ok(())
    }

    /// The guest's operating system.
    pub async fn osinfo(&self) -> io::Result<Map<String, Value>> {
        let reply = self
            .exchange("guest-get-osinfo", &json!({}), AGENT_REPLY_TIMEOUT)
            .await?;
        match reply {
            Some(Value::Object(osinfo)) => Ok(short_osinfo(osinfo)),
            _ => Err(io::Error::from(io::ErrorKind::TimedOut)),
        }
    }

    pub async fn addresses(&self) -> io::Result<Vec<String>> {
        let reply = self
            .exchange(
                "guest-network-get-interfaces",
                &json!({}),
                AGENT_REPLY_TIMEOUT,
            )
            .await?;
        reply
            .map(|interfaces| usable_addresses(&interfaces))
            .ok_or_else(|| io::ErrorKind::TimedOut.into())
    }

    /// The number of CPUs that the guest uses.
    async fn online_cpus(&self) -> io::Result<u32> {
        let reply = self
            .exchange("guest-get-vcpus", &json!({}), AGENT_REPLY_TIMEOUT)
            .await?;
        reply
            .and_then(|cpus| online_cpus(&cpus))
            .ok_or_else(|| io::ErrorKind::TimedOut.into())
    }

    /// Reports the number of CPUs that the guest uses: after a delay when the number of present CPUs changes, because the guest needs
    /// time to use them, and each later change. Returns if the agent does not support the query.
    pub async fn follow_cpus(&self, mut present: watch::Receiver<u32>, tell: impl Fn(u32)) {
        let (mut known, mut pause) = (None, CPU_POLL_INTERVAL_MIN);
        loop {
            tokio::select! {
                () = sleep(pause) => pause = (pause * 2).min(CPU_POLL_INTERVAL_MAX),
                changed = present.changed() => match changed {
                    Ok(()) => {
                        (known, pause) = (None, CPU_POLL_INTERVAL_MIN);
                        continue;
                    }
                    Err(_) => return,
                }
            }
            match self.online_cpus().await {
                Ok(online) if known != Some(online) => {
                    known = Some(online);
                    tell(online);
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Other => {
                    return tracing::debug!(%error, "the guest agent rejects the query of the guest's CPUs, so the runner stops the query. Update qemu-guest-agent in the guest, or allow the command guest-get-vcpus");
                }
                Err(error) => {
                    tracing::debug!(%error, "the guest agent has not reported the guest's CPUs; the runner repeats the query")
                }
            }
        }
    }

    /// Reports the guest's addresses and each change. The agent sends no event for a change, so
    /// this polls. Returns if the agent does not support the query.
    pub async fn follow_addresses(&self, tell: impl Fn(Vec<String>)) {
        let (mut known, mut pause) = (Vec::new(), ADDRESS_POLL_INTERVAL_MIN);
        loop {
            match self.addresses().await {
                Ok(addresses) if addresses != known => {
                    known.clone_from(&addresses);
                    tell(addresses);
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Other => {
                    return tracing::debug!(%error, "the guest agent rejects the query of the guest's IP addresses, so the runner stops the query. Update qemu-guest-agent in the guest, or allow the command guest-network-get-interfaces");
                }
                // The guest is busy or boots.
                Err(error) => {
                    tracing::debug!(%error, "the guest agent has not reported the guest's IP addresses; the runner repeats the query")
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(ADDRESS_POLL_INTERVAL_MAX);
        }
    }

    /// Requests a shutdown. An agent that carries it out sends no reply.
    pub async fn shutdown(&self) -> io::Result<()> {
        match self
            .exchange(
                "guest-shutdown",
                &json!({"mode": "powerdown"}),
                SHUTDOWN_ERROR_TIMEOUT,
            )
            .await
        {
            // A guest that is off has closed the channel.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            result => result.map(|_| ()),
        }
    }

    async fn exchange(
        &self,
        command: &str,
        arguments: &Value,
        time: Duration,
    ) -> io::Result<Option<Value>> {
        self.connect().await?;
        let mut guard = self.connection.lock().await;
        let Some(connection) = guard.as_mut() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let result = connection.exchange(command, arguments, time).await;
        // After a timeout, the synchronization of the next exchange skips the late reply. After any
        // other error, the next exchange connects again.
        if result
            .as_ref()
            .is_err_and(|error| error.kind() != io::ErrorKind::TimedOut)
        {
            *guard = None;
        }
        result
    }
}

impl Connection {
    async fn exchange(
        &mut self,
        command: &str,
        arguments: &Value,
        time: Duration,
    ) -> io::Result<Option<Value>> {
        timeout(AGENT_REPLY_TIMEOUT, self.synchronize()).await??;
        self.send(&json!({"execute": command, "arguments": arguments}), false)
            .await?;
        let Ok(reply) = timeout(time, self.read_line()).await else {
            return Ok(None);
        };
        let reply: Value = serde_json::from_slice(&reply?)?;
        match reply.get("error") {
            Some(error) => Err(io::Error::other(format!(
                "the guest agent rejects {command}: {error}"
            ))),
            None => Ok(reply.get("return").cloned()),
        }
    }

    async fn synchronize(&mut self) -> io::Result<()> {
        self.sync_id += 1;
        self.lines.clear();
        let sync_id = json!(self.sync_id);
        self.send(
            &json!({"execute": "guest-sync-delimited", "arguments": {"id": sync_id}}),
            true,
        )
        .await?;
        while !is_sync_reply(&self.read_line().await?, &sync_id) {}
        Ok(())
    }

    async fn send(&mut self, message: &Value, delimited: bool) -> io::Result<()> {
        let mut bytes = if delimited {
            vec![DELIMITER]
        } else {
            Vec::new()
        };
        bytes.extend(message.to_string().bytes());
        bytes.push(b'\n');
        timeout(AGENT_REPLY_TIMEOUT, self.stream.write_all(&bytes)).await?
    }

    async fn read_line(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = [0; 4096];
        loop {
            match self.lines.next() {
                Some(Ok(line)) => return Ok(line),
                Some(Err(TooLong)) => {
                    // Not the kind of a rejected command: the next reply can be shorter.
                    let problem = format!(
                        "a reply of the guest agent exceeds {} KiB, so the runner discards the reply; restart qemu-guest-agent in the guest",
                        LINE_SIZE_MAX >> 10
                    );
                    return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
                }
                None => {}
            }
            match self.stream.read(&mut bytes).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => self.lines.push(bytes.get(..n).unwrap_or_default()),
            }
        }
    }
}

/// Whether the line ends with the reply to that synchronization. A reply to an earlier connection
/// may precede it.
pub(super) fn is_sync_reply(line: &[u8], sync_id: &Value) -> bool {
    let after = line
        .iter()
        .rposition(|byte| *byte == DELIMITER)
        .map_or(0, |at| at + 1);
    let reply: Option<Value> = serde_json::from_slice(line.get(after..).unwrap_or_default()).ok();
    reply.is_some_and(|reply| reply.get("return") == Some(sync_id))
}

/// The number of online CPUs in a reply to `guest-get-vcpus`. None if the reply is unusable.
fn online_cpus(reply: &Value) -> Option<u32> {
    let is_online = |cpu: &&Value| cpu.get("online").and_then(Value::as_bool) == Some(true);
    let online = reply.as_array()?.iter().filter(is_online).count();
    u32::try_from(online).ok().filter(|online| *online > 0)
}

/// The entries with short names and texts. `guest-get-osinfo` has no others.
fn short_osinfo(said: Map<String, Value>) -> Map<String, Value> {
    let is_short = |name: &str, value: &Value| {
        name.len() <= 64
            && value
                .as_str()
                .is_some_and(|text| text.len() <= TEXT_SIZE_MAX)
    };
    said.into_iter()
        .filter(|(name, value)| is_short(name, value))
        .take(LIST_ENTRIES_MAX)
        .collect()
}

/// The addresses of all interfaces, in their order and without duplicates. Addresses that only the
/// guest itself can use are left out.
fn usable_addresses(interfaces: &Value) -> Vec<String> {
    let interfaces = interfaces.as_array().into_iter().flatten();
    let entries = interfaces
        .filter_map(|interface| interface.get("ip-addresses")?.as_array())
        .flatten();
    let texts = entries.filter_map(|entry| entry.get("ip-address")?.as_str());
    let mut addresses: Vec<String> = Vec::new();
    for address in texts
        .filter_map(|text| text.parse::<IpAddr>().ok())
        .filter(is_usable)
    {
        let text = address.to_string();
        if !addresses.contains(&text) && addresses.len() < LIST_ENTRIES_MAX {
            addresses.push(text);
        }
    }
    addresses
}

#[cfg(test)]
mod tests;
