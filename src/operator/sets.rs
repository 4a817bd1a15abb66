//! The sets of controllers. A Deployment runs one set, with its own Lease, account and configuration.
//!
//! A new set implements [`ControllerSet`], and is added to [`SETS`] and [`operate`]. A new controller is a value of [`ControllerName`], and
//! a part of the definitions, metrics and start of its set.

use crate::api;
use crate::controllers::pool;
use crate::controllers::pool::metrics::PoolMetrics;
use crate::controllers::pool::orphans::Orphans;
use crate::controllers::vm;
use crate::controllers::vm::metrics::VirtualMachineMetrics;
use crate::operator::fatal::Fatal;
use crate::operator::run::{self, Run};
use crate::operator::set::{ControllerName, ControllerSet, Facts, Start};
use crate::settings::Settings;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use std::sync::Arc;

/// All sets.
pub const SETS: &[Facts] = &[VmSet::FACTS];

/// Runs the selected controllers, which belong to one set.
pub(super) async fn operate(run: Run) -> Result<(), Fatal> {
    one_set(SETS, &run.controllers)?;
    run::operate::<VmSet>(run).await
}

/// The set of the controllers.
fn one_set<'a>(sets: &'a [Facts], controllers: &[ControllerName]) -> Result<&'a Facts, Fatal> {
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

    const FACTS: Facts = Facts {
        name: "vm-operator",
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
            }
        }
    }
}

fn start_vm(settings: &Settings, start: &mut Start) {
    let (cluster, namespace) = (start.pages.cluster.clone(), start.namespace.clone());
    let ctx = vm::context::Context::new(cluster, namespace, settings.clone());
    let ctx = Arc::new(ctx);
    ctx.register(&mut start.pages.registry);
    let changes = vm::watch(&ctx, &mut start.tasks);
    start.run(ctx, changes);
}

fn start_pool(start: &mut Start) {
    let mut cluster = start.pages.cluster.clone();
    cluster.manager = pool::MANAGER;
    let ctx = Arc::new(pool::context::Context::new(
        cluster,
        start.namespace.clone(),
    ));
    ctx.register(&mut start.pages.registry);
    let watched = pool::watch(&ctx, &mut start.tasks);
    start.run(Orphans::new(&ctx), watched.vms);
    start.run(ctx, watched.pools);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_of_two_sets_are_refused_and_both_are_named() {
        let set = |name, controllers| Facts {
            name,
            controllers,
            ..VmSet::FACTS
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
