//! Each rule of admission: what it admits, what it refuses, with which words. A rule without a case fails the test.

use crate::definition::Definition;
use crate::world::World;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use vm_operator::api::virtual_machine::rules::RULES;

/// Cases of one rule.
struct Case {
    /// The rule's place, and some of its message: a place can have several rules.
    rule: (&'static str, &'static str),
    /// Values that are admitted there.
    admitted: Vec<Value>,
    /// Values that are refused there.
    refused: Vec<Value>,
}

fn case(at: &'static str, words: &'static str, admitted: Value, refused: Value) -> Case {
    let list = |values: Value| values.as_array().unwrap().clone();
    Case { rule: (at, words), admitted: list(admitted), refused: list(refused) }
}

/// A spec that has the value at that place of the schema, and besides only what has to stand there.
fn spec(at: &str, value: &Value) -> Value {
    let mut spec = embed(at.strip_prefix("spec.").unwrap(), value);
    if spec.get("vm").is_none() {
        spec["vm"] = json!({});
    }
    if ["spec.image.repository", "spec.image.path", "spec.image.version"].contains(&at) {
        let image = spec["image"].as_object_mut().unwrap();
        image.entry("repository").or_insert(json!("registry.example.org"));
        image.entry("path").or_insert(json!("vm-runner"));
    }
    for from in ["userDataFrom", "networkConfigFrom"] {
        if let Some(key) = spec.pointer_mut(&format!("/cloudInit/{from}/secretKeyRef")).and_then(Value::as_object_mut) {
            key.entry("name").or_insert(json!("seed"));
            key.entry("key").or_insert(json!("seed"));
        }
    }
    if at == "spec.vm.disks[].bootindex" {
        spec["vm"]["disks"][0]["cdrom"] = json!({"image": ""});
    }
    if at == "spec.vm.disks[].cdrom.checksum" {
        spec["vm"]["disks"][0]["cdrom"]["image"] = json!("https://example.org/a.iso");
    }
    if at.starts_with("spec.vm.networks[].user.forward[].") {
        let forward = spec["vm"]["networks"][0]["user"]["forward"][0].as_object_mut().unwrap();
        forward.entry("port").or_insert(json!(2222));
        forward.entry("guestPort").or_insert(json!(22));
    }
    spec
}

fn embed(at: &str, value: &Value) -> Value {
    let (step, rest) = match at.find(['.', '[', '{']) {
        _ if at.is_empty() => return value.clone(),
        Some(0) if at.starts_with('.') => return embed(&at[1..], value),
        Some(0) => at.split_at(2),
        Some(end) => at.split_at(end),
        None => (at, ""),
    };
    match step {
        "[]" => json!([embed(rest, value)]),
        "{}" => json!({"key": embed(rest, value)}),
        field => json!({field: embed(rest, value)}),
    }
}

/// The field as the API server writes it.
fn field(at: &str) -> String {
    at.replace("[]", "[0]").replace("{}", "[key]")
}

