//! (io) Serves `/metrics` of one VM in the Prometheus text format.
//!
//! The values come from QEMU and the kernel, with KubeVirt's names if the meaning is the same. They
//! are read once for each request, so a VM without requests has no overhead. Invariant: each
//! request is answered within two seconds. If QEMU does not answer, `vmoperator_qemu_answers` is 0
//! and QEMU's values are missing.

use crate::api::runner::metrics;
use crate::k8s::client::connect;
use crate::runner::qemu;
use crate::runner::qmp::{Client, Command};
use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;
use rustix::param::{clock_ticks_per_second, page_size};
use serde_json::Value;
use std::convert::Infallible;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Time for receiving a request and sending its response.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of requests at the same time. Further ones wait.
const CONCURRENT_REQUESTS_MAX: usize = 4;
/// Size of a request in bytes.
const REQUEST_SIZE_MAX: usize = 8 << 10;
/// Time for all of QEMU's answers together. A response needs less than 2 s with it.
const QEMU_TIMEOUT: Duration = Duration::from_millis(1500);
/// Interval in seconds at which the guest's balloon driver reports memory, after the first request.
const GUEST_STATS_INTERVAL: u64 = 10;
/// QOM path of the balloon.
const BALLOON_PATH: &str = "/machine/peripheral/balloon0";

/// Values that do not change while the VM runs.
#[derive(Clone, Debug, Default)]
pub struct VmMetrics {
    /// Labels of all samples: KubeVirt's `node`, `namespace` and `name`.
    pub labels: Vec<(&'static str, String)>,
    /// Whether KVM runs the guest. None if QEMU selects the accelerator.
    pub accelerated: Option<bool>,
    /// Process id of QEMU.
    pub qemu: i32,
    /// Memory that the VM was started with, in bytes.
    pub ram: u64,
    /// Labels of the disks, each with its method of asynchronous I/O.
    pub disks: Vec<(String, &'static str)>,
    /// Taps of the networks.
    pub taps: Vec<Tap>,
}

#[derive(Clone, Debug)]
pub struct Tap {
    /// The number of the network.
    pub network: usize,
    /// The name of the interface.
    pub name: String,
}

/// Serves until the process exits. Without a free port the VM has no metrics.
pub async fn serve(port: u16, machine: VmMetrics, monitor: Client) {
    let listener = match connect::listen((Ipv6Addr::UNSPECIFIED, port).into()).await {
        Ok(listener) => listener,
        Err(error) => {
            return tracing::warn!(port, %error, "the VM has no metrics, because the runner cannot listen on the metrics port; set \
                spec.metricsPort to a free port");
        }
    };
    let (machine, places) = (
        Arc::new(machine),
        Arc::new(Semaphore::new(CONCURRENT_REQUESTS_MAX)),
    );
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (machine, monitor) = (Arc::clone(&machine), monitor.clone());
                tokio::spawn(async move {
                    let (machine, monitor) = (&*machine, &monitor);
                    let service = service_fn(move |request| async move {
                        Ok::<_, Infallible>(respond(&request, machine, monitor).await)
                    });
                    let mut server = http1::Builder::new();
                    let server = server.keep_alive(false).max_buf_size(REQUEST_SIZE_MAX);
                    let _ = timeout(
                        EXCHANGE_TIMEOUT,
                        server.serve_connection(TokioIo::new(stream), service),
                    )
                    .await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the runner cannot accept a connection to the metrics endpoint, and retries after 1 s");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn respond(
    request: &Request<Incoming>,
    machine: &VmMetrics,
    monitor: &Client,
) -> Response<String> {
    let found = request.method() == Method::GET && request.uri().path() == "/metrics";
    let body = if found {
        collect_samples(machine, monitor).await
    } else {
        "only GET /metrics is available\n".to_owned()
    };
    let mut response = Response::new(body);
    *response.status_mut() = if found {
        StatusCode::OK
    } else {
        StatusCode::NOT_FOUND
    };
    let format = header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, format);
    response
}

/// Labels of a sample besides those of the VM.
type Labels = Vec<(&'static str, String)>;

/// Samples of one request: the name of each metric, and the labels and value of each sample.
#[derive(Debug, Default)]
struct Samples(Vec<(String, Vec<(Labels, f64)>)>);

impl Samples {
    /// Adds a value without labels, if it is known.
    fn add(&mut self, name: impl Into<String>, value: Option<f64>) {
        self.add_each(name, value.map(|value| (Vec::new(), value)));
    }

    fn add_each(
        &mut self,
        name: impl Into<String>,
        samples: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        self.0.push((name.into(), samples.into_iter().collect()));
    }

    fn into_text(self, machine: Labels) -> String {
        let labels = machine
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()));
        let (mut registry, mut text) = (Registry::with_labels(labels), String::new());
        registry.register_collector(Box::new(self));
        // Writing to a string cannot fail.
        let _ = encode_registry(&mut text, &registry);
        text
    }
}

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, samples) in self.0.iter().filter(|(_, samples)| !samples.is_empty()) {
            let Some(figure) = metrics::metric(name) else {
                continue;
            };
            let mut metric =
                encoder.encode_descriptor(figure.name, figure.what, None, figure.kind)?;
            for (labels, value) in samples {
                // Counters are encoded as gauges too: the library would add a suffix to counters
                // that KubeVirt's names do not have.
                metric.encode_family(labels)?.encode_gauge(value)?;
            }
        }
        Ok(())
    }
}

