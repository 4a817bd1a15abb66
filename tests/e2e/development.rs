//! The operator outside of the cluster, as who works on it runs it.

use super::harness::space::e2e_without_operator;
use super::harness::vm::BOOT;
use super::harness::{kubectl, rig};
use serde_json::json;
use std::fs::{self, File};
use tokio::process::Command;

#[test]
fn the_operator_runs_outside_of_the_cluster() {
    e2e_without_operator(async |space| {
        let dir = tempfile::tempdir().unwrap();
        let config = fs::read_to_string(rig::repo().join("deploy/overlays/dev/config.yaml")).unwrap();
        assert!(config.contains("vmop-dev"), "the namespace comes from the file: {config}");
        fs::write(dir.path().join("config.yaml"), config.replace("vmop-dev", &space.name)).unwrap();
        let vm = space.create("vm", json!({})).await;
        assert!(vm.pod().is_none(), "there is an operator already");

        let log = File::create(dir.path().join("log")).unwrap();
        let mut operator = Command::new(env!("CARGO_BIN_EXE_vm-operator"));
        operator.args(["run", "--http", "127.0.0.1:0", "--config"]).arg(dir.path().join("config.yaml"));
        operator.env("KUBECONFIG", rig::kubeconfig()).stderr(log).kill_on_drop(true);
        let mut operator = operator.spawn().unwrap();
        vm.becomes("Running", BOOT).await;
        let said = fs::read_to_string(dir.path().join("log")).unwrap();
        assert!(operator.try_wait().unwrap().is_none(), "it still runs: {said}");
        assert!(!said.contains(" WARN ") && !said.contains(" ERROR "), "{said}");

        let scale = r"jsonpath={.spec.replicas}";
        let replicas = space.kubectl(&["get", "deployment", "vm-operator", "--output", scale]).await;
        assert_eq!(replicas, "0");
        // The VM is shut down while its operator is still there, as it is for a user.
        kubectl::must(&["--namespace", &space.name, "delete", "vm", "vm"]).await;
        vm.pod_gone(60).await;
    });
}
