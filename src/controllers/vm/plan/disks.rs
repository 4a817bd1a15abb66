//! (pure) The disks and their claims.

use crate::api::diagnosis::Diagnosis;
use crate::api::quantity::Bytes;
use crate::api::vm::{ClaimMetadata, ClaimSpec, names};
use crate::controllers::vm::observe::{self, Observed};
use crate::controllers::vm::plan::invalid;
use crate::controllers::vm::views::{ClaimView, owner_of};
use kube::ResourceExt;
use std::collections::BTreeSet;

/// A disk with a claim.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskPlan {
    /// Name of the disk: of its device under `/dev`, of its directory, of its volume.
    pub name: String,
    /// Name of the claim.
    pub claim: String,
    /// Labels and annotations of the claim.
    pub metadata: ClaimMetadata,
    /// The claim.
    pub spec: ClaimSpec,
    /// Where the disk is in the pod.
    pub place: Place,
    /// What would have to change of the claim that is there.
    pub changes: Vec<ClaimChange>,
}

/// Where a disk is in the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A block device.
    Device,
    /// An image file in a file system of its own.
    File {
        /// Size of the image.
        size: Bytes,
    },
}

/// What would have to change of a claim that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimChange {
    /// Its size or attributes class.
    To {
        /// The new size, as it is written in the VM.
        size: Option<String>,
        /// The new attributes class.
        attributes_class: Option<String>,
    },
    /// It should become smaller, which no claim can.
    Shrink {
        /// The size that is wanted.
        to: String,
        /// The size that it has.
        from: String,
    },
    /// What Kubernetes changes of no claim.
    Never {
        /// Its field.
        field: &'static str,
        /// What is wanted.
        to: String,
        /// What it has.
        from: String,
    },
}

/// What a file system leaves of its volume for files, in thousandths: ext4 takes up to a twentieth for itself.
const USABLE: u64 = 945;

impl DiskPlan {
    /// The block device, or the image file.
    #[must_use]
    pub fn path(&self) -> String {
        match self.place {
            Place::Device => format!("/dev/{}", self.name),
            Place::File { .. } => format!("{}/{}", self.directory(), names::DISK_FILE),
        }
    }

    /// Where the file system is mounted, if there is one.
    #[must_use]
    pub fn directory(&self) -> String {
        format!("{}/{}", names::DISKS_DIR, self.name)
    }
}

pub(super) fn disks(observed: &Observed) -> Result<Vec<DiskPlan>, Diagnosis> {
    let vm = &observed.vm;
    let mut seen = BTreeSet::new();
    let mut plans = Vec::new();
    let templates = vm.spec.vm.disks.iter().enumerate();
    let templates = templates.filter_map(|(i, disk)| {
        disk.volume_claim_template
            .as_ref()
            .map(|template| (i, template))
    });
    for ((i, template), (name, claim)) in templates.zip(observe::disk_names(vm)) {
        let field = |rest: &str| format!("spec.vm.disks[{i}].volumeClaimTemplate.{rest}");
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !name.chars().all(legal) || name.starts_with('-') || name.len() > 63 {
            let why = format!("a disk named {name:?} cannot be a volume of the pod");
            return invalid(
                field("metadata.name"),
                why,
                "use up to 58 lower-case letters, digits and dashes",
            );
        }
        if !seen.insert(name.clone()) {
            return invalid(
                field("metadata.name"),
                format!("two disks are named {name:?}"),
                "give each its own name",
            );
        }
        let claim = observed.claim_name(&name, claim);
        let present = observed.claims.get(&claim).map(AsRef::as_ref);
        let owner = observed
            .claims
            .get(&claim)
            .and_then(|claim| owner_of(claim.as_ref()));
        if let Some(owner) = owner.filter(|owner| *owner != vm.name_any()) {
            let why = format!("its claim {claim:?} is there already and belongs to VM {owner:?}");
            return invalid(field("metadata.name"), why, "give the disk another name");
        }
        let spec = template.spec.clone().unwrap_or_default();
        let metadata = template.metadata.clone().unwrap_or_default();
        let place =
            place(&spec, present).or_else(|(part, why, next)| invalid(field(part), why, next))?;
        let changes = present
            .map(|present| changes(&spec, present))
            .unwrap_or_default();
        plans.push(DiskPlan {
            name,
            claim,
            metadata,
            spec,
            place,
            changes,
        });
    }
    Ok(plans)
}

