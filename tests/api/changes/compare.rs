//! (pure) Compares a changed VM with one that was created with the same spec: before and after its next start.

use crate::changes::allowed;
use crate::changes::case::Verdict;
use crate::changes::rest::Rest;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use support::final_state::difference;
use vm_operator::api::vm::conditions;
use vm_operator::api::vm::names;

/// Compares a VM that has started since the change. `first` is its first state.
pub fn compare(what: &str, made: &Rest, found: &Rest, first: &Rest) -> Result<(), Verdict> {
    // An existing PVC is not created, so it cannot be rejected.
    if found.is_well()
        && made.reason == "Rejected"
        && made.message.contains("PersistentVolumeClaim")
    {
        return Ok(());
    }
    same_reason(what, made, found)?;
    // With a blocking condition, the previous objects are retained.
    if !made.is_well() {
        return Ok(());
    }
    same(what, made.clone(), found.clone(), first)
}

/// Compares a VM that was changed while it runs. `before` is its state until then. It must report each change that
/// needs a restart, and no other.
pub fn compare_live(
    what: &str,
    made: &Rest,
    found: &Rest,
    before: &Rest,
    first: &Rest,
) -> Result<(), Verdict> {
    let is_running = |rest: &Rest| rest.reason == "Running" && rest.pod.is_some();
    if is_running(before) && is_running(found) && before.pod != found.pod {
        return Err(Verdict::Wrong(format!(
            "{what}, its VM was restarted without a request"
        )));
    }
    let restart = found.condition_message(conditions::RESTART_REQUIRED, "True");
    // The running QEMU continues, regardless of a blocking condition of the next one.
    if !made.is_well() && is_running(found) && restart.is_some() {
        return Ok(());
    }
    if !made.is_well() || !found.is_well() {
        return compare(what, made, found, first);
    }
    same_reason(what, made, found)?;
    let restart = restart.unwrap_or_default();
    let (is_too_short, is_reported) =
        (grace(found) < grace(made), restart.contains(allowed::GRACE));
    if is_too_short != is_reported {
        let text = format!(
            "its pod has a grace period of {:?} s, not {:?}, and it reports {restart:?}",
            grace(found),
            grace(made)
        );
        return Err(Verdict::Wrong(format!("{what}, {text}")));
    }
    let (mut made, mut found) = (made.clone(), found.clone());
    for rest in [&mut made, &mut found] {
        allowed::without_restarts(&mut rest.objects);
    }
    let (mut named, mut differ) = (named(restart), started_otherwise(&made, &found));
    if modes_differ(&made, &found) {
        // Its QEMU keeps the mode of the existing PVC. The created one has another mode.
        [&mut named, &mut differ]
            .into_iter()
            .for_each(|fields| fields.retain(|field| field != "spec.vm.disks"));
    }
    if named != differ {
        let text = format!(
            "it reports a required restart for {named:?}, and was started differently in {differ:?}"
        );
        return Err(Verdict::Wrong(format!("{what}, {text}")));
    }
    if !named.is_empty() {
        [&mut made, &mut found]
            .into_iter()
            .for_each(|rest| drop(rest.objects.remove("Pod")));
    }
    if found
        .condition_message(conditions::RESOURCES_IN_SYNC, "False")
        .is_some()
    {
        [&mut made, &mut found]
            .into_iter()
            .for_each(|rest| allowed::without_resources(&mut rest.objects));
    }
    same(what, made, found, first)
}

/// The pod's grace period in seconds.
fn grace(rest: &Rest) -> Option<i64> {
    rest.objects
        .get("Pod")
        .and_then(|pod| pod["spec"]["terminationGracePeriodSeconds"].as_i64())
}

fn same_reason(what: &str, made: &Rest, found: &Rest) -> Result<(), Verdict> {
    if made.reason == found.reason {
        return Ok(());
    }
    let describe = |rest: &Rest| format!("{} ({:.200})", rest.reason, rest.message);
    Err(Verdict::Wrong(format!(
        "{what}, it is {}; the created one is {}",
        describe(found),
        describe(made)
    )))
}

/// The fields in `RestartRequired`.
fn named(message: &str) -> BTreeSet<String> {
    let fields = message
        .split_once("in a new pod of the VM: ")
        .map(|(_, rest)| rest);
    let fields = fields
        .and_then(|rest| rest.rsplit_once("; "))
        .map(|(fields, _)| fields);
    let fields = fields
        .unwrap_or(message)
        .split(", ")
        .filter(|field| !field.is_empty() && !allowed::is_not_hashed(field));
    fields.map(ToOwned::to_owned).collect()
}

