//! A test's namespace with its operator: created from the project's own manifests, printed if the test fails, removed.

use super::audit::AuditLog;
use super::disk::Disk;
use super::watched::Watched;
use super::{environment, eventually, kubectl};
use futures::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use vm_operator::api::VirtualMachine;

/// The CPU overcommit of these tests, with which their VMs fit beside a demo.
pub const CPU_OVERCOMMIT: u32 = 20;

/// A namespace with an operator.
pub struct Space {
    pub name: String,
    /// The history of its VMs.
    pub vms: Watched,
    /// The history of its pods.
    pub pods: Watched,
    /// The requests since its creation.
    pub audit: AuditLog,
    /// The disks of its VMs.
    pub(super) disks: RefCell<Vec<Rc<Disk>>>,
}

/// Runs a test with at most that many concurrent VMs.
pub fn e2e(vms: u32, test: impl AsyncFnOnce(&Space)) {
    with_spaces(vms, &["local"], &json!({}), async |spaces| {
        test(&spaces[0]).await
    });
}

/// The same with the namespace of that overlay and those settings of the reconciler.
pub fn e2e_with(vms: u32, overlay: &str, settings: Value, test: impl AsyncFnOnce(&Space)) {
    with_spaces(vms, &[overlay], &settings, async |spaces| {
        test(&spaces[0]).await
    });
}

/// Runs a test with two namespaces and their operators, with one VM each.
pub fn e2e_in_two(test: impl AsyncFnOnce(&Space, &Space)) {
    with_spaces(2, &["local", "local"], &json!({}), async |spaces| {
        test(&spaces[0], &spaces[1]).await
    });
}

/// Runs a test with at most that many concurrent VMs in the namespace of the overlay `dev`, which has no operator.
pub fn e2e_without_operator(vms: u32, test: impl AsyncFnOnce(&Space)) {
    with_spaces(vms, &["dev"], &json!({}), async |spaces| {
        test(&spaces[0]).await
    });
}

/// Runs a test with at most that many concurrent VMs in an empty namespace.
pub fn e2e_in_an_empty_namespace(vms: u32, test: impl AsyncFnOnce(&Space)) {
    with_spaces(vms, &[EMPTY], &json!({}), async |spaces| {
        test(&spaces[0]).await
    });
}

/// Stands for no overlay.
const EMPTY: &str = "";

