//! The metrics of the process, with the names that Prometheus' client libraries use.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use std::fmt;
use std::fs::{read_dir, read_to_string};

/// Reads `/proc` for each scrape. A value that cannot be read is left out.
#[derive(Debug)]
pub struct ProcessCollector;

/// Values of `/proc/self/stat`.
struct Stat {
    cpu_seconds: f64,
    /// Seconds from the boot of the node to the start of the process.
    started: f64,
    virtual_bytes: f64,
    resident_bytes: f64,
}

impl Stat {
    fn read() -> Option<Self> {
        Self::parse(&read_to_string("/proc/self/stat").ok()?)
    }

    #[allow(clippy::cast_precision_loss)]
    fn parse(text: &str) -> Option<Self> {
        // The name of the program, in parentheses, may contain blanks. The state, which follows it, is field 3 of proc(5).
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let ticks = clock_ticks_per_second() as f64;
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / ticks,
            started: field(22)? / ticks,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * page_size() as f64,
        })
    }
}

/// Seconds from 1970 to the boot of the node.
fn boot_time() -> Option<f64> {
    let stat = read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

/// The number of open file descriptors without that of the directory.
#[allow(clippy::cast_precision_loss)]
fn open_fds() -> Option<f64> {
    let count = read_dir("/proc/self/fd").ok()?.count();
    Some(count.saturating_sub(1) as f64)
}

#[allow(clippy::cast_precision_loss)]
fn max_fds() -> Option<f64> {
    getrlimit(Resource::Nofile)
        .current
        .map(|limit| limit as f64)
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let stat = Stat::read();
        let stat = stat.as_ref();
        let started = stat.and_then(|stat| Some(boot_time()? + stat.started));
        if let Some(stat) = stat {
            let help = "CPU time of the process in user mode and in the kernel, in seconds";
            let name = "process_cpu_seconds";
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(stat.cpu_seconds).encode(metric)?;
        }
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Resident memory of the process, in bytes",
                stat.map(|stat| stat.resident_bytes),
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory of the process, in bytes",
                stat.map(|stat| stat.virtual_bytes),
            ),
            (
                "process_start_time_seconds",
                "Start of the process, in seconds since 1970",
                started,
            ),
            (
                "process_open_fds",
                "Open file descriptors of the process",
                open_fds(),
            ),
            (
                "process_max_fds",
                "Maximum number of open file descriptors of the process",
                max_fds(),
            ),
        ] {
            let Some(value) = value else {
                continue;
            };
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_name_with_blanks_and_parentheses_is_skipped() {
        let text = "1 (a ) b) S 0 1 1 0 -1 4194560 1 2 3 4 250 50 0 0 20 0 3 0 700 8192 2 1";
        let stat = Stat::parse(text).unwrap();
        #[allow(clippy::cast_precision_loss)]
        let (ticks, page) = (clock_ticks_per_second() as f64, page_size() as f64);
        let values = [
            stat.cpu_seconds * ticks,
            stat.started * ticks,
            stat.virtual_bytes,
            stat.resident_bytes / page,
        ];
        assert_eq!(values, [300.0, 700.0, 8192.0, 2.0]);
        assert!(Stat::parse("1 (a) S 0").is_none());
    }

    #[test]
    fn values_are_those_of_this_process() {
        let stat = Stat::read().unwrap();
        assert!(stat.resident_bytes > 1e6 && stat.virtual_bytes > stat.resident_bytes);
        let age = jiff::Timestamp::now().as_second() as f64 - boot_time().unwrap() - stat.started;
        assert!((-2.0..3600.0).contains(&age), "{age}");
        let before = open_fds().unwrap();
        let files = [(); 50].map(|()| std::fs::File::open("/dev/null").unwrap());
        // Other tests of this process open and close files too.
        let more = open_fds().unwrap() - before;
        assert!((25.0..75.0).contains(&more), "{more}");
        drop(files);
        assert!(max_fds().unwrap() >= open_fds().unwrap());
    }
}