fn machine_cases() -> Vec<Case> {
    let sizes = json!([
        "8Gi",
        "1G",
        "512Mi",
        "4 GiB",
        "1.5 GiB",
        "1.5GiB",
        " 4 GB ",
        "8.Gi",
        ".5Gi",
        "1e9",
        "1E9",
        "1e+9",
        "2147483648",
        "+8Gi",
        "2147483648 B",
        "1048576 KiB",
        "1000000 kB",
        "1000000k",
        "1000000K",
        "2147483648000m",
        "1 TB"
    ]);
    let no_sizes = json!(["", "lots", "8Gb", "-1Gi", "1.2.3Gi", "8 Gi B", "1,5Gi", "4 gib", "0x10", "8Gi;"]);
    let too_much = json!(["1e99", "1000000000000000000Gi", "1000000000000000000 GiB", "4097Ti", "5 PiB", "16E"]);
    let small = json!(["0", "8", "512Ki", "1023 KiB", "1e5", "1000m"]);
    vec![
        case(
            "spec.vm.machineUuid",
            "no UUID",
            json!(["7A37e3b4-5bd0-4f7b-8a0c-b0e2a1b2c3d4"]),
            json!(["", "7a37e3b45bd04f7b8a0cb0e2a1b2c3d4", "7a37e3b4-5bd0-4f7b-8a0c-b0e2a1b2c3d4,x"]),
        ),
        case("spec.vm.powerdownTimeout", "31536000", json!([0, 900, 31_536_000]), json!([-1, 31_536_001])),
        case(
            "spec.vm.cpuModel",
            "no CPU model",
            json!([
                "host",
                "Skylake-Server,-hle,+pcid",
                "EPYC-v4",
                "qemu64,model-id=Some CPU @ 2.4GHz",
                "host,hv_time=on"
            ]),
            json!(["", "-host", "host\n", "host\" -device \"x"]),
        ),
        case("spec.vm.maximumCpus", "number of CPUs", json!([1, 4096]), json!([0, -4, 4097])),
        case("spec.vm.currentCpus", "number of CPUs", json!([1, 4096]), json!([0, -4, 4097])),
        case(
            "spec.vm",
            "either maximumCpus or cpuTopology",
            json!([{}, {"maximumCpus": 2}, {"cpuTopology": {"sockets": 2}}, {"maximumCpus": 2, "currentCpus": 3}]),
            json!([{"maximumCpus": 2, "cpuTopology": {"sockets": 2}}]),
        ),
        case(
            "spec.vm",
            "currentCpus is more than the CPUs of cpuTopology",
            json!([
                {"cpuTopology": {"sockets": 2, "coresPerDie": 2, "threadsPerCore": 2}, "currentCpus": 8},
                {"cpuTopology": {"sockets": 2}, "currentCpus": 4},
                {"cpuTopology": {"coresPerDie": 4}, "currentCpus": 8},
                {"cpuTopology": {}, "currentCpus": 3}
            ]),
            json!([
                {"cpuTopology": {"sockets": 2, "coresPerDie": 2, "threadsPerCore": 2}, "currentCpus": 16},
                {"cpuTopology": {"sockets": 2}, "currentCpus": 5},
                {"cpuTopology": {"sockets": 2, "diesPerSocket": 2}, "currentCpus": 6}
            ]),
        ),
        case("spec.vm.cpuTopology.sockets", "no part of a topology", json!([0, 1, 4096]), json!([-1, 4097])),
        case("spec.vm.cpuTopology.diesPerSocket", "no part of a topology", json!([0, 1, 4096]), json!([-1, 4097])),
        case("spec.vm.cpuTopology.coresPerDie", "no part of a topology", json!([0, 1, 4096]), json!([-1, 4097])),
        case("spec.vm.cpuTopology.threadsPerCore", "no part of a topology", json!([0, 1, 4096]), json!([-1, 4097])),
        case(
            "spec.vm.cpuTopology",
            "more CPUs than any machine",
            json!([{}, {"sockets": 64, "coresPerDie": 64}]),
            json!([{"sockets": 64, "coresPerDie": 64, "threadsPerCore": 2}]),
        ),
        case("spec.vm.maximumRam", "is not a size", sizes.clone(), no_sizes.clone()),
        case("spec.vm.currentRam", "is not a size", json!(["512Mi", "0.5 GiB", "1e8"]), no_sizes),
        case("spec.vm.maximumRam", "less than 1 MiB", json!(["1Mi", "1 MiB", "1048576"]), small.clone()),
        case("spec.vm.currentRam", "less than 1 MiB", json!(["1Mi", "1 MiB", "1048576"]), small),
        case("spec.vm.maximumRam", "more than any machine", json!(["4Pi", "4096 TiB"]), too_much.clone()),
        case("spec.vm.currentRam", "more than any machine", json!(["1Mi"]), too_much),
        case(
            "spec.vm",
            "currentRam is more than maximumRam",
            json!([
                {"maximumRam": "8Gi", "currentRam": "8 GiB"},
                {"maximumRam": "1.5 GiB", "currentRam": "1536Mi"},
                {"maximumRam": "1000 MB", "currentRam": "1G"},
                {"maximumRam": "2048K", "currentRam": "2000 KiB"}
            ]),
            json!([
                {"currentRam": "4Gi"},
                {"maximumRam": "1 GB", "currentRam": "1 GiB"},
                {"maximumRam": "2000 KiB", "currentRam": "2049K"}
            ]),
        ),
        case(
            "spec.vm.rtcBase",
            "no start of a clock",
            json!(["utc", "localtime", "2026-01-31", "2026-01-31T12:00:00", "2026-1-3T1:2:3", "2026-01-31T12:00:00Z"]),
            json!(["", "UTC", "2026-01-31T12", "utc,clock=vm", "2026-01-31 12:00:00"]),
        ),
        case("spec.vm.rtcClock", "rt, host or vm", json!(["rt", "host", "vm"]), json!(["", "RT", "tsc"])),
        case("spec.vm.resetRequest", "counts requests", json!([0, 7]), json!([-1])),
        case("spec.vm.restartRequest", "counts requests", json!([0, 7]), json!([-1])),
    ]
}

