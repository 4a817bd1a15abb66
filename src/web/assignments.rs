//! (pure) The VMs that users have by pools, and pools on pages.

use crate::api::conditions::{find, is_true};
use crate::api::pool::{BOUND, QueuePlace, READY, names};
use crate::k8s::key::ObjectKey;
use crate::k8s::store::children::Cache;
use crate::web::pools::{AssignmentView, PoolView};
use crate::web::rights::{Rights, Viewer};
use crate::web::view::{VmView, shortened};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;
use serde::Serialize;
use std::sync::Arc;

/// Whether the user of the assignment has this VM: both objects name the other one, and the assignment is complete.
#[must_use]
pub fn has(assignment: &AssignmentView, vm: &VmView) -> bool {
    let (own, of_vm) = (&assignment.status.vm, &vm.status.assignment);
    let is_vm = own
        .as_ref()
        .is_some_and(|own| Some(&own.uid) == vm.metadata.uid.as_ref());
    let is_assignment =
        of_vm.uid.is_some() && of_vm.uid.as_deref() == assignment.metadata.uid.as_deref();
    is_vm && is_assignment && is_true(&assignment.status.conditions, BOUND)
}

/// All pools and assignments.
pub struct Pools {
    /// The namespace of all.
    pub namespace: String,
    /// Each pool is a group of its own.
    pub pools: Arc<Cache<PoolView>>,
    /// Each assignment is a group of its own.
    pub assignments: Arc<Cache<AssignmentView>>,
}

impl Pools {
    /// The pool by which the user has the VM.
    #[must_use]
    pub fn held(&self, vm: &VmView, user: &str) -> Option<Arc<PoolView>> {
        let (pool, assignment) = self.holder(vm, user)?;
        let assignment = self.assignments.get(&self.key(&assignment))?;
        has(&assignment, vm).then(|| self.pools.get(&self.key(pool)))?
    }

    /// The pool of the VM and the name of its assignment, if that is one to the user.
    #[must_use]
    pub fn holder<'a>(&self, vm: &'a VmView, user: &str) -> Option<(&'a str, String)> {
        let assignment = &vm.status.assignment;
        let pool = assignment.pool.as_deref()?;
        // An assignment by the Java VM-Operator has no UID until the operator takes it over.
        let is_holder = assignment.uid.is_some() && assignment.user.as_deref() == Some(user);
        is_holder.then(|| (pool, names::assignment(pool, user)))
    }

    /// The key of an object.
    #[must_use]
    pub fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(&self.namespace, name)
    }

    /// The pools that the viewer may use, and those of the viewer's assignments.
    #[must_use]
    pub fn rows(&self, viewer: &Viewer<'_>) -> Vec<PoolRow> {
        let pools = self.pools.groups(&self.key(""));
        let rows = pools.iter().filter_map(|pool| {
            let row = self.row(pool, viewer);
            (row.assignment.is_some() || pool.may_request(viewer)).then_some(row)
        });
        rows.collect()
    }

    /// Whether the viewer sees the pool.
    #[must_use]
    pub fn is_visible(&self, name: &str, viewer: &Viewer<'_>) -> bool {
        let own = self
            .assignments
            .get(&self.key(&names::assignment(name, viewer.user())));
        let is_own = |it: &AssignmentView| it.spec.user == viewer.user() && it.spec.pool == name;
        // A user gives the VM of a deleted pool back, too.
        own.is_some_and(|it| is_own(&it)) || {
            let pool = self.pools.get(&self.key(name));
            pool.is_some_and(|pool| pool.may_request(viewer))
        }
    }

    fn row(&self, pool: &PoolView, viewer: &Viewer<'_>) -> PoolRow {
        let name = pool.name_any();
        let assignment = self.key(&names::assignment(&name, viewer.user()));
        let assignment = self.assignments.get(&assignment);
        let is_own =
            |it: &Arc<AssignmentView>| it.spec.user == viewer.user() && it.spec.pool == name;
        let assignment = assignment.filter(is_own);
        let queue = assignment.as_ref().and_then(|own| self.place(pool, own));
        PoolRow {
            may: viewer.on_pool(&pool.spec.permissions),
            free: pool.status.free,
            waiting: pool.status.waiting,
            assignment: assignment.map(|assignment| AssignmentRow::of(&assignment)),
            queue,
            name,
        }
    }

    /// The place of an assignment in the queue of the pool. None if it does not wait.
    fn place(&self, pool: &PoolView, own: &AssignmentView) -> Option<QueueRow> {
        let queued = own.queued()?;
        let all = self.assignments.groups(&self.key(""));
        let of_pool = all.iter().filter(|it| it.spec.pool == own.spec.pool);
        let QueuePlace { place, of } = queued.place(of_pool.filter_map(|it| it.queued()));
        let ready = find(&pool.status.conditions, READY);
        let reason = ready.map(|ready| ready.reason.clone());
        Some(QueueRow { place, of, reason })
    }
}

