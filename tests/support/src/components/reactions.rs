//! The reactions of the simulated components to changes of objects.

use super::Cluster;
use http::Request;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::time::Duration;
use vm_operator::api::vm::conditions;
use vm_operator::api::vm::names;

/// Finalizer of an object whose children are deleted before it.
const FOREGROUND: &str = "foregroundDeletion";

fn finalizers(object: &Value) -> Vec<&str> {
    let finalizers = object["metadata"]["finalizers"].as_array().into_iter();
    finalizers.flatten().filter_map(Value::as_str).collect()
}

impl Cluster {
    /// The reaction of the simulated components to a change. A failed request conflicts with another change, which has
    /// its own reaction.
    pub(super) async fn react(self, kind: &'static str, deleted: bool, object: Value) {
        let namespace = object["metadata"]["namespace"].as_str();
        let Some(namespace) = self.only.as_deref().or(namespace).map(ToOwned::to_owned) else {
            return;
        };
        if deleted {
            if self.kind(kind).is_owner {
                self.collect_garbage(&namespace).await;
            }
            return;
        }
        if object["metadata"]["deletionTimestamp"].is_string()
            && finalizers(&object).contains(&FOREGROUND)
        {
            self.delete_children(&namespace, kind, &object).await;
        }
        let owners = object["metadata"]["ownerReferences"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        if owners.iter().any(|owner| {
            self.recorded
                .lock()
                .unwrap()
                .dead
                .contains(owner["uid"].as_str().unwrap_or_default())
        }) {
            self.collect_garbage(&namespace).await;
        }
        match kind {
            "PersistentVolumeClaim" => self.bind_volume(&namespace, &object).await,
            "Pod" => self.run_pod(&namespace, &object).await,
            "Deployment" => {
                let name = object["metadata"]["name"].as_str().unwrap();
                self.run_deployment(&namespace, name).await;
            }
            _ => {}
        }
    }

    async fn collect_garbage(&self, namespace: &str) {
        for ((kind, _), object) in self.present(namespace) {
            let owners = object["metadata"]["ownerReferences"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let is_dead = |uid: &Value| {
                self.recorded
                    .lock()
                    .unwrap()
                    .dead
                    .contains(uid.as_str().unwrap_or_default())
            };
            if !owners.is_empty() && owners.iter().all(|owner| is_dead(&owner["uid"])) {
                let namespace = object["metadata"]["namespace"]
                    .as_str()
                    .unwrap_or(namespace);
                let _ = self.delete(kind, namespace, &object, 0).await;
            }
        }
    }

    /// Deletes the children of an object that is deleted in the foreground, and then removes its finalizer.
    async fn delete_children(&self, namespace: &str, kind: &str, owner: &Value) {
        let uid = &owner["metadata"]["uid"];
        let is_child = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            owners
                .into_iter()
                .flatten()
                .any(|owner| owner["uid"] == *uid)
        };
        for ((kind, _), object) in self.present(namespace) {
            if is_child(&object) {
                let within = object["metadata"]["namespace"].as_str();
                let _ = self
                    .delete(kind, within.unwrap_or(namespace), &object, 0)
                    .await;
            }
        }
        let mut left = finalizers(owner);
        left.retain(|finalizer| *finalizer != FOREGROUND);
        let version = &owner["metadata"]["resourceVersion"];
        let free = json!({"metadata": {"finalizers": left, "resourceVersion": version}});
        let name = owner["metadata"]["name"].as_str().unwrap();
        let _ = self.merge(kind, namespace, name, "", free).await;
    }

    async fn bind_volume(&self, namespace: &str, claim: &Value) {
        if claim["metadata"]["deletionTimestamp"].is_string() {
            return self.remove_claim(namespace, claim).await;
        }
        let wanted = &claim["spec"]["resources"]["requests"]["storage"];
        if claim["status"]["phase"] == "Bound" && claim["status"]["capacity"]["storage"] == *wanted
        {
            return;
        }
        let status = json!({"phase": "Bound", "capacity": {"storage": wanted}, "accessModes": claim["spec"]["accessModes"]});
        let name = claim["metadata"]["name"].as_str().unwrap();
        let _ = self
            .merge(
                "PersistentVolumeClaim",
                namespace,
                name,
                "status",
                json!({"status": status}),
            )
            .await;
    }

    /// Removes a terminating PVC that no pod uses any more.
    async fn remove_claim(&self, namespace: &str, claim: &Value) {
        let name = &claim["metadata"]["name"];
        let is_used = || {
            let seen = self.recorded.lock().unwrap();
            let present = seen.present.get(namespace).into_iter().flatten();
            let pods = present.filter(|((kind, _), _)| *kind == "Pod");
            let mut volumes =
                pods.flat_map(|(_, pod)| pod["spec"]["volumes"].as_array().into_iter().flatten());
            volumes.any(|volume| volume["persistentVolumeClaim"]["claimName"] == *name)
        };
        for _ in 0..3000 {
            if !is_used() {
                let free =
                    json!({"metadata": {"uid": claim["metadata"]["uid"], "finalizers": null}});
                let _ = self
                    .merge(
                        "PersistentVolumeClaim",
                        namespace,
                        name.as_str().unwrap(),
                        "",
                        free,
                    )
                    .await;
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Replaces the pod of the Deployment if the annotations of its template have changed, and reports that all its pods run.
    async fn run_deployment(&self, namespace: &str, name: &str) {
        // The record of the objects follows their changes.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let Some(deployment) = self.get(namespace, "Deployment", name) else {
            return;
        };
        let template = &deployment["spec"]["template"];
        let annotations = &template["metadata"]["annotations"];
        let is_of = |pod: &Value| {
            pod["metadata"]["ownerReferences"][0]["uid"] == deployment["metadata"]["uid"]
        };
        let pods = self.present(namespace).into_iter();
        let pods = pods.filter(|((kind, _), pod)| *kind == "Pod" && is_of(pod));
        let (present, old): (Vec<_>, Vec<_>) = pods
            .map(|(_, pod)| pod)
            .partition(|pod| pod["metadata"]["annotations"] == *annotations);
        if present.is_empty() {
            let owner = json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": deployment["metadata"]["uid"], "controller": true,
            });
            let values = annotations.as_object().into_iter().flatten();
            let values: String = values.filter_map(|(_, value)| value.as_str()).collect();
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": format!("{name}-{values}"), "labels": template["metadata"]["labels"], "annotations": annotations,
                    "ownerReferences": [owner],
                },
                "spec": {"containers": [{"name": "main", "image": "main"}]},
            });
            let pod = serde_json::from_value(pod).unwrap();
            let pods = self.api("Pod", Some(namespace));
            // Another reaction may have created it.
            let _ = pods.create(&PostParams::default(), &pod).await;
        }
        for pod in old
            .iter()
            .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        {
            let _ = self.delete("Pod", namespace, pod, 1).await;
        }
        let generation = &deployment["metadata"]["generation"];
        if deployment["status"]["observedGeneration"] == *generation {
            return;
        }
        let replicas = &deployment["spec"]["replicas"];
        let status = json!({
            "observedGeneration": generation, "replicas": replicas, "updatedReplicas": replicas, "availableReplicas": replicas,
        });
        let status = json!({"status": status});
        let _ = self
            .merge("Deployment", namespace, name, "status", status)
            .await;
    }

    async fn run_pod(&self, namespace: &str, pod: &Value) {
        let name = pod["metadata"]["name"].as_str().unwrap();
        if pod["metadata"]["deletionTimestamp"].is_string() {
            // The kubelet after a shutdown of the guest. It retries until the pod is gone.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let mut last = Ok(());
            for _ in 0..60 {
                last = self.delete("Pod", namespace, pod, 0).await;
                tokio::time::sleep(Duration::from_millis(500)).await;
                let present = self.get(namespace, "Pod", name);
                if present
                    .is_none_or(|present| present["metadata"]["uid"] != pod["metadata"]["uid"])
                {
                    return;
                }
            }
            let failure = format!("the played kubelet cannot remove the pod: {last:?}");
            self.recorded
                .lock()
                .unwrap()
                .failures
                .entry(namespace.to_owned())
                .or_default()
                .push(failure);
            return;
        }
        if pod["spec"]["nodeName"].is_null() {
            if !self.has_claims(namespace, pod).await {
                return;
            }
            let binding = json!({
                "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "uid": pod["metadata"]["uid"]},
                "target": {"apiVersion": "v1", "kind": "Node", "name": "node1"},
            });
            let request = Request::post(format!(
                "/api/v1/namespaces/{namespace}/pods/{name}/binding"
            ));
            let request = request
                .header("Content-Type", "application/json")
                .body(binding.to_string().into_bytes());
            let _ = self.client.request::<Value>(request.unwrap()).await;
        } else if pod["status"]["phase"] == "Pending" {
            // A downloaded or imported image exists immediately.
            let fetches = pod["metadata"]["labels"]["app.kubernetes.io/name"] == names::APP_FETCH
                || pod["metadata"]["annotations"][names::ANNOTATION_IMPORTS].is_string();
            let phase = if fetches { "Succeeded" } else { "Running" };
            let state = match fetches {
                true => {
                    let time = "2026-01-01T00:00:00Z";
                    let message = r#"{"reason":"Fetched","message":"","bytes":1}"#;
                    json!({"terminated": {"exitCode": 0, "startedAt": time, "finishedAt": time, "message": message}})
                }
                false => json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}),
            };
            let container = json!({
                "name": pod["spec"]["containers"][0]["name"], "image": "i", "imageID": "i", "ready": true, "restartCount": 0, "state": state,
                "resources": pod["spec"]["containers"][0]["resources"],
            });
            let ready = json!({"type": "Ready", "status": "True", "reason": "Ready"});
            let status =
                json!({"phase": phase, "conditions": [ready], "containerStatuses": [container]});
            let metadata = json!({"uid": pod["metadata"]["uid"]});
            let _ = self
                .merge(
                    "Pod",
                    namespace,
                    name,
                    "status",
                    json!({"metadata": metadata, "status": status}),
                )
                .await;
        } else if pod["status"]["phase"] == "Running" {
            let wanted = &pod["spec"]["containers"][0]["resources"];
            let mut container = pod["status"]["containerStatuses"][0].clone();
            if container["resources"] != *wanted {
                container["resources"] = wanted.clone();
                let status = json!({"status": {"containerStatuses": [container]}});
                let _ = self.merge("Pod", namespace, name, "status", status).await;
            }
            self.report_as_runner(namespace, name, pod).await;
        }
    }

    /// Waits until all PVCs of the pod exist and none is being deleted. Returns false if the pod is gone before.
    async fn has_claims(&self, namespace: &str, pod: &Value) -> bool {
        let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
        let names = volumes.filter_map(|it| it["persistentVolumeClaim"]["claimName"].as_str());
        let names: Vec<&str> = names.collect();
        let is_usable = |name: &&str| {
            let claim = self.get(namespace, "PersistentVolumeClaim", name);
            claim.is_some_and(|claim| claim["metadata"]["deletionTimestamp"].is_null())
        };
        let name = pod["metadata"]["name"].as_str().unwrap();
        while !names.iter().all(is_usable) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let present = self.get(namespace, "Pod", name);
            if present.is_none_or(|present| present["metadata"]["uid"] != pod["metadata"]["uid"]) {
                return false;
            }
        }
        true
    }

    /// The VM with that UID. The watch of VMs may lag behind that of pods, and this pod causes no further call.
    async fn owner(&self, namespace: &str, name: &str, uid: &str) -> Option<Value> {
        for _ in 0..100 {
            let vm = self.get(namespace, "VirtualMachine", name);
            if let Some(vm) = vm.filter(|vm| vm["metadata"]["uid"] == uid) {
                return Some(vm);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        None
    }

    /// The runner's report that the guest runs, once for each pod.
    async fn report_as_runner(&self, namespace: &str, name: &str, pod: &Value) {
        let uid = pod["metadata"]["uid"].as_str().unwrap();
        let owner = pod["metadata"]["ownerReferences"][0]["uid"]
            .as_str()
            .unwrap_or_default();
        let Some(vm) = self.owner(namespace, name, owner).await else {
            return;
        };
        let present = vm["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let is_reported = present.iter().any(|c| {
            c["type"] == conditions::RUNNING && c["status"] == "True" && c["message"] == uid
        });
        if is_reported {
            return;
        }
        let initial = conditions::INITIAL.map(|type_| {
            let status = if type_ == conditions::RUNNING { "True" } else { "False" };
            json!({"type": type_, "status": status, "reason": "VmStarted", "message": uid, "lastTransitionTime": "2026-01-01T00:00:00Z"})
        });
        // The smallest guest has released all memory, so that the requests of its pod fall.
        let status =
            json!({"cpus": 1, "ram": "1048576", "consoleClient": "", "conditions": initial});
        if pod["spec"]["serviceAccountName"] == names::REPORTER_SERVICE_ACCOUNT {
            return self.write_report(namespace, uid, status).await;
        }
        self.write_as_runner("VirtualMachine", namespace, name, &status)
            .await;
    }

    /// The report of a runner. It retries as long as its pod exists, because the operator creates the report after the pod.
    async fn write_report(&self, namespace: &str, pod: &str, status: Value) {
        let is_there = || {
            let present = self.present(namespace);
            let mut pods = present.iter().filter(|((kind, _), _)| *kind == "Pod");
            pods.any(|(_, object)| object["metadata"]["uid"] == pod)
        };
        while is_there() {
            if self
                .write_as_runner("VmReport", namespace, pod, &status)
                .await
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Whether the status was written.
    async fn write_as_runner(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        status: &Value,
    ) -> bool {
        let body = json!({
            "apiVersion": "vmoperator.jdrupes.org/v1", "kind": kind, "metadata": {"name": name}, "status": status,
        });
        let params = PatchParams::apply(names::MANAGER_RUNNER).force();
        self.api(kind, Some(namespace))
            .patch_status(name, &params, &Patch::Apply(&body))
            .await
            .is_ok()
    }
}
