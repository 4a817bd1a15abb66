//! Rights of pods, and the devices and images that they need.

use super::*;

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
fn privileged_pod_needs_no_device_resource_and_is_created_only_if_needed() {
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
