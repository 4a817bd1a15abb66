//! A plugin and a played kubelet, which talk through sockets in a directory.

use crate::device_plugin::device::{Device, Offer};
use crate::device_plugin::grpc::{Answer, call, connect, serve};
use crate::device_plugin::keep::{Pace, keep};
use crate::device_plugin::protocol::{
    ALLOCATE, AllocateRequest, AllocateResponse, ContainerAllocateRequest, Empty, HEALTHY,
    KUBELET_SOCKET, LIST_AND_WATCH, ListAndWatchResponse, OPTIONS, Options, REGISTER,
    RegisterRequest, UNHEALTHY, VERSION,
};
use hyper::body::Incoming;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::task::{AbortHandle, JoinHandle};
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

const SLOTS: u32 = 3;
const SOCKET: &str = "vmoperator-tun.sock";
const MS: Duration = Duration::from_millis(1);
/// Longest time for what takes milliseconds, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A node: a directory of plugins and a `/dev`.
struct Node(TempDir);

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["plugins", "dev", "dev/net"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let node = Self(dir);
        node.plug();
        node
    }

    fn plugins(&self) -> PathBuf {
        self.0.path().join("plugins")
    }

    fn socket(&self) -> PathBuf {
        self.plugins().join(SOCKET)
    }

    fn device(&self) -> PathBuf {
        self.0.path().join("dev/net/tun")
    }

    fn plug(&self) {
        symlink("/dev/null", self.device()).unwrap();
    }

    fn unplug(&self) {
        std::fs::remove_file(self.device()).unwrap();
    }

    /// Takes the device away and brings it back, ten times. The kubelet receives each change, and each takes a look of the
    /// plugin. Of two plugins both send their slots, and the kubelet has those that arrived last.
    async fn is_followed(&self, kubelet: &Running) {
        let are_all = |healthy: bool| {
            let slots = kubelet.slots();
            slots.is_some_and(|(up, down)| if healthy { down == 0 } else { up == 0 })
        };
        for _ in 0..10 {
            self.unplug();
            eventually("all slots are unhealthy", || are_all(false)).await;
            self.plug();
            eventually("all slots are healthy", || are_all(true)).await;
        }
    }

    fn offer(&self) -> Offer {
        Offer {
            device: Device::Tun,
            slots: SLOTS,
            without_device: false,
            host_dev: self.0.path().join("dev"),
        }
    }

    fn plugin(&self) -> Plugin {
        self.plugin_of(self.offer())
    }

    fn plugin_of(&self, offer: Offer) -> Plugin {
        let pace = Pace {
            look: MS * 10,
            longest: MS * 100,
            registering: MS * 2000,
            puts_away: MS * 30,
            stream_begins: MS * 500,
        };
        Plugin(tokio::spawn(keep(offer, self.plugins(), pace)))
    }

    fn sockets(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.plugins())
            .unwrap()
            .map(Result::unwrap);
        let sockets = entries.filter(|entry| entry.file_type().unwrap().is_socket());
        sockets
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect()
    }
}

struct Plugin(JoinHandle<()>);

impl Plugin {
    /// As by SIGTERM.
    async fn end(self) {
        self.0.abort();
        assert!(self.0.await.unwrap_err().is_cancelled());
    }
}

/// What a kubelet knows, and does.
#[derive(Clone, Default)]
struct Kubelet(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    /// Registrations, in order.
    registered: Vec<RegisterRequest>,
    /// What the streams have said last.
    list: Option<ListAndWatchResponse>,
    /// The connection for the resource, of which there is one.
    client: Option<AbortHandle>,
    streams: usize,
    /// What it says to the next registrations.
    refusals: Vec<Status>,
    plugins: PathBuf,
}

/// A kubelet that runs. Dropped, it is gone, with all its connections.
struct Running {
    kubelet: Kubelet,
    serving: JoinHandle<()>,
}

impl Kubelet {
    /// As the real one: it removes all sockets that it finds, and then listens.
    fn start(self, node: &Node) -> Running {
        for socket in node.sockets() {
            std::fs::remove_file(node.plugins().join(socket)).unwrap();
        }
        self.0.lock().unwrap().plugins = node.plugins();
        let listener = UnixListener::bind(node.plugins().join(KUBELET_SOCKET)).unwrap();
        Running {
            kubelet: self.clone(),
            serving: tokio::spawn(serve(listener, self)),
        }
    }

    async fn register(self, request: RegisterRequest) -> Result<Response<Empty>, Status> {
        let (refusal, socket) = {
            let mut known = self.0.lock().unwrap();
            (known.refusals.pop(), known.plugins.join(&request.endpoint))
        };
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        let options: Options = call(&socket, OPTIONS, Empty {}).await?;
        assert_eq!(options, Options::default());
        let stream = tokio::spawn(self.clone().watch(socket));
        let mut known = self.0.lock().unwrap();
        known.registered.push(request);
        // The older client is forgotten, but its stream goes on.
        known.client = Some(stream.abort_handle());
        Ok(Response::new(Empty {}))
    }

