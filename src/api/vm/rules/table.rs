//! Rules and limits, in the order of the fields.

use crate::api::vm::bounds::{
    cd_drives_max, cpus_max, disk_name_length_max, label_value_length_max, outputs_max,
    pci_devices_max, powerdown_timeout_max, ram_max_tib, ram_min_mib, usb_redirects_max,
};
use crate::api::vm::rules::{Limit, Rule, compare, value};

/// CEL: the size in the syntax of Kubernetes. The runner's syntax differs only by blanks and the letter `B`.
macro_rules! size {
    ($value:literal) => {
        concat!($value, ".replace(' ', '').replace('B', '').replace('Ki', '#').replace('K', 'k').replace('#', 'Ki')")
    };
}

/// Regular expression of an octet of an IPv4 address.
macro_rules! octet {
    () => {
        "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
    };
}

/// Regular expression of the URL of an image: a host name or address, no user, printable ASCII.
macro_rules! url_pattern {
    () => {
        r"^[Hh][Tt][Tt][Pp][Ss]?://([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?([/?#][!-~]*)?$"
    };
}

/// Regular expression of a date that exists. Year, month and day need no leading zeros.
macro_rules! date {
    () => {
        concat!(
            "([0-9]{1,4}-((0?[13578]|1[02])-(0?[1-9]|[12][0-9]|3[01])|(0?[469]|11)-(0?[1-9]|[12][0-9]|30)|",
            "0?2-(0?[1-9]|1[0-9]|2[0-8]))|",
            "([0-9]{0,2}(0[48]|[2468][048]|[13579][26])|[48]|([02468]?[048]|[13579][26])00)-0?2-29)"
        )
    };
}
/// Regular expression of a date that exists.
pub const DATE: &str = date!();

/// Both syntaxes of a size: `8Gi`, `1G`, `1e9`; `4 GiB`, `1.5 GB`.
const SIZE: &str = r"self.matches(r'^ *[+]?([0-9]+[.]?[0-9]*|[.][0-9]+)(m|[eE][+]?[0-9]{1,2}| *(B|kB?|KB?|[KMGTPE]iB?|[MGTPE]B?)?) *$')";
const SIZE_MESSAGE: &str = "is not a size; write a size such as 512Mi, 8Gi, 1G, 4 GiB or 1.5 GiB";
/// A smaller size is a number with a forgotten unit.
const WHOLE_MIB: &str = concat!(
    "!isQuantity(",
    size!("self"),
    ") || quantity(",
    size!("self"),
    ").compareTo(quantity('",
    ram_min_mib!(),
    "Mi')) >= 0"
);
const WHOLE_MIB_MESSAGE: &str = concat!(
    "is less than ",
    ram_min_mib!(),
    " MiB; a number without a unit means bytes, so add a unit, as in 512Mi or 4 GiB"
);

/// QEMU must map the guest's memory.
const WITHIN_MACHINE: &str = concat!(
    "!isQuantity(",
    size!("self"),
    ") || quantity(",
    size!("self"),
    ").compareTo(quantity('",
    ram_max_tib!(),
    "Ti')) <= 0"
);
const WITHIN_MACHINE_MESSAGE: &str = concat!(
    "must be at most ",
    ram_max_tib!(),
    "Ti, the maximum that QEMU can map"
);

const AMOUNT: &str =
    "!isQuantity(string(self)) || quantity(string(self)).compareTo(quantity('4Pi')) <= 0";
const AMOUNT_MESSAGE: &str = "must be an amount of at most 4Pi";
const VOLUME: &str =
    "!isQuantity(string(self)) || quantity(string(self)).compareTo(quantity('1Ei')) <= 0";
const VOLUME_MESSAGE: &str = "must be an amount of at most 1Ei";

const QUANTITY: &str =
    "isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('0')) >= 0";
const QUANTITY_MESSAGE: &str =
    "must be a Kubernetes quantity of at least 0, such as 500m, 2 or 8Gi";
