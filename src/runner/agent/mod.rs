//! Programs in the guest that the runner talks to, and their bytes, split into lines.
//!
//! What always holds of the lines: however the bytes come in pieces, they are the same; no more than one line and one piece
//! is kept.

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod guest;
pub mod login;
pub mod vmop;

use tokio_util::bytes::BytesMut;
use tokio_util::codec::{AnyDelimiterCodec, Decoder};

/// A line that is longer than any that makes sense. All of it is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TooLong;

/// Bytes that are not lines yet.
#[derive(Debug)]
struct Lines {
    buffer: BytesMut,
    codec: AnyDelimiterCodec,
    maximum: usize,
}

impl Lines {
    /// None yet; a line is of that many bytes at most.
    fn new(maximum: usize) -> Self {
        let codec = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), Vec::new(), maximum);
        Self {
            buffer: BytesMut::new(),
            codec,
            maximum,
        }
    }

    /// More bytes.
    fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Forgets what is there; a new line begins.
    fn clear(&mut self) {
        *self = Self::new(self.maximum);
    }
}

/// The lines that are there, without their ends.
impl Iterator for Lines {
    type Item = Result<Vec<u8>, TooLong>;

    fn next(&mut self) -> Option<Self::Item> {
        // There is no other error: nothing is read.
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
        let mut lines = Lines::new(5);
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
    fn lines_are_what_is_between_their_ends() {
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
