//! (pure) URLs of images: validation, and resolution of redirects.

use crate::api::runner::fetch::{FetchReason, is_url, shown};
use crate::runner::fetch::problem::Problem;
use http::Uri;
use std::fmt::Write;

/// The schemes that this program supports.
const SUPPORTED_SCHEMES: [&str; 2] = ["https", "http"];

/// A validated URL: absolute, of an allowed scheme, with a host and without user and password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    uri: Uri,
}

impl Address {
    /// Validates the URL that the user has given.
    pub fn parse(text: &str, allowed: &[String]) -> Result<Self, Problem> {
        Self::checked(text, allowed).map_err(|problem| problem.at(&shown(text)))
    }

    /// Whether both addresses lead to the same server.
    pub fn has_origin_of(&self, other: &Self) -> bool {
        self.is_https() == other.is_https() && self.authority() == other.authority()
    }

    /// The target of a redirect from this address.
    pub fn follow(&self, location: &str, allowed: &[String]) -> Result<Self, Problem> {
        let text = self.resolve(location);
        let at_redirect =
            |problem: Problem| problem.at(&format!("{self} redirects to {}", shown(&text)));
        let next = Self::checked(&text, allowed).map_err(at_redirect)?;
        if self.is_https() && !next.is_https() {
            let message = "redirects from https to http are not allowed, because http does not protect the image against \
                           changes; use a URL without such a redirect";
            return Err(at_redirect(Problem::new(
                FetchReason::SchemeNotAllowed,
                message,
            )));
        }
        Ok(next)
    }

    fn checked(text: &str, allowed: &[String]) -> Result<Self, Problem> {
        let invalid = |what: String| Problem::new(FetchReason::InvalidUrl, what);
        if !is_url(text) {
            return Err(invalid(
                "the text is not a URL; write a URL such as https://host/path".to_owned(),
            ));
        }
        let scheme = text
            .split_once("://")
            .map(|(scheme, _)| scheme.to_ascii_lowercase())
            .unwrap_or_default();
        if !SUPPORTED_SCHEMES.contains(&scheme.as_str())
            || !allowed
                .iter()
                .any(|other| other.eq_ignore_ascii_case(&scheme))
        {
            let message = format!(
                "the URL scheme {scheme:?} is not allowed; use one of: {}",
                allowed.join(", ")
            );
            return Err(Problem::new(FetchReason::SchemeNotAllowed, message));
        }
        let text = text.split('#').next().unwrap_or_default();
        let uri: Uri = encoded(text)
            .parse()
            .map_err(|error| invalid(format!("the URL is invalid: {error}; correct the URL")))?;
        let authority = uri
            .authority()
            .map(|authority| authority.as_str())
            .unwrap_or_default();
        if authority.contains('@') {
            let message = "the URL contains a user or a password, which everybody with read access to the VM can see; use a URL \
                without user and password, or copy the CD image into the image repository";
            return Err(invalid(message.to_owned()));
        }
        let host = uri.host().unwrap_or_default();
        let port = authority.strip_prefix(host).unwrap_or(authority);
        if host.is_empty() || !(port.is_empty() || uri.port_u16().is_some()) {
            return Err(invalid(
                "the URL has no host, or an invalid port after the host; write a URL such as https://host:port/path"
                    .to_owned(),
            ));
        }
        Ok(Self { uri })
    }

    /// The absolute URL of a relative reference (RFC 3986, section 5.2).
    fn resolve(&self, reference: &str) -> String {
        let scheme = self.uri.scheme_str().unwrap_or_default();
        let base = format!("{scheme}://{}", self.authority());
        let path = self.uri.path();
        match reference.split('#').next().unwrap_or_default() {
            reference if is_url(reference) => reference.to_owned(),
            "" => self.uri.to_string(),
            reference if reference.starts_with("//") => format!("{scheme}:{reference}"),
            reference if reference.starts_with('/') => format!("{base}{}", without_dots(reference)),
            reference if reference.starts_with('?') => format!("{base}{path}{reference}"),
            reference => {
                let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                format!("{base}{}", without_dots(&format!("{folder}/{reference}")))
            }
        }
    }

    /// Whether TLS protects the connection.
    pub fn is_https(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }

    /// Host and port, in the format of the `Host` header.
    pub fn authority(&self) -> &str {
        self.uri
            .authority()
            .map(|authority| authority.as_str())
            .unwrap_or_default()
    }

    /// The URL.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }
}

/// The URL in messages: without the query, which can contain a secret.
impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&shown(&self.uri.to_string()))
    }
}

