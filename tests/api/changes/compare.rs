//! (pure) Whether a VM that was changed is as one that was made so: after its next start, and before.

use crate::changes::allowed;
use crate::changes::case::Verdict;
use crate::changes::rest::Rest;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use support::judge::difference;
use vm_operator::api::conditions;
use vm_operator::api::vm::names;

/// Compares one that has started since; `first` is how the VM was in the beginning.
pub fn compare(what: &str, made: &Rest, found: &Rest, first: &Rest) -> Result<(), Verdict> {
    // A claim that is there is not made, and nobody refuses it.
    if found.is_well()
        && made.reason == "Rejected"
        && made.message.contains("PersistentVolumeClaim")
    {
        return Ok(());
    }
    same_reason(what, made, found)?;
    // Where something is in the way, what was there before stays.
    if !made.is_well() {
        return Ok(());
    }
    same(what, made.clone(), found.clone(), first)
}

/// Compares one that was changed while it runs; `before` is how it was until then. What needs a restart has to be told, and
/// nothing else may.
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
            "{what}, its machine has been started anew, and nobody asked for that"
        )));
    }
    let restart = found.told(conditions::RESTART_REQUIRED, "True");
    // The machine that there is runs on, whatever is in the way of another one.
    if !made.is_well() && is_running(found) && restart.is_some() {
        return Ok(());
    }
    if !made.is_well() || !found.is_well() {
        return compare(what, made, found, first);
    }
    same_reason(what, made, found)?;
    let restart = restart.unwrap_or_default();
    let (is_too_short, is_told) = (grace(found) < grace(made), restart.contains(allowed::GRACE));
    if is_too_short != is_told {
        let told = format!(
            "its pod has {:?} s to end, not {:?}, and it says {restart:?}",
            grace(found),
            grace(made)
        );
        return Err(Verdict::Wrong(format!("{what}, {told}")));
    }
    let (mut made, mut found) = (made.clone(), found.clone());
    for rest in [&mut made, &mut found] {
        allowed::without_restarts(&mut rest.objects);
    }
    let (mut named, mut differ) = (named(restart), started_otherwise(&made, &found));
    if modes_differ(&made, &found) {
        // Its machine stays as the claim that is there, and one made so is another.
        [&mut named, &mut differ]
            .into_iter()
            .for_each(|fields| fields.retain(|field| field != "spec.vm.disks"));
    }
    if named != differ {
        let told = format!(
            "it says that it has to be restarted for {named:?}, and was started otherwise in {differ:?}"
        );
        return Err(Verdict::Wrong(format!("{what}, {told}")));
    }
    if !named.is_empty() {
        [&mut made, &mut found]
            .into_iter()
            .for_each(|rest| drop(rest.objects.remove("Pod")));
    }
    if found.told(conditions::RESOURCES_IN_SYNC, "False").is_some() {
        [&mut made, &mut found]
            .into_iter()
            .for_each(|rest| allowed::without_resources(&mut rest.objects));
    }
    same(what, made, found, first)
}

/// The seconds that the pod has to end.
fn grace(rest: &Rest) -> Option<i64> {
    rest.objects
        .get("Pod")
        .and_then(|pod| pod["spec"]["terminationGracePeriodSeconds"].as_i64())
}

fn same_reason(what: &str, made: &Rest, found: &Rest) -> Result<(), Verdict> {
    if made.reason == found.reason {
        return Ok(());
    }
    let told = |rest: &Rest| format!("{} ({:.200})", rest.reason, rest.message);
    Err(Verdict::Wrong(format!(
        "{what}, it is {}; made so, {}",
        told(found),
        told(made)
    )))
}

/// The fields that `RestartRequired` names.
fn named(message: &str) -> BTreeSet<String> {
    let fields = message
        .split_once("effective after a restart: ")
        .map(|(_, rest)| rest);
    let fields = fields
        .and_then(|rest| rest.rsplit_once("; raise "))
        .map(|(fields, _)| fields);
    let fields = fields
        .unwrap_or(message)
        .split(", ")
        .filter(|field| !field.is_empty() && !allowed::is_not_hashed(field));
    fields.map(ToOwned::to_owned).collect()
}