/// QEMU's answers. Those that did not arrive in time are missing.
#[derive(Default)]
struct Answers {
    balloon: Option<Value>,
    guest: Option<Value>,
    blocks: Option<Value>,
    cpus: Option<Value>,
}

/// All metrics of the VM, as text.
async fn collect_samples(machine: &VmMetrics, monitor: &Client) -> String {
    let mut answers = Answers::default();
    // A timeout keeps the answers that have arrived.
    let complete = timeout(QEMU_TIMEOUT, query_qemu(monitor, &mut answers))
        .await
        .unwrap_or(false);
    let mut samples = Samples::default();
    samples.add(
        "vmoperator_qemu_answers",
        Some(f64::from(u8::from(complete))),
    );
    samples.add(
        "vmoperator_accelerated",
        machine.accelerated.map(|is| f64::from(u8::from(is))),
    );
    cpu(&mut samples, machine, answers.cpus.as_ref());
    memory(&mut samples, machine, &answers);
    storage(&mut samples, machine, answers.blocks.as_ref());
    network(&mut samples, machine);
    samples.into_text(machine.labels.clone())
}

async fn query_qemu(monitor: &Client, answers: &mut Answers) -> bool {
    answers.blocks = monitor.execute(Command::query_block_stats()).await.ok();
    answers.cpus = monitor.execute(Command::query_cpus()).await.ok();
    answers.balloon = monitor.execute(Command::query_balloon()).await.ok();
    let _ = monitor
        .execute(Command::set_guest_stats_interval(
            BALLOON_PATH,
            GUEST_STATS_INTERVAL,
        ))
        .await;
    answers.guest = monitor
        .execute(Command::guest_stats(BALLOON_PATH))
        .await
        .ok();
    answers.blocks.is_some() && answers.cpus.is_some()
}

fn cpu(samples: &mut Samples, machine: &VmMetrics, cpus: Option<&Value>) {
    let times = cpu_times(&format!("/proc/{}/stat", machine.qemu));
    samples.add(
        "kubevirt_vmi_cpu_usage_seconds_total",
        times.map(|(user, system)| user + system),
    );
    samples.add(
        "kubevirt_vmi_cpu_user_usage_seconds_total",
        times.map(|(user, _)| user),
    );
    samples.add(
        "kubevirt_vmi_cpu_system_usage_seconds_total",
        times.map(|(_, system)| system),
    );
    let threads = cpus
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|cpu| {
            let (id, thread) = (
                cpu.get("cpu-index")?.as_u64()?,
                cpu.get("thread-id")?.as_u64()?,
            );
            Some((
                vec![("id", id.to_string())],
                format!("/proc/{}/task/{thread}", machine.qemu),
            ))
        });
    let ran = threads.clone().filter_map(|(id, path)| {
        let (user, system) = cpu_times(&format!("{path}/stat"))?;
        Some((id, user + system))
    });
    samples.add_each("kubevirt_vmi_vcpu_seconds_total", ran);
    let waited = threads.filter_map(|(id, path)| Some((id, delay(&format!("{path}/schedstat"))?)));
    samples.add_each("kubevirt_vmi_vcpu_delay_seconds_total", waited);
}

/// Seconds in user mode and in the kernel, from a `stat` file.
fn cpu_times(path: &str) -> Option<(f64, f64)> {
    let stat = fs::read_to_string(path).ok()?;
    // The name, in parentheses, may contain spaces and parentheses. The times are fields 14 and 15.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks = clock_ticks_per_second() as f64;
    let mut seconds = || Some(fields.next()?.parse::<f64>().ok()? / ticks);
    Some((seconds()?, seconds()?))
}

