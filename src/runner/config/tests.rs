use super::*;
use crate::api::quantity::Bytes;
use crate::api::runner::config::{NetworkConfig, StreamingVideo};

fn vm(yaml: &str) -> crate::api::runner::config::VmConfig {
    parse(&format!("\"/Runner\":\n  vm:\n    name: t\n{yaml}"))
        .unwrap()
        .config
        .vm
        .unwrap()
}

#[test]
fn a_file_of_the_reference_is_read() {
    let text = include_str!("../testdata/reference.yaml");
    let parsed = parse(text).unwrap();
    assert_eq!(parsed.unknown, ["template", "updateTemplate"]);
    let vm = parsed.config.vm.unwrap();
    assert_eq!(
        (vm.name.as_str(), vm.maximum_cpus, vm.current_cpus),
        ("test-vm", Some(4), Some(2))
    );
    assert_eq!(
        vm.display.spice.unwrap().streaming_video,
        Some(StreamingVideo::Filter)
    );
}

#[test]
fn b11_streaming_video_is_read_by_either_of_its_names() {
    for name in ["streamingVideo", "streaming-video"] {
        let spice = vm(&format!("    display: {{spice: {{{name}: all}}}}\n"))
            .display
            .spice
            .unwrap();
        assert_eq!(spice.streaming_video, Some(StreamingVideo::All), "{name}");
    }
}

#[test]
fn unknown_keys_are_named_once_and_do_not_matter() {
    let parsed = parse(
        "\"/Runner\": {vm: {name: t, watchdog: 1, drives: [{speed: 9}]}, x: {y: 1}}\nother: 1\n",
    );
    assert_eq!(
        parsed.unwrap().unknown,
        ["vm.drives.0.speed", "vm.watchdog", "x"]
    );
}

#[test]
fn unsupported_java_keys_and_unknown_keys_have_separate_warnings() {
    let text = "\"/Runner\": {template: a, monitorSocket: /m, x: 1, vm: {name: t, display: {spice: {ticket: secret}}, y: 1}}";
    let reported = parse(text).unwrap().unknown_key_warnings();
    let [socket, template, ticket, others] =
        &reported.iter().map(String::as_str).collect::<Vec<_>>()[..]
    else {
        panic!("{reported:?}")
    };
    assert!(ticket.contains(
        "vm.display.spice.ticket has no effect: the password of the display is in the file"
    ));
    assert!(
        socket.contains("monitorSocket has no effect")
            && template.contains("template has no effect")
    );
    assert!(
        others.contains("unknown keys, which the runner ignores: vm.y, x;"),
        "{others}"
    );
    assert!(!reported.concat().contains("secret"));
}

#[test]
fn b31_a_null_is_no_value_but_no_network_is_none() {
    assert_eq!(vm("    network: null\n").network, []);
    assert_eq!(vm("").network, [NetworkConfig::default()]);
    let vm = vm("    drives: null\n    sockets: null\n    display: {outputs: null, spice: null}\n");
    assert_eq!((vm.drives, vm.sockets), (Vec::new(), 0));
}

#[test]
fn a_size_may_be_a_number() {
    assert_eq!(
        vm("    maximumRam: 1073741824\n").maximum_ram,
        Bytes(1 << 30)
    );
}

#[test]
fn a_value_of_the_wrong_type_is_named_with_its_key() {
    let error = parse("\"/Runner\": {vm: {name: t, currentCpus: many}}").unwrap_err();
    assert_eq!(error.key, "vm.currentCpus");
    assert!(error.problem.contains("many"), "{error}");
    assert_eq!(parse("a: 1").unwrap_err().key, "/Runner");
    assert!(!parse("{").unwrap_err().to_string().contains('\n'));
}

#[test]
fn a_secret_is_in_no_message() {
    const SECRET: &str = "hunter2, expected nothing";
    let file = |value: &str| {
        format!("{{\"/Runner\": {{\"vm\": {{\"name\": \"t\"}}, \"cloudInit\": {value}}}}}")
    };
    for (value, key) in [
        (format!("{SECRET:?}"), "cloudInit"),
        (
            format!("{{\"userData\": \"#cloud-config\\npassword: {SECRET}\"}}"),
            "cloudInit.userData",
        ),
        (
            format!("{{\"userData\": [{SECRET:?}]}}"),
            "cloudInit.userData",
        ),
        (
            format!("{{\"networkConfig\": {SECRET:?}}}"),
            "cloudInit.networkConfig",
        ),
        (
            format!("{{\"metaData\": {SECRET:?}}}"),
            "cloudInit.metaData",
        ),
        (
            format!("{{\"userDataFile\": {{{SECRET:?}: 1}}}}"),
            "cloudInit.userDataFile",
        ),
    ] {
        let reported = parse(&file(&value)).unwrap_err();
        assert_eq!(reported.key, key);
        assert!(
            !reported.problem.contains("hunter2") && reported.problem.contains("not shown"),
            "{reported}"
        );
    }
    let reported = parse(&file("{\"userData\": \"x\"}"))
        .unwrap_err()
        .to_string();
    assert_eq!(
        reported,
        "cloudInit.userData: the value has the wrong type (it is not shown, because it may be secret); use a map"
    );
    // Invalid YAML is reported with its position only.
    for broken in [
        "    userData: {password: hunter2",
        "    userData:\n      password: hunter2\n     x: 1\n\ty",
        "    userData: *hunter2\n",
    ] {
        let reported = parse(&format!(
            "\"/Runner\":\n  vm: {{name: t}}\n  cloudInit:\n{broken}"
        ))
        .unwrap_err();
        assert!(!reported.to_string().contains("hunter2"), "{reported}");
    }
}

#[test]
fn nulls_inside_cloud_init_stay() {
    let parsed =
        parse("\"/Runner\": {vm: {name: t}, cloudInit: {userData: {swap: null}}}").unwrap();
    let user_data = parsed.config.cloud_init.unwrap().user_data.unwrap();
    assert_eq!(user_data.get("swap"), Some(&Value::Null));
}

#[test]
fn b35_keys_with_any_first_letter_stay() {
    let parsed =
        parse("\"/Runner\": {vm: {name: t}, cloudInit: {userData: {/etc/motd: a, _b: {/c: d}}}}")
            .unwrap();
    let user_data = serde_json::to_value(parsed.config.cloud_init.unwrap().user_data).unwrap();
    assert_eq!(
        user_data,
        serde_json::json!({"/etc/motd": "a", "_b": {"/c": "d"}})
    );
}

#[test]
fn yaml_alias_expansion_attack_is_rejected() {
    let error = parse(include_str!("../../../fuzz/seeds/config/laughs.yaml")).unwrap_err();
    assert!(error.problem.contains("alias"), "{error}");
}
