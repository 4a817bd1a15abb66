//! Every field of a VM has its effect: each leaf of the schema stands in one of three lists, and what the first two say
//! is tried. A new field fails the test until it stands in one.
//!
//! An effect is a place in what is made of a VM (`built`), as a JSON pointer: `/config` is the runner's configuration
//! below `/Runner`, `/decision` what becomes of the pod.

use super::{json_of, vm_of};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use vm_operator::api::vm::crd;
use vm_operator::controllers::vm::decide::decide;
use vm_operator::controllers::vm::objects::{self, Objects};
use vm_operator::controllers::vm::plan::plan;
use vm_operator::settings::{LoadBalancerService, Reconciler};

/// Fields that stand in an object as they stand in the VM: all leaves below the one are found below the other. The third
/// is what else of `spec` has to be there.
fn copied() -> Vec<(&'static str, &'static str, Value)> {
    let claim = "spec.vm.disks[].volumeClaimTemplate";
    let named = json!({"vm": {"disks": [{"volumeClaimTemplate": {}}]}});
    let claim_part = |part: &'static str, to| (part, to, named.clone());
    assert!(
        claim_parts()
            .iter()
            .all(|(from, _)| from.starts_with(claim))
    );
    let mut copied = vec![
        ("spec.affinity", "/pod/spec/affinity", json!({})),
        ("spec.tolerations", "/pod/spec/tolerations", json!({})),
        (
            "spec.topologySpreadConstraints",
            "/pod/spec/topologySpreadConstraints",
            json!({}),
        ),
        (
            "spec.imagePullSecrets",
            "/pod/spec/imagePullSecrets",
            json!({}),
        ),
        ("spec.nodeName", "/pod/spec/nodeName", json!({})),
        ("spec.nodeSelector", "/pod/spec/nodeSelector", json!({})),
        (
            "spec.priorityClassName",
            "/pod/spec/priorityClassName",
            json!({}),
        ),
        (
            "spec.runtimeClassName",
            "/pod/spec/runtimeClassName",
            json!({}),
        ),
        ("spec.podLabels", "/pod/metadata/labels", json!({})),
        (
            "spec.podAnnotations",
            "/pod/metadata/annotations",
            json!({}),
        ),
        (
            "spec.resources",
            "/pod/spec/containers/0/resources",
            json!({}),
        ),
        (
            "spec.loadBalancerService.labels",
            "/service/metadata/labels",
            json!({}),
        ),
        (
            "spec.loadBalancerService.annotations",
            "/service/metadata/annotations",
            json!({}),
        ),
        (
            "spec.guestShutdownStops",
            "/config/guestShutdownStops",
            json!({}),
        ),
        (
            "spec.cloudInit.metaData",
            "/config/cloudInit/metaData",
            json!({}),
        ),
        (
            "spec.cloudInit.userData",
            "/config/cloudInit/userData",
            json!({}),
        ),
        (
            "spec.cloudInit.networkConfig",
            "/config/cloudInit/networkConfig",
            json!({}),
        ),
        ("spec.vm.machineUuid", "/config/vm/uuid", json!({})),
        ("spec.vm.useTpm", "/config/vm/useTpm", json!({})),
        ("spec.vm.bootMenu", "/config/vm/bootMenu", json!({})),
        (
            "spec.vm.powerdownTimeout",
            "/config/vm/powerdownTimeout",
            json!({}),
        ),
        ("spec.vm.cpuModel", "/config/vm/cpuModel", json!({})),
        ("spec.vm.maximumCpus", "/config/vm/maximumCpus", json!({})),
        ("spec.vm.currentCpus", "/config/vm/currentCpus", json!({})),
        (
            "spec.vm.cpuTopology.sockets",
            "/config/vm/sockets",
            json!({}),
        ),
        (
            "spec.vm.cpuTopology.diesPerSocket",
            "/config/vm/diesPerSocket",
            json!({}),
        ),
        (
            "spec.vm.cpuTopology.coresPerDie",
            "/config/vm/coresPerDie",
            json!({}),
        ),
        (
            "spec.vm.cpuTopology.threadsPerCore",
            "/config/vm/threadsPerCore",
            json!({}),
        ),
        ("spec.vm.rtcBase", "/config/vm/rtcBase", json!({})),
        ("spec.vm.rtcClock", "/config/vm/rtcClock", json!({})),
        ("spec.vm.resetRequest", "/config/resetCounter", json!({})),
        (
            "spec.vm.networks[].user.device",
            "/config/vm/network/0/device",
            json!({}),
        ),
        (
            "spec.vm.networks[].user.net",
            "/config/vm/network/0/net",
            json!({}),
        ),
        (
            "spec.vm.networks[].tap.bridge",
            "/config/vm/network/0/bridge",
            json!({}),
        ),
        (
            "spec.vm.networks[].tap.device",
            "/config/vm/network/0/device",
            json!({}),
        ),
        (
            "spec.vm.networks[].tap.mac",
            "/config/vm/network/0/mac",
            json!({}),
        ),
        (
            "spec.vm.disks[].bootindex",
            "/config/vm/drives/0/bootindex",
            named.clone(),
        ),
        (
            "spec.vm.display.outputs",
            "/config/vm/display/outputs",
            json!({}),
        ),
        (
            "spec.vm.display.loggedInUser",
            "/config/vm/display/loggedInUser",
            json!({}),
        ),
        (
            "spec.vm.display.spice.port",
            "/config/vm/display/spice/port",
            json!({}),
        ),
        (
            "spec.vm.display.spice.streamingVideo",
            "/config/vm/display/spice/streamingVideo",
            json!({}),
        ),
        (
            "spec.vm.display.spice.usbRedirects",
            "/config/vm/display/spice/usbRedirects",
            json!({}),
        ),
    ];
    copied.extend(
        claim_parts()
            .into_iter()
            .map(|(from, to)| claim_part(from, to)),
    );
    copied
}

