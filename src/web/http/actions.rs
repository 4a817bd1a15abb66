//! Changes of VMs and assignments.

use crate::api::pool::{VmAssignment, VmAssignmentSpec, names};
use crate::web::events::Reason;
use crate::web::http::{ObjectRequest, Problem};
use crate::web::logins::Login;
use crate::web::metrics::DONE;
use crate::web::rights::{Action, Rights, Viewer};
use crate::web::size::{RequestedSize, Wrong};
use crate::web::view::{MachineView, is_object_name};
use crate::web::{Console, MANAGER};
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::{Api, Resource};
use serde::Deserialize;
use serde_json::{Value, json};
use strum::IntoStaticStr;

/// A request about a pool.
#[derive(Clone, Copy, PartialEq, IntoStaticStr)]
enum PoolAction {
    /// Requests a VM. A second request changes nothing.
    Request,
    /// Gives the VM back, or withdraws the request for one.
    Return,
}

/// A change of a VM.
enum VmChange {
    Action(Action),
    Size(RequestedSize),
}

impl VmChange {
    /// The change in log lines.
    fn verb(&self) -> &'static str {
        match self {
            Self::Action(action) => action.into(),
            Self::Size(_) => "resize",
        }
    }

    fn is_permitted(&self, viewer: &Viewer<'_>, rights: &Rights) -> bool {
        match self {
            Self::Action(action) => rights.include(action.needs()),
            Self::Size(_) => viewer.may_resize(),
        }
    }

    /// The change of the VM's `spec.vm`.
    fn of(&self, vm: &MachineView) -> Result<Value, Wrong> {
        match self {
            Self::Action(action) => Ok(action.change(vm.reset_request)),
            Self::Size(size) => vm.resize(size),
        }
    }

    /// The event about the change of these fields.
    fn event(&self, fields: &Value) -> (Reason, String) {
        let (reason, what) = match self {
            Self::Action(Action::Start) => (Reason::StartRequested, "starts the VM"),
            Self::Action(Action::Stop) => (Reason::StopRequested, "stops the VM"),
            Self::Action(Action::Reset) => (Reason::ResetRequested, "resets the VM"),
            Self::Size(_) => {
                let fields = fields.as_object().into_iter().flatten();
                let texts = fields.map(|(field, value)| match value.as_str() {
                    Some(text) => format!("{field} to {text}"),
                    None => format!("{field} to {value}"),
                });
                let what = format!("sets {}", texts.collect::<Vec<_>>().join(" and "));
                return (Reason::ResizeRequested, what);
            }
        };
        (reason, what.to_owned())
    }
}

/// A change that a user requests.
enum Change {
    /// Of the VM with the name in the path, and the UID on the page.
    Vm(VmChange, Option<String>),
    /// Of the assignment of the pool with the name in the path.
    Pool(PoolAction),
}

pub(super) async fn request_vm(request: ObjectRequest) -> Result<StatusCode, Problem> {
    carry_out(request, Change::Pool(PoolAction::Request)).await
}

pub(super) async fn return_vm(request: ObjectRequest) -> Result<StatusCode, Problem> {
    carry_out(request, Change::Pool(PoolAction::Return)).await
}

async fn carry_out(request: ObjectRequest, change: Change) -> Result<StatusCode, Problem> {
    let ObjectRequest {
        console,
        login,
        name,
        client,
        ..
    } = request;
    // A client that closes its connection does not prevent the log line.
    let done = tokio::spawn(async move {
        let user = &*login.user;
        let name = name.as_str();
        let [cpus, ram] = match &change {
            Change::Vm(VmChange::Size(size), _) => size.texts(),
            _ => [None; 2],
        };
        let (action, vm, pool, done) = match &change {
            Change::Vm(action, uid) => {
                let uid = uid.as_deref();
                let done = request_change(&console, &login, (name, uid), action).await;
                (action.verb(), Some(name), None, done)
            }
            Change::Pool(action) => {
                let done = change_assignment(&console, &login, name, *action).await;
                (action.into(), None, Some(name), done)
            }
        };
        let result = done.as_ref().err();
        let result = result.map_or(DONE, |failed| failed.problem.reason);
        console.metrics.action(action, result);
        match &done {
            Ok(()) => tracing::info!(user, %client, action, vm, pool, cpus, ram, "action"),
            Err(Failed { problem, error }) => {
                tracing::warn!(user, %client, action, vm, pool, cpus, ram, reason = problem.reason, error, "action rejected");
            }
        }
        done
    });
    match done.await {
        Ok(Ok(())) => Ok(StatusCode::NO_CONTENT),
        Ok(Err(failed)) => Err(failed.problem),
        Err(_) => Err(Problem::new(StatusCode::BAD_GATEWAY, "ApiServer")),
    }
}

