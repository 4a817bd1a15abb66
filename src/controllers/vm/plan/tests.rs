mod machine;
mod rights;

use crate::api::quantity::Bytes;
use crate::api::runner::config::NetworkType;
use crate::api::vm::{Image, PageSize};
use crate::controllers::vm::fixtures::{alone, vm};
use crate::controllers::vm::plan::*;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};
use std::net::Ipv4Addr;

fn planned(machine: Value) -> Result<Plan, Diagnosis> {
    plan(&alone(vm(machine)), &settings::Reconciler::default())
}

fn invalid_field(machine: Value) -> String {
    planned(machine).unwrap_err().subject
}

#[test]
fn invalid_value_is_reported_with_its_field() {
    let disk = |name: &str| json!({"volumeClaimTemplate": {"metadata": {"name": name}}});
    for (machine, field) in [
        (json!({"maximumRam": "lots"}), "spec.vm.maximumRam"),
        (json!({"maximumRam": "8"}), "spec.vm.maximumRam"),
        (json!({"maximumRam": "5Pi"}), "spec.vm.maximumRam"),
        (json!({"maximumRam": "1e99"}), "spec.vm.maximumRam"),
        (
            json!({"cpuTopology": {"sockets": 2, "coresPerDie": 2}, "currentCpus": 5}),
            "spec.vm.currentCpus",
        ),
        (
            json!({"disks": [{"cdrom": {"image": ""}}, disk("UPPER")]}),
            "spec.vm.disks[1].volumeClaimTemplate.metadata.name",
        ),
        (
            json!({"disks": [disk("a"), disk("a")]}),
            "spec.vm.disks[1].volumeClaimTemplate.metadata.name",
        ),
        (
            json!({"disks": [{"cdrom": {"image": "/etc/passwd"}}]}),
            "spec.vm.disks[0].cdrom.image",
        ),
        (
            json!({"disks": [{"cdrom": {"image": "a/../../b"}}]}),
            "spec.vm.disks[0].cdrom.image",
        ),
        (
            json!({"networks": [{"user": {"forward": [{"port": 5900, "guestPort": 22}]}}]}),
            "spec.vm.networks[0].user.forward[0].port",
        ),
    ] {
        assert_eq!(invalid_field(machine.clone()), field, "{machine}");
    }
}

#[test]
fn metrics_port_is_disabled_if_the_vm_uses_it() {
    let port = |machine: Value| planned(machine).unwrap().config.metrics_port;
    let forward = |protocol: &str| json!({"networks": [{"user": {"forward": [{"port": 9180, "guestPort": 80, "protocol": protocol}]}}]});
    assert_eq!(port(json!({})), Some(9180));
    assert_eq!(port(json!({"display": {"spice": {"port": 9180}}})), None);
    assert_eq!(
        (port(forward("TCP")), port(forward("UDP"))),
        (None, Some(9180))
    );
}

#[test]
fn metrics_are_on_the_port_that_the_vm_names_also_in_the_nodes_network() {
    let planned = |networks: Value, display: Value| {
        let mut vm = vm(json!({"networks": networks, "display": display}));
        vm.spec.metrics_port = Some(9281);
        plan(&alone(vm), &settings::Reconciler::default())
    };
    let spice = |port: u16| json!({"spice": {"port": port}});
    let tap = json!([{"tap": {"bridge": "br1"}}]);
    for networks in [json!([]), tap] {
        assert_eq!(
            planned(networks, spice(5900)).unwrap().config.metrics_port,
            Some(9281)
        );
    }
    let forward = json!([{"user": {"forward": [{"port": 9281, "guestPort": 80}]}}]);
    let field = |planned: Result<Plan, Diagnosis>| planned.unwrap_err().subject;
    assert_eq!(field(planned(json!([]), spice(9281))), "spec.metricsPort");
    assert_eq!(
        field(planned(forward, spice(5900))),
        "spec.vm.networks[0].user.forward[0].port"
    );
}

#[test]
fn a_display_without_a_password_is_not_open_on_the_nodes_address() {
    let address = |networks: Value, generate: bool| {
        let display = json!({"spice": {"port": 5900, "generateSecret": generate}});
        let config = planned(json!({"networks": networks, "display": display}))
            .unwrap()
            .config;
        config.vm.unwrap().display.spice.unwrap().address
    };
    assert_eq!(address(json!([{"tap": {}}]), true), None);
    assert_eq!(
        address(json!([{"tap": {}}]), false),
        Some(Ipv4Addr::LOCALHOST.into())
    );
    assert_eq!(address(json!([{"user": {}}]), false), None);
}

