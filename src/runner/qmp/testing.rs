//! A simulated QEMU for tests: it receives QMP commands and sends scripted messages.

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;

/// A scripted QEMU.
pub struct Peer {
    lines: tokio::io::Lines<BufReader<tokio::net::unix::OwnedReadHalf>>,
    writer: OwnedWriteHalf,
}

impl Peer {
    pub fn of(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self {
            lines: BufReader::new(reader).lines(),
            writer,
        }
    }

    pub async fn send_greeting(stream: UnixStream) -> Self {
        let mut peer = Self::of(stream);
        peer.send_line(r#"{"QMP": {"version": {}, "capabilities": []}}"#)
            .await;
        let first = peer.receive_command().await;
        assert_eq!(first["execute"], "qmp_capabilities");
        peer.send_line(r#"{"return": {}, "id": 0}"#).await;
        peer
    }

    pub async fn send_line(&mut self, line: &str) {
        self.writer
            .write_all(format!("{line}\r\n").as_bytes())
            .await
            .unwrap();
    }

    /// Sends a part of a line, without its end.
    pub async fn send_partial_line(&mut self, part: &str) {
        self.writer.write_all(part.as_bytes()).await.unwrap();
    }

    pub async fn receive_command(&mut self) -> Value {
        serde_json::from_str(&self.lines.next_line().await.unwrap().unwrap()).unwrap()
    }

    /// Answers the next command. `answer` gets its name and arguments, and returns a value or the message of an error.
    pub async fn answer(
        &mut self,
        answer: impl FnOnce(&str, &Value) -> Result<Value, &'static str>,
    ) {
        let command = self.receive_command().await;
        let reply = match answer(command["execute"].as_str().unwrap(), &command["arguments"]) {
            Ok(value) => serde_json::json!({"return": value, "id": command["id"]}),
            Err(why) => {
                serde_json::json!({"error": {"class": "GenericError", "desc": why}, "id": command["id"]})
            }
        };
        self.send_line(&reply.to_string()).await;
    }
}
