//! A VM with the tiny guest, and waits for its states.

use super::disk::{Counts, Disk};
use super::{Space, console, eventually, kubectl};
use serde_json::{Value, json};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The time limit in seconds for a guest's boot. Four guests without hardware acceleration share the machine with all
/// other processes. The limit is ten times the usual time.
pub const BOOT: u64 = 180;
/// The time limit in seconds until a guest has shut down and its pod is deleted.
pub const SHUTDOWN: u64 = 120;

/// A VM of a test.
pub struct Vm<'a> {
    /// Its namespace.
    pub space: &'a Space,
    /// Its name, which is also that of its pod.
    pub name: String,
    pub disk: Rc<Disk>,
}

/// A VM with the tiny guest on a volume that its claim selects.
pub fn tiny(space: &Space, name: &str, changes: &Value) -> Value {
    let mut vm = json!({
        "apiVersion": "vmoperator.jdrupes.org/v1",
        "kind": "VirtualMachine",
        "metadata": {"namespace": space.name, "name": name},
        "spec": {
            // Small, so that it fits beside a demo.
            "resources": {"requests": {"cpu": "100m", "memory": "320Mi"}},
            "vm": {
                "state": "Running",
                "firmware": "bios",
                "maximumRam": "256Mi",
                "powerdownTimeout": 20,
                "networks": [{"user": {}}],
                "disks": [{"volumeClaimTemplate": {"metadata": {"name": "system"}, "spec": {
                    "storageClassName": "",
                    "selector": {"matchLabels": disk_labels(space, name)},
                }}}],
            },
        },
    });
    merge(&mut vm, changes);
    vm
}

pub fn disk_labels(space: &Space, name: &str) -> Value {
    json!({"vm-operator.test/disk": format!("{}-{name}", space.name)})
}

