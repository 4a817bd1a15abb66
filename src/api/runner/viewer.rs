//! (pure) Messages between the web console and the runner of a VM, on the runner's port for consoles.
//!
//! The connection is TLS with keys that both sides know, and a WebSocket in it. The console sends a [`Request`] first, and the runner
//! answers with an [`Answer`]. Both are texts in JSON. After [`Answer::Connected`], messages with binary data are the protocol of
//! the function. A later [`Answer`] of the runner is the reason of the end.

use serde::{Deserialize, Serialize};

/// Maximum length in bytes of a [`Request`] and of an [`Answer`].
pub const TEXT_MAX: usize = 2 << 10;

/// A runner ends a connection on which it has received nothing for this number of seconds. The console sends pings.
pub const SILENCE_MAX_SECONDS: u64 = 60;

/// The first message of the console.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// The function of the VM.
    pub open: Function,
    /// Name of the user.
    pub user: String,
    /// Address of the user's browser.
    pub client: String,
    /// Whether the user takes the function over from another user. Default: no.
    #[serde(default)]
    pub take_over: bool,
}

/// A function of a VM. Unknown ones are an error, so that a later console can try a function of an earlier runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Function {
    /// The screen, by the protocol of VNC without authentication.
    Screen,
}

/// A message of the runner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all_fields = "camelCase")]
pub enum Answer {
    /// The function is open.
    Connected,
    /// Another user has it.
    InUse {
        /// Name of that user.
        user: String,
    },
    /// Another user has taken it over.
    TakenOver {
        /// Name of that user.
        user: String,
    },
    /// The same user has opened it again.
    Replaced,
    /// QEMU has ended it.
    Ended,
    /// The runner does not have it.
    Unsupported,
}
