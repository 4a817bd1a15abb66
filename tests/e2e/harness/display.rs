//! A SPICE client without a window: `spicy-screenshot`, of the Debian package spice-client-gtk.

use std::path::Path;
use std::time::Duration;
use tokio::process::Command;

/// The time limit until the client has a picture or is rejected.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// The result of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A picture.
    Admitted,
    /// The password is rejected.
    Refused,
}

/// Connects to a display.
///
/// # Panics
/// The client fails in another way.
pub async fn enter(address: &str, port: u16, password: Option<&str>) -> Entry {
    let (has_picture, output_text) =
        connect(&format!("spice://{address}:{port}"), password, None).await;
    if has_picture {
        return Entry::Admitted;
    }
    // SPICE_CHANNEL_ERROR_AUTH
    assert!(output_text.contains("channel event: 23"), "{output_text}");
    Entry::Refused
}

/// Connects by TLS to a display on that port of this host, and trusts only that authority. Returns whether there is a
/// picture.
///
/// # Panics
/// It fails for another reason than an untrusted certificate.
pub async fn enter_by_tls(port: u16, password: &str, authority: &Path) -> bool {
    let uri = format!("spice://localhost?tls-port={port}");
    let (has_picture, output_text) = connect(&uri, Some(password), Some(authority)).await;
    // SPICE_CHANNEL_ERROR_TLS
    assert!(
        has_picture || output_text.contains("channel event: 21"),
        "{output_text}"
    );
    has_picture
}

/// Whether the client has a picture, and its output.
pub async fn connect(
    uri: &str,
    password: Option<&str>,
    authority: Option<&Path>,
) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    let picture = dir.path().join("screen.ppm");
    let mut client = Command::new("spicy-screenshot");
    client
        .arg("--uri")
        .arg(uri)
        .arg("--out-file")
        .arg(&picture)
        .kill_on_drop(true);
    client.args(
        password
            .into_iter()
            .flat_map(|password| ["--password", password]),
    );
    if let Some(authority) = authority {
        client
            .env("SSL_CERT_FILE", authority)
            .env("HOME", dir.path());
    }
    let output = tokio::time::timeout(CLIENT_TIMEOUT, client.output())
        .await
        .expect("the client is still there");
    let output = output.unwrap_or_else(|e| panic!("spicy-screenshot: {e}; run `make install`"));
    let output_text = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    (
        std::fs::read(&picture).is_ok_and(|content| content.starts_with(b"P6")),
        output_text,
    )
}
