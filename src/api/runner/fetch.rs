//! Download of CD images into the image repository: the contract between the operator and `vm-runner fetch`.
//!
//! The operator runs one download pod per image, named [`pod_name`], with the arguments of [`Request`]. While the pod runs, the
//! last line of its standard output that [`Progress::last`] can parse is the progress. The termination message of its
//! container is the [`FetchOutcome`]. After a success the complete image is at [`file_name`], otherwise no file is there.

use crate::api::runner::outcome::shortened;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use strum::IntoStaticStr;

/// Directory of downloaded images in the image repository.
pub const DIRECTORY: &str = "fetched";
/// The schemes that are allowed by default.
pub const SCHEMES: [&str; 2] = ["https", "http"];
/// Maximum length of the part of a file name that comes from the URL, in characters.
const NAME_CHARS_MAX: usize = 64;

/// A download: source, target and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// URL of the image.
    pub url: String,
    /// Absolute path of the target file in the image repository. The download creates its directory.
    pub to: String,
    /// Checksum of the image; `None` means not checked.
    pub checksum: Option<Checksum>,
    /// Maximum size of the image, in bytes; `None` means no limit.
    pub max_bytes: Option<u64>,
    /// Maximum duration of the download, in seconds; `None` means no limit.
    pub deadline: Option<u64>,
    /// Allowed schemes of the URL and of redirects. Default: [`SCHEMES`].
    pub schemes: Vec<String>,
    /// Absolute path of a PEM file with certificate authorities, which are trusted in addition to those of the runner's image.
    pub authorities: Option<String>,
}

/// The copy of another disk. The UID of the disk's PVC comes with
/// [`PodIdentity`](crate::api::runner::identity::PodIdentity).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyRequest {
    /// Absolute path of the image file or block device that is copied.
    pub from: String,
    /// Absolute path of the image file or block device of the disk.
    pub to: String,
    /// Absolute path of the runner data, which record the import.
    pub data: String,
}

impl CopyRequest {
    /// The arguments of `vm-runner`.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let Self { from, to, data } = self;
        let options = [
            format!("--data={data}"),
            format!("--from={from}"),
            format!("--to={to}"),
        ];
        ["import".to_owned()].into_iter().chain(options).collect()
    }
}

/// The import of an image onto a disk: a [`Request`] whose target is the image file of the disk. The UID of the disk's PVC comes with
/// [`PodIdentity`](crate::api::runner::identity::PodIdentity).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportRequest {
    /// The download. Its `to` is the image file of the disk.
    pub fetch: Request,
    /// Absolute path of the runner data, which record the import.
    pub data: String,
    /// Format of the image, `raw` or `qcow2`; `None` means that of its first bytes.
    pub format: Option<String>,
}

/// Port of the loopback address of an import pod that waits for an upload.
pub const UPLOAD_PORT: u16 = 8080;

/// The import of an image that a user uploads to [`UPLOAD_PORT`]. The UID of the disk's PVC comes with
/// [`PodIdentity`](crate::api::runner::identity::PodIdentity).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadRequest {
    /// Absolute path of the image file or block device of the disk.
    pub to: String,
    /// Absolute path of the runner data, which record the import.
    pub data: String,
    /// Checksum of the image; `None` means not checked.
    pub checksum: Option<Checksum>,
    /// Format of the image, `raw` or `qcow2`; `None` means that of its first bytes.
    pub format: Option<String>,
}

impl UploadRequest {
    /// The arguments of `vm-runner`.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let required = [
            "import".to_owned(),
            format!("--data={}", self.data),
            format!("--listen={UPLOAD_PORT}"),
            format!("--to={}", self.to),
        ];
        let checksum = self.checksum.iter().map(Checksum::argument);
        let format = self
            .format
            .iter()
            .map(|format| format!("--format={format}"));
        required.into_iter().chain(checksum).chain(format).collect()
    }
}

/// An expected checksum: hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Checksum {
    Sha256(String),
    Sha512(String),
}

impl Checksum {
    /// The checksum in the form of a VM's field, such as `sha256:` and 64 digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (algorithm, digits) = text.split_once(':')?;
        match algorithm {
            "sha256" => Some(Self::Sha256(digits.to_owned())),
            "sha512" => Some(Self::Sha512(digits.to_owned())),
            _ => None,
        }
    }

    /// The hexadecimal digits.
    #[must_use]
    pub fn digits(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::Sha512(digits) => digits,
        }
    }

    fn argument(&self) -> String {
        match self {
            Self::Sha256(digits) => format!("--sha256={digits}"),
            Self::Sha512(digits) => format!("--sha512={digits}"),
        }
    }
}

