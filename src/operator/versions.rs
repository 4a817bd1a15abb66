//! (pure) The newest version of each VM that was known. A list may be older than what was known before it; what it says is
//! then not acted on, as the watch that follows tells what is newer. A new operator knows of nothing before its first list.

use crate::api::VirtualMachine;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// By when the watch has told what is newer. Where it has not, the API server itself has gone back, to a backup.
const CATCHES_UP: Duration = Duration::from_secs(60);

/// By VM.
#[derive(Default)]
pub struct Versions(Mutex<HashMap<String, Known>>);

struct Known {
    uid: Box<str>,
    version: u64,
    /// Since when only what is older is there to be seen.
    older_since: Option<Instant>,
}

/// The object's version, if it has one that is a number.
pub fn version<K: Resource>(object: &K) -> Option<u64> {
    of_meta(object.meta())
}

fn of_meta(metadata: &ObjectMeta) -> Option<u64> {
    metadata.resource_version.as_deref()?.parse().ok()
}

/// UID and version, where it has both.
fn identity(vm: &ObjectMeta) -> Option<(&str, u64)> {
    Some((vm.uid.as_deref()?, of_meta(vm)?))
}

impl Versions {
    fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The API server has told of this VM.
    pub fn saw(&self, vm: &VirtualMachine) {
        self.saw_meta(&vm.metadata);
    }

    /// The same of a VM of which only this is known.
    pub fn saw_meta(&self, vm: &ObjectMeta) {
        let Some((uid, version)) = identity(vm) else { return };
        let name = vm.name.clone().unwrap_or_default();
        let mut known = self.known();
        match known.get_mut(&name) {
            Some(known) if *known.uid == *uid => known.version = known.version.max(version),
            _ => drop(known.insert(name, Known { uid: uid.into(), version, older_since: None })),
        }
    }

    /// How long to wait for what is newer than this, if there was something newer.
    pub fn wait(&self, vm: &VirtualMachine, now: Instant) -> Option<Duration> {
        let (uid, version) = identity(&vm.metadata)?;
        let mut known = self.known();
        let known = known.get_mut(&vm.name_any()).filter(|known| *known.uid == *uid)?;
        if version >= known.version {
            known.older_since = None;
            return None;
        }
        let since = *known.older_since.get_or_insert(now);
        let left = CATCHES_UP.saturating_sub(now.saturating_duration_since(since));
        if left.is_zero() {
            (known.version, known.older_since) = (version, None);
            return None;
        }
        Some(left)
    }

    /// The VM is gone.
    pub fn forget(&self, name: &str) {
        self.known().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn vm(uid: &str, version: &str) -> VirtualMachine {
        let metadata = json!({"name": "vm", "uid": uid, "resourceVersion": version});
        serde_json::from_value(json!({
            "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "metadata": metadata, "spec": {"vm": {}},
        }))
        .unwrap()
    }

    #[test]
    fn what_is_older_than_what_was_known_waits_a_minute_for_what_is_newer() {
        let (versions, start) = (Versions::default(), Instant::now());
        let wait = |version, seconds| {
            versions.wait(&vm("a", version), start + Duration::from_secs(seconds)).map(|left| left.as_secs())
        };
        assert_eq!(wait("5", 0), None, "nothing is known");
        versions.saw(&vm("a", "9"));
        versions.saw(&vm("a", "5"));
        assert_eq!((wait("9", 0), wait("10", 0)), (None, None));
        assert_eq!((wait("5", 1), wait("8", 31), wait("9", 40)), (Some(60), Some(30), None));
        // It had caught up. Then the API server goes back for good.
        assert_eq!((wait("5", 50), wait("6", 109), wait("6", 110)), (Some(60), Some(1), None));
        assert_eq!((wait("5", 111), wait("6", 112)), (Some(60), None));
        // Another of its name, and a version that is no number.
        assert_eq!(versions.wait(&vm("b", "1"), start), None);
        assert_eq!(wait("?", 0), None);
        versions.forget("vm");
        assert_eq!(wait("1", 0), None);
    }
}
