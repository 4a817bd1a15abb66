//! Two kinds that only these tests define, as controllers on the generic layer. Each object has a ConfigMap with the
//! object's text.
//!
//! | kind | scope | watched namespaces | its ConfigMap |
//! |---|---|---|---|
//! | Note | namespaced | two, which have a Note with the same name each | in the namespace of the Note |
//! | Site | cluster | all | in the namespace that the Site names |

mod kinds;
mod lead;
mod tenant;
mod tenants;

use futures::{FutureExt, Stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kinds::{Kind, Note, Site};
use kube::api::Patch;
use kube::runtime::events::EventType;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Config;
use serde_json::json;
use std::sync::Arc;
use support::components::Kind as SimulatedKind;
use support::enumeration::simulated;
use support::enumeration::{self, Controller, Started};
use support::layer::Layer;
use support::timings::Timings;
use vm_operator::k8s::cluster::{Cluster, Manager};
use vm_operator::k8s::controller::{self, Outcome, Reconciler};
use vm_operator::k8s::error::Error;
use vm_operator::k8s::events;
use vm_operator::k8s::follow::{self, Changes};
use vm_operator::k8s::key::ObjectKey;
use vm_operator::k8s::registry::Registry;
use vm_operator::k8s::state::States;
use vm_operator::k8s::store::children::Cache;
use vm_operator::k8s::store::primary::PrimaryStore;
use vm_operator::k8s::tasks::Tasks;
use vm_operator::k8s::watch::listed_in;
use vm_operator::k8s::writer::Writer;

const MANAGER: Manager = Manager {
    field_manager: "copier",
    reporter: "example.org/copier",
    action: "Copy",
};

const NOTE: SimulatedKind = SimulatedKind::new("example.org", "Note", "notes").owner();
const SITE: SimulatedKind = SimulatedKind::new("example.org", "Site", "sites")
    .owner()
    .cluster_scoped();

/// The controller of a kind.
struct Copier<K: Kind> {
    cluster: Cluster,
    states: States<()>,
    objects: Arc<PrimaryStore<K>>,
    copies: Arc<Cache<ConfigMap>>,
}

impl<K: Kind> Reconciler for Copier<K> {
    type Object = K;
    type State = ();
    const NAME: &'static str = K::RESOURCE;

    fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn states(&self) -> &States<()> {
        &self.states
    }

    fn objects(&self) -> Store<K> {
        self.objects.reader()
    }

    async fn reconcile(&self, object: Arc<K>) -> Result<Outcome, Error> {
        let copy = object.copy();
        let key = ObjectKey::of(&copy);
        let writer = Writer::new(&self.cluster, key.namespace());
        match self.copies.get(&key) {
            Some(found) if found.data == copy.data => {}
            Some(_) => {
                let patch = Patch::Merge(json!({"data": copy.data}));
                writer
                    .patch::<ConfigMap, _>(&self.copies, key.name(), &patch)
                    .await?;
            }
            None => {
                writer.create_or_get(&self.copies, &copy).await?;
                let object = object.object_ref(&());
                let note = "the ConfigMap was created";
                events::publish(&self.cluster, &object, EventType::Normal, "Copied", note).await;
            }
        }
        let status = object.wanted_status();
        if object.status() != Some(&status) {
            let key = ObjectKey::of(&*object);
            let part =
                json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "status": status});
            Writer::new(&self.cluster, key.namespace())
                .apply_status::<K, K>(&self.objects, key.name(), MANAGER.field_manager, &part)
                .await?;
        }
        Ok(Outcome::Done)
    }
}

impl<K: Kind> Copier<K> {
    fn new(cluster: Cluster) -> Arc<Self> {
        Arc::new(Self {
            states: States::new(cluster.first_backoff, cluster.jitter),
            cluster,
            objects: Arc::default(),
            copies: Arc::new(Cache::new(K::owner_of_copy)),
        })
    }

    fn watch(&self, tasks: &mut Tasks) -> impl Stream<Item = ObjectRef<K>> + Send + use<K> {
        let (cluster, objects) = (&self.cluster, self.objects.clone());
        let (changes, changed) = Changes::new(objects.clone());
        let copies = listed_in(cluster, &K::namespaces(), &Config::default());
        let on_change = move |_, change| changes.of(change);
        let (cluster_of_task, cache) = (cluster.clone(), self.copies.clone());
        let copies = follow::children(cluster_of_task, "configmaps", copies, cache, on_change);
        tasks.spawn("watch of configmaps".to_owned(), copies);
        let objects = follow::primaries(cluster, K::RESOURCE, K::events(cluster), objects);
        futures::stream::select(objects, changed)
    }

    /// Runs until the future is dropped.
    async fn operate(self: Arc<Self>) {
        let (mut tasks, mut registry) = (Tasks::default(), Registry::default());
        registry.add(K::RESOURCE, self.objects.clone());
        registry.add("configmaps", self.copies.clone());
        let changes = self.watch(&mut tasks);
        assert_eq!(registry.missing(), [K::RESOURCE, "configmaps"]);
        let never = std::future::pending().boxed().shared();
        tokio::select! {
            () = controller::run(self, changes, never) => {}
            ended = tasks.ended() => panic!("{ended}"),
        }
    }
}

fn start<K: Kind>(layer: &Layer, namespace: &str, timings: &Timings) -> Started {
    let copier = Copier::<K>::new(enumeration::cluster(layer, namespace, timings, MANAGER));
    let task = tokio::spawn(copier.clone().operate());
    let busy_reason =
        move || (copier.states.failing() > 0).then(|| "the last reconcile has failed".to_owned());
    Started {
        task,
        busy_reason: Box::new(busy_reason),
    }
}

const fn controller<K: Kind>(
    kinds: &'static [SimulatedKind],
    follows: &'static [&'static str],
) -> Controller {
    Controller {
        kinds,
        name: "a",
        follows,
        definitions: || vec![serde_json::to_string(&K::crd()).unwrap()],
        prepare: |client| enumeration::create_namespace(client, kinds::SECOND).boxed(),
        start: start::<K>,
        is_settled: kinds::are_settled,
        is_reported: |_, _| false,
        reports: |_, _, _| false,
        judge: kinds::judge,
    }
}

#[test]
fn faults_at_each_call_of_a_namespaced_kind_lead_to_the_same_end() {
    static NOTES: Controller = controller::<Note>(&[NOTE], &["notes", "configmaps"]);
    simulated::check(&NOTES, kinds::NOTES);
}

#[test]
fn faults_at_each_call_of_a_cluster_scoped_kind_lead_to_the_same_end() {
    static SITES: Controller = controller::<Site>(&[SITE], &["sites", "configmaps"]);
    simulated::check(&SITES, kinds::SITES);
}
