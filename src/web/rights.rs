//! (pure) The rights of a user on a VM. Routes, rows and consoles all ask [`Rights::on_vm`].

use crate::api::vm::{Grant, Permission, State};
use crate::settings::web::WebSettings;
use crate::web::view::MachineView;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

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

/// An action on a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The action in log lines.
    #[must_use]
    pub fn verb(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Reset => "reset",
        }
    }

    /// The right that the action needs.
    #[must_use]
    pub fn needs(self) -> Grant {
        match self {
            Self::Start => Grant::Start,
            Self::Stop => Grant::Stop,
            Self::Reset => Grant::Reset,
        }
    }

    /// The change of the VM's `spec.vm`, of which `machine` is the present one.
    #[must_use]
    pub fn change(self, machine: &MachineView) -> Value {
        match self {
            Self::Start => json!({"state": State::Running}),
            Self::Stop => json!({"state": State::Stopped}),
            Self::Reset => {
                let next = machine.reset_request.unwrap_or_default().wrapping_add(1);
                json!({"resetRequest": next})
            }
        }
    }
}

impl Rights {
    /// The rights on a VM: the union over the entries of `permissions` with the user's name or with one of the user's roles.
    /// `takeConsole` includes `accessConsole`.
    #[must_use]
    pub fn on_vm(settings: &WebSettings, user: &str, permissions: &[Permission]) -> Self {
        let roles = settings.roles(user);
        let applies = |permission: &&Permission| {
            let has_role = |role: &str| roles.contains(role);
            permission.user.as_deref() == Some(user)
                || permission.role.as_deref().is_some_and(has_role)
        };
        let granted: Vec<Grant> = permissions
            .iter()
            .filter(applies)
            .flat_map(|permission| permission.may.iter().copied())
            .collect();
        let has = |right: &Grant| {
            granted.contains(right)
                || granted.contains(&Grant::All)
                || *right == Grant::AccessConsole && granted.contains(&Grant::TakeConsole)
        };
        Self(ALL.into_iter().filter(has).collect())
    }

    /// Whether the user has no right, and so must not know of the object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
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

    fn rights(user: &str, permissions: Value) -> Vec<Grant> {
        let roles = json!({"alice": ["admin"], "*": ["other"]});
        let console = json!({"/RoleConfigurator": {"rolesByUser": roles}});
        let settings = json!({"/GuiHttpServer": {"/ConsoleWeblet": {"/WebConsole": console}}});
        let settings = serde_json::from_value(settings).unwrap();
        let permissions: Vec<Permission> = serde_json::from_value(permissions).unwrap();
        Rights::on_vm(&settings, user, &permissions).0
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
    fn some_rights_include_others_and_nobody_has_rights_without_an_entry() {
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
