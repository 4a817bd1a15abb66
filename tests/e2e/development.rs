//! The operator outside the cluster, as a developer runs it.

use super::harness::kubectl;
use super::harness::outside::Outside;
use super::harness::space::e2e_without_operator;
use super::harness::vm::BOOT;
use serde_json::json;

#[test]
fn the_operator_runs_outside_of_the_cluster() {
    e2e_without_operator(1, async |space| {
        let vm = space.create("vm", json!({})).await;
        assert!(vm.pod().is_none(), "there is an operator already");

        let mut operator = Outside::start(&space.name);
        vm.wait_for_reason("Running", BOOT).await;
        let log = operator.log();
        assert!(operator.runs(), "it still runs: {log}");
        assert!(!log.contains(" WARN ") && !log.contains(" ERROR "), "{log}");

        let scale = r"jsonpath={.spec.replicas}";
        let replicas = space
            .kubectl(&["get", "deployment", "vm-operator", "--output", scale])
            .await;
        assert_eq!(replicas, "0");
        // The VM is shut down while its operator still runs, as for a user.
        kubectl::run(&["--namespace", &space.name, "delete", "vm", "vm"]).await;
        vm.pod_gone(60).await;
    });
}
