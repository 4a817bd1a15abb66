//! (pure) The cloud-init seed.
//!
//! Its `instance-id` is a hash of its content and the VM's UID, because cloud-init runs again if the ID changes. The Java
//! VM-Operator changed the ID with every edit of the VM (B7). A VM of the Java VM-Operator retains its ID until its seed changes,
//! so that its guest is not set up again.
//!
//! The runner replaces an ID that the operator has generated: a VM has another UID after its object is created again.

use crate::api::runner::config;
use crate::api::runner::identity::GeneratedInstance;
use crate::api::vm::{CloudInit, SecretKeyRef, names};
use crate::api::{VirtualMachine, hex};
use crate::controllers::vm::observe::Observed;
use crate::k8s::ownership::owns;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const INSTANCE_ID: &str = "instance-id";

/// The `instance-id` that a VM of the Java VM-Operator retains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RetainedInstance {
    /// The ID.
    pub id: String,
    /// The ID that this operator computes for the seed. The retained ID is valid as long as this one is unchanged.
    pub instead_of: String,
}

/// The seed in the runner's configuration.
pub(super) fn seed(
    vm: &VirtualMachine,
    retained: Option<&RetainedInstance>,
) -> Option<config::CloudInit> {
    let seed = vm.spec.cloud_init.as_ref()?;
    let mut meta_data: serde_json::Map<_, _> = seed
        .meta_data
        .iter()
        .flatten()
        .map(|(k, v)| (k.clone(), v.clone().into()))
        .collect();
    let instance_id = || {
        retained
            .map_or_else(|| computed_id(vm, seed), |retained| retained.id.clone())
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

/// The `instance-id` in that seed, if the user has configured none. The runner replaces it by one that does not follow
/// the VM's UID, and records the ID. If the VM's object is created again over its PVCs, cloud-init does not configure
/// the guest again.
pub(super) fn generated_instance(
    vm: &VirtualMachine,
    config: Option<&config::CloudInit>,
) -> Option<GeneratedInstance> {
    let id = config?.meta_data.as_ref()?.get(INSTANCE_ID)?.as_str()?;
    let seed = vm.spec.cloud_init.as_ref()?;
    (!has_configured_id(seed)).then(|| GeneratedInstance {
        id: id.to_owned(),
        content: short_hash(Sha256::new(), seed),
    })
}

fn has_configured_id(seed: &CloudInit) -> bool {
    let meta_data = seed.meta_data.as_ref();
    meta_data.is_some_and(|meta_data| meta_data.contains_key(INSTANCE_ID))
}

/// Files of the seed that come from Secrets, with their sources.
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

/// The `instance-id` that the Java VM-Operator created, if it is still valid.
pub(super) fn retained_instance(observed: &Observed) -> Option<RetainedInstance> {
    let vm = &observed.vm;
    let seed = vm.spec.cloud_init.as_ref()?;
    if has_configured_id(seed) {
        return None;
    }
    let present = observed.config_map.as_ref()?;
    if !owns(&**vm, &**present) {
        return None;
    }
    let instead_of = computed_id(vm, seed);
    if let Some(id) = present.config.java_instance_id.clone() {
        return Some(RetainedInstance { id, instead_of });
    }
    let retained: RetainedInstance =
        serde_json::from_str(present.annotations().get(names::ANNOTATION_INSTANCE_ID)?).ok()?;
    (retained.instead_of == instead_of).then_some(retained)
}

fn computed_id(vm: &VirtualMachine, seed: &CloudInit) -> String {
    let hash = Sha256::new_with_prefix(vm.uid().unwrap_or_default());
    format!("v{}", short_hash(hash, seed))
}

/// The continued hash over the content of the seed.
fn short_hash(hash: Sha256, seed: &CloudInit) -> String {
    // Serializing plain data cannot fail.
    let hash = hash.chain_update(serde_json::to_vec(seed).unwrap_or_default());
    hex(hash.finalize().iter().take(6))
}
