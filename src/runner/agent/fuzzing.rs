//! Fuzz targets: messages of the agents in the guest.

use crate::runner::agent::login::{Desktop, Login};
use crate::runner::agent::{LineBuffer, TooLong, guest, vmop};
use serde_json::{Value, json};

/// Small, so that the fuzzer reaches it. Bytes.
const LINE_SIZE_MAX: usize = 64;

/// The first byte of the input is the size of a read, 0 for one read of all. The reads of the other bytes.
fn reads(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (size, bytes) = input.split_first().unwrap_or((&0, &[]));
    let size = if *size == 0 {
        bytes.len()
    } else {
        usize::from(*size)
    };
    bytes.chunks(size.max(1))
}

type NextLine = fn(&mut LineBuffer) -> Option<Result<Vec<u8>, TooLong>>;

/// The lines do not depend on the sizes of the reads.
pub fn check_lines(input: &[u8]) {
    check_lines_of(input, LineBuffer::next);
}

fn check_lines_of(input: &[u8], next: NextLine) {
    let bytes = input.get(1..).unwrap_or_default();
    let mut lines = LineBuffer::new(LINE_SIZE_MAX);
    let mut seen = Vec::new();
    for read in reads(input) {
        lines.push(read);
        seen.extend(std::iter::from_fn(|| next(&mut lines)));
    }
    // Computed without the parser. A rest without an end of line counts only if it is already too long.
    let line = |line: &[u8]| {
        if line.len() > LINE_SIZE_MAX {
            Err(TooLong)
        } else {
            Ok(line.to_vec())
        }
    };
    let mut expected: Vec<_> = bytes.split(|byte| *byte == b'\n').map(line).collect();
    if expected.last().is_some_and(Result::is_ok) {
        expected.pop();
    }
    assert_eq!(seen, expected);
}

type ProcessLines = fn(&mut LineBuffer, &mut Login) -> Option<String>;

/// The desktop's state and the requests do not depend on the sizes of the reads. No request names another user.
pub fn check_desktop(input: &[u8]) {
    check_desktop_of(input, vmop::process_lines);
}

fn check_desktop_of(input: &[u8], process_lines: ProcessLines) {
    let bytes = input.get(1..).unwrap_or_default();
    let (requests, desktop) = desktop_after(&mut reads(input), process_lines);
    assert_eq!(
        (requests.clone(), desktop.clone()),
        desktop_after(&mut std::iter::once(bytes), process_lines)
    );
    assert!(
        requests.lines().all(|line| line == "login anna"),
        "{requests}"
    );
    assert!(
        desktop
            == Desktop {
                user: desktop.user.clone().filter(|user| user == "anna"),
                ..desktop.clone()
            }
    );
}

/// The requests to the agent of a desktop for the user anna, and the desktop's state.
fn desktop_after(
    reads: &mut dyn Iterator<Item = &[u8]>,
    process_lines: ProcessLines,
) -> (String, Desktop) {
    let (mut lines, mut login) = (
        LineBuffer::new(vmop::LINE_SIZE_MAX),
        Login::new(Some("anna".to_owned())),
    );
    let mut requests = String::new();
    for read in reads {
        lines.push(read);
        requests.extend(process_lines(&mut lines, &mut login));
    }
    (requests, login.desktop().clone())
}

type Repeats = fn(&[u8], &Value) -> bool;

/// A reply repeats the mark only if it contains that mark and nothing follows it.
pub fn check_guest(input: &[u8]) {
    check_guest_of(input, guest::is_sync_reply);
}

fn check_guest_of(input: &[u8], repeats: Repeats) {
    if repeats(input, &json!(7)) {
        assert!(input.contains(&b'7') && !repeats(&[input, b"\xff{}"].concat(), &json!(7)));
        assert!(!repeats(input, &json!(8)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "left == right")]
    fn lines_that_depend_on_the_sizes_of_reads_are_detected() {
        // Clears the buffer after a line that is too long; the rest of that line then counts as a line.
        check_lines_of(
            &[[70].as_slice(), &[b'x'; 70], b"201\n"].concat(),
            |lines| {
                let line = lines.next();
                if line == Some(Err(TooLong)) {
                    lines.clear();
                }
                line
            },
        );
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn desktop_that_depends_on_the_sizes_of_reads_is_detected() {
        check_desktop_of(b"\x00220 Hello\n201 in\n", vmop::process_lines);
        // Handles the first line of each read and drops the others.
        check_desktop_of(b"\x0a220 Hello\n201 in\n", |lines, login| {
            let line = lines.next()?.ok()?;
            lines.clear();
            login.receive_line(&String::from_utf8_lossy(&line))
        });
    }

    #[test]
    #[should_panic(expected = "login root")]
    fn request_with_a_user_of_the_guest_is_detected() {
        check_desktop_of(b"\x00220 root\n", |lines, _| {
            let line = String::from_utf8(lines.next()?.ok()?).ok()?;
            line.strip_prefix("220 ")
                .map(|user| format!("login {user}\n"))
        });
    }

    #[test]
    #[should_panic(expected = "&& !repeats")]
    fn mark_before_other_bytes_is_detected() {
        // Accepts the first of several replies.
        check_guest_of(b"{\"return\": 7}", |line, mark| {
            let first = line.split(|byte| *byte == 0xff).next().unwrap_or_default();
            serde_json::from_slice(first)
                .is_ok_and(|reply: Value| reply.get("return") == Some(mark))
        });
    }

    #[test]
    #[should_panic(expected = "!repeats(input")]
    fn reply_accepted_for_any_mark_is_detected() {
        check_guest_of(b"{\"return\": 7}", |line, _| {
            serde_json::from_slice::<Value>(line).is_ok_and(|reply| reply.get("return").is_some())
        });
    }
}
