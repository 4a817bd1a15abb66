//! Defaults of built-in kinds, and changes of them that Kubernetes rejects.

use super::quantity::{canonicalize, canonicalize_resources};
use super::resource::Resource;
use super::schema::object_at;
use super::status::Failure;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Sets a field that is missing.
fn fill(value: &mut Value, name: &str, default: impl Into<Value>) {
    if value[name].is_null() {
        value[name] = default.into();
    }
}

fn each<'a>(value: &'a mut Value, name: &str) -> impl Iterator<Item = &'a mut Value> {
    value
        .get_mut(name)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

/// The object before its creation, with the fields that the server's types always have.
pub fn template(resource: &Resource) -> Value {
    match (resource.custom, resource.kind.as_str()) {
        (false, "Pod") => json!({"metadata": {}, "spec": {"containers": null}, "status": {}}),
        (false, "Service") => json!({"metadata": {}, "spec": {}, "status": {"loadBalancer": {}}}),
        (false, "PersistentVolumeClaim") => {
            json!({"metadata": {}, "spec": {"resources": {}}, "status": {}})
        }
        (
            false,
            "Lease"
            | "Namespace"
            | "Node"
            | "Deployment"
            | "PersistentVolume"
            | "PodDisruptionBudget",
        ) => {
            json!({"metadata": {}, "spec": {}, "status": {}})
        }
        _ => json!({"metadata": {}}),
    }
}

/// The defaults that are added when an object is decoded from a request.
pub fn default(resource: &Resource, object: &mut Value) {
    drop_empty_metadata(object);
    match resource.kind.as_str() {
        _ if resource.custom => {
            super::schema::prune(&resource.schema, object);
            super::schema::default(&resource.schema, object);
        }
        "Pod" => {
            default_pod_spec(&mut object["spec"]);
            for list in ["containers", "initContainers"] {
                each(&mut object["spec"], list).for_each(canonicalize_resources);
            }
            for condition in object
                .get_mut("status")
                .into_iter()
                .flat_map(|status| each(status, "conditions"))
            {
                fill(condition, "lastProbeTime", Value::Null);
                fill(condition, "lastTransitionTime", Value::Null);
            }
            for container in object
                .get_mut("status")
                .into_iter()
                .flat_map(|status| each(status, "containerStatuses"))
            {
                canonicalize_resources(container);
                fill(container, "state", json!({}));
                fill(container, "lastState", json!({}));
            }
        }
        "PersistentVolumeClaim" => {
            fill(&mut object["spec"], "volumeMode", "Filesystem");
            canonicalize_resources(&mut object["spec"]);
            object
                .get_mut("status")
                .and_then(|status| status.get_mut("capacity"))
                .into_iter()
                .for_each(canonicalize);
        }
        "Secret" => default_secret(object),
        "Service" => default_service(object),
        "Deployment" => {
            let spec = &mut object["spec"];
            fill(spec, "progressDeadlineSeconds", 600);
            fill(spec, "revisionHistoryLimit", 10);
            default_pod_spec(&mut spec["template"]["spec"]);
        }
        "StorageClass" => {
            fill(object, "reclaimPolicy", "Delete");
            fill(object, "volumeBindingMode", "Immediate");
        }
        "Namespace" => {
            let name = object["metadata"]["name"].clone();
            object_at(&mut object["metadata"], "labels")
                .insert("kubernetes.io/metadata.name".to_owned(), name);
        }
        _ => {}
    }
}

/// Removes empty maps and lists of metadata.
fn drop_empty_metadata(object: &mut Value) {
    let Some(metadata) = object["metadata"].as_object_mut() else {
        return;
    };
    let is_empty = |value: &Value| {
        value.is_null()
            || value.as_array().is_some_and(Vec::is_empty)
            || value.as_object().is_some_and(|o| o.is_empty())
    };
    metadata.retain(|_, value| !is_empty(value));
}

