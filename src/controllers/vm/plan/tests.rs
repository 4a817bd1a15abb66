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
fn what_cannot_be_used_is_named_by_its_field() {
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
fn b12_a_topology_gives_the_maximum_of_cpus() {
    // B12: the Java VM-Operator gave such a VM a single CPU.
    let topology = json!({"cpuTopology": {"sockets": 2, "coresPerDie": 2, "threadsPerCore": 2}});
    let machine = planned(topology).unwrap().config.vm.unwrap();
    assert_eq!(
        (machine.maximum_cpus, machine.current_cpus),
        (Some(8), Some(8))
    );
    let machine = planned(json!({})).unwrap().config.vm.unwrap();
    assert_eq!(
        (machine.maximum_cpus, machine.current_cpus),
        (Some(1), Some(1))
    );
}

#[test]
fn metrics_give_way_to_a_port_of_the_vms_own() {
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
fn a_tap_needs_the_nodes_network_and_its_device_and_other_vms_need_nothing() {
    let tap =
        json!({"networks": [{"user": {}}, {"tap": {"bridge": "br1", "mac": "52:54:00:00:00:01"}}]});
    let of = |settings: &settings::Reconciler| plan(&alone(vm(tap.clone())), settings).unwrap();
    let resource = |plan: &Plan| {
        let devices = plan.pod.resources.limits.clone().unwrap_or_default();
        devices.into_keys().collect::<Vec<_>>()
    };
    let mut settings = settings::Reconciler::default();
    let plan = of(&settings);
    assert_eq!(
        plan.pod.rights.tap,
        Some(Tun::Resource(names::RESOURCE_TUN.to_owned()))
    );
    assert_eq!(resource(&plan), [names::RESOURCE_TUN]);
    assert_eq!(
        plan.config.metrics_port, None,
        "it would be open to other hosts at the node's address"
    );
    let networks = plan.config.vm.unwrap().network;
    let types: Vec<_> = networks.iter().map(|network| network.type_).collect();
    assert_eq!(
        (types, networks[1].bridge()),
        (vec![NetworkType::User, NetworkType::Tap], "br1")
    );

    settings.tap.host_path = true;
    let plan = of(&settings);
    assert_eq!(
        (&plan.pod.rights.tap, resource(&plan)),
        (&Some(Tun::HostPath), vec![])
    );
    assert_eq!(planned(json!({})).unwrap().pod.rights, Rights::default());
}

#[test]
fn a_privileged_pod_needs_no_resource_and_is_made_only_where_there_is_a_use_for_it() {
    let of = |policy| {
        let accelerator = settings::Accelerator {
            policy,
            kvm_resource: None,
            privileged: true,
        };
        let settings = settings::Reconciler {
            accelerator,
            ..Default::default()
        };
        plan(&alone(vm(json!({"networks": [{"tap": {}}]}))), &settings).unwrap()
    };
    let auto = of(settings::Policy::Auto);
    assert_eq!(
        (
            auto.pod.rights.privileged,
            &auto.pod.rights.tap,
            &auto.pod.resources.limits
        ),
        (true, &Some(Tun::Privileged), &None)
    );
    let emulated = of(settings::Policy::Tcg);
    assert!(!emulated.pod.rights.privileged && emulated.pod.resources.limits.is_some());
}

#[test]
fn a_vm_that_may_run_emulated_prefers_nodes_with_acceleration_and_no_other_vm_does() {
    let affinity = |resource: Option<&str>, policy, affinity: Value| {
        let accelerator = settings::Accelerator {
            policy,
            kvm_resource: resource.map(str::to_owned),
            privileged: false,
        };
        let settings = settings::Reconciler {
            accelerator,
            ..Default::default()
        };
        let mut vm = vm(json!({}));
        vm.spec.affinity = serde_json::from_value(affinity).unwrap();
        let plan = plan(&alone(vm), &settings).unwrap();
        serde_json::to_value(plan.pod.placement.affinity).unwrap()
    };
    let term = |weight: i32, label: &str| {
        let expression = json!({"key": label, "operator": "In", "values": ["true"]});
        json!({"weight": weight, "preference": {"matchExpressions": [expression]}})
    };
    let preferring = |terms: Value| json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}});
    let ours = term(100, "vmoperator.jdrupes.org/kvm");
    let if_present = Some("vmoperator.jdrupes.org/kvm-if-present");
    let (auto, none) = (settings::Policy::Auto, Value::Null);
    assert_eq!(
        affinity(if_present, auto, none.clone()),
        preferring(json!([ours]))
    );
    // The preferences of the VM remain.
    let users = term(5, "example.org/fast");
    let expected = preferring(json!([users, ours]));
    assert_eq!(
        affinity(if_present, auto, preferring(json!([users]))),
        expected
    );
    for (resource, policy) in [
        (None, auto),
        (Some(names::RESOURCE_KVM), auto),
        (if_present, settings::Policy::Tcg),
    ] {
        assert_eq!(
            affinity(resource, policy, none.clone()),
            none,
            "{resource:?}"
        );
    }
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
fn a_maximum_below_the_wanted_number_of_cpus_is_raised() {
    let machine = planned(json!({"maximumCpus": 2, "currentCpus": 3}))
        .unwrap()
        .config
        .vm
        .unwrap();
    assert_eq!(
        (machine.maximum_cpus, machine.current_cpus),
        (Some(3), Some(3))
    );
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
fn a_topology_with_an_open_part_grows_to_the_wanted_number_of_cpus() {
    // The Java VM-Operator passes the current number as the maximum, and QEMU chooses the unspecified part.
    let machine = planned(json!({"cpuTopology": {"sockets": 2}, "currentCpus": 6}))
        .unwrap()
        .config
        .vm
        .unwrap();
    assert_eq!(
        (machine.maximum_cpus, machine.sockets, machine.cores_per_die),
        (Some(6), 2, 0)
    );
    let closed = json!({"sockets": 2, "coresPerDie": 1, "threadsPerCore": 1});
    assert_eq!(
        invalid_field(json!({"cpuTopology": closed, "currentCpus": 6})),
        "spec.vm.currentCpus"
    );
}

#[test]
fn a_stored_balloon_above_the_memory_means_all_of_it() {
    // B39: the Java VM-Operator stored and ran such VMs.
    let machine = planned(json!({"maximumRam": "1Gi", "currentRam": "2Gi"}))
        .unwrap()
        .config
        .vm
        .unwrap();
    assert_eq!(machine.current_ram, Some(Bytes(1 << 30)));
}

#[test]
fn b43_requests_follow_the_current_size_and_leave_room_for_qemu() {
    let mut machine = json!({
        "maximumCpus": 4, "currentCpus": 3, "maximumRam": "8Gi", "currentRam": "5Gi", "display": {},
    });
    let requests = |machine| planned(machine).unwrap().pod.resources.requests.unwrap();
    let without_display = requests(machine.clone());
    assert_eq!(without_display["cpu"].0, "1500m");
    // 5 GiB / 1.25, and 76 MiB + 3 × 1 MiB + 8 GiB / 512.
    assert_eq!(
        without_display["memory"].0,
        ((4096u64 + 76 + 3 + 16) << 20).to_string()
    );
    machine["display"] = json!({"spice": {"port": 5910}});
    assert_eq!(
        requests(machine)["memory"].0,
        ((4096u64 + 76 + 3 + 16 + 28) << 20).to_string()
    );
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
fn the_references_runner_is_kept_where_the_settings_say_so_with_the_pod_that_it_needs() {
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
fn rights_beyond_restricted_need_an_image_that_the_administrator_trusts() {
    let planned = |image: &str, machine: Value, settings: &settings::Reconciler| {
        let mut vm = vm(machine);
        vm.spec.image = Some(Image {
            source: Some(image.to_owned()),
            ..Image::default()
        });
        plan(&alone(vm), settings)
    };
    let tap = || json!({"networks": [{"tap": {}}]});
    let base = settings::Reconciler::default();
    let refused = |image: &str, machine: Value, settings: &settings::Reconciler| {
        let error = planned(image, machine, settings).unwrap_err();
        assert_eq!(error.subject, "spec.image");
        assert!(error.next_step.contains("trustedImages"), "{error:?}");
    };
    refused("example.org/runner:1", tap(), &base);
    let privileged = settings::Reconciler {
        accelerator: settings::Accelerator {
            privileged: true,
            ..Default::default()
        },
        ..base.clone()
    };
    refused("example.org/runner:1", json!({}), &privileged);
    let root = settings::Reconciler {
        device_access: settings::DeviceAccess::Root,
        ..base.clone()
    };
    refused("example.org/runner:1", json!({}), &root);
    let java = "ghcr.io/mnlipp/org.jdrupes.vmoperator.runner.qemu-arch:latest";
    let mirrored = settings::Reconciler {
        replaced_images: vec!["registry.local/mirror/".to_owned()],
        ..base.clone()
    };
    refused(java, json!({}), &mirrored);

    assert!(planned("example.org/runner:1", json!({}), &base).is_ok());
    assert!(planned(&base.runner_image.source, tap(), &base).is_ok());
    let trusting = settings::Reconciler {
        trusted_images: vec!["example.org/runner".to_owned(), "example.net/".to_owned()],
        ..base
    };
    for image in [
        "example.org/runner",
        "example.org/runner:1",
        "example.org/runner@sha256:0",
        "example.net/a/b:2",
    ] {
        assert!(planned(image, tap(), &trusting).is_ok(), "{image}");
    }
    for image in ["example.org/runner-of-others:1", "example.network/a"] {
        refused(image, tap(), &trusting);
    }
}

#[test]
fn a_tap_is_on_an_allowed_bridge_if_the_settings_name_some() {
    let on = |bridge: &str, bridges: Option<&[&str]>| {
        let mut settings = settings::Reconciler::default();
        settings.tap.bridges = bridges.map(|names| names.iter().map(ToString::to_string).collect());
        let machine = json!({"networks": [{"user": {}}, {"tap": {"bridge": bridge}}]});
        plan(&alone(vm(machine)), &settings)
            .map(drop)
            .map_err(|error| error.subject)
    };
    let refused = Err("spec.vm.networks[1].tap.bridge".to_owned());
    assert_eq!(on("br7", None), Ok(()), "any bridge by default");
    assert_eq!(on("br7", Some(&["br0", "br7"])), Ok(()));
    assert_eq!(on("br7", Some(&["br0"])), refused);
    assert_eq!(on("br7", Some(&[])), refused, "no bridge at all");
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
fn what_the_operator_sets_on_the_pod_is_not_the_users() {
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
    assert_eq!(pod.labels()[names::LABEL_INSTANCE], "vm");
    assert_eq!(
        (&pod.labels()["mine"], &pod.annotations()["mine"]),
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
fn what_does_not_fit_into_a_config_map_is_told_with_its_field_and_no_byte_is_wasted() {
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
fn a_repository_that_fetch_pods_can_write_is_no_read_only_volume_whoever_mounts_it_first() {
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
fn huge_pages_are_asked_for_apart_and_the_memory_must_be_a_whole_number_of_them() {
    let machine = |ram: &str, size: &str| json!({"maximumRam": ram, "memory": {"hugepages": {"pageSize": size}}});
    let (ordinary, huge) = (
        planned(json!({"maximumRam": "4Gi"})).unwrap(),
        planned(machine("4Gi", "2Mi")).unwrap(),
    );
    let amount = |amounts: &Option<BTreeMap<String, Quantity>>, name: &str| {
        amounts
            .as_ref()
            .and_then(|amounts| amounts.get(name))
            .map(|amount| amount.0.clone())
    };
    for amounts in [&huge.pod.resources.requests, &huge.pod.resources.limits] {
        assert_eq!(amount(amounts, "hugepages-2Mi").as_deref(), Some("4Gi"));
    }
    assert_eq!(amount(&huge.pod.resources.limits, "memory"), None);
    let memory = |plan: &Plan| {
        amount(&plan.pod.resources.requests, "memory")
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    assert!(memory(&ordinary) > 3 << 30 && memory(&huge) < 256 << 20);
    let vm = huge.config.vm.unwrap();
    assert_eq!(
        (vm.hugepages, vm.shared_memory),
        (Some(PageSize::Large), false)
    );
    let invalid = planned(machine("1536Mi", "1Gi")).unwrap_err();
    assert_eq!(
        (invalid.subject.as_str(), invalid.next_step.as_str()),
        ("spec.vm.maximumRam", "use a multiple of 1Gi, such as 2Gi")
    );
    // Also if it is not in whole MiB.
    assert!(
        planned(machine("1G", "2Mi"))
            .unwrap_err()
            .problem
            .contains("\"1G\"")
    );
}
