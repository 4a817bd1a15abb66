//! `make bench-scale`: the resources and the speed of the operator with thousands of VMs. The API server, etcd and the
//! operator's program are real. Scheduler, volume binder, kubelet and runner are simulated.
//!
//! | file | content |
//! |---|---|
//! | `proxy` | a proxy between operator and API server that records the times of requests |
//! | `kubelet` | the simulated components |
//! | `operator` | the operator's process |
//! | `burst` | many VMs at once: speed and processor time, compared with a client that makes the same writes |
//! | `slope` | the memory after many reconciles |
//! | `pools` | assignments of pools |
//! | `sip` | SIPClusters |
//! | `web` | live lists of the web console |
//!
//! `SCALE_VMS` (default 10000) is the number of VMs at the end. `make bench-slope` sets `SLOPE_RECONCILES` (default a
//! million) and measures only whether the operator's memory grows with the number of its reconciles. `make bench-pools` sets
//! `SCALE_POOLS` (default 50) and measures only assignments of that number of pools. `make bench-sip` sets `SCALE_SIP`
//! (default 100) and measures only that number of SIPClusters. `make bench-web` sets `SCALE_WEB` (default 500) and measures only the
//! web console with that number of live lists.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod burst;
mod kubelet;
mod operator;
mod pools;
mod proxy;
mod sip;
mod slope;
mod web;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Client, Resource};
use operator::Operator;
use proxy::Record;
use serde_json::{Value, json};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::real::Server;
use support::replay::{Writes, vm_name};
use vm_operator::api::VirtualMachine;
use vm_operator::api::conditions::is_true;
use vm_operator::api::vm::conditions;

/// The namespace of the VMs.
const NAMESPACE: &str = "scale";
/// The number of VMs that are created one by one to measure the latency.
const SAMPLES: usize = 300;
/// The delay between two of those.
const PAUSE: Duration = Duration::from_millis(40);
/// The number of measured restarts.
const RESTARTS: usize = 5;
/// Concurrent requests of the bench itself.
const CLIENTS: usize = 32;

struct Bench {
    began: Instant,
    server: Server,
    client: Client,
    record: Arc<Record>,
    /// The writes of the proxy's clients.
    requests: Writes,
    proxy: u16,
    /// The number of pools to which the VMs belong.
    pools: usize,
}

fn main() {
    let count = number("SCALE_VMS").unwrap_or(10_000);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(measure(count));
}

/// The number in an environment variable.
fn number(variable: &str) -> Option<usize> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}

async fn measure(count: usize) {
    let server = Server::start();
    let client = server.client().await;
    let record = Arc::new(Record::default());
    let requests = Writes::default();
    let proxy = proxy::serve(requests.client(client.clone()), record.clone()).await;
    let bench = Bench {
        began: Instant::now(),
        server,
        client,
        record,
        requests,
        proxy,
        pools: number("SCALE_POOLS").unwrap_or_default(),
    };
    bench.prepare().await;

    if let Some(clusters) = number("SCALE_SIP") {
        bench.measure_sip(clusters).await;
        return support::provenance::print("make bench-sip");
    }
    if let Some(lists) = number("SCALE_WEB") {
        bench.measure_web(count, lists).await;
        return support::provenance::print("make bench-web");
    }
    if bench.pools > 0 {
        bench.measure_pools(bench.operator().await, count).await;
        return support::provenance::print("make bench-pools");
    }
    if let Some(reconciles) = number("SLOPE_RECONCILES") {
        let reconciles = reconciles as u64;
        bench.slope(bench.operator().await, count, reconciles).await;
        return support::provenance::print("make bench-slope");
    }
    bench.bursts().await;
    let operator = bench.operator().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    row(
        "operator's memory without VMs",
        &format!("{:.1} MiB", operator.memory()),
    );
    kubelet::start(&bench.client, NAMESPACE);
    // The number of present VMs, and of those that are created one by one in addition.
    let mut there = 0;
    for step in [count.min(1_000), count] {
        if step <= there {
            break;
        }
        let (began, cpu) = (Instant::now(), operator.cpu());
        bench.create(NAMESPACE, there..step).await;
        bench.wait_until_ready(step).await;
        let (took, used) = (
            began.elapsed().as_secs_f64(),
            (operator.cpu() - cpu).as_secs_f64(),
        );
        row(
            &format!("operator's memory with {step} VMs running"),
            &format!("{:.1} MiB", operator.memory()),
        );
        row(
            &format!("its processor time per VM from {there} to {step}"),
            &per(used * 1e3, step - there, "ms"),
        );
        row("time until all of these run", &format!("{took:.0} s"));
        there = step;
        bench.one_by_one(there).await;
        there += SAMPLES;
    }
    bench.restart(operator, there).await;
    support::provenance::print("make bench-scale");
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn row(title: &str, value: &str) {
    println!("{title:<66} {value}");
}

fn per(total: f64, count: usize, unit: &str) -> String {
    format!("{:.1} {unit}", total / count as f64)
}

/// Median and 99th percentile, in milliseconds.
fn quantiles(values: &mut [Duration]) -> String {
    values.sort();
    let [p50, p99] = [0.5, 0.99].map(|share| value_at(values, share).as_secs_f64() * 1e3);
    format!("p50 {p50:.1} ms, p99 {p99:.1} ms")
}

/// The value of sorted values that this share of them does not exceed.
fn value_at(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len()) - 1]
}

