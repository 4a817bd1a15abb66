//! Connections to the runners of VMs, for a user with a right.

use crate::api::runner::viewer::{ANSWER_MAX, Answer, Function, Request};
use crate::api::vm::names;
use crate::k8s::ownership::owns;
use crate::pinned_tls::{self, PublicKey};
use crate::web::Console;
use crate::web::logins::Login;
use crate::web::view::{Refusal, VmView, is_object_name};
use axum::http::StatusCode;
use futures::{SinkExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use rustix::net::sockopt::set_tcp_user_timeout;
use serde::Serialize;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use strum::IntoStaticStr;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::{self, protocol::WebSocketConfig};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

/// Maximum size of a message from a runner or a page. Pages send keys, movements and the content of a clipboard.
pub const MESSAGE_MAX: usize = 1 << 20;

/// Maximum size of data that a slow peer has not read yet, with answers to its pings.
pub const UNSENT_MAX: usize = 4 << 20;

/// Size of the buffer for data of a runner.
const READ_BUFFER: usize = 64 << 10;

/// Time for the connection to a runner and its answer.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time in milliseconds for which a runner may leave data unread.
const UNREAD_MAX: u32 = 30_000;

/// A connection to a runner.
pub type Runner = WebSocketStream<TlsStream<TcpStream>>;

/// The reason why a user does not get a function of a VM, or does not have it any more.
#[derive(Debug, PartialEq, Serialize, IntoStaticStr)]
#[serde(tag = "reason", rename_all_fields = "camelCase")]
pub enum End {
    NotFound,
    NotPermitted,
    NotRunning,
    LoginPending,
    /// The VM was started without a port for consoles.
    Unsupported,
    /// A pool has assigned the VM to another user.
    Assigned {
        user: String,
    },
    InUse {
        user: String,
        may_take: bool,
    },
    TakenOver {
        user: String,
    },
    Replaced,
    NoDisplay,
    PasswordNotSet,
    Unreachable,
    ApiServer,
    Busy,
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
            Refusal::Assigned(user) => Self::Assigned { user },
            Refusal::InUse(user) => Self::InUse {
                user,
                may_take: false,
            },
        }
    }
}

impl End {
    /// The status code of a response with this reason.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::NotPermitted | Self::RightLost => StatusCode::FORBIDDEN,
            Self::Unreachable | Self::ApiServer | Self::PasswordNotSet => StatusCode::BAD_GATEWAY,
            _ => StatusCode::CONFLICT,
        }
    }

    /// The reason of a runner.
    #[must_use]
    pub fn by_runner(answer: Answer, may_take: bool) -> Self {
        match answer {
            Answer::InUse { user } => Self::InUse { user, may_take },
            Answer::TakenOver { user } => Self::TakenOver { user },
            Answer::Replaced => Self::Replaced,
            Answer::Unsupported => Self::Unsupported,
            Answer::NoDisplay => Self::NoDisplay,
            Answer::PasswordNotSet => Self::PasswordNotSet,
            Answer::Ended | Answer::Connected | Answer::Display(_) => Self::Ended,
        }
    }
}

/// The VM as the API server has it, and whether the user may take its screen from others.
///
/// # Errors
/// The user may not use the console of the VM.
pub async fn permitted(
    console: &Console,
    login: &Login,
    name: &str,
    function: Function,
) -> Result<(VmView, bool), End> {
    if !is_object_name(name) {
        return Err(End::NotFound);
    }
    let vm = console.api().get_opt(name).await.map_err(|error| {
        tracing::warn!(vm = name, %error, "the console cannot read a VM");
        End::ApiServer
    })?;
    let vm = vm.ok_or(End::NotFound)?;
    let settings = console.settings();
    let pool = console.held_now(&vm, &login.user).await;
    let may_take = vm.may_open(function, &login.viewer(&settings), pool.as_ref())?;
    Ok((vm, may_take))
}

