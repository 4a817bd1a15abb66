//! The sets of controllers. A Deployment runs one set, with its own Lease, account and configuration.
//!
//! A new set implements [`ControllerSet`], and is added to [`SETS`] and [`operate`]. A new controller is a value of [`ControllerName`], and
//! a part of the definitions, metrics and start of its set.

use crate::api;
use crate::api::peerpod;
use crate::api::sip;
use crate::controllers::peerpod::PeerPodController;
use crate::controllers::peerpod::metrics::PeerPodMetrics;
use crate::controllers::pool;
use crate::controllers::pool::metrics::PoolMetrics;
use crate::controllers::pool::orphans::Orphans;
use crate::controllers::sip::SipController;
use crate::controllers::sip::metrics::SipMetrics;
use crate::controllers::vm;
use crate::controllers::vm::metrics::VirtualMachineMetrics;
use crate::k8s::cluster::ForeignKind;
use crate::operator::fatal::Fatal;
use crate::operator::peerpod::environment;
use crate::operator::run::{self, Run};
use crate::operator::set::{ControllerName, ControllerSet, SetDefinition, Start};
use crate::settings::Settings;
use crate::settings::peerpod::PeerPodSettings;
use crate::settings::sip::SipSettings;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use std::sync::Arc;

/// All sets.
pub const SETS: &[SetDefinition] = &[
    VmSet::DEFINITION,
    PeerPodSet::DEFINITION,
    SipSet::DEFINITION,
];

/// Runs the selected controllers, which belong to one set.
pub(super) async fn operate(run: Run) -> Result<(), Fatal> {
    match one_set(SETS, &run.controllers)?.name {
        peerpod::names::MANAGER => run::operate::<PeerPodSet>(run).await,
        sip::names::MANAGER => run::operate::<SipSet>(run).await,
        _ => run::operate::<VmSet>(run).await,
    }
}

/// The set of the controllers.
fn one_set<'a>(
    sets: &'a [SetDefinition],
    controllers: &[ControllerName],
) -> Result<&'a SetDefinition, Fatal> {
    let set_of = |name: &ControllerName| sets.iter().find(|set| set.controllers.contains(name));
    let mut sets = controllers.iter().filter_map(set_of);
    let first = sets.next().ok_or(Fatal::NoController)?;
    match sets.find(|other| other.name != first.name) {
        Some(other) => Err(Fatal::TwoSets(first.name, other.name)),
        None => Ok(first),
    }
}

/// The definitions of all kinds of ours.
#[must_use]
pub fn definitions() -> Vec<CustomResourceDefinition> {
    SETS.iter().flat_map(|set| (set.definitions)()).collect()
}

/// VMs and their pools in one namespace.
pub struct VmSet;

impl ControllerSet for VmSet {
    type Settings = Settings;

    const DEFINITION: SetDefinition = SetDefinition {
        name: "vm-operator",
        lease: "vm-operator",
        folder: "",
        controllers: &[ControllerName::Vm, ControllerName::Pool],
        manager: vm::MANAGER,
        definitions: || {
            let own = [api::vm::crd(), api::report::crd()];
            own.into_iter().chain(api::pool::definitions()).collect()
        },
        metrics: |metrics| {
            drop(metrics.of::<VirtualMachineMetrics>());
            drop(metrics.of::<PoolMetrics>());
        },
        foreign: &[],
    };

    fn start(controllers: &[ControllerName], settings: &Settings, start: &mut Start) {
        for controller in controllers {
            match controller {
                ControllerName::Vm => start_vm(settings, start),
                ControllerName::Pool => start_pool(start),
                // `one_set` rejects controllers of other sets.
                ControllerName::PeerPod | ControllerName::Sip => {}
            }
        }
    }
}

fn start_vm(settings: &Settings, start: &mut Start) {
    let (cluster, namespace) = (start.pages.cluster.clone(), start.namespace.clone());
    let ctx = vm::context::VmController::new(cluster, namespace, settings.clone());
    let ctx = Arc::new(ctx);
    ctx.register(&mut start.pages.registry);
    let changes = vm::watch(&ctx, &mut start.tasks);
    start.run(ctx, changes);
}

