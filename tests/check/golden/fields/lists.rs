//! The lists of fields: copied, converted, and without effect.

use serde_json::{Value, json};

/// Fields that appear unchanged in an object: all leaves below the first path are found below the second. The third
/// value has the other required fields of `spec`.
pub fn copied() -> Vec<(&'static str, &'static str, Value)> {
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
        (
            "spec.nodeName",
            "/pod/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0",
            json!({}),
        ),
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
            "spec.vm.networks[].name",
            "/config/vm/network/0/name",
            json!({"vm": {"networks": [{"tap": {}}]}}),
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

/// A field that is converted: with that value instead of none (or the default), those paths change.
pub struct Change {
    pub leaf: &'static str,
    pub value: Value,
    /// The other required fields of `spec`, before and after.
    pub with: Value,
    pub places: &'static [&'static str],
}

fn change(leaf: &'static str, value: Value, places: &'static [&'static str]) -> Change {
    Change {
        leaf,
        value,
        with: json!({}),
        places,
    }
}

/// A seed with a part from a Secret.
fn from_secret(part: &str) -> Value {
    json!({"cloudInit": {part: {"secretKeyRef": {"name": "s", "key": "k"}}}})
}

pub fn changes() -> Vec<Change> {
    let claim = json!({"vm": {"disks": [{"volumeClaimTemplate": {"metadata": {"name": "a"}}}]}});
    let imported = json!({"vm": {"disks": [{
        "volumeClaimTemplate": {"spec": {"volumeMode": "Filesystem", "resources": {"requests": {"storage": "1Gi"}}}},
        "source": {"http": {"url": "https://example.org/a.qcow2"}},
    }]}});
    let uploaded =
        json!({"vm": {"disks": [{"volumeClaimTemplate": {}, "source": {"upload": {}}}]}});
    let copied_disk = json!({"vm": {"disks": [{"volumeClaimTemplate": {}, "source": {"pvc": {"name": "golden"}}}]}});
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
        change(
            "spec.consolePort",
            json!(9282),
            &[
                "/config/consolePort",
                "/pod/spec/containers/0/ports/2/containerPort",
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
            with: imported.clone(),
            ..change(
                "spec.vm.disks[].source.http.url",
                json!("https://example.org/b.qcow2"),
                &["/pod/spec/containers/0/args/2"],
            )
        },
        Change {
            with: imported.clone(),
            ..change(
                "spec.vm.disks[].source.http.checksum",
                json!(format!("sha512:{}", "0".repeat(128))),
                &["/pod/spec/containers/0/args/4"],
            )
        },
        Change {
            with: imported.clone(),
            ..change(
                "spec.vm.disks[].source.http.format",
                json!("raw"),
                &["/pod/spec/containers/0/args/2"],
            )
        },
        Change {
            with: imported,
            ..change(
                "spec.vm.disks[].source.http.secretName",
                json!("images"),
                &["/pod/spec/containers/0/env/0/valueFrom/secretKeyRef/name"],
            )
        },
        Change {
            with: uploaded.clone(),
            ..change(
                "spec.vm.disks[].source.upload.checksum",
                json!(format!("sha512:{}", "0".repeat(128))),
                &["/pod/spec/containers/0/args/4"],
            )
        },
        Change {
            with: uploaded,
            ..change(
                "spec.vm.disks[].source.upload.format",
                json!("raw"),
                &["/pod/spec/containers/0/args/4"],
            )
        },
        Change {
            with: copied_disk,
            ..change(
                "spec.vm.disks[].source.pvc.name",
                json!("other"),
                &["/pod/spec/volumes/2/persistentVolumeClaim/claimName"],
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

/// Fields that the Java VM-Operator does not have.
pub const OURS: &[&str] = &[
    "spec.vm.disks[].cdrom.checksum",
    "spec.vm.disks[].source",
    "spec.cloudInit.networkConfigFrom",
    "spec.cloudInit.userDataFrom",
    "spec.consolePort",
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

/// Fields without effect on the result, each with the reason. They are in `docs/reference.md`. A path includes all
/// fields below it.
pub const LATER: &[(&str, &str)] = &[
    (
        "spec.permissions",
        "for console front ends, which read it in the VM",
    ),
    ("spec.pools", "for pools, which read it in the VM"),
    (
        "spec.vm.display.spice.server",
        "for console front ends, which write it into a client's connection file",
    ),
    (
        "spec.vm.display.spice.proxyUrl",
        "for console front ends, which write it into a client's connection file",
    ),
    (
        "spec.runnerTemplate",
        "arguments are built from types; the condition IgnoredField reports it",
    ),
];