fn default_pod_spec(spec: &mut Value) {
    fill(spec, "restartPolicy", "Always");
    fill(spec, "dnsPolicy", "ClusterFirst");
    fill(spec, "schedulerName", "default-scheduler");
    fill(spec, "terminationGracePeriodSeconds", 30);
    fill(spec, "securityContext", json!({}));
    fill(spec, "enableServiceLinks", true);
    if let Some(account) = spec.get("serviceAccountName").cloned() {
        spec["serviceAccount"] = account;
    }
    let host_network = spec["hostNetwork"] == true;
    for list in ["containers", "initContainers"] {
        each(spec, list).for_each(|container| default_container(container, host_network));
    }
    each(spec, "volumes").for_each(default_volume);
}

fn default_container(container: &mut Value, host_network: bool) {
    fill(container, "terminationMessagePath", "/dev/termination-log");
    fill(container, "terminationMessagePolicy", "File");
    fill(container, "resources", json!({}));
    let image = container["image"].as_str().unwrap_or_default();
    let name = image.rsplit('/').next().unwrap_or_default();
    let is_latest =
        !image.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    fill(
        container,
        "imagePullPolicy",
        if is_latest { "Always" } else { "IfNotPresent" },
    );
    for port in each(container, "ports") {
        fill(port, "protocol", "TCP");
        if host_network {
            let number = port["containerPort"].clone();
            fill(port, "hostPort", number);
        }
    }
    let from = each(container, "env").filter_map(|env| env.pointer_mut("/valueFrom/fieldRef"));
    from.for_each(|field| fill(field, "apiVersion", "v1"));
    let resources = &mut container["resources"];
    for (name, amount) in resources["limits"].as_object().cloned().unwrap_or_default() {
        object_at(resources, "requests")
            .entry(name)
            .or_insert(amount);
    }
    for name in ["limits", "requests"] {
        if let Some(fields) = resources
            .as_object_mut()
            .filter(|fields| fields.get(name).is_some_and(Value::is_null))
        {
            fields.remove(name);
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = container.get_mut(probe).filter(|probe| probe.is_object()) else {
            continue;
        };
        for (name, value) in [
            ("timeoutSeconds", 1),
            ("periodSeconds", 10),
            ("successThreshold", 1),
            ("failureThreshold", 3),
        ] {
            fill(probe, name, value);
        }
        if let Some(http) = probe.get_mut("httpGet") {
            fill(http, "scheme", "HTTP");
            fill(http, "path", "/");
        }
    }
}

fn default_volume(volume: &mut Value) {
    for source in ["secret", "configMap", "projected", "downwardAPI"] {
        if let Some(source) = volume.get_mut(source).filter(|source| source.is_object()) {
            fill(source, "defaultMode", 0o644);
        }
    }
    if let Some(path) = volume.get_mut("hostPath").filter(|path| path.is_object()) {
        fill(path, "type", "");
    }
}

fn default_secret(secret: &mut Value) {
    fill(secret, "type", "Opaque");
    let texts = secret
        .as_object_mut()
        .and_then(|secret| secret.remove("stringData"));
    for (name, text) in texts
        .as_ref()
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let encoded = STANDARD.encode(text.as_str().unwrap_or_default());
        object_at(secret, "data").insert(name.clone(), encoded.into());
    }
}

fn default_service(service: &mut Value) {
    let spec = &mut service["spec"];
    fill(spec, "type", "ClusterIP");
    fill(spec, "sessionAffinity", "None");
    fill(spec, "internalTrafficPolicy", "Cluster");
    if spec["type"] == "LoadBalancer" {
        fill(spec, "allocateLoadBalancerNodePorts", true);
    }
    if spec["type"] == "LoadBalancer" || spec["type"] == "NodePort" {
        fill(spec, "externalTrafficPolicy", "Cluster");
    }
    for port in each(spec, "ports") {
        fill(port, "protocol", "TCP");
        let number = port["port"].clone();
        fill(port, "targetPort", number);
    }
}