fn claim_parts() -> Vec<(&'static str, &'static str)> {
    vec![
        (
            "spec.vm.disks[].volumeClaimTemplate.metadata.labels",
            "/disks/0/metadata/labels",
        ),
        (
            "spec.vm.disks[].volumeClaimTemplate.metadata.annotations",
            "/disks/0/metadata/annotations",
        ),
        (
            "spec.vm.disks[].volumeClaimTemplate.spec.accessModes",
            "/disks/0/spec/accessModes",
        ),
        (
            "spec.vm.disks[].volumeClaimTemplate.spec.dataSource",
            "/disks/0/spec/dataSource",
        ),
        (
            "spec.vm.disks[].volumeClaimTemplate.spec.dataSourceRef",
            "/disks/0/spec/dataSourceRef",
        ),
        (
            "spec.vm.disks[].volumeClaimTemplate.spec.resources",
            "/disks/0/spec/resources",
        ),
        (
            "spec.vm.disks[].volumeClaimTemplate.spec.selector",
            "/disks/0/spec/selector",
        ),
        (
            "spec.vm.disks[].volumeClaimTemplate.spec.storageClassName",
            "/disks/0/spec/storageClassName",
        ),
        (
            "spec.vm.disks[].volumeClaimTemplate.spec.volumeAttributesClassName",
            "/disks/0/spec/volumeAttributesClassName",
        ),
        (
            "spec.vm.disks[].volumeClaimTemplate.spec.volumeName",
            "/disks/0/spec/volumeName",
        ),
    ]
}

/// A field that becomes something else: with that value instead of none (or the default), those places change.
struct Change {
    leaf: &'static str,
    value: Value,
    /// What else of `spec` is there, before and after.
    with: Value,
    places: &'static [&'static str],
}

