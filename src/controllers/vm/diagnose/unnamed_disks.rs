//! (pure) Disks without a name. As in the Java VM-Operator, their PVCs are named by their position.

use crate::api::VirtualMachine;
use crate::api::vm::conditions::{self, ConditionReason, DesiredCondition};
use crate::controllers::vm::claim_names;

/// The condition of a VM with several unnamed disks: if one is removed or moved, another disk gets its PVC.
#[must_use]
pub fn unnamed_disks(vm: &VirtualMachine) -> Option<DesiredCondition> {
    let templates = vm.spec.vm.disks.iter().enumerate().filter_map(|(i, disk)| {
        let template = disk.volume_claim_template.as_ref()?;
        let name = template.metadata.as_ref().and_then(|m| m.name.as_deref());
        Some((i, name.is_none_or(str::is_empty)))
    });
    let unnamed: Vec<String> = templates
        .zip(claim_names::disk_names(vm))
        .filter(|((_, is_unnamed), _)| *is_unnamed)
        .map(|((i, _), (disk, _))| {
            format!("spec.vm.disks[{i}].volumeClaimTemplate.metadata.name to {disk:?}")
        })
        .collect();
    (unnamed.len() > 1).then(|| DesiredCondition {
        type_: conditions::DISKS_NAMED,
        status: false,
        reason: ConditionReason::UnnamedDisks,
        message: format!(
            "several disks of the VM have no name, so their PVCs depend on the order of spec.vm.disks. If you remove or move a \
             disk, other disks get the wrong PVCs. To keep the present PVC of each disk, set {}",
            unnamed.join(", ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::vm::fixtures::vm;
    use serde_json::{Value, json};

    #[test]
    fn several_unnamed_disks_are_reported_with_the_names_that_keep_their_pvcs() {
        let message = |disks: Value| {
            unnamed_disks(&vm(json!({"disks": disks}))).map(|condition| condition.message)
        };
        let disk = json!({"volumeClaimTemplate": {}});
        let named = json!({"volumeClaimTemplate": {"metadata": {"name": "data"}}});
        let cd = json!({"cdrom": {"image": ""}});
        assert_eq!(message(json!([cd, disk, named])), None);
        let message = message(json!([disk, cd, named, disk])).unwrap();
        for part in [
            "spec.vm.disks[0].volumeClaimTemplate.metadata.name to \"disk-0\"",
            "spec.vm.disks[3].volumeClaimTemplate.metadata.name to \"disk-2\"",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }
}
