//! (io) What a child says: logged line by line, and its last words kept.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

/// How many lines are kept for messages, and how long each can be.
const LAST_LINES: usize = 10;
const LONGEST_LINE: u64 = 1000;
/// What QEMU says where KVM has brought a CPU to a halt; it does not end then, and many lines follow.
const HALTED: [&str; 2] = ["KVM internal error", "kvm run failed"];

/// What a child has said.
#[derive(Default)]
pub struct Words {
    last: VecDeque<String>,
    /// What it has said where it cannot run the guest any further.
    pub halted: Option<String>,
}

impl Words {
    /// Its last words.
    pub fn last(&self) -> String {
        self.last
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("; ")
    }

    fn hear(&mut self, text: String) {
        if self.halted.is_none() && HALTED.iter().any(|sign| text.contains(sign)) {
            self.halted = Some(text.clone());
        }
        self.last.push_back(text);
        if self.last.len() > LAST_LINES {
            self.last.pop_front();
        }
    }
}

/// Logs what comes out of the pipe until its end, and keeps the last of it. Longer lines come in pieces.
pub async fn log(
    name: &'static str,
    pipe: impl AsyncRead + Unpin,
    words: impl std::ops::Deref<Target = Mutex<Words>>,
) {
    let (mut reader, mut line) = (BufReader::with_capacity(512, pipe), Vec::new());
    while let Ok(1..) = (&mut reader)
        .take(LONGEST_LINE)
        .read_until(b'\n', &mut line)
        .await
    {
        let text = String::from_utf8_lossy(&line).trim().to_owned();
        line.clear();
        tracing::info!("{name}: {text}");
        words
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .hear(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn said(output: &str) -> Words {
        let words = Mutex::default();
        log("test", output.as_bytes(), &words).await;
        words.into_inner().unwrap()
    }

    #[tokio::test]
    async fn the_last_words_need_no_line_end() {
        assert_eq!(said("one\ntwo").await.last(), "one; two");
        assert_eq!(said("one\n").await.last(), "one");
        assert_eq!(said("").await.last(), "");
        assert_eq!(
            said("KVM internal error. Suberror: 1")
                .await
                .halted
                .as_deref(),
            Some("KVM internal error. Suberror: 1")
        );
    }

    #[tokio::test]
    async fn a_halt_is_known_though_many_lines_follow() {
        let many: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        let words = said(&format!("kvm run failed\n{many}{}", "x".repeat(1500))).await;
        assert_eq!(words.halted.as_deref(), Some("kvm run failed"));
        assert_eq!(words.last.len(), LAST_LINES);
        assert_eq!(
            words
                .last
                .iter()
                .rev()
                .take(2)
                .map(String::len)
                .collect::<Vec<_>>(),
            [500, 1000]
        );
    }
}
