//! (pure) VMs as the console stores them, and as pages show them.

use crate::api::VirtualMachine;
use crate::api::conditions;
use crate::api::quantity::Bytes;
use crate::api::runner::viewer::Function;
use crate::api::vm::ConsoleProtocol;
use crate::api::vm::conditions::{
    CONSOLE_CONNECTED, ConditionReason, READY, RUNNING, USER_LOGGED_IN,
};
use crate::api::vm::{CpuTopology, Grant, Permission, State};
use crate::k8s::store::trim::key_and_versions;
use crate::web::pools::PoolView;
use crate::web::rights::{Rights, Viewer};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Conditions that pages and decisions need.
const NEEDED: [&str; 4] = [READY, RUNNING, CONSOLE_CONNECTED, USER_LOGGED_IN];

/// Maximum length in bytes of a text that a guest or runner can influence.
const TEXT_MAX: usize = 1024;

/// A VM, with the fields that pages show.
#[derive(Clone, Debug, Resource, Deserialize)]
#[resource(inherit = VirtualMachine)]
#[allow(missing_docs)]
pub struct VmView {
    #[serde(deserialize_with = "key_and_versions")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: SpecView,
    #[serde(default)]
    pub status: StatusView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct SpecView {
    pub permissions: Vec<Permission>,
    pub pools: Box<[Box<str>]>,
    pub vm: MachineView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct MachineView {
    pub state: Option<State>,
    pub reset_request: Option<i64>,
    pub maximum_cpus: Option<i64>,
    pub cpu_topology: Option<CpuTopology>,
    pub current_cpus: Option<i64>,
    pub maximum_ram: Option<Box<str>>,
    pub current_ram: Option<Box<str>>,
    pub display: DisplayView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct DisplayView {
    pub spice: Option<SpiceView>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct SpiceView {
    pub server: Option<Box<str>>,
    pub proxy_url: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct StatusView {
    #[serde(deserialize_with = "read_conditions")]
    pub conditions: Box<[Condition]>,
    #[serde(rename = "osinfo", deserialize_with = "read_system")]
    pub system: Option<Box<str>>,
    pub console_user: String,
    pub consoles: Box<[ConsoleView]>,
    pub logged_in_user: Option<Box<str>>,
    pub console_key: Option<Box<str>>,
    pub assignment: HolderView,
    #[serde(deserialize_with = "read_size")]
    pub cpus: u64,
    /// In bytes.
    #[serde(deserialize_with = "read_size")]
    pub ram: u64,
    pub node_name: Option<Box<str>>,
    pub console_client: Box<str>,
}

/// A user that is connected to a console of the VM.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs)]
pub struct ConsoleView {
    pub user: Box<str>,
    pub protocol: ConsoleProtocol,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct HolderView {
    pub pool: Option<Box<str>>,
    pub user: Option<Box<str>>,
    pub uid: Option<Box<str>>,
}

fn read_conditions<'de, D: Deserializer<'de>>(from: D) -> Result<Box<[Condition]>, D::Error> {
    let all = Vec::<Condition>::deserialize(from)?.into_iter();
    Ok(all
        .filter(|it| NEEDED.contains(&it.type_.as_str()))
        .collect())
}

/// The name of the guest's operating system, which a guest agent reports in any form.
fn read_system<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<str>>, D::Error> {
    let info = Option::<Map<String, Value>>::deserialize(from)?.unwrap_or_default();
    let name = ["pretty-name", "name", "id"]
        .into_iter()
        .find_map(|key| info.get(key)?.as_str());
    Ok(name.map(|name| shortened(name).into()))
}

/// A number, or a size in bytes. Other values count as 0, since a runner of the Java VM-Operator writes them itself.
fn read_size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let size = Value::deserialize(from)?;
    Ok(serde_json::from_value(size).map_or(0, |Bytes(bytes)| bytes))
}

/// The text, cut to its maximum length.
pub fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX)]
}

/// A VM on a page. It has all fields that leave the console; annotations, `cloudInit` and Secrets are not among them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<&'a str>,
    requested: State,
    running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    ready: Option<Ready<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    console_user: Option<&'a str>,
    /// The pool by which the viewer has the VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    may: Rights,
    /// For viewers who see all VMs.
    #[serde(skip_serializing_if = "Option::is_none")]
    facts: Option<Facts<'a>>,
}

/// What the overview shows of a VM besides its row.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Facts<'a> {
    /// Time of the last start or stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<&'a Time>,
    cpus: u64,
    ram: u64,
    #[serde(skip_serializing_if = "str::is_empty")]
    node: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    assigned_to: &'a str,
    /// Address of the connected user.
    #[serde(skip_serializing_if = "str::is_empty")]
    used_from: &'a str,
}

impl<'a> Facts<'a> {
    fn of(vm: &'a VmView) -> Self {
        let status = &vm.status;
        let running = conditions::find(&status.conditions, RUNNING);
        let text = |text: &'a Option<Box<str>>| shortened(text.as_deref().unwrap_or_default());
        let (cpus, ram) = vm.used();
        Self {
            since: running.map(|running| &running.last_transition_time),
            cpus,
            ram,
            node: text(&status.node_name),
            assigned_to: text(&status.assignment.user),
            used_from: shortened(&status.console_client),
        }
    }
}

