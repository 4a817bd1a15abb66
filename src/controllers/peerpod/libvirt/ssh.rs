//! (client) A stream to a socket of a host, over SSH.

use crate::api::peerpod::PeerPodReason;
use crate::controllers::peerpod::failure::Failure;
use crate::controllers::peerpod::libvirt::config::{SshConfig, URI};
use crate::controllers::peerpod::libvirt::errors::unreachable;
use ring::hmac;
use russh::client::{self, Handler, Msg};
use russh::keys::ssh_key::known_hosts::{Entry, HostPatterns, KnownHosts};
use russh::keys::{
    Algorithm, HashAlg, PrivateKeyWithHashAlg, PublicKey, PublicKeyOrCertificate, decode_secret_key,
};
use russh::{ChannelStream, Preferred};
use std::borrow::Cow;
use std::sync::Arc;

/// The keys that a host can have. None: each key is accepted.
struct HostKeys(Option<Vec<PublicKey>>);

impl Handler for HostKeys {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        key: &PublicKeyOrCertificate,
    ) -> Result<bool, Self::Error> {
        Ok(match (&self.0, key) {
            (None, _) => true,
            (Some(known), PublicKeyOrCertificate::PublicKey { key, .. }) => {
                known.iter().any(|it| it.key_data() == key.key_data())
            }
            (Some(_), PublicKeyOrCertificate::Certificate(_)) => false,
        })
    }
}

/// Connects to the first of the sockets that exists.
///
/// # Errors
/// The host does not answer, has another key, or rejects the login; or the configuration is wrong.
pub async fn connect(
    config: &SshConfig,
    sockets: &[String],
) -> Result<ChannelStream<Msg>, Failure> {
    let invalid = |key: &str, why: &str| {
        let message = format!("the key {key} of Secret {} {why}", config.secret);
        Failure::new(PeerPodReason::ConfigInvalid, message)
    };
    let key = decode_secret_key(&config.key, None)
        .map_err(|_| invalid("id_rsa", "is no private key without a passphrase; use one"))?;
    let known = config.known_hosts.as_deref();
    let known = known.map(|known| keys_of(known, &config.host, config.port));
    if known.as_ref().is_some_and(Vec::is_empty) {
        let why = format!(
            "has no key of host {}; add the lines that ssh-keyscan prints",
            config.host
        );
        return Err(invalid("known_hosts", &why));
    }
    let mut client = client::Config::default();
    if let Some(known) = &known {
        // The host shows one of its keys. It must be one that is known.
        client.preferred = Preferred {
            key: Cow::Owned(known.iter().flat_map(algorithms).collect()),
            ..Preferred::default()
        };
    }
    let address = (config.host.as_str(), config.port);
    let mut session = client::connect(Arc::new(client), address, HostKeys(known))
        .await
        .map_err(|error| match error {
            russh::Error::UnknownKey => unreachable(&format!(
                "host {} has another key than the key known_hosts of Secret {}",
                config.host, config.secret
            )),
            error => unreachable(&error.to_string()),
        })?;
    let failed = |error: russh::Error| unreachable(&error.to_string());
    let hash = session.best_supported_rsa_hash().await.map_err(failed)?;
    let key = PrivateKeyWithHashAlg::new(Arc::new(key), hash.flatten());
    let login = session.authenticate_publickey(&config.user, key).await;
    if !login.map_err(failed)?.success() {
        let message = format!(
            "host {} rejects the key id_rsa of Secret {} for the account {}; add its public part to the authorized keys of the account, or change {URI}",
            config.host, config.secret, config.user
        );
        return Err(Failure::new(PeerPodReason::CredentialsRejected, message));
    }
    let mut last = String::new();
    for socket in sockets {
        match session.channel_open_direct_streamlocal(socket).await {
            // The session lives as long as the stream.
            Ok(channel) => return Ok(channel.into_stream()),
            Err(error) => {
                last = format!(
                    "{socket} on host {}: {error}; the SSH server must allow AllowStreamLocalForwarding",
                    config.host
                )
            }
        }
    }
    Err(unreachable(&last))
}

/// The keys of the host in the text of a file `known_hosts`. A revoked key is none.
fn keys_of(known: &str, host: &str, port: u16) -> Vec<PublicKey> {
    let name = match port {
        22 => host.to_owned(),
        port => format!("[{host}]:{port}"),
    };
    let entries = KnownHosts::new(known).filter_map(Result::ok);
    let own = entries.filter(|it| it.marker().is_none() && names(it, &name));
    own.map(|it| it.public_key().clone()).collect()
}

fn names(entry: &Entry, name: &str) -> bool {
    match entry.host_patterns() {
        HostPatterns::Patterns(patterns) => patterns.iter().any(|it| it == name),
        HostPatterns::HashedName { salt, hash } => {
            let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, salt);
            hmac::verify(&key, name.as_bytes(), hash).is_ok()
        }
    }
}

/// The signatures that a host with this key can make. SHA-1 is not among them.
fn algorithms(key: &PublicKey) -> Vec<Algorithm> {
    match key.algorithm() {
        Algorithm::Rsa { .. } => [HashAlg::Sha512, HashAlg::Sha256]
            .map(|hash| Algorithm::Rsa { hash: Some(hash) })
            .into(),
        algorithm => vec![algorithm],
    }
}