fn spec() -> Value {
    json!({
        "vm": {
            "state": "Running",
            "maximumRam": "1Gi",
            "networks": [{"user": {}}],
            "disks": [{"volumeClaimTemplate": {"metadata": {"name": "system"}, "spec": {
                "resources": {"requests": {"storage": "1Gi"}},
            }}}],
            "display": {"spice": {"port": 5910}},
        },
    })
}

impl Bench {
    async fn operator(&self) -> Operator {
        Operator::start(&proxy::kubeconfig(self.proxy), NAMESPACE).await
    }

    fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Installs definitions and creates namespaces.
    async fn prepare(&self) {
        for file in std::fs::read_dir(root().join("crds")).unwrap() {
            let file = file.unwrap().path();
            if !file.is_dir() {
                self.define(file).await;
            }
        }
        self.namespace(NAMESPACE).await;
        let vms = self.api::<VirtualMachine>(NAMESPACE);
        while vms.list(&ListParams::default()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Installs the definition in that file of the repository.
    async fn define(&self, file: impl AsRef<Path>) {
        let definitions = ApiResource {
            group: "apiextensions.k8s.io".to_owned(),
            version: "v1".to_owned(),
            api_version: "apiextensions.k8s.io/v1".to_owned(),
            kind: "CustomResourceDefinition".to_owned(),
            plural: "customresourcedefinitions".to_owned(),
        };
        let definitions = Api::<DynamicObject>::all_with(self.client.clone(), &definitions);
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        let crd: Value = serde_saphyr::from_str(&text).unwrap();
        let name = crd["metadata"]["name"].as_str().unwrap();
        definitions
            .patch(name, &PatchParams::apply("bench"), &Patch::Apply(&crd))
            .await
            .unwrap();
    }

    async fn namespace(&self, name: &str) {
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        Api::all(self.client.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
    }

    async fn create(&self, namespace: &str, numbers: Range<usize>) {
        let made = futures::stream::iter(numbers);
        let made = made.for_each_concurrent(CLIENTS, |n| async move {
            self.create_vm(namespace, n).await;
        });
        made.await;
    }

    async fn create_vm(&self, namespace: &str, n: usize) -> VirtualMachine {
        let mut spec = spec();
        if self.pools > 0 {
            spec["pools"] = json!([pools::pool_of(n, self.pools)]);
        }
        let vm = json!({
            "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine",
            "metadata": {"name": vm_name(n)}, "spec": spec,
        });
        let vm = serde_json::from_value(vm).unwrap();
        let vms = self.api::<VirtualMachine>(namespace);
        vms.create(&PostParams::default(), &vm).await.unwrap()
    }

    /// Waits until that number of VMs is `Ready`.
    async fn wait_until_ready(&self, count: usize) {
        let vms = self.api::<VirtualMachine>(NAMESPACE);
        let last = vm_name(count - 1);
        for _ in 0..1_200 {
            // Listing all VMs loads the API server, so it waits for the last one first.
            let newest = vms.get(&last).await.unwrap();
            let ready = |vm: &VirtualMachine| {
                vm.status
                    .as_ref()
                    .is_some_and(|status| is_true(&status.conditions, conditions::READY))
            };
            if ready(&newest)
                && vms
                    .list(&ListParams::default())
                    .await
                    .unwrap()
                    .iter()
                    .filter(|vm| ready(vm))
                    .count()
                    >= count
            {
                // Waits for requests in progress.
                return tokio::time::sleep(Duration::from_secs(3)).await;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("not {count} VMs are ready after 20 minutes");
    }

    /// Waits until the operator stops writing. It reports the status of VMs after it has created their pods, which
    /// would disturb the next measurement.
    async fn wait_until_idle(&self) {
        let mut before = None;
        while before.as_ref() != Some(&self.record.writes()) {
            before = Some(self.record.writes());
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    }

    /// Measures the operator's latency for one VM while the other VMs exist.
    async fn one_by_one(&self, there: usize) {
        self.record.forget();
        for n in there..there + SAMPLES {
            self.create(NAMESPACE, n..n + 1).await;
            tokio::time::sleep(PAUSE).await;
        }
        self.wait_until_ready(there + SAMPLES).await;
        let seen = self.record.vms();
        let mut own: Vec<Duration> = seen.values().filter_map(proxy::Times::own_time).collect();
        let mut all: Vec<Duration> = seen.values().filter_map(proxy::Times::latency).collect();
        assert!(
            own.len() >= SAMPLES,
            "only {} of {SAMPLES} were seen",
            own.len()
        );
        row(
            &format!("VM received to request for its pod, with {there} other VMs"),
            &quantiles(&mut all),
        );
        row(
            "of this the operator's own time, without requests in progress",
            &quantiles(&mut own),
        );
        let writes = self.record.writes();
        row(
            "operator's writes per VM until it runs, with one disk",
            &per(writes.values().sum::<usize>() as f64, SAMPLES, ""),
        );
        row("these writes, by method and kind", &format!("{writes:?}"));
    }

    /// Measures restarts of the operator: the time without the proxy, which would have to forward all listed objects,
    /// and the writes with it.
    async fn restart(&self, operator: Operator, there: usize) {
        operator.stop().await;
        let mut took = Vec::new();
        for n in 1..=RESTARTS {
            let operator = Operator::start(&self.server.kubeconfig(), NAMESPACE).await;
            let own = operator.cpu();
            let times = [operator.ready_after, own, operator.busy.saturating_sub(own)]
                .map(|time| time.as_secs_f64());
            let [ready, own, others] = times.map(|seconds| format!("{seconds:.1} s"));
            row(
                &format!("restart {n} over {there} VMs: time to ready"),
                &ready,
            );
            row(
                "processor time until then: operator; all other processes",
                &format!("{own}; {others}"),
            );
            took.push(times[0]);
            operator.stop().await;
        }
        took.sort_by(f64::total_cmp);
        row(
            "median time to ready",
            &format!("{:.1} s", took[RESTARTS / 2]),
        );
        self.record.forget();
        let operator = self.operator().await;
        // The operator leads and has reconciled all VMs by then. A write would follow immediately.
        tokio::time::sleep(Duration::from_secs(20)).await;
        let writes = self.record.writes();
        row(
            "restart: writes",
            &format!(
                "{}{}",
                writes.values().sum::<usize>(),
                if writes.is_empty() {
                    String::new()
                } else {
                    format!(" {writes:?}")
                }
            ),
        );
        row("restart: memory", &format!("{:.1} MiB", operator.memory()));
        operator.stop().await;
    }
}