/// A pool on a page.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolRow {
    name: String,
    may: Rights,
    free: i64,
    waiting: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    assignment: Option<AssignmentRow>,
    /// Only of users who wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<QueueRow>,
}

/// A place among the users who wait for a VM of the pool. No other user is named.
#[derive(Debug, PartialEq, Serialize)]
struct QueueRow {
    place: usize,
    of: usize,
    /// Reason of the pool's condition `Ready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct AssignmentRow {
    /// Reason of the condition `Bound`, or `Ending`.
    state: String,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    vm: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<Time>,
}

impl PoolRow {
    /// Whether the pools give the same rights on the same VMs.
    #[must_use]
    pub fn give_same_rights(one: &[Self], other: &[Self]) -> bool {
        one.len() == other.len()
            && one.iter().zip(other).all(|(one, other)| {
                (&one.name, &one.may, &one.assignment)
                    == (&other.name, &other.may, &other.assignment)
            })
    }
}

impl AssignmentRow {
    fn of(assignment: &AssignmentView) -> Self {
        let status = &assignment.status;
        let bound = find(&status.conditions, BOUND);
        let text = |text: fn(&Condition) -> &str| {
            let text = bound.map(text).unwrap_or_default();
            shortened(text).to_owned()
        };
        let state = if assignment.metadata.deletion_timestamp.is_some() {
            "Ending".to_owned()
        } else {
            text(|bound| &bound.reason)
        };
        Self {
            state,
            message: text(|bound| &bound.message),
            vm: status.vm.as_ref().map(|vm| vm.name.clone()),
            expires: status.expires.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::web::WebSettings;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    /// A pool of everybody with these assignments: user, second of the creation, metadata and status.
    fn pools(assignments: &[(&str, i64, Value, Value)]) -> Pools {
        let pools = Pools {
            namespace: "ns".to_owned(),
            pools: Arc::new(Cache::new(|pool| Some(ObjectKey::of(pool)))),
            assignments: Arc::new(Cache::new(|it| Some(ObjectKey::of(it)))),
        };
        let pool = json!({
            "metadata": {"name": "p", "namespace": "ns"},
            "spec": {"permissions": [{"user": "alice"}, {"user": "bob"}]},
            "status": {"waiting": 9, "conditions": [condition("Ready", "Exhausted")]},
        });
        let apply = Event::Apply(serde_json::from_value(pool).unwrap());
        pools.pools.watched(apply);
        for (user, second, metadata, status) in assignments {
            let mut assignment = json!({"metadata": metadata, "spec": {"pool": "p", "user": user}, "status": status});
            let metadata = &mut assignment["metadata"];
            metadata["namespace"] = json!("ns");
            metadata["creationTimestamp"] = json!(format!("2026-01-01T00:00:0{second}Z"));
            if metadata["name"].is_null() {
                metadata["name"] = json!(names::assignment("p", user));
            }
            let apply = Event::Apply(serde_json::from_value(assignment).unwrap());
            pools.assignments.watched(apply);
        }
        pools
    }

    fn condition(type_: &str, reason: &str) -> Value {
        json!({"type": type_, "status": "False", "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    fn row(pools: &Pools, user: &str) -> Value {
        let settings = WebSettings::default();
        serde_json::to_value(pools.rows(&Viewer::new(&settings, user, &[]))).unwrap()[0].clone()
    }

    #[test]
    fn user_who_waits_sees_the_own_place_and_no_name_of_another_user() {
        let waits = || json!({"conditions": [condition("Bound", "Waiting")]});
        let mismatch = json!({"conditions": [condition("Bound", "NameMismatch")]});
        let pools = pools(&[
            ("alice", 5, json!({}), waits()),
            ("hidden-1", 4, json!({}), json!({})),
            ("hidden-2", 6, json!({}), waits()),
            (
                "hidden-3",
                1,
                json!({}),
                json!({"vm": {"name": "vm", "uid": "1"}}),
            ),
            (
                "hidden-4",
                2,
                json!({"deletionTimestamp": "2026-01-01T00:00:09Z"}),
                waits(),
            ),
            ("hidden-5", 3, json!({"name": "other"}), mismatch),
        ]);
        let alice = row(&pools, "alice");
        let expected = json!({"place": 2, "of": 3, "reason": "Exhausted"});
        assert_eq!(alice["queue"], expected);
        assert!(!alice.to_string().contains("hidden"));
        assert_eq!(row(&pools, "bob")["queue"], json!(null));
    }

    #[test]
    fn another_place_in_the_queue_does_not_change_rights() {
        let settings = WebSettings::default();
        let viewer = Viewer::new(&settings, "alice", &[]);
        let own = ("alice", 5, json!({}), json!({}));
        let before = pools(&[own.clone(), ("bob", 4, json!({}), json!({}))]);
        let (before, after) = (before.rows(&viewer), pools(&[own]).rows(&viewer));
        assert_ne!(before, after);
        assert!(PoolRow::give_same_rights(&before, &after));
    }
}
