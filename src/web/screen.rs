//! The screen of a VM on one page: the browser's WebSocket is connected with the runner of the VM.

use crate::api::runner::viewer::{Answer, Function, Request, SILENCE_MAX_SECONDS, TEXT_MAX};
use crate::api::vm::names;
use crate::k8s::key::ObjectKey;
use crate::k8s::ownership::owns;
use crate::k8s::store::children::Change;
use crate::pinned_tls::{self, PublicKey};
use crate::web::Console;
use crate::web::live::{LOGIN_ENDED, PING_INTERVAL, SILENCE_MAX, close};
use crate::web::logins::Login;
use crate::web::rights::Viewer;
use crate::web::view::{Refusal, VmView, is_object_name};
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use rustix::net::sockopt::set_tcp_user_timeout;
use serde::Serialize;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::{self, protocol::WebSocketConfig};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

/// Maximum size of a message from a page or from a runner. Pages send keys, movements and the content of a clipboard.
pub const MESSAGE_MAX: usize = 1 << 20;

/// Time for the connection to a runner and its answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runners end connections without messages.
const RUNNER_PING_INTERVAL: Duration = Duration::from_secs(SILENCE_MAX_SECONDS / 3);

/// Time in milliseconds for which a runner may leave data unread.
const UNREAD_MAX: u32 = 30_000;

type Runner = WebSocketStream<TlsStream<TcpStream>>;

/// What the page requests.
pub struct Requested {
    /// Name of the VM.
    pub vm: String,
    /// Whether the user takes the screen over from another user.
    pub take_over: bool,
    /// Address of the browser.
    pub client: IpAddr,
}

/// The reason why a page does not show the screen, or does not any more.
#[derive(Debug, PartialEq, Serialize)]
#[serde(tag = "reason", rename_all_fields = "camelCase")]
enum End {
    NotFound,
    NotPermitted,
    NotRunning,
    LoginPending,
    /// The VM was started without a port for consoles.
    Unsupported,
    InUse {
        user: String,
        may_take: bool,
    },
    TakenOver {
        user: String,
    },
    Replaced,
    Unreachable,
    ApiServer,
    RightLost,
    Ended,
}

impl From<Refusal> for End {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotFound => Self::NotFound,
            Refusal::NotPermitted => Self::NotPermitted,
            Refusal::NotRunning => Self::NotRunning,
            Refusal::LoginPending => Self::LoginPending,
            Refusal::InUse(user) => Self::InUse {
                user,
                may_take: false,
            },
        }
    }
}

/// The VM of an open screen.
struct Shown {
    key: ObjectKey,
    uid: Option<String>,
}

/// Shows the screen until the page, the runner or the VM ends, or until the user loses the right or the login. The permits are those
/// of the page.
pub async fn run(
    mut socket: WebSocket,
    console: Arc<Console>,
    login: Login,
    requested: Requested,
    permits: (OwnedSemaphorePermit, OwnedSemaphorePermit),
) {
    let Requested { vm, client, .. } = &requested;
    let user = &*login.user;
    let ended = login.ended.clone();
    let end = tokio::select! {
        () = ended.cancelled() => Err(LOGIN_ENDED),
        end = show(&mut socket, &console, &login, &requested) => end,
    };
    tracing::info!(user, %client, vm, ?end, "screen ended");
    let code = match end {
        Ok(None) => close_code::NORMAL,
        Ok(Some(end)) => {
            // Plain data can always be serialized.
            let text = serde_json::to_string(&end).unwrap_or_default();
            drop(timeout(CONNECT_TIMEOUT, socket.send(Message::Text(text.into()))).await);
            close_code::NORMAL
        }
        Err(code) => code,
    };
    close(
        &mut socket,
        CloseFrame {
            code,
            reason: "".into(),
        },
    )
    .await;
    drop(permits);
}