impl ImportRequest {
    /// The arguments of `vm-runner`.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["import".to_owned(), format!("--data={}", self.data)];
        let format = self.format.iter();
        arguments.extend(format.map(|format| format!("--format={format}")));
        arguments.extend(self.fetch.options());
        arguments
    }
}

impl Request {
    /// The arguments of `vm-runner`.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["fetch".to_owned()];
        arguments.extend(self.options());
        arguments
    }

    /// The arguments after the subcommand.
    fn options(&self) -> Vec<String> {
        let mut arguments = vec![format!("--url={}", self.url), format!("--to={}", self.to)];
        arguments.extend(self.checksum.iter().map(Checksum::argument));
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

/// Environment variables with the user and the password for the host of the URL.
pub const ENV_USERNAME: &str = "VMRUNNER_HTTP_USERNAME";
/// See [`ENV_USERNAME`].
pub const ENV_PASSWORD: &str = "VMRUNNER_HTTP_PASSWORD";

/// Progress of a download: a line of JSON on standard output, at the start and then at most every two seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes of the image that are in the repository.
    pub bytes: u64,
    /// Size of the image in bytes, after the server has reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// What the numbers count. Default: the download.
    #[serde(default, skip_serializing_if = "Phase::is_download")]
    pub phase: Phase,
}

/// A phase of an import. A CD image has only the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The image is being downloaded.
    #[default]
    Download,
    /// The downloaded image is being converted to the format of the disk. `bytes` and `total` count bytes of the disk.
    Conversion,
    /// Another disk is being copied.
    Copy,
    /// A user sends the image. `total` is unknown until the first bytes come.
    Upload,
}

impl Phase {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    fn is_download(&self) -> bool {
        *self == Self::Download
    }
}

impl Progress {
    /// The newest progress in the end of a pod's log. The log may contain other lines and may start within a line.
    #[must_use]
    pub fn last(log: &str) -> Option<Self> {
        log.lines()
            .rev()
            .find_map(|line| serde_json::from_str(line.trim()).ok())
    }
}

/// The reason that a download ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr)]
pub enum FetchReason {
    /// The image is complete, and has the requested checksum.
    Fetched,
    /// The file already existed; the download sent no request.
    AlreadyThere,
    /// The scheme of the URL or of a redirect is not allowed, or a redirect leads from https to http.
    SchemeNotAllowed,
    /// The URL or the URL of a redirect is invalid.
    InvalidUrl,
    /// The server did not answer completely: the cause is name resolution, connection, TLS or a timeout.
    ServerUnreachable,
    /// The server does not have the file or denies access: status 4xx, or an answer of another kind than requested.
    ServerRefused,
    /// The server reports a temporary failure: status 5xx or 429.
    ServerFailed,
    /// The image is larger than allowed.
    TooLarge,
    /// The checksum of the file differs from the requested checksum.
    ChecksumMismatch,
    /// The pod's user cannot write to the image repository.
    RepositoryNotWritable,
    /// The image repository has no space for the image.
    RepositoryFull,
    /// The download exceeded its maximum duration; a retry resumes it.
    DeadlineExceeded,
    /// The pod received a request to stop; a retry resumes the download.
    Interrupted,
    /// The image has a format that cannot be imported onto a disk.
    FormatNotSupported,
    /// The image has a feature that is refused, such as a backing file, or is damaged.
    ImageRefused,
    /// The URL, or the URL of a redirect, leads to an address from which nothing is imported, such as a loopback address.
    AddressRefused,
    /// The disk has contents that no start and no import of this VM has written.
    DiskNotEmpty,
    /// The disk is empty, although the VM has used it or an import has filled it.
    DataMissing,
    /// The disk is empty, although its `dataSource` should have filled it.
    DiskNotCloned,
    /// Another process uses the disk or the runner data; a retry can succeed.
    DiskInUse,
    /// Another process uses the disk that is copied.
    SourceInUse,
    /// The disk that is copied does not exist, is empty, or cannot be opened.
    SourceMissing,
    /// A reason that only a newer runner knows.
    #[serde(other)]
    Unknown,
}

impl FetchReason {
    /// Whether the image is in the image repository.
    #[must_use]
    pub fn is_success(self) -> bool {
        matches!(self, Self::Fetched | Self::AlreadyThere)
    }

