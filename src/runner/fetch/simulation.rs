//! Servers that follow the standard in part, with connections that close at any byte. The assembled image is always one complete
//! image of the server.

use crate::runner::fetch::answer::{Answer, RangeRequest, Validator, interpret};
use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;

/// How the server answers one request.
#[derive(Clone, Debug)]
struct Step {
    /// The image that the server has at this step. Each image has its own tag and date. Some images have the same size.
    version: usize,
    manner: Manner,
    /// Bytes that are sent before the connection closes.
    cut: usize,
}

/// The parts of the standard that the server supports.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// All parts.
    Good,
    /// No ranges.
    NoRanges,
    /// The server ignores `If-Range`, but sends the tag.
    NoConditions,
    /// The server sends bytes from another offset.
    WrongPlace,
    /// The server sends a date instead of a tag.
    Dated,
    /// The server sends only a weak tag.
    Weak,
    /// The server sends only a part of the requested range.
    Piece,
    /// The server sends a part without the complete size.
    NoTotal,
}

fn step() -> impl Strategy<Value = Step> {
    use Manner::{Dated, Good, NoConditions, NoRanges, NoTotal, Piece, Weak, WrongPlace};
    let manner = prop::sample::select(vec![
        Good,
        Good,
        NoRanges,
        NoConditions,
        WrongPlace,
        Dated,
        Weak,
        Piece,
        NoTotal,
    ]);
    (0_usize..3, manner, 0_usize..60).prop_map(|(version, manner, cut)| Step {
        version,
        manner,
        cut,
    })
}

fn image(version: usize) -> Vec<u8> {
    let size = [40, 40, 50].get(version).copied().unwrap_or_default();
    (0..size).map(|n| n as u8 | (version as u8) << 6).collect()
}

/// Status, headers and the bytes that would follow.
fn reply(step: &Step, range: RangeRequest<'_>) -> (StatusCode, HeaderMap, Vec<u8>) {
    let (image, tag) = (image(step.version), format!("\"{}\"", step.version));
    let day = format!("Sun, 0{} Nov 1994 08:49:37 GMT", step.version + 1);
    let mut headers = HeaderMap::new();
    let mut say = |name: &'static str, value: String| {
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_str(&value).unwrap(),
        );
    };
    say("date", "Mon, 07 Nov 1994 08:49:37 GMT".to_owned());
    let known = match step.manner {
        Manner::Dated => {
            say("last-modified", day.clone());
            range.validator == Some(&Validator::LastModified(day))
        }
        Manner::Weak => {
            say("etag", format!("W/{tag}"));
            false
        }
        manner => {
            say("etag", tag.clone());
            matches!(manner, Manner::NoConditions) || range.validator == Some(&Validator::ETag(tag))
        }
    };
    let (size, offset) = (image.len(), range.offset as usize);
    if offset == 0 || !known || matches!(step.manner, Manner::NoRanges) {
        say("content-length", size.to_string());
        return (StatusCode::OK, headers, image);
    }
    if offset >= size {
        say("content-range", format!("bytes */{size}"));
        return (StatusCode::RANGE_NOT_SATISFIABLE, headers, Vec::new());
    }
    let (first, last) = match step.manner {
        Manner::WrongPlace => (offset - 1, size - 2),
        Manner::Piece => (offset, (offset + 3).min(size - 1)),
        _ => (offset, size - 1),
    };
    let total = if matches!(step.manner, Manner::NoTotal) {
        "*".to_owned()
    } else {
        size.to_string()
    };
    say("content-range", format!("bytes {first}-{last}/{total}"));
    say("content-length", (last + 1 - first).to_string());
    (
        StatusCode::PARTIAL_CONTENT,
        headers,
        image[first..=last].to_vec(),
    )
}

/// What a fetch has, as `transfer` treats it.
#[derive(Default)]
struct Have {
    bytes: Vec<u8>,
    validator: Option<Validator>,
    total: Option<u64>,
}

impl Have {
    /// Sends one request. Returns whether the image is complete.
    fn ask(&mut self, step: &Step) -> bool {
        let offset = if self.validator.is_some() {
            self.bytes.len() as u64
        } else {
            0
        };
        let range = RangeRequest {
            offset,
            validator: self.validator.as_ref(),
            total: self.total,
            has_checksum: false,
        };
        let (status, headers, body) = reply(step, range);
        match interpret(status, &headers, range).unwrap() {
            Answer::Bytes {
                offset,
                total,
                validator,
            } => {
                if offset == 0 {
                    *self = Self {
                        bytes: Vec::new(),
                        validator,
                        total,
                    };
                }
                self.bytes.extend(body.iter().take(step.cut));
                // A body without a known size is complete at its end.
                self.total.map_or(step.cut >= body.len(), |total| {
                    self.bytes.len() as u64 == total
                })
            }
            Answer::Changed => {
                *self = Self::default();
                false
            }
            Answer::Redirect(_) => unreachable!("no server here redirects"),
        }
    }
}

proptest! {
    #[test]
    fn assembled_file_is_one_complete_image(steps in prop::collection::vec(step(), 1..20)) {
        let mut have = Have::default();
        for step in &steps {
            if have.ask(step) {
                let images = [image(0), image(1), image(2)];
                prop_assert!(images.contains(&have.bytes), "{:?} of {:?}", have.bytes, steps);
                have = Have::default();
            }
        }
    }

    #[test]
    fn a_good_server_is_never_asked_twice_for_a_byte(cuts in prop::collection::vec(1_usize..60, 1..20)) {
        let (mut have, mut came) = (Have::default(), 0);
        for cut in cuts {
            let before = have.bytes.len();
            let whole = have.ask(&Step { version: 0, manner: Manner::Good, cut });
            prop_assert!(have.bytes.len() > before);
            came += have.bytes.len() - before;
            if whole {
                prop_assert_eq!(came, image(0).len());
                break;
            }
        }
    }
}
