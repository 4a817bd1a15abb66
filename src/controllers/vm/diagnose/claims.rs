//! (pure) PVCs that are being deleted.

use crate::api::vm::State;
use crate::api::vm::conditions::ReadyReason as Reason;
use crate::api::vm::diagnosis::Diagnosis;
use crate::controllers::vm::observe::Observed;
use crate::k8s::views::ClaimView;
use kube::ResourceExt;

/// The blocking condition of a VM with a pod that uses such a PVC.
pub(super) fn are_being_deleted(observed: &Observed) -> Option<Diagnosis> {
    let claims = observed.terminating_volumes();
    let name = claims.first()?.name_any();
    let problem = format!(
        "a deletion of {} is in progress. The data is lost when the VM stops or restarts, unless the PersistentVolume has the \
         reclaim policy Retain",
        listed(&claims)
    );
    Some(Diagnosis::documented(
        Reason::ClaimTerminating,
        &problem,
        &name,
    ))
}

/// The blocking condition of a VM that starts after the end of such a PVC.
pub(super) fn waits_for_deletion(observed: &Observed) -> Option<Diagnosis> {
    let claims = observed.terminating_claims();
    let (name, namespace) = (claims.first()?.name_any(), observed.key());
    let namespace = namespace.namespace();
    let problem = format!(
        "a deletion of {} is in progress. No pod can use it, and its data is lost with it, unless the PersistentVolume has the reclaim \
         policy Retain",
        listed(&claims)
    );
    let finalizers: Vec<&str> = claims
        .iter()
        .flat_map(|claim| claim.finalizers())
        .map(String::as_str)
        .collect();
    let delay = match finalizers.as_slice() {
        [] => format!(
            "if the deletion takes long, delete the other pods that use the PVC (kubectl describe pvc {name} -n {namespace} lists them)"
        ),
        finalizers => format!(
            "finalizers delay the deletion: {}. Check the controllers that remove these finalizers",
            finalizers.join(", ")
        ),
    };
    (observed.desired_state() == State::Running)
        .then(|| Diagnosis::new(Reason::ClaimTerminating, problem, delay))
}

fn listed(claims: &[&ClaimView]) -> String {
    let names: Vec<String> = claims
        .iter()
        .map(|claim| format!("PVC {:?}", claim.name_any()))
        .collect();
    names.join(" and ")
}
