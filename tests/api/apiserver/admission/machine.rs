//! Rules of the VM's hardware, networks and display.

use super::{Case, case};
use serde_json::{Value, json};

/// A machine with those numbers of networks, disks with PVCs, and CD drives.
fn devices(networks: usize, disks: usize, cds: usize) -> Value {
    let disks = vec![json!({"volumeClaimTemplate": {}}); disks];
    let cds = vec![json!({"cdrom": {"image": ""}}); cds];
    let (networks, disks) = (vec![json!({"user": {}}); networks], [disks, cds].concat());
    json!({"networks": networks, "disks": disks})
}

pub fn cases() -> Vec<Case> {
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
    let no_sizes = json!([
        "", "lots", "8Gb", "-1Gi", "1.2.3Gi", "8 Gi B", "1,5Gi", "4 gib", "0x10", "8Gi;"
    ]);
    let too_much = json!([
        "1e99",
        "1000000000000000000Gi",
        "1000000000000000000 GiB",
        "128Ti",
        "5 PiB",
        "16E"
    ]);
    let small = json!(["0", "8", "512Ki", "1023 KiB", "1e5", "1000m"]);
    vec![
        case(
            "spec.vm.machineUuid",
            "a UUID",
            json!(["7A37e3b4-5bd0-4f7b-8a0c-b0e2a1b2c3d4"]),
            json!([
                "",
                "7a37e3b45bd04f7b8a0cb0e2a1b2c3d4",
                "7a37e3b4-5bd0-4f7b-8a0c-b0e2a1b2c3d4,x"
            ]),
        ),
        case(
            "spec.vm.powerdownTimeout",
            "31536000",
            json!([0, 900, 31_536_000]),
            json!([-1, 31_536_001]),
        ),
        case(
            "spec.vm.cpuModel",
            "a CPU model",
            json!([
                "host",
                "Skylake-Server,-hle,+pcid",
                "EPYC-v4",
                "qemu64,model-id=Some CPU @ 2.4GHz",
                "host,hv_time=on"
            ]),
            json!(["", "-host", "host\n", "host\" -device \"x"]),
        ),
        case(
            "spec.vm.maximumCpus",
            "number of CPUs",
            json!([1, 4096]),
            json!([0, -4, 4097]),
        ),
        case(
            "spec.vm.currentCpus",
            "number of CPUs",
            json!([1, 4096]),
            json!([0, -4, 4097]),
        ),
        case(
            "spec.vm",
            "maximumCpus and cpuTopology cannot both be set",
            json!([{}, {"maximumCpus": 2}, {"cpuTopology": {"sockets": 2}}, {"maximumCpus": 2, "currentCpus": 3}]),
            json!([{"maximumCpus": 2, "cpuTopology": {"sockets": 2}}]),
        ),
        case(
            "spec.vm",
            "currentCpus is more than the product of the fields of cpuTopology",
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
        case(
            "spec.vm.cpuTopology.sockets",
            "0 (unset) to 4096",
            json!([0, 1, 4096]),
            json!([-1, 4097]),
        ),
        case(
            "spec.vm.cpuTopology.diesPerSocket",
            "0 (unset) to 4096",
            json!([0, 1, 4096]),
            json!([-1, 4097]),
        ),
        case(
            "spec.vm.cpuTopology.coresPerDie",
            "0 (unset) to 4096",
            json!([0, 1, 4096]),
            json!([-1, 4097]),
        ),
        case(
            "spec.vm.cpuTopology.threadsPerCore",
            "0 (unset) to 4096",
            json!([0, 1, 4096]),
            json!([-1, 4097]),
        ),
        case(
            "spec.vm.cpuTopology",
            "a product of at most 4096",
            json!([{}, {"sockets": 64, "coresPerDie": 64}]),
            json!([{"sockets": 64, "coresPerDie": 64, "threadsPerCore": 2}]),
        ),
        case(
            "spec.vm.maximumRam",
            "is not a size",
            sizes.clone(),
            no_sizes.clone(),
        ),
        case(
            "spec.vm.currentRam",
            "is not a size",
            json!(["512Mi", "0.5 GiB", "1e8"]),
            no_sizes,
        ),
        case(
            "spec.vm.maximumRam",
            "less than 1 MiB",
            json!(["1Mi", "1 MiB", "1048576"]),
            small.clone(),
        ),
        case(
            "spec.vm.currentRam",
            "less than 1 MiB",
            json!(["1Mi", "1 MiB", "1048576"]),
            small,
        ),
        case(
            "spec.vm.maximumRam",
            "at most 127Ti",
            json!(["127Ti", "127 TiB"]),
            too_much.clone(),
        ),
        case(
            "spec.vm.currentRam",
            "at most 127Ti",
            json!(["1Mi"]),
            too_much,
        ),
        case(
            "spec.vm",
            "too many networks and disks",
            json!([devices(0, 23, 6), devices(1, 22, 0), devices(23, 0, 6)]),
            json!([devices(0, 24, 0), devices(1, 23, 0), devices(12, 12, 0)]),
        ),
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
            "utc, localtime or an existing date",
            json!([
                "utc",
                "localtime",
                "2026-01-31",
                "2026-01-31T12:00:00",
                "2026-1-3T1:2:3",
                "2026-01-31T12:00:00Z",
                "2028-02-29"
            ]),
            json!([
                "",
                "UTC",
                "2026-01-31T12",
                "utc,clock=vm",
                "2026-01-31 12:00:00",
                "2026-02-30",
                "2026-02-29T12:00:00",
                "2026-01-31T24:00:00"
            ]),
        ),
        case(
            "spec.vm.rtcClock",
            "rt, host or vm",
            json!(["rt", "host", "vm"]),
            json!(["", "RT", "tsc"]),
        ),
        case(
            "spec.vm.resetRequest",
            "raise the number for each request",
            json!([0, 7]),
            json!([-1]),
        ),
        case(
            "spec.vm.restartRequest",
            "raise the number for each request",
            json!([0, 7]),
            json!([-1]),
        ),
    ]
}

