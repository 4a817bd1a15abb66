//! (pure) The configuration of HAProxy.

use std::fmt::Write;
use std::net::IpAddr;

/// The port of `/healthz` and `/metrics`.
pub const HEALTH_PORT: i32 = 8404;

/// A port and the hosts behind it.
#[derive(Clone, Debug)]
pub struct Frontend {
    /// The port at which HAProxy listens, and the port of the hosts.
    pub port: i32,
    /// Whether the hosts are API servers, which the health check asks.
    pub is_api_server: bool,
    /// The hosts, in the order of their names.
    pub servers: Vec<Server>,
}

/// A host.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
}

/// The connections of all clients, and as many to the servers. Without a limit, HAProxy derives one from the limit of open files of the
/// node, which can be a billion, and allocates memory for all.
const CONNECTIONS_MAX: u32 = 4096;

/// The configuration. `drain` is the time in seconds that open connections have after a request to stop.
///
/// The time-outs and checks are those of the Airship SIP operator. The client and server time-outs of 600 s are for `kubectl exec` and
/// `kubectl logs -f`. An API server answers 500 for some seconds while another one joins its cluster, so a server fails with the fourth
/// failed check.
#[must_use]
pub fn configuration(frontends: &[Frontend], drain: u64) -> String {
    let mut text = format!(
        "global
  log stdout format raw local0
  maxconn {CONNECTIONS_MAX}
  hard-stop-after {drain}s

defaults
  log global
  mode tcp
  option tcplog
  option dontlognull
  retries 1
  timeout queue 30s
  timeout connect 30s
  timeout client 600s
  timeout server 600s

frontend health
  bind :::{HEALTH_PORT} v4v6
  mode http
  option dontlog-normal
  http-request return status 200 if {{ path /healthz }}
  http-request use-service prometheus-exporter if {{ path /metrics }}
"
    );
    for frontend in frontends {
        // A write into a string does not fail.
        let _ = frontend.write(&mut text);
    }
    text
}

impl Frontend {
    fn write(&self, text: &mut String) -> std::fmt::Result {
        let port = self.port;
        let (balance, check) = match self.is_api_server {
            true => (
                "leastconn\n  option httpchk\n  http-check send meth GET uri /readyz\n  http-check expect status 200",
                " check-ssl verify none",
            ),
            false => ("roundrobin", ""),
        };
        write!(
            text,
            "
frontend port-{port}
  bind :::{port} v4v6
  default_backend port-{port}

backend port-{port}
  balance {balance}
  default-server check{check} inter 5s downinter 2s fall 4 on-marked-down shutdown-sessions
"
        )?;
        for Server { name, address } in &self.servers {
            match address {
                IpAddr::V4(address) => writeln!(text, "  server {name} {address}:{port}")?,
                IpAddr::V6(address) => writeln!(text, "  server {name} [{address}]:{port}")?,
            }
        }
        Ok(())
    }
}
