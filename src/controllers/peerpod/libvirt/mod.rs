//! (client) The provider `libvirt`: domains of QEMU on one host, by libvirt's remote protocol.
//!
//! ```text
//! round ──► connect ──► the host's UUID ──► find: domain, description, volumes ──► delete: destroy, undefine, volumes
//! ```
//!
//! Each round of calls has its own connection, so that a restart of the host or of libvirt costs one round at most.

pub mod config;
mod errors;
mod proof;
mod rpc;
mod session;
mod ssh;
mod xdr;
mod xml;

use crate::controllers::peerpod::failure::Failure;
use crate::controllers::peerpod::gate::TokenBucket;
use crate::controllers::peerpod::libvirt::config::{KNOWN_HOSTS, LibvirtConfig, URI};
use crate::controllers::peerpod::libvirt::errors::unreachable;
use crate::controllers::peerpod::libvirt::rpc::Rpc;
use crate::k8s::leader::Leadership;
use futures::FutureExt;
use futures::future::BoxFuture;
use russh::ChannelStream;
use russh::client::Msg;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_util::either::Either;

pub use session::Session;

/// Maximum number of instances in one round of calls. A deletion takes some seconds.
pub const INSTANCES_MAX: usize = 8;
/// Calls per second, and the number of calls after a time without calls. A deletion reads the description of each domain and volume of the host.
const RATE: (f64, f64) = (50.0, 100.0);
/// Time for the connection, with the login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A stream to a socket of libvirt.
pub trait Socket: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Socket for T {}

/// Opens the socket of libvirt at a path of this machine.
pub type OpenSocket =
    Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Box<dyn Socket>>> + Send + Sync>;

/// Opens sockets of this machine.
pub fn open_socket() -> OpenSocket {
    Arc::new(|path: String| {
        async move {
            let stream = UnixStream::connect(path).await?;
            Ok::<Box<dyn Socket>, io::Error>(Box::new(stream))
        }
        .boxed()
    })
}

/// A stream to libvirt.
type Stream = Either<Box<dyn Socket>, ChannelStream<Msg>>;

/// A host with one configuration.
pub struct Host {
    config: LibvirtConfig,
    leadership: Leadership,
    open_socket: OpenSocket,
    bucket: TokenBucket,
}

impl Host {
    /// A host. Nothing is connected yet.
    pub fn new(config: LibvirtConfig, leadership: Leadership, open_socket: OpenSocket) -> Self {
        let bucket = TokenBucket::new(RATE.0, RATE.1);
        if let Some(ssh) = config.ssh.as_ref().filter(|it| it.known_hosts.is_none()) {
            tracing::warn!(
                "the key of host {} is not verified, because {URI} has no_verify=1 and Secret {} has no key {KNOWN_HOSTS}: another host can answer in \
                 its place",
                ssh.host,
                ssh.secret
            );
        }
        Self {
            config,
            leadership,
            open_socket,
            bucket,
        }
    }

    /// Connects.
    ///
    /// # Errors
    /// The host does not answer, or demands a login.
    pub async fn begin_round(&mut self) -> Result<Session<'_>, Failure> {
        let rpc = Rpc::new(self.connect().await?, self.leadership.clone());
        Session::open(rpc, &mut self.bucket, &self.config.pool).await
    }

    async fn connect(&self) -> Result<Stream, Failure> {
        if !self.leadership.leads() {
            return Err(unreachable("this operator is not the leader"));
        }
        let connection = async {
            match &self.config.ssh {
                Some(ssh) => ssh::connect(ssh, &self.config.sockets)
                    .await
                    .map(Either::Right),
                None => self.connect_here().await.map(Either::Left),
            }
        };
        let connection = timeout(CONNECT_TIMEOUT, connection).await;
        connection.unwrap_or_else(|_| Err(unreachable("no connection in time")))
    }

    async fn connect_here(&self) -> Result<Box<dyn Socket>, Failure> {
        let mut last = String::new();
        for socket in &self.config.sockets {
            match (self.open_socket)(socket.clone()).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = format!("{socket}: {error}"),
            }
        }
        Err(unreachable(&last))
    }
}