impl Row<'_> {
    /// The VM's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name
    }
}

#[derive(Debug, Serialize)]
struct Ready<'a> {
    status: &'a str,
    reason: &'a str,
    message: &'a str,
}

/// The reason why a user may not open the screen of a VM.
#[derive(Debug, PartialEq)]
pub enum Refusal {
    /// The user must not know of the VM.
    NotFound,
    /// The user has no right on the screen.
    NotPermitted,
    /// The VM does not run.
    NotRunning,
    /// The user is not logged in to the guest yet.
    LoginPending,
    /// A pool has assigned the VM to another user.
    Assigned(String),
    /// Another user is connected to the SPICE display.
    InUse(String),
}

impl VmView {
    /// The VM's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// A VM of which only the metadata is known.
    #[must_use]
    pub fn without_rights(metadata: ObjectMeta) -> Option<Self> {
        Some(Self {
            metadata,
            spec: SpecView::default(),
            status: StatusView::default(),
        })
    }

    /// Whether the VM runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        conditions::is_true(&self.status.conditions, RUNNING)
    }

    /// UID of the assignment by which a user has the VM.
    #[must_use]
    pub fn assignment(&self) -> Option<String> {
        self.status.assignment.uid.as_deref().map(str::to_owned)
    }

    /// Whether a pool can assign the VM to users.
    #[must_use]
    pub fn is_of_pool(&self) -> bool {
        !self.spec.pools.is_empty() || self.status.assignment.pool.is_some()
    }

    /// The rights of the viewer, who may have the VM by a pool. None if the viewer must not know of the VM.
    #[must_use]
    pub fn rights(&self, viewer: &Viewer<'_>, pool: Option<&PoolView>) -> Option<Rights> {
        let by_pool = pool.map(|pool| pool.spec.permissions.as_slice());
        viewer.on_vm(&self.spec.permissions, by_pool)
    }

    /// Whether the viewer may use a console: the first rule of the Java VM-Operator that does not hold, or whether the viewer may take the
    /// screen from others. Rules about the desktop are not for the serial console.
    ///
    /// # Errors
    /// The viewer may not.
    pub fn may_open(
        &self,
        function: Function,
        viewer: &Viewer<'_>,
        pool: Option<&PoolView>,
    ) -> Result<bool, Refusal> {
        self.may_keep(function, viewer, pool)?;
        let status = &self.status;
        let rights = self.rights(viewer, pool).unwrap_or_default();
        if rights.include(Grant::TakeConsole) || function == Function::Serial {
            return Ok(rights.include(Grant::TakeConsole));
        }
        let others = status
            .consoles
            .iter()
            .filter(|console| console.protocol != ConsoleProtocol::Serial);
        let others = others.map(|console| &*console.user);
        // Other runners report the connection only, and front ends its user.
        let is_connected = status.consoles.is_empty()
            && conditions::is_true(&status.conditions, CONSOLE_CONNECTED);
        let mut others = others.chain(is_connected.then_some(&*status.console_user));
        if let Some(user) = others.find(|user| !user.is_empty() && *user != viewer.user()) {
            return Err(Refusal::InUse(shortened(user).to_owned()));
        }
        if self.requests_login() && status.logged_in_user.as_deref() != Some(viewer.user()) {
            return Err(Refusal::LoginPending);
        }
        Ok(false)
    }

    /// Whether the desktop agent logs a user in to the guest.
    fn requests_login(&self) -> bool {
        let login = conditions::find(&self.status.conditions, USER_LOGGED_IN);
        let not_requested = ConditionReason::NotRequested.as_str();
        login.is_none_or(|login| login.reason != not_requested)
    }

    /// Whether the viewer may continue to use the console. A logout from the guest does not end it, but the login of another user does.
    ///
    /// # Errors
    /// The viewer may not.
    pub fn may_keep(
        &self,
        function: Function,
        viewer: &Viewer<'_>,
        pool: Option<&PoolView>,
    ) -> Result<(), Refusal> {
        let rights = self.rights(viewer, pool).ok_or(Refusal::NotFound)?;
        if !rights.include(Grant::AccessConsole) {
            return Err(Refusal::NotPermitted);
        }
        if !self.is_running() {
            return Err(Refusal::NotRunning);
        }
        let is_other = |user: &&str| *user != viewer.user() && !rights.include(Grant::TakeConsole);
        let status = &self.status;
        if let Some(holder) = status.assignment.user.as_deref().filter(is_other) {
            return Err(Refusal::Assigned(shortened(holder).to_owned()));
        }
        let logged_in = status.logged_in_user.as_deref();
        let shows_desktop = function != Function::Serial && self.requests_login();
        match logged_in.filter(is_other).filter(|_| shows_desktop) {
            Some(_) => Err(Refusal::LoginPending),
            None => Ok(()),
        }
    }

    /// The VM as the viewer sees it. None if the viewer must not know of it.
    #[must_use]
    pub fn row(&self, viewer: &Viewer<'_>, pool: Option<&PoolView>) -> Option<Row<'_>> {
        let may = self.rights(viewer, pool)?;
        let status = &self.status;
        let ready = conditions::find(&status.conditions, READY).map(|condition| Ready {
            status: &condition.status,
            reason: shortened(&condition.reason),
            message: shortened(&condition.message),
        });
        let console_user = Some(shortened(&status.console_user));
        Some(Row {
            name: self.name(),
            uid: self.metadata.uid.as_deref(),
            requested: self.spec.vm.state.unwrap_or(State::Stopped),
            running: self.is_running(),
            ready,
            system: status.system.as_deref(),
            console_user: console_user.filter(|user| !user.is_empty()),
            pool: pool.map(ResourceExt::name_any),
            may,
            facts: viewer.sees_all().then(|| Facts::of(self)),
        })
    }
}

