//! (pure) The volumes of the pod of a VM, and their mounts.

use crate::api::vm::{SecretKeyRef, names};
use crate::controllers::vm::objects::Plan;
use crate::controllers::vm::plan::{ImportPlan, Place, Source, Tun};
use k8s_openapi::api::core::v1::{
    ConfigMapProjection, HostPathVolumeSource, KeyToPath, PersistentVolumeClaimVolumeSource,
    ProjectedVolumeSource, SecretProjection, Volume, VolumeMount, VolumeProjection,
};

const CONFIG: &str = "config";
const RUNNER_DATA: &str = "runner-data";
/// The disk that is copied. No disk has this name: names of disks have a dash.
pub(super) const SOURCE: &str = "source";
const SEED: &str = "seed";
const TUN: &str = "tun";

pub(super) fn mounts(plan: &Plan) -> Vec<VolumeMount> {
    let mount = |name: &str, path: &str, read_only| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(read_only).filter(|read_only| *read_only),
        ..VolumeMount::default()
    };
    let images = plan.has_cd_drive.then(|| {
        mount(
            names::IMAGE_REPOSITORY_CLAIM,
            names::IMAGE_REPOSITORY_DIR,
            true,
        )
    });
    let files = plan.disks.iter().filter(|disk| disk.place != Place::Device);
    let files = files.map(|disk| mount(&disk.name, &disk.directory(), false));
    let seed = (!plan.seed_secrets.is_empty()).then(|| mount(SEED, names::SEED_DIR, true));
    let tun = mounts_tun(plan).then(|| mount(TUN, names::TUN_DEVICE, false));
    [
        mount(CONFIG, names::CONFIG_DIR, true),
        mount(RUNNER_DATA, names::DATA_DIR, false),
    ]
    .into_iter()
    .chain(seed)
    .chain(images)
    .chain(files)
    .chain(tun)
    .collect()
}

fn claim(name: &str, claim: String, read_only: bool) -> Volume {
    Volume {
        name: name.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim,
            read_only: Some(read_only).filter(|read_only| *read_only),
        }),
        ..Volume::default()
    }
}

/// The volumes of an import pod: those of all disks, so that the scheduler selects a node that all can reach. The container mounts only the
/// runner data and the disk that it fills, if that is not a device.
pub(super) fn import_volumes(plan: &Plan, import: &ImportPlan) -> (Vec<Volume>, Vec<VolumeMount>) {
    let data = claim(RUNNER_DATA, plan.runner_data_claim.clone(), false);
    let volumes = plan
        .disks
        .iter()
        .map(|disk| claim(&disk.name, disk.claim.clone(), false));
    let mount = |name: &str, mount_path: &str| VolumeMount {
        name: name.to_owned(),
        mount_path: mount_path.to_owned(),
        ..VolumeMount::default()
    };
    let disk = import.directory.as_ref();
    let disk = disk.map(|directory| mount(&import.volume, directory));
    let copied = match &import.source {
        Source::Pvc { claim, is_device } => Some((claim, is_device)),
        Source::Http(_) | Source::Upload(_) => None,
    };
    let source = copied.map(|(name, _)| claim(SOURCE, name.clone(), true));
    let source_mount = copied.filter(|(_, is_device)| !**is_device);
    let source_mount = source_mount.map(|_| VolumeMount {
        read_only: Some(true),
        ..mount(SOURCE, names::SOURCE_DIR)
    });
    let mounts = [mount(RUNNER_DATA, names::DATA_DIR)].into_iter();
    (
        [data].into_iter().chain(volumes).chain(source).collect(),
        mounts.chain(disk).chain(source_mount).collect(),
    )
}

