//! Each fault at each call of the operator, on an API server in memory. [`support::enumeration::simulated`] documents
//! the variables.

use support::enumeration::number;
use support::enumeration::simulated::{self, Simulation};
use support::peerpods;
use support::pools;
use support::sip;
use support::vms;

#[test]
fn every_fault_at_every_call_leads_to_the_same_end() {
    if std::env::var("FAULTS_CASE").is_ok() {
        let log = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .without_time();
        log.with_writer(std::io::stderr).init();
    }
    simulated::check(&vms::CONTROLLER, vms::SCENARIOS);
}

#[test]
fn every_fault_at_every_call_of_pools_leads_to_the_same_end() {
    simulated::check(&pools::CONTROLLER, pools::SCENARIOS);
}

#[test]
fn every_fault_at_every_call_of_peerpods_leads_to_the_same_end() {
    simulated::check(&peerpods::CONTROLLER, peerpods::SCENARIOS);
}

#[test]
fn every_fault_at_every_call_to_ec2_leads_to_the_same_end() {
    simulated::check(&peerpods::aws::CONTROLLER, peerpods::aws::SCENARIOS);
}

#[test]
fn every_fault_at_every_call_to_libvirt_leads_to_the_same_end() {
    simulated::check(&peerpods::libvirt::CONTROLLER, peerpods::libvirt::SCENARIOS);
}

#[test]
fn every_fault_at_every_call_of_sip_clusters_leads_to_the_same_end() {
    simulated::check(&sip::CONTROLLER, sip::SCENARIOS);
}

/// kube's recorder writes real time into events, and into their names.
fn without_time(line: &str) -> String {
    match line.contains(" events.events.k8s.io ") {
        true => line.split(' ').take(3).collect::<Vec<_>>().join(" "),
        false => line.to_owned(),
    }
}

/// The seed in the message of a failure is useful only if equal seeds give equal runs. All scenarios are repeated only with
/// `FAULTS_SEEDS`, otherwise two.
#[test]
fn a_seed_repeats_every_step_of_a_run() {
    let simulation = Simulation::new(&vms::CONTROLLER);
    let count = number("FAULTS_SEEDS").map_or(2, |_| vms::SCENARIOS.len());
    let scenarios: Vec<_> = vms::SCENARIOS.iter().take(count).collect();
    let mut others = 0;
    for (scenario, reference, cases) in simulation.cases(&scenarios, 1) {
        for case in cases.iter().step_by(100) {
            let run = |seed| {
                Vec::from_iter(
                    simulation
                        .history(seed, scenario, &reference, case)
                        .iter()
                        .map(|line| without_time(line)),
                )
            };
            let first = run(1);
            let difference = |other: &[String]| {
                first
                    .iter()
                    .zip(other)
                    .find(|(a, b)| a != b)
                    .map(|(a, b)| format!("{a}\n{b}"))
            };
            let second = run(1);
            assert!(
                first == second,
                "{case} takes another course: {}",
                difference(&second).unwrap_or_default()
            );
            others += usize::from(run(2) != first);
        }
    }
    assert!(others > 0, "another seed changes nothing");
}
