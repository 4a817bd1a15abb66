//! An upgrade and a downgrade: the operator of the previous commit (`tests/cluster/previous`) hands over to the present
//! one and back, each with its own manifests. All guests continue to run.

use super::harness::disk::Counts;
use super::harness::space::e2e_in_an_empty_namespace;
use super::harness::vm::{BOOT, SHUTDOWN, Vm, condition, uid};
use super::harness::{Space, environment, eventually, process};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

/// A version of the project.
struct State {
    /// The overlay with its manifests, relative to that of the namespace.
    manifests: &'static str,
    /// Tag of its images.
    tag: &'static str,
}

const BEFORE: State = State {
    manifests: "../../previous/source/deploy/overlays/local",
    tag: "previous",
};
const TODAY: State = State {
    manifests: "../../../deploy/overlays/local",
    tag: env!("CARGO_PKG_VERSION"),
};

impl State {
    /// Applies it as an administrator does. Returns when its operator leads and no other runs.
    async fn install(&self, space: &Space) {
        let before: Vec<String> = operators(space).iter().map(uid).collect();
        let runner = json!({"source": format!("localhost/vm-runner:{}", self.tag)});
        let config = Space::config(&json!({"runnerImage": runner})).to_string();
        let patch = json!([{"op": "replace", "path": "/data/config.yaml", "value": config}]);
        let kustomization = json!({
            "namespace": space.name,
            "resources": [self.manifests],
            "images": [{"name": "localhost/vm-operator", "newTag": self.tag}],
            "patches": [{"target": {"kind": "ConfigMap", "name": "vm-operator"}, "patch": patch.to_string()}],
        });
        let dir = space.overlay_dir();
        fs::write(dir.join("kustomization.yaml"), kustomization.to_string()).unwrap();
        space
            .kubectl(&["apply", "--kustomize", &dir.display().to_string()])
            .await;
        let pod = space.operator_other_than(&before).await;
        eventually("the other operator stops", 60, async || {
            let names: Vec<_> = operators(space)
                .iter()
                .map(|pod| pod["metadata"]["name"].clone())
                .collect();
            if names == [pod["metadata"]["name"].clone()] {
                Ok(())
            } else {
                Err(format!("{names:?}"))
            }
        })
        .await;
        eventually("it leads", 120, async || {
            let metrics = metrics(space, &pod).await?;
            if metrics.lines().any(|line| line == "vm_operator_leader 1") {
                Ok(())
            } else {
                Err(metrics)
            }
        })
        .await;
    }
}

fn operators(space: &Space) -> Vec<Value> {
    let pods = space.pods.all().into_iter();
    pods.filter(|pod| pod["metadata"]["labels"]["app.kubernetes.io/name"] == "vm-operator")
        .collect()
}

async fn metrics(space: &Space, operator: &Value) -> Result<String, String> {
    let name = operator["metadata"]["name"].as_str().unwrap_or_default();
    let path = format!(
        "/api/v1/namespaces/{}/pods/{name}:8081/proxy/metrics",
        space.name
    );
    space.try_kubectl(&["get", "--raw", &path]).await
}

/// The identity of a running guest: the pod, its container, QEMU's process.
fn life(vm: &Vm<'_>) -> (String, Value, Vec<String>) {
    let pod = vm.pod().expect("the VM has a pod");
    let qemu = process::of_pod(&uid(&pod), "qemu-system-x86");
    assert_eq!(qemu.len(), 1, "one QEMU");
    (
        uid(&pod),
        pod["status"]["containerStatuses"][0]["restartCount"].clone(),
        qemu,
    )
}

/// Asserts that the leading operator manages the VM and its runner: the guest gets that many CPUs.
async fn assert_is_managed(vm: &Vm<'_>, cpus: u32) {
    vm.patch(&json!({"spec": {"vm": {"currentCpus": cpus}}}))
        .await;
    vm.until("its CPUs are reported", BOOT, |vm| {
        vm["status"]["cpus"] == cpus
    })
    .await;
    vm.wait_for_reason("Running", BOOT).await;
    eventually("the guest sees them", BOOT, async || {
        let present = vm.guest("grep -c ^processor /proc/cpuinfo").await;
        if present == cpus.to_string() {
            Ok(())
        } else {
            Err(present)
        }
    })
    .await;
}

