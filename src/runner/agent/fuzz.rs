//! What guests say, in any pieces.

use super::guest;
use super::lines::{Lines, TooLong};
use super::login::{Desktop, Login};
use super::vmop;
use crate::fuzz::{Limits, Target, fuzz};
use serde_json::json;

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

fn holds_of_desktops(input: &[u8]) {
    let hear = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let (mut lines, mut login) = (Lines::new(vmop::MAXIMUM), Login::new(Some("anna".to_owned())));
        let mut said = String::new();
        for piece in pieces {
            lines.push(piece);
            said.extend(vmop::hear(&mut lines, &mut login));
        }
        (said, login.desktop().clone())
    };
    let (said, desktop) = hear(&mut pieces(input));
    assert_eq!((said.clone(), desktop.clone()), hear(&mut std::iter::once(input.get(1..).unwrap_or_default())));
    // Nothing but requests leaves, and nobody is somebody else.
    assert!(said.lines().all(|line| line == "login anna"), "{said}");
    assert!(desktop == Desktop { user: desktop.user.clone().filter(|user| user == "anna"), ..desktop.clone() });
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
    fuzz(&Target { name: "agent_desktop", words: &words, limits: Limits::default() }, holds_of_desktops);
}

#[test]
fn fuzz_agent_guest() {
    let words =
        ["{\"return\": ", "7", "}", "\u{ff}", "{\"error\": {\"class\": \"x\", \"desc\": \"y\"}}", "[", "7.0", "7e0"];
    fuzz(&Target { name: "agent_guest", words: &words, limits: Limits::default() }, |input| {
        if guest::repeats(input, &json!(7)) {
            // Not without the mark, and not if something else is said behind it.
            assert!(input.contains(&b'7') && !guest::repeats(&[input, b"\xff{}"].concat(), &json!(7)));
            assert!(!guest::repeats(input, &json!(8)));
        }
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
