//! (pure) Ownership of pods, and the status of VMs without a pod: checks observations of both against the operator's
//! pod writes in the audit log.

use crate::harness::vm::{condition, uid};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use vm_operator::api::vm::conditions;
use vm_operator::api::vm::names;

/// The delay between an event and its observation. A request from before a VM's deletion may arrive in this time.
const SLACK: SignedDuration = SignedDuration::from_secs(2);
/// The time after which a VM without a pod must not report that it runs, if one operator was ready all the time. A new
/// operator first has to wait for the Lease of the previous one.
const SOON: SignedDuration = SignedDuration::from_secs(60);

/// An object, with the times of its first and last observation.
struct Life {
    name: String,
    owner: String,
    fetches: bool,
    first: Timestamp,
    last: Timestamp,
}

impl Life {
    /// Whether it existed under that name at that time.
    fn existed(&self, name: &str, at: Timestamp) -> bool {
        self.name == name && self.first - SLACK <= at && at <= self.last + SLACK
    }
}

/// All observed objects by their UIDs.
#[derive(Default)]
pub struct Lives {
    vms: BTreeMap<String, Life>,
    pods: BTreeMap<String, Life>,
    wrong: BTreeSet<String>,
    /// VMs without a pod that report that they run: since when, and under which operator.
    bare: BTreeMap<String, (Timestamp, String)>,
    longest: SignedDuration,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn owner(pod: &Value) -> String {
    text(&pod["metadata"]["ownerReferences"][0]["uid"])
}

fn note(lives: &mut BTreeMap<String, Life>, object: &Value, now: Timestamp) {
    let life = lives.entry(uid(object)).or_insert_with(|| Life {
        name: text(&object["metadata"]["name"]),
        owner: owner(object),
        fetches: object["metadata"]["labels"][names::LABEL_NAME] == names::APP_FETCH,
        first: now,
        last: now,
    });
    life.last = now;
}

/// The ready operator, by a name that differs for each start.
fn operator(pods: &[Value]) -> Option<String> {
    let operators = pods
        .iter()
        .filter(|pod| pod["metadata"]["labels"][names::LABEL_NAME] == names::OPERATOR_APP);
    let mut ready = operators.filter(|pod| condition(pod, "Ready")["status"] == "True");
    ready.next().map(|pod| {
        format!(
            "{}, start {}",
            uid(pod),
            pod["status"]["containerStatuses"][0]["restartCount"]
        )
    })
}

impl Lives {
    /// Records the objects at that time.
    pub fn observe(&mut self, vms: &[Value], pods: &[Value], now: Timestamp) {
        vms.iter().for_each(|vm| note(&mut self.vms, vm, now));
        for pod in pods {
            note(&mut self.pods, pod, now);
            let (first, owner) = (&self.pods[&uid(pod)].owner, owner(pod));
            if *first != owner {
                let name = &pod["metadata"]["name"];
                self.wrong.insert(format!(
                    "pod {name} was of the VM {first} and is of {owner}"
                ));
            }
        }
        let operator = operator(pods);
        for vm in vms {
            self.observe_pod_of(vm, pods, operator.as_deref(), now);
        }
        self.bare
            .retain(|bare, _| vms.iter().any(|vm| uid(vm) == *bare));
    }

    fn observe_pod_of(
        &mut self,
        vm: &Value,
        pods: &[Value],
        operator: Option<&str>,
        now: Timestamp,
    ) {
        let (vm_uid, name) = (uid(vm), text(&vm["metadata"]["name"]));
        let is_its = |pod: &&Value| pod["metadata"]["name"] == *name && owner(pod) == vm_uid;
        let has_ended = |pod: &Value| {
            matches!(
                pod["status"]["phase"].as_str(),
                Some("Failed" | "Succeeded")
            )
        };
        let is_bare = condition(vm, conditions::RUNNING)["status"] == "True"
            && !pods.iter().filter(is_its).any(|pod| !has_ended(pod));
        let Some(operator) = operator.filter(|_| is_bare) else {
            self.bare.remove(&vm_uid);
            return;
        };
        let before = self
            .bare
            .get(&vm_uid)
            .filter(|(_, before)| before == operator);
        let since = before.map_or(now, |(since, _)| *since);
        self.longest = self.longest.max(now.duration_since(since));
        if now.duration_since(since) > SOON {
            self.wrong.insert(format!(
                "VM {name} reports that it runs without a pod, since {since}"
            ));
        }
        self.bare.insert(vm_uid, (since, operator.to_owned()));
    }

