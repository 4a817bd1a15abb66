//! (pure) The configuration that calls to libvirt need, from the objects of the cloud-api-adaptor.

use crate::api::peerpod::PeerPodReason;
use crate::controllers::peerpod::adaptor::AdaptorConfig;
use crate::controllers::peerpod::failure::Failure;
use http::uri::Authority;
use std::collections::BTreeMap;

/// Key with the URI of the host.
pub const URI: &str = "LIBVIRT_URI";
const POOL: &str = "LIBVIRT_POOL";
/// The host of the adaptor if there is no other one.
const DEFAULT_URI: &str = "qemu+ssh://root@192.168.122.1/system?no_verify=1";
/// Key of the Secret with a private key.
pub const SSH_KEY: &str = "id_rsa";
/// Key of the Secret with the keys of hosts, as in a file of this name.
pub const KNOWN_HOSTS: &str = "known_hosts";
/// Sockets of libvirt on a host: of the one daemon, and of the daemon for QEMU.
const SOCKETS: [&str; 2] = [
    "/var/run/libvirt/libvirt-sock",
    "/var/run/libvirt/virtqemud-sock",
];

/// A host behind SSH.
#[derive(Clone, PartialEq, Eq)]
pub struct SshConfig {
    /// Account on the host.
    pub user: String,
    /// Name or address of the host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Name of the Secret, for messages.
    pub secret: String,
    /// The private key.
    pub key: String,
    /// The keys of hosts. None: the host can have any key.
    pub known_hosts: Option<String>,
}

/// The configuration of calls to libvirt.
#[derive(Clone, PartialEq, Eq)]
pub struct LibvirtConfig {
    /// The host. None: libvirt runs on this machine.
    pub ssh: Option<SshConfig>,
    /// Sockets of libvirt. The first one that exists is used.
    pub sockets: Vec<String>,
    /// The storage pool of the adaptor.
    pub pool: String,
}

impl LibvirtConfig {
    /// The configuration. `ssh` is the Secret with that name.
    ///
    /// # Errors
    /// A value is missing or wrong.
    pub fn of(
        adaptor: &AdaptorConfig,
        ssh: (&str, &BTreeMap<String, String>),
    ) -> Result<Self, Failure> {
        let uri = adaptor.get(URI).unwrap_or(DEFAULT_URI);
        // The message does not have the URI, which can contain a password.
        let invalid = |why: &str| {
            let message = format!(
                "the key {URI} of {} {why}; use one such as qemu+ssh://root@host/system or qemu:///system",
                adaptor.names()
            );
            Failure::new(PeerPodReason::ConfigInvalid, message)
        };
        let parts = Parts::of(uri).ok_or_else(|| invalid("is no URI of QEMU's system instance"))?;
        let ssh = match (parts.transport, parts.authority) {
            ("unix", "") => None,
            ("ssh", _) => {
                let (user, host, port) = parts
                    .account()
                    .ok_or_else(|| invalid("has no account and host for SSH"))?;
                let (secret, keys) = ssh;
                Some(SshConfig {
                    user,
                    host,
                    port,
                    secret: secret.to_owned(),
                    key: required(secret, keys, SSH_KEY, "")?,
                    known_hosts: match parts.parameter("no_verify").as_deref() {
                        Some("1") => keys.get(KNOWN_HOSTS).cloned(),
                        _ => Some(required(secret, keys, KNOWN_HOSTS, NO_VERIFY)?),
                    },
                })
            }
            ("tcp" | "tls", _) => {
                return Err(invalid(
                    "names the transport TCP or TLS, which this controller does not use",
                ));
            }
            _ => {
                return Err(invalid(
                    "names a transport that this controller does not know",
                ));
            }
        };
        let sockets = match parts.parameter("socket") {
            Some(socket) => vec![socket],
            None => SOCKETS.map(str::to_owned).to_vec(),
        };
        let pool = adaptor.get(POOL).unwrap_or("default").to_owned();
        Ok(Self { ssh, sockets, pool })
    }
}

/// The next step besides the missing key.
const NO_VERIFY: &str = ", or no_verify=1 to the URI if the network to the host is trusted";

fn required(
    secret: &str,
    keys: &BTreeMap<String, String>,
    key: &str,
    or: &str,
) -> Result<String, Failure> {
    let value = keys.get(key).filter(|it| !it.is_empty()).cloned();
    value.ok_or_else(|| {
        let message = format!("Secret {secret} lacks the key {key}, which {URI} needs; add it{or}");
        Failure::new(PeerPodReason::ConfigMissing, message)
    })
}

/// The parts of a URI: `qemu[+<transport>]://<authority>/system[?<query>]`.
struct Parts<'a> {
    transport: &'a str,
    authority: &'a str,
    query: &'a str,
}