fn with_spaces(vms: u32, overlays: &[&str], settings: &Value, test: impl AsyncFnOnce(&[Space])) {
    environment::ready();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let _slots = environment::FREE_SLOTS.acquire_many(vms).await.unwrap();
        let began = Instant::now();
        let mut spaces = Vec::new();
        for overlay in overlays {
            spaces.push(Space::open(overlay, settings).await);
        }
        let mut result = AssertUnwindSafe(test(&spaces)).catch_unwind().await;
        for space in spaces {
            if result.is_err() {
                space.print_state().await;
            }
            let closed = AssertUnwindSafe(space.close()).catch_unwind().await;
            result = result.and(closed);
        }
        // Not by eprintln, which is shown only for failed tests.
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        let _ = writeln!(
            std::io::stderr(),
            "{name}: {:.0} s",
            began.elapsed().as_secs_f64()
        );
        result.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

/// A client for the local cluster.
async fn client() -> Client {
    let kubeconfig = Kubeconfig::read_from(environment::kubeconfig()).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    // The cluster is on this machine, so proxies are ignored.
    config.proxy_url = None;
    Client::try_from(config).unwrap()
}

impl Space {
    /// Creates the namespace, as `kubectl apply -k` of a user does.
    async fn open(overlay: &str, settings: &Value) -> Self {
        static OPENED: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "{}{:x}-{}",
            environment::PREFIX,
            std::process::id(),
            OPENED.fetch_add(1, Ordering::Relaxed)
        );
        let client = client().await;
        let space = Self {
            vms: Watched::new::<VirtualMachine>(&client, &name),
            pods: Watched::new::<Pod>(&client, &name),
            audit: AuditLog::from_now(),
            disks: RefCell::default(),
            name,
        };
        let dir = space.overlay_dir();
        fs::create_dir_all(&dir).unwrap();
        kubectl::run(&["create", "namespace", &space.name]).await;
        if overlay == EMPTY {
            return space;
        }
        let standard = if overlay == "privileged" {
            "privileged"
        } else {
            "restricted"
        };
        let label = format!("pod-security.kubernetes.io/enforce={standard}");
        kubectl::run(&["label", "namespace", &space.name, &label]).await;
        let config = Self::config(settings).to_string();
        let patch = json!([{"op": "replace", "path": "/data/config.yaml", "value": config}]);
        let kustomization = json!({
            "namespace": space.name,
            "resources": [format!("../../../deploy/overlays/{overlay}")],
            "patches": [{"target": {"kind": "ConfigMap", "name": "vm-operator"}, "patch": patch.to_string()}],
        });
        fs::write(dir.join("kustomization.yaml"), kustomization.to_string()).unwrap();
        kubectl::run(&["apply", "--kustomize", &dir.display().to_string()]).await;
        space
    }

    /// The operator's configuration file with those settings of the reconciler.
    pub fn config(settings: &Value) -> Value {
        let mut settings = settings.clone();
        settings["cpuOvercommit"] = json!(CPU_OVERCOMMIT);
        json!({"/Manager": {"/Controller": {"/Reconciler": settings}}})
    }

    /// The directory of the namespace's manifests while the test runs.
    pub fn overlay_dir(&self) -> PathBuf {
        environment::overlays_dir().join(&self.name)
    }

    /// Runs kubectl in the namespace. It must succeed.
    pub async fn kubectl(&self, args: &[&str]) -> String {
        kubectl::run(&[&["--namespace", &self.name], args].concat()).await
    }

    /// Waits until the operator's Deployment is rolled out.
    pub async fn operator_rolled_out(&self) {
        self.kubectl(&[
            "rollout",
            "status",
            "deployment/vm-operator",
            "--timeout",
            "60s",
        ])
        .await;
    }

    /// Replaces the operator's pod and waits until the new one is ready.
    pub async fn restart_operator(&self) {
        self.kubectl(&["rollout", "restart", "deployment/vm-operator"])
            .await;
        self.operator_rolled_out().await;
    }

    /// Runs kubectl in the namespace.
    ///
    /// # Errors
    /// The error output of kubectl.
    pub async fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        kubectl::try_run(&[&["--namespace", &self.name], args].concat()).await
    }

    /// Waits until an operator pod with another UID than these is ready, and returns the pod.
    pub async fn operator_other_than(&self, uids: &[String]) -> Value {
        eventually("the operator is ready", 60, async || {
            let pods = self.pods.all().into_iter();
            let operators = pods
                .filter(|pod| pod["metadata"]["labels"]["app.kubernetes.io/name"] == "vm-operator");
            let mut new =
                operators.filter(|pod| !uids.iter().any(|uid| pod["metadata"]["uid"] == **uid));
            let ready = |pod: &Value| {
                let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
                conditions
                    .into_iter()
                    .any(|c| c["type"] == "Ready" && c["status"] == "True")
            };
            new.find(ready)
                .ok_or_else(|| "no such pod is ready".to_owned())
        })
        .await
    }

    /// The operator's pod, once it is ready.
    pub async fn operator(&self) -> Value {
        self.operator_other_than(&[]).await
    }

    /// The number of reconciles in the metrics of the operator in that pod.
    ///
    /// # Errors
    /// It does not respond.
    pub async fn reconciles(&self, pod: &str) -> Result<u64, String> {
        let path = format!(
            "/api/v1/namespaces/{}/pods/{pod}:8081/proxy/metrics",
            self.name
        );
        let metrics = self.try_kubectl(&["get", "--raw", &path]).await?;
        let counted = metrics
            .lines()
            .filter(|line| line.starts_with("vm_operator_reconciles_total"));
        Ok(counted
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok())
            .sum())
    }

    /// Gives the operator those settings of the reconciler, and waits until they are in force. The kubelet takes up to
    /// 90 s to write the file, and the operator reads it every 5 s.
    pub async fn configure(&self, settings: &Value) {
        self.operator().await;
        let count_lines = async || {
            let log = self
                .kubectl(&[
                    "logs",
                    "--selector",
                    "app.kubernetes.io/name=vm-operator",
                    "--tail=-1",
                ])
                .await;
            log.matches("the configuration has changed; the controllers start again with the new configuration")
                .count()
        };
        let before = count_lines().await;
        let data = json!({"data": {"config.yaml": Self::config(settings).to_string()}}).to_string();
        self.kubectl(&[
            "patch",
            "configmap",
            "vm-operator",
            "--type",
            "merge",
            "--patch",
            &data,
        ])
        .await;
        eventually("the operator has the new settings", 120, async || {
            // The kubelet refreshes the volumes of a changed pod; without a change, once a minute.
            let look = format!("look={}", Timestamp::now().as_millisecond());
            let pods = [
                "annotate",
                "pods",
                "--selector",
                "app.kubernetes.io/name=vm-operator",
                "--overwrite",
                &look,
            ];
            self.kubectl(&pods).await;
            let now = count_lines().await;
            if now > before {
                Ok(())
            } else {
                Err(format!("it was logged {now} times"))
            }
        })
        .await;
        // The operator reads its lists again.
        self.operator().await;
    }

    /// Prints the objects and logs of the namespace of a failed test.
    async fn print_state(&self) {
        eprintln!("---- namespace {}", self.name);
        let looks: [&[&str]; 4] = [
            &[
                "get",
                "vms,pods,persistentvolumeclaims,services",
                "--output",
                "wide",
            ],
            &["describe", "vms"],
            &["get", "events", "--sort-by", ".metadata.creationTimestamp"],
            &[
                "logs",
                "--selector",
                "app.kubernetes.io/name=vm-operator",
                "--tail",
                "100",
            ],
        ];
        for args in looks {
            eprintln!(
                "---- kubectl {}\n{}",
                args.join(" "),
                self.try_kubectl(args).await.unwrap_or_else(|e| e)
            );
        }
        for pod in self
            .pods
            .all()
            .iter()
            .filter(|pod| pod["metadata"]["labels"]["app.kubernetes.io/name"] == "vm-runner")
        {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let looks: [&[&str]; 3] = [
                &["get", "pod", name, "--output", "jsonpath={.status}"],
                &["logs", name, "--tail", "100"],
                &["exec", name, "--", "vm-runner", "console", "--log"],
            ];
            for args in looks {
                let output = self.try_kubectl(args).await.unwrap_or_else(|e| e);
                let tail = output
                    .char_indices()
                    .rev()
                    .nth(6000)
                    .map_or(0, |(start, _)| start);
                eprintln!("---- kubectl {}\n{}", args.join(" "), &output[tail..]);
            }
        }
    }

    /// Removes the namespace. Its VMs are shut down first, because the next test needs the machine.
    async fn close(self) {
        self.kubectl(&["delete", "vms", "--all", "--wait=false"])
            .await;
        eventually("the VMs' pods end with their VMs", 180, async || {
            let pods = self.pods.all().into_iter();
            let runners = pods
                .filter(|pod| pod["metadata"]["labels"]["app.kubernetes.io/name"] == "vm-runner");
            let names: Vec<String> = runners
                .map(|pod| pod["metadata"]["name"].to_string())
                .collect();
            if names.is_empty() {
                Ok(())
            } else {
                Err(names.join(", "))
            }
        })
        .await;
        kubectl::run(&["delete", "namespace", &self.name, "--wait=false"]).await;
        for disk in self.disks.take() {
            disk.remove().await;
        }
        drop(fs::remove_dir_all(self.overlay_dir()));
    }
}
