//! The objects that the Java VM-Operator creates for a VM, according to its documentation and behaviour.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use vm_operator::api::VirtualMachine;
use vm_operator::api::quantity::Bytes;
use vm_operator::api::vm::names;

/// Version of the Java VM-Operator.
const REFERENCE_VERSION: &str = "4.3.0";

/// The image that its definition sets for VMs without one.
const IMAGE: &str = "ghcr.io/mnlipp/org.jdrupes.vmoperator.runner.qemu-arch:latest";

pub fn by_kind(objects: [(&'static str, Value); 7]) -> BTreeMap<&'static str, Value> {
    objects.into_iter().collect()
}

/// All objects of a VM, by kind. The ConfigMap is without its file, which is separate.
pub fn of(vm: &VirtualMachine) -> BTreeMap<&'static str, Value> {
    let spec = serde_json::to_value(&vm.spec).unwrap();
    let metadata = |name: &str| json!({"name": name, "namespace": "ns", "labels": labels(), "ownerReferences": owner()});
    let mut config_map = metadata("vm");
    config_map["annotations"] = json!({names::ANNOTATION_VERSION: REFERENCE_VERSION});
    let config_map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": config_map, "data": {"logging.properties": spec["loggingProperties"].as_str().unwrap_or("…")},
    });
    by_kind([
        ("ConfigMap", config_map),
        ("config.yaml", config(&spec)),
        (
            "runner-data claim",
            claim(
                "vm-runner-data",
                &json!({}),
                json!({
                    "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}},
                }),
            ),
        ),
        ("disk claim", disks(&spec)),
        ("Secret", secret(&spec)),
        ("Service", service(&spec, metadata("vm"))),
        ("Pod", pod(&spec, metadata("vm"))),
    ])
}

fn labels() -> Value {
    json!({names::LABEL_NAME: "vm-runner", names::LABEL_INSTANCE: "vm", names::LABEL_MANAGED_BY: "vm-operator"})
}

fn owner() -> Value {
    json!([{
        "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "name": "vm", "uid": "vm-uid",
        "controller": false, "blockOwnerDeletion": true,
    }])
}

/// The value without nulls and empty values, which a template omits.
fn given(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(name, value)| (name, given(value))).collect())
        }
        other => other,
    }
}

fn size(text: &Value) -> Value {
    text.as_str()
        .and_then(|text| text.parse::<Bytes>().ok())
        .map_or(Value::Null, |bytes| json!(bytes.to_string()))
}

/// The runner's configuration.
fn config(spec: &Value) -> Value {
    let vm = &spec["vm"];
    let mut cloud_init = spec["cloudInit"].clone();
    if cloud_init.is_object() {
        let mut meta_data = cloud_init["metaData"]
            .as_object()
            .cloned()
            .unwrap_or_default();
        meta_data
            .entry("instance-id")
            .or_insert_with(|| json!("v1"));
        meta_data
            .entry("local-hostname")
            .or_insert_with(|| json!("vm"));
        cloud_init["metaData"] = Value::Object(meta_data);
        if cloud_init["userData"].is_null() {
            cloud_init["userData"] = json!({});
        }
    }
    let topology = &vm["cpuTopology"];
    let copied = [
        "useTpm",
        "firmware",
        "bootMenu",
        "powerdownTimeout",
        "cpuModel",
        "rtcBase",
        "rtcClock",
    ];
    let mut machine: Map<String, Value> = copied
        .iter()
        .map(|key| ((*key).to_owned(), vm[key].clone()))
        .collect();
    let rest = json!({
        "name": "vm", "uuid": vm["machineUuid"], "maximumCpus": vm["maximumCpus"], "currentCpus": vm["currentCpus"],
        "sockets": topology["sockets"], "diesPerSocket": topology["diesPerSocket"],
        "coresPerDie": topology["coresPerDie"], "threadsPerCore": topology["threadsPerCore"],
        "maximumRam": size(&vm["maximumRam"]), "currentRam": size(&vm["currentRam"]),
        "network": vm["networks"].as_array().unwrap().iter().map(network).collect::<Vec<_>>(),
        "drives": drives(vm), "display": display(&vm["display"]),
    });
    machine.extend(rest.as_object().unwrap().clone());
    let mut config = given(json!({
        "dataDir": "/var/local/vm-data", "template": spec["runnerTemplate"]["source"],
        "updateTemplate": spec["runnerTemplate"]["update"], "guestShutdownStops": spec["guestShutdownStops"],
        "resetCounter": 0, "vm": machine,
    }));
    config["cloudInit"] = cloud_init;
    config
}