#[test]
fn a_claim_of_another_vm_is_not_used() {
    let mut observed = alone(vm(
        json!({"disks": [{"volumeClaimTemplate": {"metadata": {"name": "c"}}}]}),
    ));
    let mut claim = |labels: Value| {
        let view = json!({"metadata": {"name": "vm-c-disk", "labels": labels}});
        observed.claims.insert(
            "vm-c-disk".to_owned(),
            std::sync::Arc::new(serde_json::from_value(view).unwrap()),
        );
        plan(&observed, &settings::Reconciler::default()).map(|plan| plan.disks.len())
    };
    assert_eq!(claim(json!({})), Ok(1));
    assert_eq!(claim(json!({names::LABEL_INSTANCE: "vm"})), Ok(1));
    // Other applications use this label too.
    assert_eq!(claim(json!({names::LABEL_INSTANCE: "shop"})), Ok(1));
    for name in [names::APP_NAME, names::LEGACY_APP_NAME] {
        let invalid =
            claim(json!({names::LABEL_NAME: name, names::LABEL_INSTANCE: "vm-c"})).unwrap_err();
        assert!(invalid.problem.contains("vm-c"), "{}", invalid.problem);
    }
}

#[test]
fn the_references_image_is_replaced_and_any_other_kept() {
    let settings = settings::Reconciler::default();
    let of = |source: &str| {
        let mut vm = vm(json!({}));
        vm.spec.image = Some(Image {
            source: Some(source.to_owned()),
            ..Image::default()
        });
        plan(&alone(vm), &settings).unwrap().pod.image
    };
    let java_image = "ghcr.io/mnlipp/org.jdrupes.vmoperator.runner.qemu-arch:latest";
    assert_eq!(of(java_image), settings.runner_image.source);
    assert_eq!(of("example.org/runner:1"), "example.org/runner:1");
}

#[test]
fn java_runner_image_is_retained_with_its_pod_privileges_if_configured() {
    let settings = settings::Reconciler {
        replaced_images: Vec::new(),
        trusted_images: vec!["example.org/runner".to_owned()],
        ..Default::default()
    };
    let of = |source: &str| {
        let mut vm = vm(json!({"networks": [{"tap": {}}]}));
        vm.spec.image = Some(Image {
            source: Some(source.to_owned()),
            ..Image::default()
        });
        plan(&alone(vm), &settings).unwrap()
    };
    let kept = of("ghcr.io/mnlipp/org.jdrupes.vmoperator.runner.qemu-arch:latest");
    assert_eq!(
        kept.pod.rights,
        Rights {
            as_java_runner: true,
            ..Rights::default()
        }
    );
    assert_eq!(
        (&kept.pod.resources.limits, kept.config.metrics_port),
        (&None, None),
        "no device resource, and no metrics"
    );
    let pod = crate::controllers::vm::objects::build(&kept).pod;
    let spec = pod.spec.unwrap();
    let container = spec.containers.into_iter().next().unwrap();
    assert_eq!(
        (spec.host_network, spec.security_context, container.command),
        (Some(true), None, None)
    );
    let security = serde_json::to_value(container.security_context).unwrap();
    assert_eq!(
        security,
        json!({"privileged": true}),
        "as in the Java VM-Operator"
    );
    assert!(!of("example.org/runner:1").pod.rights.as_java_runner);
}

#[test]
fn the_seeds_instance_id_follows_its_content_only() {
    // B7: the Java VM-Operator changed it with every edit of the VM.
    let id = |generation, user: &str| {
        let mut vm = vm(json!({}));
        vm.metadata.generation = Some(generation);
        vm.spec.cloud_init = serde_json::from_value(json!({"userData": {"user": user}})).unwrap();
        let seed = plan(&alone(vm), &settings::Reconciler::default())
            .unwrap()
            .config
            .cloud_init
            .unwrap();
        seed.meta_data.unwrap()["instance-id"].clone()
    };
    assert_eq!(id(1, "a"), id(2, "a"));
    assert_ne!(id(1, "a"), id(1, "b"));
}

