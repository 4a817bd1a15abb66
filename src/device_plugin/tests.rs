//! The plugin and a simulated kubelet, which communicate through sockets in a directory.

use crate::device_plugin::host::Device;
use crate::device_plugin::host::fake::Node;
use crate::device_plugin::offer::offers;
use crate::device_plugin::plugin::{Stopped, Timing, serve};
use crate::device_plugin::protocol::{
    ALLOCATE, AllocateRequest, AllocateResponse, ContainerAllocateRequest, Empty, HEALTHY,
    KUBELET_SOCKET, LIST_AND_WATCH, ListAndWatchResponse, OPTIONS, Options, REGISTER,
    RegisterRequest, VERSION,
};
use crate::device_plugin::service::unary;
use futures::future::BoxFuture;
use http::uri::PathAndQuery;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

const MS: Duration = Duration::from_millis(1);
/// Maximum time of a step that takes milliseconds, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
const KVM: &str = "vmoperator.jdrupes.org/kvm";
const KVM_IF_PRESENT: &str = "vmoperator.jdrupes.org/kvm-if-present";
const TUN: &str = "vmoperator.jdrupes.org/tun";
const TIMING: Timing = Timing {
    interval: Duration::from_millis(10),
    registration_max: LIMIT,
    streams_max: Duration::from_millis(200),
};

/// Runs the plugin until it exits.
fn plugin(node: &Node) -> JoinHandle<Stopped> {
    let (host, dir) = (node.host.clone(), plugin_dir(node));
    std::fs::create_dir_all(&dir).unwrap();
    tokio::spawn(async move {
        let offers = offers(&[Device::Kvm, Device::Tun]);
        serve(&offers, &host, &dir, TIMING).await
    })
}

fn plugin_dir(node: &Node) -> PathBuf {
    node.path("plugins")
}

fn socket(node: &Node, name: &str) -> PathBuf {
    plugin_dir(node).join(format!("vmoperator-{name}.sock"))
}

fn sockets(node: &Node) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(plugin_dir(node))
        .unwrap()
        .map(Result::unwrap);
    let sockets = entries.filter(|entry| entry.file_type().unwrap().is_socket());
    sockets.map(|entry| entry.path()).collect()
}

async fn client(socket: &Path) -> Grpc<Channel> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
    let mut grpc = Grpc::new(endpoint.connect().await.unwrap());
    grpc.ready().await.unwrap();
    grpc
}

async fn call<M1, M2>(socket: &Path, method: &'static str, message: M1) -> Result<M2, Status>
where
    M1: prost::Message + 'static,
    M2: prost::Message + Default + 'static,
{
    let (path, codec) = (PathAndQuery::from_static(method), ProstCodec::default());
    let mut grpc = client(socket).await;
    let response = grpc.unary(Request::new(message), path, codec).await?;
    Ok(response.into_inner())
}

async fn list_and_watch(socket: &Path) -> Streaming<ListAndWatchResponse> {
    let path = PathAndQuery::from_static(LIST_AND_WATCH);
    let codec = ProstCodec::<Empty, ListAndWatchResponse>::default();
    let mut grpc = client(socket).await;
    let response = grpc.server_streaming(Request::new(Empty {}), path, codec);
    response.await.unwrap().into_inner()
}

async fn allocate(node: &Node, name: &str) -> Result<AllocateResponse, Status> {
    let devices_ids = vec![format!("{name}-0")];
    let container_requests = vec![ContainerAllocateRequest { devices_ids }];
    call(
        &socket(node, name),
        ALLOCATE,
        AllocateRequest { container_requests },
    )
    .await
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "not true in {LIMIT:?}: {what}");
        tokio::time::sleep(MS).await;
    }
}

async fn exit(plugin: JoinHandle<Stopped>) -> Stopped {
    tokio::time::timeout(LIMIT, plugin).await.unwrap().unwrap()
}

/// The state of a kubelet.
#[derive(Default)]
struct State {
    registrations: Vec<RegisterRequest>,
    lists: BTreeMap<String, ListAndWatchResponse>,
    streams: Vec<AbortHandle>,
}