/// Applies a JSON merge patch.
fn merge(target: &mut Value, changes: &Value) {
    let Value::Object(changes) = changes else {
        *target = changes.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in changes {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

/// The condition of that type.
pub fn condition(vm: &Value, type_: &str) -> Value {
    let conditions = vm["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .into_iter()
        .find(|condition| condition["type"] == type_)
        .cloned()
        .unwrap_or_default()
}

/// Reason of the condition `Ready`.
pub fn ready_reason(vm: &Value) -> String {
    condition(vm, "Ready")["reason"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// The object's UID.
pub fn uid(object: &Value) -> String {
    object["metadata"]["uid"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

impl Space {
    /// Creates a disk with the tiny guest for the claim of that VM's first disk, `<vm>-system-disk`.
    pub async fn tiny_disk(&self, vm: &str, labels: &Value) -> Rc<Disk> {
        let disk = Rc::new(Disk::tiny(&format!("{}-{vm}", self.name)));
        self.disks.borrow_mut().push(disk.clone());
        disk.publish(labels, &self.name, &format!("{vm}-system-disk"))
            .await;
        disk
    }

    /// Creates a VM with the tiny guest, changed by a merge patch.
    pub async fn create(&self, name: &str, changes: Value) -> Vm<'_> {
        let disk = self.tiny_disk(name, &disk_labels(self, name)).await;
        kubectl::create(&tiny(self, name, &changes)).await.unwrap();
        Vm {
            space: self,
            name: name.to_owned(),
            disk,
        }
    }
}

impl Space {
    /// Creates a VM with the boot sector, changed by a merge patch.
    pub async fn create_boot_sector(&self, name: &str, changes: Value) -> Vm<'_> {
        let disk = self.tiny_disk(name, &disk_labels(self, name)).await;
        disk.write_boot_sector();
        let mut vm = tiny(self, name, &changes);
        // Some paravirtual KVMs report capabilities that they reject: QEMU then aborts at its start.
        vm["spec"]["vm"]["cpuModel"] = "host,-arch-capabilities".into();
        kubectl::create(&vm).await.unwrap();
        Vm {
            space: self,
            name: name.to_owned(),
            disk,
        }
    }
}

impl Vm<'_> {
    /// The present object.
    pub fn now(&self) -> Value {
        self.space.vms.get(&self.name).unwrap_or_default()
    }

    /// Waits until the object fulfils the condition.
    pub async fn until(&self, what: &str, seconds: u64, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("VM {}: {what}", self.name), seconds, async || {
            let vm = self.now();
            if holds(&vm) {
                Ok(vm)
            } else {
                Err(format!("{:#}", vm["status"]))
            }
        })
        .await
    }

    /// Waits until `Ready` has that reason for the present spec.
    pub async fn wait_for_reason(&self, reason: &str, seconds: u64) -> Value {
        let holds = |vm: &Value| {
            let ready = condition(vm, "Ready");
            ready["reason"] == reason && ready["observedGeneration"] == vm["metadata"]["generation"]
        };
        self.until(&format!("becomes {reason}"), seconds, holds)
            .await
    }

    /// Waits until the guest runs in the present pod and its agent has responded.
    pub async fn booted(&self) -> Value {
        let holds = |vm: &Value| {
            let pod = self.pod().unwrap_or_default();
            ready_reason(vm) == "Running"
                && condition(vm, "Booted")["status"] == "True"
                && pod["metadata"]["deletionTimestamp"].is_null()
                && pod["status"]["podIP"].is_string()
                && vm["status"]["podIP"] == pod["status"]["podIP"]
        };
        self.until("the guest is up", BOOT, holds).await
    }

    /// The pod, if it exists.
    pub fn pod(&self) -> Option<Value> {
        self.space.pods.get(&self.name)
    }

    /// UID of the pod, which must exist.
    pub fn pod_uid(&self) -> String {
        self.pod().map(|pod| uid(&pod)).expect("the VM has a pod")
    }

    /// Waits for another pod than that one. Returns its UID.
    pub async fn pod_after(&self, old: &str, seconds: u64) -> String {
        eventually(
            &format!("VM {}: a new pod", self.name),
            seconds,
            async || {
                let present = self.pod().map(|pod| uid(&pod));
                present
                    .filter(|uid| uid != old)
                    .ok_or_else(|| format!("{:#}", self.now()["status"]))
            },
        )
        .await
    }

    /// Waits until there is no pod.
    pub async fn pod_gone(&self, seconds: u64) {
        eventually(
            &format!("VM {}: the pod goes", self.name),
            seconds,
            async || {
                self.pod()
                    .map_or(Ok(()), |pod| Err(format!("{:#}", pod["status"])))
            },
        )
        .await;
    }

    /// Patches the object.
    pub async fn patch(&self, changes: &Value) {
        let changes = changes.to_string();
        self.space
            .kubectl(&[
                "patch", "vm", &self.name, "--type", "merge", "--patch", &changes,
            ])
            .await;
    }

    /// Waits until the operator has processed all events so far and `Ready` has that reason. For this it creates
    /// another generation of the spec, by a field without effect.
    pub async fn processed(&self, reason: &str) -> Value {
        static PROCESSED: AtomicU32 = AtomicU32::new(0);
        let proxy = format!(
            "http://processed-{}",
            PROCESSED.fetch_add(1, Ordering::Relaxed)
        );
        self.patch(&json!({"spec": {"vm": {"display": {"spice": {"proxyUrl": proxy}}}}}))
            .await;
        self.wait_for_reason(reason, BOOT).await
    }

    /// Sets whether the VM should run.
    pub async fn set_state(&self, state: &str) {
        self.patch(&json!({"spec": {"vm": {"state": state}}})).await;
    }

    /// Waits until the guest reports on its console that it has booted. Returns its counts.
    pub async fn counts(&self) -> Counts {
        eventually(
            &format!("VM {}: the guest reports that it has booted", self.name),
            BOOT,
            async || {
                let log = console::log(self.space, &self.name).await?;
                let counts = log
                    .rsplit_once("TINY boot=")
                    .filter(|(_, counts)| counts.contains(" ready"));
                counts
                    .and_then(|(_, counts)| Counts::parse(&format!("boot={counts}")))
                    .ok_or(log)
            },
        )
        .await
    }

    /// The output of a shell command in the guest, which must have booted.
    pub async fn guest(&self, script: &str) -> String {
        console::shell(self.space, &self.name, script)
            .await
            .unwrap_or_else(|e| panic!("{script}: {e}"))
    }
}
