//! Reports to a failing API server.

use crate::api::{Api, Fault, condition};
use crate::fixture::{Fixture, POD_UID};
use serde_json::json;

/// All faults of a request.
const FAULTS: [Fault; 5] = [
    Fault::Status(500),
    Fault::Closes,
    Fault::Hangs,
    Fault::Status(503),
    Fault::Closes,
];

#[test]
fn failing_api_server_blocks_nothing_and_receives_the_latest_status() {
    let (fixture, api) = (Fixture::with_guest(), Api::start());
    let configure = |generation: i64, cpus: u32| {
        let runner = json!({"namespace": "ns", "generation": generation});
        fixture.configure(&runner, &json!({"maximumCpus": 4, "currentCpus": cpus}));
    };
    configure(1, 1);
    api.fail(&FAULTS);
    let vm = fixture.start(Some(&api));
    vm.reaches("Booted");
    let last = |what: &str, type_: &str, status: &str, cpus: u32| {
        vm.until(what, || {
            let last = api.statuses().pop()?;
            (condition(&last, type_)["status"] == status && last["status"]["cpus"] == cpus)
                .then_some(())
        });
    };
    last("a report of the boot", "Booted", "True", 1);
    let writes = api.statuses().len();
    assert!((1..=3).contains(&writes), "{:#?}", api.statuses());
    let failed = || {
        fixture
            .log()
            .matches("cannot write the VM's status")
            .count()
    };
    let before = failed();
    assert!(before > 0, "{}", fixture.log());
    api.fail(&FAULTS);
    configure(2, 2);
    vm.until("a failed report", || (failed() > before).then_some(()));
    configure(3, 3);
    last("a report of the newest", "CpusInSync", "True", 3);
    // All other reports precede that of the next generation.
    configure(4, 3);
    vm.until("a report of the next generation", || {
        (condition(&api.statuses().pop()?, "Running")["observedGeneration"] == 4).then_some(())
    });
    let mut generations = api.statuses().split_off(writes);
    generations.retain(|status| condition(status, "Running")["observedGeneration"] != 4);
    let generations: Vec<_> = generations
        .iter()
        .map(|status| status["status"]["cpus"].clone())
        .collect();
    // The guest uses an added CPU later than QEMU has it.
    assert!(
        generations.len() <= 4 && generations.last() == Some(&json!(3)),
        "{generations:?}"
    );
    vm.signal("-TERM");
    let end = vm.end();
    assert_eq!(end.code, 10, "{}", end.log);
    let last = api.statuses().pop().unwrap();
    assert_eq!(condition(&last, "Running")["reason"], "VmStopped");
}

#[test]
fn a_runner_writes_to_its_report_only() {
    let (fixture, api) = (Fixture::with_guest(), Api::start());
    fixture.configure(&json!({"namespace": "ns"}), &json!({}));
    let vm = fixture.start(Some(&api));
    vm.reaches("Booted");
    vm.until("a report of the boot", || {
        let last = api.statuses().pop()?;
        (condition(&last, "Booted")["status"] == "True").then_some(())
    });
    vm.signal("-TERM");
    let end = vm.end();
    assert_eq!(end.code, 10, "{}", end.log);
    let path = format!("/apis/vmoperator.jdrupes.org/v1/namespaces/ns/vmreports/{POD_UID}/status?");
    let requests = api.requests();
    assert!(
        requests
            .iter()
            .all(|line| line.starts_with(&format!("PATCH {path}"))),
        "{requests:#?}"
    );
    let last = api.statuses().pop().unwrap();
    assert_eq!(condition(&last, "Running")["reason"], "VmStopped");
    let status = &last["status"];
    assert_eq!((&status["boots"], &status["cpus"]), (&json!(1), &json!(0)));
}
