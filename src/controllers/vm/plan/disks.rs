//! (pure) The disks and their PVCs.

use crate::api::quantity::Bytes;
use crate::api::vm::diagnosis::Diagnosis;
use crate::api::vm::{
    ClaimMetadata, ClaimSpec, ClaimTemplate, DISK_NAME_LENGTH_MAX, LABEL_VALUE_LENGTH_MAX, names,
};
use crate::controllers::vm::claim_names;
use crate::controllers::vm::import;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::plan::outdated_claims::is_replaceable;
use crate::controllers::vm::plan::{OutdatedClaim, invalid, name_of_other_vm};
use crate::k8s::store::packed_map::PackedMap;
use crate::k8s::views::ClaimView;
use crate::settings::VolumeMode;
use std::collections::BTreeMap;

/// A disk with a PVC.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskPlan {
    /// Name of the disk, of its volume and of its device or directory.
    pub name: String,
    /// Name of the PVC.
    pub claim: String,
    /// Labels and annotations of the PVC.
    pub metadata: ClaimMetadata,
    /// Spec of the PVC. The volume mode is that of the present PVC, if there is one.
    pub spec: ClaimSpec,
    /// The configured volume mode.
    pub configured_mode: String,
    /// Form of the disk in the pod.
    pub place: Place,
    /// Differences between the existing PVC and the VM.
    pub changes: Vec<ClaimChange>,
    /// Whether an image fills the disk before the first start.
    pub has_source: bool,
}

/// Form of a disk in the pod.
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

/// A difference between an existing PVC and the VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimChange {
    /// A larger size or another attributes class.
    To {
        /// The new size, as written in the VM.
        size: Option<String>,
        /// The new attributes class.
        attributes_class: Option<String>,
    },
    /// A smaller size. PVCs cannot shrink.
    Shrink {
        /// The configured size, as written in the VM.
        to: String,
        /// The requested size of the PVC.
        from: String,
    },
    /// Labels and annotations of the template that the PVC does not have, and the permission to overwrite after an import.
    Metadata {
        /// The labels.
        labels: BTreeMap<String, String>,
        /// The annotations. `None` removes one.
        annotations: BTreeMap<String, Option<String>>,
    },
    /// Other values for a PVC without a volume.
    Recreate(OutdatedClaim),
    /// Another value of an immutable field.
    Never {
        /// The field of the PVC.
        field: &'static str,
        /// The configured value.
        to: String,
        /// The value of the PVC.
        from: String,
    },
}

/// Share of a volume that a file system has for files, in thousandths. ext4 reserves up to a twentieth.
const USABLE_THOUSANDTHS: u64 = 945;

impl DiskPlan {
    /// Path of the block device or image file.
    #[must_use]
    pub fn path(&self) -> String {
        match self.place {
            Place::Device => format!("/dev/{}", self.name),
            Place::File { .. } => format!("{}/{}", self.directory(), names::DISK_FILE),
        }
    }

    /// Mount path of the file system.
    #[must_use]
    pub fn directory(&self) -> String {
        format!("{}/{}", names::DISKS_DIR, self.name)
    }
}

