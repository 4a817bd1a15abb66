//! How images get into the image repository: what the operator tells `vm-runner fetch`, and what that tells back.
//!
//! The operator runs one short-lived pod per image, named [`pod_name`], with the arguments of [`Request`]. While it runs,
//! the last line of its standard output that [`Progress::last`] understands says how far it is; its end is the
//! [`FetchOutcome`] in the container's termination message. The image is then at [`file_name`], whole or not at all.

use crate::api::runner::outcome::shortened;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The directory of the image repository that fetched images are in.
pub const DIRECTORY: &str = "fetched";
/// The schemes that are allowed if nothing else is said.
pub const SCHEMES: [&str; 2] = ["https", "http"];
/// Longest name that a file has from its URL, in characters.
const LONGEST_NAME: usize = 64;

/// What to fetch, whereto, within which limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Where the image is.
    pub url: String,
    /// The file that it becomes; an absolute path in the image repository. Its directory is made.
    pub to: String,
    /// The SHA-256 of the image, 64 hexadecimal digits; `None`: not checked.
    pub sha256: Option<String>,
    /// Size in bytes that the image must not exceed; `None`: no limit.
    pub max_bytes: Option<u64>,
    /// Seconds after which an unfinished fetch ends; `None`: never.
    pub deadline: Option<u64>,
    /// The schemes that the URL, and each URL that a server sends on to, may have. Default [`SCHEMES`].
    pub schemes: Vec<String>,
    /// A file with certificate authorities in PEM that are trusted besides those of the image; an absolute path.
    pub authorities: Option<String>,
}

impl Request {
    /// The arguments of `vm-runner`.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "fetch".to_owned(),
            format!("--url={}", self.url),
            format!("--to={}", self.to),
        ];
        arguments.extend(self.sha256.iter().map(|sum| format!("--sha256={sum}")));
        arguments.extend(self.max_bytes.map(|bytes| format!("--max-bytes={bytes}")));
        arguments.extend(self.deadline.map(|seconds| format!("--deadline={seconds}")));
        arguments.push(format!("--schemes={}", self.schemes.join(",")));
        arguments.extend(
            self.authorities
                .iter()
                .map(|path| format!("--authorities={path}")),
        );
        arguments
    }
}

/// How far a fetch is: a line of JSON on standard output, at the start and then at most every two seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes of the image that are in the repository.
    pub bytes: u64,
    /// Its size in bytes, once the server has said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}

impl Progress {
    /// The newest progress in the end of a pod's log, which may also have other lines, and start within one.
    #[must_use]
    pub fn last(log: &str) -> Option<Self> {
        log.lines()
            .rev()
            .find_map(|line| serde_json::from_str(line.trim()).ok())
    }
}

/// Why a fetch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FetchReason {
    /// The image is there, whole, and has its checksum if one was asked for.
    Fetched,
    /// The file was there before; no server was asked.
    AlreadyThere,
    /// The URL, or one that the server sent on to, has a scheme that is not allowed, or leads from https to http.
    SchemeNotAllowed,
    /// The URL, or one that the server sent on to, cannot be used.
    InvalidUrl,
    /// No answer, or none to its end: name, connection, TLS, or silence.
    ServerUnreachable,
    /// The server says that there is no such thing for us: status 4xx, or an answer that is none to the question.
    ServerRefused,
    /// The server cannot now: status 5xx or 429.
    ServerFailed,
    /// The image is larger than allowed.
    TooLarge,
    /// What the server has is not what was asked for.
    ChecksumMismatch,
    /// The repository cannot be written by the pod's user.
    RepositoryNotWritable,
    /// The repository has no room for the image.
    RepositoryFull,
    /// The time for the fetch is over; another one goes on where this one ended.
    DeadlineExceeded,
    /// The pod was asked to end; another fetch goes on where this one ended.
    Interrupted,
    /// A message by a newer program.
    #[serde(other)]
    Unknown,
}

impl FetchReason {
    /// Whether the image is in the repository.
    #[must_use]
    pub fn is_success(self) -> bool {
        matches!(self, Self::Fetched | Self::AlreadyThere)
    }

