//! (pure) PVCs that the operator has created, that have no volume yet, and that differ from the present configuration. Kubernetes does not
//! change a PVC without a volume, so it must be created again.

use crate::api::conditions::ReadyReason as Reason;
use crate::api::diagnosis::Diagnosis;
use crate::api::quantity::Bytes;
use crate::api::vm::names;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::plan::{DiskPlan, Plan};
use crate::controllers::vm::views::{ClaimView, owner_of};
use crate::settings;
use kube::ResourceExt;

/// A PVC without a volume that differs from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutdatedClaim {
    /// Name of the PVC.
    pub name: String,
    /// The differences, in the words of messages.
    pub differences: String,
}

/// A field of a PVC: its name, the value of the PVC, and the configured one. `None` leaves the value to Kubernetes.
type Field = (&'static str, Option<String>, Option<String>);

/// Such PVCs of the disks, of the runner data, and of the image repository if the VM needs it.
pub(super) fn outdated_claims(
    observed: &Observed,
    disks: &[DiskPlan],
    runner_data: &str,
    settings: &settings::Reconciler,
) -> Vec<OutdatedClaim> {
    let of_disks = disks.iter().filter_map(|disk| {
        let present = observed.claims.get(&disk.claim)?;
        let mode = (
            "volumeMode",
            present.spec.volume_mode.clone(),
            Some(disk.configured_mode.clone()),
        );
        let requests = disk.spec.resources.as_ref()?.requests.as_ref();
        let size = requests.and_then(|requests| requests.get("storage"));
        let size = size.and_then(|size| size.0.parse().ok());
        compare(present, &disk.spec.storage_class_name, size, mode)
    });
    let of_runner_data = || {
        let (present, wanted) = (observed.claims.get(runner_data)?, &settings.runner_data_pvc);
        let class = &wanted.storage_class_name;
        compare(present, class, Some(wanted.size), ("", None, None))
    };
    let of_repository = || {
        let (present, wanted) = (&observed.image_repository, &settings.image_repository);
        let present = present.as_ref().filter(|_| observed.has_cd_drive())?;
        let modes = (
            "accessModes",
            Some(present.spec.access_modes.join(", ")),
            Some(wanted.access_modes.join(", ")),
        );
        compare(
            present,
            &wanted.storage_class_name,
            Some(wanted.size),
            modes,
        )
    };
    of_disks
        .chain(of_runner_data())
        .chain(of_repository())
        .collect()
}

fn compare(
    present: &ClaimView,
    class: &Option<String>,
    size: Option<Bytes>,
    other: Field,
) -> Option<OutdatedClaim> {
    let app = present.labels().get(names::LABEL_NAME);
    // Users configure their own PVCs as they like.
    let is_created_by_operator =
        owner_of(present).is_some() || app.is_some_and(|app| app == names::MANAGED_BY);
    if present.status.phase != "Pending" || !is_created_by_operator {
        return None;
    }
    let spec = &present.spec;
    let size_of_present = spec.resources.requested.map(Bytes::to_quantity);
    let fields: [Field; 3] = [
        (
            "storageClassName",
            spec.storage_class_name.clone(),
            class.clone(),
        ),
        ("size", size_of_present, size.map(Bytes::to_quantity)),
        other,
    ];
    let differences: Vec<String> = fields
        .into_iter()
        .filter_map(|(name, present, wanted)| {
            let (present, wanted) = (present?, wanted?);
            (present != wanted).then(|| format!("{name} {present:?} instead of {wanted:?}"))
        })
        .collect();
    (!differences.is_empty()).then(|| OutdatedClaim {
        name: present.name_any(),
        differences: differences.join(", "),
    })
}

impl Plan {
    /// The blocking condition of a VM that waits for a volume: an outdated PVC, which can be the cause, else `problem`.
    #[must_use]
    pub fn or_outdated_claim(&self, problem: Diagnosis) -> Diagnosis {
        let is_about_claims = matches!(
            problem.reason,
            Reason::ClaimPending | Reason::ProvisioningFailed | Reason::Unschedulable
        );
        let Some(OutdatedClaim { name, differences }) =
            self.outdated_claims.first().filter(|_| is_about_claims)
        else {
            return problem;
        };
        let problem = format!(
            "PVC {name:?} was created before a change of the configuration, and has {differences}. It never had a volume, so it \
             contains no data"
        );
        let condition = if name == names::IMAGE_REPOSITORY_CLAIM {
            " if imageRepository.create is true"
        } else {
            ""
        };
        let next_step = format!(
            "run kubectl delete pvc {name} -n {}; the operator then creates it again{condition}",
            self.namespace
        );
        Diagnosis::new(Reason::ClaimPending, problem, next_step)
    }
}