#[test]
fn user_annotations_cannot_override_operator_annotations() {
    let mut vm = vm(json!({}));
    let annotations = [
        ("vmrunner.jdrupes.org/cmVersion", "1"),
        ("vmoperator.jdrupes.org/x", "2"),
        ("mine", "3"),
    ];
    vm.spec.pod_annotations = Some(
        annotations
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
    );
    vm.spec.pod_labels = Some(
        [(names::LABEL_INSTANCE, "another"), ("mine", "4")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
    );
    let pod = crate::controllers::vm::objects::build(
        &plan(&alone(vm), &settings::Reconciler::default()).unwrap(),
    )
    .pod;
    let labels = pod.metadata.labels.as_ref().unwrap();
    assert_eq!(labels[names::LABEL_INSTANCE], "vm");
    assert_eq!(
        (&labels["mine"], &pod.annotations()["mine"]),
        (&"4".to_owned(), &"3".to_owned())
    );
    assert!(
        !pod.annotations().contains_key("vmoperator.jdrupes.org/x"),
        "{:?}",
        pod.annotations()
    );
    assert!(
        !pod.annotations()
            .contains_key(names::ANNOTATION_CONFIG_VERSION)
    );
}

#[test]
fn the_log_level_is_the_vms_else_that_of_the_settings() {
    let mut settings = settings::Reconciler::default();
    let level = |own: Option<&str>, settings: &settings::Reconciler| {
        let mut vm = vm(json!({}));
        vm.spec.logging_properties = own.map(str::to_owned);
        plan(&alone(vm), settings).unwrap().config.log_level
    };
    assert_eq!(level(None, &settings), None);
    assert_eq!(
        level(Some(".level=FINE"), &settings).as_deref(),
        Some("debug")
    );
    settings.logging_properties = Some(".level=WARNING".to_owned());
    assert_eq!(level(None, &settings).as_deref(), Some("warn"));
    // The runner's default.
    assert_eq!(level(Some(".level=INFO"), &settings), None);
}

/// A VM with a seed and a logging configuration of these sizes. Indentation puts each part of the seed on a line of its own.
fn with_seed(bytes: usize, logging: usize) -> crate::api::VirtualMachine {
    let mut vm = vm(json!({}));
    let part = json!({"n": [1, 2, 3, 4]});
    let parts = vec![part.clone(); bytes / (part.to_string().len() + 1)];
    vm.spec.cloud_init = serde_json::from_value(json!({"userData": {"parts": parts}})).unwrap();
    vm.spec.logging_properties = Some("#".repeat(logging)).filter(|text| !text.is_empty());
    vm
}

#[test]
fn configuration_too_large_for_a_config_map_is_reported_with_its_field() {
    const KIB: usize = 1 << 10;
    let planned = |seed, logging| {
        plan(
            &alone(with_seed(seed, logging)),
            &settings::Reconciler::default(),
        )
    };
    let plan = planned(1000 * KIB, 0).unwrap();
    let data = crate::controllers::vm::objects::build(&plan)
        .config_map
        .data
        .unwrap();
    assert!(data.values().map(String::len).sum::<usize>() <= 1 << 20);
    let file: serde_json::Value = serde_json::from_str(&data[names::CONFIG_FILE]).unwrap();
    assert_eq!(
        file["/Runner"]["cloudInit"]["userData"]["parts"][0]["n"],
        json!([1, 2, 3, 4])
    );
    for (seed, logging, field) in [
        (1030 * KIB, 0, "spec.cloudInit"),
        (1000 * KIB, 30 * KIB, "spec.cloudInit"),
        (30 * KIB, 1000 * KIB, "spec.loggingProperties"),
    ] {
        let invalid = planned(seed, logging).unwrap_err();
        assert_eq!(invalid.subject, field);
        assert!(
            invalid.problem.contains("1048576") && !invalid.next_step.is_empty(),
            "{invalid:?}"
        );
    }
    // A small file is indented.
    assert!(planned(10, 0).unwrap().config_file.lines().count() > 10);
}

#[test]
fn image_repository_writable_by_fetch_pods_is_not_a_read_only_volume() {
    let is_read_only = |modes: Option<Value>| {
        let mut observed = alone(vm(json!({})));
        let claim = modes.map(|modes| json!({"metadata": {}, "spec": {"accessModes": modes}}));
        observed.image_repository =
            claim.map(|claim| std::sync::Arc::new(serde_json::from_value(claim).unwrap()));
        plan(&observed, &settings::Reconciler::default())
            .unwrap()
            .repository_is_read_only
    };
    assert!(is_read_only(Some(json!(["ReadOnlyMany"]))));
    assert!(
        !is_read_only(Some(json!(["ReadOnlyMany", "ReadWriteMany"])))
            && !is_read_only(Some(json!(["ReadWriteOnce"])))
    );
    assert!(
        is_read_only(None),
        "the default of the configuration and of the Java VM-Operator"
    );
}

#[test]
fn configuration_names_the_assignment_of_a_pool_vm_only() {
    let file = |assignment: Value| {
        let mut vm = vm(json!({}));
        vm.status = serde_json::from_value(json!({"assignment": assignment})).unwrap();
        let plan = plan(&alone(vm), &settings::Reconciler::default()).unwrap();
        serde_json::to_value(&plan.config).unwrap()
    };
    let without = file(json!({}));
    assert_eq!(without.get("assignment"), None);
    let mut with = file(json!({"pool": "p", "user": "alice", "uid": "u"}));
    let assignment = with.as_object_mut().unwrap().remove("assignment");
    assert_eq!((assignment, with), (Some(json!("u")), without));
}
