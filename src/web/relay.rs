//! The screen or the serial console of a VM on one page: the browser's WebSocket is connected with the runner of the VM.

use crate::api::runner::viewer::{Answer, Function, Request, SILENCE_MAX_SECONDS};
use crate::k8s::key::ObjectKey;
use crate::k8s::store::children::Change;
use crate::settings::web::WebSettings;
use crate::web::Console;
use crate::web::events::Reason;
use crate::web::live::{LOGIN_ENDED, PING_INTERVAL, SILENCE_MAX, close};
use crate::web::logins::{Login, Places, places};
use crate::web::runner::{CONNECT_TIMEOUT, End, Runner, open, permitted, pod_of, read_answer};
use crate::web::view::{Refusal, VmView};
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use kube::{Resource, ResourceExt};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};
use tokio_tungstenite::tungstenite;

/// Runners end connections without messages.
const RUNNER_PING_INTERVAL: Duration = Duration::from_secs(SILENCE_MAX_SECONDS / 3);

/// What the page requests.
pub struct Requested {
    /// Name of the VM.
    pub vm: String,
    /// The screen or the serial console.
    pub function: Function,
    /// Whether the user takes the screen over from another user.
    pub take_over: bool,
    /// Address of the browser.
    pub client: IpAddr,
}

/// The VM of an open console.
struct Shown {
    key: ObjectKey,
    uid: Option<String>,
    function: Function,
}

/// Relays until the page, the runner or the VM ends, or until the user loses the right or the login.
pub async fn run(mut socket: WebSocket, console: Arc<Console>, login: Login, requested: Requested) {
    let ended = login.ended.clone();
    let end = tokio::select! {
        () = ended.cancelled() => Err(LOGIN_ENDED),
        end = show(&mut socket, &console, &login, &requested) => end,
    };
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
}

/// Returns the reason of the end, none if the page has ended the connection, or a close code.
async fn show(
    socket: &mut WebSocket,
    console: &Console,
    login: &Login,
    requested: &Requested,
) -> Result<Option<End>, u16> {
    // Before the rights are read, so that no later change is missed.
    let lost = console.changes.subscribe();
    let mut settings = console.settings.clone();
    settings.mark_unchanged();
    let pools_changed = console.pools_changed.subscribe();
    let (user, client) = (&*login.user, requested.client);
    let function: &'static str = requested.function.into();
    let opened = match begin(console, login, requested).await {
        Ok(opened) => opened,
        Err(end) => {
            if matches!(end, End::NotPermitted | End::NotFound) {
                let reason: &'static str = (&end).into();
                tracing::info!(user, %client, vm = requested.vm, function, reason, "console rejected");
            }
            return Ok(Some(end));
        }
    };
    let Opened {
        vm,
        runner,
        may_take,
        take_over,
        places,
    } = opened;
    let name = vm.name();
    tracing::info!(user, %client, vm = name, function, take_over, "console opened");
    let _open = console.metrics.open_console(requested.function);
    let connected = Message::Text(r#"{"connected":true}"#.into());
    if socket.send(connected).await.is_err() {
        return Ok(None);
    }
    if take_over {
        let (vm, reason) = (vm.object_ref(&()), Reason::ScreenTakenOver);
        console
            .report(user, &vm, reason, "takes over the screen")
            .await;
    }
    let shown = Shown {
        key: ObjectKey::of(&vm),
        uid: vm.uid(),
        function: requested.function,
    };
    let is_of_pool = vm.is_of_pool();
    let end = tokio::select! {
        end = relay(socket, runner, console, login, may_take) => end,
        end = right_lost(console, login, (lost, settings, pools_changed), &shown) => Ok(Some(end)),
        () = console.news.too_old(is_of_pool) => Ok(Some(End::ApiServer)),
    };
    let reason = end.as_ref().ok().and_then(Option::as_ref);
    let reason = reason.map(<&'static str>::from);
    tracing::info!(user, %client, vm = name, function, reason, close_code = end.as_ref().err(), "console ended");
    drop(places);
    end
}

/// A connection to the runner of a VM.
struct Opened {
    vm: VmView,
    runner: Runner,
    /// Whether the user may take the screen from others, and takes it.
    may_take: bool,
    take_over: bool,
    places: Places,
}

async fn begin(console: &Console, login: &Login, requested: &Requested) -> Result<Opened, End> {
    let (vm, may_take) = permitted(console, login, &requested.vm, requested.function).await?;
    let places = places(&console.consoles, &login.consoles).ok_or(End::Busy)?;
    let take_over = requested.take_over && may_take;
    let pod = pod_of(console, &vm).await?;
    let pod_uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let request = Request {
        take_over,
        assignment: vm.assignment(),
        ..Request::new(pod_uid, requested.function, &login.user, requested.client)
    };
    match open(console, &vm, &pod, &request).await? {
        (runner, Answer::Connected) => Ok(Opened {
            vm,
            runner,
            may_take,
            take_over,
            places,
        }),
        (_, answer) => Err(End::by_runner(answer, may_take)),
    }
}

/// Returns when the user may not see the screen any more, or when the VM is not the same any more.
async fn right_lost(
    console: &Console,
    login: &Login,
    (mut changes, mut settings, mut pools_changed): (
        broadcast::Receiver<Change>,
        watch::Receiver<Arc<WebSettings>>,
        watch::Receiver<()>,
    ),
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
            changed = pools_changed.changed() => changed.is_ok(),
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
        let pool = console.pools.held(&vm, &login.user);
        match vm.may_keep(shown.function, &login.viewer(&settings), pool.as_deref()) {
            Ok(()) => {}
            Err(Refusal::NotRunning) => return End::Ended,
            Err(Refusal::NotFound | Refusal::NotPermitted) => return End::RightLost,
            Err(refusal) => return refusal.into(),
        }
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
    let has_login = || console.has_login(&login.id);
    let used = || console.has_input(&login.id);
    tokio::select! {
        () = send_input(from_page, to_runner, used) => Ok(None),
        end = send_screen(from_runner, to_page, has_login) => match end {
            Ok(answer) => Ok(Some(End::by_runner(answer, may_take))),
            Err(code) => Err(code),
        },
    }
}

/// Sends what the user does to the runner, until one of them has ended the connection.
async fn send_input(
    mut page: SplitStream<&mut WebSocket>,
    mut runner: SplitSink<Runner, tungstenite::Message>,
    used: impl Fn(),
) {
    let mut pings = interval(RUNNER_PING_INTERVAL);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    loop {
        let message = tokio::select! {
            // The page answers pings.
            received = timeout_at(heard + SILENCE_MAX, page.next()) => {
                heard = Instant::now();
                match received {
                    Ok(Some(Ok(Message::Binary(bytes)))) => tungstenite::Message::Binary(bytes),
                    // The only text says that the user is active.
                    Ok(Some(Ok(Message::Text(_)))) => {
                        used();
                        continue;
                    }
                    Ok(Some(Ok(Message::Close(_)) | Err(_)) | None) | Err(_) => return,
                    Ok(Some(Ok(_))) => continue,
                }
            }
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