fn start_pool(start: &mut Start) {
    let mut cluster = start.pages.cluster.clone();
    cluster.manager = pool::MANAGER;
    let ctx = Arc::new(pool::context::PoolController::new(
        cluster,
        start.namespace.clone(),
    ));
    ctx.register(&mut start.pages.registry);
    let watched = pool::watch(&ctx, &mut start.tasks);
    start.run(Orphans::new(&ctx), watched.vms);
    start.run(ctx, watched.pools);
}

/// The cloud instances of the pods of confidential containers.
pub struct PeerPodSet;

impl ControllerSet for PeerPodSet {
    type Settings = PeerPodSettings;

    const DEFINITION: SetDefinition = SetDefinition {
        name: peerpod::names::MANAGER,
        lease: peerpod::names::LEASE,
        folder: "peerpod",
        controllers: &[ControllerName::PeerPod],
        manager: crate::controllers::peerpod::MANAGER,
        definitions: || vec![peerpod::crd()],
        metrics: |metrics| drop(metrics.of::<PeerPodMetrics>()),
        // The definition of the cloud-api-adaptor, which may be newer, must not be replaced.
        foreign: &[ForeignKind {
            plural: "peerpods",
            install: "kubectl apply -f crds/peerpod/",
        }],
    };

    fn start(_: &[ControllerName], settings: &PeerPodSettings, start: &mut Start) {
        let (cluster, namespace) = (start.pages.cluster.clone(), start.namespace.clone());
        let settings = settings.clone();
        let controller = PeerPodController::new(cluster, namespace, settings, environment());
        controller.register(&mut start.pages.registry);
        let changes = controller.watch();
        let controller = Arc::new(controller);
        let calls = controller.clone().call_providers();
        start.tasks.spawn("calls to providers".to_owned(), calls);
        let sweep = controller.clone().sweep_instances();
        start.tasks.spawn("sweep of instances".to_owned(), sweep);
        start.run(controller, changes);
    }
}

/// Hosts and services of tenant clusters.
pub struct SipSet;

impl ControllerSet for SipSet {
    type Settings = SipSettings;

    const DEFINITION: SetDefinition = SetDefinition {
        name: sip::names::MANAGER,
        lease: sip::names::LEASE,
        folder: "sip",
        controllers: &[ControllerName::Sip],
        manager: crate::controllers::sip::MANAGER,
        definitions: || vec![sip::crd()],
        metrics: |metrics| drop(metrics.of::<SipMetrics>()),
        foreign: &[
            ForeignKind {
                plural: "sipclusters",
                install: "kubectl apply -f crds/sip/",
            },
            ForeignKind {
                plural: "baremetalhosts",
                install: "apply the manifests of the baremetal-operator of Metal3",
            },
        ],
    };

    fn start(_: &[ControllerName], settings: &SipSettings, start: &mut Start) {
        let (cluster, namespace) = (start.pages.cluster.clone(), start.namespace.clone());
        let controller = SipController::new(cluster, namespace, settings.clone());
        controller.register(&mut start.pages.registry);
        let changes = controller.watch(&mut start.tasks);
        start.run(Arc::new(controller), changes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_of_two_sets_are_rejected_and_both_sets_are_named() {
        let set = |name, controllers| SetDefinition {
            name,
            controllers,
            ..VmSet::DEFINITION
        };
        let both = [ControllerName::Vm, ControllerName::Pool];
        let two = [
            set("first", &[ControllerName::Vm]),
            set("second", &[ControllerName::Pool]),
        ];
        assert!(one_set(SETS, &both).is_ok());
        assert_eq!(one_set(&two, &both[1..]).unwrap().name, "second");
        let message = one_set(&two, &both).err().unwrap().to_string();
        assert!(
            message.contains("first") && message.contains("second"),
            "{message}"
        );
        one_set(SETS, &[]).err().unwrap();
    }
}
