//! Rules and limits, in the order of the fields.

use crate::api::vm::rules::{Limit, Rule, compare, value};

/// A size as Kubernetes reads it: the runner's syntax differs by blanks and a `B` only.
macro_rules! size {
    ($value:literal) => {
        concat!($value, ".replace(' ', '').replace('B', '').replace('Ki', '#').replace('K', 'k').replace('#', 'Ki')")
    };
}

/// A part of an IPv4 address.
macro_rules! octet {
    () => {
        "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
    };
}

/// A URL of an image: host by name or address, no user, printable ASCII.
macro_rules! url_pattern {
    () => {
        r"^[Hh][Tt][Tt][Pp][Ss]?://([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?([/?#][!-~]*)?$"
    };
}

/// Both syntaxes of a size: `8Gi`, `1G`, `1e9`; `4 GiB`, `1.5 GB`.
const SIZE: &str = r"self.matches(r'^ *[+]?([0-9]+[.]?[0-9]*|[.][0-9]+)(m|[eE][+]?[0-9]{1,2}| *(B|kB?|KB?|[KMGTPE]iB?|[MGTPE]B?)?) *$')";
const SIZE_MESSAGE: &str = "is not a size; write one such as 512Mi, 8Gi, 1G, 4 GiB or 1.5 GiB";
/// Smaller ones are mistakes for sizes with units.
const WHOLE_MIB: &str = concat!(
    "!isQuantity(",
    size!("self"),
    ") || quantity(",
    size!("self"),
    ").compareTo(quantity('1Mi')) >= 0"
);
const WHOLE_MIB_MESSAGE: &str =
    "is less than 1 MiB; a number without a unit counts bytes: write 512Mi or 4 GiB";

/// What an x86 machine can address; a thousand times as much, as Kubernetes reckons, still fits 64 bits.
const WITHIN_MACHINE: &str = concat!(
    "!isQuantity(",
    size!("self"),
    ") || quantity(",
    size!("self"),
    ").compareTo(quantity('4Pi')) <= 0"
);
const WITHIN_MACHINE_MESSAGE: &str =
    "is more than any machine has; give at most 4Pi, which is 4096 TiB";

const AMOUNT: &str =
    "!isQuantity(string(self)) || quantity(string(self)).compareTo(quantity('4Pi')) <= 0";
const AMOUNT_MESSAGE: &str = "is more than any node has; give at most 4Pi";
const VOLUME: &str =
    "!isQuantity(string(self)) || quantity(string(self)).compareTo(quantity('1Ei')) <= 0";
const VOLUME_MESSAGE: &str = "is more than any volume has; give at most 1Ei";

const QUANTITY: &str =
    "isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('0')) >= 0";
const QUANTITY_MESSAGE: &str =
    "is not an amount that Kubernetes knows; write one such as 500m, 2 or 8Gi, and none below 0";
const WITHIN_LIMITS: &str = "!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) \
    || !isQuantity(string(self.requests[name])) || !isQuantity(string(self.limits[name])) \
    || quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)";
const WITHIN_LIMITS_MESSAGE: &str =
    "requests more than it limits; Kubernetes refuses that: raise the limit";

const LABEL_VALUE: &str = "self.matches(r'^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$')";
const LABEL_VALUE_MESSAGE: &str =
    "is no value of a label; use letters, digits, -, _ and ., with a letter or digit at both ends";
const DNS_NAME: &str = "self.matches(r'^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')";
const DNS_NAME_MESSAGE: &str = "is no name of an object; use lower-case letters, digits, - and .";
const IMAGE: &str = r"self.matches(r'^[^\s]+$')";
const IMAGE_MESSAGE: &str = "names no image; it must not be empty and has no blanks";
const COUNT: &str = "self >= 0 && self <= 4096";
const COUNT_MESSAGE: &str = "is no part of a topology; use 0 (not given) to 4096";
const CPUS: &str = "self >= 1 && self <= 4096";
const CPUS_MESSAGE: &str = "is no number of CPUs; a machine has 1 to 4096";
const DEVICE: &str = "self.matches(r'^[A-Za-z0-9][-A-Za-z0-9_.]*$')";
const DEVICE_MESSAGE: &str =
    "is no name of a QEMU device such as virtio-net or e1000e; options cannot be given with it";
