//! The list of VMs on one page: the whole list first, then changes.

use crate::k8s::key::ObjectKey;
use crate::k8s::registry::Stored;
use crate::k8s::store::children::Change;
use crate::settings::web::WebSettings;
use crate::web::Console;
use crate::web::assignments::PoolRow;
use crate::web::logins::{Login, Places};
use crate::web::view::{Row, VmView};
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use serde::Serialize;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

/// Interval of pings, below the idle time after which common proxies close connections.
pub const PING_INTERVAL: Duration = Duration::from_secs(20);

/// A page that has not answered pings for this time is gone.
pub const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Time for one message. A slower page loses its connection, and gets the whole list with the next one.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Changes of this time are one message.
const COLLECT_TIME: Duration = Duration::from_millis(250);

/// Close code: the login has ended.
pub const LOGIN_ENDED: u16 = 4401;

/// A message to the page.
#[derive(Default, Serialize)]
struct Update<'a> {
    /// Name of the user, in messages with the whole list.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    rows: Vec<Row<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gone: Vec<String>,
    /// All pools of the user, in messages with the whole list and after changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pools: Option<&'a [PoolRow]>,
    /// Seconds since the last news of the API server, while the list is old. 0 when the list is not old any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    age: Option<u64>,
}

/// How much of a page is old after a change of pools.
#[derive(PartialEq)]
enum Outdated {
    Nothing,
    /// The pools.
    Pools,
    /// The pools, and the VMs that the user has by them.
    Vms,
}

/// The list of one page.
struct List {
    console: Arc<Console>,
    login: Login,
    /// Names of the VMs that the page has.
    shown: HashSet<String>,
    /// Pools that the page has.
    pools: Vec<PoolRow>,
}

impl List {
    /// The whole list.
    fn all(&mut self, settings: &WebSettings) -> Message {
        let (vms, pools) = (self.console.all_vms(), &self.console.pools);
        let viewer = self.login.viewer(settings);
        let row = |vm: &'_ Arc<VmView>| pools.held(vm, viewer.user());
        let held: Vec<_> = vms.iter().map(row).collect();
        let rows = vms.iter().zip(&held);
        let rows: Vec<_> = rows
            .filter_map(|(vm, held)| vm.row(&viewer, held.as_deref()))
            .collect();
        self.shown = rows.iter().map(|row| row.name().to_owned()).collect();
        self.pools = pools.rows(&viewer);
        text(&Update {
            user: Some(&self.login.user),
            rows,
            gone: Vec::new(),
            pools: Some(&self.pools),
            age: age(*self.console.news.old().borrow()),
        })
    }

    /// Reads the pools again. Returns how much of the page is old.
    fn update_pools(&mut self, settings: &WebSettings) -> Outdated {
        let viewer = self.login.viewer(settings);
        let rows = self.console.pools.rows(&viewer);
        if rows == self.pools {
            return Outdated::Nothing;
        }
        let have_same_vms = PoolRow::give_same_rights(&rows, &self.pools);
        self.pools = rows;
        if have_same_vms {
            Outdated::Pools
        } else {
            Outdated::Vms
        }
    }

    /// The changes of these VMs. None if the page does not show them.
    fn changes(
        &mut self,
        settings: &WebSettings,
        changed: HashSet<ObjectKey>,
        has_other_pools: bool,
    ) -> Option<Message> {
        let vms = changed
            .iter()
            .map(|vm| (vm.name(), self.console.vms.get(vm)));
        let vms: Vec<_> = vms.collect();
        let viewer = self.login.viewer(settings);
        let mut update = Update {
            pools: has_other_pools.then_some(&*self.pools),
            ..Update::default()
        };
        for (name, vm) in &vms {
            let held = vm
                .as_ref()
                .and_then(|vm| self.console.pools.held(vm, viewer.user()));
            let row = vm.as_ref().and_then(|vm| vm.row(&viewer, held.as_deref()));
            match row {
                Some(row) => {
                    self.shown.insert((*name).to_owned());
                    update.rows.push(row);
                }
                None if self.shown.remove(*name) => update.gone.push((*name).to_owned()),
                None => {}
            }
        }
        let has_no_vms = update.rows.is_empty() && update.gone.is_empty();
        (has_other_pools || !has_no_vms).then(|| text(&update))
    }
}

fn age(last_news: Option<Instant>) -> Option<u64> {
    last_news.map(|last| last.elapsed().as_secs())
}