/// The URL with percent-encoding of the characters that path and query must not contain. The host is not changed.
fn encoded(url: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + 3);
    let path = url
        .get(start..)
        .and_then(|rest| rest.find(['/', '?']))
        .map_or(url.len(), |at| start + at);
    let (host, path) = url.split_at(path);
    path.bytes().fold(host.to_owned(), |mut text, byte| {
        match byte {
            b'!'..=b'~' if !b"\"<>\\^`{|}".contains(&byte) => text.push(char::from(byte)),
            // Writing to a string cannot fail.
            _ => _ = write!(text, "%{byte:02X}"),
        }
        text
    })
}

/// A path without segments `.` and `..`. The query is not changed.
fn without_dots(path: &str) -> String {
    let (path, query) = path.find('?').map_or((path, ""), |at| path.split_at(at));
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => _ = segments.pop(),
            segment => segments.push(segment),
        }
    }
    let slash = if path.ends_with("/.") || path.ends_with("/..") {
        "/"
    } else {
        ""
    };
    format!("/{}{slash}{query}", segments.join("/")).replacen(
        "//",
        "/",
        usize::from(segments.is_empty()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn both() -> Vec<String> {
        SUPPORTED_SCHEMES.map(str::to_owned).to_vec()
    }

    fn reason(text: &str, allowed: &[&str]) -> FetchReason {
        let allowed: Vec<String> = allowed.iter().map(|&scheme| scheme.to_owned()).collect();
        Address::parse(text, &allowed).unwrap_err().reason
    }

    #[test]
    fn url_with_disallowed_or_unsupported_scheme_is_rejected() {
        assert_eq!(
            reason("http://h/a", &["https"]),
            FetchReason::SchemeNotAllowed
        );
        assert_eq!(reason("ftp://h/a", &["ftp"]), FetchReason::SchemeNotAllowed);
        assert_eq!(
            reason("file:///etc/passwd", &["https", "http"]),
            FetchReason::SchemeNotAllowed
        );
        for text in [
            "a.iso",
            "https:///a",
            "https://",
            "https://h:x/",
            "https://a b/",
            "https://u:p@h/",
            "https://u@h/",
        ] {
            assert_eq!(
                reason(text, &["https", "http"]),
                FetchReason::InvalidUrl,
                "{text}"
            );
        }
        let message = Address::parse("https://u:sesame@h/a?key=sesame", &both())
            .unwrap_err()
            .message;
        assert!(
            !message.contains("sesame") && message.starts_with("https://…@h/a?…: "),
            "{message}"
        );
    }

    #[test]
    fn invalid_url_characters_are_percent_encoded() {
        let address = Address::parse("HTTPS://h:8443/a b/ä.iso?x={1}#top", &both()).unwrap();
        assert_eq!(
            address.uri().path_and_query().unwrap().as_str(),
            "/a%20b/%C3%A4.iso?x=%7B1%7D"
        );
        assert_eq!((address.authority(), address.is_https()), ("h:8443", true));
        assert_eq!(
            Address::parse("http://[::1]:80?x", &both())
                .unwrap()
                .uri()
                .path(),
            "/"
        );
    }

    #[test]
    fn a_server_sends_on_as_the_standard_says() {
        // RFC 3986, 5.4.1
        let base = Address::parse("http://a/b/c/d;p?q", &both()).unwrap();
        for (reference, target) in [
            ("http://g/x", "http://g/x"),
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g/"),
            ("?y", "http://a/b/c/d;p?y"),
            ("g?y", "http://a/b/c/g?y"),
            ("g?y/../x", "http://a/b/c/g?y/../x"),
            ("#s", "http://a/b/c/d;p?q"),
            ("", "http://a/b/c/d;p?q"),
            (".", "http://a/b/c/"),
            ("..", "http://a/b/"),
            ("../g", "http://a/b/g"),
            ("../..", "http://a/"),
            ("../../../g", "http://a/g"),
            ("https://g/", "https://g/"),
        ] {
            assert_eq!(
                base.follow(reference, &both()).unwrap().uri().to_string(),
                target,
                "{reference}"
            );
        }
    }

    #[test]
    fn redirect_to_a_disallowed_url_is_rejected() {
        let base = Address::parse("https://h/a", &both()).unwrap();
        let reason = |location: &str| base.follow(location, &both()).unwrap_err().reason;
        assert_eq!(reason("http://h/a"), FetchReason::SchemeNotAllowed);
        assert_eq!(reason("file:///etc/passwd"), FetchReason::SchemeNotAllowed);
        assert_eq!(reason("https://u:p@h/a"), FetchReason::InvalidUrl);
        assert_eq!(reason("//u@h/a"), FetchReason::InvalidUrl);
    }

    proptest! {
        #[test]
        fn redirect_never_leaves_the_allowed_schemes(location in ".*") {
            let base = Address::parse("https://h/a/b", &both()).unwrap();
            if let Ok(next) = base.follow(&location, &both()) {
                prop_assert!(next.is_https() && !next.authority().contains('@'));
            }
        }
    }
}
