//! (io) The network addresses from which an image is not imported, and a resolver that omits them.
//!
//! The image of a disk comes from a URL that a user of the cluster chooses, and the user can read the disk. So a URL must not
//! lead to the pod's own loopback interface or to services of the node. Private networks are allowed.

use crate::api::runner::fetch::FetchReason;
use crate::runner::fetch::problem::Problem;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use tower_service::Service;

/// The addresses that a client connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressPolicy {
    /// All addresses.
    Unrestricted,
    /// All but loopback, link-local, unspecified and multicast addresses.
    NoLocal,
}

impl AddressPolicy {
    fn allows(self, address: IpAddr) -> bool {
        self == Self::Unrestricted || !is_local(address)
    }

    /// Checks the host of a URL, if it is an address. The connector resolves names only.
    pub fn check_host(self, host: &str) -> Result<(), Problem> {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse();
        match address {
            Ok(address) if !self.allows(address) => Err(refusal(host, address)),
            _ => Ok(()),
        }
    }

    /// The allowed ones of the addresses of a host.
    fn select(self, host: &str, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, Problem> {
        let is_allowed = |address: &SocketAddr| self.allows(address.ip());
        let (allowed, refused): (Vec<_>, Vec<_>) = found.into_iter().partition(is_allowed);
        match refused.first() {
            Some(address) if allowed.is_empty() => Err(refusal(host, address.ip())),
            _ => Ok(allowed),
        }
    }
}

fn refusal(host: &str, address: IpAddr) -> Problem {
    let message = format!(
        "the host {host} has the address {address}, which is a loopback, link-local, unspecified or multicast address; no disk is \
         imported from such an address; use a server with another address"
    );
    Problem::new(FetchReason::AddressRefused, message)
}

/// Whether the address, or an IPv4 address within it, is a loopback, link-local, unspecified or multicast address.
fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_local_v4(address),
        IpAddr::V6(address) => {
            address.is_loopback()
                || address.is_unspecified()
                || address.is_unicast_link_local()
                || address.is_multicast()
                || embedded_v4(address).is_some_and(is_local_v4)
        }
    }
}

/// Linux takes 0.0.0.0 for the loopback address. The other addresses of this network (RFC 1122) have no use.
fn is_local_v4(address: Ipv4Addr) -> bool {
    address.octets()[0] == 0
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
}

/// The IPv4 address within an IPv6 address: mapped, compatible, NAT64 (RFC 6052) or 6to4 (RFC 3056).
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let from = |high: u16, low: u16| Some(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)));
    match address.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => from(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => from(high, low),
        [0x2002, high, low, ..] => from(high, low),
        _ => None,
    }
}

/// Resolves names to allowed addresses.
#[derive(Clone, Debug)]
pub struct Resolver {
    policy: AddressPolicy,
    system: GaiResolver,
}

impl Resolver {
    /// The resolver of the system, restricted to the addresses that the policy allows.
    pub fn new(policy: AddressPolicy) -> Self {
        let system = GaiResolver::new();
        Self { policy, system }
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        self.system.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (policy, host) = (self.policy, name.as_str().to_owned());
        let found = self.system.call(name);
        Box::pin(async move {
            let selected = policy.select(&host, found.await?.collect());
            selected.map(Vec::into_iter).map_err(io::Error::other)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_refused_in_every_notation() {
        for (address, refused) in [
            ("127.0.0.1", true),
            ("127.255.0.1", true),
            ("0.0.0.0", true),
            ("0.1.2.3", true),
            ("169.254.169.254", true),
            ("224.0.0.1", true),
            ("255.255.255.255", true),
            ("10.0.0.1", false),
            ("172.16.0.1", false),
            ("192.168.0.1", false),
            ("100.64.0.1", false),
            ("1.1.1.1", false),
            ("::", true),
            ("::1", true),
            ("fe80::1", true),
            ("ff02::1", true),
            ("::ffff:127.0.0.1", true),
            ("::ffff:10.0.0.1", false),
            ("::127.0.0.1", true),
            ("64:ff9b::a9fe:a9fe", true),
            ("64:ff9b::101:101", false),
            ("2002:7f00:1::1", true),
            ("2002:a00:1::1", false),
            ("fd00::1", false),
            ("2001:db8::1", false),
        ] {
            let parsed: IpAddr = address.parse().unwrap();
            assert_eq!(is_local(parsed), refused, "{address}");
            let host = if parsed.is_ipv6() {
                format!("[{address}]")
            } else {
                address.to_owned()
            };
            let checked = AddressPolicy::NoLocal.check_host(&host);
            assert_eq!(checked.is_err(), refused, "{host}");
            assert_eq!(AddressPolicy::Unrestricted.check_host(&host), Ok(()));
        }
    }

    #[test]
    fn host_name_without_allowed_address_is_rejected() {
        let all = |texts: &[&str]| -> Vec<SocketAddr> {
            let address = |text: &&str| SocketAddr::new(text.parse().unwrap(), 0);
            texts.iter().map(address).collect()
        };
        let select = |texts: &[&str]| AddressPolicy::NoLocal.select("host", all(texts));
        assert_eq!(select(&["::1", "10.0.0.1"]), Ok(all(&["10.0.0.1"])));
        assert_eq!(select(&[]), Ok(Vec::new()));
        let problem = select(&["169.254.1.2", "::1"]).unwrap_err();
        assert_eq!(problem.reason, FetchReason::AddressRefused);
        let message = problem.message;
        assert!(
            message.contains("host host") && message.contains("169.254.1.2"),
            "{message}"
        );
    }
}
