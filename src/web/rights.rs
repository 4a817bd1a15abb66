//! (pure) The rights of a user on a VM. Routes, rows and consoles all ask [`Viewer::on_vm`].

use crate::api::pool::{PoolGrant, PoolPermission};
use crate::api::vm::{Grant, Permission, State};
use crate::settings::web::{UserOrRole, WebSettings};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// All rights, in the order in which pages show them.
const ALL: [Grant; 5] = [
    Grant::Start,
    Grant::Stop,
    Grant::Reset,
    Grant::AccessConsole,
    Grant::TakeConsole,
];

/// The rights of a user on one object.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Rights(Vec<Grant>);

/// An action on a VM. Log lines have its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, strum::IntoStaticStr)]
#[strum(serialize_all = "camelCase")]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// Starts the VM.
    Start,
    /// Shuts the guest down.
    Stop,
    /// Resets the running guest, which loses unsaved data.
    Reset,
}

impl Action {
    /// The right that the action needs.
    #[must_use]
    pub fn needs(self) -> Grant {
        match self {
            Self::Start => Grant::Start,
            Self::Stop => Grant::Stop,
            Self::Reset => Grant::Reset,
        }
    }

    /// The change of the VM's `spec.vm`. `resets` is the present number of requested resets.
    #[must_use]
    pub fn change(self, resets: Option<i64>) -> Value {
        match self {
            Self::Start => json!({"state": State::Running}),
            Self::Stop => json!({"state": State::Stopped}),
            Self::Reset => {
                let next = resets.unwrap_or_default().wrapping_add(1);
                json!({"resetRequest": next})
            }
        }
    }
}

/// A page of the console that a role permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Capability {
    /// The VMs on which the user has a permission.
    Portal,
    /// All VMs of the namespace. Actions need a permission on the VM.
    Overview,
    /// Changes of CPUs and memory of the VMs that the user sees.
    Resize,
}

impl Capability {
    const ALL: [Self; 3] = [Self::Portal, Self::Overview, Self::Resize];

    /// The widgets of the Java VM-Operator's web console whose users have the capability.
    fn widgets(self) -> &'static [&'static str] {
        match self {
            Self::Portal => &[
                "org.jdrupes.vmoperator.vmaccess.VmAccess",
                "org.jdrupes.vmoperator.vmviewer.VmViewer",
            ],
            Self::Overview => &["org.jdrupes.vmoperator.vmmgmt.VmMgmt"],
            // Only the entry for all widgets gives it.
            Self::Resize => &["*"],
        }
    }

    /// Whether a role with these entries of `conletTypesByRole` has the capability: the first entry about the widget decides. `--T` denies
    /// it. `-T`, of which `!T` is the old form, leaves it to the system, which adds the widgets for own VMs only.
    fn is_granted_by(self, entries: &[String]) -> bool {
        let of_widget = |widget: &&str| {
            entries.iter().map(|entry| entry.trim()).find_map(|entry| {
                let denied = entry.strip_prefix("--").map(|name| (name, false));
                let by_system = || {
                    let name = entry.strip_prefix(['-', '!']);
                    name.map(|name| (name, self == Self::Portal))
                };
                let (name, is_granted) = denied.or_else(by_system).unwrap_or((entry, true));
                (name.trim() == *widget || entry == "*").then_some(is_granted)
            })
        };
        self.widgets()
            .iter()
            .any(|widget| of_widget(widget) == Some(true))
    }
}

/// A user with the roles and capabilities of the present configuration.
pub struct Viewer<'a> {
    user: &'a str,
    roles: BTreeSet<&'a str>,
    start_pages: &'a [UserOrRole],
    /// What the roles permit.
    pub capabilities: BTreeSet<Capability>,
}

impl<'a> Viewer<'a> {
    /// The viewer for a user, of which a provider has reported these roles. Without `conletTypesByRole`, each user has the portal.
    #[must_use]
    pub fn new(settings: &'a WebSettings, user: &'a str, reported: &'a [String]) -> Self {
        let roles = settings.roles(user, reported);
        let capabilities = match settings.widgets_by_role() {
            None => BTreeSet::from([Capability::Portal]),
            Some(by_role) => {
                let entries = roles.iter().filter_map(|role| by_role.get(*role));
                let entries: Vec<_> = entries.collect();
                let is_granted = |capability: &Capability| {
                    entries
                        .iter()
                        .any(|entries| capability.is_granted_by(entries))
                };
                Capability::ALL.into_iter().filter(is_granted).collect()
            }
        };
        Self {
            user,
            roles,
            start_pages: settings.starts_with_own_vms(),
            capabilities,
        }
    }

    /// The page after the login. Users of both lists begin with all VMs, unless `syncPreviewsFor` names them.
    #[must_use]
    pub fn start(&self) -> Capability {
        let mut named = self.start_pages.iter();
        let is_named = named.any(|it| self.is_meant(it.user.as_deref(), it.role.as_deref()));
        let has_own = self.capabilities.contains(&Capability::Portal);
        if !self.sees_all() || is_named && has_own {
            Capability::Portal
        } else {
            Capability::Overview
        }
    }

