//! A namespace of the Java VM-Operator: its definition, and the objects that it creates. Its programs are not available
//! here. Sleeping shells stand in for its operator and its runners.

use super::super::harness::vm::Vm;
use super::super::harness::{Space, environment, eventually, kubectl};
use serde_json::{Value, json};
use std::fs;

/// The image that its definition sets in each VM.
const IMAGE: &str = "ghcr.io/mnlipp/org.jdrupes.vmoperator.runner.qemu-arch:latest";
/// The stand-in for its programs.
const STAND_IN: &str = "localhost/busybox:1";
/// Data behind the guest on the disks, from before the migration.
pub const ON_THE_DISK: &str = "written-long-ago-ok.";
/// The VM's UUID, in the file of its runner.
pub const UUID: &str = "2f3c1f9e-8e6e-4d6e-9f0e-0d5f6f2d9b11";
/// Its operator's configuration.
pub const CONFIG: &str = r#"
"/Manager":
  "/GuiHttpServer":
    "/ConsoleWeblet":
      "/WebConsole":
        "/LoginConlet": {users: [{name: admin, password: "$2b$05$x"}]}
  "/Controller":
    "/Reconciler":
      cpuOvercommit: 20
      loggingProperties: |
        handlers=java.util.logging.ConsoleHandler
        .level=CONFIG
"#;

/// Fields that its definition does not have.
const OURS: &[&str] = &[
    "spec/tolerations",
    "spec/topologySpreadConstraints",
    "spec/priorityClassName",
    "spec/runtimeClassName",
    "spec/imagePullSecrets",
    "spec/podLabels",
    "spec/podAnnotations",
    "spec/cloudInit/properties/userDataFrom",
    "spec/cloudInit/properties/networkConfigFrom",
    "spec/vm/properties/resetRequest",
    "spec/vm/properties/restartRequest",
    "status/restarts",
    "status/observedRestartRequest",
    "status/observedResetRequest",
    "status/observedGeneration",
    "status/podIP",
    "status/nodeName",
];

/// Its definition: that of this project without rules, without additional fields, and with atomic conditions.
fn definition() -> Value {
    let text = fs::read_to_string(environment::repo().join("crds/vms.vmoperator.jdrupes.org.yaml"))
        .unwrap();
    let mut crd: Value = serde_saphyr::from_str(&text).unwrap();
    let version = &mut crd["spec"]["versions"][0];
    version
        .as_object_mut()
        .unwrap()
        .remove("additionalPrinterColumns");
    let schema = &mut version["schema"]["openAPIV3Schema"];
    remove_rules(schema);
    for field in OURS {
        let path = format!("/properties/{}", field.replacen('/', "/properties/", 1));
        let (parent, name) = path.rsplit_once('/').unwrap();
        let removed = schema
            .pointer_mut(parent)
            .and_then(Value::as_object_mut)
            .and_then(|fields| fields.remove(name));
        assert!(removed.is_some(), "{field} is not in our definition");
    }
    crd
}

fn remove_rules(schema: &mut Value) {
    if let Some(fields) = schema.as_object_mut() {
        // The descriptions only take room.
        fields.retain(|key, value| key != "description" || !value.is_string());
        let keys = [
            "x-kubernetes-validations",
            "maxItems",
            "maxLength",
            "maxProperties",
            "x-kubernetes-list-map-keys",
        ];
        fields.retain(|key, value| {
            !(keys.contains(&key.as_str()) || key == "x-kubernetes-list-type" && value == "map")
        });
        fields.values_mut().for_each(remove_rules);
    }
}

/// Restores this project's definition when it is dropped.
struct OurDefinition;

impl Drop for OurDefinition {
    fn drop(&mut self) {
        let crds = environment::repo().join("crds").display().to_string();
        let args = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--filename",
            &crds,
        ];
        let ended = kubectl::command(&args).into_std().output();
        assert!(
            ended.is_ok_and(|output| output.status.success()),
            "the definitions cannot be applied again"
        );
    }
}

/// The Java VM-Operator in a namespace.
pub struct Reference<'a> {
    space: &'a Space,
    _ours_afterwards: OurDefinition,
}

/// An object of the namespace.
pub async fn get(space: &Space, kind: &str, name: &str) -> Value {
    serde_json::from_str(
        &space
            .kubectl(&["get", kind, name, "--output", "json"])
            .await,
    )
    .unwrap()
}

fn labels(vm: &str, component: Option<&str>) -> Value {
    let mut labels = json!({
        "app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": vm, "app.kubernetes.io/managed-by": "vm-operator",
    });
    if let Some(component) = component {
        labels["app.kubernetes.io/component"] = component.into();
    }
    labels
}

