//! The steps of controllers, users and accidents, and the search.

use super::super::world::{AssignmentS, POOLS, USERS, VMS};
use super::{Budget, Controller, Explorer, Finding, Next, Pending, World, is_checked};
use std::collections::HashSet;
use vm_operator::controllers::pool::action::Action;

impl Explorer<'_> {
    /// All next worlds.
    fn steps(&mut self, world: &World) -> Vec<Next> {
        let mut next = Vec::new();
        for controller in 0..world.controllers.len() {
            self.steps_of_controller(world, controller, &mut next);
        }
        self.steps_of_others(world, &mut next);
        next
    }

    fn steps_of_controller(&mut self, world: &World, at: usize, next: &mut Vec<Next>) {
        let known = world.controllers[at].known;
        let mut refresh = |name: &str, read: fn(&mut super::Objects, &super::Objects)| {
            let mut world = world.clone();
            read(&mut world.controllers[at].known, &world.objects);
            if world.controllers[at].known != known {
                next.push((format!("controller {at} reads {name}"), world, None));
            }
        };
        refresh("VMs", |known, objects| known.vms = objects.vms);
        refresh("assignments", |known, objects| {
            known.assignments = objects.assignments
        });
        refresh("pools", |known, objects| known.pools = objects.pools);
        let Some(pending) = world.controllers[at].pending else {
            for (pool, action) in self.due(world, at) {
                let step = format!("controller {at} decides for pool{pool}: {}", brief(&action));
                let is_checked = is_checked(&action);
                let pending = Pending {
                    pool,
                    action,
                    is_checked,
                };
                let mut world = world.clone();
                world.controllers[at].pending = Some(self.pending_index(pending));
                next.push((step, world, None));
            }
            return;
        };
        let pending = self.pending[pending].clone();
        if let (false, Action::Free { check, .. } | Action::Delete { check, .. }) =
            (pending.is_checked, &pending.action)
        {
            let mut world = world.clone();
            let confirmed = world.objects.confirms(check);
            let checked = Pending {
                is_checked: true,
                ..pending.clone()
            };
            world.controllers[at].pending = confirmed.then(|| self.pending_index(checked));
            next.push((format!("controller {at} checks: {confirmed}"), world, None));
        } else {
            let mut written = world.clone();
            let wrong = self.write(&mut written, at, false);
            next.push((format!("controller {at} writes"), written, wrong));
            if world.left.lost > 0 {
                let mut lost = world.clone();
                lost.left.lost -= 1;
                let wrong = self.write(&mut lost, at, true);
                next.push((
                    format!("controller {at} writes, the answer is lost"),
                    lost,
                    wrong,
                ));
            }
        }
        if world.left.crashes > 0 {
            let mut world = world.clone();
            world.left.crashes -= 1;
            world.controllers[at] = Controller {
                known: world.objects,
                pending: None,
            };
            next.push((format!("controller {at} crashes"), world, None));
        }
    }

    fn steps_of_others(&mut self, world: &World, next: &mut Vec<Next>) {
        for pool in 0..POOLS {
            for user in 0..USERS {
                let assignment = world.objects.assignments[pool][user];
                if assignment.uid == 0 && world.objects.pools[pool] && world.left.assignments > 0 {
                    let mut world = world.clone();
                    world.left.assignments -= 1;
                    world.objects.assignments[pool][user] = AssignmentS {
                        uid: world.next_uid,
                        version: 1,
                        created: world.now,
                        ..AssignmentS::default()
                    };
                    world.next_uid += 1;
                    self.outdate(&mut world, None, Some((pool, user)));
                    next.push((
                        format!("user{user} asks for a VM of pool{pool}"),
                        world,
                        None,
                    ));
                }
                let may_delete = world.left.deletions > 0 || !world.objects.pools[pool];
                if assignment.uid != 0 && may_delete {
                    let mut world = world.clone();
                    world.left.deletions -= u8::from(world.objects.pools[pool]);
                    world.objects.assignments[pool][user] = AssignmentS::default();
                    self.outdate(&mut world, None, Some((pool, user)));
                    next.push((
                        format!("the assignment of user{user} in pool{pool} is deleted"),
                        world,
                        None,
                    ));
                }
            }
            if world.objects.pools[pool] && world.left.pool_deletions > 0 {
                let mut world = world.clone();
                world.left.pool_deletions -= 1;
                world.objects.pools[pool] = false;
                next.push((format!("pool{pool} is deleted"), world, None));
            }
        }
        if world.left.ticks > 0 {
            let mut world = world.clone();
            world.left.ticks -= 1;
            world.now += 1;
            next.push(("time passes".to_owned(), world, None));
        }
        for vm in 0..VMS {
            self.steps_of_vm(world, vm, next);
        }
    }

    fn steps_of_vm(&mut self, world: &World, vm: usize, next: &mut Vec<Next>) {
        let state = world.objects.vms[vm];
        let is_held = world
            .objects
            .holdings()
            .iter()
            .any(|(_, _, held)| *held == vm);
        let mut push = |step: &str, this: &mut Self, change: &dyn Fn(&mut World)| {
            let mut world = world.clone();
            change(&mut world);
            this.outdate(&mut world, Some(vm), None);
            next.push((format!("vm{vm}: {step}"), world, None));
        };
        if state.uid > 0 && state.connected {
            push("the console is disconnected", self, &|world| {
                world.objects.vms[vm].connected = false;
                world.objects.vms[vm].changed = world.now;
            });
        } else if is_held && world.left.consoles > 0 {
            push("a console is connected", self, &|world| {
                world.left.consoles -= 1;
                world.objects.vms[vm].connected = true;
                world.objects.vms[vm].changed = world.now;
            });
        }
        if state.restarting {
            push("the restart is complete", self, &|world| {
                world.objects.vms[vm].restarting = false;
                world.objects.vms[vm].session = (0, 0);
            });
        }
        if is_held && state.runs && world.left.stops > 0 {
            push("the user stops it", self, &|world| {
                world.left.stops -= 1;
                world.objects.vms[vm].runs = false;
                world.objects.vms[vm].session = (0, 0);
            });
        }
        if state.uid > 0 && world.left.vm_deletions > 0 {
            push("it is deleted", self, &|world| {
                world.left.vm_deletions -= 1;
                world.objects.vms[vm] = Default::default();
            });
        }
    }

    /// Without accidents, the controllers come to rest in a state that satisfies all users as far as possible.
    fn rests(&mut self, from: &World) -> Result<(), (String, Vec<String>)> {
        let mut world = from.clone();
        let mut trace = Vec::new();
        world.left = Budget::default();
        world.clocks_agree = true;
        let mut path = Vec::new();
        for round in 0..2 {
            for _ in 0..120 {
                if self.well.contains(&world) {
                    self.well.extend(path);
                    return Ok(());
                }
                path.push(world.clone());
                match self.recovery_step(&world) {
                    None => break,
                    Some((step, next, wrong)) => {
                        trace.push(step);
                        if let Some(wrong) = wrong {
                            return Err((wrong, trace));
                        }
                        world = next;
                    }
                }
            }
            if let Some((step, ..)) = self.recovery_step(&world) {
                trace.push(step);
                return Err(("the controllers never rest".to_owned(), trace));
            }
            if round == 0 {
                world.now += 20;
                trace.push("much time passes".to_owned());
            }
        }
        if let Some(what) = self.goal_difference(&world) {
            return Err((what, trace));
        }
        self.well.extend(path);
        Ok(())
    }

    fn recovery_step(&mut self, world: &World) -> Option<Next> {
        let steps = self.steps(world);
        // Users and other components first, then the stores, then the writes.
        let is_of_other = |step: &str| !step.starts_with("controller");
        let other = steps.iter().find(|(step, ..)| is_of_other(step));
        let pending = |step: &str| step.contains("writes") || step.contains("checks");
        let written = steps.iter().find(|(step, ..)| pending(step));
        let read = steps.iter().find(|(step, ..)| step.contains("reads"));
        other.or(read).or(written).or(steps.first()).cloned()
    }

    fn goal_difference(&self, world: &World) -> Option<String> {
        let objects = &world.objects;
        let holdings = objects.holdings();
        for pool in 0..POOLS {
            for user in 0..USERS {
                let assignment = objects.assignments[pool][user];
                let has_vm = holdings
                    .iter()
                    .any(|(of, holder, _)| (*of, *holder) == (pool, user));
                if assignment.bound && !has_vm {
                    return Some("an assignment without its VM".to_owned());
                }
                let is_free = |vm: usize| {
                    let state = objects.vms[vm];
                    let is_member = self.setting.rules[pool].members[vm] && state.uid > 0;
                    // All retentions have ended.
                    is_member && !state.connected
                };
                if assignment.uid > 0
                    && !has_vm
                    && (0..VMS).any(is_free)
                    && holdings.len() < self.setting.vms
                {
                    let unused = (0..VMS).any(|vm| is_free(vm) && objects.vms[vm].held.is_none());
                    if unused {
                        return Some("a user waits although a VM is free".to_owned());
                    }
                }
            }
        }
        for vm in 0..VMS {
            let Some(held) = objects.vms[vm].held.filter(|_| objects.vms[vm].uid > 0) else {
                continue;
            };
            let is_known = holdings.iter().any(|(_, _, known)| *known == vm);
            // The controller of VMs without a pool is not part of this model.
            if !is_known && objects.pools[usize::from(held.pool)] {
                return Some("a VM is assigned without an assignment".to_owned());
            }
        }
        None
    }

    /// Explores until the first violation. Returns the number of worlds.
    pub fn explore(mut self, looks_ahead: bool) -> (usize, Option<Finding>) {
        let first = self.first();
        let mut seen = HashSet::from([first.clone()]);
        let mut worlds = vec![(first, 0_usize, String::new())];
        let mut at = 0;
        while at < worlds.len() {
            let world = worlds[at].0.clone();
            let trace = |worlds: &Vec<(World, usize, String)>, mut at: usize| {
                let mut trace = Vec::new();
                while at > 0 {
                    trace.push(worlds[at].2.clone());
                    at = worlds[at].1;
                }
                trace.reverse();
                trace
            };
            if looks_ahead && let Err((what, then)) = self.rests(&world) {
                let mut trace = trace(&worlds, at);
                trace.push("--- from here without accidents:".to_owned());
                trace.extend(then);
                return (worlds.len(), Some(Finding { what, trace }));
            }
            for (step, next, wrong) in self.steps(&world) {
                if let Some(what) = wrong {
                    let mut trace = trace(&worlds, at);
                    trace.push(step);
                    return (worlds.len(), Some(Finding { what, trace }));
                }
                if seen.insert(next.clone()) {
                    worlds.push((next, at, step));
                }
            }
            at += 1;
        }
        (worlds.len(), None)
    }
}

/// A decided action in a trace.
fn brief(action: &Action) -> String {
    match action {
        Action::Create { user } => format!("create the assignment of {user}"),
        Action::Own { assignment } => format!("own {}", assignment.name),
        Action::Report {
            assignment, status, ..
        } => format!(
            "report {}: {:?}, bound {}",
            assignment.name,
            status.vm.as_ref().map(|vm| &vm.name),
            status.conditions[0].status
        ),
        Action::Assign { vm, held } => format!("assign {} to {}", vm.name, held.user),
        Action::Change { vm, spec, .. } => format!("{spec:?} {}", vm.name),
        Action::Free { vm, why, .. } => format!("free {} ({})", vm.name, why.as_str()),
        Action::Delete {
            assignment, why, ..
        } => format!("delete {} ({})", assignment.name, why.as_str()),
    }
}