/// The disks with PVCs, in the order of `spec.vm.disks`.
pub(super) fn disks(
    observed: &Observed,
    default_mode: VolumeMode,
) -> Result<Vec<DiskPlan>, Diagnosis> {
    let vm = &observed.vm;
    let disks = vm.spec.vm.disks.iter().enumerate();
    let templates = disks.filter_map(|(i, disk)| {
        let template = disk.volume_claim_template.as_ref()?;
        Some((i, template, disk.source.is_some()))
    });
    let mut plans: Vec<DiskPlan> = Vec::new();
    for ((i, template, has_source), (name, claim)) in templates.zip(claim_names::disk_names(vm)) {
        let field = format!("spec.vm.disks[{i}].volumeClaimTemplate");
        check_name(&format!("{field}.metadata.name"), &name, &plans)?;
        let claim = observed.claim_name(&name, claim);
        let present = observed.claims.get(&claim).map(AsRef::as_ref);
        if let Some(other) = observed.other_owner(&claim) {
            return invalid(
                format!("{field}.metadata.name"),
                name_of_other_vm("the disk needs", &claim, &other),
                "use another name for the disk. If an existing PVC belongs to this VM, correct its label app.kubernetes.io/instance",
            );
        }
        let template_spec = template.spec.clone().unwrap_or_default();
        let spec = with_mode(template_spec.clone(), present, default_mode);
        let size = configured_size(&spec);
        let bytes = size.map(|(_, bytes)| bytes);
        let place = place(&format!("{field}.spec"), &spec, bytes, present)?;
        let is_imported = import::recorded_import(observed, &claim) == Some(true);
        let changes = present
            .map(|present| changes(template, size, present, is_imported))
            .unwrap_or_default();
        plans.push(DiskPlan {
            name,
            claim,
            metadata: template.metadata.clone().unwrap_or_default(),
            place,
            changes,
            has_source,
            configured_mode: configured_mode(&template_spec, present, default_mode),
            spec,
        });
    }
    Ok(plans)
}

/// Checks that the name can be the name of a volume, and that no disk before has it.
fn check_name(field: &str, name: &str, before: &[DiskPlan]) -> Result<(), Diagnosis> {
    let is_legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.chars().all(is_legal) || name.starts_with('-') || name.len() > LABEL_VALUE_LENGTH_MAX {
        return invalid(
            field,
            format!("the disk name {name:?} is not a valid name of a volume in the VM's pod"),
            format!("use up to {DISK_NAME_LENGTH_MAX} lower-case letters, digits and dashes"),
        );
    }
    if before.iter().any(|disk| disk.name == name) {
        return invalid(
            field,
            format!("two disks of the VM have the name {name:?}"),
            "use a different name for each disk",
        );
    }
    Ok(())
}

/// The requested size of a PVC template: as written, and in bytes.
fn configured_size(spec: &ClaimSpec) -> Option<(&str, Bytes)> {
    let requests = spec.resources.as_ref()?.requests.as_ref()?;
    let text = &requests.get("storage")?.0;
    Some((text, text.parse().ok()?))
}

/// The spec with a volume mode. That of an existing PVC counts, because it cannot change.
fn with_mode(spec: ClaimSpec, present: Option<&ClaimView>, default_mode: VolumeMode) -> ClaimSpec {
    let present = present.and_then(|claim| claim.spec.volume_mode.clone());
    let mode = present.or(spec.volume_mode);
    ClaimSpec {
        volume_mode: Some(mode.unwrap_or_else(|| default_mode.as_str().to_owned())),
        ..spec
    }
}

/// The configured volume mode. Earlier definitions of VMs wrote `Block` into templates without a mode, so `Block` agrees with each PVC.
fn configured_mode(
    spec: &ClaimSpec,
    present: Option<&ClaimView>,
    default_mode: VolumeMode,
) -> String {
    let mode = match spec.volume_mode.as_deref() {
        Some("Block") => present.and_then(|claim| claim.spec.volume_mode.as_deref()),
        mode => mode,
    };
    mode.unwrap_or(default_mode.as_str()).to_owned()
}

/// The form of the disk in the pod.
fn place(
    field: &str,
    spec: &ClaimSpec,
    configured: Option<Bytes>,
    present: Option<&ClaimView>,
) -> Result<Place, Diagnosis> {
    match spec.volume_mode.as_deref().unwrap_or_default() {
        "Block" => Ok(Place::Device),
        "Filesystem" => {
            let capacity = present
                .filter(|claim| claim.status.phase == "Bound")
                .and_then(|claim| claim.status.capacity);
            // The image grows only after its volume, because it cannot shrink again.
            let size = match (configured, capacity) {
                (Some(configured), Some(capacity)) => Some(configured.min(capacity)),
                (configured, capacity) => configured.or(capacity),
            };
            let Some(size) = size else {
                return invalid(
                    format!("{field}.resources.requests.storage"),
                    "a disk with volumeMode Filesystem needs a size for its image file",
                    "set the size of the disk, such as 20Gi",
                );
            };
            let mebibytes = (u128::from(size.0) * u128::from(USABLE_THOUSANDTHS) / 1000) >> 20;
            Ok(Place::File {
                size: Bytes(u64::try_from(mebibytes).unwrap_or(u64::MAX >> 20).max(1) << 20),
            })
        }
        other => invalid(
            format!("{field}.volumeMode"),
            format!("{other:?} is not a volume mode of Kubernetes"),
            "use Block or Filesystem",
        ),
    }
}

