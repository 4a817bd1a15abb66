//! Events outside the operator's control: of operators, nodes, the pod, and people.

use crate::model::step::Step;
use crate::model::world::{Answer, Doing, Local, Past, Phase, Pod, Vm, World};

/// Takes one from a budget. Returns whether there was one.
fn spend(left: &mut u8) -> Option<()> {
    *left = left.checked_sub(1)?;
    Some(())
}

fn holds(condition: bool) -> Option<()> {
    condition.then_some(())
}

/// External events of an operator.
pub fn apply_operator_step(w: &mut World, step: Step) -> Option<()> {
    match step {
        Step::GivesUpItsRequest(n) => {
            spend(&mut w.left.given_up)?;
            let me = &mut w.operators[n];
            match me.doing {
                Doing::Asked { request, .. } if me.late.is_none() => me.late = Some(request),
                Doing::Answered { .. } => {}
                Doing::Asked { .. } | Doing::Nothing => return None,
            }
            me.doing = Doing::Nothing;
        }
        Step::IsToldOfTheVm(n) => {
            holds(w.operators[n].vm != w.vm)?;
            w.operators[n].vm = w.vm;
        }
        Step::IsToldOfThePod(n) => {
            let newest = w.newest();
            let me = &mut w.operators[n];
            holds(me.reported != newest)?;
            me.gone = w.pod.map_or(w.pods_made, |pod| pod.uid - 1);
            (me.pod, me.reported) = (w.pod, newest);
        }
        Step::ListsAnew(n) => {
            spend(&mut w.left.lists)?;
            list(w, n);
        }
        Step::IsKilledAndStarts(n) => {
            spend(&mut w.left.kills)?;
            let me = &mut w.operators[n];
            if let Doing::Asked { request, .. } = me.doing {
                me.late = me.late.or(Some(request));
            }
            (me.doing, me.gone, me.made, me.deleted) = (Doing::Nothing, 0, 0, 0);
            list(w, n);
        }
        _ => return None,
    }
    Some(())
}

fn list(w: &mut World, n: usize) {
    let newest = w.newest();
    let me = &mut w.operators[n];
    (me.vm, me.pod, me.reported) = (w.vm, w.pod, newest);
    match &mut me.doing {
        Doing::Asked { before_list, .. }
        | Doing::Answered {
            answer: Answer::Pod { before_list, .. },
            ..
        } => {
            *before_list = true;
        }
        Doing::Answered {
            answer: Answer::Vm(_),
            ..
        }
        | Doing::Nothing => {}
    }
}

/// Sets the deletion timestamp of a pod. A pod that no node runs is removed.
pub fn delete(w: &mut World, by_force: bool) {
    match w.pod {
        Some(pod) if by_force || pod.node.is_none() || pod.phase.has_ended() => w.pod = None,
        Some(pod) if !pod.ending => w.change_pod(|pod| pod.ending = true),
        _ => {}
    }
}

/// Events of nodes, the pod, and people.
pub fn apply_external_step(w: &mut World, step: Step) -> Option<()> {
    match step {
        Step::BindsThePodTo(node) => {
            let pod = w.pod?;
            holds(pod.node.is_none() && !pod.ending && w.nodes[node].linked)?;
            w.change_pod(|pod| pod.node = u8::try_from(node).ok());
        }
        Step::EvictsThePod => {
            let pod = w.pod.filter(|pod| !pod.ending)?;
            holds(
                pod.node
                    .is_some_and(|node| !w.nodes[usize::from(node)].linked),
            )?;
            delete(w, false);
        }
        Step::CollectsThePodOfAGoneVm => {
            let pod = w.pod.filter(|pod| !pod.ending)?;
            holds(w.vm.is_none_or(|vm| vm.uid != pod.owner))?;
            delete(w, false);
        }
        Step::FetchesTheImage => {
            holds(!w.image)?;
            w.image = true;
        }
        step => return apply_node_step(w, step),
    }
    Some(())
}

