use crate::runner::config;
use crate::runner::spec::*;

fn spec(keys: &str) -> Result<Spec, Invalid> {
    let parsed = config::parse(&format!(
        "\"/Runner\":\n  vm:\n    name: t\n    network: []\n{keys}"
    ))?;
    Spec::from_config(&parsed.config)
}

fn key(keys: &str) -> String {
    spec(keys).unwrap_err().key
}

#[test]
fn defaults_are_those_of_the_reference() {
    let spec = spec("").unwrap();
    assert_eq!(spec.ram, Bytes(1 << 30));
    assert_eq!(
        (spec.maximum_cpus, spec.live.cpus, spec.vm.display.outputs),
        (1, 1, 1)
    );
    assert_eq!(
        (
            spec.vm.cpu_model.as_str(),
            spec.vm.firmware,
            spec.vm.display.spice
        ),
        ("host", Firmware::Uefi, None)
    );
    assert_eq!(spec.live.powerdown_timeout.as_secs(), 900);
}

#[test]
fn a_wrong_value_is_named() {
    assert_eq!(key("    maximumRam: 8Gb\n"), "vm.maximumRam");
    assert_eq!(key("    maximumRam: 1 kB\n"), "vm.maximumRam");
    assert_eq!(key("    currentRam: none\n"), "vm.currentRam");
    assert_eq!(key("    firmware: efi\n"), "vm.firmware");
    assert_eq!(key("    accelerator: hax\n"), "vm.accelerator");
    assert_eq!(key("    cpuModel: host;reboot\n"), "vm.cpuModel");
    assert_eq!(key("    rtcClock: utc\n"), "vm.rtcClock");
    assert_eq!(key("    currentCpus: 0\n"), "vm.currentCpus");
    assert_eq!(key("    uuid: x\n"), "vm.uuid");
    assert_eq!(
        key("    powerdownTimeout: 18446744073709551615\n"),
        "vm.powerdownTimeout"
    );
    assert_eq!(key("    display: {outputs: 0}\n"), "vm.display.outputs");
    assert_eq!(
        key("    display: {loggedInUser: \"a\\nlogout\"}\n"),
        "vm.display.loggedInUser"
    );
    assert_eq!(
        key("    display: {spice: {streamingVideo: yes}}\n"),
        "vm.display.spice.streamingVideo"
    );
    assert_eq!(
        key("    display: {spice: {address: everywhere}}\n"),
        "vm.display.spice.address"
    );
}

#[test]
fn conflicting_values_are_rejected_with_both_fields() {
    let reported = |keys: &str| spec(keys).unwrap_err().to_string();
    let drives =
        "    drives: [{type: ide-cd, bootindex: 1}, {file: /a}, {file: /b, bootindex: 1}]\n";
    assert_eq!(
        reported(drives),
        "vm.drives[2].bootindex: the value 1 is already in use by vm.drives[0]; give each drive a different bootindex"
    );
    assert_eq!(
        key("    drives: [{file: /b, bootindex: 2147483648}]\n"),
        "vm.drives[0].bootindex"
    );
    assert!(
        spec("    drives: [{type: ide-cd, bootindex: 0}, {file: /a}, {file: /b}, {file: /c, bootindex: 1}]\n").is_ok()
    );
    let ports = |forwards: [&str; 2], display: &str| {
        let [one, two] = forwards
            .map(|forward| format!("{{type: user, forward: [{{{forward}, guestPort: 22}}]}}"));
        let text = format!(
            "\"/Runner\": {{vm: {{name: t, network: [{one}, {two}], display: {{{display}}}}}}}"
        );
        Spec::from_config(&config::parse(&text)?.config).map(drop)
    };
    let refused = |forwards, display| ports(forwards, display).unwrap_err().to_string();
    assert_eq!(
        refused(["port: 8022", "port: 8022, protocol: tcp"], ""),
        "vm.network[1].forward[0].port: port 8022 is also the port of vm.network[0].forward[0].port; configure two different ports"
    );
    assert_eq!(
        refused(["port: 5900", "port: 1"], "spice: {}"),
        "vm.network[0].forward[0].port: port 5900 is also the port of vm.display.spice.port; configure two different ports"
    );
    assert_eq!(
        ports(["port: 5900, protocol: udp", "port: 8022"], "spice: {}"),
        Ok(())
    );
    assert_eq!(
        ports(["port: 5900", "port: 5900, protocol: udp"], ""),
        Ok(())
    );
}

