//! The roles of operator and runner grant exactly the verbs that the other tests of the ordinary tier have used. The
//! requests are in the API server's audit log, and a table has the exceptions. This test is a separate run after them,
//! as [`super`] shows.

use super::harness::environment;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use support::rights::{Right, audited, complaints, granted};

/// Permissions that these tests need not use: account, resources, verbs, reason.
const EXCEPTIONS: &[(&str, &[&str], &[&str], &str)] = &[
    (
        "vm-operator",
        &["vmoperator.jdrupes.org/vms/finalizers"],
        &["update"],
        "OwnerReferencesPermissionEnforcement asks for it with each object that names its VM as owner, without a request",
    ),
    (
        "vm-operator",
        &[
            "vmoperator.jdrupes.org/vms",
            "vmoperator.jdrupes.org/vmreports",
            "vmoperator.jdrupes.org/vmpools",
            "vmoperator.jdrupes.org/vmassignments",
            "pods",
            "configmaps",
            "persistentvolumeclaims",
            "secrets",
            "services",
        ],
        &["list"],
        "the first list of a watch is read in pages where the API server does not stream it, as before 1.34",
    ),
    (
        "vm-operator",
        &[
            "vmoperator.jdrupes.org/vmreports",
            "pods",
            "configmaps",
            "persistentvolumeclaims",
            "secrets",
            "services",
        ],
        &["get"],
        "the operator reads the object that exists already when a create is rejected",
    ),
    (
        "vm-operator",
        &["coordination.k8s.io/leases"],
        &["create"],
        "the manifests contain the Lease; the operator creates one that was deleted",
    ),
    (
        "vm-operator",
        &["vmoperator.jdrupes.org/vmpools"],
        &["get"],
        "reads the pool before the assignment of a VM ends because its pool does not exist",
    ),
    (
        "vm-operator",
        &["vmoperator.jdrupes.org/vmassignments"],
        &["create", "delete"],
        "adopted assignments of the Java VM-Operator, and assignments after their end",
    ),
    (
        "vm-operator",
        &["events.k8s.io/events"],
        &["list"],
        "warnings about a pod that does not start",
    ),
    (
        "vm-operator",
        &["configmaps"],
        &["patch"],
        "a change of a running VM",
    ),
    (
        "vm-operator",
        &["pods"],
        &["patch"],
        "triggers the kubelet's refresh of the ConfigMap",
    ),
    (
        "vm-operator",
        &["pods/log"],
        &["get"],
        "progress of a fetch that takes longer than its first check",
    ),
    (
        "vm-operator",
        &["pods/resize"],
        &["patch"],
        "the pod's requests follow a change of the CPUs",
    ),
    (
        "vm-operator",
        &["persistentvolumeclaims"],
        &["patch"],
        "a disk is enlarged",
    ),
    (
        "vm-operator",
        &["configmaps", "secrets"],
        &["delete"],
        "orphaned objects of a previous VM with the same name, if the garbage collector does not delete them first",
    ),
    (
        "vm-operator",
        &["services"],
        &["create", "patch", "delete"],
        "load balancers, which the local cluster lacks",
    ),
];

fn exceptions() -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for (account, resources, verbs, _) in EXCEPTIONS {
        for resource in *resources {
            for verb in *verbs {
                rights.insert((
                    String::from(*account),
                    String::from(*resource),
                    String::from(*verb),
                    None,
                ));
            }
        }
    }
    rights
}

/// The permissions of the Roles in `deploy/base`, each with the name of its account. Tests on an API server check the other folders.
fn granted_by_deploy() -> BTreeSet<Right> {
    let files = fs::read_dir(environment::repo().join("deploy/base")).unwrap();
    let texts = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    let objects = texts.map(|text| serde_saphyr::from_str::<Value>(&text).unwrap());
    let roles = objects.filter(|object| object["kind"] == "Role");
    roles
        .flat_map(|role| granted(role["metadata"]["name"].as_str().unwrap(), &role))
        .collect()
}

/// The audit log's files, including rotated ones.
fn logs() -> Vec<PathBuf> {
    let dir = environment::dir();
    let files = fs::read_dir(dir.join("logs"))
        .unwrap_or_else(|e| panic!("{}: {e}; run `make cluster`", dir.display()));
    let files = files.map(|file| file.unwrap().path());
    files
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with("audit")
        })
        .collect()
}

#[test]
fn granted_permissions_are_exactly_the_requested_permissions() {
    let has_filter = std::env::args()
        .skip(1)
        .any(|argument| argument.contains("granted"));
    assert!(
        has_filter,
        "this compares what the other tests have used; run it after them, with the filter `granted`"
    );
    let run = fs::read_to_string(environment::run_file())
        .expect("no end-to-end test has run; `tests/run e2e`");
    let mut all = BTreeSet::new();
    for log in logs() {
        for line in BufReader::new(File::open(log).unwrap()).lines() {
            let line = line.unwrap();
            if !line.contains(&run) {
                continue;
            }
            let entry: Value = serde_json::from_str(&line).unwrap();
            let user = entry["user"]["username"].as_str().unwrap_or_default();
            if let Some(account) = user
                .strip_prefix("system:serviceaccount:")
                .filter(|user| user.starts_with(&run))
            {
                all.extend(audited(account.rsplit_once(':').unwrap().1, &entry));
            }
        }
    }
    // Permissions of objects that other tests of the run have created.
    let granted = granted_by_deploy();
    all.retain(|((account, ..), _)| granted.iter().any(|right| right.0 == *account));
    assert!(!all.is_empty(), "the audit log has no request of {run}");
    let complaints = complaints(&granted, &all, &exceptions());
    assert!(complaints.is_empty(), "{complaints:#?}");
}
