//! Clients of the agents in the guest, and a buffer that splits their bytes into lines.
//!
//! Invariants of the buffer: the lines do not depend on the sizes of the reads. It stores at most
//! one line and one read.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod guest;
pub mod login;
pub mod vmop;

use tokio_util::bytes::BytesMut;
use tokio_util::codec::{AnyDelimiterCodec, Decoder};

/// A line exceeds the maximum size. All of it is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TooLong;

/// Bytes that were read and do not form a line yet.
#[derive(Debug)]
struct LineBuffer {
    buffer: BytesMut,
    codec: AnyDelimiterCodec,
    maximum: usize,
}

impl LineBuffer {
    /// An empty buffer; `maximum` is the size of a line in bytes.
    fn new(maximum: usize) -> Self {
        let codec = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), Vec::new(), maximum);
        Self {
            buffer: BytesMut::new(),
            codec,
            maximum,
        }
    }

    /// Appends bytes that were read.
    fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Discards the content.
    fn clear(&mut self) {
        *self = Self::new(self.maximum);
    }
}

/// The complete lines, without their line ends.
impl Iterator for LineBuffer {
    type Item = Result<Vec<u8>, TooLong>;

    fn next(&mut self) -> Option<Self::Item> {
        // The codec has no other error, because it does no I/O.
        self.codec
            .decode(&mut self.buffer)
            .map(|line| line.map(|line| line.to_vec()))
            .map_err(|_| TooLong)
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&str]) -> Vec<Result<String, TooLong>> {
        let mut lines = LineBuffer::new(5);
        let mut seen = Vec::new();
        for piece in pieces {
            lines.push(piece.as_bytes());
            seen.extend(
                lines
                    .by_ref()
                    .map(|line| line.map(|line| String::from_utf8(line).unwrap())),
            );
        }
        seen
    }

    #[test]
    fn input_is_split_at_line_feeds() {
        assert_eq!(
            lines(&["a\n\nb\r\nc"]),
            [Ok("a".to_owned()), Ok(String::new()), Ok("b\r".to_owned())]
        );
    }

    #[test]
    fn a_line_that_is_too_long_is_left_out_with_its_end() {
        let expected = [Err(TooLong), Ok("201".to_owned())];
        for pieces in [
            &["123456789\n201\n"][..],
            &["1234567", "89\n201\n"],
            &["123456", "201", "\n201\n"],
        ] {
            assert_eq!(lines(pieces), expected, "{pieces:?}");
        }
    }
}