const WITHIN_LIMITS: &str = "!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) \
    || !isQuantity(string(self.requests[name])) || !isQuantity(string(self.limits[name])) \
    || quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)";
const WITHIN_LIMITS_MESSAGE: &str = "has a request that exceeds the limit of the same resource; raise the limit or lower the \
    request";

const LABEL_VALUE: &str = "self.matches(r'^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$')";
const LABEL_VALUE_MESSAGE: &str = "must be a label value: letters, digits, dashes, underscores and dots, with a letter or digit at both ends";
const DNS_NAME: &str = "self.matches(r'^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')";
const DNS_NAME_MESSAGE: &str =
    "must be an object name: lower-case letters, digits, dashes and dots";
const IMAGE_CHECKSUM: &str = "self.matches(r'^(sha256:[0-9A-Fa-f]{64}|sha512:[0-9A-Fa-f]{128})$')";
const IMAGE_CHECKSUM_MESSAGE: &str =
    "must be a checksum, written as sha256: and 64 hexadecimal digits, or sha512: and 128";
const IMAGE: &str = r"self.matches(r'^[^\s]+$')";
const IMAGE_MESSAGE: &str = "must be an image reference, not empty and without blanks";
const IMAGE_REPOSITORY_MESSAGE: &str = "must be a registry such as registry.example.org, or a registry with a project, not empty \
    and without blanks";
const IMAGE_PATH_MESSAGE: &str =
    "must be an image path such as project/vm-runner, not empty and without blanks";
const COUNT: &str = concat!("self >= 0 && self <= ", cpus_max!());
const COUNT_MESSAGE: &str = concat!("must be a number from 0 (unset) to ", cpus_max!());
const CPUS: &str = concat!("self >= 1 && self <= ", cpus_max!());
const CPUS_MESSAGE: &str = concat!("must be a number of CPUs from 1 to ", cpus_max!());
const DEVICE: &str = "self.matches(r'^[A-Za-z0-9][-A-Za-z0-9_.]*$')";
const DEVICE_MESSAGE: &str =
    "must be the name of a QEMU device, such as virtio-net or e1000e, without options";
const COUNTER: &str = "self >= 0";
const COUNTER_MESSAGE: &str = "must be at least 0; raise the number for each request";

const SECRET_KEY: &str = "self.matches(r'^[-A-Za-z0-9_.]+$')";
const SECRET_KEY_MESSAGE: &str =
    "must be a key of a Secret: letters, digits, dashes, underscores and dots";

/// QEMU chooses unspecified fields, but only as whole numbers. It never chooses the dies.
const FITS_TOPOLOGY: &str = "!has(self.currentCpus) || !has(self.cpuTopology) || [self.cpuTopology].all(t, \
    [(t.sockets > 0 ? t.sockets : 1) * (t.diesPerSocket > 0 ? t.diesPerSocket : 1) * (t.coresPerDie > 0 ? t.coresPerDie : 1) \
    * (t.threadsPerCore > 0 ? t.threadsPerCore : 1)].all(product, self.currentCpus <= product || product > 0 && \
    (t.sockets < 1 || t.coresPerDie < 1 || t.threadsPerCore < 1) && self.currentCpus % product == 0))";
const FITS_TOPOLOGY_MESSAGE: &str = "currentCpus is more than the product of the fields of cpuTopology, in which 0 \
    counts as 1; lower currentCpus or raise a field. If sockets, coresPerDie or threadsPerCore is 0, a multiple of the product \
    is also allowed";

