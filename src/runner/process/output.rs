//! (io) What a child says: logged line by line, as far as the log has room for it, and its last words kept.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

/// How many lines are kept for messages, and how long each can be.
const LAST_LINES: usize = 10;
const LONGEST_LINE: usize = 1000;
/// So many lines are logged in that time; who says more may do so for hours, as QEMU does of a guest's wrong requests.
const LOGGED: u32 = 200;
const IN: Duration = Duration::from_secs(60);
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
        self.last.iter().map(String::as_str).collect::<Vec<_>>().join("; ")
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

/// Logs what comes out of the pipe until its end, and keeps the last of it.
pub async fn log(
    name: &'static str,
    mut pipe: impl AsyncRead + Unpin,
    words: impl std::ops::Deref<Target = Mutex<Words>>,
) {
    let (mut line, mut buffer, mut room) = (Vec::new(), [0; 512], Room::new(Instant::now()));
    let mut heard = |line: &mut Vec<u8>| {
        let text = String::from_utf8_lossy(line).trim().to_owned();
        line.clear();
        let (has_room, left_out) = room.next(Instant::now());
        tell_left_out(name, left_out);
        if has_room {
            tracing::info!("{name}: {text}");
        }
        words.lock().unwrap_or_else(PoisonError::into_inner).hear(text);
    };
    while let Ok(n @ 1..) = pipe.read(&mut buffer).await {
        for byte in buffer.iter().take(n) {
            match byte {
                b'\n' => heard(&mut line),
                // The rest of an overlong line is dropped.
                _ if line.len() < LONGEST_LINE => line.push(*byte),
                _ => {}
            }
        }
    }
    // Who dies may not come to the end of a line.
    if !line.is_empty() {
        heard(&mut line);
    }
    tell_left_out(name, room.left_out);
}

fn tell_left_out(name: &str, lines: u64) {
    if lines > 0 {
        tracing::warn!("{name}: {lines} more lines, which the log has no room for");
    }
}

/// How many lines there is room for in the log.
struct Room {
    since: Instant,
    logged: u32,
    left_out: u64,
}

impl Room {
    fn new(now: Instant) -> Self {
        Self { since: now, logged: 0, left_out: 0 }
    }

    /// Whether there is room for another line, and how many were left out before, where there is room again.
    fn next(&mut self, now: Instant) -> (bool, u64) {
        let mut left_out = 0;
        if now.duration_since(self.since) >= IN {
            left_out = self.left_out;
            *self = Self::new(now);
        }
        let has_room = self.logged < LOGGED;
        match has_room {
            true => self.logged += 1,
            false => self.left_out += 1,
        }
        (has_room, left_out)
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
            said("KVM internal error. Suberror: 1").await.halted.as_deref(),
            Some("KVM internal error. Suberror: 1")
        );
    }

    #[tokio::test]
    async fn what_is_not_logged_is_heard_all_the_same() {
        let many: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        let words = said(&format!("{many}kvm run failed\n{}", "x".repeat(5000))).await;
        assert_eq!(words.halted.as_deref(), Some("kvm run failed"));
        assert_eq!(words.last.len(), LAST_LINES);
        assert_eq!(words.last.back().map(String::len), Some(LONGEST_LINE));
    }

    #[test]
    fn the_log_has_room_for_so_many_lines_and_again_a_while_later() {
        let begin = Instant::now();
        let mut room = Room::new(begin);
        let logged = (0..1000).filter(|_| room.next(begin + IN / 2).0).count();
        assert_eq!(logged, LOGGED as usize);
        assert_eq!(room.next(begin + IN), (true, 1000 - u64::from(LOGGED)));
        assert_eq!(room.next(begin + IN), (true, 0));
    }
}
