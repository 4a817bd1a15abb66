//! The world of one VM with one disk: the API server, two nodes with their kubelets, and what each operator knows.
//!
//! Everything is small and copied, so that millions of worlds can be compared. UIDs count from 1; 0 is none. Versions
//! only say which of two states of an object is newer.

mod same;

pub type Uid = u8;

/// No life of a VM that is looked at has more pods than that.
pub const PODS: usize = 7;
pub const NODES: usize = 2;
pub const OPERATORS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vm {
    pub uid: Uid,
    pub version: u8,
    /// `spec.vm.state`.
    pub running: bool,
    /// Whether the spec can be used.
    pub valid: bool,
    /// `spec.vm.restartRequest`.
    pub restart: u8,
    /// `status.observedRestartRequest`.
    pub told_restart: u8,
    /// `status.restarts`.
    pub past: Past,
    /// What a pod is made of.
    pub made_of: u8,
}

/// How the last pod ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Past {
    /// That pod; 0 is none.
    pub pod: Uid,
    /// Ends in a row, where others have deleted the pod; 0: it has ended by itself.
    pub lost: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Pending,
    Running,
    /// It failed.
    Ended,
    /// It ended because the guest powered itself off.
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
    /// It has a deletion time.
    pub ending: bool,
    /// The restart request that it was made for.
    pub restart: u8,
    pub made_of: u8,
}

/// What an operator asks of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    Create {
        owner: Uid,
        restart: u8,
        made_of: u8,
    },
    /// With the version that the pod has to have, if any will not do.
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
        told_restart: u8,
    },
}

/// What comes back, on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The pod as it is now; none if it is gone. Whether it was made by the request, and whether that was sent off before
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
    /// Asked, with what is asked for next, and whether it was sent off before the operator's newest list.
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

/// One process of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operator {
    /// What it knows.
    pub vm: Option<Vm>,
    pub pod: Option<Pod>,
    /// How far its watch has told of pods: a pod and its version, or 0 as version where that pod is gone.
    pub told: (Uid, u8),
    /// The newest pod of whose deletion its watch has told.
    pub gone: Uid,
    /// The newest pod that it knows to have made itself.
    pub made: Uid,
    pub doing: Doing,
    /// A request that it has given up and that is still on its way.
    pub late: Option<Request>,
    /// The newest pod that it has deleted, where others delete pods, too.
    pub deleted: Uid,
}

impl Operator {
    /// Some order, by which of two operators the first can be told.
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
            self.told,
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

/// What a node knows of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Local {
    Nothing,
    /// The kubelet has to start it.
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

/// How often things may still happen that nobody can count on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// The user stops or starts the VM.
    pub toggles: u8,
    /// The user asks for a restart.
    pub restarts: u8,
    /// The user deletes the VM, and makes one of the same name.
    pub replacements: u8,
    /// The user makes the spec unusable, or usable again.
    pub spoils: u8,
    /// The user changes what a pod is made of.
    pub changes: u8,
    /// Somebody deletes the pod.
    pub deletions: u8,
    /// QEMU crashes.
    pub crashes: u8,
    /// The guest powers itself off.
    pub power_offs: u8,
    /// A node loses its connection.
    pub losses: u8,
    /// A node loses its power, and comes back.
    pub outages: u8,
    /// An administrator removes a pod from the API by force, or declares its node dead.
    pub forced: u8,
    /// An operator gives up a request, which may still be carried out.
    pub given_up: u8,
    /// An operator is killed and starts with empty memory.
    pub kills: u8,
    /// An operator's watch begins anew with a list.
    pub lists: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub vm: Option<Vm>,
    pub vms_made: Uid,
    pub pod: Option<Pod>,
    pub pods_made: Uid,
    /// The image that the guest boots from is there.
    pub image: bool,
    pub nodes: [Node; NODES],
    pub operators: [Operator; OPERATORS],
    pub left: Budget,
    /// A pod was removed by force, or its node declared dead.
    pub forced: bool,
}

/// What does not change.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub name: &'static str,
    /// How many operators act. There is no Lease: that is worse than any that is lost.
    pub operators: usize,
    /// Whether storage attaches to two nodes at once.
    pub attaches_twice: bool,
    pub guest_shutdown_stops: bool,
    /// The image that the guest boots from is to be fetched first.
    pub fetches: bool,
    pub starts_stopped: bool,
    /// No node takes a pod of a VM whose pod was not changed yet.
    pub taken_once_changed: bool,
    pub budget: Budget,
    /// Pods that a life may have, beyond which it is looked no further.
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
            told_restart: 0,
            past: Past::default(),
            made_of: 0,
        };
        let operator = Operator {
            vm: Some(vm),
            pod: None,
            told: (0, 0),
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
            nodes: [Node {
                linked: true,
                pods: [Local::Nothing; PODS],
            }; NODES],
            operators: [operator; OPERATORS],
            left: setting.budget,
            forced: false,
        }
    }

    /// How far a watch can tell of pods now.
    pub fn newest(&self) -> (Uid, u8) {
        self.pod
            .map_or((self.pods_made, 0), |pod| (pod.uid, pod.version))
    }

    /// The nodes on which a QEMU has the disk, once for each QEMU.
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