    /// The name of the user.
    #[must_use]
    pub fn user(&self) -> &str {
        self.user
    }

    /// The roles of the user.
    #[must_use]
    pub fn roles(&self) -> &BTreeSet<&str> {
        &self.roles
    }

    /// Whether the viewer may see all VMs, with their totals, nodes and users.
    #[must_use]
    pub fn sees_all(&self) -> bool {
        self.capabilities.contains(&Capability::Overview)
    }

    /// Whether the viewer may change the size of the VMs that the viewer sees.
    #[must_use]
    pub fn may_resize(&self) -> bool {
        self.capabilities.contains(&Capability::Resize)
    }

    /// The rights that a pool gives on its VMs to this viewer. None, as long as the viewer has no pages with own VMs.
    #[must_use]
    pub fn on_pool(&self, permissions: &[PoolPermission]) -> Rights {
        if !self.capabilities.contains(&Capability::Portal) {
            return Rights::default();
        }
        let own = permissions.iter();
        let own = own.filter(|it| self.is_meant(it.user.as_deref(), it.role.as_deref()));
        let granted = own.flat_map(|permission| &permission.may);
        let granted = granted.flat_map(|grant| match grant {
            PoolGrant::Start => vec![Grant::Start],
            PoolGrant::Stop => vec![Grant::Stop],
            PoolGrant::Reset => vec![Grant::Reset],
            PoolGrant::AccessConsole => vec![Grant::AccessConsole],
            PoolGrant::All => OF_POOL.to_vec(),
        });
        Rights::of(&granted.collect::<Vec<_>>())
    }

    fn is_meant(&self, user: Option<&str>, role: Option<&str>) -> bool {
        user == Some(self.user) || role.is_some_and(|role| self.roles.contains(role))
    }

    /// The rights on a VM, which the viewer may have by a pool with these permissions: the union over the entries of `permissions` with the user's name or with one of the user's roles.
    /// `takeConsole` includes `accessConsole`. None if the user must not know of the VM.
    #[must_use]
    pub fn on_vm(
        &self,
        permissions: &[Permission],
        pool: Option<&[PoolPermission]>,
    ) -> Option<Rights> {
        let own = permissions.iter();
        let own = own.filter(|it| self.is_meant(it.user.as_deref(), it.role.as_deref()));
        let by_pool = pool.map(|permissions| self.on_pool(permissions).0);
        // Who has a VM by a pool may always start it.
        let start = by_pool.as_ref().filter(|rights| !rights.is_empty());
        let start = start.map(|_| Grant::Start);
        let granted = own.flat_map(|permission| permission.may.iter().copied());
        let granted = granted.chain(by_pool.into_iter().flatten()).chain(start);
        let rights = Rights::of(&granted.collect::<Vec<_>>());
        let is_own = self.capabilities.contains(&Capability::Portal) && !rights.0.is_empty();
        let is_visible = is_own || self.sees_all();
        is_visible.then_some(rights)
    }
}

/// The rights that a pool can give.
const OF_POOL: [Grant; 4] = [
    Grant::Start,
    Grant::Stop,
    Grant::Reset,
    Grant::AccessConsole,
];

impl Rights {
    /// All rights that these include.
    fn of(granted: &[Grant]) -> Self {
        let has = |right: &Grant| {
            granted.contains(right)
                || granted.contains(&Grant::All)
                || *right == Grant::AccessConsole && granted.contains(&Grant::TakeConsole)
        };
        Self(ALL.into_iter().filter(has).collect())
    }

