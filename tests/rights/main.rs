//! What the roles of operator and runner grant is what the end-to-end tests have seen used, verb by verb, by the API
//! server's audit log; but for a closed table of exceptions. `tests/run e2e` runs it after those tests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// Account, resource with its group and subresource, verb.
type Right = (String, String, String);

/// What is granted though these tests need not use it: account, resources, verbs, why. Where another test shows the use,
/// it is named.
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
            "pods",
            "configmaps",
            "persistentvolumeclaims",
            "secrets",
            "services",
            "events.k8s.io/events",
        ],
        &["list"],
        "API servers before 1.34 give the first list of a watch in pages: an_operator_whose_first_requests_are_never_answered_sees_everything_all_the_same",
    ),
    (
        "vm-operator",
        &["pods", "configmaps", "persistentvolumeclaims", "secrets", "services"],
        &["get"],
        "looks at what is there already when a create is refused: every_single_fault_at_every_request_leads_to_the_same_end",
    ),
    ("vm-operator", &["configmaps"], &["patch"], "a VM's change while it runs; how often depends on the tests"),
    (
        "vm-operator",
        &["pods"],
        &["patch"],
        "asks the kubelet to look at the ConfigMap soon: a_change_of_cpus_goes_to_the_config_and_wakes_the_kubelet",
    ),
    (
        "vm-operator",
        &["pods/log"],
        &["get"],
        "a fetch that takes longer than a look: a_machine_that_boots_from_an_image_starts_once_it_is_there",
    ),
    ("vm-operator", &["pods/resize"], &["patch"], "the_pods_requests_follow_a_change_of_cpus"),
    (
        "vm-operator",
        &["persistentvolumeclaims"],
        &["patch"],
        "a disk is enlarged: a_bound_claim_grows_by_one_request_that_says_nothing_else",
    ),
    (
        "vm-operator",
        &["configmaps", "secrets"],
        &["delete"],
        "what the garbage collector misses: what_the_garbage_collector_misses_of_an_earlier_vm_is_removed_after_a_minute",
    ),
    (
        "vm-operator",
        &["services"],
        &["create", "patch", "delete"],
        "load balancers, which the local cluster lacks: a_service_is_made_followed_and_taken_away",
    ),
    (
        "vm-operator",
        &["apps/deployments"],
        &["get"],
        "tells of refused settings: a_changed_config_map_is_in_force_at_once_and_a_wrong_one_is_an_event_on_the_deployment",
    ),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn with_group(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{group}/{resource}") }
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// What a role grants.
fn granted(account: &str, role: &Value) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().into_iter().flatten() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    rights.insert((account.to_owned(), with_group(group, resource), verb.to_owned()));
                }
            }
        }
    }
    rights
}

/// What an entry of the audit log tells of an account: what was asked for, and whether it was allowed. None: it is about
/// no resource, or about what every account may do.
fn asked(account: &str, entry: &Value) -> Option<(Right, bool)> {
    let object = &entry["objectRef"];
    let part = |name: &str| object[name].as_str().unwrap_or_default();
    let slash = if part("subresource").is_empty() { "" } else { "/" };
    let resource =
        with_group(part("apiGroup"), &format!("{}{slash}{}", object["resource"].as_str()?, part("subresource")));
    let right = (account.to_owned(), resource, entry["verb"].as_str()?.to_owned());
    Some((right, entry["annotations"]["authorization.k8s.io/decision"] == "allow"))
}

/// What is wrong: rights that nobody has used, and requests for which there is no right.
fn complaints(granted: &BTreeSet<Right>, asked: &BTreeSet<(Right, bool)>, exceptions: &BTreeSet<Right>) -> Vec<String> {
    let used = |right: &Right| asked.contains(&(right.clone(), true));
    let unused = granted.iter().filter(|right| !used(right) && !exceptions.contains(right));
    let unused = unused.map(|right| format!("granted and not used: {right:?}"));
    // While a namespace is removed, its roles may go before its operator.
    let refused = asked.iter().filter(|(right, allowed)| !allowed && !granted.contains(right));
    let refused = refused.map(|(right, _)| format!("asked for and not granted: {right:?}"));
    let beside = asked.iter().filter(|(right, allowed)| *allowed && !granted.contains(right));
    let beside = beside.map(|(right, _)| format!("used, but granted by another role: {right:?}"));
    let idle = exceptions.iter().filter(|right| !granted.contains(right));
    let idle = idle.map(|right| format!("an exception that is not granted: {right:?}"));
    unused.chain(refused).chain(beside).chain(idle).collect()
}

