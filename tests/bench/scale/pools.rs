//! `make bench-pools`: the time until a user has a VM, the writes for it, and the operator's memory.
//!
//! All VMs run and belong to pools of equal size. Assignments are created one by one, and the rest at once. The time ends when the
//! watch of the bench receives the condition `Bound`.

use super::operator::Operator;
use super::{Bench, CLIENTS, NAMESPACE, PAUSE, SAMPLES, kubelet, per, row, value_at};
use futures::StreamExt;
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vm_operator::api::conditions::is_true;
use vm_operator::api::pool::{BOUND, names};
use vm_operator::api::{VmAssignment, VmPool};

/// The time limit of the assignments that are created at once.
const BOUND_TIMEOUT: Duration = Duration::from_secs(600);

/// The times at which assignments became bound.
type BoundAt = Arc<Mutex<HashMap<String, Instant>>>;

/// The name of the pool of a VM.
pub fn pool_of(vm: usize, pools: usize) -> String {
    format!("pool-{:03}", vm % pools)
}

impl Bench {
    pub(super) async fn measure_pools(&self, operator: Operator, vms: usize) {
        let pools = self.pools;
        kubelet::start(&self.client, NAMESPACE);
        self.create(NAMESPACE, 0..vms).await;
        self.wait_until_ready(vms).await;
        self.wait_until_idle().await;
        let memory = |operator: &Operator| format!("{:.1} MiB", operator.memory());
        row(
            &format!("operator's memory with {vms} VMs running, no pool"),
            &memory(&operator),
        );
        self.create_pools().await;
        self.wait_until_idle().await;
        row(&format!("the same with {pools} pools"), &memory(&operator));

        let bound_at = self.follow();
        let sampled = SAMPLES.min(vms);
        self.assign_one_by_one(&bound_at, sampled).await;
        let (began, cpu) = (Instant::now(), operator.cpu());
        let rest = futures::stream::iter(sampled..vms);
        rest.for_each_concurrent(CLIENTS, async |number| drop(self.assign(number).await))
            .await;
        self.wait_until_bound(&bound_at, vms).await;
        let (elapsed, used) = (began.elapsed(), operator.cpu() - cpu);
        let rest = vms - sampled;
        row(
            &format!("{rest} assignments at once: time until all are bound"),
            &format!("{:.1} s", elapsed.as_secs_f64()),
        );
        row(
            "operator's processor time per assignment",
            &per(used.as_secs_f64() * 1e3, rest, "ms"),
        );
        self.wait_until_idle().await;
        row(
            &format!("operator's memory with {vms} assignments"),
            &memory(&operator),
        );
        operator.stop().await;
        self.restart_once().await;
    }

    /// Measures the time of each assignment, and the writes for it.
    async fn assign_one_by_one(&self, bound_at: &BoundAt, count: usize) {
        self.record.forget();
        let mut begun = Vec::new();
        for number in 0..count {
            let began = Instant::now();
            begun.push((self.assign(number).await, began));
            tokio::time::sleep(PAUSE).await;
        }
        self.wait_until_bound(bound_at, count).await;
        self.wait_until_idle().await;
        let bound = bound_at.lock().unwrap().clone();
        let times = begun
            .iter()
            .map(|(name, began)| bound[name].duration_since(*began));
        let mut times: Vec<Duration> = times.collect();
        times.sort();
        let [p50, p95] = [0.5, 0.95].map(|share| value_at(&times, share).as_secs_f64() * 1e3);
        row(
            &format!("assignment created to Bound, {count} times, one by one"),
            &format!("p50 {p50:.1} ms, p95 {p95:.1} ms"),
        );
        let writes = self.record.writes();
        let sum = writes.values().sum::<usize>();
        row(
            "writes per assignment, with the status of its pool",
            &per(sum as f64, count, ""),
        );
        row("these writes, by method and kind", &format!("{writes:?}"));
    }

    /// A restart over settled pools.
    async fn restart_once(&self) {
        self.record.forget();
        let operator = self.operator().await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        row("restart: writes", &format!("{:?}", self.record.writes()));
        row("restart: memory", &format!("{:.1} MiB", operator.memory()));
        operator.stop().await;
    }

    async fn create_pools(&self) {
        let pools: Api<VmPool> = self.api(NAMESPACE);
        for number in 0..self.pools {
            let pool = json!({
                "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VmPool",
                "metadata": {"name": pool_of(number, self.pools)}, "spec": {"permissions": []},
            });
            let pool = serde_json::from_value(pool).unwrap();
            pools.create(&PostParams::default(), &pool).await.unwrap();
        }
    }

    /// Creates the assignment of a user, and returns its name.
    async fn assign(&self, number: usize) -> String {
        let (pool, user) = (pool_of(number, self.pools), format!("user-{number:05}"));
        let name = names::assignment(&pool, &user);
        let claim = json!({
            "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VmAssignment",
            "metadata": {"name": name}, "spec": {"pool": pool, "user": user},
        });
        let claim = serde_json::from_value(claim).unwrap();
        let claims: Api<VmAssignment> = self.api(NAMESPACE);
        claims.create(&PostParams::default(), &claim).await.unwrap();
        name
    }

    fn follow(&self) -> BoundAt {
        let bound_at = BoundAt::default();
        let found = bound_at.clone();
        let claims: Api<VmAssignment> = self.api(NAMESPACE);
        let claims = watcher(claims, watcher::Config::default())
            .default_backoff()
            .applied_objects();
        tokio::spawn(claims.for_each(move |claim| {
            let now = Instant::now();
            if let Ok(claim) = claim
                && let Some(status) = &claim.status
                && is_true(&status.conditions, BOUND)
            {
                found.lock().unwrap().entry(claim.name_any()).or_insert(now);
            }
            futures::future::ready(())
        }));
        bound_at
    }

    async fn wait_until_bound(&self, bound_at: &BoundAt, count: usize) {
        let began = Instant::now();
        while bound_at.lock().unwrap().len() < count {
            assert!(
                began.elapsed() < BOUND_TIMEOUT,
                "not {count} assignments are bound"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