    /// Whether another try can succeed without anybody changing the request: the server comes back, the file is put there,
    /// room is made. Each goes on where the last one ended, if the server allows it.
    #[must_use]
    pub fn may_retry(self) -> bool {
        match self {
            Self::ServerUnreachable
            | Self::ServerRefused
            | Self::ServerFailed
            | Self::DeadlineExceeded
            | Self::RepositoryFull
            | Self::RepositoryNotWritable
            | Self::Interrupted => true,
            Self::Fetched
            | Self::AlreadyThere
            | Self::SchemeNotAllowed
            | Self::InvalidUrl
            | Self::TooLarge
            | Self::ChecksumMismatch
            | Self::Unknown => false,
        }
    }

    /// The exit code of `vm-runner fetch`. Wrong arguments are 2.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Fetched | Self::AlreadyThere => 0,
            Self::SchemeNotAllowed => 20,
            Self::InvalidUrl => 21,
            Self::ServerUnreachable => 22,
            Self::ServerRefused => 23,
            Self::ServerFailed => 24,
            Self::TooLarge => 25,
            Self::ChecksumMismatch => 26,
            Self::RepositoryNotWritable => 27,
            Self::RepositoryFull => 28,
            Self::DeadlineExceeded => 29,
            Self::Interrupted => 30,
            Self::Unknown => 31,
        }
    }
}

/// The termination message of a fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchOutcome {
    /// Why the fetch ended.
    pub reason: FetchReason,
    /// What is wrong, where, what to do. Empty where nothing is wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Bytes of the image that are in the repository: all of it, or what the next try goes on from.
    #[serde(default)]
    pub bytes: u64,
}

impl FetchOutcome {
    /// Reads a termination message; `None` if it is not one of ours.
    #[must_use]
    pub fn parse(message: &str) -> Option<Self> {
        serde_json::from_str(message.trim()).ok()
    }

    /// The text for the termination message; a long message is cut.
    #[must_use]
    pub fn to_message(&self) -> String {
        let short = Self {
            message: shortened(&self.message),
            ..self.clone()
        };
        serde_json::to_string(&short).unwrap_or_default()
    }
}

