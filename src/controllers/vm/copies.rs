//! (client) The PVC that is copied onto a disk, and the pods and VMs that can write to it, from the stores. No request is made.
//!
//! A writer that starts later is not seen here. On the same node, either its QEMU or the copy then fails: the import holds a block device
//! exclusively, and QEMU and `qemu-img` lock image files.

use crate::api::VirtualMachine;
use crate::api::vm::{PvcSource, State};
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::copy_source::CopySource;
use crate::controllers::vm::observe::{Observed, desired_state};
use crate::controllers::vm::{claim_names, import};
use crate::k8s::views::ClaimView;
use kube::ResourceExt;
use std::sync::Arc;

/// The source for the VM, or an empty value if no copy is due.
pub fn observe(observed: &Observed, ctx: &VmController) -> CopySource {
    let due = import::due(observed);
    let Some(PvcSource { name }) = due.as_ref().and_then(|due| due.source.pvc.as_ref()) else {
        return CopySource::default();
    };
    let claim = ctx.caches.claims.get(&ctx.scope.key(name));
    let writer = || pod(name, ctx).or_else(|| vm(name, claim.as_deref(), observed, ctx));
    let is_checked = observed.pod.is_none() && observed.desired_state() == State::Running;
    let writer = is_checked.then(writer).flatten();
    let unfilled = || unfilled(name, ctx);
    let unfilled = is_checked.then(unfilled).flatten();
    CopySource {
        claim,
        writer,
        unfilled,
    }
}

/// A VM that fills the PVC from a source, and has not recorded the end of its import.
fn unfilled(claim: &str, ctx: &VmController) -> Option<String> {
    let vms = ctx.vms.reader().state();
    let fills = |vm: &&Arc<VirtualMachine>| {
        let disks = vm.spec.vm.disks.iter();
        let disks = disks.filter(|disk| disk.volume_claim_template.is_some());
        let named = disks.zip(claim_names::disk_names(vm));
        let mut filled = named.filter(|(disk, _)| disk.source.is_some());
        filled.any(|(_, (_, name))| name == claim)
    };
    let is_recorded = |vm: &&Arc<VirtualMachine>| {
        let mut volumes = vm.status.iter().flat_map(|status| &status.volumes);
        volumes.any(|it| it.claim_name == claim && it.imported)
    };
    let mut unfilled = vms.iter().filter(|vm| fills(vm) && !is_recorded(vm));
    unfilled.next().map(|vm| vm.name_any())
}

fn pod(claim: &str, ctx: &VmController) -> Option<String> {
    let pods = ctx.caches.pods.groups(&ctx.scope.key(""));
    let mut writers = pods.iter().filter(|pod| {
        let mut writable = pod.spec.writable_claims.iter();
        !pod.is_complete() && writable.any(|name| **name == *claim)
    });
    writers
        .next()
        .map(|pod| format!("pod {:?}", pod.name_any()))
}

/// A VM between two of its pods.
fn vm(
    claim: &str,
    present: Option<&ClaimView>,
    observed: &Observed,
    ctx: &VmController,
) -> Option<String> {
    let vms = ctx.vms.reader().state();
    let writers = vms.iter().filter(|vm| {
        vm.name_any() != observed.name()
            && desired_state(vm) == State::Running
            && claim_names::needs(vm, claim, present)
    });
    // The same one each time, whatever the order of the store.
    let first = writers.map(|vm| vm.name_any()).min();
    first.map(|name| format!("VM {name:?}"))
}