/// A kubelet. Like the real one, it removes all sockets when it starts, and opens a stream after each registration.
#[derive(Clone)]
struct Kubelet {
    dir: PathBuf,
    state: Arc<Mutex<State>>,
}

impl Kubelet {
    fn start(node: &Node) -> Self {
        std::fs::create_dir_all(plugin_dir(node)).unwrap();
        for socket in sockets(node) {
            std::fs::remove_file(socket).unwrap();
        }
        let kubelet = Self {
            dir: plugin_dir(node),
            state: Arc::default(),
        };
        let listener = UnixListener::bind(kubelet.dir.join(KUBELET_SOCKET)).unwrap();
        let incoming = UnixListenerStream::new(listener);
        tokio::spawn(Server::builder().serve_with_incoming(kubelet.clone(), incoming));
        kubelet
    }

    fn register(&self, request: RegisterRequest) -> Result<Empty, Status> {
        let (kubelet, resource) = (self.clone(), request.resource_name.clone());
        let socket = self.dir.join(&request.endpoint);
        let stream = tokio::spawn(async move {
            let options: Options = call(&socket, OPTIONS, Empty {}).await.unwrap();
            assert_eq!(options, Options::default());
            let mut stream = list_and_watch(&socket).await;
            while let Ok(Some(list)) = stream.message().await {
                kubelet.lock().lists.insert(resource.clone(), list);
            }
        });
        let mut state = self.lock();
        state.registrations.push(request);
        state.streams.push(stream.abort_handle());
        Ok(Empty {})
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Healthy slots of the resource, or `None` without a list.
    fn healthy(&self, resource: &str) -> Option<usize> {
        let state = self.lock();
        let devices = &state.lists.get(resource)?.devices;
        let healthy = devices.iter().filter(|device| device.health == HEALTHY);
        Some(healthy.count())
    }

    async fn has(&self, kvm: usize, kvm_if_present: usize, tun: usize) {
        let expected = [(KVM, kvm), (KVM_IF_PRESENT, kvm_if_present), (TUN, tun)];
        eventually(&format!("healthy slots are {expected:?}"), || {
            expected
                .iter()
                .all(|(resource, slots)| self.healthy(resource) == Some(*slots))
        })
        .await;
    }
}

impl tower::Service<http::Request<Body>> for Kubelet {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let kubelet = self.clone();
        Box::pin(async move {
            assert_eq!(request.uri().path(), REGISTER);
            Ok(unary(request, |message| kubelet.register(message)).await)
        })
    }
}

#[tokio::test]
async fn the_plugin_registers_each_resource_and_lists_its_slots() {
    let node = Node::new();
    node.plug(Device::Kvm);
    node.plug(Device::Tun);
    let plugin = plugin(&node);
    // The plugin may be there before the kubelet.
    tokio::time::sleep(TIMING.interval * 3).await;
    let kubelet = Kubelet::start(&node);
    kubelet.has(1000, 1000, 1000).await;
    let expected = [
        ("vmoperator-kvm.sock", KVM),
        ("vmoperator-kvm-if-present.sock", KVM_IF_PRESENT),
        ("vmoperator-tun.sock", TUN),
    ];
    let expected = expected.map(|(endpoint, resource)| RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_owned(),
        options: Some(Options::default()),
    });
    assert_eq!(kubelet.lock().registrations, expected);
    tokio::time::sleep(TIMING.streams_max * 3).await;
    assert!(!plugin.is_finished(), "it serves");
    assert_eq!(kubelet.lock().registrations.len(), 3);
}

