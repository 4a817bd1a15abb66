//! Files that the runner itself cannot access. (QEMU: `no_process_has_privileges_and_qemu_is_confined`.)

use crate::api::{Api, condition};
use crate::fixture::Fixture;
use serde_json::json;
use std::fs;
use std::os::unix::fs::symlink;

const NO_LANDLOCK: &str = "kernel has no Landlock";

#[test]
fn a_runner_does_not_follow_its_configuration_out_of_its_folder() {
    let (fixture, api) = (Fixture::with_guest(), Api::start());
    let cpus = |cpus: u32| {
        fixture.configure(
            &json!({"namespace": "ns"}),
            &json!({"maximumCpus": 4, "currentCpus": cpus}),
        )
    };
    cpus(1);
    let vm = fixture.start(Some(&api));
    let mut console = vm.console();
    console.wait("ready");
    if fixture.log().contains(NO_LANDLOCK) {
        return;
    }
    // Readable for its user, like the other files of this test.
    fs::create_dir(fixture.path("elsewhere")).unwrap();
    let own = fs::read(fixture.path("config/config.yaml")).unwrap();
    fs::remove_file(fixture.path("config/config.yaml")).unwrap();
    symlink(
        "../elsewhere/config.yaml",
        fixture.path("config/config.yaml"),
    )
    .unwrap();
    let three = String::from_utf8(own.clone())
        .unwrap()
        .replace("\"currentCpus\":1", "\"currentCpus\":3");
    fixture.write("elsewhere/config.yaml", &three);
    vm.until("the report of a configuration that cannot be read", || {
        (condition(&api.statuses().pop()?, "ConfigInSync")["status"] == "False").then_some(())
    });
    let seen = |console: &mut crate::fixture::Console| {
        console.type_line("sh echo cpus=$(nproc)");
        console.wait("TINY sh cpus=");
        console.wait("\n").trim().to_owned()
    };
    assert_eq!(seen(&mut console), "1");
    // It accepts a file that is created again.
    fs::remove_file(fixture.path("config/config.yaml")).unwrap();
    fs::write(fixture.path("config/config.yaml"), own).unwrap();
    cpus(2);
    vm.until("the second CPU", || {
        (seen(&mut console) == "2").then_some(())
    });
}

#[test]
fn configured_file_is_read_from_any_path() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("seed")).unwrap();
    fixture.write("seed/user-data", "#cloud-config\n");
    let seed = json!({"metaData": {"instance-id": "one"}, "userDataFile": "/tmp/seed/user-data"});
    fixture.configure(
        &json!({"cloudInit": seed}),
        &json!({"drives": [], "powerdownTimeout": 0}),
    );
    let vm = fixture.start(None);
    vm.reaches("Booting");
    vm.signal("-TERM");
    let end = vm.end();
    assert_eq!(end.code, 10, "{}", end.log);
}
