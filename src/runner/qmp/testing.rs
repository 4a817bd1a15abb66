//! A QEMU that says what a test tells it to.

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

    pub async fn greet(stream: UnixStream) -> Self {
        let mut peer = Self::of(stream);
        peer.say(r#"{"QMP": {"version": {}, "capabilities": []}}"#)
            .await;
        let first = peer.hear().await;
        assert_eq!(first["execute"], "qmp_capabilities");
        peer.say(r#"{"return": {}, "id": 0}"#).await;
        peer
    }

    pub async fn say(&mut self, line: &str) {
        self.writer
            .write_all(format!("{line}\r\n").as_bytes())
            .await
            .unwrap();
    }

    /// Without an end.
    pub async fn say_part(&mut self, part: &str) {
        self.writer.write_all(part.as_bytes()).await.unwrap();
    }

    pub async fn hear(&mut self) -> Value {
        serde_json::from_str(&self.lines.next_line().await.unwrap().unwrap()).unwrap()
    }

    /// Answers the next command by what `answer` makes of its name and arguments: a value, or a refusal.
    pub async fn answer(
        &mut self,
        answer: impl FnOnce(&str, &Value) -> Result<Value, &'static str>,
    ) {
        let command = self.hear().await;
        let reply = match answer(command["execute"].as_str().unwrap(), &command["arguments"]) {
            Ok(value) => serde_json::json!({"return": value, "id": command["id"]}),
            Err(why) => {
                serde_json::json!({"error": {"class": "GenericError", "desc": why}, "id": command["id"]})
            }
        };
        self.say(&reply.to_string()).await;
    }
}
