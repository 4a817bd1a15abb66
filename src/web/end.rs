//! Ends connections of SPICE clients whose users have lost the right: their connections do not pass through the console.
//!
//! The users are those in `status.consoles`. So this works after a restart of the console, too.

use crate::api::runner::viewer::{Answer, Function, Request};
use crate::api::vm::ConsoleProtocol;
use crate::k8s::key::ObjectKey;
use crate::k8s::registry::Stored;
use crate::k8s::store::children::Change;
use crate::settings::web::WebSettings;
use crate::web::Console;
use crate::web::pools::PoolView;
use crate::web::rights::Viewer;
use crate::web::runner::{End, open, pod_of};
use crate::web::view::{Refusal, VmView};
use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;
use tokio::time::interval;

/// Interval of comparisons without a change, for runners that were not reached.
const COMPARE_INTERVAL: Duration = Duration::from_secs(60);

/// Connections to runners at the same time.
const CONNECTIONS_MAX: usize = 16;

/// Compares the users of SPICE clients with their rights, at the start and after changes. Runs until the process exits.
pub async fn follow(console: Arc<Console>) {
    let (mut changes, mut settings) = (console.changes.subscribe(), console.settings.clone());
    let mut pools_changed = console.pools_changed.subscribe();
    console.vms.ready().await;
    console.pools.pools.ready().await;
    console.pools.assignments.ready().await;
    let mut times = interval(COMPARE_INTERVAL);
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let (mut tasks, mut busy) = (JoinSet::new(), HashSet::new());
    loop {
        let changed = tokio::select! {
            change = changes.recv() => match change {
                Ok(Change::Group(vm)) => Some(vm),
                Ok(Change::Relisted) | Err(RecvError::Lagged(_)) => None,
                Ok(Change::None) => continue,
                // The sender exists as long as the console.
                Err(RecvError::Closed) => return,
            },
            Ok(()) = settings.changed() => None,
            Ok(()) = pools_changed.changed() => None,
            _ = times.tick() => None,
            Some(done) = tasks.join_next() => {
                if let Ok(done) = done {
                    busy.remove(&done);
                }
                continue;
            }
        };
        let vms = match changed {
            Some(vm) => console.vms.get(&vm).into_iter().collect(),
            None => console.all_vms(),
        };
        let present = settings.borrow_and_update().clone();
        for vm in vms {
            for user in spice_users(&vm) {
                let pool = console.pools.held(&vm, user);
                let client = (ObjectKey::of(&*vm), user.to_owned());
                if has_lost(&console, &present, &vm, user, pool.as_deref())
                    && busy.insert(client.clone())
                {
                    let (console, connections) = (console.clone(), connections.clone());
                    tasks.spawn(async move {
                        // The semaphore is never closed.
                        let _permit = connections.acquire().await;
                        end(&console, client.0.name(), &client.1).await;
                        client
                    });
                }
            }
        }
    }
}

/// The known users of SPICE clients.
fn spice_users(vm: &VmView) -> impl Iterator<Item = &str> {
    let spice = |protocol| protocol == ConsoleProtocol::Spice;
    let consoles = vm.status.consoles.iter();
    let consoles = consoles.filter(move |console| spice(console.protocol));
    let users = consoles.map(|console| &*console.user);
    users.filter(|user| !user.is_empty())
}

fn has_lost(
    console: &Console,
    settings: &WebSettings,
    vm: &VmView,
    user: &str,
    pool: Option<&PoolView>,
) -> bool {
    let roles = console.logins.roles(user, console.now());
    is_lost(settings, vm, user, roles.as_deref(), pool)
}

/// Whether the user has lost the right to the display. `reported` are the roles of a user who is logged in.
///
/// Roles that a provider reports are known only while the user is logged in at this replica. Other users of a provider retain their
/// connection.
fn is_lost(
    settings: &WebSettings,
    vm: &VmView,
    user: &str,
    reported: Option<&[String]>,
    pool: Option<&PoolView>,
) -> bool {
    let is_known = reported.is_some() || settings.user(user).is_some();
    if !is_known {
        return settings.providers().is_empty();
    }
    let viewer = Viewer::new(settings, user, reported.unwrap_or_default());
    let kept = vm.may_keep(Function::Display, &viewer, pool);
    // A VM that does not run has no connections.
    !matches!(kept, Ok(()) | Err(Refusal::NotRunning))
}

