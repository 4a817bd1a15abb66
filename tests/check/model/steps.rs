//! All possible steps, and their forbidden effects.

use crate::model::happen::{apply_external_step, apply_operator_step, delete};
use crate::model::operator::{Decider, Known, Mutation, What};
use crate::model::step::{Step, of_node, of_operator};
use crate::model::world::{
    Answer, Budget, Doing, Local, NODES, PODS, Phase, Pod, Request, Setting, Uid, World,
};

/// The result of a step.
pub struct Next {
    pub step: Step,
    pub world: World,
    /// The violation of an invariant.
    pub wrong: Option<&'static str>,
}

/// Finds the possible steps.
pub struct Steps<'a> {
    pub setting: &'a Setting,
    pub decider: &'a mut Decider,
}

type Wrong = Option<&'static str>;

impl Steps<'_> {
    /// All possible steps.
    pub fn all(&mut self, world: &World) -> Vec<Next> {
        let mut next = Vec::with_capacity(16);
        let mut add = |step: Step, after: Option<(World, Wrong)>| {
            next.extend(after.map(|(world, wrong)| Next {
                step,
                world: world.plain(),
                wrong,
            }));
        };
        for operator in 0..self.setting.operators {
            for step in of_operator(operator) {
                add(step, self.after(world, step));
            }
        }
        for node in 0..NODES {
            for step in of_node(node, world) {
                add(step, self.after(world, step));
            }
        }
        use Step as S;
        for step in [
            S::EvictsThePod,
            S::CollectsThePodOfAGoneVm,
            S::FetchesTheImage,
            S::UserStopsOrStartsTheVm,
            S::UserAsksForARestart,
            S::UserDeletesTheVm,
            S::UserMakesAVmOfTheSameName,
            S::UserSpoilsOrMendsTheSpec,
            S::UserChangesWhatThePodIsMadeOf,
            S::SomebodyDeletesThePod,
            S::AdministratorRemovesThePodByForce,
        ] {
            add(step, self.after(world, step));
        }
        next
    }

    /// The next step without accidents and without changes by people: nodes recover, and each component does its work.
    /// `None` if no work is left.
    pub fn recovery_step(&mut self, world: &World) -> Option<Next> {
        use Step as S;
        let mut steps: Vec<Step> = (0..NODES).map(S::GetsItsLinkBack).collect();
        for operator in 0..self.setting.operators {
            steps.extend([
                S::HearsTheAnswer(operator),
                S::CarriesOutARequestOf(operator),
            ]);
            steps.extend([
                S::CarriesOutALateRequestOf(operator),
                S::IsToldOfTheVm(operator),
                S::IsToldOfThePod(operator),
            ]);
        }
        for node in 0..NODES {
            let certain = |step: &Step| {
                !matches!(
                    step,
                    S::QemuCrashes { .. }
                        | S::GuestPowersOff { .. }
                        | S::LosesItsLink(_)
                        | S::LosesItsPowerForAMoment(_)
                )
            };
            steps.extend(of_node(node, world).into_iter().filter(certain));
        }
        steps.extend([S::CollectsThePodOfAGoneVm, S::FetchesTheImage]);
        steps.extend((0..self.setting.operators).map(|operator| S::Looks {
            operator,
            within_pause: false,
        }));
        steps.into_iter().find_map(|step| {
            let (world, wrong) = self.after(world, step)?;
            Some(Next {
                step,
                world: world.plain(),
                wrong,
            })
        })
    }

    /// The state after a step, or `None` if the step is impossible.
    fn after(&mut self, world: &World, step: Step) -> Option<(World, Wrong)> {
        let mut w = *world;
        let wrong = match step {
            Step::Looks {
                operator,
                within_pause,
            } => self.reconcile(&mut w, operator, within_pause)?,
            Step::CarriesOutARequestOf(operator) => self.carry_out(&mut w, operator)?,
            Step::CarriesOutALateRequestOf(operator) => {
                let request = w.operators[operator].late.take()?;
                self.carried_out(&mut w, request)?.1
            }
            Step::HearsTheAnswer(operator) => {
                self.receive_event(&mut w, operator)?;
                None
            }
            Step::GivesUpItsRequest(_)
            | Step::IsToldOfTheVm(_)
            | Step::IsToldOfThePod(_)
            | Step::ListsAnew(_)
            | Step::IsKilledAndStarts(_) => {
                apply_operator_step(&mut w, step)?;
                None
            }
            Step::BindsThePodTo(_) if self.setting.taken_once_changed && w.pod?.made_of == 0 => {
                return None;
            }
            Step::StartsQemu { node, pod } => {
                self.start(&mut w, node, pod)?;
                let runs = w.local(node, pod) == Local::Up && !w.imports(pod);
                (runs && !w.filled).then_some("a VM starts before its disk has its image")
            }
            step => {
                apply_external_step(&mut w, step)?;
                None
            }
        };
        Some((w, wrong))
    }

    /// An operator observes the VM and sends the requests of its decision.
    fn reconcile(&mut self, w: &mut World, operator: usize, early: bool) -> Option<Wrong> {
        let me = w.operators[operator];
        let vm = me.vm.filter(|_| me.doing == Doing::Nothing)?;
        if early && vm.past.pod == 0 {
            return None;
        }
        let others_delete = self.setting.budget.deletions > 0;
        let deleted_by_operator = !others_delete || me.pod.is_some_and(|pod| pod.uid == me.deleted);
        let guest_shutdown_stops = self.setting.guest_shutdown_stops;
        let known = Known {
            vm,
            pod: me.pod,
            image: w.image,
            imports: self.setting.imports,
            early,
            guest_shutdown_stops,
            deleted_by_operator,
        };
        let decided = self.decider.decide(known);
        let is_restart = vm.restart > vm.reported_restart.max(me.pod.map_or(0, |pod| pod.restart));
        let may_act = vm.running
            && vm.valid
            && w.image
            && me.pod.is_none_or(|pod| pod.owner == vm.uid && !pod.ending);
        if early
            && is_restart
            && may_act
            && decided.what == What::Nothing
            && decided.past == vm.past
        {
            return Some(Some("a requested restart waits for the end of a pause"));
        }
        let status = Request::Status {
            vm: vm.uid,
            version: vm.version,
            past: decided.past,
            reported_restart: decided.reported_restart,
            imported: decided.imported,
        };
        let status = Some(status).filter(|_| {
            (decided.past, decided.reported_restart, decided.imported)
                != (vm.past, vm.reported_restart, vm.imported)
        });
        let (request, next) = match decided.what {
            What::Nothing => (status?, None),
            What::Create { imports } => (
                Request::Create {
                    owner: vm.uid,
                    restart: vm.restart,
                    made_of: vm.made_of,
                    imports,
                },
                status,
            ),
            What::Delete { pod, outdated } => {
                let of_version = outdated && !self.decider.breaks(Mutation::DeletesWithoutVersion);
                let version = me.pod.map(|pod| pod.version).filter(|_| of_version);
                (
                    Request::Delete {
                        vm: vm.uid,
                        pod,
                        version,
                    },
                    status,
                )
            }
            What::StopVm => (
                Request::StopVm {
                    vm: vm.uid,
                    version: vm.version,
                },
                None,
            ),
        };
        w.operators[operator].doing = Doing::Asked {
            request,
            next,
            before_list: false,
        };
        if let What::Delete { pod, .. } = decided.what {
            w.operators[operator].deleted = if others_delete { pod } else { 0 };
        }
        let outdated = decided.what
            == What::Delete {
                pod: me.pod.map_or(0, |pod| pod.uid),
                outdated: true,
            };
        let creates = matches!(decided.what, What::Create { .. });
        let acts = creates
            || matches!(decided.what, What::Delete { .. })
                && vm.running
                && !outdated
                && me.pod.is_none_or(|pod| !pod.imports);
        Some(if early && acts && !is_restart {
            Some("the pause after an end was not kept")
        } else if creates && !w.image {
            Some("a VM starts without the image that it boots from")
        } else if creates && !vm.valid {
            Some("a VM with an invalid spec starts")
        } else if decided.past != vm.past
            && decided.past.pod != 0
            && me.pod.is_some_and(|pod| pod.owner != vm.uid)
        {
            Some("a VM's status reports another VM's pod")
        } else {
            None
        })
    }

    fn carry_out(&mut self, w: &mut World, operator: usize) -> Option<Wrong> {
        let Doing::Asked {
            request,
            next,
            before_list,
        } = w.operators[operator].doing
        else {
            return None;
        };
        let made = w.operators[operator].made;
        let by_chance = self.decider.breaks(Mutation::NamesPodsByChance);
        let again = matches!(request, Request::Create { .. })
            && !by_chance
            && w.pod.is_some_and(|pod| pod.uid == made);
        let again = again.then_some("an operator requests a pod that it has created itself");
        let (answer, wrong) = self.carried_out(w, request)?;
        w.operators[operator].doing = match answer {
            Some(Answer::Pod { pod, created, .. }) => Doing::Answered {
                answer: Answer::Pod {
                    pod,
                    created,
                    before_list,
                },
                next,
            },
            Some(answer) => Doing::Answered { answer, next },
            None => Doing::Nothing,
        };
        Some(wrong.or(again))
    }

    /// The API server carries out a request. Returns the response, or `None` for a rejection.
    fn carried_out(&mut self, w: &mut World, request: Request) -> Option<(Option<Answer>, Wrong)> {
        let by_chance = self.decider.breaks(Mutation::NamesPodsByChance);
        let answer = |pod, created| {
            Some(Answer::Pod {
                pod,
                created,
                before_list: false,
            })
        };
        match request {
            Request::Create {
                owner,
                restart,
                made_of,
                imports,
            } => {
                match w.pod {
                    Some(pod) if !by_chance => {
                        return Some((answer(Some(pod), false), None));
                    }
                    _ if w.pods_made >= self.setting.pods
                        || usize::from(w.pods_made) + 1 >= PODS =>
                    {
                        return None;
                    }
                    _ => w.pods_made += 1,
                }
                let uid = w.pods_made;
                let (node, phase, ending) = (None, Phase::Pending, false);
                let pod = Pod {
                    uid,
                    version: 1,
                    owner,
                    node,
                    phase,
                    ending,
                    restart,
                    made_of,
                    imports,
                };
                w.pod = Some(pod);
                w.import_pods |= u8::from(imports) << uid;
                Some((answer(Some(pod), true), self.made(w)))
            }
            Request::Delete { vm, pod, version } => {
                let any = self.decider.breaks(Mutation::DeletesWithoutUid);
                let Some(found) = w.pod.filter(|found| any || found.uid == pod) else {
                    return Some((answer(None, false), None));
                };
                if version.is_some_and(|version| version != found.version) {
                    return Some((answer(None, false), None));
                }
                let wrong = self.deleted(w, vm, found);
                delete(w, self.decider.breaks(Mutation::DeletesByForce));
                Some((answer(w.pod, false), wrong))
            }
            Request::StopVm { vm, version } => {
                if w.vm
                    .is_none_or(|found| (found.uid, found.version) != (vm, version))
                {
                    return Some((None, None));
                }
                w.change_vm(|vm| vm.running = false);
                let powered_off = w.left.power_offs < self.setting.budget.power_offs;
                let right = self.setting.guest_shutdown_stops && powered_off;
                Some((
                    w.vm.map(Answer::Vm),
                    (!right).then_some("a VM's spec is changed though no guest has powered off"),
                ))
            }
            Request::Status {
                vm,
                version,
                past,
                reported_restart,
                imported,
            } => {
                if w.vm
                    .is_none_or(|found| (found.uid, found.version) != (vm, version))
                {
                    return Some((None, None));
                }
                w.change_vm(|vm| {
                    (vm.past, vm.reported_restart, vm.imported) =
                        (past, reported_restart, imported);
                });
                Some((w.vm.map(Answer::Vm), None))
            }
        }
    }

    /// Whether the user has done nothing that stops a pod.
    fn is_unrequested(&self, w: &World) -> bool {
        let Budget {
            toggles,
            restarts,
            replacements,
            ..
        } = self.setting.budget;
        (w.left.toggles, w.left.restarts, w.left.replacements) == (toggles, restarts, replacements)
    }

    /// The violation by a new pod.
    fn made(&self, w: &World) -> Wrong {
        let Budget {
            power_offs,
            crashes,
            losses,
            outages,
            forced,
            kills,
            given_up,
            ..
        } = self.setting.budget;
        let left = &w.left;
        let imports = w.pod.is_some_and(|pod| pod.imports);
        let accident = (left.crashes, left.losses, left.outages, left.forced)
            != (crashes, losses, outages, forced);
        if self.setting.starts_stopped && self.is_unrequested(w) {
            Some("a VM starts without a request")
        } else if imports
            && w.filled
            && self.setting.operators == 1
            && (losses, left.kills, left.given_up) == (0, kills, given_up)
            && self.is_unrequested(w)
        {
            // A late request of another operator creates one, too. It finds the image on the disk.
            Some("a disk with its image gets another import pod")
        } else if self.setting.guest_shutdown_stops
            && left.power_offs < power_offs
            && !accident
            && self.is_unrequested(w)
        {
            Some("a VM starts again after its guest has powered itself off")
        } else {
            None
        }
    }

    /// The violation by an operator that deletes that pod for that VM.
    fn deleted(&self, w: &World, vm: Uid, pod: Pod) -> Wrong {
        if pod.owner != vm {
            Some("another VM's pod is deleted")
        } else if !self.is_unrequested(w)
            || self.setting.starts_stopped
            || w.vm.is_some_and(|vm| !vm.running)
        {
            None
        } else if pod.phase == Phase::Pending && self.setting.budget.changes > w.left.changes {
            // It has not run yet, and its template has changed.
            None
        } else if pod.imports
            && w.vm
                .is_some_and(|vm| vm.imported || vm.made_of != pod.made_of)
        {
            // A late request has created it after the import, or its template has changed.
            None
        } else if !pod.phase.has_ended() {
            Some("a pod that runs and should run is deleted")
        } else if w.vm.is_some_and(|vm| vm.past.pod != pod.uid) {
            Some("a pod is deleted before its exit is recorded")
        } else {
            None
        }
    }

    fn receive_event(&mut self, w: &mut World, operator: usize) -> Option<()> {
        let me = &mut w.operators[operator];
        let Doing::Answered { answer, next } = me.doing else {
            return None;
        };
        me.doing = next.map_or(Doing::Nothing, |request| Doing::Asked {
            request,
            next: None,
            before_list: false,
        });
        if self.decider.breaks(Mutation::ForgetsItsOwnWrites) {
            if let Answer::Pod {
                pod: Some(pod),
                created: true,
                ..
            } = answer
            {
                me.made = pod.uid;
            }
            return Some(());
        }
        match answer {
            Answer::Vm(vm) => {
                if me
                    .vm
                    .is_some_and(|known| known.uid == vm.uid && known.version < vm.version)
                {
                    me.vm = Some(vm);
                }
            }
            Answer::Pod {
                before_list: true, ..
            } if !self.decider.breaks(Mutation::LetsAnswersOvertakeLists) => {}
            Answer::Pod {
                pod: Some(pod),
                created,
                ..
            } if pod.uid > me.gone => {
                if me
                    .pod
                    .is_none_or(|known| (known.uid, known.version) <= (pod.uid, pod.version))
                {
                    me.pod = Some(pod);
                }
                if created {
                    me.made = pod.uid;
                }
            }
            Answer::Pod { .. } => {}
        }
        Some(())
    }

    /// The kubelet starts the runner, which starts QEMU.
    fn start(&self, w: &mut World, node: usize, pod: Uid) -> Option<()> {
        let wanted = w.pod.is_some_and(|found| found.uid == pod && !found.ending);
        if w.local(node, pod) != Local::Known || w.nodes[node].linked && !wanted {
            return None;
        }
        let qemus = w.qemus();
        if !self.setting.attaches_twice && qemus.iter().any(|other| *other != node) {
            return None;
        }
        // A second QEMU on the node finds the disk locked, and exits.
        w.set_local(
            node,
            pod,
            if qemus.contains(&node) {
                Local::Dead
            } else {
                Local::Up
            },
        );
        Some(())
    }
}
