//! Configurations and files with which the VM does not start.

use super::*;

#[test]
fn an_unusable_configuration_is_explained_in_one_line() {
    let fixture = Fixture::new();
    diskless(&fixture, json!({"maximumRam": "8Gb"}));
    let end = fixture.start(None).end();
    assert_eq!(
        (end.code, &end.outcome["reason"]),
        (64, &json!("InvalidConfig"))
    );
    let message = end.outcome["message"].as_str().unwrap();
    assert!(
        message.starts_with("/tmp/config/config.yaml: vm.maximumRam: \"8Gb\" has the unknown unit"),
        "{message}"
    );
    assert_eq!(end.log.lines().count(), 1, "{}", end.log);
}

#[test]
fn b14_a_qemu_that_does_not_start_says_why() {
    let fixture = Fixture::new();
    diskless(&fixture, json!({"maximumRam": "100Ti"}));
    let end = fixture.start(None).end();
    assert_eq!(
        (end.code, &end.outcome["reason"]),
        (70, &json!("StartFailed")),
        "{}",
        end.log
    );
    let message = end.outcome["message"].as_str().unwrap();
    assert!(
        message.contains("qemu-system-x86_64: ") && message.contains("Cannot allocate memory"),
        "{message}"
    );
    assert!(
        message.contains("that QEMU or the node does not support"),
        "{message}"
    );
}

#[test]
fn configuration_rejected_by_qemu_is_reported_with_its_key_or_message() {
    let user = |more: Value| {
        let mut network = json!({"type": "user"});
        network
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"network": [network]})
    };
    let forwards = |ports: [u16; 2]| {
        user(json!({"forward": ports.map(|port| json!({"port": port, "guestPort": 22}))}))
    };
    let mut with_display = forwards([5900, 5901]);
    with_display["display"] = json!({"spice": {}});
    let cds =
        json!({"drives": [{"type": "ide-cd", "bootindex": 1}, {"type": "ide-cd", "bootindex": 1}]});
    let (invalid, failed) = ((64, "InvalidConfig"), (70, "StartFailed"));
    for (vm, (code, reason), key, text) in [
        (
            cds,
            invalid,
            "vm.drives[1].bootindex: ",
            "give each drive a different bootindex",
        ),
        (
            user(json!({"net": "10.0.2.0/30"})),
            invalid,
            "vm.network[0].net: ",
            "a prefix length of at most 29",
        ),
        (
            forwards([8022, 8022]),
            invalid,
            "vm.network[0].forward[1].port: ",
            "also the port of vm.network[0].forward[0].port",
        ),
        (
            with_display,
            invalid,
            "vm.network[0].forward[0].port: ",
            "also the port of vm.display.spice.port",
        ),
        (
            json!({"maximumRam": "900Ti"}),
            invalid,
            "vm.maximumRam: ",
            "use a value from 1 MiB to 127 TiB",
        ),
        (
            user(json!({"device": "e1001"})),
            failed,
            "vm.network[].device",
            "'e1001' is not a valid device model name",
        ),
        (
            user(json!({"device": "virtio-blk-pci"})),
            failed,
            "vm.network[].device",
            "'virtio-blk-pci.netdev' not found",
        ),
    ] {
        let fixture = Fixture::new();
        let mut vm = vm;
        if vm["drives"].is_null() {
            vm["drives"] = json!([]);
        }
        fixture.configure(&json!({}), &vm);
        let end = fixture.start(None).end();
        let message = end.outcome["message"].as_str().unwrap_or_default();
        assert_eq!(
            (end.code, &end.outcome["reason"]),
            (code, &json!(reason)),
            "{key}: {}",
            end.log
        );
        assert!(
            message.contains(key) && message.contains(text),
            "{key}: {message}"
        );
    }
}

#[test]
fn a_secret_of_the_seed_is_in_no_log() {
    let fixture = Fixture::new();
    fixture.configure(
        &json!({"cloudInit": {"userData": "#cloud-config\npassword: hunter2"}}),
        &json!({"drives": []}),
    );
    let end = fixture.start(None).end();
    let message = end.outcome["message"].as_str().unwrap();
    assert!(
        message.contains("cloudInit.userData: the value has the wrong type (it is not shown"),
        "{message}"
    );
    assert!(
        !format!("{message}{}", end.log).contains("hunter2"),
        "{}",
        end.log
    );
}

#[test]
fn data_directory_of_another_user_is_explained() {
    let fixture = Fixture::new();
    diskless(&fixture, json!({}));
    std::os::unix::fs::chown(fixture.path("data"), Some(0), Some(0)).unwrap();
    let end = fixture.start(None).end();
    assert_eq!(end.code, 66, "{}", end.log);
    assert!(
        end.log.contains("/tmp/data is not writable by uid 107"),
        "{}",
        end.log
    );
    assert!(
        end.log.contains("chown -R 107:107 /tmp/data"),
        "{}",
        end.log
    );
}