#[tokio::test]
async fn the_kubelet_receives_each_change_of_kvm_while_kvm_if_present_stays_healthy() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node);
    let _plugin = plugin(&node);
    kubelet.has(0, 1000, 0).await;
    for _ in 0..2 {
        node.plug(Device::Kvm);
        kubelet.has(1000, 1000, 0).await;
        for name in ["kvm", "kvm-if-present"] {
            let response = allocate(&node, name).await.unwrap();
            let device = &response.container_responses[0].devices[0];
            let own = node.host.own.join("kvm").display().to_string();
            assert_eq!(device.host_path, own, "{name}");
            assert_eq!(device.container_path, "/dev/kvm");
        }
        node.unplug(Device::Kvm);
        kubelet.has(0, 1000, 0).await;
        let response = allocate(&node, "kvm-if-present").await.unwrap();
        assert!(response.container_responses[0].devices.is_empty());
        let error = allocate(&node, "kvm").await.unwrap_err();
        assert_eq!(error.code(), Code::FailedPrecondition);
        assert_eq!(
            error.message(),
            "the device /dev/kvm no longer exists on this node; load the kernel module of the device"
        );
    }
    assert_eq!(kubelet.lock().registrations.len(), 3);
}

#[tokio::test]
async fn the_plugin_exits_when_the_kubelet_has_started_again_and_then_registers_with_it() {
    let node = Node::new();
    for _ in 0..2 {
        let kubelet = Kubelet::start(&node);
        let plugin = plugin(&node);
        kubelet.has(0, 1000, 0).await;
        Kubelet::start(&node);
        let stopped = exit(plugin).await;
        assert!(matches!(stopped, Stopped::KubeletChanged(_)), "{stopped}");
    }
}

#[tokio::test]
async fn the_plugin_exits_when_another_one_replaces_its_socket_and_leaves_that_socket() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node);
    let older = plugin(&node);
    kubelet.has(0, 1000, 0).await;
    let newer = plugin(&node);
    let stopped = exit(older).await;
    assert!(matches!(stopped, Stopped::SocketReplaced(_)), "{stopped}");
    eventually("the newer one registers", || {
        kubelet.lock().registrations.len() == 6
    })
    .await;
    allocate(&node, "kvm-if-present").await.unwrap();
    assert!(!newer.is_finished());
}

#[tokio::test]
async fn the_plugin_exits_when_the_kubelet_closes_a_stream() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node);
    let plugin = plugin(&node);
    kubelet.has(0, 1000, 0).await;
    kubelet.lock().streams[1].abort();
    let stopped = exit(plugin).await;
    assert!(
        matches!(
            stopped,
            Stopped::Disconnected {
                streams: 2,
                resources: 3
            }
        ),
        "{stopped}"
    );
}

#[tokio::test]
async fn a_failed_registration_names_the_resource_and_the_cause() {
    let node = Node::new();
    std::fs::create_dir_all(plugin_dir(&node)).unwrap();
    // Nobody listens, as after `kill -9` of the kubelet.
    drop(UnixListener::bind(plugin_dir(&node).join(KUBELET_SOCKET)).unwrap());
    let stopped = exit(plugin(&node)).await.to_string();
    assert!(stopped.contains(KVM), "{stopped}");
    assert!(stopped.contains("Connection refused"), "{stopped}");
    assert_eq!(sockets(&node), [plugin_dir(&node).join(KUBELET_SOCKET)]);
}

#[tokio::test]
async fn a_terminated_plugin_leaves_no_socket() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node);
    let plugin = plugin(&node);
    kubelet.has(0, 1000, 0).await;
    assert_eq!(sockets(&node).len(), 4);
    plugin.abort();
    assert!(plugin.await.unwrap_err().is_cancelled());
    assert_eq!(sockets(&node), [plugin_dir(&node).join(KUBELET_SOCKET)]);
}

#[tokio::test]
async fn an_unknown_method_is_not_implemented() {
    let node = Node::new();
    let kubelet = Kubelet::start(&node);
    let _plugin = plugin(&node);
    kubelet.has(0, 1000, 0).await;
    let method = "/v1beta1.DevicePlugin/Unknown";
    let error = call::<_, Empty>(&socket(&node, "tun"), method, Empty {}).await;
    assert_eq!(error.unwrap_err().code(), Code::Unimplemented);
}