const COUNTER: &str = "self >= 0";
const COUNTER_MESSAGE: &str = "counts requests; it begins at 0";

const SECRET_KEY: &str = "self.matches(r'^[-A-Za-z0-9_.]+$')";
const SECRET_KEY_MESSAGE: &str = "is no key of a secret; use letters, digits, -, _ and .";

/// QEMU fills up the parts that are not given, but with whole numbers only; dies count as given.
const FITS_TOPOLOGY: &str = "!has(self.currentCpus) || !has(self.cpuTopology) || [self.cpuTopology].all(t, \
    [(t.sockets > 0 ? t.sockets : 1) * (t.diesPerSocket > 0 ? t.diesPerSocket : 1) * (t.coresPerDie > 0 ? t.coresPerDie : 1) \
    * (t.threadsPerCore > 0 ? t.threadsPerCore : 1)].all(product, self.currentCpus <= product || product > 0 && \
    (t.sockets < 1 || t.coresPerDie < 1 || t.threadsPerCore < 1) && self.currentCpus % product == 0))";
const FITS_TOPOLOGY_MESSAGE: &str =
    "currentCpus is more than the CPUs of cpuTopology; enlarge it, or make currentCpus a multiple";

/// All rules.
pub const RULES: &[Rule] = &[
    compare(
        "",
        &["metadata"],
        "self.metadata.name.size() <= 63",
        "metadata.name is too long: the VM's objects carry it as a label, which has at most 63 characters",
    ),
    value(
        "spec.image",
        "has(self.source) != (has(self.repository) && has(self.path))",
        "give either source, or repository and path",
    ),
    value("spec.image.source", IMAGE, IMAGE_MESSAGE),
    value("spec.image.repository", IMAGE, IMAGE_MESSAGE),
    value("spec.image.path", IMAGE, IMAGE_MESSAGE),
    value(
        "spec.image.version",
        "self.matches(r'^[A-Za-z0-9_][-A-Za-z0-9_.]{0,127}$')",
        "is no tag; use up to 128 letters, digits, -, _ and .",
    ),
    value("spec.resources", WITHIN_LIMITS, WITHIN_LIMITS_MESSAGE),
    value("spec.resources.limits{}", QUANTITY, QUANTITY_MESSAGE),
    value("spec.resources.limits{}", AMOUNT, AMOUNT_MESSAGE),
    value("spec.resources.requests{}", QUANTITY, QUANTITY_MESSAGE),
    value("spec.resources.requests{}", AMOUNT, AMOUNT_MESSAGE),
    value(
        "spec.nodeName",
        "self.matches(r'^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$')",
        "is no name of a node; use lower-case letters, digits, - and .",
    ),
    value("spec.nodeSelector{}", LABEL_VALUE, LABEL_VALUE_MESSAGE),
    value("spec.podLabels{}", LABEL_VALUE, LABEL_VALUE_MESSAGE),
    value(
        "spec.metricsPort",
        "self >= 1024 && self <= 65535",
        "is no port that a runner can open; give 1024 to 65535",
    ),
    value(
        "spec.loadBalancerService.labels{}",
        LABEL_VALUE,
        LABEL_VALUE_MESSAGE,
    ),
    value(
        "spec.cloudInit",
        "!(has(self.userData) && has(self.userDataFrom))",
        "give either userData or userDataFrom",
    ),
    value(
        "spec.cloudInit",
        "!(has(self.networkConfig) && has(self.networkConfigFrom))",
        "give either networkConfig or networkConfigFrom",
    ),
    value(
        "spec.cloudInit.userDataFrom.secretKeyRef.name",
        DNS_NAME,
        DNS_NAME_MESSAGE,
    ),
    value(
        "spec.cloudInit.userDataFrom.secretKeyRef.key",
        SECRET_KEY,
        SECRET_KEY_MESSAGE,
    ),
    value(
        "spec.cloudInit.networkConfigFrom.secretKeyRef.name",
        DNS_NAME,
        DNS_NAME_MESSAGE,
    ),
    value(
        "spec.cloudInit.networkConfigFrom.secretKeyRef.key",
        SECRET_KEY,
        SECRET_KEY_MESSAGE,
    ),
    value(
        "spec.permissions[]",
        "has(self.user) != has(self.role)",
        "give either user or role",
    ),
    value(
        "spec.vm.machineUuid",
        "self.matches(r'^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$')",
        "is no UUID; write one such as 7a37e3b4-5bd0-4f7b-8a0c-b0e2a1b2c3d4, or leave it out and one is made",
    ),
    value(
        "spec.vm.powerdownTimeout",
        "self >= 0 && self <= 31536000",
        "is no time to shut down; give seconds from 0 to 31536000, which is a year",
    ),
    value(
        "spec.vm.cpuModel",
        "self.matches(r'^[A-Za-z0-9][-A-Za-z0-9_.,+=:@()/* ]*$')",
        "is no CPU model; give a name, and features behind commas, such as host or Skylake-Server,-hle",
    ),
    value("spec.vm.maximumCpus", CPUS, CPUS_MESSAGE),
    value("spec.vm.currentCpus", CPUS, CPUS_MESSAGE),
    compare(
        "spec.vm",
        &["maximumCpus", "cpuTopology"],
        "!(has(self.maximumCpus) && has(self.cpuTopology))",
        "give either maximumCpus or cpuTopology, whose product is the maximum",
    ),
    compare(
        "spec.vm",
        &["currentCpus", "cpuTopology"],
        FITS_TOPOLOGY,
        FITS_TOPOLOGY_MESSAGE,
    ),
    value("spec.vm.cpuTopology.sockets", COUNT, COUNT_MESSAGE),
    value("spec.vm.cpuTopology.diesPerSocket", COUNT, COUNT_MESSAGE),
    value("spec.vm.cpuTopology.coresPerDie", COUNT, COUNT_MESSAGE),
    value("spec.vm.cpuTopology.threadsPerCore", COUNT, COUNT_MESSAGE),
    value(
        "spec.vm.cpuTopology",
        "[self.sockets, self.diesPerSocket, self.coresPerDie, self.threadsPerCore].exists(n, n < 0 || n > 4096) \
         || (self.sockets > 0 ? self.sockets : 1) * (self.diesPerSocket > 0 ? self.diesPerSocket : 1) \
         * (self.coresPerDie > 0 ? self.coresPerDie : 1) * (self.threadsPerCore > 0 ? self.threadsPerCore : 1) <= 4096",
        "has more CPUs than any machine; its product is at most 4096",
    ),
    value("spec.vm.maximumRam", SIZE, SIZE_MESSAGE),
    value("spec.vm.maximumRam", WHOLE_MIB, WHOLE_MIB_MESSAGE),
    value("spec.vm.maximumRam", WITHIN_MACHINE, WITHIN_MACHINE_MESSAGE),
    value("spec.vm.currentRam", SIZE, SIZE_MESSAGE),
    value("spec.vm.currentRam", WHOLE_MIB, WHOLE_MIB_MESSAGE),
    value("spec.vm.currentRam", WITHIN_MACHINE, WITHIN_MACHINE_MESSAGE),
    compare(
        "spec.vm",
        &["maximumRam", "currentRam"],
        concat!(
            "!has(self.currentRam) || !isQuantity(",
            size!("self.currentRam"),
            ") || !isQuantity(",
            size!("self.maximumRam"),
            ") || quantity(",
            size!("self.currentRam"),
            ").compareTo(quantity(",
            size!("self.maximumRam"),
            ")) <= 0"
        ),
        "currentRam is more than maximumRam, and a machine never gets more than that; raise maximumRam (default 1G)",
    ),
    value(
        "spec.vm.rtcBase",
        "self.matches(r'^(utc|localtime|[0-9]{1,4}-[0-9]{1,2}-[0-9]{1,2}(T[0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}Z?)?)$')",
        "is no start of a clock; give utc, localtime or a date such as 2026-01-31T12:00:00",
    ),
    value(
        "spec.vm.rtcClock",
        "self in ['rt', 'host', 'vm']",
        "drives no clock; give rt, host or vm",
    ),
    value("spec.vm.resetRequest", COUNTER, COUNTER_MESSAGE),
    value("spec.vm.restartRequest", COUNTER, COUNTER_MESSAGE),
    value(
        "spec.vm.networks[]",
        "has(self.tap) != has(self.user)",
        "give either tap or user",
    ),
    value("spec.vm.networks[].tap.device", DEVICE, DEVICE_MESSAGE),
    value(
        "spec.vm.networks[].tap.bridge",
        r"self.matches(r'^[!-+.0-9;-~-]{1,15}$') && !(self in ['.', '..'])",
        "is no name of a bridge; give up to 15 ASCII characters, without blanks, slashes, colons and commas",
    ),
    value(
        "spec.vm.networks[].tap.mac",
        "self.matches(r'^[0-9A-Fa-f][02468ACEace]([:-][0-9A-Fa-f]{2}){5}$')",
        "is no MAC address of an interface; write one such as 52:54:00:12:34:56, with an even first octet",
    ),
    value("spec.vm.networks[].user.device", DEVICE, DEVICE_MESSAGE),
    value(
        "spec.vm.networks[].user.net",
        concat!(
            "self.matches(r'^",
            octet!(),
            "([.]",
            octet!(),
            "){3}(/([4-9]|[12][0-9]|30|",
            octet!(),
            "([.]",
            octet!(),
            "){3}))?$')"
        ),
        "is no IPv4 network; write one such as 10.0.2.0/24, with 4 to 30 bits",
    ),
    value(
        "spec.vm.networks[].user.forward",
        "self.all(a, self.exists_one(b, a.port == b.port && a.protocol == b.protocol))",
        "uses a port of the pod twice; give each its own",
    ),
    value(
        "spec.vm.networks[].user.forward[].port",
        "self >= 1024 && self <= 65535",
        "is no port that the pod can have: it is not root; give 1024 to 65535",
    ),
    value(
        "spec.vm.networks[].user.forward[].guestPort",
        "self >= 1 && self <= 65535",
        "is no port; give 1 to 65535",
    ),
    compare(
        "spec.vm",
        &["networks", "display.spice.port"],
        "!has(self.display.spice) || self.networks.all(n, !has(n.user) || !has(n.user.forward) \
         || n.user.forward.all(f, f.protocol != 'TCP' || f.port != self.display.spice.port))",
        "networks forward the port that display.spice has; give one of them another (SPICE's default is 5900)",
    ),
    value(
        "spec.vm.disks",
        "self.all(a, !has(a.volumeClaimTemplate) || !has(a.volumeClaimTemplate.metadata) \
         || !has(a.volumeClaimTemplate.metadata.name) || self.exists_one(b, has(b.volumeClaimTemplate) \
         && has(b.volumeClaimTemplate.metadata) && has(b.volumeClaimTemplate.metadata.name) \
         && a.volumeClaimTemplate.metadata.name == b.volumeClaimTemplate.metadata.name))",
        "has two with the same volumeClaimTemplate.metadata.name, which would be one claim; give each its own",
    ),
    value(
        "spec.vm.disks",
        "self.all(a, !has(a.bootindex) || self.exists_one(b, has(b.bootindex) && a.bootindex == b.bootindex))",
        "has two with the same bootindex, which the machine refuses; give each its own",
    ),
    value(
        "spec.vm.disks",
        "self.filter(disk, has(disk.cdrom)).size() <= 6",
        "has too many CD drives; the machine's controller has room for 6",
    ),
    value(
        "spec.vm.disks[]",
        "has(self.volumeClaimTemplate) != has(self.cdrom)",
        "give either volumeClaimTemplate or cdrom",
    ),
    value(
        "spec.vm.disks[].bootindex",
        "self >= 0 && self <= 2147483647",
        "is no place in the boot order; give 0 to 2147483647, or leave it out",
    ),
    value(
        "spec.vm.disks[].cdrom",
        "!has(self.checksum) || self.image.matches(r'^[A-Za-z]+://') && !self.image.startsWith('file://')",
        "has a checksum and no URL as image; only what is fetched is checked: leave the checksum out",
    ),
    value(
        "spec.vm.disks[].cdrom.checksum",
        "self.matches(r'^sha256:[0-9A-Fa-f]{64}$')",
        "is no checksum; give sha256: and 64 hexadecimal digits",
    ),
    value(
        "spec.vm.disks[].cdrom.image",
        "self.matches(r'^[A-Za-z][A-Za-z0-9+.-]*://') && !self.startsWith('file://') \
         || [self.startsWith('file://') ? self.substring(7) : self].all(path, !path.matches(r'(^|/)[.][.](/|$)') \
         && path.matches(r'^(/var/local/vmop-image-repository/)?([^/].*)?$'))",
        "is not in the image repository; give a path below /var/local/vmop-image-repository, without .., a URL, or \"\"",
    ),
    value(
        "spec.vm.disks[].cdrom.image",
        concat!(
            "!self.matches(r'^[A-Za-z][A-Za-z0-9+.-]*://') || self.startsWith('file://') \
             || self.size() <= 2048 && self.matches(r'",
            url_pattern!(),
            "')"
        ),
        "is no URL that can be fetched; give http:// or https://, a host without user and password, and up to 2048 \
         characters without blanks",
    ),
    value(
        "spec.vm.disks[].volumeClaimTemplate.metadata.name",
        "self.matches(r'^[a-z0-9][-a-z0-9]*$') && self.size() <= 58",
        "cannot name a volume of the pod; use up to 58 lower-case letters, digits and -, with no - in front",
    ),
    value(
        "spec.vm.disks[].volumeClaimTemplate.metadata.labels{}",
        LABEL_VALUE,
        LABEL_VALUE_MESSAGE,
    ),
    value(
        "spec.vm.disks[].volumeClaimTemplate.spec.accessModes",
        "self.size() > 0",
        "is empty; a claim needs one, such as ReadWriteOnce",
    ),
    value(
        "spec.vm.disks[].volumeClaimTemplate.spec.accessModes[]",
        "self in ['ReadWriteOnce', 'ReadOnlyMany', 'ReadWriteMany', 'ReadWriteOncePod']",
        "is no access mode; give ReadWriteOnce, ReadOnlyMany, ReadWriteMany or ReadWriteOncePod",
    ),
    value(
        "spec.vm.disks[].volumeClaimTemplate.spec",
        "self.volumeMode != 'Filesystem' || has(self.resources) && has(self.resources.requests) \
         && 'storage' in self.resources.requests",
        "needs resources.requests.storage: in Filesystem mode it is the size of the disk's image file",
    ),
    value(
        "spec.vm.disks[].volumeClaimTemplate.spec.resources",
        WITHIN_LIMITS,
        WITHIN_LIMITS_MESSAGE,
    ),
    value(
        "spec.vm.disks[].volumeClaimTemplate.spec.resources.limits{}",
        QUANTITY,
        QUANTITY_MESSAGE,
    ),
    value(
        "spec.vm.disks[].volumeClaimTemplate.spec.resources.limits{}",
        VOLUME,
        VOLUME_MESSAGE,
    ),
    value(
        "spec.vm.disks[].volumeClaimTemplate.spec.resources.requests{}",
        QUANTITY,
        QUANTITY_MESSAGE,
    ),
    value(
        "spec.vm.disks[].volumeClaimTemplate.spec.resources.requests{}",
        VOLUME,
        VOLUME_MESSAGE,
    ),
    value(
        "spec.vm.disks[].volumeClaimTemplate.spec.volumeMode",
        "self in ['Block', 'Filesystem']",
        "is no volume mode; give Block or Filesystem",
    ),
    value(
        "spec.vm.display.outputs",
        "self >= 1 && self <= 16",
        "is no number of screens; a machine has 1 to 16",
    ),
    value(
        "spec.vm.display.loggedInUser",
        r"!self.matches(r'[\x00-\x1f\x7f]')",
        "is no name of a user; it must not have line ends or other control characters",
    ),
    value(
        "spec.vm.display.spice.port",
        "self >= 1 && self <= 65535",
        "is no port; give 1 to 65535",
    ),
    value(
        "spec.vm.display.spice.usbRedirects",
        "self >= 0 && self <= 14",
        "is no number of USB channels; the machine has ports for 0 to 14",
    ),
    value(
        "spec.vm.display.spice.streamingVideo",
        "self in ['off', 'all', 'filter']",
        "is no way to stream video; give off, all or filter",
    ),
];

