//! (client) The watches of pools, assignments and VMs. Each fills a store and reports the pools to reconcile.

use crate::api::VmPool;
use crate::controllers::pool::context::PoolController;
use crate::controllers::pool::views::{AssignmentView, MemberView};
use crate::k8s::follow::{self, Changes};
use crate::k8s::key::ObjectKey;
use crate::k8s::store::children::Change;
use crate::k8s::tasks::Tasks;
use crate::k8s::undecodable::{StandIn, decoded_in};
use crate::k8s::watch::filter_map;
use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The changes that the controllers of pools reconcile.
pub struct Watched<P, V> {
    /// Pools that have changed themselves, or have changed members or assignments.
    pub pools: P,
    /// VMs that have changed.
    pub vms: V,
}

/// Starts the watches.
pub fn watch(
    ctx: &Arc<PoolController>,
    tasks: &mut Tasks,
) -> Watched<
    impl Stream<Item = ObjectRef<VmPool>> + Send + 'static + use<>,
    impl Stream<Item = ObjectRef<MemberView>> + Send + 'static + use<>,
> {
    let (changes, changed) = Changes::new(ctx.pools.clone());
    let (cluster, namespaces) = (&ctx.scope.cluster, ctx.scope.namespaces());
    let config = watcher::Config::default();
    let [of_pools, of_assignments, _] = &ctx.undecodable;
    let last = StandIn::LastVersion;
    let assignments =
        decoded_in::<AssignmentView>(cluster, &namespaces, &config, of_assignments, last);
    let without_end = StandIn::Object(pool_without_end);
    let pools = decoded_in(cluster, &namespaces, &config, of_pools, without_end);
    let (of_assignments, known) = (changes.clone(), ctx.clone());
    let (orphans, orphaned) = Changes::new(ctx.vms.clone());
    let of_assignment = orphans.clone();
    let assignments = follow::children(
        cluster.clone(),
        "vmassignments",
        assignments,
        ctx.assignments.clone(),
        move |_, change| {
            match &change {
                Change::Group(pool) => report_orphans(pool, &known, &of_assignment),
                Change::Relisted => of_assignment.all(|_| true),
                Change::None => {}
            }
            of_assignments.of(change);
        },
    );
    tasks.spawn("watch of vmassignments".to_owned(), assignments);
    let (rules, of_pools) = (changes.clone(), ctx.clone());
    let pools = follow::primaries(cluster, "vmpools", pools, ctx.pools.clone());
    // Members that two pools share follow the rules of both.
    let pools = pools.inspect(move |pool| {
        let pool = ObjectKey::from(pool);
        report_sharing(&pool, &of_pools, &rules);
        report_orphans(&pool, &of_pools, &orphans);
    });
    Watched {
        pools: futures::stream::select(pools, changed),
        vms: futures::stream::select(vms(ctx, changes), orphaned),
    }
}

/// A pool in place of one that cannot be decoded. Its assignments do not expire, because it has no valid retention, and no user finds the
/// session of the previous one.
fn pool_without_end(metadata: ObjectMeta) -> Option<VmPool> {
    let spec = json!({"retention": "", "permissions": [], "onRelease": "Restart"});
    Some(VmPool {
        metadata,
        spec: serde_json::from_value(spec).ok()?,
        status: None,
    })
}

/// Reports the VMs that the pool has assigned, if it does not exist.
fn report_orphans(pool: &ObjectKey, ctx: &PoolController, changes: &Changes<MemberView>) {
    if ctx.pools.get(pool).is_none() {
        changes.all(|vm| vm.status.assignment.pool.as_deref() == Some(pool.name()));
    }
}

/// Reports the other pools of the pool's members.
fn report_sharing(pool: &ObjectKey, ctx: &PoolController, changes: &Changes<VmPool>) {
    let vms = ctx.vms.reader().state();
    let shared = vms.iter().map(|vm| pools_of(vm));
    let shared = shared.filter(|pools| pools.len() > 1 && pools.contains(pool.name()));
    let others: BTreeSet<String> = shared.flatten().collect();
    for other in others.iter().filter(|other| *other != pool.name()) {
        changes.object(ctx.scope.key(other));
    }
}

/// The event, if its VM concerns pools. Most clusters have many other VMs, which are not stored. A stored VM that no longer concerns pools
/// is removed from the store.
fn of_pools(
    event: Event<MemberView>,
    is_stored: impl Fn(&MemberView) -> bool,
) -> Option<Event<MemberView>> {
    match event {
        Event::InitApply(vm) if !vm.concerns_pools() => None,
        Event::Apply(vm) if !vm.concerns_pools() => is_stored(&vm).then_some(Event::Delete(vm)),
        event => Some(event),
    }
}

/// Watches VMs of pools. Reports the pools of a changed VM, before and after the change.
fn vms(
    ctx: &Arc<PoolController>,
    changes: Changes<VmPool>,
) -> impl Stream<Item = ObjectRef<MemberView>> + Send + 'static + use<> {
    let config = watcher::Config::default();
    let ([_, _, undecodable], scope) = (&ctx.undecodable, &ctx.scope);
    let events = decoded_in::<MemberView>(
        &scope.cluster,
        &scope.namespaces(),
        &config,
        undecodable,
        StandIn::LastVersion,
    );
    let known = ctx.clone();
    let events = filter_map(events, move |event| {
        of_pools(event, |vm| known.vms.get(&ObjectKey::of(vm)).is_some())
    });
    // The pools of a VM before its change, until the store has the change.
    let before = Arc::new(Mutex::new(BTreeSet::new()));
    let (known, noted) = (ctx.clone(), before.clone());
    let events = events.inspect(move |event| {
        let Ok(Event::Apply(vm) | Event::Delete(vm)) = event else {
            return;
        };
        if let Some(known) = known.vms.get(&ObjectKey::of(vm)) {
            let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
            noted.extend(pools_of(&known));
        }
    });
    let vms = follow::primaries(&ctx.scope.cluster, "vms of pools", events, ctx.vms.clone());
    let ctx = ctx.clone();
    vms.inspect(move |vm| {
        let mut pools = std::mem::take(&mut *before.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(vm) = ctx.vms.get(&ObjectKey::from(vm)) {
            pools.extend(pools_of(&vm));
        }
        // A pool with an assignment that has just lost the VM to another pool.
        let assignments = ctx.assignments.groups(&ctx.scope.key(""));
        let names_vm = |assignment: &&Arc<AssignmentView>| {
            let named = assignment.status.vm.as_ref();
            named.is_some_and(|named| named.name == vm.name)
        };
        pools.extend(
            assignments
                .iter()
                .filter(names_vm)
                .map(|assignment| assignment.spec.pool.clone()),
        );
        for pool in pools {
            changes.object(ctx.scope.key(&pool));
        }
    })
}

/// The pools that the VM belongs to, and the pool that has assigned it.
fn pools_of(vm: &MemberView) -> BTreeSet<String> {
    let assigned = vm.status.assignment.pool.iter();
    vm.spec.pools.iter().chain(assigned).cloned().collect()
}