/// The pod of the VM. Other pods can have its name.
///
/// # Errors
/// The VM has no pod with a port for consoles.
pub async fn pod_of(console: &Console, vm: &VmView) -> Result<Pod, End> {
    let client = console.cluster.client.clone();
    let pods: Api<Pod> = Api::namespaced(client, &console.namespace);
    let pod = pods.get_opt(vm.name()).await.map_err(|error| {
        tracing::warn!(vm = vm.name(), %error, "the console cannot read the pod of a VM");
        End::ApiServer
    })?;
    let is_of_vm = |pod: &Pod| {
        let spec = pod.spec.as_ref();
        let account = spec.and_then(|spec| spec.service_account_name.as_deref());
        owns(vm, pod) && account == Some(names::REPORTER_SERVICE_ACCOUNT)
    };
    pod.filter(is_of_vm).ok_or(End::Unsupported)
}

/// The number of the pod's port with that name.
#[must_use]
pub fn port_of(pod: &Pod, name: &str) -> Option<u16> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(name))?;
    u16::try_from(port.container_port).ok()
}

/// The addresses of the pod.
pub fn addresses_of(pod: &Pod) -> impl Iterator<Item = IpAddr> {
    let status = pod.status.as_ref();
    let all = status.and_then(|status| status.pod_ips.as_ref());
    let all = all.into_iter().flatten();
    let primary = status.and_then(|status| status.pod_ip.as_ref());
    let texts = primary.into_iter().chain(all.map(|address| &address.ip));
    texts.filter_map(|text| text.parse().ok())
}

/// Connects to the runner in that pod, and returns its first answer.
///
/// # Errors
/// The runner has no port for consoles, or cannot be reached.
pub async fn open(
    console: &Console,
    vm: &VmView,
    pod: &Pod,
    request: &Request,
) -> Result<(Runner, Answer), End> {
    let key = vm.status.console_key.as_deref();
    let key = key.and_then(|key| key.parse().ok());
    let (port, key) = port_of(pod, names::CONSOLE_PORT_NAME)
        .zip(key)
        .ok_or(End::Unsupported)?;
    let opened = async {
        let address = addresses_of(pod).next();
        let address = address.ok_or_else(|| other("the pod of the VM has no address"))?;
        let connect = connect(console, (address, port).into(), key, request);
        timeout(CONNECT_TIMEOUT, connect).await?
    };
    opened.await.map_err(|error| {
        tracing::warn!(vm = vm.name(), %error, "the console cannot connect to the runner of a VM");
        End::Unreachable
    })
}

fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::other(error)
}

async fn connect(
    console: &Console,
    address: SocketAddr,
    key: PublicKey,
    request: &Request,
) -> io::Result<(Runner, Answer)> {
    let own = console.keys().map(|keys| keys.runners);
    let own = own.ok_or_else(|| other("the console has no key"))?;
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let _ = set_tcp_user_timeout(&stream, UNREAD_MAX);
    let stream = pinned_tls::connect(&own, key, stream).await?;
    let limits = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .max_write_buffer_size(UNSENT_MAX)
        .max_message_size(Some(MESSAGE_MAX))
        .max_frame_size(Some(MESSAGE_MAX));
    let url = "ws://runner/";
    let connected = client_async_with_config(url, stream, Some(limits)).await;
    let (mut runner, _) = connected.map_err(other)?;
    let text = serde_json::to_string(request)?;
    let sent = runner.send(tungstenite::Message::text(text)).await;
    sent.map_err(other)?;
    let answer = runner.next().await;
    let answer = answer.ok_or_else(|| other("the runner has sent no answer"))?;
    let answer = read_answer(&answer.map_err(other)?);
    let answer = answer.ok_or_else(|| other("the answer of the runner is unknown"))?;
    Ok((runner, answer))
}

/// The answer of a runner. None for other messages.
#[must_use]
pub fn read_answer(message: &tungstenite::Message) -> Option<Answer> {
    match message {
        tungstenite::Message::Text(text) if text.len() <= ANSWER_MAX => {
            serde_json::from_str(text).ok()
        }
        _ => None,
    }
}
