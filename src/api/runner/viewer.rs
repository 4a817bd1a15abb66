//! (pure) Messages between the web console and the runner of a VM, on the runner's port for consoles.
//!
//! The connection is TLS with keys that both sides know, and a WebSocket in it. The console sends a [`Request`] first, and the runner
//! answers with an [`Answer`]. Both are texts in JSON. After [`Answer::Connected`], messages with binary data are the protocol of
//! the function. A later [`Answer`] of the runner is the reason of the end.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use strum::IntoStaticStr;

/// Maximum length in bytes of a [`Request`].
pub const REQUEST_MAX: usize = 2 << 10;

/// Maximum length in bytes of an [`Answer`].
pub const ANSWER_MAX: usize = 64 << 10;

/// Maximum length in bytes of [`Display::authority`].
pub const AUTHORITY_MAX: usize = 32 << 10;

/// A runner ends a connection on which it has received nothing for this number of seconds. The console sends pings.
pub const SILENCE_MAX_SECONDS: u64 = 60;

/// The first message of the console.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// UID of the pod. A runner in another pod answers nothing: a runner under the control of an attacker can forward connections to
    /// another one, but not change this.
    pub pod: String,
    /// The function of the VM.
    pub open: Function,
    /// Name of the user.
    pub user: String,
    /// Address of the user's browser.
    pub client: String,
    /// UID of the `VmAssignment` by which a user has the VM, as the console has read it. The function ends with this assignment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assignment: Option<String>,
    /// Whether the user takes the function over from another user. Default: no.
    #[serde(default)]
    pub take_over: bool,
    /// Seconds for which a one-time password of the display is valid. Default: 30.
    #[serde(default = "default_validity")]
    pub valid_seconds: u32,
}

impl Request {
    /// A request that takes nothing over.
    #[must_use]
    pub fn new(pod: &str, open: Function, user: &str, client: IpAddr) -> Self {
        Self {
            pod: pod.to_owned(),
            open,
            user: user.to_owned(),
            client: client.to_string(),
            assignment: None,
            take_over: false,
            valid_seconds: default_validity(),
        }
    }
}

fn default_validity() -> u32 {
    30
}

/// A function of a VM. Unknown ones are an error, so that a later console can try a function of an earlier runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "camelCase")]
pub enum Function {
    /// The screen, by the protocol of VNC without authentication.
    Screen,
    /// The serial console. The last output of the guest comes first.
    Serial,
    /// A password of the SPICE display. The answer is [`Answer::Display`].
    Display,
    /// The end of the user's connection to the SPICE display, and of the password that the user got. The answer is [`Answer::Ended`].
    Disconnect,
}

/// The SPICE display.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Display {
    /// The password. None if the display requires none.
    pub password: Option<String>,
    /// Seconds for which the password is valid. None if it does not expire soon.
    pub valid_seconds: Option<u32>,
    /// Whether the display is encrypted.
    pub is_encrypted: bool,
    /// The certificate authority in PEM of an encrypted display, if it is short enough.
    pub authority: Option<String>,
}

impl fmt::Debug for Display {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Display(valid for {:?} s)", self.valid_seconds)
    }
}

/// A message of the runner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr)]
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
    /// The VM has no SPICE display.
    NoDisplay,
    /// QEMU has not set the password.
    PasswordNotSet,
    /// The display, with a password that QEMU has confirmed.
    Display(Display),
}
