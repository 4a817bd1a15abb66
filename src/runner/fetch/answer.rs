//! (pure) What a server's answer means for an image of which we have a part.

use crate::api::runner::fetch::FetchReason;
use crate::runner::fetch::problem::Problem;
use http::header::{self, HeaderMap, HeaderName};
use http::{HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What tells that two answers are of the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Validator {
    /// A strong entity tag, with its quotes.
    ETag(String),
    /// The date of the last change, as the server writes it.
    LastModified(String),
}

impl Validator {
    /// The header's value for `If-Range`.
    pub fn value(&self) -> Option<HeaderValue> {
        let (Self::ETag(text) | Self::LastModified(text)) = self;
        HeaderValue::from_str(text).ok()
    }
}

/// What we ask for: all of it, or what follows the part that we have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// Bytes that we have; 0 asks for all.
    pub offset: u64,
    /// What they are of.
    pub validator: Option<&'a Validator>,
    /// The whole size, if it was said with them.
    pub total: Option<u64>,
    /// Whether the end of the image is known by its checksum alone.
    pub has_checksum: bool,
}

/// What we get.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// A redirect to that location.
    Redirect(String),
    /// The bytes from `offset` on follow, which is 0 or what was asked for.
    Bytes {
        offset: u64,
        total: Option<u64>,
        validator: Option<Validator>,
    },
    /// What we have is of no use; all of it is to be asked for.
    Changed,
}

/// Understands an answer.
pub fn understand(
    status: StatusCode,
    headers: &HeaderMap,
    asked: Asked<'_>,
) -> Result<Answer, Problem> {
    let refused = |what: String| Err(Problem::new(FetchReason::ServerRefused, what));
    match status.as_u16() {
        200 => all(headers, asked),
        206 if asked.offset > 0 => rest(headers, asked),
        // A part that is whole is not asked about: it has become too long.
        416 if asked.offset > 0 => Ok(Answer::Changed),
        301 | 302 | 303 | 307 | 308 => {
            match headers.get(header::LOCATION).map(|value| value.as_bytes()) {
                Some(location) => Ok(Answer::Redirect(
                    String::from_utf8_lossy(location).into_owned(),
                )),
                None => refused(format!(
                    "the server answers with a redirect without a location (status {status})"
                )),
            }
        }
        408 | 429 | 500..=599 => {
            let problem = Problem::new(
                FetchReason::ServerFailed,
                format!("the server cannot now (status {status})"),
            );
            Err(Problem {
                again_after: again_after(headers),
                ..problem
            })
        }
        401 | 403 | 407 => refused(format!(
            "may not be read without leave (status {status}); give a URL that anybody may read"
        )),
        404 | 410 => refused(format!("is not there (status {status}); is the URL right?")),
        _ => refused(format!(
            "the server answers with status {status}; is the URL right?"
        )),
    }
}

fn all(headers: &HeaderMap, asked: Asked<'_>) -> Result<Answer, Problem> {
    plain(headers)?;
    let total = number(headers, &header::CONTENT_LENGTH);
    let chunked =
        text(headers, &header::TRANSFER_ENCODING).is_some_and(|value| value.contains("chunked"));
    if total.is_none() && !chunked && !asked.has_checksum {
        let message = "the server sends no Content-Length, so a download that was cut short cannot be told from a complete \
            one; set the image's checksum";
        return Err(Problem::new(FetchReason::ServerRefused, message));
    }
    Ok(Answer::Bytes {
        offset: 0,
        total,
        validator: validator(headers),
    })
}

fn rest(headers: &HeaderMap, asked: Asked<'_>) -> Result<Answer, Problem> {
    plain(headers)?;
    let Some(Extent { first, total }) = extent(headers) else {
        return Ok(Answer::Changed);
    };
    let found = validator(headers);
    let is_other = match (&found, asked.validator) {
        (Some(found), Some(asked)) => found != asked,
        // Behind a date in If-Range it need not stand again: RFC 9110, 15.3.7. A tag must.
        (None, Some(asked)) => matches!(asked, Validator::ETag(_)),
        (_, None) => true,
    };
    let other_total = asked
        .total
        .zip(total)
        .is_some_and(|(asked, found)| asked != found);
    if first != asked.offset || is_other || other_total {
        return Ok(Answer::Changed);
    }
    // Without the total size, the end of this answer may not be the end of the image.
    let Some(total) = total.or(asked.total) else {
        return Ok(Answer::Changed);
    };
    Ok(Answer::Bytes {
        offset: first,
        total: Some(total),
        validator: asked.validator.cloned(),
    })
}