/// Ends the connection, unless the user has the right by the present objects of the API server.
async fn end(console: &Console, vm: &str, user: &str) {
    let ended = async {
        let read = console.api().get_opt(vm).await;
        let present = read.map_err(|_| End::ApiServer)?.ok_or(End::NotFound)?;
        let pool = console.read_holder(&present, user).await;
        let pool = pool.map_err(|_| End::ApiServer)?;
        if !has_lost(console, &console.settings(), &present, user, pool.as_ref()) {
            return Ok(None);
        }
        let pod = pod_of(console, &present).await?;
        let pod_uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let nobody = Ipv4Addr::UNSPECIFIED.into();
        let request = Request::new(pod_uid, Function::Disconnect, user, nobody);
        open(console, &present, &pod, &request)
            .await
            .map(|(_, answer)| Some(answer))
    };
    match ended.await {
        Ok(None) | Err(End::NotFound) => {}
        Ok(Some(Answer::Ended)) => tracing::info!(user, vm, "SPICE client disconnected"),
        Ok(Some(answer)) => {
            let answer: &str = (&answer).into();
            tracing::warn!(
                user,
                vm,
                answer,
                "the runner does not disconnect the SPICE client of a user without the right; restart the VM"
            );
        }
        Err(end) => {
            let reason: &str = (&end).into();
            tracing::warn!(
                user,
                vm,
                reason,
                "the console cannot disconnect the SPICE client of a user without the right, and retries"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn vm(status: Value) -> VmView {
        let permissions = json!([
            {"user": "alice", "may": ["accessConsole"]}, {"role": "staff", "may": ["accessConsole"]}, {"user": "carol", "may": ["stop"]},
        ]);
        let mut vm = json!({"metadata": {"name": "vm"}, "spec": {"permissions": permissions}, "status": {"conditions": [
            {"type": "Running", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "UserLoggedIn", "status": "False", "reason": "NotRequested", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ]}});
        let status = status.as_object().unwrap().clone();
        vm["status"].as_object_mut().unwrap().extend(status);
        serde_json::from_value(vm).unwrap()
    }

    fn settings(providers: Value) -> WebSettings {
        let users: Vec<_> = ["alice", "bob", "carol"]
            .map(|name| json!({"name": name, "password": "$2y$04$H3Klq0Jrf5swL7aAgAqSeOnsRcbsAepJMs8AWLGkpBMF5Zjr9KEFG"}))
            .into();
        let login = json!({"users": users, "oidcProviders": providers});
        let console = json!({"/LoginConlet": login});
        serde_json::from_value(
            json!({"/GuiHttpServer": {"/ConsoleWeblet": {"/WebConsole": console}}}),
        )
        .unwrap()
    }

    #[test]
    fn only_known_users_of_spice_clients_are_compared() {
        let console = |user: &str, protocol: &str| json!({"user": user, "protocol": protocol});
        let consoles = json!([
            console("alice", "Spice"),
            console("", "Spice"),
            console("bob", "Screen")
        ]);
        let vm = vm(json!({"consoles": consoles}));
        assert!(spice_users(&vm).eq(["alice"]));
    }

    #[test]
    fn right_to_the_display_is_lost_with_the_permission_the_assignment_or_the_user() {
        let local = settings(json!([]));
        let present = vm(json!({}));
        let lost = |user: &str, reported: Option<&[String]>| {
            is_lost(&local, &present, user, reported, None)
        };
        assert!(!lost("alice", None));
        assert!(lost("bob", None), "no permission");
        assert!(lost("carol", None), "another permission");
        assert!(lost("dave", None), "the user is not configured any more");
        let staff = ["staff".to_owned()];
        assert!(!lost("dave", Some(&staff)));
        assert!(lost("dave", Some(&[])));
        let assigned = vm(json!({"assignment": {"user": "bob"}}));
        assert!(is_lost(&local, &assigned, "alice", None, None));
        let stopped = vm(json!({"conditions": []}));
        assert!(!is_lost(&local, &stopped, "alice", None, None));
    }

    #[test]
    fn roles_of_a_provider_are_unknown_without_a_login() {
        let provider = json!([{"name": "p", "displayName": "P", "configurationEndpoint": "https://p.example.org", "clientId": "c", "secret": "s"}]);
        let settings = settings(provider);
        let present = vm(json!({}));
        assert!(!is_lost(&settings, &present, "dave", None, None));
        assert!(is_lost(&settings, &present, "dave", Some(&[]), None));
        assert!(is_lost(&settings, &present, "bob", None, None));
    }
}
