//! A model of two leaders with stale stores, other programs and a user, in all interleavings. The plan is the controller's own function.
//!
//! Only the leader sends requests. The Lease changes hands between any two of them, and the new leader has its own old store.

use super::{cluster, consumed, count, host, member, planned};
use serde_json::json;
use std::collections::{HashMap, HashSet};

/// Three hosts, the specs of two clusters, and the configurations of their services.
type Objects = [u8; 7];
const NAMES: [&str; 3] = ["a", "b", "c"];
const SPECS: usize = 3;
const SERVICES: usize = 5;

/// A host: 0 or the number of its cluster, and whether it has a consumer. A spec: wanted hosts, and whether they have been complete.
const NUMBER: u8 = 3;
const FLAG: u8 = 4;
const OWNERS: [u8; 2] = [1, 2];
/// A configuration: hosts as bits.
type Set = u8;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Write {
    Claim,
    Release,
    Serve,
}

/// Writes that the leader has decided on and checked: cluster, hosts, and the objects without a change since.
type Task = (usize, Write, Set, u8);

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct World {
    live: Objects,
    /// The hosts in the configurations of the pods of each service.
    pods: [Set; 2],
    /// The store of each leader, and the objects in it that have not changed since.
    stores: [(Objects, u8); 2],
    leader: usize,
    task: Option<Task>,
    /// Further changes of the leader, of a spec by a user, and of hosts by other programs.
    left: [u8; 3],
}

type Broken = Option<&'static str>;

struct Search {
    /// The precondition of writes that is left out: `resourceVersion` of hosts, or `check_current`.
    without: &'static str,
    /// The hosts that join and leave, and whether all roles are complete.
    plans: HashMap<([u8; 4], usize), (Set, Set, bool)>,
}

fn members(objects: &Objects, cluster: usize) -> Set {
    let hosts = (0..3).filter(|n| objects[*n] & NUMBER == OWNERS[cluster]);
    hosts.map(|n| 1 << n).sum()
}

impl World {
    fn refresh(&mut self, object: usize) {
        let (store, current) = &mut self.stores[self.leader];
        (store[object], *current) = (self.live[object], *current | 1 << object);
    }

    fn change(&mut self, object: usize, value: u8) {
        self.live[object] = value;
        let stores = self.stores.iter_mut().map(|(_, current)| current);
        let task = self.task.iter_mut().map(|(.., current)| current);
        stores.chain(task).for_each(|it| *it &= !(1 << object));
    }

    fn broken_rule(&self) -> Broken {
        (0..2).find_map(|cluster| {
            let members = members(&self.live, cluster);
            if (self.live[SERVICES + cluster] | self.pods[cluster]) & !members != 0 {
                return Some("a service names a host without the labels of its cluster");
            }
            (members.count_ones() > 2).then_some("a cluster has more hosts than it has wanted")
        })
    }
}

impl Search {
    fn plan(&mut self, objects: &Objects, of: usize) -> (Set, Set, bool) {
        let spec = objects[SPECS + of];
        let compute = || {
            let mut object = cluster(count(spec & NUMBER), spec & FLAG != 0);
            object.metadata.name = Some(OWNERS[of].to_string());
            let view = |n: usize| {
                let mut change = json!({});
                if objects[n] & FLAG != 0 {
                    change = consumed();
                }
                let owner = objects[n] & NUMBER;
                if owner == 0 {
                    return host(NAMES[n], change);
                }
                let label = "sip.airshipit.org/cluster-name";
                change["metadata"]["labels"][label] = owner.to_string().into();
                member(NAMES[n], "r", change)
            };
            let planned = planned(&object, &[0, 1, 2].map(view));
            let set = |mark: &str| -> Set {
                let has = |n: &usize| planned.contains(&format!("{mark}{}", NAMES[*n]));
                (0..3).filter(has).map(|n| 1 << n).sum()
            };
            (set("+"), set("-"), !planned.contains(['+', ':']))
        };
        let [a, b, c, ..] = *objects;
        let key = ([a, b, c, spec], of);
        *self.plans.entry(key).or_insert_with(compute)
    }

    /// Begins the next write of a reconcile. Nothing, if the check fails: the store is refreshed before.
    fn begin(&mut self, world: &mut World, cluster: usize) {
        let (store, current) = world.stores[world.leader];
        let (joining, leaving, is_complete) = self.plan(&store, cluster);
        let remaining = members(&store, cluster) & !leaving;
        let is_known = current & 1 << (SPECS + cluster) != 0;
        let (write, hosts) = match () {
            () if joining != 0 => (Write::Claim, joining),
            () if remaining != store[SERVICES + cluster] => (Write::Serve, remaining),
            () if leaving != 0 && world.pods[cluster] == remaining => (Write::Release, leaving),
            () => {
                // The report, which has the version of the cluster as a precondition.
                if is_complete && is_known && store[SPECS + cluster] & FLAG == 0 {
                    world.change(SPECS + cluster, store[SPECS + cluster] | FLAG);
                    world.refresh(SPECS + cluster);
                }
                return;
            }
        };
        let is_same = members(&store, cluster) == members(&world.live, cluster);
        if is_known && is_same || self.without == "check_current" {
            world.task = Some((cluster, write, hosts, current));
        }
    }