fn delay(path: &str) -> Option<f64> {
    let stat = fs::read_to_string(path).ok()?;
    Some(stat.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1e9)
}

fn memory(samples: &mut Samples, machine: &VmMetrics, answers: &Answers) {
    let name = |what: &str| format!("kubevirt_vmi_memory_{what}");
    let resident = fs::read_to_string(format!("/proc/{}/statm", machine.qemu)).ok();
    let resident = resident.and_then(|statm| statm.split_whitespace().nth(1)?.parse::<f64>().ok());
    samples.add(name("domain_bytes"), Some(machine.ram as f64));
    samples.add(
        name("resident_bytes"),
        resident.map(|pages| pages * page_size() as f64),
    );
    let actual = answers
        .balloon
        .as_ref()
        .and_then(|balloon| balloon.get("actual")?.as_f64());
    samples.add(name("actual_balloon_bytes"), actual);
    let stats = answers.guest.as_ref().and_then(|guest| guest.get("stats"));
    // A value with all bits set is unknown.
    let stat = |key: &str| {
        let value = stats?.get(key)?.as_u64()?;
        (value != u64::MAX).then_some(value as f64)
    };
    for (what, key) in [
        ("available_bytes", "stat-total-memory"),
        ("unused_bytes", "stat-free-memory"),
        ("usable_bytes", "stat-available-memory"),
        ("cached_bytes", "stat-disk-caches"),
        ("swap_in_traffic_bytes", "stat-swap-in"),
        ("swap_out_traffic_bytes", "stat-swap-out"),
        ("pgmajfault_total", "stat-major-faults"),
        ("pgminfault_total", "stat-minor-faults"),
    ] {
        samples.add(name(what), stat(key));
    }
}

fn storage(samples: &mut Samples, machine: &VmMetrics, blocks: Option<&Value>) {
    let aio = |(path, aio): &(String, &str)| {
        (
            vec![("drive", path.clone()), ("aio", (*aio).to_owned())],
            1.0,
        )
    };
    samples.add_each("vmoperator_disk_aio_info", machine.disks.iter().map(aio));
    let stats = |n: usize| {
        let node = qemu::disk_node(n);
        let ours =
            |block: &&Value| block.get("node-name").and_then(Value::as_str) == Some(node.as_str());
        blocks?.as_array()?.iter().find(ours)?.get("stats")
    };
    for (what, key, scale) in [
        ("iops_read_total", "rd_operations", 1.0),
        ("iops_write_total", "wr_operations", 1.0),
        ("read_traffic_bytes_total", "rd_bytes", 1.0),
        ("write_traffic_bytes_total", "wr_bytes", 1.0),
        ("read_times_seconds_total", "rd_total_time_ns", 1e9),
        ("write_times_seconds_total", "wr_total_time_ns", 1e9),
        ("flush_requests_total", "flush_operations", 1.0),
        ("flush_times_seconds_total", "flush_total_time_ns", 1e9),
    ] {
        let sample = |(n, (path, _)): (usize, &(String, &str))| {
            Some((
                vec![("drive", path.clone())],
                stats(n)?.get(key)?.as_f64()? / scale,
            ))
        };
        samples.add_each(
            format!("kubevirt_vmi_storage_{what}"),
            machine.disks.iter().enumerate().filter_map(sample),
        );
    }
}

/// The guest receives what its tap sends. Networks behind the pod's address are counted with the
/// pod.
fn network(samples: &mut Samples, machine: &VmMetrics) {
    for (guest, tap) in [("receive", "tx"), ("transmit", "rx")] {
        for (what, file) in [
            ("bytes", "bytes"),
            ("packets", "packets"),
            ("errors", "errors"),
            ("packets_dropped", "dropped"),
        ] {
            let sample = |each: &Tap| {
                let path = format!("/sys/class/net/{}/statistics/{tap}_{file}", each.name);
                let count = fs::read_to_string(path).ok()?.trim().parse().ok()?;
                Some((
                    vec![("interface", format!("hostnet{}", each.network))],
                    count,
                ))
            };
            samples.add_each(
                format!("kubevirt_vmi_network_{guest}_{what}_total"),
                machine.taps.iter().filter_map(sample),
            );
        }
    }
}

#[cfg(test)]
mod tests;