#[test]
fn no_program_has_the_memory_of_all_addresses() {
    for text in ["900Ti", "128 TiB"] {
        let reported = spec(&format!("    maximumRam: {text}\n"))
            .unwrap_err()
            .to_string();
        assert!(
            reported.starts_with("vm.maximumRam: ")
                && reported.ends_with("is not allowed; use a value from 1 MiB to 127 TiB"),
            "{reported}"
        );
    }
    assert!(spec("    maximumRam: 127 TiB\n").is_ok());
}

#[test]
fn reduced_value_causes_a_warning() {
    let warning_of = |keys: &str| {
        let parsed = config::parse(&format!("\"/Runner\": {{vm: {{name: t, {keys}}}}}"))
            .unwrap()
            .config;
        warning(&parsed).unwrap_or_default()
    };
    let reported = "the VM gets only 1 GiB of memory, because vm.currentRam (2 GiB) is more than vm.maximumRam; raise \
                    vm.maximumRam";
    assert_eq!(warning_of("maximumRam: 1Gi, currentRam: 2Gi"), reported);
    for fine in [
        "maximumRam: 1Gi, currentRam: 1Gi",
        "maximumRam: 1G, currentRam: 1G",
        "maximumRam: 1Gi",
        "currentRam: 1Gi",
    ] {
        assert_eq!(warning_of(fine), "", "{fine}");
    }
}

#[test]
fn unknown_log_level_is_rejected() {
    let level = |level: &str| {
        let parsed = config::parse(&format!(
            "\"/Runner\": {{logLevel: {level}, vm: {{name: t}}}}"
        ))
        .unwrap();
        Spec::from_config(&parsed.config)
            .map(drop)
            .map_err(|invalid| invalid.to_string())
    };
    let reported =
        "logLevel: \"loud\" is not allowed; use the level error, warn, info, debug or trace";
    assert_eq!(level("loud"), Err(reported.to_owned()));
    assert!(
        ["error", "warn", "info", "debug", "trace", "INFO"]
            .map(level)
            .iter()
            .all(Result::is_ok)
    );
}

#[test]
fn memory_is_whole_mebibytes_and_the_balloon_within_it() {
    let spec = spec("    maximumRam: 1G\n    currentRam: 2G\n").unwrap();
    assert_eq!(spec.ram, Bytes(953 << 20));
    assert_eq!(spec.live.ram, Some(spec.ram));
}

#[test]
fn b13_maximum_cpus_is_the_greatest_configured_value() {
    let maximum = |keys| spec(keys).map(|s| s.maximum_cpus);
    assert_eq!(maximum("    currentCpus: 3\n"), Ok(3));
    assert_eq!(maximum("    maximumCpus: 4\n    currentCpus: 2\n"), Ok(4));
    assert_eq!(maximum("    sockets: 2\n    coresPerDie: 4\n"), Ok(8));
    // The default of the object's topology is one socket and nothing else.
    assert_eq!(maximum("    sockets: 1\n    currentCpus: 4\n"), Ok(4));
}

#[test]
fn a_topology_that_qemu_would_refuse_is_refused_with_the_numbers() {
    let error =
        spec("    sockets: 2\n    coresPerDie: 2\n    threadsPerCore: 1\n    currentCpus: 5\n")
            .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("a maximum of 5 CPUs does not fit the topology of 4 CPUs"),
        "{error}"
    );
    assert_eq!(
        key("    sockets: 65536\n    coresPerDie: 65536\n"),
        "vm.sockets"
    );
}

#[test]
fn bridge_name_of_a_tap_is_validated() {
    let tap = |keys: &str| {
        let parsed = config::parse(&format!(
            "\"/Runner\": {{vm: {{name: t, network: [{{{keys}}}]}}}}"
        ))?;
        Ok::<_, Invalid>(
            Spec::from_config(&parsed.config)?.vm.network[0]
                .bridge()
                .to_owned(),
        )
    };
    assert_eq!(tap("type: tap").as_deref(), Ok("br0"));
    // The default of the Java VM-Operator is a tap network.
    assert_eq!(tap("bridge: lan.7").as_deref(), Ok("lan.7"));
    for bad in ["'br0,script=/bin/sh'", "../x", "sixteen-letters-", "''"] {
        assert_eq!(
            tap(&format!("type: tap, bridge: {bad}")).unwrap_err().key,
            "vm.network[0].bridge",
            "{bad}"
        );
    }
}