fn network(network: &Value) -> Value {
    let (type_, keys): (_, &[&str]) = match network["tap"].is_object() {
        true => ("tap", &["device", "bridge", "mac"]),
        false => ("user", &["device", "net"]),
    };
    let fields = keys
        .iter()
        .map(|key| ((*key).to_owned(), network[type_][key].clone()));
    given(Value::Object(
        fields.chain([("type".to_owned(), json!(type_))]).collect(),
    ))
}

/// The names of the disks with PVCs, with their templates.
fn disk_names(vm: &Value) -> Vec<(String, Value)> {
    let templates = vm["disks"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|disk| &disk["volumeClaimTemplate"]);
    let named = |(n, template): (usize, &Value)| {
        (
            names::disk(template["metadata"]["name"].as_str(), n),
            template.clone(),
        )
    };
    templates
        .filter(|template| template.is_object())
        .enumerate()
        .map(named)
        .collect()
}

fn drives(vm: &Value) -> Vec<Value> {
    let mut disks = disk_names(vm).into_iter();
    let drive = |disk: &Value| match disk["cdrom"]["image"].as_str() {
        Some(image) => {
            json!({"type": "ide-cd", "file": medium(image), "bootindex": disk["bootindex"]})
        }
        None => {
            let (name, _) = disks.next().unwrap();
            json!({"type": "raw", "resource": format!("/dev/{name}"), "bootindex": disk["bootindex"]})
        }
    };
    vm["disks"]
        .as_array()
        .into_iter()
        .flatten()
        .map(drive)
        .map(given)
        .collect()
}

fn medium(image: &str) -> String {
    match image {
        "" => String::new(),
        path if path.starts_with('/') || path.contains("://") => path.to_owned(),
        relative => format!("/var/local/vmop-image-repository/{relative}"),
    }
}

fn display(display: &Value) -> Value {
    let spice = &display["spice"];
    let keys = json!({
        "port": spice["port"], "usbRedirects": spice["usbRedirects"],
        // The Java VM-Operator writes this name, and its runner does not read it (B11).
        "streaming-video": spice["streamingVideo"],
    });
    let spice = if spice.is_object() { keys } else { Value::Null };
    json!({"outputs": display["outputs"], "loggedInUser": display["loggedInUser"], "spice": spice})
}

fn claim(name: &str, metadata: &Value, spec: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": spec,
        "metadata": {"name": name, "namespace": "ns", "labels": labels(), "annotations": metadata["annotations"]},
    })
}

fn disks(spec: &Value) -> Value {
    let disks = disk_names(&spec["vm"]).into_iter();
    disks
        .map(|(name, template)| {
            claim(
                &format!("vm-{name}"),
                &template["metadata"],
                template["spec"].clone(),
            )
        })
        .collect()
}

fn secret(spec: &Value) -> Value {
    let spice = &spec["vm"]["display"]["spice"];
    if spice["generateSecret"] != true {
        return Value::Null;
    }
    let mut labels = labels();
    labels
        .as_object_mut()
        .unwrap()
        .remove(names::LABEL_MANAGED_BY);
    labels[names::LABEL_COMPONENT] = json!(names::COMPONENT_DISPLAY_SECRET);
    let metadata = json!({"name": "vm-display-secret", "namespace": "ns", "labels": labels});
    json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata})
}

