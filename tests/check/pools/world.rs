//! A small cluster with pools: its state, its objects as the shipped `decide` sees them, and the effects of writes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use vm_operator::api::pool::{AssignedVm, OnExpiry, OnRelease, Retention, VmAssignmentStatus};
use vm_operator::controllers::pool::action::{Action, Check, SpecChange};
use vm_operator::controllers::pool::facts::{AssignmentFacts, Facts, Held, Pool, Rules, Vm};
use vm_operator::k8s::live::Version;

pub const VMS: usize = 3;
pub const POOLS: usize = 2;
pub const USERS: usize = 2;

/// A VM. An index of 0 stands for nothing, and a UID of 0 for a VM that does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VmS {
    pub uid: u8,
    /// 1 if a copy is the newest version. Only equality with the newest version matters.
    pub version: u8,
    pub held: Option<HeldS>,
    pub runs: bool,
    pub connected: bool,
    pub changed: u8,
    pub restarting: bool,
    /// Whether a restart is needed and has not been requested.
    pub needs_restart: bool,
    /// UID and pool of the assignment with the session in the memory of the guest.
    pub session: (u8, u8),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HeldS {
    pub pool: u8,
    pub user: u8,
    /// 0 for the Java VM-Operator.
    pub assignment: u8,
    pub since: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AssignmentS {
    pub uid: u8,
    pub version: u8,
    pub created: u8,
    /// Index of the VM + 1.
    pub vm: u8,
    pub vm_uid: u8,
    pub bound: bool,
    pub used: u8,
    pub adopted: bool,
}

/// The objects, as the API server or a store has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Objects {
    pub vms: [VmS; VMS],
    pub assignments: [[AssignmentS; USERS]; POOLS],
    pub pools: [bool; POOLS],
}

/// The rules of a setting.
#[derive(Clone, Copy, Debug)]
pub struct PoolRules {
    pub retention: u8,
    pub on_release: OnRelease,
    pub on_expiry: OnExpiry,
    pub members: [bool; VMS],
    pub prewarm: usize,
}

pub fn at(tick: u8) -> Timestamp {
    Timestamp::from_second(1_000_000 + i64::from(tick)).unwrap()
}

fn tick(time: Timestamp) -> u8 {
    u8::try_from(time.as_second() - 1_000_000).unwrap_or_default()
}

fn vm_name(index: usize) -> String {
    format!("vm{index}")
}

fn user_name(index: usize) -> String {
    format!("user{index}")
}

pub fn index(name: &str) -> usize {
    name[name.len() - 1..].parse().unwrap()
}

/// Pool and user of an assignment by its name in this model.
pub fn assignment_index(name: &str) -> (usize, usize) {
    let (pool, user) = name.split_once('-').unwrap();
    (index(pool), index(user))
}

fn id(name: String, uid: u8, version: u8) -> Version {
    let (uid, version) = (uid.to_string(), version.to_string());
    Version { name, uid, version }
}

fn retention(rules: &PoolRules) -> Retention {
    let exact = SignedDuration::from_secs(rules.retention.into());
    Retention::For {
        months: 0,
        days: 0,
        exact,
    }
}

impl Objects {
    /// A state with one pool. Its only VM is `vm`.
    pub fn of_one_pool(vm: VmS) -> Self {
        let mut objects = Self {
            pools: [true, false],
            ..Self::default()
        };
        objects.vms[0] = VmS {
            uid: 1,
            version: 1,
            ..vm
        };
        objects
    }

    /// The facts about a pool, from these objects.
    pub fn facts(&self, pool: usize, rules: &[PoolRules; POOLS], now: u8) -> Facts {
        let all_rules = (0..POOLS).filter(|pool| self.pools[*pool]).map(|pool| {
            let rules = &rules[pool];
            let it = Rules {
                retention: Some(retention(rules)),
                on_release: rules.on_release,
                on_expiry: rules.on_expiry,
            };
            (format!("pool{pool}"), it)
        });
        let vms = (0..VMS).filter(|vm| self.vms[*vm].uid > 0);
        Facts {
            pool: Pool {
                id: id(format!("pool{pool}"), 1, 1),
                prewarm: rules[pool].prewarm,
                login: false,
                is_ending: false,
            },
            rules: all_rules.collect(),
            vms: vms.map(|vm| self.vm(vm, rules[pool].members[vm])).collect(),
            assignments: self.assignments(),
            now: at(now),
        }
    }

    fn vm(&self, index: usize, is_member: bool) -> Vm {
        let vm = &self.vms[index];
        Vm {
            id: id(vm_name(index), vm.uid, vm.version),
            is_member,
            is_ending: false,
            wants_running: vm.runs,
            state_is_running: vm.runs,
            is_running: vm.runs && !vm.restarting,
            is_stopped: !vm.runs,
            problem: None,
            restart_request: 0,
            is_restarting: vm.needs_restart || (vm.restarting && vm.runs),
            is_connected: vm.connected,
            connection_changed: Some(at(vm.changed)),
            held: vm.held.map(|held| Held {
                pool: format!("pool{}", held.pool),
                user: user_name(held.user.into()),
                assignment: (held.assignment > 0).then(|| held.assignment.to_string()),
                since: Some(at(held.since)),
                login: false,
            }),
            restart_needed: vm.needs_restart.then_some(1),
        }
    }

