//! The state of one VM with one disk: the API server, two nodes with their kubelets, and the knowledge of each
//! operator.
//!
//! All parts are small and copied, so that millions of states can be compared. UIDs count from 1, and 0 is none.
//! Versions only order two states of an object.

mod same;

pub type Uid = u8;

/// The maximum number of pods of a VM.
pub const PODS: usize = 7;
pub const NODES: usize = 2;
pub const OPERATORS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vm {
    pub uid: Uid,
    pub version: u8,
    /// `spec.vm.state`.
    pub running: bool,
    /// Whether the spec is valid.
    pub valid: bool,
    /// `spec.vm.restartRequest`.
    pub restart: u8,
    /// `status.observedRestartRequest`.
    pub reported_restart: u8,
    /// `status.restarts`.
    pub past: Past,
    /// The pod template.
    pub made_of: u8,
    /// Whether the status records that the image is on the disk.
    pub imported: bool,
}

/// The exit of the last pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Past {
    /// The pod, or 0.
    pub pod: Uid,
    /// The number of deletions by others in a row. 0 if the pod has exited by itself.
    pub lost: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Pending,
    Running,
    /// The pod failed.
    Ended,
    /// The guest powered itself off, or the import is complete.
    PoweredOff,
}

impl Phase {
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Ended | Self::PoweredOff)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pod {
    pub uid: Uid,
    pub version: u8,
    /// UID of its VM.
    pub owner: Uid,
    pub node: Option<u8>,
    pub phase: Phase,
    /// Whether it has a deletion timestamp.
    pub ending: bool,
    /// The restart request for which it was created.
    pub restart: u8,
    pub made_of: u8,
    /// Whether it only imports the image onto the disk.
    pub imports: bool,
}

/// A request to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    Create {
        owner: Uid,
        restart: u8,
        made_of: u8,
        imports: bool,
    },
    /// With the required version of the pod, if there is one.
    Delete {
        vm: Uid,
        pod: Uid,
        version: Option<u8>,
    },
    StopVm {
        vm: Uid,
        version: u8,
    },
    Status {
        vm: Uid,
        version: u8,
        past: Past,
        reported_restart: u8,
        imported: bool,
    },
}

/// A response in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The present pod, or none. It also has whether the request created it, and whether the request was sent before
    /// the operator's newest list.
    Pod {
        pod: Option<Pod>,
        created: bool,
        before_list: bool,
    },
    Vm(Vm),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    Nothing,
    /// The VM, with the next request, and whether the request was sent before the operator's newest list.
    Asked {
        request: Request,
        next: Option<Request>,
        before_list: bool,
    },
    Answered {
        answer: Answer,
        next: Option<Request>,
    },
}

/// A process of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operator {
    /// Its knowledge.
    pub vm: Option<Vm>,
    pub pod: Option<Pod>,
    /// The last pod event of its watch: a pod and its version, with version 0 for a deletion.
    pub reported: (Uid, u8),
    /// The newest pod with a deletion that its watch has reported.
    pub gone: Uid,
    /// The newest pod that it has created, as far as it knows.
    pub made: Uid,
    pub doing: Doing,
    /// A timed-out request that is still in transit.
    pub late: Option<Request>,
    /// The newest pod that it has deleted while others delete pods, too.
    pub deleted: Uid,
}

impl Operator {
    /// An arbitrary order of operators, for the comparison of symmetric states.
    fn order(&self) -> impl Ord {
        let vm = self.vm.map(|vm| (vm.uid, vm.version));
        let pod = self.pod.map(|pod| (pod.uid, pod.version));
        let doing = match self.doing {
            Doing::Nothing => (0, 0),
            Doing::Asked { request, next, .. } => {
                (1 + request.order(), 1 + next.map_or(0, |next| next.order()))
            }
            Doing::Answered { next, .. } => (9, 1 + next.map_or(0, |next| next.order())),
        };
        (
            vm,
            pod,
            self.reported,
            self.gone,
            self.made,
            doing,
            self.late.map(|late| late.order()),
            self.deleted,
        )
    }
}

impl Request {
    fn order(&self) -> u8 {
        match self {
            Self::Create { .. } => 0,
            Self::Delete { .. } => 1,
            Self::StopVm { .. } => 2,
            Self::Status { .. } => 3,
        }
    }
}

/// The knowledge of a node about a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Local {
    Nothing,
    /// The kubelet must start it.
    Known,
    /// Its QEMU runs.
    Up,
    Dead,
    PoweredOff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    /// Whether it reaches the API server.
    pub linked: bool,
    /// By UID.
    pub pods: [Local; PODS],
}

