//! The reasons of the condition `Ready`.

use strum::{EnumMessage, IntoStaticStr, VariantArray};

/// Reasons of [`super::READY`]: the state of a VM, or its blocking condition. The reasons of events are the same.
///
/// The doc comment is the cause. `detailed_message` is the place where Kubernetes publishes it. `message` is the next step,
/// in which `{}` is the name of the object that the condition's message names. Conditions, events and
/// `docs/troubleshooting.md` contain these texts. The order is the order in which a starting VM can reach the reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EnumMessage, IntoStaticStr, VariantArray)]
pub enum ReadyReason {
    /// The desired state is `Running`, and the VM runs.
    Running,
    /// The desired state is `Stopped`, and the VM has no pod.
    Stopped,
    /// All objects are created; the pod or QEMU is starting.
    Starting,
    /// The image of a disk is being downloaded or converted. The VM starts when the import is complete.
    ImportingDisk,
    /// The guest is being shut down.
    Stopping,
    /// The VM object is being deleted and has no pod. Finalizers delay the deletion.
    Deleting,
    /// No operator has seen the VM: none runs, or it manages other namespaces.
    #[strum(
        detailed_message = "the default status of a new VM",
        message = "check that an operator for this namespace runs (kubectl get pods -A -l app.kubernetes.io/name=vm-operator). \
            To install one, see docs/install.md"
    )]
    NoOperator,
    /// A field of the VM has an invalid value; the operator creates and changes no object.
    #[strum(
        detailed_message = "the operator's validation of the spec",
        message = "correct the field that the message names"
    )]
    InvalidSpec,
    /// An object of another owner has the name that an object of this VM needs.
    #[strum(
        detailed_message = "the object's labels and owner",
        message = "recreate the VM with another name; the VM then gets new, empty PVCs. If the existing object is a PVC, you can \
            rename the disk instead. If the object has the labels of a VM that no longer exists, you can delete the object instead"
    )]
    NameTaken,
    /// A PVC that the VM has used no longer exists. The operator creates neither a new PVC nor a pod.
    #[strum(
        detailed_message = "`status.volumes` of the VM",
        message = "create a PVC with this name from a backup, or from the PersistentVolume of the lost PVC after you have removed \
            spec.claimRef. To give up the data and start with a new, empty PVC, annotate the VM with \
            vmoperator.jdrupes.org/accept-loss and the UID of the lost PVC"
    )]
    DataMissing,
    /// A PVC of the VM is being deleted. While the VM has a pod, the PVC and its data still exist. They are lost when the pod is deleted.
    /// A VM without a pod waits until the deletion is complete.
    #[strum(
        detailed_message = "the deletion time of the PVC",
        message = "copy the data to another volume before the VM stops. Or retain the volume as docs/hardware.md describes: set \
            spec.persistentVolumeReclaimPolicy of its PersistentVolume to Retain, and create PVC {} again for this volume after the \
            deletion"
    )]
    ClaimTerminating,
    /// An object of the VM exceeds a quota of the namespace, or lacks an amount that the quota requires.
    #[strum(
        detailed_message = "the API server's answer, `exceeded quota` or `must specify`",
        message = "raise the quota of the namespace (see kubectl describe quota), or make the VM smaller"
    )]
    QuotaExceeded,
    /// Pod Security, a LimitRange, an admission policy or a webhook rejects an object of the VM.
    #[strum(
        detailed_message = "the API server's answer, `violates PodSecurity`, `usage per` or `denied the request`",
        message = "correct the VM, or the policy or webhook that the message names"
    )]
    PolicyRefused,
    /// The operator has no permission to read, create or change an object.
    #[strum(
        detailed_message = "the API server's answer, `cannot … resource`",
        message = "apply the overlay of the operator's installation again (kubectl apply -k OVERLAY)"
    )]
    NotAuthorized,
    /// The API server rejects an object of the VM for another cause.
    #[strum(
        detailed_message = "the API server's answer",
        message = "correct the VM, or remove the cause that the message names"
    )]
    Rejected,
    /// No node offers the extended resource that gives a pod /dev/kvm. The device plugin is not installed or does not run yet, or
    /// the resource needs a node that has /dev/kvm. The VM starts when a node offers the resource.
    #[strum(
        detailed_message = "pod condition `PodScheduled`, `Insufficient …/kvm` or `…/kvm-if-present`",
        message = "check the device plugin (kubectl get daemonset vm-device-plugin -n kube-system). If the DaemonSet is missing, \
            install cluster.yaml of the operator's release. If the plugin's pods are ready, add a node with /dev/kvm. To emulate \
            VMs on nodes without /dev/kvm, set accelerator.kvmResource to vmoperator.jdrupes.org/kvm-if-present in the \
            operator's ConfigMap"
    )]
    AcceleratorResourceMissing,
    /// No node offers the extended resource that gives a pod /dev/net/tun, which tap networks need.
    #[strum(
        detailed_message = "pod condition `PodScheduled`, `Insufficient …/tun`",
        message = "install the device plugin on the nodes with cluster.yaml of the operator's release. For a cluster without \
            the device plugin, set tap.hostPath to true in the operator's ConfigMap: pods then mount the node's /dev/net/tun"
    )]
    TapResourceMissing,
    /// The scheduler finds no node for the pod: CPU, memory, taints, node selection, or a volume on another node. Or a PVC
    /// is missing, is being deleted, or is in exclusive use by another pod. Or, with tap networks, another pod uses the port.
    #[strum(
        detailed_message = "pod condition `PodScheduled`",
        message = "see the events in kubectl describe pod {}. If CPU or memory is insufficient, free it on a node that can mount \
            the pod's volumes, or lower the values in spec.vm or spec.resources. If taints or labels exclude nodes, \
            correct spec.nodeSelector, spec.affinity or spec.tolerations"
    )]
    Unschedulable,
    /// A PVC has not been bound to a volume within 10 s.
    #[strum(
        detailed_message = "pod condition `PodScheduled`, the PVC's phase, and its warning events",
        message = "provide a PersistentVolume that matches the PVC (see kubectl describe pvc {}). Or correct the storage class, \
            selector, size or volume mode of the VM's disk. For the PVC vmop-image-repository, correct imageRepository in the operator's \
            ConfigMap. After a change of the VM or the ConfigMap, delete the PVC if its phase is still Pending; the operator \
            recreates the PVC"
    )]
    ClaimPending,
    /// A PVC has lost its volume and therefore its data.
    #[strum(
        detailed_message = "the PVC's phase `Lost`",
        message = "see kubectl describe pvc {}. Recover the PersistentVolume. Or set spec.vm.state to Stopped, replace the PVC by a \
            PVC with the same name, restore the data from a backup, and set spec.vm.state to Running"
    )]
    ClaimLost,
    /// The storage class of a PVC does not exist or does not support the PVC's volume mode or access modes, or its
    /// provisioner fails.
    #[strum(
        detailed_message = "event `ProvisioningFailed` of the PVC",
        message = "correct the provisioner or the StorageClass (see kubectl describe pvc {}). Or correct the storage class or \
            volume mode of the VM's disk. For the PVC vmop-image-repository, correct imageRepository in the operator's \
            ConfigMap. After a change of the VM or the ConfigMap, delete the PVC if its phase is still Pending; the operator \
            recreates the PVC"
    )]
    ProvisioningFailed,
    /// A volume cannot be attached to the node, often because it is still attached to another node.
    #[strum(
        detailed_message = "event `FailedAttachVolume` of the pod",
        message = "wait until Kubernetes has detached the volume from any other node; kubectl get volumeattachments shows the \
            node of each attached volume"
    )]
    VolumeAttachFailed,
    /// The volume mode of a PVC does not fit its use as a block device.
    #[strum(
        detailed_message = "event `FailedMount` of the pod, `volumeMode`",
        message = "restart the VM, so that its pod uses the disk in the volume mode of the PVC: kubectl delete pod {}"
    )]
    ClaimWrongMode,
    /// A Secret that the VM needs is missing, or lacks a key.
    #[strum(
        detailed_message = "event `FailedMount` of the pod, `secret`",
        message = "create the Secret and the key that spec.cloudInit names; the VM then starts within two minutes"
    )]
    SecretMissing,
    /// The kubelet cannot mount or map a volume on the node.
    #[strum(
        detailed_message = "events `FailedMount` and `FailedMapVolume` of the pod",
        message = "correct the cause, which is on the node or in the storage: see kubectl describe pod {}"
    )]
    VolumeMountFailed,
    /// The container runtime or the network plugin cannot create the pod's sandbox.
    #[strum(
        detailed_message = "event `FailedCreatePodSandBox` of the pod",
        message = "repair the node's container runtime or network plugin: see kubectl describe pod {}"
    )]
    SandboxFailed,
    /// The kubelet cannot pull the runner's image.
    #[strum(
        detailed_message = "the container's state `ErrImagePull`, `ImagePullBackOff`, `ErrImageNeverPull`, `InvalidImageName`",
        message = "correct spec.image, or runnerImage in the operator's ConfigMap, or load the image on the node"
    )]
    ImagePullFailed,
    /// The kubelet cannot create or start the container.
    #[strum(
        detailed_message = "the container's state `CreateContainerConfigError`, `CreateContainerError`, `RunContainerError`",
        message = "see kubectl describe pod {}"
    )]
    ContainerFailed,
    /// Kubernetes reports another warning while the pod does not start.
    #[strum(
        detailed_message = "any other warning event of the pod; the message contains the text of the event",
        message = "see kubectl describe pod {}"
    )]
    PodWarning,
    /// The VM has stopped unexpectedly, or other clients delete its pod repeatedly. The operator starts it again after a delay
    /// that doubles from 1 s to 5 min. A change of the VM's spec starts it at once. The reason remains until the VM runs.
    #[strum(
        detailed_message = "the exit of the pod: see the table below",
        message = "if the guest has powered itself off, no action is needed; otherwise correct the cause that the message names"
    )]
    RestartBackoff,
    /// The pod's node does not answer. The guest may still run there, so the operator does not start it on another node.
    #[strum(
        detailed_message = "pod phase `Unknown`, pod condition `Ready` without a reason, pod condition `DisruptionTarget` by \
            the taint manager, or no container status 2 min after the pod was scheduled",
        message = "bring the node back. If you have verified that the node is powered off, run kubectl taint node {} \
            node.kubernetes.io/out-of-service=nodeshutdown:NoExecute. Kubernetes then deletes the node's pods and detaches \
            their volumes. Remove the taint when the node is back"
    )]
    NodeUnreachable,
    /// The pod runs, but its runner has not reported the VM's state for two minutes. It cannot reach the API server, or has no
    /// permission to write.
    #[strum(
        detailed_message = "condition `Ready` of the pod; the VM's status has no conditions of the runner",
        message = "see kubectl logs {}. If the pod cannot reach the API server, correct the NetworkPolicy. If the Role \
            vm-reporter lacks a permission, apply the overlay of the operator's installation again"
    )]
    RunnerSilent,
    /// The pod still exists after its termination grace period.
    #[strum(
        detailed_message = "the pod's deletion time",
        message = "find the cause: kubectl describe pod {}. If the pod's container still runs, power the VM off: kubectl exec {} -- \
            vm-runner power-off. Do not force-delete the pod: its guest may still run, and a second guest on the same \
            disks corrupts them"
    )]
    TerminationOverdue,
    /// QEMU does not answer QMP commands of the runner; the process probably hangs, for example in a request to its storage.
    #[strum(
        detailed_message = "condition `QemuResponsive`, reason `QemuSilent`",
        message = "check the storage and the node of the VM for overload or failures. If QEMU still does not answer, power the VM \
            off: kubectl exec {} -- vm-runner power-off. The guest loses unsaved data, and the VM then starts again"
    )]
    QemuSilent,
    /// The storage of a disk is full. QEMU has paused the guest until the storage has space.
    #[strum(
        detailed_message = "condition `StorageHealthy`, reason `DiskFull`",
        message = "raise spec.vm.disks[].volumeClaimTemplate.spec.resources.requests.storage of the disk, or free space on its \
            volume without deleting disk images; the guest then continues within 15 s"
    )]
    DiskFull,
    /// A disk reports errors. QEMU has paused the guest until the disk works.
    #[strum(
        detailed_message = "condition `StorageHealthy` with the reason `DiskError`, and condition `CpusInSync` with the reason \
            `GuestPaused`",
        message = "repair the storage: see kubectl logs {}; the guest then continues within 15 s"
    )]
    DiskError,
    /// The node has not given the pod the CPUs or the memory of the changed VM within a minute. The VM runs with its present
    /// memory, and `Ready` remains `True`.
    #[strum(
        detailed_message = "pod condition `PodResizePending`, reason `Deferred` or `Infeasible`",
        message = "free CPU or memory on the node of pod {}; the kubelet retries. Or lower spec.vm.currentCpus, \
            spec.vm.currentRam or spec.resources"
    )]
    PodResizePending,
    /// The first boot device is a CD drive without its image, and the guest agent has not answered since the start.
    #[strum(
        detailed_message = "condition `MediaReady` or `MediaFetched`",
        message = "provide the image that the message names. It is inserted while the VM runs. Then increase spec.vm.resetRequest, so \
            that the guest boots from it. If the guest boots from a disk, set cdrom.image to an empty string"
    )]
    BootImageMissing,
    /// The image of a disk is larger than its volume.
    #[strum(
        detailed_message = "the termination message of the import pod",
        message = "use a larger PVC: set spec.vm.state to Stopped, delete the PVC, correct the size of the disk, and start the VM"
    )]
    ImageTooLarge,
    /// The image of a disk is neither a raw image nor a qcow2 image. It can be a web page or an archive.
    #[strum(
        detailed_message = "the termination message of the import pod",
        message = "correct the URL, or convert the image with the command that the message names"
    )]
    FormatNotSupported,
    /// The image of a disk is damaged, or has a feature that is refused, such as a backing file or encryption.
    #[strum(
        detailed_message = "the termination message of the import pod",
        message = "convert the image to a qcow2 image without this feature (qemu-img convert -O qcow2)"
    )]
    ImageRefused,
    /// The URL of an image leads to a loopback, link-local, unspecified or multicast address.
    #[strum(
        detailed_message = "the termination message of the import pod",
        message = "use the URL of a server with another address"
    )]
    AddressRefused,
    /// A disk with a source has contents that this VM has not written. They are not overwritten.
    #[strum(
        detailed_message = "the termination message of the import pod",
        message = "remove spec.vm.disks[].source to use the contents. Or set spec.vm.state to Stopped, delete the PVC, and start \
            the VM"
    )]
    DiskNotEmpty,
    /// A pod or a VM can write to the PVC that is copied onto a disk. The copy begins after their end.
    #[strum(
        detailed_message = "the pods and VMs of the namespace",
        message = "stop the pod or the VM that the message names"
    )]
    SourceInUse,
    /// The PVC that is copied onto a disk does not exist, is being deleted, or has no volume. The copy begins when it is usable.
    #[strum(
        detailed_message = "the PVC that spec.vm.disks[].source.pvc names",
        message = "create and fill the PVC, or correct spec.vm.disks[].source.pvc.name"
    )]
    SourceMissing,
    /// A disk with dataSource is empty at its first start, because its provisioner has ignored the field, or the source is empty.
    #[strum(
        detailed_message = "the exit of the pod: the runner's termination message",
        message = "remove dataSource and dataSourceRef from the disk to start with an empty disk, or fill the source. To copy a PVC \
            with any provisioner, use spec.vm.disks[].source.pvc in place of dataSource. Then set spec.vm.state to Stopped, delete \
            the PVC, and start the VM"
    )]
    DiskNotCloned,
    /// The checksum of the downloaded image differs from that in the VM.
    #[strum(
        detailed_message = "the termination message of the import pod",
        message = "compare the checksum in the VM with the checksum that the publisher of the image states. Then correct \
            the checksum or the URL in spec.vm.disks[].source, or upload another file"
    )]
    ChecksumMismatch,
    /// The import of an image fails for another reason, and another attempt cannot succeed.
    #[strum(
        detailed_message = "the termination message of the import pod",
        message = "correct the cause that the message names. The operator tries again after a change of the VM's spec, of its \
            configuration, or of spec.vm.restartRequest"
    )]
    ImportFailed,
    /// The download of the CD image from which the VM boots fails.
    #[strum(
        detailed_message = "condition `MediaFetched`: see the table below",
        message = "correct the cause that the message names. The VM waits for the image for at most \
            imageRepository.fetch.startDeadline of the operator's ConfigMap, and then starts with an empty CD drive"
    )]
    MediaFetchFailed,
}

impl ReadyReason {
    /// The text of the reason in a condition.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether the VM runs, or is stopped as configured.
    #[must_use]
    pub fn is_ready(self) -> bool {
        matches!(self, Self::Running | Self::Stopped | Self::PodResizePending)
    }

    /// Whether a user must act.
    #[must_use]
    pub fn is_problem(self) -> bool {
        !matches!(
            self,
            Self::Running
                | Self::Stopped
                | Self::Starting
                | Self::ImportingDisk
                | Self::Stopping
                | Self::Deleting
        )
    }
}