/// The size that a claim's template asks for.
fn wanted_size(spec: &ClaimSpec) -> Option<(&str, Bytes)> {
    let text = &spec
        .resources
        .as_ref()?
        .requests
        .as_ref()?
        .get("storage")?
        .0;
    Some((text, text.parse().ok()?))
}

/// Where the disk is in the pod. The mode of a claim that is there counts, as it cannot change; else its template's.
fn place(
    spec: &ClaimSpec,
    present: Option<&ClaimView>,
) -> Result<Place, (&'static str, String, &'static str)> {
    let mode = present
        .and_then(|claim| claim.spec.volume_mode.as_ref())
        .unwrap_or(&spec.volume_mode);
    match mode.as_str() {
        "Block" => Ok(Place::Device),
        "Filesystem" => {
            let wanted = wanted_size(spec).map(|(_, size)| size);
            // The image does not grow before its volume has: it would never shrink again.
            let there = present
                .filter(|claim| claim.status.phase == "Bound")
                .and_then(|claim| claim.status.capacity);
            let size = match (wanted, there) {
                (Some(wanted), Some(there)) => Some(wanted.min(there)),
                (wanted, there) => wanted.or(there),
            };
            let why = "a disk in Filesystem mode needs a size for its image file".to_owned();
            let Some(size) = size else {
                return Err(("spec.resources.requests.storage", why, "give the size"));
            };
            let mebibytes = (u128::from(size.0) * u128::from(USABLE) / 1000) >> 20;
            Ok(Place::File {
                size: Bytes(u64::try_from(mebibytes).unwrap_or(u64::MAX >> 20).max(1) << 20),
            })
        }
        other => Err((
            "spec.volumeMode",
            format!("{other:?} is no volume mode"),
            "use Block or Filesystem",
        )),
    }
}

fn changes(spec: &ClaimSpec, present: &ClaimView) -> Vec<ClaimChange> {
    let never = |field, wanted: Option<&String>, there: Option<&String>| match (wanted, there) {
        (Some(to), Some(from)) if to != from => Some(ClaimChange::Never {
            field,
            to: to.clone(),
            from: from.clone(),
        }),
        _ => None,
    };
    let class = spec.storage_class_name.as_ref();
    // `Block` is also what a VM says that says nothing of it.
    let mode = Some(&spec.volume_mode).filter(|mode| *mode != "Block");
    let changes = [
        never(
            "storageClassName",
            class,
            present.spec.storage_class_name.as_ref(),
        ),
        never("volumeMode", mode, present.spec.volume_mode.as_ref()),
        growth(spec, present),
    ];
    changes.into_iter().flatten().collect()
}

/// A claim can grow only once it is bound; until then it is as it was made.
fn growth(spec: &ClaimSpec, present: &ClaimView) -> Option<ClaimChange> {
    if present.status.phase != "Bound" {
        return None;
    }
    let class = spec.volume_attributes_class_name.clone();
    let attributes_class =
        class.filter(|class| present.spec.volume_attributes_class_name.as_ref() != Some(class));
    let requested = present.spec.resources.requested.unwrap_or_default();
    match wanted_size(spec) {
        Some((text, wanted)) if wanted < requested => Some(ClaimChange::Shrink {
            to: text.to_owned(),
            from: requested.to_quantity(),
        }),
        // A volume that happens to be that large already need not grow.
        Some((text, wanted))
            if wanted > requested.max(present.status.capacity.unwrap_or_default()) =>
        {
            Some(ClaimChange::To {
                size: Some(text.to_owned()),
                attributes_class,
            })
        }
        _ => attributes_class.map(|class| ClaimChange::To {
            size: None,
            attributes_class: Some(class),
        }),
    }
}