/// The fields in which the two pods were started with something else.
fn started_otherwise(made: &Rest, found: &Rest) -> BTreeSet<String> {
    let [made, found] = [made, found].map(|rest| {
        let hashes = rest.objects.get("Pod").and_then(|pod| {
            pod["metadata"]["annotations"][names::ANNOTATION_STARTED_WITH].as_str()
        });
        let hashes: BTreeMap<String, Value> = hashes
            .map(|text| serde_json::from_str(text).unwrap())
            .unwrap_or_default();
        hashes
    });
    made.iter()
        .filter(|(field, hash)| found.get(*field) != Some(hash))
        .map(|(field, _)| field.clone())
        .collect()
}

/// Whether a claim that is there has another volume mode than one made so, which it keeps.
fn modes_differ(made: &Rest, found: &Rest) -> bool {
    let mode = |claim: &Value| claim["spec"]["volumeMode"].clone();
    let claims = made
        .stay
        .iter()
        .filter(|((kind, _), _)| *kind == "PersistentVolumeClaim");
    let mut there = claims.filter_map(|(key, claim)| Some((claim, found.stay.get(key)?)));
    there.any(|(claim, there)| mode(claim) != mode(there))
}

fn same(what: &str, mut made: Rest, mut found: Rest, first: &Rest) -> Result<(), Verdict> {
    let wrong = |why: String| Err(Verdict::Wrong(format!("{what}, {why}")));
    let disks = found
        .told(conditions::DISKS_IN_SYNC, "False")
        .map(ToOwned::to_owned);
    let (modes_differ, mut is_smaller) = (modes_differ(&made, &found), false);
    for (key, wanted) in &made.stay {
        let (kind, name) = key;
        let Some(there) = found.stay.get(key) else {
            return wrong(format!("it has no {kind} {name}; one made so has"));
        };
        let (mut wanted, mut there) = (wanted.clone(), there.clone());
        if *kind == "PersistentVolumeClaim" {
            let has_grown = allowed::has_grown(
                &allowed::take_growth(&mut wanted),
                &allowed::take_growth(&mut there),
            );
            is_smaller |= !has_grown;
            let is_as_wanted = has_grown && !allowed::keeps(&wanted, &there);
            let is_told = disks
                .as_ref()
                .is_some_and(|told| told.contains(&format!("{name:?}")));
            if is_as_wanted == is_told {
                let said = disks.as_deref().unwrap_or("nothing");
                return wrong(format!(
                    "claim {name} is {}as wanted, and it says {said:?}",
                    if is_as_wanted { "" } else { "not " }
                ));
            }
            if first.stay.contains_key(key) {
                [&mut wanted, &mut there]
                    .into_iter()
                    .for_each(allowed::keep_own_labels);
            }
        }
        let different = difference(&one(kind, wanted), &one(kind, there));
        if !different.is_empty() {
            return wrong(format!("{name} differs from one made so:\n    {different}"));
        }
    }
    // What a pod does with a volume depends on the mode of the claim that is there.
    if modes_differ {
        return Ok(());
    }
    if is_smaller {
        // An image file is not made larger than its volume.
        [&mut made, &mut found]
            .into_iter()
            .for_each(|rest| allowed::without_sizes(&mut rest.objects));
    }
    if [&made, &found]
        .iter()
        .all(|rest| rest.told(conditions::SERVICE_IN_SYNC, "False").is_some())
    {
        // Refused is the whole of it: none is made, and one that is there is as it was.
        if found.objects.get("Service") != first.objects.get("Service") {
            return wrong("its service is refused, and is not as it was".to_owned());
        }
        [&mut made, &mut found]
            .into_iter()
            .for_each(|rest| drop(rest.objects.remove("Service")));
    }
    match difference(&made.objects, &found.objects) {
        difference if difference.is_empty() => Ok(()),
        difference => wrong(format!("it differs from one made so:\n    {difference}")),
    }
}

fn one(kind: &str, object: Value) -> BTreeMap<String, Value> {
    BTreeMap::from([(kind.to_owned(), object)])
}