    async fn watch(self, socket: PathBuf) {
        /// However the stream ends, the resource's client is put away, be it another one by now: so does the real one.
        struct Ends(Kubelet);
        impl Drop for Ends {
            fn drop(&mut self) {
                let mut known = self.0.0.lock().unwrap();
                (known.streams, known.list) = (known.streams - 1, None);
                known.client.take().inspect(AbortHandle::abort);
            }
        }
        self.0.lock().unwrap().streams += 1;
        let ends = Ends(self);
        let mut stream = streaming(&socket).await;
        while let Ok(Some(list)) = stream.message().await {
            ends.0.0.lock().unwrap().list = Some(list);
        }
    }
}

async fn streaming(socket: &Path) -> tonic::Streaming<ListAndWatchResponse> {
    let mut grpc = connect(socket).await.unwrap();
    grpc.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static(LIST_AND_WATCH);
    let codec = ProstCodec::<Empty, ListAndWatchResponse>::default();
    grpc.server_streaming(Request::new(Empty {}), path, codec)
        .await
        .unwrap()
        .into_inner()
}

impl Answer for Kubelet {
    async fn answer(self, request: http::Request<Incoming>) -> http::Response<Body> {
        assert_eq!(request.uri().path(), REGISTER);
        let register = tower::service_fn(|request: Request<RegisterRequest>| {
            self.clone().register(request.into_inner())
        });
        Grpc::new(ProstCodec::<Empty, RegisterRequest>::default())
            .unary(register, request)
            .await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.serving.abort();
        self.kubelet
            .0
            .lock()
            .unwrap()
            .client
            .take()
            .inspect(AbortHandle::abort);
    }
}

impl Running {
    fn known<T>(&self, f: impl FnOnce(&mut Known) -> T) -> T {
        f(&mut self.kubelet.0.lock().unwrap())
    }

    fn registrations(&self) -> usize {
        self.known(|known| known.registered.len())
    }

    /// How many slots are healthy and how many are not.
    fn slots(&self) -> Option<(usize, usize)> {
        self.known(|known| {
            let devices = &known.list.as_ref()?.devices;
            let count = |health| {
                devices
                    .iter()
                    .filter(|device| device.health == health)
                    .count()
            };
            Some((count(HEALTHY), count(UNHEALTHY)))
        })
    }

    async fn has(&self, slots: (usize, usize)) {
        eventually("the kubelet has its slots", || self.slots() == Some(slots)).await;
    }
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "not true in {LIMIT:?}: {what}");
        tokio::time::sleep(MS).await;
    }
}

async fn allocate(socket: &Path, ids: &[&str]) -> Result<AllocateResponse, Status> {
    let devices_ids = ids.iter().map(|id| (*id).to_owned()).collect();
    call(
        socket,
        ALLOCATE,
        AllocateRequest {
            container_requests: vec![ContainerAllocateRequest { devices_ids }],
        },
    )
    .await
}

const ALL: (usize, usize) = (SLOTS as usize, 0);
const NONE: (usize, usize) = (0, SLOTS as usize);

#[tokio::test]
async fn a_plugin_registers_its_resource_and_lists_its_slots() {
    let node = Node::new();
    let kubelet = Kubelet::default().start(&node);
    let plugin = node.plugin();
    kubelet.has(ALL).await;
    let registered = kubelet.known(|known| known.registered.clone());
    let expected = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: SOCKET.to_owned(),
        resource_name: "vmoperator.jdrupes.org/tun".to_owned(),
        options: Some(Options::default()),
    };
    assert_eq!(registered, [expected]);
    plugin.end().await;
}

#[tokio::test]
async fn the_kubelet_is_told_when_the_device_goes_and_comes() {
    let node = Node::new();
    let kubelet = Kubelet::default().start(&node);
    let _plugin = node.plugin();
    kubelet.has(ALL).await;
    for _ in 0..2 {
        node.unplug();
        kubelet.has(NONE).await;
        node.plug();
        kubelet.has(ALL).await;
    }
    assert_eq!(kubelet.registrations(), 1);
}

#[tokio::test]
async fn without_the_device_slots_are_offered_only_if_that_is_wanted() {
    let node = Node::new();
    node.unplug();
    let kubelet = Kubelet::default().start(&node);
    let plugin = node.plugin();
    kubelet.has(NONE).await;
    plugin.end().await;
    let _plugin = node.plugin_of(Offer {
        without_device: true,
        ..node.offer()
    });
    kubelet.has(ALL).await;
    assert!(
        allocate(&node.socket(), &["tun-0"])
            .await
            .unwrap()
            .container_responses[0]
            .devices
            .is_empty()
    );
}

