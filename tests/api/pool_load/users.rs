//! The users: each asks for a VM, uses it, and gives it back or leaves it.

use super::POOLS;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::components::{Cluster, api};
use vm_operator::api::pool::names;
use vm_operator::api::vm::conditions;

/// The delay between two looks at an object.
const POLL: Duration = Duration::from_millis(200);

/// Repeatable choices of a user, which need no better randomness.
struct Choices(u64);

impl Choices {
    /// A number below that limit.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    async fn sleep(&mut self, millis_max: u64) {
        tokio::time::sleep(Duration::from_millis(self.below(millis_max))).await;
    }
}

struct User {
    cluster: Cluster,
    namespace: String,
    stop: Arc<AtomicBool>,
    name: String,
    choices: Choices,
}

/// Uses VMs until `stop` is set.
pub fn run(
    number: usize,
    cluster: &Cluster,
    namespace: &str,
    stop: &Arc<AtomicBool>,
) -> impl Future<Output = ()> + Send + 'static {
    let mut user = User {
        cluster: cluster.clone(),
        namespace: namespace.to_owned(),
        stop: stop.clone(),
        name: format!("user-{number:03}"),
        choices: Choices(number as u64 * 7_919 + 1),
    };
    async move {
        while !user.is_stopped() {
            user.choices.sleep(3_000).await;
            user.visit().await;
        }
    }
}

impl User {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn claim(&self, claim: &str) -> Option<Value> {
        self.cluster.get(&self.namespace, "VmAssignment", claim)
    }

    /// Waits while the assignment exists and the condition does not hold.
    async fn wait(&self, claim: &str, holds: impl Fn(&Value) -> bool) -> Option<Value> {
        while !self.is_stopped() {
            let present = self.claim(claim)?;
            if holds(&present) {
                return Some(present);
            }
            tokio::time::sleep(POLL).await;
        }
        None
    }

    /// One request for a VM, until the user or the operator ends it.
    async fn visit(&mut self) {
        let pool = POOLS[self.choices.below(2) as usize];
        let name = names::assignment(pool, &self.name);
        let spec = json!({"pool": pool, "user": self.name});
        let claims = api(&self.cluster.client, "VmAssignment", Some(&self.namespace));
        let object = serde_json::from_value(super::object("VmAssignment", &name, spec)).unwrap();
        // The previous one can still exist.
        if claims.create(&Default::default(), &object).await.is_err() {
            return;
        }
        while self.claim(&name).is_none() && !self.is_stopped() {
            tokio::time::sleep(POLL).await;
        }
        let is_bound = |claim: &Value| claim["status"]["conditions"][0]["status"] == "True";
        if let Some(claim) = self.wait(&name, is_bound).await {
            self.choices.sleep(2_000).await;
            let vm = claim["status"]["vm"]["name"].as_str().unwrap().to_owned();
            if self.choices.below(3) == 0 {
                self.connect(&vm, "True").await;
                self.choices.sleep(3_000).await;
                self.connect(&vm, "False").await;
            }
            // A third of the users leaves without giving the VM back. It expires after 3 s, and another user needs it.
            if self.choices.below(3) == 0 && self.wait(&name, |_| false).await.is_none() {
                return;
            }
        }
        if !self.is_stopped() {
            let _ = claims.delete(&name, &Default::default()).await;
        }
    }

    /// The runner of the VM reports a connection to its console, or the end of one.
    async fn connect(&self, vm: &str, status: &str) {
        let Some(pod) = self.cluster.get(&self.namespace, "Pod", vm) else {
            return;
        };
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        let Some(report) = self.cluster.get(&self.namespace, "VmReport", uid) else {
            return;
        };
        let mut reported = report["status"]["conditions"].clone();
        let Some(conditions) = reported.as_array_mut() else {
            return;
        };
        for condition in conditions {
            if condition["type"] == conditions::CONSOLE_CONNECTED && condition["status"] != status {
                condition["status"] = status.into();
                let now = Timestamp::now().as_second();
                let now = Timestamp::from_second(now).unwrap();
                condition["lastTransitionTime"] = now.to_string().into();
            }
        }
        let patch = json!({"status": {"conditions": reported}});
        let _ = self
            .cluster
            .merge("VmReport", &self.namespace, uid, "status", patch)
            .await;
    }
}