/// All limits.
pub const LIMITS: &[(&str, Limit)] = &[
    ("spec.image.source", Limit::Length(1024)),
    ("spec.image.repository", Limit::Length(1024)),
    ("spec.image.path", Limit::Length(1024)),
    ("spec.resources.limits", Limit::Entries(32)),
    ("spec.resources.limits{}", Limit::Length(64)),
    ("spec.resources.requests", Limit::Entries(32)),
    ("spec.resources.requests{}", Limit::Length(64)),
    ("spec.nodeName", Limit::Length(253)),
    ("spec.nodeSelector", Limit::Entries(256)),
    ("spec.nodeSelector{}", Limit::Length(63)),
    ("spec.podLabels", Limit::Entries(256)),
    ("spec.podLabels{}", Limit::Length(63)),
    ("spec.loadBalancerService.labels", Limit::Entries(256)),
    ("spec.loadBalancerService.labels{}", Limit::Length(63)),
    (
        "spec.cloudInit.userDataFrom.secretKeyRef.name",
        Limit::Length(253),
    ),
    (
        "spec.cloudInit.userDataFrom.secretKeyRef.key",
        Limit::Length(253),
    ),
    (
        "spec.cloudInit.networkConfigFrom.secretKeyRef.name",
        Limit::Length(253),
    ),
    (
        "spec.cloudInit.networkConfigFrom.secretKeyRef.key",
        Limit::Length(253),
    ),
    ("spec.permissions", Limit::Items(4096)),
    ("spec.vm.cpuModel", Limit::Length(1024)),
    ("spec.vm.maximumRam", Limit::Length(64)),
    ("spec.vm.currentRam", Limit::Length(64)),
    ("spec.vm.rtcBase", Limit::Length(32)),
    ("spec.vm.networks", Limit::Items(32)),
    ("spec.vm.networks[].tap.device", Limit::Length(64)),
    ("spec.vm.networks[].tap.bridge", Limit::Length(64)),
    ("spec.vm.networks[].tap.mac", Limit::Length(64)),
    ("spec.vm.networks[].user.device", Limit::Length(64)),
    ("spec.vm.networks[].user.net", Limit::Length(64)),
    ("spec.vm.networks[].user.forward", Limit::Items(64)),
    ("spec.vm.disks", Limit::Items(32)),
    ("spec.vm.disks[].cdrom.checksum", Limit::Length(71)),
    ("spec.vm.disks[].cdrom.image", Limit::Length(4096)),
    (
        "spec.vm.disks[].volumeClaimTemplate.metadata.name",
        Limit::Length(64),
    ),
    (
        "spec.vm.disks[].volumeClaimTemplate.metadata.labels",
        Limit::Entries(64),
    ),
    (
        "spec.vm.disks[].volumeClaimTemplate.metadata.labels{}",
        Limit::Length(63),
    ),
    (
        "spec.vm.disks[].volumeClaimTemplate.spec.accessModes",
        Limit::Items(4),
    ),
    (
        "spec.vm.disks[].volumeClaimTemplate.spec.accessModes[]",
        Limit::Length(16),
    ),
    (
        "spec.vm.disks[].volumeClaimTemplate.spec.resources.limits",
        Limit::Entries(8),
    ),
    (
        "spec.vm.disks[].volumeClaimTemplate.spec.resources.limits{}",
        Limit::Length(64),
    ),
    (
        "spec.vm.disks[].volumeClaimTemplate.spec.resources.requests",
        Limit::Entries(8),
    ),
    (
        "spec.vm.disks[].volumeClaimTemplate.spec.resources.requests{}",
        Limit::Length(64),
    ),
    ("spec.vm.display.loggedInUser", Limit::Length(256)),
];
