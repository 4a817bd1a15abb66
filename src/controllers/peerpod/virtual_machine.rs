//! (client) The provider `virtualmachine`: instances are VirtualMachines of this project.

use crate::api::VirtualMachine;
use crate::api::peerpod::{VirtualMachineId, names};
use crate::controllers::peerpod::decide::InstanceState;
use crate::controllers::peerpod::facts::Owner;
use crate::k8s::cluster::Cluster;
use crate::k8s::error::Error;
use crate::k8s::store::trim::Labelled;
use crate::k8s::writer::{Writer, only_uid};
use kube::ResourceExt;
use kube::api::PropagationPolicy;
use kube::core::PartialObjectMeta;

/// Describes the instance. `cluster_uid` is the UID of the namespace `kube-system`.
///
/// # Errors
/// If the request fails. An unknown kind is an error, too: only an answer about the object proves its absence.
pub async fn describe(
    id: &VirtualMachineId,
    owner: &Owner,
    cluster_uid: &str,
    cluster: &Cluster,
) -> Result<InstanceState, Error> {
    let writer = Writer::new(cluster, &id.namespace);
    let found = writer.find::<VirtualMachine, PartialObjectMeta<VirtualMachine>>(&id.name);
    let Some(vm) = found.await?.filter(|vm| vm.uid().as_ref() == Some(&id.uid)) else {
        return Ok(InstanceState::Gone { has_remains: false });
    };
    Ok(proof(&vm, owner, cluster_uid))
}

/// Whether the labels and annotations of the VM prove that it is the pod's. An account that may write PeerPods can name any VM, so the proof is
/// at the VM.
fn proof(
    vm: &PartialObjectMeta<VirtualMachine>,
    owner: &Owner,
    cluster_uid: &str,
) -> InstanceState {
    let pod = format!("{}/{}/{}", owner.namespace, owner.name, owner.uid);
    let (cluster, of) = (
        vm.metadata.label(names::LABEL_CLUSTER),
        vm.annotations().get(names::ANNOTATION_POD),
    );
    if cluster == Some(cluster_uid) && of == Some(&pod) {
        let is_ending = vm.metadata.deletion_timestamp.is_some();
        return InstanceState::Ours { is_ending };
    }
    InstanceState::NotOurs(format!(
        "VirtualMachine {} does not have the label {} with the value {cluster_uid} and the annotation {} with the value {pod}, which \
         prove that it belongs to the pod",
        vm.name_any(),
        names::LABEL_CLUSTER,
        names::ANNOTATION_POD
    ))
}

/// Deletes the instance. Its guest shuts down, and the object remains until the children of the VM are gone. Returns whether
/// this request has deleted it.
///
/// # Errors
/// If the request fails.
pub async fn delete(id: &VirtualMachineId, cluster: &Cluster) -> Result<bool, Error> {
    let (writer, uid) = (Writer::new(cluster, &id.namespace), only_uid(&id.uid));
    let foreground = PropagationPolicy::Foreground;
    writer
        .delete_unstored::<VirtualMachine>(&id.name, uid, foreground)
        .await
}
