//! Every fault at every call of the operator, on an API server in memory. It needs no cluster. The variables are in
//! [`support::enumeration::simulated`].

use support::enumeration::simulated;
use support::vms;

#[test]
fn every_fault_at_every_call_leads_to_the_same_end() {
    if std::env::var("FAULTS_CASE").is_ok() {
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).without_time();
        log.with_writer(std::io::stderr).init();
    }
    simulated::check(&vms::CONTROLLER, vms::SCENARIOS);
}