#[tokio::test]
async fn a_container_gets_the_device_by_a_slot_that_there_is() {
    let node = Node::new();
    let kubelet = Kubelet::default().start(&node);
    let _plugin = node.plugin();
    kubelet.has(ALL).await;
    let given = allocate(&node.socket(), &["tun-2"]).await.unwrap();
    assert_eq!(
        given.container_responses[0].devices[0].host_path,
        "/dev/net/tun"
    );
    let refused = allocate(&node.socket(), &["tun-3"]).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (
            Code::NotFound,
            "there is no slot \"tun-3\" of vmoperator.jdrupes.org/tun"
        )
    );
    // Before the next look.
    node.unplug();
    let refused = allocate(&node.socket(), &["tun-2"]).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (
            Code::FailedPrecondition,
            "this node has no /dev/net/tun any more"
        )
    );
    let unknown = call::<_, Empty>(&node.socket(), "/v1beta1.DevicePlugin/Unheard", Empty {})
        .await
        .unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_kubelet_that_restarts_finds_the_plugin_again() {
    let node = Node::new();
    let _plugin = node.plugin();
    // The plugin may be there before the kubelet.
    for _ in 0..3 {
        let kubelet = Kubelet::default().start(&node);
        kubelet.has(ALL).await;
        assert_eq!(kubelet.registrations(), 1);
        drop(kubelet);
        // Its socket stays, and nobody answers: as after `kill -9`.
        tokio::time::sleep(MS * 50).await;
    }
}

#[tokio::test]
async fn a_registration_that_is_refused_is_tried_again() {
    let node = Node::new();
    let kubelet = Kubelet::default();
    kubelet.0.lock().unwrap().refusals =
        vec![Status::unavailable("starting"), Status::unknown("not now")];
    let kubelet = kubelet.start(&node);
    let _plugin = node.plugin();
    kubelet.has(ALL).await;
}

#[tokio::test]
async fn a_stream_that_the_kubelet_ends_is_begun_again_once() {
    let node = Node::new();
    let kubelet = Kubelet::default().start(&node);
    let _plugin = node.plugin();
    kubelet.has(ALL).await;
    kubelet.known(|known| known.client.take().unwrap().abort());
    eventually("registered again", || kubelet.registrations() == 2).await;
    kubelet.has(ALL).await;
    node.is_followed(&kubelet).await;
    assert_eq!(
        (
            kubelet.registrations(),
            kubelet.known(|known| known.streams)
        ),
        (2, 1)
    );
}

#[tokio::test]
async fn a_plugin_that_ends_leaves_no_socket() {
    let node = Node::new();
    let kubelet = Kubelet::default().start(&node);
    let plugin = node.plugin();
    kubelet.has(ALL).await;
    plugin.end().await;
    assert_eq!(node.sockets(), [KUBELET_SOCKET]);
    eventually("the kubelet sees the end", || {
        kubelet.known(|known| known.streams) == 0
    })
    .await;
}

#[tokio::test]
async fn of_two_plugins_the_newer_serves_and_the_older_lets_it() {
    let node = Node::new();
    let kubelet = Kubelet::default().start(&node);
    let older = node.plugin();
    kubelet.has(ALL).await;
    let newer = node.plugin_of(Offer {
        slots: 5,
        ..node.offer()
    });
    kubelet.has((5, 0)).await;
    // Neither gives way to the other for ever.
    node.is_followed(&kubelet).await;
    assert_eq!(kubelet.registrations(), 2);
    // The kubelet now puts the newer one away too.
    older.end().await;
    eventually("registered again", || kubelet.registrations() == 3).await;
    kubelet.has((5, 0)).await;
    assert!(node.sockets().contains(&SOCKET.to_owned()));
    newer.end().await;
    assert_eq!(node.sockets(), [KUBELET_SOCKET]);
}

#[tokio::test]
async fn the_older_plugin_serves_again_when_the_newer_is_gone() {
    let node = Node::new();
    let kubelet = Kubelet::default().start(&node);
    let _older = node.plugin();
    kubelet.has(ALL).await;
    let newer = node.plugin_of(Offer {
        slots: 5,
        ..node.offer()
    });
    kubelet.has((5, 0)).await;
    newer.end().await;
    kubelet.has(ALL).await;
    // By `kill -9` it leaves its socket.
    std::fs::remove_file(node.socket()).unwrap();
    drop(UnixListener::bind(node.socket()).unwrap());
    let before = kubelet.registrations();
    eventually("registered again", || kubelet.registrations() > before).await;
    kubelet.has(ALL).await;
}
