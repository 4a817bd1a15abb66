//! Explores all interleavings of two controllers with stale stores, users, and accidents.

mod steps;

use super::world::{
    HeldS, Objects, POOLS, PoolRules, USERS, VMS, assignment_index, index, reported,
};
use std::collections::{HashMap, HashSet};
use vm_operator::api::pool::OnRelease;
use vm_operator::controllers::pool::action::{Action, Check, SpecChange};
use vm_operator::controllers::pool::decide::decide;

/// A mutation of a rule, which the search must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    WritesVmsWithoutVersion,
    WritesAssignmentsWithoutVersion,
    FreesUnchecked,
    DeletesUnchecked,
    IgnoresConsoles,
    IgnoresRetention,
    IgnoresRestarts,
    NeverRestarts,
    NeverFrees,
    NeverDeletes,
    NeverAdopts,
    NeverBinds,
    StartsHeldVms,
}

/// How often each accident can happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    pub assignments: u8,
    pub deletions: u8,
    pub consoles: u8,
    pub ticks: u8,
    pub stops: u8,
    pub vm_deletions: u8,
    pub pool_deletions: u8,
    pub lost: u8,
    pub crashes: u8,
}

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub name: &'static str,
    /// Whether `MODELS=quick` leaves it out.
    pub is_large: bool,
    pub controllers: usize,
    pub rules: [PoolRules; POOLS],
    pub pools: [bool; POOLS],
    pub vms: usize,
    /// VMs that the Java VM-Operator has assigned, by user.
    pub java: [Option<u8>; VMS],
    /// The clock of the second controller is ahead by that.
    pub ahead: u8,
    pub budget: Budget,
}

/// A write that a controller has decided on.
#[derive(Clone, Debug, PartialEq)]
struct Pending {
    pool: usize,
    action: Action,
    is_checked: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Controller {
    known: Objects,
    /// Index into the table of pending writes.
    pending: Option<usize>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    objects: Objects,
    controllers: Vec<Controller>,
    now: u8,
    next_uid: u8,
    left: Budget,
    /// Whether all clocks have the same time.
    clocks_agree: bool,
}

#[derive(Clone, Debug)]
pub struct Finding {
    pub what: String,
    pub trace: Vec<String>,
}

pub struct Explorer<'a> {
    setting: &'a Setting,
    mutation: Option<Mutation>,
    pending: Vec<Pending>,
    decided: HashMap<(Objects, usize, u8), Vec<Action>>,
    /// Worlds from which the controllers come to rest.
    well: HashSet<World>,
}

type Next = (String, World, Option<String>);

fn is_checked(action: &Action) -> bool {
    match action {
        Action::Free { check, .. } | Action::Delete { check, .. } => *check == Check::None,
        _ => true,
    }
}

impl<'a> Explorer<'a> {
    pub fn new(setting: &'a Setting, mutation: Option<Mutation>) -> Self {
        Self {
            setting,
            mutation,
            pending: Vec::new(),
            decided: HashMap::new(),
            well: HashSet::new(),
        }
    }

