//! VMs by the operator, compared with a client that makes the same writes: it sends the recorded writes of the operator's
//! round again, for VMs in another namespace. It reads nothing, decides nothing and waits for nothing. Both use the same proxy
//! in turns, so that other load affects both equally.

use super::operator::Operator;
use super::{Bench, CLIENTS, kubelet, per, proxy, quantiles, row};
use futures::StreamExt;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::future::{join, maybe_done};
use kube::api::ListParams;
use kube::{Client, ResourceExt};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use support::processor;
use support::replay::{Replay, Write};
use vm_operator::api::VirtualMachine;
use vm_operator::api::conditions::{find, is_true};
use vm_operator::api::vm::conditions;
use vm_operator::k8s::live::Version;

/// The time limit until all VMs of a round have a pod and a status.
const ROUND_TIMEOUT: Duration = Duration::from_secs(300);

/// The VMs of a round.
struct Workload {
    name: &'static str,
    rounds: usize,
    vms: usize,
    /// Clients that create the VMs.
    creators: usize,
    /// Whether the VMs exist before the operator starts. If not, the simulated kubelet and runner start them.
    exist_before: bool,
}

const BACKLOG: Workload = Workload {
    name: "backlog",
    rounds: 7,
    vms: 500,
    creators: CLIENTS,
    exist_before: true,
};
const ARRIVALS: Workload = Workload {
    name: "arrivals",
    rounds: 3,
    vms: 1_000,
    creators: 8,
    exist_before: false,
};

/// A VM that the bench has created.
struct Created {
    /// The start of the request.
    at: Instant,
    name: String,
    version: Version,
}

/// What the client needs for the same writes.
struct Recorded {
    namespace: String,
    versions: HashMap<String, Version>,
    writes: BTreeMap<String, Vec<Write>>,
}

/// The measurements of a round.
struct Round {
    /// VMs per second, from the first request for one to the last pod or status.
    rate: f64,
    /// From the creation of each VM to its pod.
    to_pod: Vec<Duration>,
    /// From the creation of each VM to its last status.
    to_status: Vec<Duration>,
    used: Usage,
}

/// Processor times.
struct Usage {
    /// Since the start of the bench, or of the round.
    wall: Duration,
    machine: Duration,
    bench: Duration,
    api_server: Duration,
    etcd: Duration,
    operator: Duration,
}

impl Usage {
    /// The processor times from then until now.
    fn since(self, then: &Self) -> Self {
        Self {
            wall: self.wall - then.wall,
            machine: self.machine.saturating_sub(then.machine),
            bench: self.bench - then.bench,
            api_server: self.api_server - then.api_server,
            etcd: self.etcd - then.etcd,
            operator: self.operator - then.operator,
        }
    }

    /// The processor time of all other processes, per second.
    fn others(&self) -> f64 {
        let own = self.bench + self.api_server + self.etcd + self.operator;
        self.machine.saturating_sub(own).as_secs_f64() / self.wall.as_secs_f64()
    }

    fn per_vm(&self, vms: usize) -> String {
        let per_vm = |time: Duration| per(time.as_secs_f64() * 1e3, vms, "ms");
        let [api_server, etcd, operator] = [self.api_server, self.etcd, self.operator].map(per_vm);
        format!("API server {api_server}, etcd {etcd}, operator {operator}")
    }
}

impl Bench {
    pub(super) async fn bursts(&self) {
        let mut ratios = Vec::new();
        for number in 1..=BACKLOG.rounds {
            let [operator, client] = self.rounds(&BACKLOG, number).await;
            let ratio = operator.rate / client.rate;
            row(
                &format!(
                    "round {number} of {} VMs: VMs per second to pod and status",
                    BACKLOG.vms
                ),
                &format!(
                    "{:.0}; the same writes {:.0}: × {ratio:.2}",
                    operator.rate, client.rate
                ),
            );
            ratios.push(ratio);
        }
        // Not the ratio of two medians: the rates of one round were measured under the same conditions, those of two
        // rounds were not.
        let [low, median, high] = quartiles(&mut ratios);
        row(
            &format!("median of the {} rounds' ratios", BACKLOG.rounds),
            &format!("× {median:.2} (quartiles {low:.2} and {high:.2})"),
        );
        for number in 1..=ARRIVALS.rounds {
            let [operator, client] = self.rounds(&ARRIVALS, number).await;
            for (title, mut round) in [("operator", operator), ("the same writes", client)] {
                let title = format!("round {number} of {} VMs, {title}", ARRIVALS.vms);
                row(
                    &format!("{title}: created to pod"),
                    &quantiles(&mut round.to_pod),
                );
                row(
                    &format!("{title}: created to Ready"),
                    &quantiles(&mut round.to_status),
                );
                row(
                    &format!("{title}: processor time per VM"),
                    &round.used.per_vm(ARRIVALS.vms),
                );
            }
        }
    }

    /// A round of the operator and one of the client.
    async fn rounds(&self, workload: &Workload, number: usize) -> [Round; 2] {
        let name = |client: &str| format!("{}-{number}-of-{client}", workload.name);
        let (operator, recorded) = self.by_operator(workload, name("operator")).await;
        let client = self.by_client(workload, &name("client"), &recorded).await;
        [operator, client]
    }