fn change(leaf: &'static str, value: Value, places: &'static [&'static str]) -> Change {
    Change {
        leaf,
        value,
        with: json!({}),
        places,
    }
}

/// A seed with a part from a secret.
fn from_secret(part: &str) -> Value {
    json!({"cloudInit": {part: {"secretKeyRef": {"name": "s", "key": "k"}}}})
}

fn changes() -> Vec<Change> {
    let claim = json!({"vm": {"disks": [{"volumeClaimTemplate": {"metadata": {"name": "a"}}}]}});
    let image = json!({"image": {"repository": "r", "path": "p", "version": "1"}});
    let forward =
        json!({"vm": {"networks": [{"user": {"forward": [{"port": 2222, "guestPort": 22}]}}]}});
    vec![
        change(
            "spec.image.source",
            json!("s"),
            &["/pod/spec/containers/0/image"],
        ),
        Change {
            with: image.clone(),
            ..change(
                "spec.image.repository",
                json!("q"),
                &["/pod/spec/containers/0/image"],
            )
        },
        Change {
            with: image.clone(),
            ..change(
                "spec.image.path",
                json!("q"),
                &["/pod/spec/containers/0/image"],
            )
        },
        Change {
            with: image.clone(),
            ..change(
                "spec.image.version",
                json!("2"),
                &["/pod/spec/containers/0/image"],
            )
        },
        Change {
            with: image,
            ..change(
                "spec.image.pullPolicy",
                json!("Never"),
                &["/pod/spec/containers/0/imagePullPolicy"],
            )
        },
        Change {
            with: from_secret("userDataFrom"),
            ..change(
                "spec.cloudInit.userDataFrom.secretKeyRef.name",
                json!("other"),
                &["/pod/spec/volumes/2/projected/sources/0/secret/name"],
            )
        },
        Change {
            with: from_secret("userDataFrom"),
            ..change(
                "spec.cloudInit.userDataFrom.secretKeyRef.key",
                json!("other"),
                &["/pod/spec/volumes/2/projected/sources/0/secret/items/0/key"],
            )
        },
        Change {
            with: from_secret("networkConfigFrom"),
            ..change(
                "spec.cloudInit.networkConfigFrom.secretKeyRef.name",
                json!("other"),
                &["/pod/spec/volumes/2/projected/sources/0/secret/name"],
            )
        },
        Change {
            with: from_secret("networkConfigFrom"),
            ..change(
                "spec.cloudInit.networkConfigFrom.secretKeyRef.key",
                json!("other"),
                &["/pod/spec/volumes/2/projected/sources/0/secret/items/0/key"],
            )
        },
        change(
            "spec.loggingProperties",
            json!(".level=FINE"),
            &["/config/logLevel", "/configMap/data/logging.properties"],
        ),
        change("spec.vm.state", json!("Running"), &["/decision"]),
        change(
            "spec.vm.restartRequest",
            json!(1),
            &["/pod/metadata/annotations/vmoperator.jdrupes.org~1restart-request"],
        ),
        change(
            "spec.metricsPort",
            json!(9281),
            &[
                "/config/metricsPort",
                "/pod/spec/containers/0/ports/1/containerPort",
            ],
        ),
        change("spec.vm.firmware", json!("bios"), &["/config/vm/firmware"]),
        change(
            "spec.vm.powerdownTimeout",
            json!(1),
            &["/pod/spec/terminationGracePeriodSeconds"],
        ),
        change(
            "spec.vm.maximumRam",
            json!("2Gi"),
            &["/config/vm/maximumRam", "/pod/spec/containers/0/resources"],
        ),
        Change {
            with: json!({"vm": {"maximumRam": "2Gi"}}),
            ..change(
                "spec.vm.memory.hugepages.pageSize",
                json!("2Mi"),
                &[
                    "/config/vm/hugepages",
                    "/pod/spec/containers/0/resources/limits/hugepages-2Mi",
                ],
            )
        },
        change(
            "spec.vm.memory.shared",
            json!(true),
            &["/config/vm/sharedMemory"],
        ),
        change(
            "spec.vm.currentRam",
            json!("512Mi"),
            &["/config/vm/currentRam"],
        ),
        change(
            "spec.vm.currentCpus",
            json!(3),
            &["/config/vm/maximumCpus", "/pod/spec/containers/0/resources"],
        ),
        change(
            "spec.vm.cpuTopology.sockets",
            json!(2),
            &["/config/vm/maximumCpus", "/config/vm/currentCpus"],
        ),
        Change {
            with: forward.clone(),
            ..change(
                "spec.vm.networks[].user.forward[].port",
                json!(2223),
                &[
                    "/config/vm/network/0/forward/0/port",
                    "/pod/spec/containers/0/ports/1/containerPort",
                ],
            )
        },
        Change {
            with: forward.clone(),
            ..change(
                "spec.vm.networks[].user.forward[].guestPort",
                json!(23),
                &["/config/vm/network/0/forward/0/guestPort"],
            )
        },
        Change {
            with: forward,
            ..change(
                "spec.vm.networks[].user.forward[].protocol",
                json!("UDP"),
                &[
                    "/config/vm/network/0/forward/0/protocol",
                    "/pod/spec/containers/0/ports/1/protocol",
                ],
            )
        },
        Change {
            with: json!({"vm": {"disks": [{"cdrom": {"image": ""}}]}}),
            ..change(
                "spec.vm.disks[].cdrom.image",
                json!("a.iso"),
                &["/config/vm/drives/0/file"],
            )
        },
        Change {
            with: json!({"vm": {"state": "Running", "disks": [{"cdrom": {"image": "https://example.org/a.iso"}}]}}),
            ..change(
                "spec.vm.disks[].cdrom.checksum",
                json!(format!("sha256:{}", "0".repeat(64))),
                &[
                    "/config/vm/drives/0/file",
                    "/fetches/0/spec/containers/0/args/3",
                ],
            )
        },
        Change {
            with: claim,
            ..change(
                "spec.vm.disks[].volumeClaimTemplate.metadata.name",
                json!("b"),
                &[
                    "/disks/0/metadata/name",
                    "/config/vm/drives/0/resource",
                    "/pod/spec/volumes/2",
                    "/pod/spec/containers/0/volumeDevices/0",
                ],
            )
        },
        Change {
            with: json!({"vm": {"disks": [{"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "1Gi"}}}}}]}}),
            ..change(
                "spec.vm.disks[].volumeClaimTemplate.spec.volumeMode",
                json!("Filesystem"),
                &[
                    "/disks/0/spec/volumeMode",
                    "/config/vm/drives/0",
                    "/pod/spec/containers/0/volumeMounts",
                ],
            )
        },
        change(
            "spec.vm.display.spice.port",
            json!(5901),
            &["/pod/spec/containers/0/ports/0/containerPort"],
        ),
        change(
            "spec.vm.display.spice.generateSecret",
            json!(false),
            &["/displaySecret", "/pod/spec/volumes/0/projected"],
        ),
    ]
}

/// Fields that the reference does not have.
pub const OURS: &[&str] = &[
    "spec.vm.disks[].cdrom.checksum",
    "spec.cloudInit.networkConfigFrom",
    "spec.cloudInit.userDataFrom",
    "spec.imagePullSecrets",
    "spec.metricsPort",
    "spec.podAnnotations",
    "spec.podLabels",
    "spec.priorityClassName",
    "spec.runtimeClassName",
    "spec.tolerations",
    "spec.topologySpreadConstraints",
    "spec.vm.disks[].volumeClaimTemplate.spec.volumeAttributesClassName",
    "spec.vm.memory",
    "spec.vm.networks[].user.forward",
    "spec.vm.resetRequest",
    "spec.vm.restartRequest",
];

/// Fields that change nothing of what is made, each with its reason. They are in `docs/reference.md`. A place ends with all that is below it.
pub const LATER: &[(&str, &str)] = &[
    (
        "spec.permissions",
        "for console front ends, which read it in the VM",
    ),
    ("spec.pools", "for pools, which read it in the VM"),
    (
        "spec.vm.display.spice.server",
        "for console front ends, which put it into a client's connection file",
    ),
    (
        "spec.vm.display.spice.proxyUrl",
        "for console front ends, which put it into a client's connection file",
    ),
    (
        "spec.runnerTemplate",
        "arguments are built from types; the condition IgnoredField tells so",
    ),
];

const HOW_TO_GO_ON: &str = "each field must stand in one list of tests/check/golden/fields.rs: in `copied` or `changes` with the \
    place that it changes, which is then tried; or in `LATER`, with the reason why it changes nothing";

/// All that is made of a VM with that spec.
fn built(spec: &Value) -> Value {
    let observed = vm_of(spec.clone());
    let (labels, annotations) = (BTreeMap::new(), BTreeMap::new());
    let load_balancer_service = LoadBalancerService::On {
        labels,
        annotations,
    };
    let settings = Reconciler {
        load_balancer_service,
        ..Reconciler::default()
    };
    let plan = plan(&observed, &settings).unwrap_or_else(|invalid| panic!("{spec}: {invalid:?}"));
    let Objects {
        image_repository,
        fetches,
        config_map,
        runner_data,
        disks,
        claim_changes,
        display_secret,
        service,
        pod,
        stage: _,
    } = objects::build(&plan);
    let config: Value =
        serde_json::from_str(&config_map.data.as_ref().unwrap()["config.yaml"]).unwrap();
    json!({
        "imageRepository": json_of(&image_repository),
        "fetches": fetches.iter().map(|fetch| json_of(&fetch.pod)).collect::<Vec<_>>(),
        "configMap": json_of(&config_map),
        "config": config["/Runner"],
        "runnerData": json_of(&runner_data),
        "disks": disks.iter().map(json_of).collect::<Vec<_>>(),
        "claimChanges": format!("{claim_changes:?}"),
        "displaySecret": json_of(&display_secret),
        "service": json_of(&service),
        "pod": json_of(&objects::with_template_hash(pod)),
        "decision": format!("{:?}", decide(&observed, true)),
    })
}

/// Leaves of the schema below `spec`, with their schemas.
pub fn leaves() -> BTreeMap<String, Value> {
    let crd = serde_json::to_value(crd()).unwrap();
    let mut leaves = BTreeMap::new();
    let root = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    collect("spec".to_owned(), root, &mut leaves);
    leaves
}

fn collect(path: String, schema: &Value, leaves: &mut BTreeMap<String, Value>) {
    if let Some(fields) = schema["properties"]
        .as_object()
        .filter(|fields| !fields.is_empty())
    {
        for (name, field) in fields {
            collect(format!("{path}.{name}"), field, leaves);
        }
    } else if schema["items"].is_object() {
        collect(format!("{path}[]"), &schema["items"], leaves);
    } else if schema["additionalProperties"].is_object() {
        collect(
            format!("{path}{{}}"),
            &schema["additionalProperties"],
            leaves,
        );
    } else {
        leaves.insert(path, schema.clone());
    }
}

/// Puts the value at that place: into the first item of a list, under `key` in a map.
fn put(target: &mut Value, path: &str, value: Value) {
    let path = path.replace("[]", ".[]").replace("{}", ".key");
    let mut at = target;
    for step in path.split('.').skip(1) {
        if at.is_null() {
            *at = if step == "[]" { json!([]) } else { json!({}) };
        }
        at = match step {
            "[]" => {
                let items = at.as_array_mut().unwrap();
                if items.is_empty() {
                    items.push(Value::Null);
                }
                &mut items[0]
            }
            field => at
                .as_object_mut()
                .unwrap()
                .entry(field)
                .or_insert(Value::Null),
        };
    }
    *at = value;
}

/// A value that is nowhere the default, and fits.
fn sample(path: &str, schema: &Value) -> Value {
    let special = json!({
        "spec.vm.currentCpus": 7, "spec.vm.rtcClock": "vm", "spec.vm.rtcBase": "localtime",
        "spec.vm.display.spice.streamingVideo": "all",
    });
    if path.ends_with(".tap.mac") {
        return json!("52:54:00:12:34:56");
    }
    if let Some(value) = special.get(path) {
        return value.clone();
    }
    match schema["type"].as_str() {
        Some("boolean") => json!(true),
        Some("integer") => json!(7),
        Some("object") => json!({"any": ["content"]}),
        _ => json!("sample"),
    }
}

pub fn covers(prefix: &str, leaf: &str) -> bool {
    leaf.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[', '{']))
}

fn pointer(relative: &str) -> String {
    relative
        .replace("[]", "/0")
        .replace("{}", "/key")
        .replace('.', "/")
}

#[test]
fn every_field_stands_in_a_list() {
    let leaves = leaves();
    let copied = copied().into_iter().map(|(from, ..)| from);
    let changed = changes().into_iter().map(|change| change.leaf);
    let effective: Vec<&str> = copied.chain(changed).collect();
    for leaf in leaves.keys() {
        let acts = effective.iter().any(|prefix| covers(prefix, leaf));
        let later = LATER.iter().any(|(prefix, _)| covers(prefix, leaf));
        assert!(acts || later, "{leaf} stands in no list: {HOW_TO_GO_ON}");
        assert!(
            acts != later,
            "{leaf} stands in a list of effects and in LATER: {HOW_TO_GO_ON}"
        );
    }
    for prefix in effective
        .iter()
        .chain(LATER.iter().map(|(prefix, _)| prefix))
    {
        assert!(
            leaves.keys().any(|leaf| covers(prefix, leaf)),
            "the schema has no {prefix}"
        );
    }
}

#[test]
fn what_is_copied_stands_in_its_object_as_it_stands_in_the_vm() {
    let mut wrong = Vec::new();
    for (from, to, with) in copied() {
        for (leaf, schema) in leaves().iter().filter(|(leaf, _)| covers(from, leaf)) {
            let (value, mut spec) = (sample(leaf, schema), base(&with));
            put(&mut spec, leaf, value.clone());
            let place = format!("{to}{}", pointer(&leaf[from.len()..]));
            let built = built(&spec);
            let found = built.pointer(&place);
            if found != Some(&value) {
                wrong.push(format!("{leaf}: {place} is {found:?} and not {value}"));
            }
            if self::built(&base(&with)).pointer(&place) == Some(&value) {
                wrong.push(format!("{leaf}: {place} is {value} without it too"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_becomes_something_else_changes_its_places() {
    let mut wrong = Vec::new();
    for Change {
        leaf,
        value,
        with,
        places,
    } in changes()
    {
        let before = base(&with);
        let mut after = before.clone();
        put(&mut after, leaf, value);
        let (before, after) = (built(&before), built(&after));
        for place in places {
            let (old, new) = (before.pointer(place), after.pointer(place));
            if old == new {
                wrong.push(format!("{leaf}: {place} is {new:?} as before"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A spec with that and the machine that has to be there.
fn base(with: &Value) -> Value {
    let mut spec = with.clone();
    spec.as_object_mut()
        .unwrap()
        .entry("vm")
        .or_insert(Value::Object(Map::new()));
    spec
}
