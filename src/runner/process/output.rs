//! (io) Logs the output of a child line by line, and stores the last lines.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

/// Number of stored lines, and the size of a line in bytes.
const KEPT_LINES_MAX: usize = 10;
const LINE_SIZE_MAX: u64 = 1000;
/// QEMU's messages if KVM has stopped a CPU. QEMU does not exit then, and many more lines follow.
const KVM_ERRORS: [&str; 3] = ["KVM internal error", "kvm run failed", "KVM: entry failed"];

/// Stored output of a child.
#[derive(Default)]
pub struct ChildOutput {
    last: VecDeque<String>,
    /// The first line that reports a KVM error.
    pub kvm_error: Option<String>,
}

impl ChildOutput {
    /// The last lines, joined.
    pub fn last(&self) -> String {
        self.last
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("; ")
    }

    fn record(&mut self, text: String) {
        if self.kvm_error.is_none() && KVM_ERRORS.iter().any(|sign| text.contains(sign)) {
            self.kvm_error = Some(text.clone());
        }
        self.last.push_back(text);
        if self.last.len() > KEPT_LINES_MAX {
            self.last.pop_front();
        }
    }
}

/// Logs the lines of the pipe until its end, and stores the last ones. A longer line is split.
pub async fn log(
    name: &'static str,
    pipe: impl AsyncRead + Unpin,
    output: impl std::ops::Deref<Target = Mutex<ChildOutput>>,
) {
    let (mut reader, mut line) = (BufReader::with_capacity(512, pipe), Vec::new());
    while let Ok(1..) = (&mut reader)
        .take(LINE_SIZE_MAX)
        .read_until(b'\n', &mut line)
        .await
    {
        let text = String::from_utf8_lossy(&line).trim().to_owned();
        line.clear();
        tracing::info!("{name}: {text}");
        output
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .record(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn said(text: &str) -> ChildOutput {
        let output = Mutex::default();
        log("test", text.as_bytes(), &output).await;
        output.into_inner().unwrap()
    }

    #[tokio::test]
    async fn last_output_line_needs_no_newline() {
        assert_eq!(said("one\ntwo").await.last(), "one; two");
        assert_eq!(said("one\n").await.last(), "one");
        assert_eq!(said("").await.last(), "");
        assert_eq!(
            said("KVM internal error. Suberror: 1")
                .await
                .kvm_error
                .as_deref(),
            Some("KVM internal error. Suberror: 1")
        );
    }

    #[tokio::test]
    async fn a_halt_is_known_though_many_lines_follow() {
        let many: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        let output = said(&format!("kvm run failed\n{many}{}", "x".repeat(1500))).await;
        assert_eq!(output.kvm_error.as_deref(), Some("kvm run failed"));
        assert_eq!(output.last.len(), KEPT_LINES_MAX);
        assert_eq!(
            output
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