/// The fields in which the two pods were started differently.
fn started_otherwise(made: &Rest, found: &Rest) -> BTreeSet<String> {
    let removed = &resources(found) - &resources(made);
    let [made, found] = [made, found].map(|rest| {
        let hashes = rest.objects.get("Pod").and_then(|pod| {
            pod["metadata"]["annotations"][names::ANNOTATION_STARTED_WITH].as_str()
        });
        let hashes: BTreeMap<String, Value> = hashes
            .map(|text| serde_json::from_str(text).unwrap())
            .unwrap_or_default();
        hashes
    });
    // The annotation has no entry of a field that is not set.
    let hashed = made.keys().chain(found.keys());
    let hashed = hashed.filter(|field| made.get(*field) != found.get(*field));
    hashed.cloned().chain(removed).collect()
}

/// The requests and limits of CPU and memory that the pod was resized with. A resize removes none.
fn resources(rest: &Rest) -> BTreeSet<String> {
    let pod = rest.objects.get("Pod");
    let resources =
        pod.and_then(|pod| pod["metadata"]["annotations"][names::ANNOTATION_RESOURCES].as_str());
    let resources: Value =
        resources.map_or(Value::Null, |text| serde_json::from_str(text).unwrap());
    let all = ["requests", "limits"].into_iter().flat_map(|part| {
        let present = ["cpu", "memory"].into_iter();
        let present = present.filter(|name| !resources[part][name].is_null());
        present
            .map(move |name| format!("spec.resources.{part}.{name}"))
            .collect::<Vec<_>>()
    });
    all.collect()
}

/// Whether an existing PVC has another volume mode than the created one. The mode is immutable.
fn modes_differ(made: &Rest, found: &Rest) -> bool {
    let mode = |claim: &Value| claim["spec"]["volumeMode"].clone();
    let claims = made
        .retained
        .iter()
        .filter(|((kind, _), _)| *kind == "PersistentVolumeClaim");
    let mut there = claims.filter_map(|(key, claim)| Some((claim, found.retained.get(key)?)));
    there.any(|(claim, there)| mode(claim) != mode(there))
}

fn same(what: &str, mut made: Rest, mut found: Rest, first: &Rest) -> Result<(), Verdict> {
    let wrong = |why: String| Err(Verdict::Wrong(format!("{what}, {why}")));
    let disks = found
        .condition_message(conditions::DISKS_IN_SYNC, "False")
        .map(ToOwned::to_owned);
    let (modes_differ, mut is_smaller) = (modes_differ(&made, &found), false);
    for (key, wanted) in &made.retained {
        let (kind, name) = key;
        let Some(there) = found.retained.get(key) else {
            return wrong(format!("it has no {kind} {name}; the created one has"));
        };
        let (mut wanted, mut there) = (wanted.clone(), there.clone());
        if *kind == "PersistentVolumeClaim" {
            let has_grown = allowed::has_grown(
                &allowed::remove_growth(&mut wanted),
                &allowed::remove_growth(&mut there),
            );
            is_smaller |= !has_grown;
            let is_as_wanted = has_grown && !allowed::keeps(&wanted, &there);
            let is_reported = disks
                .as_ref()
                .is_some_and(|message| message.contains(&format!("{name:?}")));
            if is_as_wanted == is_reported {
                let reported = disks.as_deref().unwrap_or("nothing");
                return wrong(format!(
                    "claim {name} is {}as requested, and it reports {reported:?}",
                    if is_as_wanted { "" } else { "not " }
                ));
            }
            if first.retained.contains_key(key) {
                [&mut wanted, &mut there]
                    .into_iter()
                    .for_each(allowed::keep_own_labels);
            }
        }
        let different = difference(&one(kind, wanted), &one(kind, there));
        if !different.is_empty() {
            return wrong(format!(
                "{name} differs from the created one:\n    {different}"
            ));
        }
    }
    // The pod's use of a volume depends on the mode of the existing PVC.
    if modes_differ {
        return Ok(());
    }
    if is_smaller {
        // An image file is not made larger than its volume.
        [&mut made, &mut found]
            .into_iter()
            .for_each(|rest| allowed::without_sizes(&mut rest.objects));
    }
    if [&made, &found].iter().all(|rest| {
        rest.condition_message(conditions::SERVICE_IN_SYNC, "False")
            .is_some()
    }) {
        // The API server rejects the whole service: none is created, and an existing one is unchanged.
        if found.objects.get("Service") != first.objects.get("Service") {
            return wrong("its service is rejected, and has changed".to_owned());
        }
        [&mut made, &mut found]
            .into_iter()
            .for_each(|rest| drop(rest.objects.remove("Service")));
    }
    match difference(&made.objects, &found.objects) {
        difference if difference.is_empty() => Ok(()),
        difference => wrong(format!(
            "it differs from the created one:\n    {difference}"
        )),
    }
}

fn one(kind: &str, object: Value) -> BTreeMap<String, Value> {
    BTreeMap::from([(kind.to_owned(), object)])
}