pub(super) fn volumes(plan: &Plan) -> Vec<Volume> {
    // A VM without a CD drive does not mount the repository and needs no shared storage. VMs mount it read-only. The volume itself
    // is read-only only if no pod can write to it: the kubelet gives a writable volume to the group of the pod that mounts it
    // first, and later download pods need that group.
    let repository = names::IMAGE_REPOSITORY_CLAIM;
    let images = || {
        claim(
            repository,
            repository.to_owned(),
            plan.repository_is_read_only,
        )
    };
    let images = plan.has_cd_drive.then(images);
    let disks = plan
        .disks
        .iter()
        .map(|disk| claim(&disk.name, disk.claim.clone(), false));
    [
        config_volume(plan),
        claim(RUNNER_DATA, plan.runner_data_claim.clone(), false),
    ]
    .into_iter()
    .chain(seed_volume(plan))
    .chain(images)
    .chain(disks)
    .chain(mounts_tun(plan).then(tun_volume))
    .collect()
}

fn mounts_tun(plan: &Plan) -> bool {
    plan.pod.rights.tap == Some(Tun::HostPath)
}

fn tun_volume() -> Volume {
    let host_path = HostPathVolumeSource {
        path: names::TUN_DEVICE.to_owned(),
        type_: Some("CharDevice".to_owned()),
    };
    Volume {
        name: TUN.to_owned(),
        host_path: Some(host_path),
        ..Volume::default()
    }
}

fn config_volume(plan: &Plan) -> Volume {
    let config_map = VolumeProjection {
        config_map: Some(ConfigMapProjection {
            name: plan.name.clone(),
            ..ConfigMapProjection::default()
        }),
        ..VolumeProjection::default()
    };
    let secret = |items| {
        plan.display_secret.as_ref().map(|name| VolumeProjection {
            secret: Some(SecretProjection {
                name: name.clone(),
                items,
                optional: None,
            }),
            ..VolumeProjection::default()
        })
    };
    // The key is named, so that the pod does not start if the Secret has no password.
    let password = KeyToPath {
        key: names::SECRET_PASSWORD.to_owned(),
        path: names::SECRET_PASSWORD.to_owned(),
        ..KeyToPath::default()
    };
    let sources = [config_map]
        .into_iter()
        .chain(secret(None))
        .chain(secret(Some(vec![password])))
        .chain(plan.console_port.map(|_| console_keys()))
        .collect();
    projected(CONFIG, sources)
}

/// The keys of web consoles, if the namespace has a console. The kubelet adds them to the volumes of running VMs.
fn console_keys() -> VolumeProjection {
    VolumeProjection {
        config_map: Some(ConfigMapProjection {
            name: names::WEB_CONFIG_MAP.to_owned(),
            items: Some(vec![KeyToPath {
                key: names::CONSOLE_KEYS.to_owned(),
                path: names::CONSOLE_KEYS.to_owned(),
                ..KeyToPath::default()
            }]),
            optional: Some(true),
        }),
        ..VolumeProjection::default()
    }
}

/// Removes the source with the keys of web consoles.
pub(super) fn remove_console_keys(volume: &mut Volume) {
    let sources = volume.projected.as_mut().and_then(|it| it.sources.as_mut());
    if let Some(sources) = sources {
        let keys = console_keys();
        sources.retain(|source| *source != keys);
    }
}

/// The volume with the Secrets of the cloud-init seed. It is separate from the volume of the configuration: users may delete these
/// Secrets after the first start of the guest, and the kubelet does not update a volume with a missing Secret.
fn seed_volume(plan: &Plan) -> Option<Volume> {
    let source = |(file, from): &(&str, SecretKeyRef)| VolumeProjection {
        secret: Some(SecretProjection {
            name: from.name.clone(),
            items: Some(vec![KeyToPath {
                key: from.key.clone(),
                path: (*file).to_owned(),
                ..KeyToPath::default()
            }]),
            optional: None,
        }),
        ..VolumeProjection::default()
    };
    let sources: Vec<_> = plan.seed_secrets.iter().map(source).collect();
    (!sources.is_empty()).then(|| projected(SEED, sources))
}

fn projected(name: &str, sources: Vec<VolumeProjection>) -> Volume {
    // Readable by root and by the runner's group, which fsGroup sets.
    let projected = ProjectedVolumeSource {
        default_mode: Some(0o440),
        sources: Some(sources),
    };
    Volume {
        name: name.to_owned(),
        projected: Some(projected),
        ..Volume::default()
    }
}