/// Whether that is a SHA-256: 64 hexadecimal digits.
#[must_use]
pub fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a CD image is given by a URL rather than by a name in the repository: it begins with a scheme and `://`.
#[must_use]
pub fn is_url(image: &str) -> bool {
    let scheme = image.split_once("://").map_or("", |(scheme, _)| scheme);
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Where the image is in the repository, relative to it. Different URLs, and different checksums of one URL, never share a
/// file.
#[must_use]
pub fn file_name(url: &str, sha256: Option<&str>) -> String {
    format!("{DIRECTORY}/{}-{}", key(url, sha256), readable_name(url))
}

/// Name of the pod that fetches the image.
#[must_use]
pub fn pod_name(url: &str, sha256: Option<&str>) -> String {
    format!("vmop-fetch-{}", key(url, sha256))
}

/// What tells one image from another: 16 hexadecimal digits.
#[must_use]
pub fn key(url: &str, sha256: Option<&str>) -> String {
    let sum = Sha256::digest(format!(
        "{url}\n{}",
        sha256.unwrap_or_default().to_ascii_lowercase()
    ));
    sum.iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The end of the URL's path, as far as it is harmless in a file's name.
fn readable_name(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let path = path.split_once("://").map_or(path, |(_, rest)| rest);
    let last = path
        .split_once('/')
        .map_or("", |(_, path)| path.rsplit('/').next().unwrap_or_default());
    let harmless: Vec<u8> = last
        .bytes()
        .filter(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte))
        .collect();
    // Of a long name the end is kept, which tells the kind of file.
    let from = harmless.len().saturating_sub(LONGEST_NAME);
    match harmless.get(from..).map(String::from_utf8_lossy) {
        Some(name) if name.bytes().any(|byte| byte.is_ascii_alphanumeric()) => name.into_owned(),
        _ => "image".to_owned(),
    }
}

/// The URL for messages and logs: without user, password and query, which can be secrets.
#[must_use]
pub fn shown(url: &str) -> String {
    let (base, hidden) = match url.find(['?', '#']) {
        Some(at) => (url.get(..at).unwrap_or_default(), "?…"),
        None => (url, ""),
    };
    let (scheme, rest) = base.split_once("://").unwrap_or(("", base));
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let (user, host) = authority
        .rsplit_once('@')
        .map_or(("", authority), |(_, host)| ("…@", host));
    format!(
        "{scheme}{}{user}{host}{path}{hidden}",
        if base.contains("://") { "://" } else { "" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SUM: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    #[test]
    fn names_say_what_they_are_and_do_not_change() {
        let url = "https://cloud.example.org/images/debian%2013.iso?token=x#top";
        assert_eq!(
            file_name(url, None),
            "fetched/ce789a21fd90e347-debian2013.iso"
        );
        assert_eq!(pod_name(url, None), "vmop-fetch-ce789a21fd90e347");
        assert_eq!(
            file_name(url, Some(SUM)),
            file_name(url, Some(&SUM.to_uppercase()))
        );
        assert_ne!(file_name(url, Some(SUM)), file_name(url, None));
        for (url, name) in [
            ("https://example.org", "image"),
            ("https://example.org/", "image"),
            ("https://example.org/..", "image"),
            ("https://example.org/a/b.iso", "b.iso"),
            ("https://example.org?a/b.iso", "image"),
            (
                &format!("https://example.org/{}.iso", "x".repeat(100)),
                &format!("{}.iso", "x".repeat(60)),
            ),
        ] {
            assert_eq!(readable_name(url), name, "{url}");
        }
    }

    #[test]
    fn what_may_be_secret_in_a_url_is_not_shown() {
        for (url, text) in [
            (
                "https://anna:pw@example.org/a.iso?sig=1",
                "https://…@example.org/a.iso?…",
            ),
            ("https://example.org/a@b.iso", "https://example.org/a@b.iso"),
            ("https://example.org#x", "https://example.org?…"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(shown(url), text);
        }
    }

    #[test]
    fn an_image_is_a_url_where_it_begins_with_a_scheme() {
        for url in [
            "https://a/b",
            "http://a",
            "FTP://a",
            "file:///x",
            "git+ssh://x",
        ] {
            assert!(is_url(url), "{url}");
        }
        for name in ["a.iso", "a/b.iso", "://x", "a b://x", "/a://b", "1x://"] {
            assert!(!is_url(name), "{name}");
        }
    }

    #[test]
    fn the_newest_progress_is_found_in_the_end_of_a_log() {
        let log = "tes\":1}\n{\"bytes\":1}\n{\"bytes\":20,\"total\":40}\nserver cut the connection\n{\"by";
        assert_eq!(
            Progress::last(log),
            Some(Progress {
                bytes: 20,
                total: Some(40)
            })
        );
        assert_eq!(Progress::last("nothing"), None);
    }

    #[test]
    fn an_outcome_survives_the_way_through_the_kubelet_and_a_newer_one_is_unknown() {
        let outcome = FetchOutcome {
            reason: FetchReason::TooLarge,
            message: "ä".repeat(5000),
            bytes: 7,
        };
        let text = outcome.to_message();
        assert!(text.len() < 4096);
        let read = FetchOutcome::parse(&text).unwrap();
        assert_eq!((read.reason, read.bytes), (FetchReason::TooLarge, 7));
        assert_eq!(
            FetchOutcome::parse(r#"{"reason":"Teleported"}"#)
                .unwrap()
                .reason,
            FetchReason::Unknown
        );
        assert_eq!(FetchOutcome::parse("Error"), None);
    }

    proptest! {
        #[test]
        fn a_files_name_never_leaves_its_folder(url in ".*", sum in proptest::option::of(".*")) {
            let name = file_name(&url, sum.as_deref());
            let rest = name.strip_prefix("fetched/").unwrap();
            prop_assert!(rest.len() > 17 && rest.len() <= 17 + LONGEST_NAME);
            prop_assert!(rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)), "{}", rest);
            prop_assert!(rest.bytes().take(16).all(|b| b.is_ascii_hexdigit()));
            prop_assert_eq!(name, file_name(&url, sum.as_deref()));
        }

        #[test]
        fn a_password_is_never_shown(password in "[a-z]{8}", path in "[^@]*") {
            let shown = shown(&format!("https://anna:{password}@h/{path}"));
            prop_assert!(shown.starts_with("https://…@h/"), "{}", shown);
        }
    }
}
