//! Explores all reachable states breadth first, so that the first trace to a state is a shortest one.

use crate::model::operator::Decider;
use crate::model::step::Step;
use crate::model::steps::{Next, Steps};
use crate::model::world::{Local, Phase, Setting, World};
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

/// A fast hash without protection against chosen input.
#[derive(Default)]
struct Quick(u64);

impl Hasher for Quick {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }

    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as u64);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
}

type Build = BuildHasherDefault<Quick>;

/// A violation and the trace to it.
#[derive(Debug)]
pub struct Finding {
    pub what: String,
    pub trace: Vec<Step>,
}

/// The result of an exploration.
pub struct Explored {
    pub worlds: usize,
    pub steps: usize,
    /// The first violation.
    pub wrong: Option<Finding>,
    /// The first time that two QEMUs use the disk after a pod was removed by force from a node that still runs it.
    pub forced: Option<Finding>,
}

/// The maximum number of steps until a state is stable without further accidents.
const REST: usize = 300;

pub struct Explorer<'a> {
    setting: &'a Setting,
    decider: Decider,
    /// The states, each with its predecessor.
    worlds: Vec<(World, u32, Option<Step>)>,
    seen: HashSet<World, Build>,
    /// States from which the goal is reached.
    well: HashSet<World, Build>,
    /// Whether the goal is checked.
    looks_ahead: bool,
}

impl<'a> Explorer<'a> {
    pub fn new(setting: &'a Setting, decider: Decider) -> Self {
        Self {
            setting,
            decider,
            worlds: Vec::new(),
            seen: HashSet::default(),
            well: HashSet::default(),
            looks_ahead: true,
        }
    }

    /// An exploration that checks each state only, and not whether the goal is reached from it.
    pub fn of_worlds_alone(setting: &'a Setting, decider: Decider) -> Self {
        Self {
            looks_ahead: false,
            ..Self::new(setting, decider)
        }
    }

    /// Explores until the first violation.
    pub fn explore(mut self) -> Explored {
        let first = World::new(self.setting).plain();
        self.worlds.push((first, 0, None));
        self.seen.insert(first.key(self.setting.operators));
        let (mut at, mut steps, mut forced) = (0, 0, None);
        while at < self.worlds.len() {
            let world = self.worlds[at].0;
            if self.looks_ahead
                && let Err((what, then)) = self.check_goal(world)
            {
                let mut trace = self.trace(at);
                trace.extend(then);
                return self.result(steps, Some(Finding { what, trace }), forced);
            }
            let next = Steps {
                setting: self.setting,
                decider: &mut self.decider,
            }
            .all(&world);
            for Next { step, world, wrong } in next {
                steps += 1;
                let found = |what: &str, this: &Self| {
                    let mut trace = this.trace(at);
                    trace.push(step);
                    Finding {
                        what: what.to_owned(),
                        trace,
                    }
                };
                if let Some(wrong) = wrong {
                    let found = found(wrong, &self);
                    return self.result(steps, Some(found), forced);
                }
                match world.qemus().as_slice() {
                    [] | [_] => {}
                    [a, b] if world.forced && self.setting.attaches_twice && a != b => {
                        forced.get_or_insert_with(|| found("two QEMUs have the disk", &self));
                        continue;
                    }
                    _ => {
                        let found = found("two QEMUs have the disk", &self);
                        return self.result(steps, Some(found), forced);
                    }
                }
                if self.seen.insert(world.key(self.setting.operators)) {
                    self.worlds
                        .push((world, u32::try_from(at).unwrap(), Some(step)));
                }
            }
            at += 1;
        }
        self.result(steps, None, forced)
    }

    fn result(self, steps: usize, wrong: Option<Finding>, forced: Option<Finding>) -> Explored {
        Explored {
            worlds: self.worlds.len(),
            steps,
            wrong,
            forced,
        }
    }

    fn trace(&self, mut at: usize) -> Vec<Step> {
        let mut trace = Vec::new();
        while let (_, before, Some(step)) = self.worlds[at] {
            trace.push(step);
            at = before as usize;
        }
        trace.reverse();
        trace
    }

    /// Checks that without further accidents the VM reaches the user's goal and then remains there.
    fn check_goal(&mut self, from: World) -> Result<(), (String, Vec<Step>)> {
        // Beyond the explored pods there must be room for those that follow.
        let setting = Setting {
            pods: self.setting.pods + 3,
            ..*self.setting
        };
        let (mut world, mut way, mut trace) = (from, Vec::new(), Vec::new());
        loop {
            let key = world.key(setting.operators);
            if self.well.contains(&key) {
                break;
            }
            if way.len() > REST {
                return Err(("it never rests".to_owned(), trace));
            }
            way.push(key);
            match (Steps {
                setting: &setting,
                decider: &mut self.decider,
            })
            .recovery_step(&world)
            {
                Some(next) => {
                    trace.push(next.step);
                    if let Some(wrong) = next.wrong {
                        return Err((wrong.to_owned(), trace));
                    }
                    // After a pod was removed by force from a node that runs it, there may be two QEMUs for some time.
                    if next.world.qemus().len() > 1 && !next.world.forced {
                        return Err(("two QEMUs have the disk".to_owned(), trace));
                    }
                    world = next.world;
                }
                None => match goal_difference(&world, &setting) {
                    Some(what) => return Err((what, trace)),
                    None => break,
                },
            }
        }
        self.well.extend(way);
        Ok(())
    }
}

/// The differences between a stable state and the user's goal.
fn goal_difference(world: &World, setting: &Setting) -> Option<String> {
    let qemus = world.qemus().len();
    let Some(vm) = world.vm.filter(|vm| vm.running && vm.valid) else {
        let may_run = world.vm.is_some_and(|vm| vm.running);
        let left = world.pod.is_some() || qemus > 0;
        return (left && !may_run).then(|| "a VM that should not run is left running".to_owned());
    };
    let Some(pod) = world.pod else {
        return Some("a VM that should run has no pod".to_owned());
    };
    if setting.taken_once_changed && vm.made_of == 0 {
        // It waits for its user, and reports that.
        return None;
    }
    let Some(node) = pod.node.map(usize::from) else {
        return Some("a VM that should run does not".to_owned());
    };
    let runs = pod.owner == vm.uid
        && pod.phase == Phase::Running
        && world.local(node, pod.uid) == Local::Up;
    if !runs || qemus != 1 {
        Some("a VM that should run does not".to_owned())
    } else if pod.restart < vm.restart || vm.reported_restart != vm.restart {
        Some("a requested restart is not carried out".to_owned())
    } else {
        None
    }
}