fn network_cases() -> Vec<Case> {
    let models = json!(["virtio-net", "e1000e", "virtio-net-pci", "rtl8139"]);
    let no_models = json!(["", "e1000,romfile=/etc/passwd", "-x", "e1000 e"]);
    let user = |forwards: Value| json!({"user": {"forward": forwards}});
    let clash = json!({"networks": [user(json!([{"port": 5900, "guestPort": 22}]))]});
    let mut elsewhere = clash.clone();
    elsewhere["display"] = json!({"spice": {"port": 5901}});
    let udp = json!({"networks": [user(json!([{"port": 5900, "guestPort": 22, "protocol": "UDP"}]))]});
    let mut without_spice = clash.clone();
    without_spice["display"] = json!({});
    vec![
        case(
            "spec.vm.networks[]",
            "either tap or user",
            json!([{"tap": {}}, {"user": {}}]),
            json!([{}, {"tap": {}, "user": {}}]),
        ),
        case("spec.vm.networks[].tap.device", "no name of a QEMU device", models.clone(), no_models.clone()),
        case("spec.vm.networks[].user.device", "no name of a QEMU device", models, no_models),
        case(
            "spec.vm.networks[].tap.bridge",
            "no name of a bridge",
            json!(["br0", "br-lan.100", "a", "fifteen-letters", "br_0", "br@2", "<<"]),
            json!(["", "sixteen-letters-", "br/0", "br 0", ".", "..", "br:0", "br0,helper=/bin/sh", "brücke"]),
        ),
        case(
            "spec.vm.networks[].tap.mac",
            "no MAC address",
            json!(["52:54:00:12:34:56", "52-54-00-AB-cd-ef"]),
            json!([
                "",
                "52:54:00:12:34",
                "53:54:00:12:34:56",
                "52:54:00:12:34:5g",
                "525400123456",
                "52:54:00:12:34:56,"
            ]),
        ),
        case(
            "spec.vm.networks[].user.net",
            "no IPv4 network",
            json!(["10.0.2.0/24", "10.0.2.0", "192.168.76.0/255.255.255.0", "10.0.0.0/8", "255.1.20.199/30"]),
            json!([
                "",
                "10.0.2/24",
                "10.0.2.0/33",
                "10.0.2.256/24",
                "fd00::/64",
                "10.0.2.0/24,x=1",
                "10.0.2.0/",
                "10.0.2.0/31"
            ]),
        ),
        case(
            "spec.vm.networks[].user.forward",
            "a port of the pod twice",
            json!([[], [{"port": 5353, "guestPort": 53}, {"port": 5353, "guestPort": 53, "protocol": "UDP"}]]),
            json!([[{"port": 2222, "guestPort": 22}, {"port": 2222, "guestPort": 23}]]),
        ),
        case("spec.vm.networks[].user.forward[].port", "1024 to 65535", json!([1024, 65535]), json!([0, 80, 65536])),
        case("spec.vm.networks[].user.forward[].guestPort", "1 to 65535", json!([1, 65535]), json!([0, -1, 65536])),
        case("spec.vm", "networks forward the port", json!([elsewhere, udp, without_spice]), json!([clash])),
    ]
}