fn apply_node_step(w: &mut World, step: Step) -> Option<()> {
    let on = |node: usize| move |pod: &Pod| pod.node.map(usize::from) == Some(node);
    match step {
        Step::SeesThePod(node) => {
            let pod = w
                .pod
                .filter(on(node))
                .filter(|pod| !pod.ending && !pod.phase.has_ended())?;
            holds(w.nodes[node].linked && w.local(node, pod.uid) == Local::Nothing)?;
            w.set_local(node, pod.uid, Local::Known);
        }
        Step::TellsThePodsState(node) => {
            let pod = w
                .pod
                .filter(on(node))
                .filter(|pod| !pod.phase.has_ended())?;
            holds(w.nodes[node].linked)?;
            let phase = match w.local(node, pod.uid) {
                Local::Up => Phase::Running,
                Local::Dead => Phase::Ended,
                Local::PoweredOff => Phase::PoweredOff,
                Local::Nothing | Local::Known => return None,
            };
            holds(pod.phase != phase)?;
            w.change_pod(|pod| pod.phase = phase);
        }
        Step::EndsQemu { node, pod } => {
            holds(
                w.nodes[node].linked && w.pod.is_none_or(|found| found.uid != pod || found.ending),
            )?;
            w.set_local(node, pod, Local::Dead);
        }
        Step::RemovesThePod(node) => {
            let pod = w.pod.filter(on(node)).filter(|pod| pod.ending)?;
            let runs = matches!(w.local(node, pod.uid), Local::Up | Local::Known);
            holds(w.nodes[node].linked && !runs)?;
            w.pod = None;
        }
        Step::QemuCrashes { node, pod } => {
            spend(&mut w.left.crashes)?;
            w.set_local(node, pod, Local::Dead);
        }
        Step::GuestPowersOff { node, pod } => {
            spend(&mut w.left.power_offs)?;
            w.set_local(node, pod, Local::PoweredOff);
        }
        Step::CompletesTheImport { node, pod } => {
            w.filled = true;
            w.set_local(node, pod, Local::PoweredOff);
        }
        Step::LosesItsLink(node) => {
            holds(w.nodes[node].linked)?;
            spend(&mut w.left.losses)?;
            w.nodes[node].linked = false;
        }
        Step::GetsItsLinkBack(node) => {
            holds(!w.nodes[node].linked)?;
            w.nodes[node].linked = true;
        }
        Step::LosesItsPowerForAMoment(node) => {
            holds(w.nodes[node].pods.contains(&Local::Up))?;
            spend(&mut w.left.outages)?;
            w.nodes[node]
                .pods
                .iter_mut()
                .filter(|pod| **pod == Local::Up)
                .for_each(|pod| *pod = Local::Dead);
        }
        step => return apply_people_step(w, step),
    }
    Some(())
}

fn apply_people_step(w: &mut World, step: Step) -> Option<()> {
    match step {
        Step::UserStopsOrStartsTheVm => {
            w.vm?;
            spend(&mut w.left.toggles)?;
            w.change_vm(|vm| vm.running = !vm.running);
        }
        Step::UserAsksForARestart => {
            w.vm?;
            spend(&mut w.left.restarts)?;
            w.change_vm(|vm| vm.restart += 1);
        }
        Step::UserDeletesTheVm => {
            w.vm?;
            spend(&mut w.left.replacements)?;
            w.vm = None;
        }
        Step::UserMakesAVmOfTheSameName => {
            holds(w.vm.is_none())?;
            w.vms_made += 1;
            let uid = w.vms_made;
            w.vm = Some(Vm {
                uid,
                version: 1,
                running: true,
                valid: true,
                restart: 0,
                reported_restart: 0,
                past: Past::default(),
                made_of: 0,
                imported: false,
            });
        }
        Step::UserSpoilsOrMendsTheSpec => {
            w.vm?;
            spend(&mut w.left.spoils)?;
            w.change_vm(|vm| vm.valid = !vm.valid);
        }
        Step::UserChangesWhatThePodIsMadeOf => {
            w.vm?;
            spend(&mut w.left.changes)?;
            w.change_vm(|vm| vm.made_of += 1);
        }
        Step::SomebodyDeletesThePod => {
            w.pod.filter(|pod| !pod.ending)?;
            spend(&mut w.left.deletions)?;
            delete(w, false);
        }
        Step::AdministratorRemovesThePodByForce => {
            w.pod.filter(|pod| pod.node.is_some())?;
            spend(&mut w.left.forced)?;
            (w.pod, w.forced) = (None, true);
        }
        _ => return None,
    }
    Some(())
}