fn changes(
    template: &ClaimTemplate,
    size: Option<(&str, Bytes)>,
    present: &ClaimView,
    is_imported: bool,
) -> Vec<ClaimChange> {
    let spec = template.spec.clone().unwrap_or_default();
    let immutable = |field, to: Option<&String>, from: Option<&String>| match (to, from) {
        (Some(to), Some(from)) if to != from => Some(ClaimChange::Never {
            field,
            to: to.clone(),
            from: from.clone(),
        }),
        _ => None,
    };
    if is_replaceable(present) {
        // See [`super::outdated_claims`].
        return Vec::new();
    }
    let class = spec.storage_class_name.as_ref();
    // Earlier definitions of VMs wrote `Block` into templates without a mode.
    let mode = spec.volume_mode.as_ref().filter(|mode| *mode != "Block");
    let changes = [
        immutable(
            "storageClassName",
            class,
            present.spec.storage_class_name.as_ref(),
        ),
        immutable("volumeMode", mode, present.spec.volume_mode.as_ref()),
        growth(&spec, size, present),
        changed_metadata(template.metadata.as_ref(), present, is_imported),
    ];
    changes.into_iter().flatten().collect()
}

/// The labels and annotations of the template that the PVC does not have. The operator's own labels have precedence. The permission to
/// overwrite the PVC ends with the import. Otherwise, a VM with this name and without this record would import once more.
fn changed_metadata(
    template: Option<&ClaimMetadata>,
    present: &ClaimView,
    is_imported: bool,
) -> Option<ClaimChange> {
    let none = ClaimMetadata::default();
    let template = template.unwrap_or(&none);
    let own = names::labels("");
    let missing = |desired: &Option<BTreeMap<String, String>>, present: &PackedMap| {
        let mut missing = desired.clone().unwrap_or_default();
        missing.retain(|name, value| present.get(name) != Some(value) && !own.contains_key(name));
        missing
    };
    let labels = missing(&template.labels, present.labels());
    let annotations = missing(&template.annotations, present.annotations()).into_iter();
    let mut annotations: BTreeMap<_, _> = annotations
        .map(|(name, value)| (name, Some(value)))
        .collect();
    if is_imported {
        annotations.remove(names::ANNOTATION_OVERWRITE);
        if present
            .annotations()
            .contains_key(names::ANNOTATION_OVERWRITE)
        {
            annotations.insert(names::ANNOTATION_OVERWRITE.to_owned(), None);
        }
    }
    let is_same = labels.is_empty() && annotations.is_empty();
    (!is_same).then_some(ClaimChange::Metadata {
        labels,
        annotations,
    })
}

/// The change of size and attributes class. Only a bound PVC can change.
fn growth(
    spec: &ClaimSpec,
    size: Option<(&str, Bytes)>,
    present: &ClaimView,
) -> Option<ClaimChange> {
    if present.status.phase != "Bound" {
        return None;
    }
    let class = spec.volume_attributes_class_name.clone();
    let attributes_class =
        class.filter(|class| present.spec.volume_attributes_class_name.as_ref() != Some(class));
    let requested = present.spec.resources.requested.unwrap_or_default();
    match size {
        Some((text, wanted)) if wanted < requested => Some(ClaimChange::Shrink {
            to: text.to_owned(),
            from: requested.to_quantity(),
        }),
        // A volume can be larger than its PVC requests.
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
