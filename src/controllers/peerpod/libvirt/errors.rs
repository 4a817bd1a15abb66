//! (pure) The failures of calls to libvirt.

use crate::api::peerpod::PeerPodReason;
use crate::controllers::peerpod::failure::Failure;
use crate::controllers::peerpod::libvirt::config::URI;
use crate::controllers::peerpod::libvirt::rpc::{Procedure, RpcError};
use crate::controllers::peerpod::libvirt::xml::Unreadable;

/// Maximum length of a message of libvirt, in characters.
const MESSAGE_MAX: usize = 300;

/// Numbers of libvirt's errors.
pub mod code {
    /// The host does not support the procedure.
    pub const NO_SUPPORT: i32 = 3;
    /// An argument is wrong, for example an unknown flag.
    pub const INVALID_ARG: i32 = 8;
    /// The connection may only read.
    pub const OPERATION_DENIED: i32 = 29;
    /// There is no such domain.
    pub const NO_DOMAIN: i32 = 42;
    /// The login has failed.
    pub const AUTH_FAILED: i32 = 45;
    /// There is no such pool.
    pub const NO_STORAGE_POOL: i32 = 49;
    /// There is no such volume.
    pub const NO_STORAGE_VOL: i32 = 50;
    /// The object is not in the state that the procedure needs.
    pub const OPERATION_INVALID: i32 = 55;
    /// A rule for accounts of the host denies the procedure.
    pub const ACCESS_DENIED: i32 = 88;
}

/// The failure of a call.
pub fn failure(procedure: Procedure, error: RpcError) -> Failure {
    let (code, message) = match error {
        RpcError::Answered { code, message } => (code, message),
        RpcError::Broken(why) => return unreachable(&format!("{procedure:?}: {why}")),
    };
    let (reason, next) = match code {
        code::OPERATION_DENIED | code::ACCESS_DENIED => (
            PeerPodReason::PermissionDenied,
            "give the account of the controller this permission on the host",
        ),
        code::AUTH_FAILED => (
            PeerPodReason::CredentialsRejected,
            "correct the login of the controller at libvirt",
        ),
        _ => (PeerPodReason::DeletionFailed, "the controller tries again"),
    };
    let message: String = message.chars().take(MESSAGE_MAX).collect();
    Failure {
        code: code.to_string(),
        ..Failure::new(
            reason,
            format!("libvirt answers {procedure:?} with error {code}: {message}; {next}"),
        )
    }
}

/// There is no connection, or something else answers.
pub fn unreachable(why: &str) -> Failure {
    let message = format!("libvirt does not answer: {why}; check {URI}, and libvirt on the host");
    Failure::new(PeerPodReason::ProviderUnreachable, message)
}

/// An answer from which nothing follows.
pub fn unreadable(_: Unreadable) -> Failure {
    let message = "a description of libvirt is not understood, so nothing follows from it; check the version of libvirt on the host";
    Failure::new(PeerPodReason::DeletionFailed, message.to_owned())
}
