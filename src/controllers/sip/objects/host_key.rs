//! The key with which a jump host identifies itself to SSH clients.

use crate::k8s::error::Error;
use k8s_openapi::ByteString;
use russh::keys::ssh_key::LineEnding;
use russh::keys::ssh_key::private::Ed25519Keypair;
use russh::keys::{PrivateKey, ssh_key};
use std::collections::BTreeMap;

/// Key of the Secret: the private key, in the format of OpenSSH.
pub const PRIVATE_KEY: &str = "ssh_host_ed25519_key";
/// Key of the Secret: the public key, in the format of OpenSSH.
pub const PUBLIC_KEY: &str = "ssh_host_ed25519_key.pub";

/// The data of the Secret: a new key.
///
/// # Errors
/// The kernel returns no random bytes.
pub fn generate() -> Result<BTreeMap<String, ByteString>, Error> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| Error::Panic(error.to_string()))?;
    let failed = |error: ssh_key::Error| Error::Panic(error.to_string());
    let key = PrivateKey::from(Ed25519Keypair::from_seed(&seed));
    let private = key.to_openssh(LineEnding::LF).map_err(failed)?;
    let public = key.public_key().to_openssh().map_err(failed)?;
    let data = [
        (PRIVATE_KEY, private.as_bytes().to_vec()),
        (PUBLIC_KEY, format!("{public}\n").into_bytes()),
    ];
    let data = data.map(|(name, bytes)| (name.to_owned(), ByteString(bytes)));
    Ok(data.into())
}
