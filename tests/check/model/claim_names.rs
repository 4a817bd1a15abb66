//! No VM runs on the PVC of another VM: a model of two VMs that generate the same PVC name, one operator with stale stores, the API
//! server, a kubelet, and people. Plan, decision and the owner of the name are the functions of the released program.

use crate::print_result;
use serde_json::json;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use support::observed::observed_without_children;
use vm_operator::api::VirtualMachine;
use vm_operator::controllers::vm::claim_names::{ConflictingVm, claim_name_owner};
use vm_operator::controllers::vm::decide::{Decision, decide};
use vm_operator::controllers::vm::observe::Observed;
use vm_operator::controllers::vm::plan;
use vm_operator::controllers::vm::volumes::RecordedVolume;
use vm_operator::k8s::views::ClaimView;
use vm_operator::settings::Reconciler;

/// The name that both VMs generate.
const CLAIM: &str = "m-block-system-disk";
const NAMES: [&str; 2] = ["m-block", "m"];
const DISKS: [&str; 2] = ["system", "block-system"];

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    IgnoresLabels,
    IgnoresRivals,
    IgnoresPodsOfRivals,
    ReadsNoPvcLive,
    TakesNoTurns,
    KeepsPodsWithoutTheirPvc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Claim {
    uid: u8,
    /// The VM that the labels name.
    label: Option<u8>,
    deleting: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Vm {
    running: bool,
    /// The UID in `status.volumes`.
    record: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pod {
    /// The UID of the PVC that it has mounted.
    mounts: Option<u8>,
    deleting: bool,
}

/// A reconcile between its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Next {
    Read,
    Record,
    Create,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    claim: Option<Claim>,
    vms: [Option<Vm>; 2],
    pods: [Option<Pod>; 2],
    /// The stores of the operator. Its pods are those that it has created itself.
    known_claim: Option<Claim>,
    known_vms: [Option<Vm>; 2],
    next: [Option<Next>; 2],
    uids: u8,
    /// What people may still do.
    deletions: u8,
    claims: u8,
    toggles: u8,
    vm_deletions: u8,
}

type Key = (usize, [Option<Vm>; 2], Option<Claim>, [Option<Pod>; 2]);

struct Model {
    older: usize,
    mutation: Option<Mutation>,
    decided: HashMap<Key, (bool, Decision)>,
}

impl Model {
    fn lacks(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn vm(&self, n: usize, vm: Vm) -> VirtualMachine {
        let created = if n == self.older {
            "2026-01-01T00:00:00Z"
        } else {
            "2026-01-02T00:00:00Z"
        };
        let volumes = vm
            .record
            .map(|uid| json!({"claimName": CLAIM, "uid": uid.to_string()}));
        let state = if vm.running { "Running" } else { "Stopped" };
        let disk = json!({"volumeClaimTemplate": {"metadata": {"name": DISKS[n]}}});
        let name = NAMES[n];
        serde_json::from_value(json!({
            "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine",
            "metadata": {"name": name, "namespace": "ns", "uid": name, "generation": 1, "creationTimestamp": created},
            "spec": {"vm": {"state": state, "disks": [disk]}},
            "status": {"volumes": Vec::from_iter(volumes)},
        }))
        .unwrap()
    }

    fn claim(&self, n: usize, claim: Claim) -> Arc<ClaimView> {
        let owner = claim.label.map(|owner| NAMES[usize::from(owner)]);
        let owner = owner.map(|owner| {
            if self.lacks(Mutation::IgnoresLabels) {
                NAMES[n]
            } else {
                owner
            }
        });
        let labels = owner.map(|owner| json!({"app.kubernetes.io/name": "vm-runner", "app.kubernetes.io/instance": owner}));
        let deleted = claim.deleting.then_some("2026-01-03T00:00:00Z");
        let metadata = json!({"name": CLAIM, "uid": claim.uid.to_string(), "labels": labels, "deletionTimestamp": deleted});
        Arc::new(
            serde_json::from_value(json!({"metadata": metadata, "status": {"phase": "Bound"}}))
                .unwrap(),
        )
    }

    fn observe(&self, n: usize, world: &World) -> Option<Observed> {
        let vm = self.vm(n, world.known_vms[n]?);
        let present = world.known_claim.map(|claim| self.claim(n, claim));
        let other = 1 - n;
        let rival = world.known_vms[other].map(|it| self.vm(other, it));
        let has_pod =
            |n: usize| world.pods[n].is_some() && !self.lacks(Mutation::IgnoresPodsOfRivals);
        let is_conflicting =
            (rival.is_some() || has_pod(other)) && !self.lacks(Mutation::IgnoresRivals);
        let first = is_conflicting.then(|| {
            let conflicting = [(Some(&vm), n), (rival.as_ref(), other)];
            let conflicting = conflicting.map(|(vm, n)| ConflictingVm {
                name: NAMES[n],
                vm,
                has_pod: has_pod(n),
            });
            let first = claim_name_owner(CLAIM, &conflicting, present.as_deref()).unwrap();
            (first != NAMES[n]).then(|| first.to_owned())
        });
        let volumes = vm.status.clone().unwrap().volumes.into_iter();
        let recorded = volumes.map(|volume| RecordedVolume {
            volume,
            present: present.clone(),
            evidence: None,
        });
        let pod = world.pods[n].map(|pod| {
            let phase = if pod.mounts.is_some() { "Running" } else { "Pending" };
            let owner = json!([{"apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine", "name": NAMES[n], "uid": NAMES[n]}]);
            let deleted = pod.deleting.then_some("2026-01-03T00:00:00Z");
            let metadata = json!({"name": NAMES[n], "uid": "pod", "ownerReferences": owner, "deletionTimestamp": deleted});
            Arc::new(serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase}})).unwrap())
        });
        Some(Observed {
            claims: present
                .clone()
                .map(|present| (CLAIM.to_owned(), present))
                .into_iter()
                .collect(),
            recorded: recorded.collect(),
            name_conflicts: first
                .map(|first| (CLAIM.to_owned(), first))
                .into_iter()
                .collect::<BTreeMap<_, _>>(),
            pod,
            deleted_by_operator: true,
            ..observed_without_children(vm)
        })
    }

    /// Whether the VM has a plan, and the decision.
    fn decide(&mut self, n: usize, world: &World) -> Option<(bool, Decision)> {
        let key = (n, world.known_vms, world.known_claim, world.pods);
        if let Some(decided) = self.decided.get(&key) {
            return Some(decided.clone());
        }
        let observed = self.observe(n, world)?;
        let has_plan = plan::plan(&observed, &Reconciler::default()).is_ok();
        let decided = (has_plan, decide(&observed, has_plan));
        self.decided.insert(key, decided.clone());
        Some(decided)
    }

    /// The observation and the creation of a missing PVC.
    fn reconcile(&mut self, n: usize, mut world: World) -> Option<World> {
        let is_others_turn = world.next[1 - n].is_some() && !self.lacks(Mutation::TakesNoTurns);
        if world.next[n].is_some() || is_others_turn {
            return None;
        }
        let (has_plan, decision) = self.decide(n, &world)?;
        if matches!(decision, Decision::Delete { .. }) {
            let pod = world.pods[n].as_mut()?;
            let is_kept = pod.mounts.is_none() && world.known_vms[n]?.running;
            pod.deleting |= !(is_kept && self.lacks(Mutation::KeepsPodsWithoutTheirPvc));
        }
        if has_plan && world.known_claim.is_none() {
            if world.claim.is_none() {
                world.uids += 1;
                let label = u8::try_from(n).ok();
                world.claim = Some(Claim {
                    uid: world.uids,
                    label,
                    deleting: false,
                });
            }
            world.known_claim = world.claim;
            if !is_own(n, world.claim?) {
                return Some(world);
            }
        }
        if decision == Decision::Create && has_plan {
            world.next[n] = Some(Next::Read);
        }
        Some(world)
    }

    /// The next request of a reconcile.
    fn continued(&self, n: usize, mut world: World) -> Option<World> {
        let next = world.next[n].take()?;
        world.next[n] = match next {
            Next::Read => {
                if !self.lacks(Mutation::ReadsNoPvcLive) {
                    world.known_claim = world.claim;
                }
                let usable = |claim: Claim| is_own(n, claim) && !claim.deleting;
                world
                    .known_claim
                    .is_some_and(usable)
                    .then_some(Next::Record)
            }
            // The write has the version of the VM as a precondition.
            Next::Record if world.vms[n] == world.known_vms[n] => {
                let record = world.known_claim.map(|claim| claim.uid);
                world.vms[n] = world.vms[n].map(|vm| Vm { record, ..vm });
                world.known_vms[n] = world.vms[n];
                world.vms[n].map(|_| Next::Create)
            }
            Next::Record => None,
            Next::Create => {
                world.pods[n].get_or_insert(Pod {
                    mounts: None,
                    deleting: world.vms[n].is_none(),
                });
                None
            }
        };
        Some(world)
    }

    /// Steps that need no person.
    fn own_steps(&mut self, world: World) -> Vec<World> {
        let mut steps = vec![World {
            known_claim: world.claim,
            ..world
        }];
        for n in 0..2 {
            let mut known = world;
            known.known_vms[n] = world.vms[n];
            steps.push(known);
            steps.extend(self.reconcile(n, world));
            steps.extend(self.continued(n, world));
            let Some(pod) = world.pods[n] else { continue };
            let mut changed = world;
            changed.pods[n] = None;
            let mounted = world
                .claim
                .filter(|claim| !claim.deleting)
                .map(|claim| claim.uid);
            if !pod.deleting && pod.mounts.is_none() && mounted.is_some() {
                changed.pods[n] = Some(Pod {
                    mounts: mounted,
                    ..pod
                });
            }
            if pod.deleting || changed.pods[n].is_some() {
                steps.push(changed);
            }
        }
        // A pod without a node does not protect its PVC.
        let is_used = |claim: Claim| {
            world
                .pods
                .iter()
                .flatten()
                .any(|pod| pod.mounts == Some(claim.uid))
        };
        if world
            .claim
            .is_some_and(|claim| claim.deleting && !is_used(claim))
        {
            steps.push(World {
                claim: None,
                ..world
            });
        }
        steps.retain(|step| *step != world);
        steps
    }

    fn steps_of_people(world: World) -> Vec<World> {
        let mut steps = Vec::new();
        if let Some(claim) = world
            .claim
            .filter(|claim| !claim.deleting && world.deletions > 0)
        {
            let claim = Some(Claim {
                deleting: true,
                ..claim
            });
            steps.push(World {
                claim,
                deletions: world.deletions - 1,
                ..world
            });
        }
        let is_quiet = world.pods == [None; 2] && world.next == [None; 2];
        if world.claim.is_none() && is_quiet && world.claims > 0 {
            for label in [None, Some(0), Some(1)] {
                let claim = Some(Claim {
                    uid: world.uids + 1,
                    label,
                    deleting: false,
                });
                steps.push(World {
                    claim,
                    uids: world.uids + 1,
                    claims: world.claims - 1,
                    ..world
                });
            }
        }
        for n in 0..2 {
            let Some(vm) = world.vms[n] else { continue };
            let mut changed = world;
            if world.toggles > 0 {
                changed.toggles -= 1;
                changed.vms[n] = Some(Vm {
                    running: !vm.running,
                    ..vm
                });
                steps.push(changed);
            }
            if world.vm_deletions > 0 {
                changed = World {
                    vm_deletions: world.vm_deletions - 1,
                    ..world
                };
                changed.vms[n] = None;
                changed.pods[n] = world.pods[n].map(|pod| Pod {
                    deleting: true,
                    ..pod
                });
                steps.push(changed);
            }
        }
        steps
    }

    /// A violation in this world. `is_at_rest` is whether only people can change it.
    fn violation(&mut self, world: &World, is_at_rest: bool) -> Option<&'static str> {
        let mounts = |n: usize| world.pods[n].and_then(|pod| pod.mounts);
        for n in 0..2 {
            let of_mounted = world.claim.filter(|claim| Some(claim.uid) == mounts(n));
            if of_mounted.is_some_and(|claim| !is_own(n, claim)) {
                return Some("a VM runs on the PVC of another VM");
            }
        }
        if mounts(0).is_some() && mounts(0) == mounts(1) {
            return Some("two VMs run on one PVC");
        }
        for n in 0..2 {
            let (Some(vm), true) = (world.vms[n], is_at_rest) else {
                continue;
            };
            let waits = world.pods[n].is_some_and(|pod| pod.mounts.is_none());
            let (has_plan, _) = self.decide(n, world)?;
            if waits || vm.running && has_plan && world.pods[n].is_none() {
                return Some("a VM waits forever");
            }
        }
        None
    }

    /// The number of worlds, and the first violation with the worlds that lead to it.
    fn explore(&mut self) -> (usize, Option<(&'static str, Vec<World>)>) {
        let vms = [Some(Vm {
            running: true,
            record: None,
        }); 2];
        let first = World {
            claim: None,
            vms,
            pods: [None; 2],
            known_claim: None,
            known_vms: vms,
            next: [None; 2],
            uids: 0,
            deletions: 1,
            claims: 1,
            toggles: 1,
            vm_deletions: 1,
        };
        let (mut before, mut queue) = (HashMap::new(), VecDeque::from([first]));
        let mut seen = HashSet::from([first]);
        while let Some(world) = queue.pop_front() {
            let mut steps = self.own_steps(world);
            if let Some(what) = self.violation(&world, steps.is_empty()) {
                let mut trace = vec![world];
                while let Some(world) = before.get(trace.last().unwrap()) {
                    trace.push(*world);
                }
                trace.reverse();
                return (seen.len(), Some((what, trace)));
            }
            steps.extend(Self::steps_of_people(world));
            for step in steps {
                if seen.insert(step) {
                    before.insert(step, world);
                    queue.push_back(step);
                }
            }
        }
        (seen.len(), None)
    }
}