/// The objects with the configuration of these tests: a default annotation, no default label.
fn service(spec: &Value, mut metadata: Value) -> Value {
    let own = &spec["loadBalancerService"];
    let spice = &spec["vm"]["display"]["spice"];
    if own.as_object().is_some_and(Map::is_empty) || !spice.is_object() {
        return Value::Null;
    }
    let generated = labels();
    metadata["annotations"] = json!({"a": "b"});
    for kind in ["labels", "annotations"] {
        for (name, value) in own[kind].as_object().into_iter().flatten() {
            if generated.get(name).is_none() {
                metadata[kind][name] = value.clone();
            }
        }
    }
    let selector = json!({names::LABEL_NAME: "vm-runner", names::LABEL_INSTANCE: "vm"});
    let port = json!({"name": "spice", "port": spice["port"], "protocol": "TCP", "targetPort": spice["port"]});
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": given(metadata),
        "spec": {"type": "LoadBalancer", "ports": [port], "selector": selector},
    })
}

fn image(image: &Value) -> String {
    match (
        image["source"].as_str(),
        image["repository"].as_str(),
        image["path"].as_str(),
    ) {
        (Some(source), ..) => source.to_owned(),
        (None, Some(repository), Some(path)) => {
            let version = image["version"]
                .as_str()
                .map(|version| format!(":{version}"));
            format!("{repository}/{path}{}", version.unwrap_or_default())
        }
        _ => IMAGE.to_owned(),
    }
}

/// Requests of the current size, if the VM sets it.
fn resources(spec: &Value) -> Value {
    if spec["resources"].is_object() {
        return spec["resources"].clone();
    }
    let cpus = spec["vm"]["currentCpus"]
        .as_u64()
        .map(|n| format!("{}m", n * 500));
    let ram = spec["vm"]["currentRam"]
        .as_str()
        .and_then(|text| text.parse::<Bytes>().ok());
    given(
        json!({"requests": {"cpu": cpus, "memory": ram.map(|bytes| (bytes.0 * 4 / 5).to_string())}}),
    )
}

fn pod(spec: &Value, mut metadata: Value) -> Value {
    metadata["labels"][names::LABEL_COMPONENT] = json!("vm-runner");
    // The version of the ConfigMap is left out. Both write it when they know it.
    metadata["annotations"] = json!({names::ANNOTATION_VERSION: REFERENCE_VERSION});
    let spice = &spec["vm"]["display"]["spice"];
    let port = json!([{"name": "spice", "containerPort": spice["port"], "protocol": "TCP"}]);
    let claims = disk_names(&spec["vm"]);
    let volume = |name: &str, claim: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": claim}});
    let secret = json!({"secret": {"name": "vm-display-secret"}});
    let sources = [json!({"configMap": {"name": "vm"}})]
        .into_iter()
        .chain(self::secret(spec).is_object().then_some(secret));
    let volumes = [
        json!({"name": "config", "projected": {"sources": sources.collect::<Vec<_>>()}}),
        volume("runner-data", "vm-runner-data"),
        volume("vmop-image-repository", "vmop-image-repository"),
    ];
    let of_disks = claims
        .iter()
        .map(|(name, _)| volume(name, &format!("vm-{name}")));
    let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
    let container = json!({
        "name": "vm", "image": image(&spec["image"]), "imagePullPolicy": spec["image"]["pullPolicy"],
        "ports": if spice.is_object() { port } else { Value::Null },
        "volumeMounts": [
            mount("config", "/etc/opt/vmrunner"), mount("runner-data", "/var/local/vm-data"),
            mount("vmop-image-repository", "/var/local/vmop-image-repository"),
        ],
        "volumeDevices": claims.iter().map(|(name, _)| json!({"name": name, "devicePath": format!("/dev/{name}")})).collect::<Vec<_>>(),
        "securityContext": {"privileged": true}, "resources": resources(spec),
    });
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {
        "containers": [container], "volumes": volumes.into_iter().chain(of_disks).collect::<Vec<_>>(), "hostNetwork": true,
        "terminationGracePeriodSeconds": spec["vm"]["powerdownTimeout"].as_i64().unwrap() + 5,
        "nodeName": spec["nodeName"], "nodeSelector": spec["nodeSelector"], "affinity": spec["affinity"],
        "serviceAccountName": "vm-runner",
    }})
}