    fn breaks(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn first(&self) -> World {
        let mut objects = Objects {
            pools: self.setting.pools,
            ..Objects::default()
        };
        for vm in 0..self.setting.vms {
            objects.vms[vm].uid = vm as u8 + 1;
            objects.vms[vm].version = 1;
            objects.vms[vm].runs = vm != 0;
            objects.vms[vm].held = self.setting.java[vm].map(|user| HeldS {
                user,
                since: vm as u8,
                ..HeldS::default()
            });
        }
        let known = Controller {
            known: objects,
            pending: None,
        };
        World {
            objects,
            controllers: vec![known; self.setting.controllers],
            now: 5,
            next_uid: 1,
            left: self.setting.budget,
            clocks_agree: false,
        }
    }

    /// The decided writes that change something.
    fn decide(&mut self, known: &Objects, pool: usize, now: u8) -> Vec<Action> {
        if let Some(actions) = self.decided.get(&(*known, pool, now)) {
            return actions.clone();
        }
        let mut rules = self.setting.rules;
        if self.breaks(Mutation::NeverRestarts) {
            rules
                .iter_mut()
                .for_each(|rules| rules.on_release = OnRelease::Keep);
        }
        let mut facts = known.facts(pool, &rules, now);
        if self.breaks(Mutation::IgnoresRetention) {
            rules.iter_mut().for_each(|rules| rules.retention = 0);
            facts = known.facts(pool, &rules, now);
        }
        for vm in &mut facts.vms {
            vm.is_connected &= !self.breaks(Mutation::IgnoresConsoles);
            vm.is_restarting &= !self.breaks(Mutation::IgnoresRestarts);
        }
        if self.breaks(Mutation::StartsHeldVms) {
            let stopped: Vec<String> = facts
                .vms
                .iter()
                .filter(|vm| !vm.wants_running)
                .map(|vm| vm.id.uid.clone())
                .collect();
            let of_stopped = |uid: &String| stopped.contains(uid);
            for assignment in &mut facts.assignments {
                assignment.is_bound &= !assignment
                    .status
                    .vm
                    .as_ref()
                    .is_some_and(|vm| of_stopped(&vm.uid));
            }
        }
        let mut actions = decide(&facts).actions;
        let is_dropped = |action: &Action| match action {
            Action::Free { .. } => self.breaks(Mutation::NeverFrees),
            Action::Delete { .. } => self.breaks(Mutation::NeverDeletes),
            Action::Create { .. } => self.breaks(Mutation::NeverAdopts),
            Action::Report {
                assignment, status, ..
            } => {
                let (pool, user) = assignment_index(&assignment.name);
                let present = known.assignments[pool][user];
                let next = reported(present, status);
                next == present || (self.breaks(Mutation::NeverBinds) && next.bound)
            }
            _ => false,
        };
        actions.retain(|action| !is_dropped(action));
        for action in &mut actions {
            if let Action::Free { check, .. } = action
                && self.breaks(Mutation::FreesUnchecked)
            {
                *check = Check::None;
            }
            if let Action::Delete { check, .. } = action
                && self.breaks(Mutation::DeletesUnchecked)
            {
                *check = Check::None;
            }
        }
        self.decided.insert((*known, pool, now), actions.clone());
        actions
    }

    fn clock(&self, world: &World, controller: usize) -> u8 {
        let is_ahead = controller == 1 && !world.clocks_agree;
        world.now + if is_ahead { self.setting.ahead } else { 0 }
    }

    /// The writes that a controller can begin, each with its pool.
    fn due(&mut self, world: &World, controller: usize) -> Vec<(usize, Action)> {
        let known = world.controllers[controller].known;
        let now = self.clock(world, controller);
        let mut due = Vec::new();
        for pool in 0..POOLS {
            if known.pools[pool] {
                let actions = self.decide(&known, pool, now);
                due.extend(actions.into_iter().map(|action| (pool, action)));
            }
        }
        due
    }

    fn pending_index(&mut self, pending: Pending) -> usize {
        let found = self.pending.iter().position(|known| *known == pending);
        found.unwrap_or_else(|| {
            self.pending.push(pending);
            self.pending.len() - 1
        })
    }

    /// An object has changed: copies and preconditions of other versions are outdated.
    fn outdate(
        &mut self,
        world: &mut World,
        vm: Option<usize>,
        assignment: Option<(usize, usize)>,
    ) {
        for at in 0..world.controllers.len() {
            let controller = &mut world.controllers[at];
            if let Some(vm) = vm {
                controller.known.vms[vm].version = 0;
            }
            if let Some((pool, user)) = assignment {
                controller.known.assignments[pool][user].version = 0;
            }
            let Some(pending) = controller.pending else {
                continue;
            };
            let mut changed = self.pending[pending].clone();
            let vm_name = vm.map(|vm| format!("vm{vm}"));
            let assignment_name = assignment.map(|(pool, user)| format!("pool{pool}-user{user}"));
            let is_meant = |name: &String| {
                Some(name) == vm_name.as_ref() || Some(name) == assignment_name.as_ref()
            };
            let ids = match &mut changed.action {
                Action::Assign { vm, .. } | Action::Change { vm, .. } => vec![vm],
                Action::Free { vm, check, .. } => match check {
                    Check::AssignmentIs(id) | Check::VmIs(id) => vec![vm, id],
                    _ => vec![vm],
                },
                Action::Report { assignment, .. } | Action::Own { assignment } => vec![assignment],
                Action::Delete {
                    assignment, check, ..
                } => match check {
                    Check::AssignmentIs(id) | Check::VmIs(id) => vec![assignment, id],
                    _ => vec![assignment],
                },
                Action::Create { .. } => Vec::new(),
            };
            for id in ids.into_iter().filter(|id| is_meant(&id.name)) {
                id.version = "0".to_owned();
            }
            let pending = self.pending_index(changed);
            world.controllers[at].pending = Some(pending);
        }
    }

    /// Whether the precondition of the write is met.
    fn is_current(&self, objects: &Objects, action: &Action) -> bool {
        match action {
            Action::Assign { vm, .. } | Action::Change { vm, .. } | Action::Free { vm, .. } => {
                let found = objects.vms[index(&vm.name)];
                found.uid.to_string() == vm.uid
                    && (vm.version == "1" || self.breaks(Mutation::WritesVmsWithoutVersion))
            }
            Action::Report { assignment, .. } | Action::Own { assignment } => {
                let (pool, user) = assignment_index(&assignment.name);
                objects.assignments[pool][user].uid.to_string() == assignment.uid
                    && (assignment.version == "1"
                        || self.breaks(Mutation::WritesAssignmentsWithoutVersion))
            }
            Action::Delete { assignment, .. } => {
                let (pool, user) = assignment_index(&assignment.name);
                objects.assignments[pool][user].uid.to_string() == assignment.uid
            }
            Action::Create { .. } => true,
        }
    }

    /// Carries out the pending write of a controller. Returns the violation, if there is one.
    fn write(&mut self, world: &mut World, controller: usize, is_lost: bool) -> Option<String> {
        let Pending { pool, action, .. } =
            self.pending[world.controllers[controller].pending.take()?].clone();
        if !self.is_current(&world.objects, &action) {
            return None;
        }
        let before = world.objects;
        let now = self.clock(world, controller);
        world.objects.write(&action, pool, now, world.next_uid);
        if world.objects == before {
            return None;
        }
        let (vm, assignment) = match &action {
            Action::Assign { vm, .. } | Action::Change { vm, .. } | Action::Free { vm, .. } => {
                (Some(index(&vm.name)), None)
            }
            Action::Report { assignment, .. }
            | Action::Own { assignment }
            | Action::Delete { assignment, .. } => (None, Some(assignment_index(&assignment.name))),
            Action::Create { user } => {
                world.next_uid += 1;
                (None, Some((pool, index(user))))
            }
        };
        self.outdate(world, vm, assignment);
        if !is_lost {
            let objects = world.objects;
            let known = &mut world.controllers[controller].known;
            if let Some(vm) = vm {
                known.vms[vm] = objects.vms[vm];
            }
            if let Some((pool, user)) = assignment {
                known.assignments[pool][user] = objects.assignments[pool][user];
            }
        }
        // The decision may be from the time before the clocks were corrected.
        let latest = now.max(world.now + controller as u8 * self.setting.ahead);
        let wrong = self.violation(&before, &world.objects, &action, latest);
        note_sessions(&mut world.objects);
        for controller in &mut world.controllers {
            for vm in 0..VMS {
                controller.known.vms[vm].session = world.objects.vms[vm].session;
            }
        }
        wrong
    }

    /// The violation of a property by a write.
    fn violation(
        &self,
        before: &Objects,
        after: &Objects,
        action: &Action,
        now: u8,
    ) -> Option<String> {
        let (had, have) = (before.holdings(), after.holdings());
        for (n, (pool, user, vm)) in have.iter().enumerate() {
            let others = &have[n + 1..];
            if others.iter().any(|(_, _, other)| other == vm) {
                return Some("two users have one VM".to_owned());
            }
            if others
                .iter()
                .any(|(other, of, _)| (other, of) == (pool, user))
            {
                return Some("a user has two VMs of a pool".to_owned());
            }
            let (session, of_pool) = after.vms[*vm].session;
            let is_foreign = session != 0 && session != after.assignments[*pool][*user].uid;
            let restarts =
                self.setting.rules[usize::from(of_pool)].on_release == OnRelease::Restart;
            if is_foreign && restarts && !had.contains(&(*pool, *user, *vm)) {
                return Some("a user finds the session of the previous one".to_owned());
            }
        }
        for (pool, user, vm) in had.iter().filter(|holding| !have.contains(holding)) {
            let (assignment, state) = (before.assignments[*pool][*user], before.vms[*vm]);
            if !before.pools[*pool] {
                continue;
            }
            let since = state.held.map_or(0, |held| held.since);
            let changed = if state.changed >= since {
                state.changed
            } else {
                0
            };
            let used = assignment.used.max(since).max(changed.min(now));
            if state.connected || used + self.setting.rules[*pool].retention > now {
                return Some("a user loses a VM before the retention ends".to_owned());
            }
        }
        if let Action::Change {
            vm,
            spec: SpecChange::Start,
            ..
        } = action
            && had.iter().any(|(_, _, held)| *held == index(&vm.name))
        {
            return Some("a VM is started although a user has it".to_owned());
        }
        for pool in 0..POOLS {
            for user in 0..USERS {
                let (old, new) = (
                    before.assignments[pool][user],
                    after.assignments[pool][user],
                );
                if old.uid == new.uid && old.bound && new.bound && new.used < old.used {
                    return Some("the last use of an assignment decreases".to_owned());
                }
            }
        }
        None
    }
}

/// A user who has a VM leaves a session in its memory.
fn note_sessions(objects: &mut Objects) {
    for (pool, user, vm) in objects.holdings() {
        objects.vms[vm].session = (objects.assignments[pool][user].uid, pool as u8);
    }
}