    fn assignments(&self) -> Vec<AssignmentFacts> {
        let mut assignments = Vec::new();
        for (pool, of_pool) in self.assignments.iter().enumerate() {
            for (user, assignment) in of_pool.iter().enumerate().filter(|(_, it)| it.uid > 0) {
                let vm = assignment.vm.checked_sub(1).map(|vm| AssignedVm {
                    name: vm_name(vm.into()),
                    uid: assignment.vm_uid.to_string(),
                });
                let status = if assignment.bound { "True" } else { "False" };
                let condition = Condition {
                    type_: "Bound".to_owned(),
                    status: status.to_owned(),
                    reason: String::new(),
                    message: String::new(),
                    observed_generation: None,
                    last_transition_time: Time(at(0)),
                };
                assignments.push(AssignmentFacts {
                    id: id(
                        format!("pool{pool}-user{user}"),
                        assignment.uid,
                        assignment.version,
                    ),
                    pool: format!("pool{pool}"),
                    user: user_name(user),
                    created: at(assignment.created),
                    is_ending: false,
                    is_named_well: true,
                    has_owner: true,
                    is_adopted: assignment.adopted,
                    is_bound: assignment.bound,
                    status: VmAssignmentStatus {
                        vm,
                        last_used: (assignment.used > 0).then(|| Time(at(assignment.used))),
                        expires: None,
                        conditions: vec![condition],
                    },
                });
            }
        }
        assignments
    }

    /// Whether the user of the assignment has the VM.
    pub fn holds(&self, pool: usize, user: usize, vm: usize) -> bool {
        let (assignment, vm_state) = (&self.assignments[pool][user], &self.vms[vm]);
        let named = HeldS {
            pool: pool as u8,
            user: user as u8,
            assignment: assignment.uid,
            since: 0,
        };
        assignment.uid > 0
            && vm_state.uid > 0
            && assignment.bound
            && usize::from(assignment.vm) == vm + 1
            && assignment.vm_uid == vm_state.uid
            && vm_state.held.map(|held| HeldS { since: 0, ..held }) == Some(named)
    }

    /// All holdings: pool, user and VM.
    pub fn holdings(&self) -> Vec<(usize, usize, usize)> {
        let mut all = Vec::new();
        for pool in 0..POOLS {
            for user in 0..USERS {
                all.extend(
                    (0..VMS)
                        .filter(|vm| self.holds(pool, user, *vm))
                        .map(|vm| (pool, user, vm)),
                );
            }
        }
        all
    }

    /// Whether the API server confirms the check.
    pub fn confirms(&self, check: &Check) -> bool {
        let assignment = |name: &str| {
            // The decision names assignments by their hash.
            let (pool, user) = find_assignment(name);
            self.assignments[pool][user]
        };
        match check {
            Check::None => true,
            Check::AssignmentGone { name, uid } => assignment(name).uid.to_string() != *uid,
            Check::AssignmentIs(version) => {
                let (pool, user) = assignment_index(&version.name);
                let found = self.assignments[pool][user];
                found.uid.to_string() == version.uid && version.version == "1"
            }
            Check::VmGone { name, uid } => self.vms[index(name)].uid.to_string() != *uid,
            Check::VmIs(version) => {
                self.vms[index(&version.name)].uid.to_string() == version.uid
                    && version.version == "1"
            }
        }
    }

    /// Carries out a write with a precondition that is met. `next_uid` is the UID of a new assignment.
    pub fn write(&mut self, action: &Action, pool: usize, now: u8, next_uid: u8) {
        match action {
            Action::Create { user } => {
                let assignment = &mut self.assignments[pool][index(user)];
                if assignment.uid == 0 {
                    *assignment = AssignmentS {
                        uid: next_uid,
                        version: 1,
                        created: now,
                        adopted: true,
                        ..AssignmentS::default()
                    };
                }
            }
            Action::Own { .. } => {}
            Action::Report {
                assignment, status, ..
            } => {
                let (pool, user) = assignment_index(&assignment.name);
                self.assignments[pool][user] = reported(self.assignments[pool][user], status);
            }
            Action::Assign { vm, held } => {
                self.vms[index(&vm.name)].needs_restart = false;
                self.vms[index(&vm.name)].held = Some(HeldS {
                    pool: index(&held.pool) as u8,
                    user: index(&held.user) as u8,
                    assignment: held
                        .assignment
                        .as_ref()
                        .map_or(0, |uid| uid.parse().unwrap()),
                    since: held.since.map_or(0, tick),
                });
            }
            Action::Change { vm, spec, .. } => {
                let vm = &mut self.vms[index(&vm.name)];
                match spec {
                    SpecChange::Start => vm.runs = true,
                    SpecChange::Stop => vm.runs = false,
                    SpecChange::Restart(_) => {
                        vm.restarting = vm.runs;
                        vm.needs_restart = false;
                    }
                }
            }
            Action::Free { vm, restart, .. } => {
                let vm = &mut self.vms[index(&vm.name)];
                vm.held = None;
                vm.needs_restart = restart.is_some();
            }
            Action::Delete { assignment, .. } => {
                let (pool, user) = assignment_index(&assignment.name);
                self.assignments[pool][user] = AssignmentS::default();
            }
        }
    }
}

/// The assignment with that status.
pub fn reported(assignment: AssignmentS, status: &VmAssignmentStatus) -> AssignmentS {
    AssignmentS {
        vm: status.vm.as_ref().map_or(0, |vm| index(&vm.name) as u8 + 1),
        vm_uid: status.vm.as_ref().map_or(0, |vm| vm.uid.parse().unwrap()),
        bound: status.conditions[0].status == "True",
        used: status.last_used.as_ref().map_or(0, |time| tick(time.0)),
        ..assignment
    }
}

/// Pool and user of an assignment with that name.
pub fn find_assignment(name: &str) -> (usize, usize) {
    use vm_operator::api::pool::names::assignment;
    let all = (0..POOLS).flat_map(|pool| (0..USERS).map(move |user| (pool, user)));
    let mut same =
        all.filter(|(pool, user)| assignment(&format!("pool{pool}"), &user_name(*user)) == name);
    same.next().unwrap()
}