/// We have asked for the bytes as they are.
fn plain(headers: &HeaderMap) -> Result<(), Problem> {
    match text(headers, &header::CONTENT_ENCODING) {
        None => Ok(()),
        Some(coding)
            if coding.trim().is_empty() || coding.trim().eq_ignore_ascii_case("identity") =>
        {
            Ok(())
        }
        Some(coding) => {
            let message = format!(
                "the server sends it as {coding} though asked not to; give a URL of the plain image"
            );
            Err(Problem::new(FetchReason::ServerRefused, message))
        }
    }
}

/// A validator that is the same for the same bytes only: RFC 9110, 8.8.
fn validator(headers: &HeaderMap) -> Option<Validator> {
    let strong = text(headers, &header::ETAG)
        .filter(|tag| tag.starts_with('"') && tag.ends_with('"') && tag.len() > 2);
    // Within the second of the answer, it could change again.
    let changed = text(headers, &header::LAST_MODIFIED)
        .filter(|&changed| text(headers, &header::DATE).is_some_and(|date| date != changed));
    strong
        .map(|tag| Validator::ETag(tag.to_owned()))
        .or_else(|| changed.map(|changed| Validator::LastModified(changed.to_owned())))
}

/// What an answer is of the whole: RFC 9110, 14.4.
struct Extent {
    first: u64,
    total: Option<u64>,
}

fn extent(headers: &HeaderMap) -> Option<Extent> {
    let (range, total) = text(headers, &header::CONTENT_RANGE)?
        .trim()
        .strip_prefix("bytes ")?
        .split_once('/')?;
    let total = if total == "*" {
        None
    } else {
        Some(total.parse().ok()?)
    };
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some(Extent { first, total })
}

