//! Events about actions of users: `kubectl describe` and the page of a VM show who has done what.

use crate::api::report::{USER_MAX, plain_text};
use crate::k8s::events;
use crate::web::Console;
use crate::web::logins::check;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::EventType;
use std::num::NonZeroU32;
use strum::IntoStaticStr;

/// Events in a minute about one user and one object. A client that repeats an action must not fill the database of the cluster; the log
/// has each action.
pub const PER_MINUTE: NonZeroU32 = NonZeroU32::new(10).unwrap();

/// What a user has done. Events have its name as their reason.
#[derive(Clone, Copy, Debug, IntoStaticStr)]
pub enum Reason {
    StartRequested,
    StopRequested,
    ResetRequested,
    ResizeRequested,
    ScreenTakenOver,
    ViewerFileCreated,
    VmRequested,
    VmReturned,
}

impl Console {
    /// Publishes an event about a successful action of a user. `what` continues a sentence about the user.
    pub(super) async fn report(
        &self,
        user: &str,
        object: &ObjectReference,
        reason: Reason,
        what: &str,
    ) {
        let uid = object.uid.clone().unwrap_or_default();
        if check(&self.reported, &(user.to_owned(), uid)).is_err() {
            return;
        }
        let note = note(user, what);
        events::publish(
            &self.cluster,
            object,
            EventType::Normal,
            reason.into(),
            &note,
        )
        .await;
    }
}

/// The note of an event. A provider of OpenID Connect can give users any name.
fn note(user: &str, what: &str) -> String {
    format!("user {} (web console) {what}", plain_text(user, USER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_is_one_line_with_a_limited_name() {
        let expected = "user bob (web console) starts the VM";
        assert_eq!(note("bob", "starts the VM"), expected);
        let long = format!("a\r\n\u{1b}[2J{}", "ä".repeat(200));
        let note = note(&long, "starts the VM");
        assert!(!note.contains(char::is_control), "{note:?}");
        let name = note.split(" (web console)").next().unwrap();
        assert_eq!(name.len(), "user ".len() + USER_MAX);
    }
}
