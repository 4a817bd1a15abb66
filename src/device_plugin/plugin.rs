//! The running plugin: one socket for each resource, their registration, and the reasons to exit.
//!
//! A kubelet that starts removes all sockets of plugins. The plugin then exits, and the kubelet starts its container again. So
//! it registers once, and has no other way to recover.

use crate::device_plugin::host::{Device, Host, HostDevices};
use crate::device_plugin::offer::Offer;
use crate::device_plugin::protocol::{
    Empty, KUBELET_SOCKET, Options, REGISTER, RegisterRequest, VERSION,
};
use crate::device_plugin::service::Service;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;
use tonic::transport::{Endpoint, Server};
use tonic_prost::ProstCodec;

/// The waits of the plugin.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Interval between observations of devices and sockets.
    pub interval: Duration,
    /// Maximum duration of one registration. The kubelet allows itself 10 s to connect to the plugin before it answers.
    pub registration_max: Duration,
    /// Maximum time without streams to the kubelet after the registration. The kubelet opens them at once.
    pub streams_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            registration_max: Duration::from_secs(15),
            streams_max: Duration::from_secs(10),
        }
    }
}

/// The reason for which the plugin exits. Its container then starts again.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// The kubelet has started again.
    #[error("the kubelet has restarted and has created its socket {0} again")]
    KubeletChanged(PathBuf),
    /// The socket was removed or replaced.
    #[error(
        "another process has removed or replaced the socket {0} of the device plugin; run only one DaemonSet vm-device-plugin, \
            in kube-system"
    )]
    SocketReplaced(PathBuf),
    /// The kubelet has closed a stream, or has not opened it.
    #[error(
        "the kubelet has requested the device lists of only {streams} of {resources} resources; the device plugin exits, and \
            registers again after its restart"
    )]
    Disconnected {
        /// Streams to the kubelet.
        streams: usize,
        /// Registered resources.
        resources: usize,
    },
    /// The directory is not writable.
    #[error(
        "cannot use the kubelet's socket {0}: {1}; name the directory of the socket with --plugin-dir"
    )]
    Socket(PathBuf, io::Error),
    /// The kubelet does not accept a resource.
    #[error("the kubelet rejects the registration of the resource {0}: {1}")]
    Registration(&'static str, String),
}

/// Offers the resources until there is a reason to exit.
pub async fn serve(offers: &[Offer], host: &Host, plugin_dir: &Path, timing: Timing) -> Stopped {
    match start(offers, host, plugin_dir, timing).await {
        Ok(running) => running.until_stopped(host, timing).await,
        Err(stopped) => stopped,
    }
}

/// A registered plugin.
struct Running {
    kubelet: (PathBuf, FileId),
    sockets: Vec<Socket>,
    present: Arc<watch::Sender<HostDevices>>,
    devices: Vec<Device>,
    registered: Instant,
}

async fn start(
    offers: &[Offer],
    host: &Host,
    plugin_dir: &Path,
    timing: Timing,
) -> Result<Running, Stopped> {
    let mut devices: Vec<Device> = offers.iter().map(|offer| offer.device).collect();
    devices.dedup();
    let present = Arc::new(watch::Sender::new(HostDevices::new()));
    observe(host, &devices, &present);
    let path = plugin_dir.join(KUBELET_SOCKET);
    let kubelet = wait_for_kubelet(&path, timing).await;
    let mut sockets = Vec::new();
    for offer in offers {
        let service = Service {
            offer: *offer,
            present: Arc::clone(&present),
        };
        let socket = plugin_dir.join(offer.socket_name());
        let bound = Socket::bind(&socket, service).map_err(|e| Stopped::Socket(socket, e))?;
        sockets.push(bound);
    }
    for offer in offers {
        let registration = timeout(timing.registration_max, register(&path, offer));
        let problem = match registration.await {
            Ok(Ok(())) => {
                tracing::info!(resource = offer.resource, "registered");
                continue;
            }
            Ok(Err(status)) => format!("{}: {}", status.code(), status.message()),
            Err(_) => format!(
                "the kubelet has not answered within {} s",
                timing.registration_max.as_secs()
            ),
        };
        return Err(Stopped::Registration(offer.resource, problem));
    }
    Ok(Running {
        kubelet: (path, kubelet),
        sockets,
        present,
        devices,
        registered: Instant::now(),
    })
}