/// Creates or deletes the assignment of the user. Its name is that of user and pool, so it is no other user's.
async fn change_assignment(
    console: &Console,
    login: &Login,
    pool: &str,
    action: PoolAction,
) -> Result<(), Failed> {
    let not_found = || Problem::new(StatusCode::NOT_FOUND, "NotFound");
    if !is_object_name(pool) {
        return Err(not_found().into());
    }
    let (settings, user) = (console.settings(), login.user.as_ref().to_owned());
    let client = console.cluster.client.clone();
    let assignments: Api<VmAssignment> = Api::namespaced(client, &console.namespace);
    let name = names::assignment(pool, &user);
    if action == PoolAction::Return {
        let known = console.pools.assignments.get(&console.pools.key(&name));
        return match assignments.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            deleted => {
                deleted.map_err(|error| failed(&error))?;
                let vm = known.as_ref().and_then(|it| it.status.vm.as_ref());
                let what = match vm {
                    Some(vm) => format!("gives the VM {} back", vm.name),
                    None => "withdraws the request for a VM".to_owned(),
                };
                if let Some(pool) = console.pools.pools.get(&console.pools.key(pool)) {
                    let (pool, reason) = (pool.object_ref(&()), Reason::VmReturned);
                    console.report(&user, &pool, reason, &what).await;
                }
                Ok(())
            }
        };
    }
    let present = console
        .pool_now(pool)
        .await
        .map_err(|error| failed(&error))?;
    let present = present.ok_or_else(not_found)?;
    if !present.may_request(&login.viewer(&settings)) {
        return Err(not_found().into());
    }
    let spec = VmAssignmentSpec {
        pool: pool.to_owned(),
        user,
    };
    let assignment = VmAssignment::new(&name, spec);
    match assignments
        .create(&PostParams::default(), &assignment)
        .await
    {
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let present = assignments.get_opt(&name).await;
            let present = present.map_err(|error| failed(&error))?;
            let is_ending = present.is_none_or(|it| it.metadata.deletion_timestamp.is_some());
            let ending = || Problem::new(StatusCode::CONFLICT, "Conflict").into();
            (!is_ending).then_some(()).ok_or_else(ending)
        }
        created => {
            created.map_err(|error| failed(&error))?;
            let (pool, reason) = (present.object_ref(&()), Reason::VmRequested);
            let what = "requests a VM of the pool";
            console.report(&login.user, &pool, reason, what).await;
            Ok(())
        }
    }
}

/// A change that a page requests.
#[derive(Deserialize)]
pub(super) struct OfVm<T> {
    /// UID of the VM on the page.
    uid: Option<String>,
    #[serde(flatten)]
    change: T,
}

#[derive(Deserialize)]
pub(super) struct Requested {
    #[serde(rename = "do")]
    action: Action,
}

pub(super) async fn act(
    request: ObjectRequest,
    requested: Result<Json<OfVm<Requested>>, JsonRejection>,
) -> Result<StatusCode, Problem> {
    let Json(OfVm { uid, change }) = requested?;
    carry_out(request, Change::Vm(VmChange::Action(change.action), uid)).await
}

pub(super) async fn resize(
    request: ObjectRequest,
    requested: Result<Json<OfVm<RequestedSize>>, JsonRejection>,
) -> Result<StatusCode, Problem> {
    let Json(OfVm { uid, change }) = requested?;
    carry_out(request, Change::Vm(VmChange::Size(change), uid)).await
}

/// A request to the API server that has failed.
pub(super) struct Failed {
    pub problem: Problem,
    /// The error, for the log only: it may name addresses, or fields of a VM on which the user has no right.
    error: Option<String>,
}

impl From<Problem> for Failed {
    fn from(problem: Problem) -> Self {
        Self {
            problem,
            error: None,
        }
    }
}

/// Writes the change of the VM. The rights are those of the present object.
async fn request_change(
    console: &Console,
    login: &Login,
    (name, uid): (&str, Option<&str>),
    change: &VmChange,
) -> Result<(), Failed> {
    let not_found = || Problem::new(StatusCode::NOT_FOUND, "NotFound");
    let vms = console.api();
    // The name becomes a part of a path.
    if !is_object_name(name) {
        return Err(not_found().into());
    }
    let vm = vms.get_opt(name).await.map_err(|error| failed(&error))?;
    let vm = vm.ok_or_else(not_found)?;
    let settings = console.settings();
    let pool = console.held_now(&vm, &login.user).await;
    let viewer = login.viewer(&settings);
    let rights = vm.rights(&viewer, pool.as_ref());
    let rights = rights.ok_or_else(not_found)?;
    if !change.is_permitted(&viewer, &rights) {
        return Err(Problem::new(StatusCode::FORBIDDEN, "NotPermitted").into());
    }
    if uid.is_some() && uid != vm.metadata.uid.as_deref() {
        return Err(Problem::new(StatusCode::CONFLICT, "Conflict").into());
    }
    // With another UID, the API server rejects the patch: the rights are not those of a new VM of the same name.
    let fields = change.of(&vm.spec.vm).map_err(Problem::from)?;
    let patch = json!({"metadata": {"uid": vm.metadata.uid}, "spec": {"vm": &fields}});
    let params = PatchParams::apply(MANAGER.field_manager);
    let written = vms
        .patch_metadata(name, &params, &Patch::Merge(patch))
        .await;
    let written = written.map_err(|error| {
        let mut failed = failed(&error);
        if let kube::Error::Api(status) = &error {
            failed.problem.message = Some(status.message.clone());
        }
        failed
    })?;
    // A start of a VM whose state is requested already changes nothing.
    if written.metadata.generation != vm.metadata.generation {
        let (reason, what) = change.event(&fields);
        let vm = vm.object_ref(&());
        console.report(&login.user, &vm, reason, &what).await;
    }
    Ok(())
}

pub(super) fn failed(error: &kube::Error) -> Failed {
    let problem = match error {
        kube::Error::Api(status) if status.code == 404 => {
            Problem::new(StatusCode::NOT_FOUND, "NotFound")
        }
        kube::Error::Api(status) if status.code == 409 || has_other_uid(status) => {
            Problem::new(StatusCode::CONFLICT, "Conflict")
        }
        _ => Problem::new(StatusCode::BAD_GATEWAY, "ApiServer"),
    };
    Failed {
        problem,
        error: Some(error.to_string()),
    }
}

/// Whether the VM was created again.
fn has_other_uid(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes
        .into_iter()
        .any(|cause| cause.field == "metadata.uid")
}