/// All rules.
pub const RULES: &[Rule] = &[
    compare(
        "",
        &["metadata"],
        concat!("self.metadata.name.size() <= ", label_value_length_max!()),
        concat!(
            "metadata.name is too long; use at most ",
            label_value_length_max!(),
            " characters, because the name is a label value of the VM's objects"
        ),
    ),
    value(
        "spec.image",
        "has(self.source) != (has(self.repository) && has(self.path))",
        "set either source, or repository and path",
    ),
    value("spec.image.source", IMAGE, IMAGE_MESSAGE),
    value("spec.image.repository", IMAGE, IMAGE_REPOSITORY_MESSAGE),
    value("spec.image.path", IMAGE, IMAGE_PATH_MESSAGE),
    value(
        "spec.image.version",
        "self.matches(r'^[A-Za-z0-9_][-A-Za-z0-9_.]{0,127}$')",
        "must be an image tag: at most 128 ASCII letters, digits, underscores, dots and dashes, without a dot or dash at the start",
    ),
    value("spec.resources", WITHIN_LIMITS, WITHIN_LIMITS_MESSAGE),
    value("spec.resources.limits{}", QUANTITY, QUANTITY_MESSAGE),
    value("spec.resources.limits{}", AMOUNT, AMOUNT_MESSAGE),
    value("spec.resources.requests{}", QUANTITY, QUANTITY_MESSAGE),
    value("spec.resources.requests{}", AMOUNT, AMOUNT_MESSAGE),
    value(
        "spec.nodeName",
        "self.matches(r'^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$')",
        "must be a node name: lower-case letters, digits, dashes and dots",
    ),
    value("spec.nodeSelector{}", LABEL_VALUE, LABEL_VALUE_MESSAGE),
    value("spec.podLabels{}", LABEL_VALUE, LABEL_VALUE_MESSAGE),
    value(
        "spec.metricsPort",
        "self >= 1024 && self <= 65535",
        "must be a port from 1024 to 65535; the runner cannot open lower ports",
    ),
    value(
        "spec.consolePort",
        "self >= 1024 && self <= 65535",
        "must be a port from 1024 to 65535; the runner cannot open lower ports",
    ),
    value(
        "spec.loadBalancerService.labels{}",
        LABEL_VALUE,
        LABEL_VALUE_MESSAGE,
    ),
    value(
        "spec.cloudInit",
        "!(has(self.userData) && has(self.userDataFrom))",
        "must not have both userData and userDataFrom; remove one of the two fields",
    ),
    value(
        "spec.cloudInit",
        "!(has(self.networkConfig) && has(self.networkConfigFrom))",
        "must not have both networkConfig and networkConfigFrom; remove one of the two fields",
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
        "set either user or role",
    ),
    value(
        "spec.vm.machineUuid",
        "self.matches(r'^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$')",
        "must be a UUID such as 7a37e3b4-5bd0-4f7b-8a0c-b0e2a1b2c3d4; omit the field to generate a UUID",
    ),
    value(
        "spec.vm.powerdownTimeout",
        concat!("self >= 0 && self <= ", powerdown_timeout_max!()),
        concat!(
            "must be a number of seconds from 0 to ",
            powerdown_timeout_max!(),
            ", which is a year"
        ),
    ),
    value(
        "spec.vm.cpuModel",
        "self.matches(r'^[A-Za-z0-9][-A-Za-z0-9_.,+=:@()/* ]*$')",
        "must be a CPU model with optional features after commas, such as host or Skylake-Server,-hle",
    ),
    value("spec.vm.maximumCpus", CPUS, CPUS_MESSAGE),
    value("spec.vm.currentCpus", CPUS, CPUS_MESSAGE),
    compare(
        "spec.vm",
        &["maximumCpus", "cpuTopology"],
        "!(has(self.maximumCpus) && has(self.cpuTopology))",
        "maximumCpus and cpuTopology cannot both be set; remove maximumCpus, because cpuTopology determines the maximum \
         number of CPUs",
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
        concat!(
            "[self.sockets, self.diesPerSocket, self.coresPerDie, self.threadsPerCore].exists(n, n < 0 || n > ",
            cpus_max!(),
            ") || (self.sockets > 0 ? self.sockets : 1) * (self.diesPerSocket > 0 ? self.diesPerSocket : 1) \
             * (self.coresPerDie > 0 ? self.coresPerDie : 1) * (self.threadsPerCore > 0 ? self.threadsPerCore : 1) <= ",
            cpus_max!()
        ),
        concat!(
            "must have fields with a product of at most ",
            cpus_max!(),
            " CPUs; lower sockets, diesPerSocket, coresPerDie or threadsPerCore"
        ),
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
        "currentRam is more than maximumRam; lower currentRam, or raise maximumRam (default 1G)",
    ),
    value(
        "spec.vm.rtcBase",
        concat!(
            "self.matches(r'^(utc|localtime|",
            date!(),
            "(T([01]?[0-9]|2[0-3]):[0-5]?[0-9]:[0-5]?[0-9]Z?)?)$')"
        ),
        "must be utc, localtime or an existing date such as 2026-01-31T12:00:00",
    ),
    value(
        "spec.vm.rtcClock",
        "self in ['rt', 'host', 'vm']",
        "must be a clock source: rt, host or vm",
    ),
    value("spec.vm.resetRequest", COUNTER, COUNTER_MESSAGE),
    value("spec.vm.restartRequest", COUNTER, COUNTER_MESSAGE),
    value(
        "spec.vm.networks[]",
        "has(self.tap) != has(self.user)",
        "set either tap or user",
    ),
    value(
        "spec.vm.networks[].name",
        "self.matches(r'^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",
        "must have up to 63 lower-case letters, digits and dashes, such as lan or storage-1",
    ),
    value("spec.vm.networks[].tap.device", DEVICE, DEVICE_MESSAGE),
    value(
        "spec.vm.networks[].tap.bridge",
        r"self.matches(r'^[!-+.0-9;-~-]{1,15}$') && !(self in ['.', '..'])",
        "must be a bridge name: up to 15 ASCII characters, without blanks, slashes, colons and commas",
    ),
    value(
        "spec.vm.networks[].tap.mac",
        "self.matches(r'^[0-9A-Fa-f][02468ACEace]([:-][0-9A-Fa-f]{2}){5}$')",
        "must be a MAC address such as 52:54:00:12:34:56, with an even first octet",
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
        "must be an IPv4 network with a prefix length from 4 to 29, such as 10.0.2.0/24",
    ),
    value(
        "spec.vm.networks[].user.forward",
        "self.all(a, self.exists_one(b, a.port == b.port && a.protocol == b.protocol))",
        "forwards a port of the pod twice; use each combination of port and protocol once",
    ),
    value(
        "spec.vm.networks[].user.forward[].port",
        "self >= 1024 && self <= 65535",
        "must be a port from 1024 to 65535; the pod has no privilege for lower ports",
    ),
    value(
        "spec.vm.networks[].user.forward[].guestPort",
        "self >= 1 && self <= 65535",
        "must be a port from 1 to 65535",
    ),
    compare(
        "spec.vm",
        &["networks", "disks"],
        concat!(
            "self.networks.size() + self.disks.filter(disk, has(disk.volumeClaimTemplate)).size() <= ",
            pci_devices_max!()
        ),
        concat!(
            "has too many networks and disks; use at most ",
            pci_devices_max!(),
            " networks and disks with PVCs in total; CD drives do not count"
        ),
    ),
    compare(
        "spec.vm",
        &["networks", "display.spice.port"],
        "!has(self.display.spice) || self.networks.all(n, !has(n.user) || !has(n.user.forward) \
         || n.user.forward.all(f, f.protocol != 'TCP' || f.port != self.display.spice.port))",
        "a network forwards the port of display.spice; use another port for the network or the display (default of \
         display.spice.port: 5900)",
    ),
    value(
        "spec.vm.disks",
        "self.all(a, !has(a.volumeClaimTemplate) || !has(a.volumeClaimTemplate.metadata) \
         || !has(a.volumeClaimTemplate.metadata.name) || self.exists_one(b, has(b.volumeClaimTemplate) \
         && has(b.volumeClaimTemplate.metadata) && has(b.volumeClaimTemplate.metadata.name) \
         && a.volumeClaimTemplate.metadata.name == b.volumeClaimTemplate.metadata.name))",
        "has two disks with the same volumeClaimTemplate.metadata.name, which is part of the PVC's name; use a different name \
         for each",
    ),
    value(
        "spec.vm.disks",
        "self.all(a, !has(a.bootindex) || self.exists_one(b, has(b.bootindex) && a.bootindex == b.bootindex))",
        "has two items with the same bootindex; use a different value for each",
    ),
    value(
        "spec.vm.disks",
        concat!(
            "self.filter(disk, has(disk.cdrom)).size() <= ",
            cd_drives_max!()
        ),
        concat!(
            "has too many CD drives; use at most ",
            cd_drives_max!(),
            ", because the VM's SATA controller has no more ports"
        ),
    ),
    value(
        "spec.vm.disks[]",
        "has(self.volumeClaimTemplate) != has(self.cdrom)",
        "set either volumeClaimTemplate or cdrom",
    ),
    value(
        "spec.vm.disks[]",
        "!has(self.source) || has(self.volumeClaimTemplate)",
        "has a source, but no volumeClaimTemplate; remove the source, because it fills the PVC of a disk",
    ),
    value(
        "spec.vm.disks[].source",
        "[has(self.http), has(self.pvc), has(self.upload)].exists_one(kind, kind)",
        "has no kind, or several; set either http, pvc or upload",
    ),
    value(
        "spec.vm.disks[].source.upload.checksum",
        IMAGE_CHECKSUM,
        IMAGE_CHECKSUM_MESSAGE,
    ),
    value(
        "spec.vm.disks[].source.pvc.name",
        DNS_NAME,
        DNS_NAME_MESSAGE,
    ),
    value(
        "spec.vm.disks[].source.http.url",
        concat!("self.matches(r'", url_pattern!(), "')"),
        "is not a URL that can be downloaded; use http:// or https://, and a host without user and password",
    ),
    value(
        "spec.vm.disks[].source.http.checksum",
        IMAGE_CHECKSUM,
        IMAGE_CHECKSUM_MESSAGE,
    ),
    value(
        "spec.vm.disks[].source.http.secretName",
        DNS_NAME,
        DNS_NAME_MESSAGE,
    ),
    value(
        "spec.vm.disks[].bootindex",
        "self >= 0 && self <= 2147483647",
        "must be a position in the boot order from 0 to 2147483647; omit the field for no position",
    ),
    value(
        "spec.vm.disks[].cdrom",
        "!has(self.checksum) || self.image.matches(r'^[A-Za-z]+://') && !self.image.startsWith('file://')",
        "has a checksum, but image is not a URL; remove the checksum, because only downloaded images are checked",
    ),
    value(
        "spec.vm.disks[].cdrom.checksum",
        "self.matches(r'^sha256:[0-9A-Fa-f]{64}$')",
        "must be a checksum, written as sha256: and 64 hexadecimal digits",
    ),
    value(
        "spec.vm.disks[].cdrom.image",
        "self.matches(r'^[A-Za-z][A-Za-z0-9+.-]*://') && !self.startsWith('file://') \
         || [self.startsWith('file://') ? self.substring(7) : self].all(path, !path.matches(r'(^|/)[.][.](/|$)') \
         && path.matches(r'^(/var/local/vmop-image-repository/)?([^/].*)?$'))",
        "is not a path in the image repository; use a relative path without parent directories (..), \
         a URL, or an empty string for an empty drive",
    ),
    value(
        "spec.vm.disks[].cdrom.image",
        concat!(
            "!self.matches(r'^[A-Za-z][A-Za-z0-9+.-]*://') || self.startsWith('file://') \
             || self.size() <= 2048 && self.matches(r'",
            url_pattern!(),
            "')"
        ),
        "is not a URL that can be downloaded; use http:// or https://, a host without user and password, and up to 2048 \
         characters without blanks",
    ),
    value(
        "spec.vm.disks[].volumeClaimTemplate.metadata.name",
        concat!(
            "self.matches(r'^[a-z0-9][-a-z0-9]*$') && self.size() <= ",
            disk_name_length_max!()
        ),
        concat!(
            "must be a volume name: up to ",
            disk_name_length_max!(),
            " lower-case letters, digits and dashes, without a dash at the start"
        ),
    ),
    value(
        "spec.vm.disks[].volumeClaimTemplate.metadata.labels{}",
        LABEL_VALUE,
        LABEL_VALUE_MESSAGE,
    ),
    value(
        "spec.vm.disks[].volumeClaimTemplate.spec.accessModes",
        "self.size() > 0",
        "must not be empty; use an access mode such as ReadWriteOnce",
    ),
    value(
        "spec.vm.disks[].volumeClaimTemplate.spec.accessModes[]",
        "self in ['ReadWriteOnce', 'ReadOnlyMany', 'ReadWriteMany', 'ReadWriteOncePod']",
        "must be ReadWriteOnce, ReadOnlyMany, ReadWriteMany or ReadWriteOncePod",
    ),
    value(
        "spec.vm.disks[].volumeClaimTemplate.spec",
        "!has(self.volumeMode) || self.volumeMode != 'Filesystem' || has(self.resources) && has(self.resources.requests) \
         && 'storage' in self.resources.requests",
        "has volumeMode Filesystem, which requires resources.requests.storage; set the size of the disk there, such as 20Gi",
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
        "must be a volume mode: Block or Filesystem",
    ),
    value(
        "spec.vm.display.outputs",
        concat!("self >= 1 && self <= ", outputs_max!()),
        concat!("must be a number of screens from 1 to ", outputs_max!()),
    ),
    value(
        "spec.vm.display.loggedInUser",
        r"!self.matches(r'[\x00-\x1f\x7f]')",
        "must be a user name without line ends and other control characters",
    ),
    value(
        "spec.vm.display.spice.port",
        "self >= 1 && self <= 65535",
        "must be a port from 1 to 65535",
    ),
    value(
        "spec.vm.display.spice.usbRedirects",
        concat!("self >= 0 && self <= ", usb_redirects_max!()),
        concat!(
            "must be a number of USB redirection channels from 0 to ",
            usb_redirects_max!()
        ),
    ),
    value(
        "spec.vm.display.spice.streamingVideo",
        "self in ['off', 'all', 'filter']",
        "must be a mode of video streaming: off, all or filter",
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
    (
        "spec.nodeSelector{}",
        Limit::Length(label_value_length_max!()),
    ),
    ("spec.podLabels", Limit::Entries(256)),
    ("spec.podLabels{}", Limit::Length(label_value_length_max!())),
    ("spec.loadBalancerService.labels", Limit::Entries(256)),
    (
        "spec.loadBalancerService.labels{}",
        Limit::Length(label_value_length_max!()),
    ),
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
    ("spec.vm.networks", Limit::Items(23)),
    ("spec.vm.networks[].name", Limit::Length(64)),
    ("spec.vm.networks[].tap.device", Limit::Length(64)),
    ("spec.vm.networks[].tap.bridge", Limit::Length(64)),
    ("spec.vm.networks[].tap.mac", Limit::Length(64)),
    ("spec.vm.networks[].user.device", Limit::Length(64)),
    ("spec.vm.networks[].user.net", Limit::Length(64)),
    ("spec.vm.networks[].user.forward", Limit::Items(64)),
    ("spec.vm.disks", Limit::Items(29)),
    ("spec.vm.disks[].cdrom.checksum", Limit::Length(71)),
    ("spec.vm.disks[].cdrom.image", Limit::Length(4096)),
    ("spec.vm.disks[].source.http.url", Limit::Length(2048)),
    ("spec.vm.disks[].source.http.checksum", Limit::Length(135)),
    ("spec.vm.disks[].source.http.secretName", Limit::Length(253)),
    ("spec.vm.disks[].source.pvc.name", Limit::Length(253)),
    ("spec.vm.disks[].source.upload.checksum", Limit::Length(135)),
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
        Limit::Length(label_value_length_max!()),
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