/// Returns the reason of the end, none if the page has ended the connection, or a close code.
async fn show(
    socket: &mut WebSocket,
    console: &Console,
    login: &Login,
    requested: &Requested,
) -> Result<Option<End>, u16> {
    let Requested {
        vm: name,
        client,
        take_over,
    } = requested;
    // Before the rights are read, so that no later change is missed.
    let lost = console.changes.subscribe();
    let mut settings = console.settings.clone();
    settings.mark_unchanged();
    let (vm, may_take) = match permitted(console, login, name).await {
        Ok(permitted) => permitted,
        Err(end) => return Ok(Some(end)),
    };
    let request = Request {
        open: Function::Screen,
        user: login.user.as_ref().to_owned(),
        client: client.to_string(),
        take_over: *take_over && may_take,
    };
    let runner = match open(console, &vm, &request).await {
        Ok(runner) => runner,
        Err(Failed::Answer(answer)) => return Ok(Some(end_of(answer, may_take))),
        Err(Failed::End(end)) => return Ok(Some(end)),
        Err(Failed::Unreachable(error)) => {
            tracing::warn!(vm = name, %error, "the console cannot connect to the runner of a VM");
            return Ok(Some(End::Unreachable));
        }
    };
    let (user, client) = (&*login.user, requested.client);
    tracing::info!(user, %client, vm = name, take_over, "screen opened");
    let connected = Message::Text(r#"{"connected":true}"#.into());
    if socket.send(connected).await.is_err() {
        return Ok(None);
    }
    let shown = Shown {
        key: ObjectKey::of(&vm),
        uid: vm.uid(),
    };
    tokio::select! {
        end = relay(socket, runner, console, login, may_take) => end,
        end = right_lost(console, login, lost, settings, &shown) => Ok(Some(end)),
    }
}

/// The VM as the API server has it, and whether the user may take its screen from others.
async fn permitted(console: &Console, login: &Login, name: &str) -> Result<(VmView, bool), End> {
    if !is_object_name(name) {
        return Err(End::NotFound);
    }
    let vm = console.api().get_opt(name).await.map_err(|error| {
        tracing::warn!(vm = name, %error, "the console cannot read a VM");
        End::ApiServer
    })?;
    let vm = vm.ok_or(End::NotFound)?;
    let settings = console.settings();
    let may_take = vm.may_open_screen(&Viewer::new(&settings, &login.user))?;
    Ok((vm, may_take))
}

/// Returns when the user may not see the screen any more, or when the VM is not the same any more.
async fn right_lost(
    console: &Console,
    login: &Login,
    mut changes: tokio::sync::broadcast::Receiver<Change>,
    mut settings: tokio::sync::watch::Receiver<Arc<crate::settings::web::WebSettings>>,
    shown: &Shown,
) -> End {
    loop {
        let is_relevant = tokio::select! {
            change = changes.recv() => match change {
                Ok(Change::Group(vm)) => vm == shown.key,
                Ok(Change::Relisted) | Err(RecvError::Lagged(_)) => true,
                Ok(Change::None) => false,
                Err(RecvError::Closed) => return End::ApiServer,
            },
            changed = settings.changed() => changed.is_ok(),
        };
        if !is_relevant {
            continue;
        }
        let settings = settings.borrow_and_update().clone();
        let Some(vm) = console
            .vms
            .get(&shown.key)
            .filter(|vm| vm.uid() == shown.uid)
        else {
            return End::NotFound;
        };
        match vm.may_keep_screen(&Viewer::new(&settings, &login.user)) {
            Ok(()) => {}
            Err(Refusal::NotRunning) => return End::Ended,
            Err(_) => return End::RightLost,
        }
    }
}

/// The reason why the runner does not show the screen.
enum Failed {
    Answer(Answer),
    End(End),
    Unreachable(io::Error),
}

fn unreachable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failed {
    Failed::Unreachable(io::Error::other(error))
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Unreachable(error)
    }
}

impl From<tungstenite::Error> for Failed {
    fn from(error: tungstenite::Error) -> Self {
        unreachable(error)
    }
}

/// Connects to the runner of the VM, which shows the screen then.
async fn open(console: &Console, vm: &VmView, request: &Request) -> Result<Runner, Failed> {
    let (address, key) = runner_of(console, vm).await?;
    let own = console.keys.borrow().clone();
    let own = own.ok_or_else(|| unreachable("the console has no key"))?;
    let connect = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let _ = set_tcp_user_timeout(&stream, UNREAD_MAX);
        let stream = pinned_tls::connect(&own, key, stream).await?;
        let limits = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_MAX))
            .max_frame_size(Some(MESSAGE_MAX));
        let url = "ws://runner/";
        let (mut runner, _) = client_async_with_config(url, stream, Some(limits)).await?;
        let text = serde_json::to_string(request).map_err(io::Error::other)?;
        runner.send(tungstenite::Message::text(text)).await?;
        let answer = runner.next().await;
        match read_answer(&answer.ok_or(tungstenite::Error::ConnectionClosed)??) {
            Some(Answer::Connected) => Ok(runner),
            Some(answer) => Err(Failed::Answer(answer)),
            None => Err(unreachable("the answer of the runner is unknown")),
        }
    };
    let late = |_| unreachable(format!("the runner at {address} has not answered in time"));
    timeout(CONNECT_TIMEOUT, connect).await.map_err(late)?
}