    /// Sends the next request of the task.
    fn write(&self, world: &mut World, (cluster, write, hosts, current): Task) -> Broken {
        world.task = None;
        if write == Write::Serve {
            world.change(SERVICES + cluster, hosts);
            world.refresh(SERVICES + cluster);
            // The pods with the previous configuration end later.
            world.pods[cluster] |= hosts;
            return None;
        }
        let (host, rest) = (hosts.trailing_zeros() as usize, hosts & (hosts - 1));
        let is_current = current & 1 << host != 0 || self.without == "resourceVersion";
        if rest != 0 && (is_current || write == Write::Claim) {
            world.task = Some((cluster, write, rest, current));
        }
        let before = world.live[host];
        let owner = OWNERS[cluster] * u8::from(write == Write::Claim);
        if is_current {
            world.change(host, before & FLAG | owner);
        }
        // The response, or that of the request after a conflict.
        world.refresh(host);
        let is_foreign = ![0, OWNERS[cluster]].contains(&(before & NUMBER));
        if is_current && is_foreign {
            return Some("a host leaves its cluster because of another one");
        }
        let is_lost = is_current && owner == 0 && before & FLAG != 0;
        is_lost.then_some("a host with a consumer loses its labels")
    }

    /// A step of the leader, of other programs or of a user. It changes nothing if it is not possible.
    fn step(&mut self, world: &mut World, step: usize) -> Broken {
        match (step, world.task) {
            (0..7, _) => world.refresh(step),
            (7..9, _) => world.pods[step - 7] = world.live[SERVICES + step - 7],
            (9..11, None) => self.begin(world, step - 9),
            (11, Some(task)) => return self.write(world, task),
            (12, _) if world.left[0] > 0 => {
                world.left[0] -= 1;
                (world.leader, world.task) = (1 - world.leader, None);
            }
            (13, _) if world.left[1] > 0 => {
                world.left[1] -= 1;
                world.change(SPECS, world.live[SPECS] & FLAG | 1);
            }
            (14..17, _) if world.left[2] > 0 => {
                world.left[2] -= 1;
                world.change(step - 14, world.live[step - 14] ^ FLAG);
            }
            _ => {}
        }
        None
    }

    /// Lets the leader come to rest.
    fn settle(&mut self, mut world: World) -> Broken {
        let mut before = world;
        world.task = None;
        for _ in 0..12 {
            before = world;
            for cluster in [0, 1] {
                for step in (0..7).chain([9 + cluster, 11, 11, 11, 7, 8]) {
                    self.step(&mut world, step);
                }
            }
        }
        let is_partial = |cluster: usize| {
            world.live[SPECS + cluster] & FLAG == 0 && world.live[..3].contains(&OWNERS[cluster])
        };
        match before == world {
            false => Some("the leader does not come to rest"),
            true if (0..2).any(is_partial) => Some("an incomplete first claim keeps a host"),
            true => None,
        }
    }

    /// The number of states with so many further changes, or the first broken rule.
    fn run(without: &'static str, left: [u8; 3]) -> Result<usize, &'static str> {
        let plans = HashMap::new();
        let mut search = Self { without, plans };
        let mut first = World {
            live: [0, 0, 0, 2, 2, 0, 0],
            left,
            ..World::default()
        };
        first.stores = [(first.live, u8::MAX); 2];
        let (mut seen, mut settled) = (HashSet::from([first]), HashSet::new());
        let mut open = vec![first];
        while let Some(world) = open.pop() {
            let is_new = settled.insert((world.live, world.pods));
            if let Some(broken) = is_new.then(|| search.settle(world)).flatten() {
                return Err(broken);
            }
            for step in 0..17 {
                let mut next = world;
                let broken = search.step(&mut next, step);
                if let Some(broken) = broken.or_else(|| next.broken_rule()) {
                    return Err(broken);
                }
                if seen.insert(next) {
                    open.push(next);
                }
            }
        }
        Ok(seen.len())
    }
}

#[test]
fn two_leaders_with_stale_stores_break_no_rule_for_hosts() {
    let states = Search::run("", [1, 1, 1]).unwrap();
    assert!(states > 100_000, "{states}");
    let broken = |without| Search::run(without, [2, 1, 0]).unwrap_err();
    assert!(broken("resourceVersion").contains("because of another one"));
    assert!(broken("check_current").contains("more hosts than it has wanted"));
}