impl<'a> Reference<'a> {
    /// Replaces the definition by that of the Java VM-Operator, unless VMs of others would lose fields, and creates its
    /// operator in the namespace.
    pub async fn install(space: &'a Space) -> Self {
        let installed = Self {
            space,
            _ours_afterwards: OurDefinition,
        };
        installed.replace_definition(&definition()).await;
        let config = json!({"config.yaml": CONFIG, "logging.properties": ".level=FINE\n"});
        let config = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "vm-operator"}, "data": config});
        let account = json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "vm-runner"}});
        let claim = json!({
            "kind": "PersistentVolumeClaim", "apiVersion": "v1", "metadata": {"name": "vmop-image-repository"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        });
        for object in [config, account, claim, installed.deployment()] {
            installed.create(object).await;
        }
        space.operator_rolled_out().await;
        installed
    }

    async fn replace_definition(&self, definition: &Value) {
        let namespaces = "jsonpath={.items[*].metadata.namespace}";
        let vms = kubectl::try_run(&["get", "vms", "--all-namespaces", "--output", namespaces])
            .await
            .unwrap_or_default();
        if vms
            .split_whitespace()
            .any(|namespace| namespace != self.space.name)
        {
            eprintln!(
                "the definition stays as it is: there are VMs of others ({vms}), which would lose fields"
            );
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), definition.to_string()).unwrap();
        let path = file.path().display().to_string();
        // As created by plain `kubectl apply`.
        let as_applied = [
            "--save-config",
            "--field-manager",
            "kubectl-client-side-apply",
        ];
        kubectl::run(&[&["replace", "--filename", &path], &as_applied[..]].concat()).await;
    }

    async fn create(&self, mut object: Value) {
        object["metadata"]["namespace"] = self.space.name.clone().into();
        kubectl::create(&object).await.unwrap();
    }

    /// Its operator, which only sleeps.
    fn deployment(&self) -> Value {
        let labels = json!({"app.kubernetes.io/name": "vm-operator", "app.kubernetes.io/component": "manager"});
        let container = json!({
            "name": "vm-operator", "image": STAND_IN, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "100000"],
            "env": [{"name": "JAVA_OPTS", "value": "-Xmx128m"}],
        });
        let pod = json!({"containers": [container], "terminationGracePeriodSeconds": 1});
        json!({
            "kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "vm-operator", "labels": labels},
            "spec": {
                "replicas": 1, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        })
    }

    /// A VM with all objects that the Java VM-Operator creates for it, and a running pod.
    pub async fn vm(&self, name: &str) -> Vm<'a> {
        let space = self.space;
        let of_disk = json!({"vm-operator.test/disk": format!("{}-{name}", space.name)});
        let disk = space.tiny_disk(name, &of_disk).await;
        let template = json!({"metadata": {"name": "system"}, "spec": {
            "storageClassName": "", "selector": {"matchLabels": of_disk}, "volumeMode": "Block",
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}},
        }});
        let claim = |name: String, spec: &Value, vm: &str| {
            json!({
                "kind": "PersistentVolumeClaim", "apiVersion": "v1", "spec": spec,
                "metadata": {"name": name, "labels": labels(vm, None)},
            })
        };
        self.create(json!({
            "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "metadata": {"name": name},
            "spec": {
                "image": {"source": IMAGE}, "cloudInit": {"userData": {"hostname": "guest"}}, "runnerTemplate": {"source": "own.ftl.yaml"},
                "resources": {"requests": {"cpu": "100m", "memory": "320Mi"}},
                "vm": {
                    "state": "Running", "firmware": "bios", "maximumRam": "256Mi", "powerdownTimeout": 20,
                    "networks": [{"user": {}}], "disks": [{"volumeClaimTemplate": template}],
                },
            },
        }))
        .await;
        let vm = get(space, "vm", name).await;
        let owner = json!([{
            "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "name": name, "uid": vm["metadata"]["uid"],
            "controller": false, "blockOwnerDeletion": true,
        }]);
        self.create(claim(
            format!("{name}-system-disk"),
            &template["spec"],
            name,
        ))
        .await;
        let data = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}});
        self.create(claim(format!("{name}-runner-data"), &data, name))
            .await;
        let config = format!(
            "\"/Runner\":\n  dataDir: /var/local/vm-data\n  cloudInit:\n    metaData: {{instance-id: v17, local-hostname: \
             {name}}}\n    userData: {{hostname: guest}}\n  vm: {{name: {name}}}\n"
        );
        self.create(json!({
            "kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": name, "labels": labels(name, None), "ownerReferences": owner},
            "data": {"config.yaml": config, "logging.properties": ".level=CONFIG\n"},
        }))
        .await;
        let mut of_secret = labels(name, Some("display-secret"));
        of_secret
            .as_object_mut()
            .unwrap()
            .remove("app.kubernetes.io/managed-by");
        self.create(json!({
            "kind": "Secret", "apiVersion": "v1",
            "metadata": {"name": format!("{name}-display-secret"), "labels": of_secret},
            "stringData": {"display-password": "secret", "password-expiry": "never"},
        }))
        .await;
        self.create(self.pod(name, &owner)).await;
        let vm = Vm {
            space,
            name: name.to_owned(),
            disk,
        };
        eventually(&format!("the stand-in of {name} runs"), 60, async || {
            let pod = vm.pod().unwrap_or_default();
            if pod["status"]["containerStatuses"][0]["ready"] == true {
                Ok(())
            } else {
                Err(format!("{pod:#}"))
            }
        })
        .await;
        self.writes_status(name).await;
        vm
    }

    /// The pod: privileged, in the host network, always restarted. Its program writes the same files as the runner of
    /// the Java VM-Operator.
    fn pod(&self, name: &str, owner: &Value) -> Value {
        let script = format!(
            "[ -e /var/local/vm-data/uuid.txt ] || echo {UUID} >/var/local/vm-data/uuid.txt; \
             printf {ON_THE_DISK} | dd of=/dev/system-disk bs=512 seek=97256 conv=notrunc,fsync; trap exit TERM; \
             while :; do sleep 1; done"
        );
        let container = json!({
            "name": name, "image": STAND_IN, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script],
            "securityContext": {"privileged": true}, "resources": {"requests": {"cpu": "100m", "memory": "320Mi"}},
            "volumeMounts": [
                {"name": "config", "mountPath": "/etc/opt/vmrunner"},
                {"name": "runner-data", "mountPath": "/var/local/vm-data"},
                {"name": "vmop-image-repository", "mountPath": "/var/local/vmop-image-repository"},
            ],
            "volumeDevices": [{"name": "system-disk", "devicePath": "/dev/system-disk"}],
        });
        let claim = |volume: &str, claim: String| json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}});
        let sources = json!([{"configMap": {"name": name}}, {"secret": {"name": format!("{name}-display-secret")}}]);
        json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "name": name, "labels": labels(name, Some("vm-runner")), "ownerReferences": owner,
                "annotations": {"vmrunner.jdrupes.org/cmVersion": "1", "vmoperator.jdrupes.org/version": "4.0.3"},
            },
            "spec": {
                "containers": [container], "hostNetwork": true, "restartPolicy": "Always", "serviceAccountName": "vm-runner",
                "terminationGracePeriodSeconds": 25,
                "volumes": [
                    {"name": "config", "projected": {"sources": sources}},
                    claim("runner-data", format!("{name}-runner-data")),
                    claim("vmop-image-repository", "vmop-image-repository".to_owned()),
                    claim("system-disk", format!("{name}-system-disk")),
                ],
            },
        })
    }

    /// The status write of its runner: the whole status, based on an older read state.
    pub async fn writes_status(&self, name: &str) {
        let condition = |type_: &str, status: &str, reason: &str| {
            json!({
                "type": type_, "status": status, "reason": reason, "message": "", "observedGeneration": 1,
                "lastTransitionTime": "2026-01-01T00:00:01Z",
            })
        };
        let status = json!({
            "runnerVersion": "4.0.3", "cpus": 1, "ram": "256Mi", "displayPasswordSerial": 1, "consoleClient": "",
            "assignment": {}, "conditions": [
                condition("Running", "True", "VmStarted"), condition("Booted", "False", "VmStarted"),
                condition("VmopAgentConnected", "False", "VmStopped"), condition("UserLoggedIn", "False", "NotRequested"),
                condition("ConsoleConnected", "False", "VmStopped"),
            ],
        });
        let patch = json!([{"op": "replace", "path": "/status", "value": status}]).to_string();
        self.space
            .kubectl(&[
                "patch",
                "vm",
                name,
                "--subresource",
                "status",
                "--type",
                "json",
                "--patch",
                &patch,
            ])
            .await;
    }

    /// Applies its manifests and its definition again.
    pub async fn install_again(&self) {
        self.replace_definition(&definition()).await;
        self.create(self.deployment()).await;
        self.space
            .kubectl(&[
                "label",
                "namespace",
                &self.space.name,
                "pod-security.kubernetes.io/enforce-",
            ])
            .await;
        self.space.operator_rolled_out().await;
    }
}
