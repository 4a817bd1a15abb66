//! What guests say, in any pieces.

use super::guest;
use super::lines::{Lines, TooLong};
use super::login::{Desktop, Login};
use super::vmop;
use crate::fuzz::{Limits, Target, fuzz};
use serde_json::{Value, json};

/// Short, so that inputs are too long, too.
const MAXIMUM: usize = 64;

/// The bytes and how they are cut: the first says how long each piece is; 0 is all at once.
fn pieces(input: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (size, bytes) = input.split_first().unwrap_or((&0, &[]));
    let size = if *size == 0 { bytes.len() } else { usize::from(*size) };
    bytes.chunks(size.max(1))
}

type Split = fn(&mut Lines) -> Option<Result<Vec<u8>, TooLong>>;

fn holds_of_lines(input: &[u8], next: Split) {
    let bytes = input.get(1..).unwrap_or_default();
    let mut lines = Lines::new(MAXIMUM);
    let mut seen = Vec::new();
    for piece in pieces(input) {
        lines.push(piece);
        seen.extend(std::iter::from_fn(|| next(&mut lines)));
    }
    // By another way: what is between two ends, and what follows the last only if it can be no line any more.
    let judge = |line: &[u8]| if line.len() > MAXIMUM { Err(TooLong) } else { Ok(line.to_vec()) };
    let mut expected: Vec<_> = bytes.split(|byte| *byte == b'\n').map(judge).collect();
    if expected.last().is_some_and(Result::is_ok) {
        expected.pop();
    }
    assert_eq!(seen, expected);
}

type Hear = fn(&mut Lines, &mut Login) -> Option<String>;

fn holds_of_desktops(input: &[u8], hear_lines: Hear) {
    let hear = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let (mut lines, mut login) = (Lines::new(vmop::MAXIMUM), Login::new(Some("anna".to_owned())));
        let mut said = String::new();
        for piece in pieces {
            lines.push(piece);
            said.extend(hear_lines(&mut lines, &mut login));
        }
        (said, login.desktop().clone())
    };
    let (said, desktop) = hear(&mut pieces(input));
    assert_eq!((said.clone(), desktop.clone()), hear(&mut std::iter::once(input.get(1..).unwrap_or_default())));
    // Nothing but requests leaves, and nobody is somebody else.
    assert!(said.lines().all(|line| line == "login anna"), "{said}");
    assert!(desktop == Desktop { user: desktop.user.clone().filter(|user| user == "anna"), ..desktop.clone() });
}

fn holds_of_marks(input: &[u8], repeats: fn(&[u8], &Value) -> bool) {
    if repeats(input, &json!(7)) {
        // Not without the mark, and not if something else is said behind it.
        assert!(input.contains(&b'7') && !repeats(&[input, b"\xff{}"].concat(), &json!(7)));
        assert!(!repeats(input, &json!(8)));
    }
}

#[test]
fn fuzz_agent_lines() {
    let words = ["\n", "\r\n", "201", "0123456789012345678901234567890123456789012345678901234567890123"];
    fuzz(&Target { name: "agent_lines", words: &words, limits: Limits::default() }, |input| {
        holds_of_lines(input, Lines::next);
    });
}

#[test]
fn fuzz_agent_desktop() {
    let words = ["\n", "220 Hello\n", "201 in\n", "202 out\n", "240\n", "102 wait\n", "451 no\n", "504 no\n"];
    fuzz(&Target { name: "agent_desktop", words: &words, limits: Limits::default() }, |input| {
        holds_of_desktops(input, vmop::hear);
    });
}

#[test]
fn fuzz_agent_guest() {
    let words =
        ["{\"return\": ", "7", "}", "\u{ff}", "{\"error\": {\"class\": \"x\", \"desc\": \"y\"}}", "[", "7.0", "7e0"];
    fuzz(&Target { name: "agent_guest", words: &words, limits: Limits::default() }, |input| {
        holds_of_marks(input, guest::repeats);
    });
}

#[test]
#[should_panic(expected = "left == right")]
fn lines_that_depend_on_the_pieces_are_noticed() {
    // As a splitter does that empties its buffer and takes what follows for a line.
    holds_of_lines(&[[70].as_slice(), &[b'x'; 70], b"201\n"].concat(), |lines| {
        let line = lines.next();
        if line == Some(Err(TooLong)) {
            lines.clear();
        }
        line
    });
}

#[test]
#[should_panic(expected = "left == right")]
fn a_desktop_that_depends_on_the_pieces_is_noticed() {
    // As one does that hears a line of each piece and leaves the rest: `login` is said once, whatever follows.
    holds_of_desktops(b"\x00220 Hello\n201 in\n", vmop::hear);
    holds_of_desktops(b"\x0a220 Hello\n201 in\n", |lines, login| {
        let line = lines.next()?.ok()?;
        lines.clear();
        login.heard(&String::from_utf8_lossy(&line))
    });
}

#[test]
#[should_panic(expected = "login root")]
fn a_desktop_that_says_what_the_guest_wants_is_noticed() {
    holds_of_desktops(b"\x00220 root\n", |lines, _| {
        let line = String::from_utf8(lines.next()?.ok()?).ok()?;
        line.strip_prefix("220 ").map(|user| format!("login {user}\n"))
    });
}

#[test]
#[should_panic(expected = "&& !repeats")]
fn a_mark_before_something_else_is_noticed() {
    // As a reader does that takes the first of the answers.
    holds_of_marks(b"{\"return\": 7}", |line, mark| {
        let first = line.split(|byte| *byte == 0xff).next().unwrap_or_default();
        serde_json::from_slice(first).is_ok_and(|reply: Value| reply.get("return") == Some(mark))
    });
}

#[test]
#[should_panic(expected = "!repeats(input")]
fn an_answer_that_is_taken_for_any_mark_is_noticed() {
    holds_of_marks(b"{\"return\": 7}", |line, _| {
        serde_json::from_slice::<Value>(line).is_ok_and(|reply| reply.get("return").is_some())
    });
}