/// A VM of this namespace that the operator of that version has started with its own runner. The image identifies the
/// runner, because both versions may have the same number.
async fn started_by<'a>(space: &'a Space, name: &str, state: &State) -> Vm<'a> {
    let vm = space
        .create(
            name,
            json!({"spec": {"vm": {"maximumCpus": 2, "currentCpus": 1}}}),
        )
        .await;
    vm.booted().await;
    let image = vm.pod().unwrap()["spec"]["containers"][0]["image"].clone();
    assert_eq!(image, format!("localhost/vm-runner:{}", state.tag));
    assert_eq!(
        vm.counts().await,
        Counts {
            boot: 1,
            shutdowns: 0
        }
    );
    vm
}

/// The hardware that the guest sees: its UUID, PCI devices with their addresses, MAC addresses, and serials of disks.
async fn hardware(vm: &Vm<'_>) -> String {
    let hardware = vm.guest(
        "modprobe virtio_net; cat /sys/class/dmi/id/product_uuid; \
         for d in /sys/bus/pci/devices/*; do echo ${d##*/} $(cat $d/vendor $d/device $d/class); done; \
         cat /sys/bus/virtio/devices/virtio*/net/*/address; \
         for f in /sys/block/vd*/serial; do echo $f $(cat $f); done",
    )
    .await;
    // Two answers that lack the same parts would be equal.
    let is_mac = |word: &str| word.len() == 17 && word.matches(':').count() == 5;
    assert!(
        hardware.split(' ').any(is_mac),
        "no MAC address: {hardware}"
    );
    for part in ["0x1af4", "/sys/block/vda/serial"] {
        assert!(hardware.contains(part), "{part} is missing: {hardware}");
    }
    hardware
}

/// The fields of a VM's status, and status and reason of its conditions. What is missing in the later one, or differs
/// there, is returned. Times differ, and a later version may add fields.
fn lost_in_status(before: &Value, after: &Value) -> Vec<String> {
    let fields = |vm: &Value| -> BTreeSet<String> {
        let status = vm["status"].as_object().cloned().unwrap_or_default();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let conditions = conditions
            .iter()
            .map(|c| format!("{} {} {}", c["type"], c["status"], c["reason"]));
        // A guest can get a further address at any time.
        let addresses = status
            .get("guestIPs")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let addresses = addresses.iter().map(|ip| format!("guestIPs {ip}"));
        let others = status
            .iter()
            .filter(|(name, _)| !["conditions", "guestIPs"].contains(&name.as_str()));
        others
            .map(|(name, value)| format!("{name} {value}"))
            .chain(conditions)
            .chain(addresses)
            .collect()
    };
    let lost = fields(before);
    lost.difference(&fields(after)).cloned().collect()
}