pub fn networks() -> Vec<Case> {
    let models = json!(["virtio-net", "e1000e", "virtio-net-pci", "rtl8139"]);
    let no_models = json!(["", "e1000,romfile=/etc/passwd", "-x", "e1000 e"]);
    let user = |forwards: Value| json!({"user": {"forward": forwards}});
    let clash = json!({"networks": [user(json!([{"port": 5900, "guestPort": 22}]))]});
    let mut elsewhere = clash.clone();
    elsewhere["display"] = json!({"spice": {"port": 5901}});
    let udp =
        json!({"networks": [user(json!([{"port": 5900, "guestPort": 22, "protocol": "UDP"}]))]});
    let mut without_spice = clash.clone();
    without_spice["display"] = json!({});
    vec![
        case(
            "spec.vm.networks[]",
            "either tap or user",
            json!([{"tap": {}}, {"user": {}}]),
            json!([{}, {"tap": {}, "user": {}}]),
        ),
        case(
            "spec.vm.networks[].name",
            "lower-case letters, digits and dashes",
            json!(["lan", "1", "storage-1", "a".repeat(63)]),
            json!(["", "LAN", "-lan", "lan-", "a.b", "a".repeat(64)]),
        ),
        case(
            "spec.vm.networks[].tap.device",
            "the name of a QEMU device",
            models.clone(),
            no_models.clone(),
        ),
        case(
            "spec.vm.networks[].user.device",
            "the name of a QEMU device",
            models,
            no_models,
        ),
        case(
            "spec.vm.networks[].tap.bridge",
            "a bridge name",
            json!([
                "br0",
                "br-lan.100",
                "a",
                "fifteen-letters",
                "br_0",
                "br@2",
                "<<"
            ]),
            json!([
                "",
                "sixteen-letters-",
                "br/0",
                "br 0",
                ".",
                "..",
                "br:0",
                "br0,helper=/bin/sh",
                "brücke"
            ]),
        ),
        case(
            "spec.vm.networks[].tap.mac",
            "a MAC address",
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
            "an IPv4 network",
            json!([
                "10.0.2.0/24",
                "10.0.2.0",
                "192.168.76.0/255.255.255.0",
                "10.0.0.0/8",
                "255.1.20.199/30"
            ]),
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
        case(
            "spec.vm.networks[].user.forward[].port",
            "1024 to 65535",
            json!([1024, 65535]),
            json!([0, 80, 65536]),
        ),
        case(
            "spec.vm.networks[].user.forward[].guestPort",
            "1 to 65535",
            json!([1, 65535]),
            json!([0, -1, 65536]),
        ),
        case(
            "spec.vm",
            "a network forwards the port",
            json!([elsewhere, udp, without_spice]),
            json!([clash]),
        ),
    ]
}

pub fn display() -> Vec<Case> {
    vec![
        case(
            "spec.vm.display.outputs",
            "1 to 16",
            json!([1, 16]),
            json!([0, 17, -1]),
        ),
        case(
            "spec.vm.display.loggedInUser",
            "control characters",
            json!(["", "mnl", "Ä b"]),
            json!(["a\nlogin root", "a\u{7f}"]),
        ),
        case(
            "spec.vm.display.spice.port",
            "1 to 65535",
            json!([1, 5900, 65535]),
            json!([0, 65536]),
        ),
        case(
            "spec.vm.display.spice.usbRedirects",
            "0 to 14",
            json!([0, 2, 14]),
            json!([-1, 15]),
        ),
        case(
            "spec.vm.display.spice.streamingVideo",
            "off, all or filter",
            json!(["off", "all", "filter"]),
            json!(["", "on"]),
        ),
    ]
}
