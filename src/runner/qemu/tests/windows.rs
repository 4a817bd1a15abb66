//! The command line of `examples/windows.yaml`, which no test runs with Windows.

use super::{lines, machine, options};
use crate::runner::config;
use crate::runner::machine::{Acceleration, Machine, Screen, cpu_model, testing};
use crate::runner::spec::Spec;
use serde_json::Value;

/// The objects that the operator creates for the example. The golden tests keep this file equal to the example.
const OBJECTS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/check/golden/windows.snap"
);

/// The configuration file in the ConfigMap of the example.
fn configuration() -> String {
    let objects = std::fs::read_to_string(OBJECTS).unwrap();
    let config_map = objects
        .split("---\n")
        .find(|object| object.contains("kind: ConfigMap"))
        .unwrap();
    let object: Value = serde_saphyr::from_str(config_map).unwrap();
    object["data"]["config.yaml"].as_str().unwrap().to_owned()
}

/// The VM on a node with KVM.
fn windows() -> Machine {
    let spec = Spec::from_config(&config::parse(&configuration()).unwrap().config).unwrap();
    let macs = vec!["52:54:00:12:34:00".to_owned()];
    let disks: Vec<_> = spec
        .disks
        .iter()
        .map(|disk| options::disk(disk, true))
        .collect();
    let paths: Vec<_> = disks
        .iter()
        .map(|disk| disk.path.display().to_string())
        .collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    Machine {
        acceleration: Acceleration::Kvm,
        cpu_model: cpu_model(&spec.vm.cpu_model, &Acceleration::Kvm),
        firmware: options::firmware(spec.vm.firmware),
        pci_slots: testing::layout(&macs, &paths),
        macs,
        cds: spec.cds.clone(),
        disks,
        screen: Screen::VirtioVga,
        ticketing: true,
        spec,
        ..machine("    network: []\n")
    }
}

#[test]
fn windows_example_has_secure_boot_a_tpm_and_two_cd_drives() {
    insta::assert_snapshot!("windows", lines(&windows()));
}