/// Adds the values of the creation, after field ownership was assigned. `number` is unique for the object.
pub fn prepare(resource: &Resource, object: &mut Value, number: u64) {
    match resource.kind.as_str() {
        _ if resource.custom => {}
        "Pod" => {
            let tolerate = |key: &str| {
                let key = format!("node.kubernetes.io/{key}");
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
            };
            let qos = qos(object);
            object["status"] = json!({"phase": "Pending", "qosClass": qos});
            let spec = &mut object["spec"];
            fill(spec, "priority", 0);
            fill(spec, "preemptionPolicy", "PreemptLowerPriority");
            fill(spec, "tolerations", json!([]));
            if let Some(tolerations) = spec["tolerations"].as_array_mut() {
                for key in ["not-ready", "unreachable"] {
                    let wanted = tolerate(key);
                    let covers = |t: &Value| {
                        (t["key"].is_null() || t["key"] == wanted["key"])
                            && (t["effect"].is_null() || t["effect"] == "NoExecute")
                    };
                    if !tolerations.iter().any(covers) {
                        tolerations.push(wanted);
                    }
                }
            }
        }
        "PersistentVolumeClaim" => {
            object["status"] = json!({"phase": "Pending"});
            let finalizers = &mut object["metadata"]["finalizers"];
            let protection = json!("kubernetes.io/pvc-protection");
            match finalizers.as_array_mut() {
                Some(finalizers) if finalizers.contains(&protection) => {}
                Some(finalizers) => finalizers.push(protection),
                None => *finalizers = json!([protection]),
            }
        }
        "Service" => {
            object["status"] = json!({"loadBalancer": {}});
            let spec = &mut object["spec"];
            fill(
                spec,
                "clusterIP",
                format!("10.0.{}.{}", number / 250 % 250, number % 250 + 1),
            );
            let ip = spec["clusterIP"].clone();
            fill(spec, "clusterIPs", json!([ip]));
            if ip != "None" {
                fill(spec, "ipFamilies", json!(["IPv4"]));
                fill(spec, "ipFamilyPolicy", "SingleStack");
            }
            allocate_node_ports(spec, number);
        }
        "Deployment" => object["status"] = json!({}),
        "PodDisruptionBudget" => {
            object["status"] = json!({"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0});
        }
        "Event" => {
            fill(object, "deprecatedSource", json!({}));
            fill(object, "deprecatedFirstTimestamp", Value::Null);
            fill(object, "deprecatedLastTimestamp", Value::Null);
        }
        "Namespace" => {
            fill(&mut object["spec"], "finalizers", json!(["kubernetes"]));
            object["status"] = json!({"phase": "Active"});
        }
        _ => {}
    }
}

/// Allocates node ports for a load balancer.
pub fn allocate_node_ports(spec: &mut Value, number: u64) {
    if spec["type"] != "LoadBalancer" || spec["allocateLoadBalancerNodePorts"] == false {
        return;
    }
    for (n, port) in each(spec, "ports").enumerate() {
        fill(port, "nodePort", 30000 + (number * 8 + n as u64) % 2767);
    }
}

/// The quality-of-service class of a pod.
fn qos(pod: &Value) -> &'static str {
    let containers: Vec<&Value> = pod["spec"]["containers"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    let amounts = |container: &Value, of: &str| {
        container["resources"][of]
            .as_object()
            .cloned()
            .unwrap_or_default()
    };
    let has_any = |c: &&Value| {
        ["requests", "limits"].iter().any(|of| {
            ["cpu", "memory"]
                .iter()
                .any(|name| amounts(c, of).contains_key(*name))
        })
    };
    let is_guaranteed = |c: &&Value| {
        ["cpu", "memory"].iter().all(|name| {
            let (limits, requests) = (amounts(c, "limits"), amounts(c, "requests"));
            limits
                .get(*name)
                .is_some_and(|limit| requests.get(*name).is_none_or(|request| request == limit))
        })
    };
    match (
        containers.iter().any(has_any),
        containers.iter().all(is_guaranteed),
    ) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

const POD_MAY_CHANGE: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
    `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
    `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
const RESIZE_MAY_CHANGE: &str = "only cpu and memory resources are mutable";
const CLAIM_MAY_CHANGE: &str = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
const NOT_EXPANDABLE: &str = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc \
    must support resize";

/// Rejects a change that Kubernetes rejects. `is_expandable` says whether the PVC's storage class allows expansion.
pub fn check(
    resource: &Resource,
    subresource: &str,
    old: &Value,
    new: &Value,
    is_expandable: impl FnOnce(&str) -> bool,
) -> Result<(), Failure> {
    let name = new["metadata"]["name"].as_str().unwrap_or_default();
    let forbidden = |field: &str, why: &str| {
        Err(Failure::invalid(
            resource,
            name,
            "FieldValueForbidden",
            field,
            &format!("Forbidden: {why}"),
        ))
    };
    match (resource.kind.as_str(), subresource) {
        _ if resource.custom => Ok(()),
        ("Pod", "") if mutable_pod(&old["spec"], false) != mutable_pod(&new["spec"], false) => {
            forbidden("spec", POD_MAY_CHANGE)
        }
        ("Pod", "resize") if mutable_pod(&old["spec"], true) != mutable_pod(&new["spec"], true) => {
            forbidden("spec", RESIZE_MAY_CHANGE)
        }
        ("Pod", "resize") if old["status"]["qosClass"] != qos(new) => {
            let why = "Invalid value: \"".to_owned()
                + qos(new)
                + "\": Pod QOS Class may not change as a result of resizing";
            Err(Failure::invalid(
                resource,
                name,
                "FieldValueInvalid",
                "spec",
                &why,
            ))
        }
        ("PersistentVolumeClaim", "") => {
            let size = |claim: &Value| amount(&claim["spec"]["resources"]["requests"]["storage"]);
            let rest = |claim: &Value| {
                let mut spec = claim["spec"].clone();
                spec["resources"]["requests"] = Value::Null;
                spec
            };
            if size(new) > size(old) {
                let class = new["spec"]["storageClassName"].as_str().unwrap_or_default();
                let is_bound = old["status"]["phase"] == "Bound";
                return match (is_bound, is_bound && is_expandable(class)) {
                    (false, _) => forbidden("spec", CLAIM_MAY_CHANGE),
                    (true, false) => Err(Failure::forbidden(resource, name, NOT_EXPANDABLE)),
                    (true, true) => Ok(()),
                };
            }
            if size(new) < size(old) {
                return forbidden(
                    "spec.resources.requests.storage",
                    "field can not be less than status.capacity",
                );
            }
            if rest(old) != rest(new) {
                forbidden("spec", CLAIM_MAY_CHANGE)
            } else {
                Ok(())
            }
        }
        ("Secret" | "ConfigMap", "") if old["immutable"] == true && old["data"] != new["data"] => {
            forbidden("data", "field is immutable when `immutable` is set")
        }
        _ => Ok(()),
    }
}

/// The pod's spec without its mutable fields.
fn mutable_pod(spec: &Value, is_resize: bool) -> Value {
    let mut spec = spec.clone();
    for list in ["containers", "initContainers"] {
        for container in each(&mut spec, list) {
            match is_resize {
                true => container["resources"] = Value::Null,
                false => container["image"] = Value::Null,
            }
        }
    }
    if !is_resize {
        for name in ["activeDeadlineSeconds", "tolerations"] {
            spec[name] = Value::Null;
        }
    }
    spec
}

/// A quantity as a number, or `None` for other text.
fn amount(quantity: &Value) -> Option<f64> {
    let text = quantity.as_str()?;
    let at = text
        .find(|letter: char| letter.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let factor = match unit {
        "" => 1.0,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => 1024.0,
        "Mi" => 1048576.0,
        "Gi" => 1073741824.0,
        "Ti" => 1099511627776.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}
