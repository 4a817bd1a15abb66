//! The alerts of a real Prometheus name the VMs of the cluster that have a problem.

mod exhaustive {
    use crate::devices::{KVM, node_offers, slots};
    use crate::harness::disk::SmallVolume;
    use crate::harness::vm::{BOOT, condition};
    use crate::harness::{Space, console, e2e, environment, eventually, process};
    use crate::reach::http_get;
    use serde_json::{Value, json};
    use std::fs;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use support::boot_sector::machine_has_kvm;

    /// The shipped rules, with a shorter `for`.
    fn rules() -> String {
        let file = environment::repo().join("deploy/monitoring/base/rules.yaml");
        let rules: Value = serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let mut rules = rules["spec"].clone();
        for group in rules["groups"].as_array_mut().unwrap() {
            for rule in group["rules"].as_array_mut().unwrap() {
                if rule["for"].is_string() {
                    rule["for"] = json!("2s");
                }
            }
        }
        rules.to_string()
    }

    /// A Prometheus that scrapes the operator. It ends with this value.
    struct Prometheus {
        address: String,
        process: Child,
    }

    impl Drop for Prometheus {
        fn drop(&mut self) {
            drop(self.process.kill());
            drop(self.process.wait());
        }
    }

    impl Prometheus {
        fn start(dir: &Path, operator: &str) -> Self {
            let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let address = listener.local_addr().unwrap().to_string();
            drop(listener);
            fs::write(dir.join("rules.yaml"), rules()).unwrap();
            let config = json!({
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": ["rules.yaml"],
                "scrape_configs": [{
                    "job_name": "vm-operator",
                    "static_configs": [{"targets": [operator]}],
                }],
            });
            fs::write(dir.join("prometheus.yaml"), config.to_string()).unwrap();
            let process = Command::new(environment::repo().join("tests/monitoring/selftest"))
                .args(["prometheus", "--log.level=warn"])
                .arg(format!("--config.file={}/prometheus.yaml", dir.display()))
                .arg(format!("--storage.tsdb.path={}/data", dir.display()))
                .arg(format!("--web.listen-address={address}"))
                .stdin(Stdio::null())
                .spawn()
                .unwrap();
            Self { address, process }
        }

        /// Waits until the alert names this VM.
        async fn fires(&self, alert: &str, space: &Space, vm: &str) {
            eventually(&format!("{alert} names {vm}"), 120, async || {
                let answer = http_get(&self.address, "/api/v1/alerts").await?;
                let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
                let body: Value = serde_json::from_str(body).map_err(|e| e.to_string())?;
                let alerts = body["data"]["alerts"].as_array().into_iter().flatten();
                let mut named = alerts.filter(|one| {
                    let labels = &one["labels"];
                    labels["alertname"] == alert
                        && labels["namespace"] == *space.name
                        && labels["name"] == vm
                        && one["state"] == "firing"
                });
                named.next().map(drop).ok_or_else(|| body.to_string())
            })
            .await;
        }
    }

    #[test]
    fn alerts_name_a_stopped_qemu_a_full_disk_and_an_emulated_guest() {
        e2e(2, async |space| {
            let has_kvm = machine_has_kvm();
            if has_kvm {
                node_offers(KVM, slots("/dev/kvm")).await;
                space
                    .configure(&json!({"accelerator": {"policy": "auto", "kvmResource": KVM}}))
                    .await;
            }
            let dir = tempfile::tempdir().unwrap();
            let operator = space.operator().await;
            let address = operator["status"]["podIP"].as_str().unwrap();
            let prometheus = Prometheus::start(dir.path(), &format!("{address}:8081"));

            let volume = SmallVolume::publish(space, "full-data-disk", 8).await;
            let system = crate::harness::vm::tiny(space, "full", &json!({}));
            let data = json!({"volumeClaimTemplate": {"metadata": {"name": "data"}, "spec": {
                "storageClassName": "", "volumeName": volume.name, "volumeMode": "Filesystem",
                "resources": {"requests": {"storage": "64Mi"}},
            }}});
            let disks = json!([system["spec"]["vm"]["disks"][0], data]);
            let full = space
                .create("full", json!({"spec": {"vm": {"disks": disks}}}))
                .await;
            let silent = space.create("silent", json!({})).await;
            full.booted().await;
            let status = silent.booted().await;

            let fill = "sh tr '\\0' x </dev/zero | dd of=/dev/vdb bs=1M count=32 iflag=fullblock conv=fsync";
            // The guest cannot respond any more.
            drop(console::write_line(space, "full", fill).await);
            let stopped = process::of_pod(&silent.pod_uid(), "qemu-system-x86");
            process::signal(&stopped, "STOP");
            prometheus.fires("VmStorageUnhealthy", space, "full").await;
            prometheus.fires("VmNotRunning", space, "full").await;
            prometheus.fires("VmUnresponsive", space, "silent").await;
            process::signal(&stopped, "CONT");
            if has_kvm && condition(&status, "Accelerated")["status"] == "False" {
                prometheus.fires("VmEmulated", space, "silent").await;
            }
            silent.wait_for_reason("Running", BOOT).await;
        });
    }
}
