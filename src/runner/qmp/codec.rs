//! (pure) The monitor's bytes: one JSON value a line in both directions.
//!
//! What always holds: no byte sequence makes the decoder fail other than by an error, and it keeps no more than one
//! message's worth of bytes.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

use serde::Deserialize;
use serde_json::{Map, Value};
use std::io;
use tokio_util::bytes::{BufMut, BytesMut};
use tokio_util::codec::{AnyDelimiterCodec, Decoder, Encoder};

/// The largest message that QEMU sends is its own schema, of about 300 KiB.
const MAXIMUM: usize = 4 << 20;

/// What QEMU says.
#[derive(Debug, PartialEq)]
pub enum Message {
    /// First of all.
    Greeting,
    /// A command has worked.
    Return {
        /// The command's.
        id: u64,
        /// What it gives back.
        value: Value,
    },
    /// A command has failed.
    Error {
        /// The command's; none if QEMU could not even read it.
        id: Option<u64>,
        /// Kind, as `GenericError`.
        class: String,
        /// For people.
        description: String,
    },
    /// Something has happened.
    Event {
        /// As `SHUTDOWN`.
        name: String,
        /// What belongs to it.
        data: Map<String, Value>,
    },
    /// Something that we do not know.
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

/// Splits and joins lines of JSON.
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
        Self::of(MAXIMUM)
    }
}

impl Decoder for Codec {
    type Item = Message;
    type Error = io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> io::Result<Option<Message>> {
        while let Some(line) = self.0.decode(buffer).map_err(io::Error::other)? {
            let line = line.trim_ascii();
            if !line.is_empty() {
                // The line is not shown: replies can hold anything.
                let raw = serde_json::from_slice::<Raw>(line).map_err(|error| {
                    io::Error::other(format!("a message that is not the monitor's: {error}"))
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
    fn replies_and_events_are_told_apart() {
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
        buffer.resize(MAXIMUM + 1, b'{');
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
