//! Golden files: the objects of each example and fixture, the definitions in `crds/`, and the generated pages of `docs/`.
//!
//! `make golden` updates them. The difference is reviewed like code.

mod docs;
mod examples;
mod fields;
mod generated;
mod links;
mod monitoring;
mod mutated;
mod peerpods;
mod reference;
mod reference_objects;
mod security;
mod seed;
mod takeover;
mod versions;

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use support::observed::{observed_of_spec, observed_without_children};
use vm_operator::api::VirtualMachine;
use vm_operator::api::runner::viewer::Function;
use vm_operator::controllers::peerpod::metrics::PeerPodMetrics;
use vm_operator::controllers::pool::metrics::PoolMetrics;
use vm_operator::controllers::sip::metrics::SipMetrics;
use vm_operator::controllers::vm::metrics::VirtualMachineMetrics;
use vm_operator::controllers::vm::objects::{self, Objects};
use vm_operator::controllers::vm::observe::Observed;
use vm_operator::controllers::vm::plan::plan;
use vm_operator::operator::cli::crd_files;
use vm_operator::settings::{
    DeviceAccess, LoadBalancerService, Reconciler, Section, Settings, VolumeMode,
};
use vm_operator::telemetry::metrics::Metrics;
use vm_operator::web::{DONE, WebMetrics};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The VM of a file, as the API server returns it.
fn vm(path: &str) -> VirtualMachine {
    let text = std::fs::read_to_string(root().join(path)).unwrap();
    let mut vm: VirtualMachine = serde_saphyr::from_str(&text).unwrap();
    vm.metadata.namespace = Some("vmop-demo".to_owned());
    vm.metadata.uid = Some("00000000-0000-4000-8000-000000000001".to_owned());
    vm.metadata.generation = Some(1);
    vm
}

/// A VM with that spec, without children.
fn vm_of(spec: Value) -> Observed {
    observed_of_spec(spec).unwrap()
}

fn json_of(object: &impl serde::Serialize) -> Value {
    serde_json::to_value(object).unwrap()
}

fn objects(path: &str) -> String {
    objects_with(path, Reconciler::default())
}

fn objects_with(path: &str, mut settings: Reconciler) -> String {
    let mut vm = vm(path);
    // An import pod would come before the pod of the golden file.
    for disk in &mut vm.spec.vm.disks {
        disk.source = None;
    }
    let observed = observed_without_children(vm);
    if observed.vm.spec.load_balancer_service.is_some() {
        let annotations = ["pool", "shared"]
            .map(|name| (name.to_owned(), "default".to_owned()))
            .into();
        settings.load_balancer_service = LoadBalancerService::On {
            labels: BTreeMap::new(),
            annotations,
        };
    }
    let plan = plan(&observed, &settings).unwrap();
    let built = objects::build(&plan);
    assert_eq!(
        built,
        objects::build(&plan),
        "the same plan gives the same objects"
    );
    let Objects {
        image_repository,
        fetches,
        config_map,
        runner_data,
        disks,
        claim_changes,
        display_secret,
        service,
        pod,
        mut identity,
        stage: _,
    } = built;
    for claim in identity.claims.values_mut() {
        claim.uid = format!("uid-of-{}", claim.name);
    }
    let pod = objects::with_short_hashes(objects::with_template_hash(pod));
    let pod = objects::with_identity(pod, &identity);
    assert_eq!(claim_changes, [], "no claim exists");
    let claims = image_repository
        .iter()
        .chain([&runner_data])
        .chain(&disks)
        .map(yaml);
    let objects = [yaml(&config_map)]
        .into_iter()
        .chain(display_secret.iter().map(yaml))
        .chain(claims);
    let objects = objects
        .chain(service.iter().map(yaml))
        .chain([yaml(&pod)])
        .chain(
            fetches
                .iter()
                .filter_map(|fetch| fetch.pod.as_ref())
                .map(yaml),
        );
    objects.collect::<Vec<_>>().join("---\n")
}

fn yaml(object: &impl serde::Serialize) -> String {
    serde_saphyr::to_string(object).unwrap()
}

fn golden(name: &str, text: &str) {
    insta::with_settings!({snapshot_path => ".", prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!(name, text);
    });
}

#[test]
fn the_well_known_example() {
    golden("test-vm", &objects("examples/test-vm.yaml"));
}

#[test]
fn the_demos_example() {
    golden("demo-vm", &objects("examples/demo-vm.yaml"));
}

#[test]
fn a_vm_with_a_cd_by_url() {
    golden(
        "install-from-url",
        &objects("examples/install-from-url.yaml"),
    );
}

/// A test of the runner builds QEMU's command line from the configuration in this file.
#[test]
fn the_windows_example() {
    golden("windows", &objects("examples/windows.yaml"));
}

