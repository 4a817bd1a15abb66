//! (pure) The seed for cloud-init.
//!
//! Its `instance-id` follows its content and the VM's UID: cloud-init runs anew when the seed has changed, and only then
//! (the reference's follows every edit of the VM, B7). A VM that was taken over keeps the one that it had until its seed
//! changes: else its guest would be set up a second time.

use crate::api::runner::config;
use crate::api::vm::{CloudInit, SecretKeyRef, names};
use crate::api::{VirtualMachine, hex};
use crate::controllers::vm::observe::Observed;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const INSTANCE_ID: &str = "instance-id";

/// The `instance-id` of a VM that was taken over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptInstance {
    /// It.
    pub id: String,
    /// The one that the seed would have otherwise: as long as that stays, this does.
    pub instead_of: String,
}

/// The seed that the runner makes.
pub(super) fn seed(vm: &VirtualMachine, kept: Option<&KeptInstance>) -> Option<config::CloudInit> {
    let seed = vm.spec.cloud_init.as_ref()?;
    let mut meta_data: serde_json::Map<_, _> = seed
        .meta_data
        .iter()
        .flatten()
        .map(|(k, v)| (k.clone(), v.clone().into()))
        .collect();
    let instance_id = || {
        kept.map_or_else(|| derived(vm, seed), |kept| kept.id.clone())
            .into()
    };
    meta_data.entry(INSTANCE_ID).or_insert_with(instance_id);
    meta_data
        .entry("local-hostname")
        .or_insert_with(|| vm.name_any().into());
    let file = |name: &str| format!("{}/{name}", names::SEED_DIR);
    let user_data_file = seed
        .user_data_from
        .as_ref()
        .map(|_| file(names::SEED_USER_DATA));
    let network_config_file = seed
        .network_config_from
        .as_ref()
        .map(|_| file(names::SEED_NETWORK_CONFIG));
    Some(config::CloudInit {
        meta_data: Some(meta_data),
        user_data: user_data_file
            .is_none()
            .then(|| seed.user_data.clone().unwrap_or_default()),
        user_data_file,
        network_config: seed
            .network_config
            .clone()
            .filter(|_| network_config_file.is_none()),
        network_config_file,
    })
}

/// Parts of the seed that come from secrets, with the names of their files.
pub(super) fn secrets(vm: &VirtualMachine) -> Vec<(&'static str, SecretKeyRef)> {
    let Some(seed) = &vm.spec.cloud_init else {
        return Vec::new();
    };
    let sources = [
        (names::SEED_USER_DATA, &seed.user_data_from),
        (names::SEED_NETWORK_CONFIG, &seed.network_config_from),
    ];
    let sources = sources
        .into_iter()
        .filter_map(|(file, source)| Some((file, source.as_ref()?.secret_key_ref.clone())));
    sources.collect()
}

/// The `instance-id` from before the VM was taken over, if it is to be kept.
pub(super) fn kept_instance(observed: &Observed) -> Option<KeptInstance> {
    let vm = &observed.vm;
    let seed = vm.spec.cloud_init.as_ref()?;
    if seed
        .meta_data
        .as_ref()
        .is_some_and(|meta_data| meta_data.contains_key(INSTANCE_ID))
    {
        return None;
    }
    let present = observed.config_map.as_ref()?;
    if !present
        .owner_references()
        .iter()
        .any(|owner| Some(&owner.uid) == vm.metadata.uid.as_ref())
    {
        return None;
    }
    let instead_of = derived(vm, seed);
    if let Some(id) = present.config.java_instance_id.clone() {
        return Some(KeptInstance { id, instead_of });
    }
    let kept: KeptInstance =
        serde_json::from_str(present.annotations().get(names::ANNOTATION_INSTANCE_ID)?).ok()?;
    (kept.instead_of == instead_of).then_some(kept)
}

fn derived(vm: &VirtualMachine, seed: &CloudInit) -> String {
    let mut hash = Sha256::new();
    hash.update(vm.uid().unwrap_or_default());
    hash.update(serde_json::to_vec(seed).unwrap_or_default());
    format!("v{}", hex(hash.finalize().iter().take(6)))
}
