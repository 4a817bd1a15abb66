//! (pure) Codec of QMP: one JSON value in each line, in both directions.
//!
//! Invariants: invalid bytes cause an error and nothing else. The decoder stores at most one
//! message.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

use serde::Deserialize;
use serde_json::{Map, Value};
use std::io;
use tokio_util::bytes::{BufMut, BytesMut};
use tokio_util::codec::{AnyDelimiterCodec, Decoder, Encoder};

/// Size of a message in bytes. QEMU's largest message, its schema, has about 300 KiB.
const MESSAGE_SIZE_MAX: usize = 4 << 20;

/// A message from QEMU.
#[derive(Debug, PartialEq)]
pub enum Message {
    /// The first message of a connection.
    Greeting,
    /// The result of a command.
    Return {
        /// Id of the command.
        id: u64,
        /// The returned value.
        value: Value,
    },
    /// A command has failed.
    Error {
        /// Id of the command. None if QEMU could not parse it.
        id: Option<u64>,
        /// The error class, such as `GenericError`.
        class: String,
        /// The text for users.
        description: String,
    },
    /// An event.
    Event {
        /// The name, such as `SHUTDOWN`.
        name: String,
        /// The event's data.
        data: Map<String, Value>,
    },
    /// An unknown message.
    Other,
}

#[derive(Deserialize)]
struct Raw {
    #[serde(rename = "QMP")]
    greeting: Option<Value>,
    id: Option<u64>,
    #[serde(rename = "return")]
    value: Option<Value>,
    error: Option<RawError>,
    event: Option<String>,
    #[serde(default)]
    data: Map<String, Value>,
}

#[derive(Deserialize)]
struct RawError {
    #[serde(default)]
    class: String,
    #[serde(default)]
    desc: String,
}

impl From<Raw> for Message {
    fn from(raw: Raw) -> Self {
        match raw {
            Raw {
                event: Some(name),
                data,
                ..
            } => Self::Event { name, data },
            Raw {
                error: Some(error),
                id,
                ..
            } => Self::Error {
                id,
                class: error.class,
                description: error.desc,
            },
            Raw {
                value: Some(value),
                id: Some(id),
                ..
            } => Self::Return { id, value },
            Raw {
                greeting: Some(_), ..
            } => Self::Greeting,
            _ => Self::Other,
        }
    }
}

/// Splits bytes into messages and joins them.
#[derive(Debug)]
pub struct Codec(AnyDelimiterCodec);

impl Codec {
    fn of(maximum: usize) -> Self {
        Self(AnyDelimiterCodec::new_with_max_length(
            b"\n".to_vec(),
            Vec::new(),
            maximum,
        ))
    }
}

impl Default for Codec {
    fn default() -> Self {
        Self::of(MESSAGE_SIZE_MAX)
    }
}

impl Decoder for Codec {
    type Item = Message;
    type Error = io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> io::Result<Option<Message>> {
        while let Some(line) = self.0.decode(buffer).map_err(io::Error::other)? {
            let line = line.trim_ascii();
            if !line.is_empty() {
                // The message is not logged, because it can contain any data.
                let raw = serde_json::from_slice::<Raw>(line).map_err(|error| {
                    io::Error::other(format!(
                        "QEMU has sent an invalid QMP message, so the runner closes the QMP connection: {error}"
                    ))
                })?;
                return Ok(Some(raw.into()));
            }
        }
        Ok(None)
    }
}

impl Encoder<Value> for Codec {
    type Error = io::Error;

    fn encode(&mut self, message: Value, buffer: &mut BytesMut) -> io::Result<()> {
        serde_json::to_writer(buffer.writer(), &message)?;
        buffer.put_u8(b'\n');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn decode(bytes: &[u8]) -> Vec<Message> {
        let (mut codec, mut buffer) = (Codec::default(), BytesMut::from(bytes));
        std::iter::from_fn(|| codec.decode(&mut buffer).unwrap()).collect()
    }

    #[test]
    fn replies_and_events_are_distinguished() {
        let messages = decode(
            b"{\"QMP\": {\"version\": {}}}\r\n\
              {\"timestamp\": {\"seconds\": 1, \"microseconds\": 2}, \"event\": \"STOP\"}\r\n\
              {\"return\": {}, \"id\": 7}\r\n\
              {\"id\": 8, \"error\": {\"class\": \"GenericError\", \"desc\": \"no\"}}\r\n\
              {\"error\": {\"class\": \"GenericError\", \"desc\": \"what?\"}}\r\n{\"x\": 1}\r\n",
        );
        let error = |id, description: &str| Message::Error {
            id,
            class: "GenericError".to_owned(),
            description: description.to_owned(),
        };
        assert_eq!(
            messages,
            [
                Message::Greeting,
                Message::Event {
                    name: "STOP".to_owned(),
                    data: Map::new()
                },
                Message::Return {
                    id: 7,
                    value: json!({})
                },
                error(Some(8), "no"),
                error(None, "what?"),
                Message::Other,
            ]
        );
    }

    #[test]
    fn an_endless_message_is_refused() {
        let (mut codec, mut buffer) = (Codec::default(), BytesMut::new());
        buffer.resize(MESSAGE_SIZE_MAX + 1, b'{');
        assert!(codec.decode(&mut buffer).is_err());
    }

    #[test]
    fn a_command_is_one_line() {
        let (mut codec, mut buffer) = (Codec::default(), BytesMut::new());
        codec
            .encode(
                json!({"execute": "cont", "arguments": {"a": "b\nc"}}),
                &mut buffer,
            )
            .unwrap();
        assert_eq!(buffer.iter().filter(|byte| **byte == b'\n').count(), 1);
    }
}