fn is_own(n: usize, claim: Claim) -> bool {
    claim.label.is_none_or(|label| usize::from(label) == n)
}

fn explore(older: usize, mutation: Option<Mutation>) -> Option<(&'static str, Vec<World>)> {
    let decided = HashMap::new();
    let (worlds, found) = Model {
        older,
        mutation,
        decided,
    }
    .explore();
    print_result(&format!(
        "older {}, {mutation:?}: {worlds} worlds",
        NAMES[older]
    ));
    found
}

#[test]
fn no_vm_runs_on_the_claim_of_another_vm() {
    for older in 0..2 {
        if let Some((what, trace)) = explore(older, None) {
            panic!("{what}: {trace:#?}");
        }
    }
}

#[test]
fn each_rule_about_claim_names_that_is_left_out_is_found() {
    use Mutation as M;
    for mutation in [
        M::IgnoresLabels,
        M::IgnoresRivals,
        M::IgnoresPodsOfRivals,
        M::ReadsNoPvcLive,
        M::TakesNoTurns,
        M::KeepsPodsWithoutTheirPvc,
    ] {
        let found = (0..2).find_map(|older| explore(older, Some(mutation)));
        let (what, _) = found.unwrap_or_else(|| panic!("{mutation:?} is not found"));
        println!("{mutation:?}: {what}");
    }
}
