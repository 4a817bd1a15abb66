//! (pure) A guest's bytes, split into lines.
//!
//! What always holds: however the bytes come in pieces, the lines are the same; no more than one line and one piece is
//! kept.

/// A line that is longer than any that makes sense. All of it is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Bytes that are not lines yet.
#[derive(Debug)]
pub struct Lines {
    buffer: Vec<u8>,
    /// How much of the buffer is known to hold no end of a line.
    searched: usize,
    /// Whether the beginning of the line was left out already.
    skipping: bool,
    maximum: usize,
}

impl Lines {
    /// None yet; a line is of that many bytes at most.
    pub fn new(maximum: usize) -> Self {
        Self { buffer: Vec::new(), searched: 0, skipping: false, maximum }
    }

    /// More bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Forgets what is there; a new line begins.
    pub fn clear(&mut self) {
        *self = Self::new(self.maximum);
    }
}

/// The lines that are there, without their ends.
impl Iterator for Lines {
    type Item = Result<Vec<u8>, TooLong>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
            let end = unsearched.iter().position(|byte| *byte == b'\n').map(|end| self.searched + end);
            let length = end.unwrap_or(self.buffer.len());
            let too_long = length > self.maximum;
            let Some(end) = end else {
                self.searched = length;
                if !self.skipping && !too_long {
                    return None;
                }
                self.buffer.clear();
                self.searched = 0;
                let first = !std::mem::replace(&mut self.skipping, true);
                return first.then_some(Err(TooLong));
            };
            let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
            self.searched = 0;
            line.truncate(end);
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            return Some(if too_long { Err(TooLong) } else { Ok(line) });
        }
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
            seen.extend(lines.by_ref().map(|line| line.map(|line| String::from_utf8(line).unwrap())));
        }
        seen
    }

    #[test]
    fn lines_are_what_is_between_their_ends() {
        assert_eq!(lines(&["a\n\nb\r\nc"]), [Ok("a".to_owned()), Ok(String::new()), Ok("b\r".to_owned())]);
    }

    #[test]
    fn a_line_that_is_too_long_is_left_out_with_its_end() {
        let expected = [Err(TooLong), Ok("201".to_owned())];
        for pieces in [&["123456789\n201\n"][..], &["1234567", "89\n201\n"], &["123456", "201", "\n201\n"]] {
            assert_eq!(lines(pieces), expected, "{pieces:?}");
        }
    }
}