    /// The violation by an operator's write to a pod that belongs to no VM with its name.
    fn of_another(&self, (verb, name, at): (&str, &str, Timestamp)) -> Option<String> {
        let mut pods = self
            .pods
            .values()
            .filter(|pod| pod.existed(name, at))
            .peekable();
        // An unobserved pod was created and deleted between two observations.
        pods.peek()?;
        let is_garbage = |vm: &Life| verb == "delete" && vm.name == name && at > vm.last - SLACK;
        let is_right = |pod: &Life| {
            let vm = self.vms.get(&pod.owner);
            pod.fetches || vm.is_some_and(|vm| vm.existed(name, at) || is_garbage(vm))
        };
        (!pods.any(is_right))
            .then(|| format!("{verb} of pod {name} at {at}, which is of no VM of that name"))
    }

    /// All violations. `done` has the operator's writes to pods: verb, name and time.
    fn all_wrong<'a>(
        &self,
        done: impl Iterator<Item = (&'a str, &'a str, Timestamp)>,
    ) -> Vec<String> {
        self.wrong
            .iter()
            .cloned()
            .chain(done.filter_map(|it| self.of_another(it)))
            .collect()
    }

    /// Asserts that no pod of another VM was adopted, changed or deleted, and that no VM without a pod reported for
    /// long that it runs.
    pub fn judge<'a>(&self, done: impl Iterator<Item = (&'a str, &'a str, Timestamp)>) {
        let wrong = self.all_wrong(done);
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// A summary of the observations.
    pub fn summary(&self) -> String {
        let (vms, pods) = (self.vms.len(), self.pods.len());
        format!(
            "{vms} VMs, {pods} pods; a VM without a pod reported for at most {:#} that it runs",
            self.longest
        )
    }
}

/// Tests that violations are found.
mod tests {
    use super::{Lives, SignedDuration, Timestamp, Value};
    use serde_json::json;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
    }

    fn vm(uid: &str, running: &str) -> Value {
        json!({"metadata": {"name": "a", "uid": uid}, "status": {"conditions": [{"type": "Running", "status": running}]}})
    }

    fn pod(uid: &str, owner: &str, phase: &str) -> Value {
        let metadata = json!({"name": "a", "uid": uid, "ownerReferences": [{"uid": owner}]});
        json!({"metadata": metadata, "status": {"phase": phase}})
    }

    fn operator(uid: &str) -> Value {
        let metadata =
            json!({"name": uid, "uid": uid, "labels": {"app.kubernetes.io/name": "vm-operator"}});
        json!({"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    }

    fn wrong(looks: &[(i64, Vec<Value>, Vec<Value>)], done: &[(&str, i64)]) -> Vec<String> {
        let mut lives = Lives::default();
        looks
            .iter()
            .for_each(|(time, vms, pods)| lives.observe(vms, pods, at(*time)));
        lives.all_wrong(done.iter().map(|(verb, time)| (*verb, "a", at(*time))))
    }

    #[test]
    fn pod_of_a_deleted_vm_may_be_deleted_and_not_patched() {
        let pods = || vec![pod("p1", "one", "Running")];
        let looks = [
            (0, vec![vm("one", "True")], pods()),
            (10, vec![vm("one", "True")], pods()),
            (20, vec![], pods()),
            (30, vec![vm("two", "False")], pods()),
        ];
        let right = [("delete", 10), ("patch", 5), ("delete", 29)];
        assert_eq!(wrong(&looks, &right), [""; 0]);
        let reported = wrong(&looks, &[("patch", 29)]);
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert!(
            reported[0].starts_with("patch of pod a at "),
            "{reported:?}"
        );
    }

    #[test]
    fn a_pod_that_gets_another_owner_is_wrong() {
        let vms = || vec![vm("two", "False")];
        let looks = [
            (0, vms(), vec![pod("p1", "one", "Running")]),
            (1, vms(), vec![pod("p1", "two", "Running")]),
        ];
        assert_eq!(
            wrong(&looks, &[]),
            ["pod \"a\" was of the VM one and is of two"]
        );
    }

    #[test]
    fn vm_reported_running_for_a_minute_without_a_pod_is_a_violation() {
        for without in [
            vec![],
            vec![pod("p1", "one", "Failed")],
            vec![pod("p1", "another", "Running")],
        ] {
            let findings = |operators: [&str; 3]| {
                let looks = [0, 40, 80].into_iter().zip(operators).map(|(time, name)| {
                    let mut pods = without.clone();
                    pods.extend((!name.is_empty()).then(|| operator(name)));
                    (time, vec![vm("one", "True")], pods)
                });
                wrong(&looks.collect::<Vec<_>>(), &[])
            };
            assert_eq!(
                findings(["o1"; 3]),
                ["VM a reports that it runs without a pod, since 1970-01-01T00:00:00Z"]
            );
            // The time starts again with a new operator, and does not count without one.
            assert_eq!(findings(["o1", "o1", "o2"]), [""; 0]);
            assert_eq!(findings(["o1", "", "o1"]), [""; 0]);
        }
        let its = || vec![pod("p1", "one", "Running"), operator("o1")];
        let looks = [0, 40, 80].map(|time| (time, vec![vm("one", "True")], its()));
        assert_eq!(wrong(&looks, &[]), [""; 0]);
    }
}