/// Address and key of the runner. The address is that of the VM's own pod, because a runner writes parts of the VM's status.
async fn runner_of(console: &Console, vm: &VmView) -> Result<(SocketAddr, PublicKey), Failed> {
    let client = console.cluster.client.clone();
    let pods: Api<Pod> = Api::namespaced(client, &console.namespace);
    let pod = pods.get_opt(vm.name()).await.map_err(|error| {
        tracing::warn!(vm = vm.name(), %error, "the console cannot read the pod of a VM");
        Failed::End(End::ApiServer)
    })?;
    let is_of_vm = |pod: &Pod| {
        let account = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.service_account_name.as_deref());
        owns(vm, pod) && account == Some(names::REPORTER_SERVICE_ACCOUNT)
    };
    let pod = pod.filter(is_of_vm).ok_or(Failed::End(End::Unsupported))?;
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(names::CONSOLE_PORT_NAME));
    let port = port.and_then(|port| u16::try_from(port.container_port).ok());
    let key = vm
        .status
        .console_key
        .as_deref()
        .and_then(|key| key.parse().ok());
    let (port, key) = port.zip(key).ok_or(Failed::End(End::Unsupported))?;
    let address = pod
        .status
        .as_ref()
        .and_then(|status| status.pod_ip.as_deref());
    let address: Option<IpAddr> = address.and_then(|address| address.parse().ok());
    let address = address.ok_or_else(|| unreachable("the pod of the VM has no address"))?;
    Ok(((address, port).into(), key))
}

fn read_answer(message: &tungstenite::Message) -> Option<Answer> {
    match message {
        tungstenite::Message::Text(text) if text.len() <= TEXT_MAX => {
            serde_json::from_str(text).ok()
        }
        _ => None,
    }
}

/// The reason of the end, as pages get it.
fn end_of(answer: Answer, may_take: bool) -> End {
    match answer {
        Answer::InUse { user } => End::InUse { user, may_take },
        Answer::TakenOver { user } => End::TakenOver { user },
        Answer::Replaced => End::Replaced,
        Answer::Unsupported => End::Unsupported,
        Answer::Ended | Answer::Connected => End::Ended,
    }
}

/// Connects page and runner. Returns the reason of the end, none if the page has ended the connection, or a close code.
async fn relay(
    page: &mut WebSocket,
    runner: Runner,
    console: &Console,
    login: &Login,
    may_take: bool,
) -> Result<Option<End>, u16> {
    let (to_page, from_page) = page.split();
    let (to_runner, from_runner) = runner.split();
    let has_login = || {
        let settings = console.settings.borrow().clone();
        console.logins.find(&login.id, &settings).is_some()
    };
    tokio::select! {
        () = send_input(from_page, to_runner) => Ok(None),
        end = send_screen(from_runner, to_page, has_login) => match end {
            Ok(answer) => Ok(Some(end_of(answer, may_take))),
            Err(code) => Err(code),
        },
    }
}

/// Sends what the user does to the runner, until one of them has ended the connection.
async fn send_input(
    mut page: SplitStream<&mut WebSocket>,
    mut runner: SplitSink<Runner, tungstenite::Message>,
) {
    let mut pings = interval(RUNNER_PING_INTERVAL);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            // The page answers pings.
            received = timeout(SILENCE_MAX, page.next()) => match received {
                Ok(Some(Ok(Message::Binary(bytes)))) => tungstenite::Message::Binary(bytes),
                Ok(Some(Ok(Message::Close(_)) | Err(_)) | None) | Err(_) => return,
                Ok(Some(Ok(_))) => continue,
            },
            _ = pings.tick() => tungstenite::Message::Ping(Vec::new().into()),
        };
        if runner.send(message).await.is_err() {
            // The reason is where the runner is read.
            return std::future::pending().await;
        }
    }
}

/// Sends the screen to the page. Returns the runner's reason of the end, or a close code.
async fn send_screen(
    mut runner: SplitStream<Runner>,
    mut page: SplitSink<&mut WebSocket, Message>,
    has_login: impl Fn() -> bool,
) -> Result<Answer, u16> {
    let mut pings = interval(PING_INTERVAL);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            received = runner.next() => match received {
                Some(Ok(tungstenite::Message::Binary(bytes))) => Message::Binary(bytes),
                Some(Ok(message)) => match read_answer(&message) {
                    Some(answer) => return Ok(answer),
                    None => continue,
                },
                // Without a reason, the page connects again.
                Some(Err(_)) | None => return Err(close_code::AWAY),
            },
            _ = pings.tick() => {
                if !has_login() {
                    return Err(LOGIN_ENDED);
                }
                Message::Ping(Vec::new().into())
            }
        };
        if page.send(message).await.is_err() {
            return Err(close_code::AWAY);
        }
    }
}