impl Running {
    async fn until_stopped(self, host: &Host, timing: Timing) -> Stopped {
        let mut ticks = interval(timing.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            observe(host, &self.devices, &self.present);
            if let Some(stopped) = self.stopped(timing) {
                return stopped;
            }
        }
    }

    fn stopped(&self, timing: Timing) -> Option<Stopped> {
        let (path, kubelet) = &self.kubelet;
        if FileId::of(path).as_ref() != Some(kubelet) {
            return Some(Stopped::KubeletChanged(path.clone()));
        }
        if let Some(socket) = self.sockets.iter().find(|socket| !socket.is_own()) {
            return Some(Stopped::SocketReplaced(socket.path.clone()));
        }
        let (streams, resources) = (self.present.receiver_count(), self.sockets.len());
        let is_late = self.registered.elapsed() > timing.streams_max;
        (is_late && streams < resources).then_some(Stopped::Disconnected { streams, resources })
    }
}

/// Updates the devices of the node. The kubelet gets the new lists.
fn observe(host: &Host, devices: &[Device], present: &watch::Sender<HostDevices>) {
    let now = host.observe(devices);
    if *present.borrow() == now {
        return;
    }
    let names: Vec<_> = now.keys().map(|device| device.name()).collect();
    tracing::info!(
        present = names.join(" "),
        "the devices of the node have changed"
    );
    for error in now.values().filter_map(|device| device.error.as_ref()) {
        tracing::warn!(
            error,
            "cannot create a device file for pods, so pods get the node's device file, which QEMU may have no permission to \
             open. Mount the directory of --device-dir, and add the capability MKNOD, as in deploy/device-plugin"
        );
    }
    present.send_replace(now);
}

/// The plugin may start before the kubelet listens.
async fn wait_for_kubelet(path: &Path, timing: Timing) -> FileId {
    let mut is_logged = false;
    loop {
        if let Some(kubelet) = FileId::of(path) {
            return kubelet;
        }
        if !is_logged {
            tracing::info!(path = %path.display(), "waiting for the kubelet's socket for device plugins");
            is_logged = true;
        }
        tokio::time::sleep(timing.interval).await;
    }
}

async fn register(kubelet: &Path, offer: &Offer) -> Result<(), Status> {
    let unavailable = |error: tonic::transport::Error| {
        let error = std::error::Error::source(&error).map_or(error.to_string(), |e| e.to_string());
        Status::unavailable(format!("{}: {error}", kubelet.display()))
    };
    let endpoint = Endpoint::from_shared(format!("unix:{}", kubelet.display()));
    let channel = endpoint.map_err(unavailable)?.connect().await;
    let mut grpc = tonic::client::Grpc::new(channel.map_err(unavailable)?);
    grpc.ready().await.map_err(unavailable)?;
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: offer.socket_name(),
        resource_name: offer.resource.to_owned(),
        options: Some(Options::default()),
    };
    let path = http::uri::PathAndQuery::from_static(REGISTER);
    let codec = ProstCodec::<RegisterRequest, Empty>::default();
    grpc.unary(tonic::Request::new(request), path, codec)
        .await?;
    Ok(())
}

/// Identifies a file among earlier and later ones with the same path. The time belongs to it, because the number of an inode is
/// used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl FileId {
    fn of(path: &Path) -> Option<Self> {
        let found = std::fs::symlink_metadata(path).ok()?;
        Some(Self {
            device: found.dev(),
            inode: found.ino(),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

/// A socket with the service of one resource. Dropping it removes the file. Connections close when the process exits.
struct Socket {
    path: PathBuf,
    id: Option<FileId>,
    serving: JoinHandle<()>,
}

impl Socket {
    /// Replaces the socket of an earlier plugin.
    fn bind(path: &Path, service: Service) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        let id = FileId::of(path);
        let resource = service.offer.resource;
        let server =
            Server::builder().serve_with_incoming(service, UnixListenerStream::new(listener));
        let serving = tokio::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(resource, %error, "cannot accept connections of the kubelet on the plugin's socket");
            }
        });
        Ok(Self {
            path: path.to_owned(),
            id,
            serving,
        })
    }

    fn is_own(&self) -> bool {
        FileId::of(&self.path) == self.id && !self.serving.is_finished()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_own() {
            drop(std::fs::remove_file(&self.path));
        }
        self.serving.abort();
    }
}