    /// Whether a retry of the same request can succeed, because the state of server or image repository can change. A retry
    /// resumes the download if the server supports it.
    #[must_use]
    pub fn may_retry(self) -> bool {
        match self {
            Self::ServerUnreachable
            | Self::ServerRefused
            | Self::ServerFailed
            | Self::DeadlineExceeded
            | Self::RepositoryFull
            | Self::RepositoryNotWritable
            | Self::Interrupted
            | Self::DiskInUse
            | Self::SourceInUse
            | Self::SourceMissing => true,
            Self::Fetched
            | Self::AlreadyThere
            | Self::SchemeNotAllowed
            | Self::InvalidUrl
            | Self::TooLarge
            | Self::ChecksumMismatch
            | Self::FormatNotSupported
            | Self::ImageRefused
            | Self::AddressRefused
            | Self::DiskNotEmpty
            | Self::DataMissing
            | Self::DiskNotCloned
            | Self::Unknown => false,
        }
    }

    /// The exit code of `vm-runner fetch`. The exit code after wrong arguments is 2.
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
            Self::FormatNotSupported => 32,
            Self::ImageRefused => 33,
            Self::AddressRefused => 34,
            Self::DiskNotEmpty => 35,
            Self::DataMissing => 36,
            Self::DiskInUse => 37,
            Self::SourceInUse => 38,
            Self::SourceMissing => 39,
            Self::DiskNotCloned => 40,
        }
    }
}

/// The termination message of a download.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchOutcome {
    /// The reason that the download ended.
    pub reason: FetchReason,
    /// Message for users: problem, place and next step. Empty after a success.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Bytes of the image that are in the repository: the whole image, or the part that a retry can resume from.
    #[serde(default)]
    pub bytes: u64,
}

impl FetchOutcome {
    /// Parses a termination message. `None` if `vm-runner fetch` did not write it.
    #[must_use]
    pub fn parse(message: &str) -> Option<Self> {
        serde_json::from_str(message.trim()).ok()
    }

    /// The text of the termination message. A long message is truncated.
    #[must_use]
    pub fn to_message(&self) -> String {
        let short = Self {
            message: shortened(&self.message),
            ..self.clone()
        };
        serde_json::to_string(&short).unwrap_or_default()
    }
}

/// Whether a CD image is a URL and not a path in the image repository. A URL begins with a scheme and `://`.
#[must_use]
pub fn is_url(image: &str) -> bool {
    let scheme = image.split_once("://").map_or("", |(scheme, _)| scheme);
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Path of the image, relative to the image repository. Different URLs, and different checksums of one URL, never share a
/// file.
#[must_use]
pub fn file_name(url: &str, sha256: Option<&str>) -> String {
    format!("{DIRECTORY}/{}-{}", key(url, sha256), readable_name(url))
}

/// Name of the download pod of an image.
#[must_use]
pub fn pod_name(url: &str, sha256: Option<&str>) -> String {
    format!("vmop-fetch-{}", key(url, sha256))
}

/// Key of an image, from URL and digits of its checksum: 16 hexadecimal digits.
#[must_use]
pub fn key(url: &str, checksum: Option<&str>) -> String {
    let sum = Sha256::digest(format!(
        "{url}\n{}",
        checksum.unwrap_or_default().to_ascii_lowercase()
    ));
    sum.iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The last segment of the URL's path, with only those characters that are safe in a file name.
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
    // A long name is truncated at its beginning, because its end has the file type.
    let from = harmless.len().saturating_sub(NAME_CHARS_MAX);
    match harmless.get(from..).map(String::from_utf8_lossy) {
        Some(name) if name.bytes().any(|byte| byte.is_ascii_alphanumeric()) => name.into_owned(),
        _ => "image".to_owned(),
    }
}

/// The URL in messages and logs: without user, password and query, which can be confidential.
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
    fn names_are_readable_and_stable() {
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
    fn confidential_parts_of_a_url_are_not_shown() {
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
    fn an_image_with_a_scheme_is_a_url() {
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
    fn the_newest_progress_is_parsed_from_the_end_of_a_log() {
        let log = "tes\":1}\n{\"bytes\":1}\n{\"bytes\":20,\"total\":40}\nserver cut the connection\n{\"by";
        assert_eq!(
            Progress::last(log),
            Some(Progress {
                bytes: 20,
                total: Some(40),
                phase: Phase::Download,
            })
        );
        assert_eq!(Progress::last("nothing"), None);
    }

    #[test]
    fn a_long_message_fits_into_a_termination_message_and_a_newer_reason_is_unknown() {
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
        fn a_file_name_never_leaves_its_directory(url in ".*", sum in proptest::option::of(".*")) {
            let name = file_name(&url, sum.as_deref());
            let rest = name.strip_prefix("fetched/").unwrap();
            prop_assert!(rest.len() > 17 && rest.len() <= 17 + NAME_CHARS_MAX);
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