    async fn by_operator(&self, workload: &Workload, namespace: String) -> (Round, Recorded) {
        self.prepare_round(workload, &namespace).await;
        let (sender, created) = unbounded();
        let creation = self.create_each(workload, &namespace, sender);
        let mut creation = Box::pin(maybe_done(creation));
        if workload.exist_before {
            creation.as_mut().await;
        }
        self.record.forget();
        self.requests.start();
        let operator = Operator::start(&proxy::kubeconfig(self.proxy), &namespace).await;
        let before = self.usage(Some(&operator));
        creation.await;
        let created: Vec<Created> = created.collect().await;
        self.wait_until_settled(workload, &namespace).await;
        let used = self.usage(Some(&operator)).since(&before);
        operator.stop().await;
        let round = self.measured("operator", &created, used);
        let versions = created.into_iter().map(|vm| (vm.name, vm.version));
        let recorded = Recorded {
            namespace,
            versions: versions.collect(),
            writes: self.requests.stop(),
        };
        (round, recorded)
    }

    async fn by_client(&self, workload: &Workload, namespace: &str, recorded: &Recorded) -> Round {
        self.prepare_round(workload, namespace).await;
        let (sender, created) = unbounded();
        let creation = self.create_each(workload, namespace, sender);
        let mut creation = Box::pin(maybe_done(creation));
        if workload.exist_before {
            creation.as_mut().await;
        }
        self.record.forget();
        self.requests.start();
        let config = kube::Config::new(format!("http://127.0.0.1:{}", self.proxy).parse().unwrap());
        let replay = &Replay {
            client: &Client::try_from(config).unwrap(),
            from: &recorded.namespace,
            to: namespace,
        };
        let send = |vm: Created| async move {
            let (writes, version) = (&recorded.writes[&vm.name], &recorded.versions[&vm.name]);
            replay
                .send(writes, version.clone(), vm.version.clone())
                .await;
            vm
        };
        let before = self.usage(None);
        let sent = created.map(send).buffer_unordered(CLIENTS);
        let ((), created) = join(creation, sent.collect::<Vec<Created>>()).await;
        self.wait_until_settled(workload, namespace).await;
        let used = self.usage(None).since(&before);
        let same = kinds(&self.requests.stop()) == kinds(&recorded.writes);
        assert!(same, "the client has made other writes than the operator");
        self.measured("the same writes", &created, used)
    }

    async fn prepare_round(&self, workload: &Workload, namespace: &str) {
        self.namespace(namespace).await;
        if !workload.exist_before {
            kubelet::start(&self.client, namespace);
        }
    }

    async fn create_each(
        &self,
        workload: &Workload,
        namespace: &str,
        created: UnboundedSender<Created>,
    ) {
        let created = &created;
        let creation = futures::stream::iter(0..workload.vms);
        let creation = creation.for_each_concurrent(workload.creators, |n| async move {
            let at = Instant::now();
            let vm = self.create_vm(namespace, n).await;
            let vm = Created {
                at,
                name: vm.name_any(),
                version: Version::of(&vm),
            };
            created.unbounded_send(vm).unwrap();
        });
        creation.await;
    }

    /// Waits until all VMs have a pod and a true status, and nothing is written any more.
    async fn wait_until_settled(&self, workload: &Workload, namespace: &str) {
        let began = Instant::now();
        let is_settled = |times: &&proxy::Times| times.pod.is_some() && times.status.is_some();
        while self.record.vms().values().filter(is_settled).count() < workload.vms {
            assert!(
                began.elapsed() < ROUND_TIMEOUT,
                "VMs have no pod or no status"
            );
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        self.wait_until_idle().await;
        let vms = self.api::<VirtualMachine>(namespace);
        let vms = vms.list(&ListParams::default()).await.unwrap();
        let is_reported = |vm: &VirtualMachine| {
            let present = vm.status.as_ref().map(|status| &*status.conditions);
            let present = present.unwrap_or_default();
            let ready = find(present, conditions::READY);
            ready.is_some_and(|ready| ready.reason != "NoOperator")
                && (workload.exist_before || is_true(present, conditions::READY))
        };
        assert!(vms.iter().all(is_reported), "VMs have no true status");
    }

    fn usage(&self, operator: Option<&Operator>) -> Usage {
        let component = |name| processor::of_process(self.server.process_id(name));
        Usage {
            wall: self.began.elapsed(),
            machine: processor::of_machine(),
            bench: processor::of_process(std::process::id()),
            api_server: component("kube-apiserver"),
            etcd: component("etcd"),
            operator: operator.map(Operator::cpu).unwrap_or_default(),
        }
    }

    fn measured(&self, title: &str, created: &[Created], used: Usage) -> Round {
        row(
            &format!("processors used by other processes, {title}"),
            &format!("{:.2}", used.others()),
        );
        let seen = self.record.vms();
        let first = seen.values().filter_map(proxy::Times::first_request).min();
        let ends = seen
            .values()
            .flat_map(|times| [times.pod_end(), times.status]);
        let took = ends.flatten().max().unwrap() - first.unwrap();
        let since_creation = |end: fn(&proxy::Times) -> Option<Instant>| {
            let times = created
                .iter()
                .map(|vm| end(&seen[&vm.name]).unwrap() - vm.at);
            times.collect()
        };
        Round {
            rate: created.len() as f64 / took.as_secs_f64(),
            to_pod: since_creation(proxy::Times::pod_end),
            to_status: since_creation(|times| times.status),
            used,
        }
    }
}

/// The kinds of each VM's writes, in their order.
fn kinds(writes: &BTreeMap<String, Vec<Write>>) -> BTreeMap<&str, Vec<String>> {
    let kinds = |writes: &Vec<Write>| writes.iter().map(Write::kind).collect();
    writes
        .iter()
        .map(|(vm, writes)| (vm.as_str(), kinds(writes)))
        .collect()
}

/// The lower quartile, the median and the upper quartile.
fn quartiles(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}