#[test]
fn a_vm_with_everything_that_is_mapped() {
    golden("full", &objects("tests/check/golden/full.yaml"));
}

#[test]
fn a_vm_on_a_bridge_of_its_node() {
    golden("bridge", &objects("examples/bridge.yaml"));
}

#[test]
fn a_vm_as_root_where_block_devices_are_roots() {
    let settings = Reconciler {
        device_access: DeviceAccess::Root,
        ..Reconciler::default()
    };
    golden("root", &objects_with("examples/demo-vm.yaml", settings));
}

/// The configuration in a ConfigMap of `deploy`.
fn shipped(config_map: &str) -> Reconciler {
    let path = root().join("deploy").join(config_map);
    let file: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let (settings, notes) =
        Settings::parse(file["data"]["config.yaml"].as_str().unwrap(), "f").unwrap();
    assert_eq!(notes, [""; 0]);
    settings.reconciler
}

#[test]
fn a_privileged_vm_with_the_settings_of_the_overlay() {
    let settings = shipped("overlays/privileged/config-map.yaml");
    golden(
        "privileged",
        &objects_with("examples/bridge.yaml", settings),
    );
}

#[test]
fn a_vm_with_the_shipped_configuration_uses_kvm_where_it_is_present() {
    let settings = shipped("base/vmop-config-map.yaml");
    for overlay in ["local-path", "rook-ceph"] {
        let other = shipped(&format!("overlays/{overlay}/config-map.yaml"));
        assert_eq!(other.accelerator, settings.accelerator, "{overlay}");
    }
    let modes = ["local-path", "rook-ceph"].map(|overlay| {
        shipped(&format!("overlays/{overlay}/config-map.yaml"))
            .disk_pvc
            .volume_mode
    });
    assert_eq!(modes, [VolumeMode::Filesystem, VolumeMode::Block]);
    golden(
        "shipped",
        &objects_with("tests/check/golden/smallest.yaml", settings),
    );
}

#[test]
fn the_smallest_vm() {
    golden("smallest", &objects("tests/check/golden/smallest.yaml"));
}

/// Metrics of the web console with at least one sample each.
fn sample_web_metrics() -> WebMetrics {
    let metrics = WebMetrics::default();
    metrics.login(DONE);
    metrics.action("start", DONE);
    drop(metrics.open_console(Function::Screen));
    drop(metrics.settings_valid("config.yaml"));
    metrics
}

/// Compares the file with that text. With `INSTA_UPDATE=always` it writes the file.
fn is_current(name: &str, text: &str) {
    let path = root().join(name);
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        std::fs::write(&path, text).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap() == text,
        "{name} is out of date; run `make golden`"
    );
}

#[test]
fn the_definitions_in_crds_are_those_of_the_code() {
    for (name, text) in crd_files().unwrap() {
        is_current(&format!("crds/{}", name.display()), &text);
    }
}

/// Metrics of the operator with at least one sample each. A metric with labels is served only with a sample.
fn sample_metrics() -> Metrics {
    let metrics = Metrics::default();
    metrics.reconciled("vm", "Done", 0.0);
    metrics.set_backoff("vm", 0);
    metrics.requested("get", "vms", "200");
    metrics.set_undecodable("vm", 0);
    metrics.set_stored("vms", 1);
    metrics.work_queue.added("vm");
    metrics.work_queue.retried("vm");
    metrics.work_queue.started("vm", Duration::ZERO);
    metrics.work_queue.set_depth("vm", 0);
    let vm = [("namespace", ""), ("name", "")];
    let condition = [vm[0], vm[1], ("type", ""), ("status", "")];
    let vms = metrics.of::<VirtualMachineMetrics>();
    vms.set_vms(["Running"].into_iter());
    vms.conditions
        .set_source(move |sample| sample(&condition, 1));
    let info = ["node", "state", "reason", "runner_version"].map(|name| (name, ""));
    let info = [&vm[..], &info].concat();
    vms.info.set_source(move |sample| sample(&info, 1));
    vms.restarts.set_source(move |sample| sample(&vm, 0));
    let peerpods = metrics.of::<PeerPodMetrics>();
    peerpods.released("Deleted");
    peerpods.failed("aws", "Throttled");
    peerpods.set_up("aws", true);
    peerpods.set_orphans("aws", 1);
    peerpods.set_pending(&BTreeMap::from([("Deleting", 1)]), 1);
    peerpods.orphan_deleted("aws");
    let sip = metrics.of::<SipMetrics>();
    sip.cluster("ReconciliationSucceeded");
    sip.hosts("ControlPlane", 1);
    let pools = metrics.of::<PoolMetrics>();
    pools.set_vms("desktops", "free", 1);
    pools.set_waiting("desktops", 0);
    pools.assigned("desktops", 0.1);
    pools.conflict("desktops");
    metrics
}