fn disk_cases() -> Vec<Case> {
    let named = |name: &str| json!({"volumeClaimTemplate": {"metadata": {"name": name}}});
    let at = |bootindex: i64| json!({"cdrom": {"image": ""}, "bootindex": bootindex});
    let cds = |n: usize| Value::Array(vec![json!({"cdrom": {"image": ""}}); n]);
    let unnamed = json!({"volumeClaimTemplate": {}});
    let checksum = format!("sha256:{}", "a".repeat(64));
    let volume = |at| case(at, "any volume", json!(["1Ei", "64Ti"]), json!(["1e99", "1000000000000000000Gi", "2Ei"]));
    vec![
        case(
            "spec.vm.disks",
            "same volumeClaimTemplate.metadata.name",
            json!([[], [named("a"), named("b"), unnamed, unnamed]]),
            json!([[named("a"), unnamed, named("a")]]),
        ),
        case(
            "spec.vm.disks",
            "same bootindex",
            json!([[at(0), at(1), unnamed, unnamed]]),
            json!([[at(1), unnamed, at(1)]]),
        ),
        case("spec.vm.disks", "room for 6", json!([cds(6)]), json!([cds(7)])),
        case(
            "spec.vm.disks[]",
            "either volumeClaimTemplate or cdrom",
            json!([unnamed, {"cdrom": {"image": ""}}]),
            json!([{}, {"volumeClaimTemplate": {}, "cdrom": {"image": ""}}]),
        ),
        case("spec.vm.disks[].bootindex", "boot order", json!([0, 2_147_483_647]), json!([-1, 2_147_483_648_u64])),
        case(
            "spec.vm.disks[].cdrom.image",
            "image repository",
            json!([
                "",
                "a.iso",
                "debian/a b.iso",
                "https://example.org/x/../a.iso",
                "a..b.iso",
                "/var/local/vmop-image-repository/a.iso",
                "file:///var/local/vmop-image-repository/a.iso"
            ]),
            json!([
                "/etc/passwd",
                "../a.iso",
                "a/../../b",
                "file:///etc/passwd",
                "/var/local/vmop-image-repository/../x",
                ".."
            ]),
        ),
        case(
            "spec.vm.disks[].cdrom.image",
            "no URL that can be fetched",
            json!(["http://10.0.0.1:8080/a.iso", "HTTPS://example.org", "https://[fd00::1]/a.iso?version=1#x"]),
            json!([
                "ftp://example.org/a.iso",
                "https://user:secret@example.org/a.iso",
                "https:///a.iso",
                "https://example.org/a b.iso",
                "https://example.org:port/a.iso",
                format!("https://example.org/{}", "x".repeat(2048)),
            ]),
        ),
        case(
            "spec.vm.disks[].cdrom",
            "a checksum and no URL",
            json!([{"image": "https://example.org/a.iso", "checksum": checksum}, {"image": "a.iso"}]),
            json!([
                {"image": "a.iso", "checksum": checksum},
                {"image": "", "checksum": checksum},
                {"image": "file:///var/local/vmop-image-repository/a.iso", "checksum": checksum},
            ]),
        ),
        case(
            "spec.vm.disks[].cdrom.checksum",
            "no checksum",
            json!([checksum, format!("sha256:{}", "A".repeat(64))]),
            json!([
                "",
                "a".repeat(64),
                "sha256:abc",
                format!("sha512:{}", "a".repeat(64)),
                format!("sha256:{}", "g".repeat(64))
            ]),
        ),
        case(
            "spec.vm.disks[].volumeClaimTemplate.metadata.name",
            "cannot name a volume",
            json!(["system", "0", "a-", "x".repeat(58)]),
            json!(["", "UPPER", "-a", "a.b", "a_b", "x".repeat(59)]),
        ),
        case(
            "spec.vm.disks[].volumeClaimTemplate.metadata.labels{}",
            "no value of a label",
            json!(["", "gold", "A.b_c-d"]),
            json!(["-gold", "a/b", "a b"]),
        ),
        case(
            "spec.vm.disks[].volumeClaimTemplate.spec.accessModes",
            "is empty",
            json!([["ReadWriteOnce"]]),
            json!([[]]),
        ),
        case(
            "spec.vm.disks[].volumeClaimTemplate.spec.accessModes[]",
            "no access mode",
            json!(["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]),
            json!(["RWO", ""]),
        ),
        case(
            "spec.vm.disks[].volumeClaimTemplate.spec",
            "size of the disk's image file",
            json!([{}, {"volumeMode": "Filesystem", "resources": {"requests": {"storage": "1Gi"}}}]),
            json!([{"volumeMode": "Filesystem"}, {"volumeMode": "Filesystem", "resources": {"limits": {"storage": "1Gi"}}}]),
        ),
        case(
            "spec.vm.disks[].volumeClaimTemplate.spec.resources",
            "requests more",
            json!([{"requests": {"storage": "10Gi"}, "limits": {"storage": "10Gi"}}]),
            json!([{"requests": {"storage": "10Gi"}, "limits": {"storage": "9Gi"}}]),
        ),
        case(
            "spec.vm.disks[].volumeClaimTemplate.spec.resources.limits{}",
            "amount",
            json!(["1Gi", 7]),
            json!(["1 GiB", -1]),
        ),
        case(
            "spec.vm.disks[].volumeClaimTemplate.spec.resources.requests{}",
            "amount",
            json!(["1Gi", 7]),
            json!(["1 GiB", -1]),
        ),
        volume("spec.vm.disks[].volumeClaimTemplate.spec.resources.limits{}"),
        volume("spec.vm.disks[].volumeClaimTemplate.spec.resources.requests{}"),
        case(
            "spec.vm.disks[].volumeClaimTemplate.spec.volumeMode",
            "no volume mode",
            json!(["Block"]),
            json!(["block", ""]),
        ),
    ]
}

fn display_cases() -> Vec<Case> {
    vec![
        case("spec.vm.display.outputs", "1 to 16", json!([1, 16]), json!([0, 17, -1])),
        case(
            "spec.vm.display.loggedInUser",
            "control characters",
            json!(["", "mnl", "Ä b"]),
            json!(["a\nlogin root", "a\u{7f}"]),
        ),
        case("spec.vm.display.spice.port", "1 to 65535", json!([1, 5900, 65535]), json!([0, 65536])),
        case("spec.vm.display.spice.usbRedirects", "0 to 14", json!([0, 2, 14]), json!([-1, 15])),
        case(
            "spec.vm.display.spice.streamingVideo",
            "off, all or filter",
            json!(["off", "all", "filter"]),
            json!(["", "on"]),
        ),
    ]
}

fn pod_cases() -> Vec<Case> {
    let key = |at, words| case(at, words, json!(["user-data", "a.B_c"]), json!(["", "a/b", "a b"]));
    let name = |at| case(at, "no name of an object", json!(["seed", "a.b-c"]), json!(["", "Seed", "-a", "a_b"]));
    let reference =
        |at| case(at, "names no image", json!(["registry.example.org:5000/a/b"]), json!(["", "a b", "a\n"]));
    let label = |at| case(at, "no value of a label", json!(["", "fast", "A.b_c-d"]), json!(["-fast", "a/b", "a b"]));
    let amount = |at| case(at, "amount", json!(["500m", 2, "8Gi", "0"]), json!(["8 GiB", -1, "", "many"]));
    let bounded = |at| case(at, "any node", json!(["4Pi", "12Ti"]), json!(["1e99", "1000000000000000000Gi", "5Pi"]));
    vec![
        case(
            "spec.image",
            "either source, or repository and path",
            json!([{"source": "a"}, {"repository": "a", "path": "b"}, {"source": "a", "repository": "b"}]),
            json!([{}, {"version": "1"}, {"repository": "a"}, {"source": "a", "repository": "b", "path": "c"}]),
        ),
        reference("spec.image.source"),
        reference("spec.image.repository"),
        reference("spec.image.path"),
        case("spec.image.version", "is no tag", json!(["7", "v1.2_3-rc"]), json!(["", "a b", "-1", "sha256:1"])),
        case(
            "spec.resources",
            "requests more",
            json!([{}, {"requests": {"cpu": 2, "memory": "1G"}, "limits": {"cpu": "2000m"}}]),
            json!([{"requests": {"cpu": 3}, "limits": {"cpu": "2000m"}}]),
        ),
        amount("spec.resources.limits{}"),
        amount("spec.resources.requests{}"),
        bounded("spec.resources.limits{}"),
        bounded("spec.resources.requests{}"),
        case("spec.nodeName", "no name of a node", json!(["", "node-1.example.org"]), json!(["Node", "-a", "a_b"])),
        label("spec.nodeSelector{}"),
        label("spec.podLabels{}"),
        label("spec.loadBalancerService.labels{}"),
        case(
            "spec.cloudInit",
            "either userData or userDataFrom",
            json!([{"userData": {}}, {"userDataFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]),
            json!([{"userData": {}, "userDataFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]),
        ),
        case(
            "spec.cloudInit",
            "either networkConfig or networkConfigFrom",
            json!([{"networkConfig": {}}, {"networkConfigFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]),
            json!([{"networkConfig": {}, "networkConfigFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]),
        ),
        name("spec.cloudInit.userDataFrom.secretKeyRef.name"),
        key("spec.cloudInit.userDataFrom.secretKeyRef.key", "no key of a secret"),
        name("spec.cloudInit.networkConfigFrom.secretKeyRef.name"),
        key("spec.cloudInit.networkConfigFrom.secretKeyRef.key", "no key of a secret"),
        case(
            "spec.permissions[]",
            "either user or role",
            json!([{"user": "a"}, {"role": "b"}]),
            json!([{}, {"user": "a", "role": "b"}]),
        ),
    ]
}

#[tokio::test]
async fn each_rule_admits_what_is_right_and_refuses_a_mistake_with_field_reason_and_way_out() {
    let world = World::without_definitions("admission").await;
    let definition = Definition::new(&world).await;
    let mut without_case: BTreeSet<_> = RULES.iter().map(|rule| (rule.at, rule.message)).collect();
    without_case.retain(|(at, _)| !at.is_empty());
    let mut wrong = Vec::new();
    for cases in [machine_cases(), network_cases(), disk_cases(), display_cases(), pod_cases()] {
        for Case { rule: (at, words), admitted, refused } in cases {
            let rule = RULES.iter().find(|rule| rule.at == at && rule.message.contains(words));
            let rule = rule.unwrap_or_else(|| panic!("no rule at {at} says {words:?}"));
            assert!(!admitted.is_empty() && !refused.is_empty(), "{at}");
            without_case.remove(&(rule.at, rule.message));
            for value in admitted {
                if let Err(error) = definition.create("vm", &spec(at, &value), true).await {
                    wrong.push(format!("{at}: {value} is refused: {error}"));
                }
            }
            for value in refused {
                match definition.create("vm", &spec(at, &value), true).await {
                    Ok(_) => wrong.push(format!("{at}: {value} is admitted")),
                    Err(error) => {
                        let error = error.to_string();
                        if !error.contains(&format!("{}: ", field(at))) || !error.contains(rule.message) {
                            wrong.push(format!("{at}: {value} is refused with other words: {error}"));
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(without_case.is_empty(), "rules without a case: {without_case:#?}");
}

#[tokio::test]
async fn a_vms_name_leaves_room_for_what_is_named_after_it() {
    let world = World::without_definitions("name").await;
    let definition = Definition::new(&world).await;
    let spec = json!({"vm": {}});
    definition.create(&"x".repeat(63), &spec, true).await.unwrap();
    let error = definition.create(&"x".repeat(64), &spec, true).await.unwrap_err().to_string();
    assert!(error.contains("metadata.name is too long") && error.contains("63"), "{error}");
}

#[tokio::test]
async fn what_the_schema_itself_refuses_is_told_with_the_field() {
    let world = World::without_definitions("schema").await;
    let definition = Definition::new(&world).await;
    let vm = |machine: Value| json!({"vm": machine});
    for (spec, field, words) in [
        (json!({}), "spec.vm", "Required"),
        (vm(json!({"state": "Paused"})), "spec.vm.state", "\"Stopped\", \"Running\""),
        (vm(json!({"firmware": "openfirmware"})), "spec.vm.firmware", "uefi-4m"),
        (vm(json!({"maximumRam": 8})), "spec.vm.maximumRam", "must be of type string"),
        (vm(json!({"disks": [{"cdrom": {}}]})), "spec.vm.disks[0].cdrom.image", "Required"),
        (vm(json!({"disks": vec![json!({"volumeClaimTemplate": {}}); 33]})), "spec.vm.disks", "at most 32 items"),
        (json!({"vm": {}, "image": {"source": "a", "pullPolicy": "Often"}}), "spec.image.pullPolicy", "IfNotPresent"),
        (json!({"vm": {}, "nodeSelector": {"a": "x".repeat(64)}}), "spec.nodeSelector.a", "more than 63"),
        (
            json!({"vm": {}, "permissions": [{"user": "a", "may": ["fly"]}]}),
            "spec.permissions[0].may[0]",
            "takeConsole",
        ),
    ] {
        let error = definition.create("vm", &spec, true).await.expect_err(&spec.to_string()).to_string();
        assert!(error.contains(field) && error.contains(words), "{spec}: {error}");
    }
}
