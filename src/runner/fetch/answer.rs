//! (pure) Interpretation of a server's response to the request for an image or for the rest of a partial download.

use crate::api::runner::fetch::FetchReason;
use crate::runner::fetch::problem::Problem;
use http::header::{self, HeaderMap, HeaderName};
use http::{HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// An HTTP validator: two responses with an equal validator have the same content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Validator {
    /// A strong entity tag, with its quotes.
    ETag(String),
    /// The date of the last change, in the spelling of the server.
    LastModified(String),
}

impl Validator {
    /// The header's value for `If-Range`.
    pub fn value(&self) -> Option<HeaderValue> {
        let (Self::ETag(text) | Self::LastModified(text)) = self;
        HeaderValue::from_str(text).ok()
    }
}

/// A request for an image, or for the bytes after a partial download.
#[derive(Clone, Copy, Debug, Default)]
pub struct RangeRequest<'a> {
    /// Size of the partial download in bytes; 0 requests the complete image.
    pub offset: u64,
    /// The version of the image that the partial download belongs to.
    pub validator: Option<&'a Validator>,
    /// Size of the complete image, if the server has reported it.
    pub total: Option<u64>,
    /// Whether a checksum detects an incomplete image.
    pub has_checksum: bool,
}

/// A response that the download can use.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// A redirect to that location.
    Redirect(String),
    /// The body has the bytes from `offset` on, which is 0 or the requested offset.
    Bytes {
        offset: u64,
        total: Option<u64>,
        validator: Option<Validator>,
    },
    /// The partial download cannot be continued; the complete image must be requested.
    Changed,
}

/// Interprets status and headers of a response.
pub fn interpret(
    status: StatusCode,
    headers: &HeaderMap,
    range: RangeRequest<'_>,
) -> Result<Answer, Problem> {
    let refused = |message: String| Err(Problem::new(FetchReason::ServerRefused, message));
    match status.as_u16() {
        200 => complete_response(headers, range),
        206 if range.offset > 0 => partial_response(headers, range),
        // A complete download is never requested again, so this partial download is longer than the image.
        416 if range.offset > 0 => Ok(Answer::Changed),
        301 | 302 | 303 | 307 | 308 => {
            match headers.get(header::LOCATION).map(|value| value.as_bytes()) {
                Some(location) => Ok(Answer::Redirect(
                    String::from_utf8_lossy(location).into_owned(),
                )),
                None => refused(format!(
                    "the server redirects without a Location header (status {status}); use the URL of the image itself"
                )),
            }
        }
        408 | 429 | 500..=599 => {
            let problem = Problem::new(
                FetchReason::ServerFailed,
                format!("the server reports a temporary failure (status {status})"),
            );
            Err(Problem {
                retry_after: retry_after(headers),
                ..problem
            })
        }
        401 | 403 | 407 => refused(format!(
            "the server requires authentication (status {status}); use a URL that needs no login, or correct the user and the password \
             (source.http.secretName of the disk)"
        )),
        404 | 410 => refused(format!(
            "the server does not have this file (status {status}); correct the URL"
        )),
        _ => refused(format!(
            "the server answers with the unexpected status {status}; check the URL"
        )),
    }
}

fn complete_response(headers: &HeaderMap, range: RangeRequest<'_>) -> Result<Answer, Problem> {
    check_encoding(headers)?;
    let total = number(headers, &header::CONTENT_LENGTH);
    let chunked =
        text(headers, &header::TRANSFER_ENCODING).is_some_and(|value| value.contains("chunked"));
    if total.is_none() && !chunked && !range.has_checksum {
        let message = "the server sends no Content-Length, so an interrupted download would look complete; set the \
                       image's checksum (the field `checksum` beside its URL)";
        return Err(Problem::new(FetchReason::ServerRefused, message));
    }
    Ok(Answer::Bytes {
        offset: 0,
        total,
        validator: validator(headers),
    })
}

fn partial_response(headers: &HeaderMap, range: RangeRequest<'_>) -> Result<Answer, Problem> {
    check_encoding(headers)?;
    let Some(Extent { first, total }) = extent(headers) else {
        return Ok(Answer::Changed);
    };
    let found = validator(headers);
    let is_other = match (&found, range.validator) {
        (Some(found), Some(range)) => found != range,
        // After If-Range with a date, the response may omit the date, but not an entity tag (RFC 9110, 15.3.7).
        (None, Some(range)) => matches!(range, Validator::ETag(_)),
        (_, None) => true,
    };
    let other_total = range
        .total
        .zip(total)
        .is_some_and(|(range, found)| range != found);
    if first != range.offset || is_other || other_total {
        return Ok(Answer::Changed);
    }
    // Without the total size, the end of this response may not be the end of the image.
    let Some(total) = total.or(range.total) else {
        return Ok(Answer::Changed);
    };
    Ok(Answer::Bytes {
        offset: first,
        total: Some(total),
        validator: range.validator.cloned(),
    })
}

/// Rejects a compressed response: the request allows only the encoding `identity`.
fn check_encoding(headers: &HeaderMap) -> Result<(), Problem> {
    match text(headers, &header::CONTENT_ENCODING) {
        None => Ok(()),
        Some(coding)
            if coding.trim().is_empty() || coding.trim().eq_ignore_ascii_case("identity") =>
        {
            Ok(())
        }
        Some(coding) => {
            let message = format!(
                "the server sends the image compressed ({coding}), although the request does not allow compression; use the \
                 URL of an uncompressed image"
            );
            Err(Problem::new(FetchReason::ServerRefused, message))
        }
    }
}

/// The strong validator of a response: it changes with every change of the content (RFC 9110, 8.8).
fn validator(headers: &HeaderMap) -> Option<Validator> {
    let strong = text(headers, &header::ETAG)
        .filter(|tag| tag.starts_with('"') && tag.ends_with('"') && tag.len() > 2);
    // A file that changed in the second of the response can change again with the same date.
    let changed = text(headers, &header::LAST_MODIFIED)
        .filter(|&changed| text(headers, &header::DATE).is_some_and(|date| date != changed));
    strong
        .map(|tag| Validator::ETag(tag.to_owned()))
        .or_else(|| changed.map(|changed| Validator::LastModified(changed.to_owned())))
}

/// The range of the image that a response contains (RFC 9110, 14.4).
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

/// The delay that the server requests: seconds, or a date by the server's clock (RFC 9110, 10.2.3).
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
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
mod tests;