/// How long the server wants to be left alone: seconds, or a date by its own clock. RFC 9110, 10.2.3.
fn again_after(headers: &HeaderMap) -> Option<Duration> {
    let reported = text(headers, &header::RETRY_AFTER)?.trim();
    if let Ok(seconds) = reported.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = |text: &str| jiff::fmt::rfc2822::parse(text.trim()).ok();
    let (now, then) = (date(text(headers, &header::DATE)?)?, date(reported)?);
    Some(Duration::try_from(now.duration_until(&then)).unwrap_or_default())
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    text(headers, name)?.trim().parse().ok()
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const NEXT_DAY: &str = "Mon, 07 Nov 1994 08:49:37 GMT";

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    fn answer(
        status: u16,
        list: &[(&'static str, &'static str)],
        asked: Asked<'_>,
    ) -> Result<Answer, FetchReason> {
        let status = StatusCode::from_u16(status).unwrap();
        understand(status, &headers(list), asked).map_err(|problem| problem.reason)
    }

    fn tag() -> Validator {
        Validator::ETag("\"a\"".to_owned())
    }

    #[test]
    fn the_whole_image_has_a_length_and_what_it_is_known_by() {
        let all = Asked::default();
        let bytes = |total, validator| {
            Ok(Answer::Bytes {
                offset: 0,
                total,
                validator,
            })
        };
        assert_eq!(
            answer(200, &[("content-length", "7"), ("etag", "\"a\"")], all),
            bytes(Some(7), Some(tag()))
        );
        assert_eq!(
            answer(200, &[("content-length", "7"), ("etag", "W/\"a\"")], all),
            bytes(Some(7), None)
        );
        let dated = [
            ("content-length", "7"),
            ("last-modified", DAY),
            ("date", NEXT_DAY),
            ("etag", "W/\"a\""),
        ];
        assert_eq!(
            answer(200, &dated, all),
            bytes(Some(7), Some(Validator::LastModified(DAY.to_owned())))
        );
        let just_now = [
            ("content-length", "7"),
            ("last-modified", DAY),
            ("date", DAY),
        ];
        assert_eq!(answer(200, &just_now, all), bytes(Some(7), None));
        assert_eq!(
            answer(200, &[("transfer-encoding", "chunked")], all),
            bytes(None, None)
        );
        assert_eq!(
            answer(200, &[], all),
            Err(FetchReason::ServerRefused),
            "its end could be a cut connection"
        );
        assert_eq!(
            answer(
                200,
                &[],
                Asked {
                    has_checksum: true,
                    ..all
                }
            ),
            bytes(None, None)
        );
        assert_eq!(
            answer(
                200,
                &[("content-length", "7"), ("content-encoding", "gzip")],
                all
            ),
            Err(FetchReason::ServerRefused)
        );
    }

    #[test]
    fn only_the_rest_of_the_same_image_is_put_behind_a_part() {
        let tag = tag();
        let asked = Asked {
            offset: 3,
            validator: Some(&tag),
            total: Some(7),
            has_checksum: false,
        };
        let bytes = Ok(Answer::Bytes {
            offset: 3,
            total: Some(7),
            validator: Some(tag.clone()),
        });
        assert_eq!(
            answer(
                206,
                &[("content-range", "bytes 3-6/7"), ("etag", "\"a\"")],
                asked
            ),
            bytes
        );
        assert_eq!(
            answer(
                206,
                &[("content-range", "bytes 3-6/*"), ("etag", "\"a\"")],
                asked
            ),
            bytes
        );
        assert_eq!(
            answer(206, &[("content-range", "bytes 3-6/7")], asked),
            Ok(Answer::Changed),
            "a tag must stand there"
        );
        let date = Validator::LastModified(DAY.to_owned());
        let dated = Ok(Answer::Bytes {
            offset: 3,
            total: Some(7),
            validator: Some(date.clone()),
        });
        let asked_by_date = Asked {
            validator: Some(&date),
            ..asked
        };
        assert_eq!(
            answer(206, &[("content-range", "bytes 3-6/7")], asked_by_date),
            dated
        );
        let no_end = answer(
            206,
            &[("content-range", "bytes 3-4/*"), ("etag", "\"a\"")],
            Asked {
                total: None,
                ..asked
            },
        );
        assert_eq!(
            no_end,
            Ok(Answer::Changed),
            "its end need not be the image's"
        );
        for other in [
            &[("content-range", "bytes 2-6/7"), ("etag", "\"a\"")][..],
            &[("content-range", "bytes 3-7/8"), ("etag", "\"a\"")],
            &[("content-range", "bytes 3-6/7"), ("etag", "\"b\"")],
            &[("content-range", "bytes 6-3/7"), ("etag", "\"a\"")],
            &[("content-type", "multipart/byteranges")],
        ] {
            assert_eq!(answer(206, other, asked), Ok(Answer::Changed), "{other:?}");
        }
        assert_eq!(
            answer(206, &[("content-range", "bytes 0-6/7")], Asked::default()),
            Err(FetchReason::ServerRefused)
        );
        let all = answer(200, &[("content-length", "9")], asked);
        assert_eq!(
            all,
            Ok(Answer::Bytes {
                offset: 0,
                total: Some(9),
                validator: None
            })
        );
    }

    #[test]
    fn a_part_that_is_longer_than_the_image_is_of_no_use() {
        let tag = tag();
        let asked = Asked {
            offset: 7,
            validator: Some(&tag),
            total: None,
            has_checksum: false,
        };
        for range in ["bytes */7", "bytes */6"] {
            assert_eq!(
                answer(416, &[("content-range", range)], asked),
                Ok(Answer::Changed)
            );
        }
        assert_eq!(
            answer(416, &[], Asked::default()),
            Err(FetchReason::ServerRefused)
        );
    }

    #[test]
    fn each_status_says_whether_another_try_has_a_point() {
        for (status, reason) in [
            (400, FetchReason::ServerRefused),
            (401, FetchReason::ServerRefused),
            (404, FetchReason::ServerRefused),
            (204, FetchReason::ServerRefused),
            (304, FetchReason::ServerRefused),
            (302, FetchReason::ServerRefused),
            (408, FetchReason::ServerFailed),
            (429, FetchReason::ServerFailed),
            (500, FetchReason::ServerFailed),
            (503, FetchReason::ServerFailed),
        ] {
            assert_eq!(
                answer(status, &[], Asked::default()),
                Err(reason),
                "{status}"
            );
        }
        let on = answer(308, &[("location", "/b")], Asked::default());
        assert_eq!(on, Ok(Answer::Redirect("/b".to_owned())));
    }

    #[test]
    fn a_server_says_in_seconds_or_by_its_clock_how_long_it_wants_to_be_left_alone() {
        let after = |headers: &[(&'static str, &str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.insert(
                    HeaderName::from_static(name),
                    HeaderValue::from_str(value).unwrap(),
                );
            }
            understand(StatusCode::SERVICE_UNAVAILABLE, &map, Asked::default())
                .unwrap_err()
                .again_after
        };
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(after(&[("retry-after", "120")]), seconds(120));
        assert_eq!(
            after(&[date, ("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT")]),
            seconds(30)
        );
        assert_eq!(
            after(&[date, ("retry-after", "Sun, 06 Nov 1994 08:49:07 GMT")]),
            seconds(0)
        );
        // Without the server's clock, its date says nothing.
        assert_eq!(
            after(&[("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT")]),
            None
        );
        for nothing in [
            &[("retry-after", "soon")][..],
            &[("retry-after", "-1")],
            &[date],
        ] {
            assert_eq!(after(nothing), None, "{nothing:?}");
        }
    }
}
