//! (pure) PVCs that the operator has created, that have no volume yet, and that differ from the present configuration. Kubernetes does not
//! change a PVC without a volume, so it must be created again.

use crate::api::quantity::Bytes;
use crate::api::vm::conditions::ReadyReason as Reason;
use crate::api::vm::diagnosis::Diagnosis;
use crate::api::vm::names;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::plan::{DiskPlan, Plan};
use crate::k8s::store::trim::Labelled;
use crate::k8s::views::ClaimView;
use crate::settings;
use kube::ResourceExt;

/// A PVC without a volume that differs from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutdatedClaim {
    /// Name of the PVC.
    pub name: String,
    /// The differences, in the words of messages.
    pub differences: String,
    /// Whether only a new PVC can have the configuration. The size of a PVC with a volume can grow.
    pub must_be_new: bool,
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
        let requests = disk
            .spec
            .resources
            .as_ref()
            .and_then(|it| it.requests.as_ref());
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
    if !is_replaceable(present) {
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
    let differences: Vec<(&str, String)> = fields
        .into_iter()
        .filter_map(|(name, present, wanted)| {
            let (present, wanted) = (present?, wanted?);
            let difference = format!("{name} {present:?} instead of {wanted:?}");
            (present != wanted).then_some((name, difference))
        })
        .collect();
    let must_be_new = differences.iter().any(|(name, _)| *name != "size");
    let differences: Vec<String> = differences.into_iter().map(|(_, text)| text).collect();
    (!differences.is_empty()).then(|| OutdatedClaim {
        name: present.name_any(),
        differences: differences.join(", "),
        must_be_new,
    })
}

/// Whether the operator has created the PVC, and it has no volume yet. Users configure their own PVCs as they like.
pub(super) fn is_replaceable(claim: &ClaimView) -> bool {
    let label = |name| claim.label(name);
    let by_operator = label(names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY)
        || label(names::LABEL_NAME) == Some(names::MANAGED_BY);
    by_operator && claim.status.phase == "Pending"
}

impl OutdatedClaim {
    /// The problem and the next step, in the words of messages.
    #[must_use]
    pub fn message(&self, namespace: &str) -> (String, String) {
        let (name, differences) = (&self.name, &self.differences);
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
            "run kubectl delete pvc {name} -n {namespace}; the operator then creates it again{condition}"
        );
        (problem, next_step)
    }
}

impl Plan {
    /// The blocking condition of a VM that waits for a volume, with the outdated PVC that can be the cause.
    #[must_use]
    pub fn with_outdated_claim(&self, problem: Diagnosis) -> Diagnosis {
        let is_about_claims = matches!(
            problem.reason,
            Reason::ClaimPending | Reason::ProvisioningFailed
        );
        let is_named = |claim: &&OutdatedClaim| {
            let name = format!("PVC {:?}", claim.name);
            problem.problem.contains(&name)
        };
        let outdated = self.outdated_claims.iter().find(is_named);
        let outdated = outdated.or(self.outdated_claims.first());
        let Some(claim) = outdated.filter(|_| is_about_claims) else {
            return problem;
        };
        let (outdated, next_step) = claim.message(&self.namespace);
        Diagnosis {
            problem: format!("{outdated}. Its state: {}", problem.problem),
            next_step,
            ..problem
        }
    }
}
