//! A SPICE client without a window: `spicy-screenshot`, of the Debian package spice-client-gtk.

use std::path::Path;
use std::time::Duration;
use tokio::process::Command;

/// Until the client has a picture, or is turned away.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// What a client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A picture.
    Admitted,
    /// It is told that its password is none.
    Refused,
}

/// Connects to a display.
///
/// # Panics
/// If the client ends in any other way than the two.
pub async fn enter(address: &str, port: u16, password: Option<&str>) -> Entry {
    let (has_picture, said) = connect(&format!("spice://{address}:{port}"), password, None).await;
    if has_picture {
        return Entry::Admitted;
    }
    // SPICE_CHANNEL_ERROR_AUTH
    assert!(said.contains("channel event: 23"), "{said}");
    Entry::Refused
}

/// Connects to a display on that port of this host by TLS, trusting that authority and nobody else; whether there is a
/// picture.
///
/// # Panics
/// If there is none for another reason than that the display is not trusted.
pub async fn enter_by_tls(port: u16, password: &str, authority: &Path) -> bool {
    let uri = format!("spice://localhost?tls-port={port}");
    let (has_picture, said) = connect(&uri, Some(password), Some(authority)).await;
    // SPICE_CHANNEL_ERROR_TLS
    assert!(has_picture || said.contains("channel event: 21"), "{said}");
    has_picture
}

/// Whether the client has a picture, and what it has said.
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
    let said = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    (
        std::fs::read(&picture).is_ok_and(|content| content.starts_with(b"P6")),
        said,
    )
}
