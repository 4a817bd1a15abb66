//! Rules about disks and CD drives.

use super::{Case, case};
use serde_json::{Value, json};

pub fn cases() -> Vec<Case> {
    let named = |name: &str| json!({"volumeClaimTemplate": {"metadata": {"name": name}}});
    let at = |bootindex: i64| json!({"cdrom": {"image": ""}, "bootindex": bootindex});
    let cds = |n: usize| Value::Array(vec![json!({"cdrom": {"image": ""}}); n]);
    let image = |url: &str| json!({"http": {"url": url}});
    let unnamed = json!({"volumeClaimTemplate": {}});
    let checksum = format!("sha256:{}", "a".repeat(64));
    let volume = |at| {
        case(
            at,
            "at most 1Ei",
            json!(["1Ei", "64Ti"]),
            json!(["1e99", "1000000000000000000Gi", "2Ei"]),
        )
    };
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
        case(
            "spec.vm.disks",
            "at most 6",
            json!([cds(6)]),
            json!([cds(7)]),
        ),
        case(
            "spec.vm.disks[]",
            "either volumeClaimTemplate or cdrom",
            json!([unnamed, {"cdrom": {"image": ""}}]),
            json!([{}, {"volumeClaimTemplate": {}, "cdrom": {"image": ""}}]),
        ),
        case(
            "spec.vm.disks[]",
            "has a source, but no volumeClaimTemplate",
            json!([{"volumeClaimTemplate": {}, "source": image("https://example.org/a")}]),
            json!([{"cdrom": {"image": ""}, "source": image("https://example.org/a")}]),
        ),
        case(
            "spec.vm.disks[].source",
            "set either http, pvc or upload",
            json!([image("https://example.org/a"), {"pvc": {"name": "golden"}}, {"upload": {}}]),
            json!([
                {},
                {"http": {"url": "https://example.org/a"}, "pvc": {"name": "golden"}},
                {"upload": {}, "pvc": {"name": "golden"}}
            ]),
        ),
        case(
            "spec.vm.disks[].source.upload.checksum",
            "must be a checksum",
            json!([checksum.clone()]),
            json!(["", "sha256:abc"]),
        ),
        case(
            "spec.vm.disks[].source.pvc.name",
            "object name",
            json!(["golden", "a.b-1"]),
            json!(["", "Golden", "a/b"]),
        ),
        case(
            "spec.vm.disks[].source.http.url",
            "not a URL that can be downloaded",
            json!(["http://10.0.0.1:8080/a.qcow2", "HTTPS://example.org/?a=b"]),
            json!([
                "",
                "a.qcow2",
                "ftp://example.org/a",
                "https://user:secret@example.org/a"
            ]),
        ),
        case(
            "spec.vm.disks[].source.http.checksum",
            "must be a checksum",
            json!([checksum, format!("sha512:{}", "A".repeat(128))]),
            json!([
                "",
                "sha256:abc",
                format!("sha512:{}", "a".repeat(64)),
                format!("sha256:{}", "g".repeat(64))
            ]),
        ),
        case(
            "spec.vm.disks[].source.http.secretName",
            "object name",
            json!(["images", "a.b-1"]),
            json!(["", "Images", "a/b"]),
        ),
        case(
            "spec.vm.disks[].bootindex",
            "boot order",
            json!([0, 2_147_483_647]),
            json!([-1, 2_147_483_648_u64]),
        ),
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
            "not a URL that can be downloaded",
            json!([
                "http://10.0.0.1:8080/a.iso",
                "HTTPS://example.org",
                "https://[fd00::1]/a.iso?version=1#x"
            ]),
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
            "image is not a URL",
            json!([{"image": "https://example.org/a.iso", "checksum": checksum}, {"image": "a.iso"}]),
            json!([
                {"image": "a.iso", "checksum": checksum},
                {"image": "", "checksum": checksum},
                {"image": "file:///var/local/vmop-image-repository/a.iso", "checksum": checksum},
            ]),
        ),
        case(
            "spec.vm.disks[].cdrom.checksum",
            "must be a checksum",
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
            "a volume name",
            json!(["system", "0", "a-", "x".repeat(58)]),
            json!(["", "UPPER", "-a", "a.b", "a_b", "x".repeat(59)]),
        ),
        case(
            "spec.vm.disks[].volumeClaimTemplate.metadata.labels{}",
            "a label value",
            json!(["", "gold", "A.b_c-d"]),
            json!(["-gold", "a/b", "a b"]),
        ),
        case(
            "spec.vm.disks[].volumeClaimTemplate.spec.accessModes",
            "must not be empty",
            json!([["ReadWriteOnce"]]),
            json!([[]]),
        ),
        case(
            "spec.vm.disks[].volumeClaimTemplate.spec.accessModes[]",
            "ReadWriteOncePod",
            json!([
                "ReadWriteOnce",
                "ReadOnlyMany",
                "ReadWriteMany",
                "ReadWriteOncePod"
            ]),
            json!(["RWO", ""]),
        ),
        case(
            "spec.vm.disks[].volumeClaimTemplate.spec",
            "volumeMode Filesystem, which requires resources.requests.storage",
            json!([{}, {"volumeMode": "Filesystem", "resources": {"requests": {"storage": "1Gi"}}}]),
            json!([{"volumeMode": "Filesystem"}, {"volumeMode": "Filesystem", "resources": {"limits": {"storage": "1Gi"}}}]),
        ),
        case(
            "spec.vm.disks[].volumeClaimTemplate.spec.resources",
            "exceeds the limit",
            json!([{"requests": {"storage": "10Gi"}, "limits": {"storage": "10Gi"}}]),
            json!([{"requests": {"storage": "10Gi"}, "limits": {"storage": "9Gi"}}]),
        ),
        case(
            "spec.vm.disks[].volumeClaimTemplate.spec.resources.limits{}",
            "Kubernetes quantity",
            json!(["1Gi", 7]),
            json!(["1 GiB", -1]),
        ),
        case(
            "spec.vm.disks[].volumeClaimTemplate.spec.resources.requests{}",
            "Kubernetes quantity",
            json!(["1Gi", 7]),
            json!(["1 GiB", -1]),
        ),
        volume("spec.vm.disks[].volumeClaimTemplate.spec.resources.limits{}"),
        volume("spec.vm.disks[].volumeClaimTemplate.spec.resources.requests{}"),
        case(
            "spec.vm.disks[].volumeClaimTemplate.spec.volumeMode",
            "a volume mode",
            json!(["Block"]),
            json!(["block", ""]),
        ),
    ]
}