    /// Whether the user has the right.
    #[must_use]
    pub fn include(&self, right: Grant) -> bool {
        self.0.contains(&right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(more: &Value) -> WebSettings {
        let roles = json!({"alice": ["admin"], "eve": ["a", "b"], "*": ["other"]});
        let mut console = json!({"/RoleConfigurator": {"rolesByUser": roles}});
        if !more.is_null() {
            console["/RoleConletFilter"] = json!({"conletTypesByRole": more});
        }
        let settings = json!({"/GuiHttpServer": {"/ConsoleWeblet": {"/WebConsole": console}}});
        serde_json::from_value(settings).unwrap()
    }

    fn rights_with(more: &Value, user: &str, permissions: Value) -> Option<Vec<Grant>> {
        let settings = settings(more);
        let permissions: Vec<Permission> = serde_json::from_value(permissions).unwrap();
        let rights = Viewer::new(&settings, user, &[]).on_vm(&permissions, None);
        rights.map(|rights| rights.0)
    }

    /// The rights of a user, of which there are none if the user must not know of the VM.
    fn rights(user: &str, permissions: Value) -> Vec<Grant> {
        let rights = rights_with(&Value::Null, user, permissions);
        assert_ne!(
            rights,
            Some(Vec::new()),
            "without rights the VM is not visible"
        );
        rights.unwrap_or_default()
    }

    #[test]
    fn roles_permit_pages_as_in_the_java_vm_operator() {
        let (access, management) = (
            "org.jdrupes.vmoperator.vmaccess.VmAccess",
            "org.jdrupes.vmoperator.vmmgmt.VmMgmt",
        );
        let other = json!(["org.jgrapes.webconlet.oidclogin.LoginConlet"]);
        let (portal, overview) = (Capability::Portal, Capability::Overview);
        let resize = Capability::Resize;
        for (user, by_role, expected) in [
            (
                "alice",
                json!({"admin": ["*"], "other": other}),
                vec![portal, overview, resize],
            ),
            ("bob", json!({"admin": ["*"], "other": other}), vec![]),
            ("alice", json!({"user": ["*"]}), vec![]),
            ("alice", json!({"admin": [access]}), vec![portal]),
            (
                "alice",
                json!({"admin": [format!("-{access}")]}),
                vec![portal],
            ),
            (
                "alice",
                json!({"admin": [format!("!{management}"), "*"]}),
                vec![portal, resize],
            ),
            (
                "alice",
                json!({"admin": [format!(" -- {management} "), "*"]}),
                vec![portal, resize],
            ),
            (
                "alice",
                json!({"admin": ["*", format!("--{management}")]}),
                vec![portal, overview, resize],
            ),
            (
                "eve",
                json!({"a": [access], "b": [management, format!("--{access}")]}),
                vec![portal, overview],
            ),
            ("alice", json!({"admin": ["VmMgmt", "--*"]}), vec![]),
        ] {
            let settings = settings(&by_role);
            let viewer = Viewer::new(&settings, user, &[]);
            assert!(viewer.capabilities.iter().eq(&expected), "{user} {by_role}");
        }
    }

    #[test]
    fn start_page_is_the_overview_unless_the_user_is_named() {
        let pages = json!({"conletTypesByRole": {"a": ["*"], "b": ["*"], "c": ["--*"], "d": ["org.jdrupes.vmoperator.vmmgmt.VmMgmt"]}});
        let roles =
            json!({"rolesByUser": {"alice": ["a"], "bob": ["b"], "carol": ["c"], "dave": ["d"]}});
        let access =
            json!({"syncPreviewsFor": [{"user": "alice"}, {"user": "dave"}, {"role": "x"}, {}]});
        let console = json!({"/RoleConletFilter": pages, "/RoleConfigurator": roles, "/ComponentCollector": {"/VmAccess": access}});
        let settings = json!({"/GuiHttpServer": {"/ConsoleWeblet": {"/WebConsole": console}}});
        let settings: WebSettings = serde_json::from_value(settings).unwrap();
        let (portal, overview) = (Capability::Portal, Capability::Overview);
        let reported = ["x".to_owned()];
        for (user, reported, expected) in [
            ("alice", [].as_slice(), portal),
            ("bob", &[], overview),
            ("bob", &reported, portal),
            ("carol", &[], portal),
            ("dave", &[], overview),
        ] {
            let viewer = Viewer::new(&settings, user, reported);
            assert_eq!(viewer.start(), expected, "{user}");
        }
    }

    #[test]
    fn overview_shows_each_vm_and_gives_no_permission() {
        let own = json!([{"user": "alice", "may": ["start"]}]);
        let types = |names: Value| json!({"admin": names});
        let all = types(json!(["*"]));
        assert_eq!(rights_with(&all, "alice", json!([])), Some(vec![]));
        assert_eq!(
            rights_with(&all, "alice", own.clone()),
            Some(vec![Grant::Start])
        );
        assert_eq!(
            rights_with(&types(json!([])), "alice", own),
            None,
            "no page"
        );
    }

    #[test]
    fn rights_are_the_union_over_the_name_and_all_roles() {
        let permissions = json!([
            {"user": "alice", "may": ["start"]}, {"role": "admin", "may": ["stop"]}, {"role": "other", "may": ["reset"]},
            {"user": "admin", "may": ["*"]}, {"role": "alice", "may": ["*"]}, {"may": ["*"]},
        ]);
        assert_eq!(
            rights("alice", permissions.clone()),
            [Grant::Start, Grant::Stop, Grant::Reset]
        );
        assert_eq!(rights("bob", permissions.clone()), [Grant::Reset]);
        assert_eq!(
            rights("Alice", permissions),
            [Grant::Reset],
            "names are case-sensitive"
        );
    }

    #[test]
    fn rights_imply_lesser_rights_and_require_an_entry() {
        let take = json!([{"user": "a", "may": ["takeConsole"]}]);
        assert_eq!(
            rights("a", take.clone()),
            [Grant::AccessConsole, Grant::TakeConsole]
        );
        assert_eq!(rights("a", json!([{"user": "a", "may": ["*"]}])), ALL);
        assert_eq!(rights("a", json!([{"user": "a"}])), []);
        assert_eq!(rights("b", take), []);
        assert_eq!(rights("", json!([{"user": "a", "may": ["*"]}])), []);
    }
}
