//! Fuzz target: messages of QMP.

use crate::runner::qmp::QmpEvent;
use crate::runner::qmp::codec::{Codec, Message};
use std::io;
use tokio_util::bytes::BytesMut;
use tokio_util::codec::Decoder;

/// Small, so that the fuzzer reaches it. Bytes.
const MESSAGE_SIZE_MAX: usize = 256;

/// The messages do not depend on the sizes of the reads. Each line is one message.
pub fn check_qmp(input: &[u8]) {
    check(input, codec);
}

fn codec() -> Codec {
    Codec::of(MESSAGE_SIZE_MAX)
}

/// The first byte of the input is the size of a read.
fn check<D: Decoder<Item = Message, Error = io::Error>>(input: &[u8], new: impl Fn() -> D) {
    let (size, bytes) = input.split_first().unwrap_or((&0, &[]));
    let (messages, failed) = decode(new(), bytes, usize::from(*size));
    let (messages_at_once, failed_at_once) = decode(new(), bytes, bytes.len());
    assert_eq!((&messages, failed), (&messages_at_once, failed_at_once));
    for message in &messages {
        if let Message::Event { name, data } = message {
            // Any result is valid; it must not panic.
            let _ = QmpEvent::of(name, data);
        }
    }
    let lines = bytes
        .split_inclusive(|byte| *byte == b'\n')
        .filter(|line| line.ends_with(b"\n"));
    let lines = lines.filter(|line| !line.trim_ascii().is_empty()).count();
    assert!(
        if failed {
            messages.len() <= lines
        } else {
            messages.len() == lines
        },
        "{lines} lines, {messages:?}"
    );
}

/// The messages of bytes in reads of that size, and whether the decoder failed.
fn decode<D: Decoder<Item = Message, Error = io::Error>>(
    mut codec: D,
    bytes: &[u8],
    size: usize,
) -> (Vec<Message>, bool) {
    let (mut buffer, mut messages) = (BytesMut::new(), Vec::new());
    for read in bytes.chunks(size.max(1)) {
        buffer.extend_from_slice(read);
        loop {
            match codec.decode(&mut buffer) {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(_) => return (messages, true),
            }
        }
    }
    (messages, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drops the first part of a message that arrives in two reads.
    struct DropsPartialMessages(Codec);

    impl Decoder for DropsPartialMessages {
        type Item = Message;
        type Error = io::Error;

        fn decode(&mut self, buffer: &mut BytesMut) -> io::Result<Option<Message>> {
            let message = self.0.decode(buffer)?;
            if message.is_none() {
                self.0 = codec();
                buffer.clear();
            }
            Ok(message)
        }
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn decoder_that_drops_partial_messages_is_detected() {
        check(
            b"\x05{\"event\": \"A\"}\n",
            || DropsPartialMessages(codec()),
        );
    }
}
