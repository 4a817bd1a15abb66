//! A SPICE client without a window: `spicy-screenshot`, of the Debian package spice-client-gtk.

use std::time::Duration;
use tokio::process::Command;

/// Until the client has a picture, or is turned away.
const PATIENCE: Duration = Duration::from_secs(30);

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
    let dir = tempfile::tempdir().unwrap();
    let picture = dir.path().join("screen.ppm");
    let mut client = Command::new("spicy-screenshot");
    client.arg("--uri").arg(format!("spice://{address}:{port}")).arg("--out-file").arg(&picture).kill_on_drop(true);
    client.args(password.into_iter().flat_map(|password| ["--password", password]));
    let output = tokio::time::timeout(PATIENCE, client.output()).await.expect("the client is still there");
    let output = output.unwrap_or_else(|e| panic!("spicy-screenshot: {e}; run `make install`"));
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if std::fs::read(&picture).is_ok_and(|content| content.starts_with(b"P6")) {
        return Entry::Admitted;
    }
    // SPICE_CHANNEL_ERROR_AUTH
    assert!(said.contains("channel event: 23"), "{said}");
    Entry::Refused
}