#[test]
fn user_name_with_spaces_is_passed_to_the_guest() {
    // The Java VM-Operator starts such a VM, and requests this user from the agent.
    let user = |keys: &str| {
        spec(&format!("    display: {{loggedInUser: {keys}}}\n"))
            .unwrap()
            .live
            .logged_in_user
    };
    assert_eq!(user("Ann Smith").as_deref(), Some("Ann Smith"));
    assert_eq!((user("\"\""), user("\" \"")), (None, None));
}

#[test]
fn a_change_of_live_values_needs_no_new_start() {
    let one = spec("    maximumCpus: 4\n").unwrap();
    assert!(one.differs_in_live_only(
        &spec("    maximumCpus: 4\n    currentCpus: 2\n    currentRam: 512Mi\n").unwrap()
    ));
    assert!(one.differs_in_live_only(&spec("    maximumCpus: 4\n    currentCpus: 8\n").unwrap()));
    assert!(!one.differs_in_live_only(&spec("    maximumCpus: 8\n").unwrap()));
    assert!(!one.differs_in_live_only(&spec("    maximumCpus: 4\n    firmware: bios\n").unwrap()));
}

#[test]
fn only_an_image_file_has_a_size_and_that_may_grow_in_place() {
    let disk = |keys: &str| spec(&format!("    drives: [{{type: raw, {keys}}}]\n"));
    let one = disk("file: /d/disk.img, size: 1 GiB").unwrap();
    assert_eq!(one.disks[0].size, Some(Bytes(1 << 30)));
    assert!(one.differs_in_live_only(&disk("file: /d/disk.img, size: 2 GiB").unwrap()));
    assert!(!one.differs_in_live_only(&disk("file: /d/other.img, size: 2 GiB").unwrap()));
    assert_eq!(
        disk("resource: /dev/x, size: 1 GiB").unwrap_err().key,
        "vm.drives[0].size"
    );
    assert_eq!(
        disk("file: /d/disk.img, size: 100 B").unwrap_err().key,
        "vm.drives[0].size"
    );
}

#[test]
fn a_change_of_media_needs_no_new_start_but_another_drive_does() {
    let cds = |keys: &str| spec(&format!("    drives: [{keys}]\n")).unwrap();
    let one = cds("{type: ide-cd, file: a.iso}");
    assert!(one.differs_in_live_only(&cds("{type: ide-cd, file: b.iso}")));
    assert!(one.differs_in_live_only(&cds("{type: ide-cd}")));
    assert!(!one.differs_in_live_only(&cds("{type: ide-cd}, {type: ide-cd}")));
    assert!(!one.differs_in_live_only(&cds("{type: ide-cd, file: a.iso, bootindex: 1}")));
}

#[test]
fn huge_pages_have_one_of_two_sizes_and_the_memory_is_a_whole_number_of_them() {
    assert!(spec("    hugepages: 2Mi\n    maximumRam: 4 MiB\n").is_ok());
    assert_eq!(key("    hugepages: 4Mi\n"), "vm.hugepages");
    let refused = spec("    hugepages: 1Gi\n    maximumRam: 1536 MiB\n")
        .unwrap_err()
        .to_string();
    let expected = "1536 MiB is not a multiple of the huge page size 1Gi (vm.hugepages); use a multiple, such as 2 GiB";
    assert_eq!(refused, format!("vm.maximumRam: {expected}"));
}

#[test]
fn a_qemu_that_does_not_start_is_reported_with_the_fields_that_only_it_can_check() {
    let outcome = |reason, exit| Outcome {
        reason,
        message: "QEMU: no".to_owned(),
        qemu_exit: exit,
        by_guest: false,
    };
    let reported = |reason, exit, pages| add_possible_causes(outcome(reason, exit), pages).message;
    let huge = Some(PageSize::Large);
    assert!(
        reported(EndReason::StartFailed, Some(1), None)
            .starts_with("QEMU: no; a possible cause is a value of vm.maximumRam")
    );
    assert!(reported(EndReason::QemuCrashed, Some(-7), huge).contains("fewer huge pages"));
    for (reason, exit, pages) in [
        (EndReason::StartFailed, None, huge),
        (EndReason::StartFailed, Some(-9), huge),
        (EndReason::QemuCrashed, Some(-7), None),
        (EndReason::QemuCrashed, Some(-11), huge),
    ] {
        assert_eq!(
            reported(reason, exit, pages),
            "QEMU: no",
            "{reason:?} {exit:?}"
        );
    }
}