fn exceptions() -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for (account, resources, verbs, _) in EXCEPTIONS {
        for resource in *resources {
            for verb in *verbs {
                rights.insert((String::from(*account), String::from(*resource), String::from(*verb)));
            }
        }
    }
    rights
}

fn granted_by_deploy() -> BTreeSet<Right> {
    let role = |account: &str, file: &str| {
        let text = fs::read_to_string(root().join("deploy/base").join(file)).unwrap();
        granted(account, &serde_saphyr::from_str(&text).unwrap())
    };
    let operator = role("vm-operator", "vmop-role.yaml");
    operator.into_iter().chain(role("vm-runner", "vmrunner-role.yaml")).collect()
}

/// The audit log's files, those that were put aside too.
fn logs() -> Vec<PathBuf> {
    let dir = std::env::var_os("VMOP_CLUSTER_DIR").map_or_else(|| "/var/lib/vmop-cluster".into(), PathBuf::from);
    let files = fs::read_dir(dir.join("logs")).unwrap_or_else(|e| panic!("{}: {e}; run `make cluster`", dir.display()));
    let files = files.map(|file| file.unwrap().path());
    files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("audit")).collect()
}

#[test]
fn what_is_granted_is_used_and_nothing_else_is_asked_for() {
    let run = fs::read_to_string(root().join(".cache/e2e-run")).expect("no end-to-end test has run; `tests/run e2e`");
    let mut all = BTreeSet::new();
    for log in logs() {
        for line in BufReader::new(File::open(log).unwrap()).lines() {
            let line = line.unwrap();
            if !line.contains(&run) {
                continue;
            }
            let entry: Value = serde_json::from_str(&line).unwrap();
            let user = entry["user"]["username"].as_str().unwrap_or_default();
            if let Some(account) = user.strip_prefix("system:serviceaccount:").filter(|user| user.starts_with(&run)) {
                all.extend(asked(account.rsplit_once(':').unwrap().1, &entry));
            }
        }
    }
    // What other tests of that run have made for themselves.
    all.retain(|((account, ..), _)| ["vm-operator", "vm-runner"].contains(&account.as_str()));
    assert!(!all.is_empty(), "the audit log tells nothing of {run}");
    let complaints = complaints(&granted_by_deploy(), &all, &exceptions());
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn a_right_too_much_and_a_right_too_few_are_seen() {
    let right = |verb: &str| (String::from("a"), String::from("pods"), String::from(verb));
    let rights = |verbs: &[&str]| verbs.iter().map(|verb| right(verb)).collect::<BTreeSet<_>>();
    let asked: BTreeSet<_> = [(right("get"), true), (right("delete"), false), (right("list"), false)].into();
    assert_eq!(complaints(&rights(&["get", "list"]), &asked, &rights(&["list"])).len(), 1, "delete is refused");
    let complaints = complaints(&rights(&["get", "list", "watch"]), &asked, &rights(&["watch"]));
    assert_eq!(complaints[0], r#"granted and not used: ("a", "pods", "list")"#);
    let role =
        serde_json::json!({"rules": [{"apiGroups": ["", "g"], "resources": ["pods/resize"], "verbs": ["patch"]}]});
    let granted: Vec<String> = granted("a", &role).into_iter().map(|(_, resource, _)| resource).collect();
    assert_eq!(granted, ["g/pods/resize", "pods/resize"]);
}

#[test]
fn each_exception_is_granted_and_names_a_test_that_exists() {
    let granted = granted_by_deploy();
    assert_eq!(exceptions().into_iter().filter(|right| !granted.contains(right)).collect::<Vec<_>>(), []);
    let mut sources = String::new();
    read_all(&root().join("tests"), &mut sources);
    read_all(&root().join("src"), &mut sources);
    for (.., why) in EXCEPTIONS {
        let words = why.split(|c: char| !c.is_alphanumeric() && c != '_');
        for test in words.filter(|word| word.matches('_').count() > 2) {
            assert!(sources.contains(&format!("fn {test}(")), "no test {test}");
        }
    }
}

fn read_all(dir: &Path, sources: &mut String) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *sources += &fs::read_to_string(path).unwrap();
        }
    }
}