/// Waits until the operator has written nothing for ten seconds. No VM needs a restart then.
async fn settles_without_restart(space: &Space, vms: &[&Vm<'_>]) {
    let quiet = Duration::from_secs(10);
    let writes = || space.audit.writes_by(&space.name, "vm-operator").len();
    let mut seen = (writes(), Instant::now());
    eventually("the operator writes nothing for 10 s", 90, async || {
        if writes() != seen.0 {
            seen = (writes(), Instant::now());
        }
        match seen.1.elapsed() >= quiet {
            true => Ok(()),
            false => Err(format!("{} writes", seen.0)),
        }
    })
    .await;
    for vm in vms {
        let required = condition(&vm.now(), "RestartRequired");
        assert_ne!(required["status"], "True", "{}: {required}", vm.name);
    }
}

/// Asserts from the audit log that an operator wrote nothing after the next one had begun to write.
fn assert_one_writer_at_a_time(space: &Space, operators: usize) {
    let mut writes = space.audit.writes_by(&space.name, "vm-operator");
    writes.sort_by_key(|write| write.at);
    let mut writers: Vec<_> = writes.iter().map(|write| write.pod.as_str()).collect();
    writers.dedup();
    assert_eq!(writers.len(), operators, "{writers:?}");
    assert_eq!(BTreeSet::from_iter(&writers).len(), operators);
}

#[test]
fn an_upgrade_and_the_way_back_restart_no_vm() {
    let images = ["vm-operator", "vm-runner"]
        .map(|name| environment::repo().join(format!(".cache/previous/{name}.tar")));
    let missing = images.iter().find(|image| !image.exists());
    assert!(
        missing.is_none(),
        "{missing:?} is missing; run tests/cluster/previous"
    );
    e2e_in_an_empty_namespace(2, async |space| {
        environment::cluster(&[
            "load",
            &images[0].display().to_string(),
            &images[1].display().to_string(),
        ]);
        BEFORE.install(space).await;
        let old = started_by(space, "old", &BEFORE).await;
        let first = life(&old);
        let (hardware_before, status_before) = (hardware(&old).await, old.now());

        TODAY.install(space).await;
        settles_without_restart(space, &[&old]).await;
        assert_eq!(
            lost_in_status(&status_before, &old.now()),
            [""; 0],
            "the upgrade keeps the status"
        );
        assert_is_managed(&old, 2).await;
        let new = started_by(space, "new", &TODAY).await;
        assert_eq!(life(&old), first, "the upgrade has restarted nothing");
        let second = life(&new);

        BEFORE.install(space).await;
        settles_without_restart(space, &[&old, &new]).await;
        assert_is_managed(&old, 1).await;
        // A previous operator that knows no reports leaves the last status of a pod with one.
        if definitions("previous/source/crds").contains("vmreports") {
            assert_is_managed(&new, 2).await;
        } else {
            assert_eq!(condition(&new.now(), "Running")["status"], "True");
        }
        assert_eq!(
            (life(&old), life(&new)),
            (first, second),
            "nor has the way back"
        );
        for vm in [&old, &new] {
            assert_eq!(
                space.pods.uids(&vm.name).len(),
                1,
                "no other pod was created for {}",
                vm.name
            );
            assert_eq!(
                vm.counts().await,
                Counts {
                    boot: 1,
                    shutdowns: 0
                }
            );
        }
        TODAY.install(space).await;
        old.set_state("Stopped").await;
        old.pod_gone(SHUTDOWN).await;
        old.set_state("Running").await;
        old.booted().await;
        let image = old.pod().unwrap()["spec"]["containers"][0]["image"].clone();
        assert_eq!(image, format!("localhost/vm-runner:{}", TODAY.tag));
        assert_eq!(
            hardware(&old).await,
            hardware_before,
            "with the present runner, the guest has the hardware of its first start"
        );
        assert_one_writer_at_a_time(space, 4);
    });
}

/// The names of the definitions in that directory of `.cache`.
fn definitions(dir: &str) -> String {
    let files = fs::read_dir(environment::repo().join(".cache").join(dir)).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.collect::<Vec<_>>().join(" ")
}

/// The paths of a schema's fields.
fn fields(schema: &Value, path: &str, into: &mut BTreeSet<String>) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                let inner = format!("{path}/{key}");
                if path.ends_with("/properties") {
                    into.insert(inner.clone());
                }
                fields(value, &inner, into);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, path, into)),
        _ => {}
    }
}

#[test]
fn definitions_only_gain_fields() {
    let of = |dir: &str| {
        let mut all = BTreeSet::new();
        let dir = environment::repo().join(dir);
        let files = fs::read_dir(&dir)
            .unwrap_or_else(|e| panic!("{}: {e}; run tests/cluster/previous", dir.display()));
        for file in files {
            let file = file.unwrap().path();
            if file.is_dir() {
                continue;
            }
            let text = fs::read_to_string(file).unwrap();
            fields(
                &serde_saphyr::from_str::<Value>(&text).unwrap(),
                "",
                &mut all,
            );
        }
        all
    };
    let before = of(".cache/previous/source/crds");
    assert!(before.len() > 100, "{before:?}");
    let lost: Vec<_> = before.difference(&of("crds")).cloned().collect();
    assert!(lost.is_empty(), "an older operator's objects lose {lost:?}");
}