/// Whether the text can be a name of an object, which becomes a part of a path.
pub fn is_object_name(name: &str) -> bool {
    let is_allowed =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ['-', '.'].contains(&c);
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::vm::conditions::ReadyReason;
    use crate::settings::web::WebSettings;
    use serde_json::json;
    use strum::VariantArray;

    fn vm(osinfo: Value) -> VmView {
        let condition = |kind: &str, status: &str, message: &str| json!({"type": kind, "status": status, "reason": "R", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"});
        serde_json::from_value(json!({
            "metadata": {"name": "vm", "namespace": "ns", "annotations": {"hidden": "1"}},
            "spec": {
                "permissions": [{"user": "alice", "may": ["stop"]}], "cloudInit": {"userData": "hidden"},
                "vm": {"state": "Running", "maximumCpus": 2},
            },
            "status": {
                "conditions": [condition("Ready", "False", &"ä".repeat(1000)), condition("Running", "True", ""), condition("Other", "True", "")],
                "osinfo": osinfo, "consoleUser": "bob",
            },
        }))
        .unwrap()
    }

    #[test]
    fn row_has_the_listed_fields_only_and_exists_for_users_with_a_right() {
        let settings = WebSettings::default();
        let vm = vm(json!({"pretty-name": "Debian 12", "id": "debian"}));
        assert!(vm.row(&Viewer::new(&settings, "bob", &[]), None).is_none());
        let row =
            serde_json::to_value(vm.row(&Viewer::new(&settings, "alice", &[]), None).unwrap())
                .unwrap();
        let message = "ä".repeat(512);
        let expected = json!({
            "name": "vm", "requested": "Running", "running": true, "system": "Debian 12", "consoleUser": "bob", "may": ["stop"],
            "ready": {"status": "False", "reason": "R", "message": message},
        });
        assert_eq!(row, expected);
    }

    #[test]
    fn only_viewers_of_all_vms_see_nodes_and_users_of_a_vm() {
        let pages = json!({"/RoleConletFilter": {"conletTypesByRole": {"admin": ["*"]}}, "/RoleConfigurator": {"rolesByUser": {"eve": ["admin"]}}});
        let server = json!({"/ConsoleWeblet": {"/WebConsole": pages}});
        let settings: WebSettings =
            serde_json::from_value(json!({"/GuiHttpServer": server})).unwrap();
        let mut vm = vm(json!(null));
        vm.spec.vm.maximum_ram = Some("1 GiB".into());
        vm.status = serde_json::from_value(json!({
            "cpus": 2, "ram": "15E", "nodeName": "node", "consoleClient": "192.0.2.7", "assignment": {"user": "bob", "pool": "p"},
            "conditions": [{"type": "Running", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }))
        .unwrap();
        let viewer = Viewer::new(&settings, "eve", &[]);
        let row = serde_json::to_value(vm.row(&viewer, None).unwrap()).unwrap();
        let expected = json!({
            "since": "2026-01-01T00:00:00Z", "cpus": 2, "ram": 1 << 30, "node": "node", "assignedTo": "bob", "usedFrom": "192.0.2.7",
        });
        assert_eq!((&row["may"], &row["facts"]), (&json!([]), &expected));
    }

    #[test]
    fn pages_have_a_german_text_for_each_reason_that_a_vm_is_not_ready() {
        let german = include_str!("ui/words-de.ts");
        for reason in ReadyReason::VARIANTS.iter().filter(|it| !it.is_ready()) {
            let key = format!("    {}: \"", reason.as_str());
            assert!(german.contains(&key), "{reason:?}");
        }
    }

    #[test]
    fn guest_cannot_make_its_vm_unreadable() {
        for osinfo in [
            json!(null),
            json!({}),
            json!({"pretty-name": 1, "id": ["x"]}),
        ] {
            assert_eq!(vm(osinfo).status.system, None);
        }
        let status: StatusView = serde_json::from_value(json!({"cpus": -1, "ram": "?"})).unwrap();
        assert_eq!((status.cpus, status.ram), (0, 0));
        assert_eq!(
            vm(json!({"id": "x".repeat(5000)}))
                .status
                .system
                .unwrap()
                .len(),
            TEXT_MAX
        );
    }
}