impl<'a> Parts<'a> {
    fn of(uri: &'a str) -> Option<Self> {
        let (scheme, rest) = uri.split_once("://")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let authority = rest.strip_suffix("/system")?;
        let local = match authority {
            "" => "unix",
            _ => "tls",
        };
        let (driver, transport) = scheme.split_once('+').unwrap_or((scheme, local));
        (driver == "qemu").then_some(Self {
            transport,
            authority,
            query,
        })
    }

    /// Account, host and port. A password is none, because the adaptor uses keys.
    fn account(&self) -> Option<(String, String, u16)> {
        let authority: Authority = self.authority.parse().ok()?;
        let (user, _) = self.authority.rsplit_once('@').unwrap_or(("root", ""));
        let host = authority.host().trim_matches(['[', ']']);
        let is_legal = !user.is_empty() && !user.contains(':') && !host.is_empty();
        let port = authority.port_u16().unwrap_or(22);
        is_legal.then(|| (user.to_owned(), host.to_owned(), port))
    }

    fn parameter(&self, name: &str) -> Option<String> {
        let mut all = form_urlencoded::parse(self.query.as_bytes());
        let (_, value) = all.find(|(key, value)| key == name && !value.is_empty())?;
        Some(value.into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The configuration with that URI, or the reason and the message.
    fn config(uri: &str, keys: &[&str]) -> Result<LibvirtConfig, (&'static str, String)> {
        let values = [(URI, uri)].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let adaptor = AdaptorConfig::new(("cm", values.into()), ("secret", BTreeMap::new()));
        let keys = keys
            .iter()
            .map(|it| ((*it).to_owned(), format!("planted-{it}")));
        let config = LibvirtConfig::of(&adaptor, ("ssh", &keys.collect()));
        config.map_err(|failure| (failure.reason.into(), failure.message))
    }

    #[test]
    fn hosts_are_local_or_behind_ssh() {
        let local = config("qemu:///system?socket=/a/b", &[]).unwrap();
        assert!(local.ssh.is_none());
        assert_eq!(
            (local.sockets, &*local.pool),
            (vec!["/a/b".to_owned()], "default")
        );
        let both = [SSH_KEY, KNOWN_HOSTS];
        for (uri, keys, expected, has_known) in [
            (
                "qemu+ssh://root@host/system",
                &both[..],
                ("root", "host", 22),
                true,
            ),
            (
                "qemu+ssh://host:23/system?no_verify=1",
                &both,
                ("root", "host", 23),
                true,
            ),
            (
                "qemu+ssh://me@[::1]:23/system?no_verify=1&socket=/a",
                &both[..1],
                ("me", "::1", 23),
                false,
            ),
            // The default of the adaptor.
            ("", &both[..1], ("root", "192.168.122.1", 22), false),
        ] {
            let ssh = config(uri, keys).unwrap().ssh.unwrap();
            assert_eq!((&*ssh.user, &*ssh.host, ssh.port), expected, "{uri}");
            assert_eq!(ssh.known_hosts.is_some(), has_known, "{uri}");
        }
    }

    #[test]
    fn other_transports_and_missing_keys_are_reported_without_secrets() {
        for (uri, keys, reason, part) in [
            (
                "qemu+tcp://host/system",
                &[][..],
                "ConfigInvalid",
                "TCP or TLS",
            ),
            ("qemu+tls://host/system", &[], "ConfigInvalid", "TCP or TLS"),
            ("qemu://host/system", &[], "ConfigInvalid", "TCP or TLS"),
            (
                "qemu+libssh2://host/system",
                &[],
                "ConfigInvalid",
                "does not know",
            ),
            (
                "qemu+unix://host/system",
                &[],
                "ConfigInvalid",
                "does not know",
            ),
            ("qemu:///session", &[], "ConfigInvalid", "system instance"),
            ("test:///default", &[], "ConfigInvalid", "system instance"),
            (
                "qemu+ssh://me:planted@host/system",
                &[],
                "ConfigInvalid",
                "account and host",
            ),
            (
                "qemu+ssh:///system",
                &[],
                "ConfigInvalid",
                "account and host",
            ),
            (
                "qemu+ssh://host/system",
                &[KNOWN_HOSTS],
                "ConfigMissing",
                SSH_KEY,
            ),
            (
                "qemu+ssh://host/system",
                &[SSH_KEY],
                "ConfigMissing",
                "no_verify=1",
            ),
            (
                "qemu+ssh://host/system?no_verify=0",
                &[SSH_KEY],
                "ConfigMissing",
                KNOWN_HOSTS,
            ),
        ] {
            let Err((found, message)) = config(uri, keys) else {
                panic!("{uri}");
            };
            assert_eq!(found, reason, "{uri}: {message}");
            assert!(
                message.contains(part) && !message.contains("planted"),
                "{uri}: {message}"
            );
        }
    }
}