fn text(update: &Update<'_>) -> Message {
    // Texts and lists can always be serialized.
    Message::Text(serde_json::to_string(update).unwrap_or_default().into())
}

/// Serves the list until the page closes it or the login ends. The places are those of the page.
pub async fn run(mut socket: WebSocket, console: Arc<Console>, login: Login, places: Places) {
    let ended = login.ended.clone();
    let frame = tokio::select! {
        () = ended.cancelled() => Some(CloseFrame { code: LOGIN_ENDED, reason: "".into() }),
        frame = follow(&mut socket, console, login) => frame,
    };
    if let Some(frame) = frame {
        close(&mut socket, frame).await;
    }
    drop(places);
}

/// Closes the connection, and waits for the answer of the page: if the answer arrives after the end of the connection, the kernel
/// resets the connection, and kubectl ends a forwarded port.
pub async fn close(socket: &mut WebSocket, frame: CloseFrame) {
    let close = async {
        let sent = socket.send(Message::Close(Some(frame))).await;
        while sent.is_ok() && matches!(socket.recv().await, Some(Ok(_))) {}
    };
    drop(timeout(SEND_TIMEOUT, close).await);
}

/// Returns when the connection has ended, or with the reason to close it.
async fn follow(socket: &mut WebSocket, console: Arc<Console>, login: Login) -> Option<CloseFrame> {
    let (mut changes, mut settings) = (console.changes.subscribe(), console.settings.clone());
    let mut list = List {
        console: console.clone(),
        login,
        shown: HashSet::new(),
        pools: Vec::new(),
    };
    let mut pools_changed = console.pools_changed.subscribe();
    let mut old = console.news.old();
    let mut pings = interval(PING_INTERVAL);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    let (mut is_complete, mut changed) = (false, HashSet::new());
    let (mut is_outdated, mut has_other_pools, mut due) = (false, false, None);
    loop {
        let is_due = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        let message = tokio::select! {
            received = socket.recv() => match received {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                Some(Ok(message)) => {
                    // The only text says that the user is active.
                    if matches!(message, Message::Text(_)) {
                        console.has_input(&list.login.id);
                    }
                    heard = Instant::now();
                    None
                }
            },
            _ = pings.tick() => {
                if !console.has_login(&list.login.id) {
                    return Some(CloseFrame { code: LOGIN_ENDED, reason: "".into() });
                }
                if heard.elapsed() > SILENCE_MAX {
                    return Some(CloseFrame { code: close_code::AWAY, reason: "".into() });
                }
                Some(Message::Ping(Vec::new().into()))
            }
            () = console.vms.ready(), if !is_complete => {
                is_complete = true;
                Some(list.all(&settings.borrow_and_update().clone()))
            }
            Ok(()) = settings.changed(), if is_complete => {
                Some(list.all(&settings.borrow_and_update().clone()))
            }
            change = changes.recv(), if is_complete => {
                match change {
                    Ok(Change::Group(vm)) => drop(changed.insert(vm)),
                    // Deletions may have been missed.
                    Ok(Change::Relisted) | Err(RecvError::Lagged(_)) => is_outdated = true,
                    Ok(Change::None) | Err(RecvError::Closed) => continue,
                }
                due.get_or_insert_with(|| Instant::now() + COLLECT_TIME);
                None
            }
            Ok(()) = old.changed(), if is_complete => {
                let age = age(*old.borrow_and_update());
                Some(text(&Update { age: age.or(Some(0)), ..Update::default() }))
            }
            Ok(()) = pools_changed.changed(), if is_complete => {
                has_other_pools = true;
                due.get_or_insert_with(|| Instant::now() + COLLECT_TIME);
                None
            }
            () = is_due => {
                due = None;
                let (settings, changed) = (settings.borrow().clone(), std::mem::take(&mut changed));
                let outdated = match std::mem::take(&mut has_other_pools) {
                    true => list.update_pools(&settings),
                    false => Outdated::Nothing,
                };
                if std::mem::take(&mut is_outdated) || outdated == Outdated::Vms {
                    Some(list.all(&settings))
                } else {
                    list.changes(&settings, changed, outdated == Outdated::Pools)
                }
            }
        };
        if let Some(message) = message
            && !matches!(
                timeout(SEND_TIMEOUT, socket.send(message)).await,
                Ok(Ok(()))
            )
        {
            return None;
        }
    }
}