/// Budgets of accidents and of changes by people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Starts and stops by the user.
    pub toggles: u8,
    /// Restart requests by the user.
    pub restarts: u8,
    /// Deletions of the VM by the user, each with a new VM of the same name.
    pub replacements: u8,
    /// Changes of the spec by the user between valid and invalid.
    pub spoils: u8,
    /// Changes of the pod template by the user.
    pub changes: u8,
    /// Deletions of the pod by others.
    pub deletions: u8,
    /// Crashes of QEMU.
    pub crashes: u8,
    /// Power-offs by the guest.
    pub power_offs: u8,
    /// Disconnections of a node.
    pub losses: u8,
    /// Power failures of a node, which recovers.
    pub outages: u8,
    /// Forced removals of a pod by an administrator, or nodes that are declared dead.
    pub forced: u8,
    /// Time-outs of an operator's request, which may still be carried out.
    pub given_up: u8,
    /// Kills of an operator, which starts with empty memory.
    pub kills: u8,
    /// New lists of an operator's watch.
    pub lists: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub vm: Option<Vm>,
    pub vms_made: Uid,
    pub pod: Option<Pod>,
    pub pods_made: Uid,
    /// Whether the image that the guest boots from exists.
    pub image: bool,
    /// Whether the disk has its image.
    pub filled: bool,
    /// The pods that only import, one bit for each UID.
    pub import_pods: u8,
    pub nodes: [Node; NODES],
    pub operators: [Operator; OPERATORS],
    pub left: Budget,
    /// Whether a pod was removed by force, or its node declared dead.
    pub forced: bool,
}

/// The parameters of a model.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub name: &'static str,
    /// Whether `MODELS=quick` leaves it out.
    pub is_large: bool,
    /// The number of active operators. There is no Lease, which is worse than a lost one.
    pub operators: usize,
    /// Whether storage attaches to two nodes at once.
    pub attaches_twice: bool,
    pub guest_shutdown_stops: bool,
    /// Whether the image that the guest boots from must be downloaded first.
    pub fetches: bool,
    /// Whether the disk has an image that must be imported first.
    pub imports: bool,
    pub starts_stopped: bool,
    /// Whether no node accepts the pod until it was changed.
    pub taken_once_changed: bool,
    pub budget: Budget,
    /// The maximum number of pods. States beyond it are not explored.
    pub pods: Uid,
}

impl World {
    pub fn new(setting: &Setting) -> Self {
        let running = !setting.starts_stopped;
        let vm = Vm {
            uid: 1,
            version: 1,
            running,
            valid: true,
            restart: 0,
            reported_restart: 0,
            past: Past::default(),
            made_of: 0,
            imported: false,
        };
        let operator = Operator {
            vm: Some(vm),
            pod: None,
            reported: (0, 0),
            gone: 0,
            made: 0,
            doing: Doing::Nothing,
            late: None,
            deleted: 0,
        };
        Self {
            vm: Some(vm),
            vms_made: 1,
            pod: None,
            pods_made: 0,
            image: !setting.fetches,
            filled: !setting.imports,
            import_pods: 0,
            nodes: [Node {
                linked: true,
                pods: [Local::Nothing; PODS],
            }; NODES],
            operators: [operator; OPERATORS],
            left: setting.budget,
            forced: false,
        }
    }

    /// The last event that a watch can report now.
    pub fn newest(&self) -> (Uid, u8) {
        self.pod
            .map_or((self.pods_made, 0), |pod| (pod.uid, pod.version))
    }

    /// The nodes with a QEMU that uses the disk, once for each QEMU.
    pub fn qemus(&self) -> Vec<usize> {
        let nodes = self.nodes.iter().enumerate();
        nodes
            .flat_map(|(n, node)| {
                node.pods
                    .iter()
                    .filter(|pod| **pod == Local::Up)
                    .map(move |_| n)
            })
            .collect()
    }

    pub fn imports(&self, pod: Uid) -> bool {
        self.import_pods & (1 << pod) != 0
    }

    pub fn local(&self, node: usize, pod: Uid) -> Local {
        self.nodes[node].pods[usize::from(pod)]
    }

    pub fn set_local(&mut self, node: usize, pod: Uid, local: Local) {
        self.nodes[node].pods[usize::from(pod)] = local;
    }

    /// Changes the VM.
    pub fn change_vm(&mut self, change: impl FnOnce(&mut Vm)) {
        if let Some(vm) = &mut self.vm {
            vm.version += 1;
            change(vm);
        }
    }

    /// Changes the pod.
    pub fn change_pod(&mut self, change: impl FnOnce(&mut Pod)) {
        if let Some(pod) = &mut self.pod {
            pod.version += 1;
            change(pod);
        }
    }
}
