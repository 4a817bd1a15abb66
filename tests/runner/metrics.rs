//! The metrics of a VM.

use crate::fixture::{Fixture, LIMIT, run};
use serde_json::json;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// The default scrape timeout of Prometheus. The runner gives QEMU 1.5 s of it.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);
const PORT: u16 = 9180;

fn get(fixture: &Fixture, path: &str) -> Option<String> {
    let mut stream = fixture.network.connect(PORT).ok()?;
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: vm\r\n\r\n").as_bytes())
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The value of the first sample that begins with that text.
fn value(text: &str, begin: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(begin));
    let line = line.unwrap_or_else(|| panic!("no {begin} in\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_guest_is_counted_and_a_qemu_that_hangs_holds_up_nothing() {
    let fixture = Fixture::with_guest();
    fixture.configure(
        &json!({"metricsPort": PORT, "namespace": "vms"}),
        &json!({"currentCpus": 2, "maximumCpus": 2}),
    );
    let vm = fixture.start(None);
    vm.reaches("Booted");
    let answer = get(&fixture, "/metrics").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let labels = "{node=\"node-1\",namespace=\"vms\",name=\"test-vm\"";
    assert_eq!(
        value(&answer, &format!("vmoperator_qemu_answers{labels}}}")),
        1.0
    );
    assert_eq!(
        value(&answer, &format!("vmoperator_accelerated{labels}}}")),
        0.0
    );
    assert!(
        value(
            &answer,
            &format!("kubevirt_vmi_cpu_usage_seconds_total{labels}}}")
        ) > 0.5
    );
    assert!(
        value(
            &answer,
            &format!("kubevirt_vmi_vcpu_seconds_total{labels},id=\"0\"}}")
        ) > 0.5
    );
    assert!(
        value(
            &answer,
            &format!("kubevirt_vmi_vcpu_delay_seconds_total{labels},id=\"1\"}}")
        ) >= 0.0
    );
    let drive = format!("{labels},drive=\"tmp\"");
    assert!(
        value(
            &answer,
            &format!("kubevirt_vmi_storage_read_traffic_bytes_total{drive}}}")
        ) > 1e6
    );
    assert!(
        value(
            &answer,
            &format!("kubevirt_vmi_storage_iops_write_total{drive}}}")
        ) >= 1.0
    );
    assert_eq!(
        value(
            &answer,
            &format!("vmoperator_disk_aio_info{drive},aio=\"native\"}}")
        ),
        1.0
    );
    assert_eq!(
        value(
            &answer,
            &format!("kubevirt_vmi_memory_domain_bytes{labels}}}")
        ),
        536_870_912.0
    );
    assert!(
        value(
            &answer,
            &format!("kubevirt_vmi_memory_resident_bytes{labels}}}")
        ) > 1e7
    );
    // The guest's balloon driver reports soon after a scrape.
    let unused = vm.until("the guest's memory", || {
        let answer = get(&fixture, "/metrics")?;
        answer
            .contains("kubevirt_vmi_memory_unused_bytes{")
            .then(|| value(&answer, "kubevirt_vmi_memory_unused_bytes"))
    });
    assert!(unused > 1e7 && unused < 536_870_912.0, "{unused}");
    assert!(
        !answer.contains("kubevirt_vmi_network_"),
        "a network of kind user is counted with the pod"
    );
    assert!(get(&fixture, "/").unwrap().starts_with("HTTP/1.1 404 "));
    run("kill", &["-STOP".as_ref(), vm.qemu().to_string().as_ref()]);
    let begin = Instant::now();
    let answer = get(&fixture, "/metrics").unwrap();
    assert!(begin.elapsed() < SCRAPE_TIMEOUT, "{:?}", begin.elapsed());
    assert_eq!(value(&answer, "vmoperator_qemu_answers"), 0.0);
    assert!(value(&answer, "kubevirt_vmi_cpu_usage_seconds_total") > 0.5);
}
