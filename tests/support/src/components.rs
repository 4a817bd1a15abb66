//! A simulation of the other Kubernetes components on an API server: scheduler, volume binder, kubelet, the runner in
//! the pod, and garbage collector. It also records the history of each object.

mod reactions;

use crate::signal::Signal;
use futures::{StreamExt, TryStreamExt};
use kube::Client;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams, Preconditions, WatchEvent, WatchParams,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A kind of objects in the simulated cluster.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// API group; empty for kinds of Kubernetes' core.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Name of the kind.
    pub kind: &'static str,
    /// Plural name.
    pub plural: &'static str,
    /// Whether its objects are in no namespace.
    pub is_cluster_scoped: bool,
    /// Whether its objects own others.
    pub is_owner: bool,
}

impl Kind {
    /// A namespaced kind with the version `v1`, whose objects own no others.
    #[must_use]
    pub const fn new(group: &'static str, kind: &'static str, plural: &'static str) -> Self {
        Self {
            group,
            version: "v1",
            kind,
            plural,
            is_cluster_scoped: false,
            is_owner: false,
        }
    }

    /// The same kind with objects that own others.
    #[must_use]
    pub const fn owner(self) -> Self {
        let is_owner = true;
        Self { is_owner, ..self }
    }

    /// The same kind without namespaces.
    #[must_use]
    pub const fn cluster_scoped(self) -> Self {
        let is_cluster_scoped = true;
        Self {
            is_cluster_scoped,
            ..self
        }
    }

    /// Whether only tests define the kind, so that no real API server knows it.
    #[must_use]
    pub fn is_made_up(&self) -> bool {
        self.group.ends_with("example.org")
    }

    fn resource(&self) -> ApiResource {
        let kind = GroupVersionKind::gvk(self.group, self.version, self.kind);
        ApiResource::from_gvk_with_plural(&kind, self.plural)
    }

    fn api(&self, client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace.filter(|_| !self.is_cluster_scoped) {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.resource()),
            None => Api::all_with(client.clone(), &self.resource()),
        }
    }
}

/// Kubernetes' own kinds.
const CORE_KINDS: [Kind; 5] = [
    Kind::new("", "Pod", "pods").owner(),
    Kind::new("", "PersistentVolumeClaim", "persistentvolumeclaims"),
    Kind::new("", "ConfigMap", "configmaps"),
    Kind::new("", "Secret", "secrets"),
    Kind::new("", "Service", "services"),
];

const OUR_GROUP: &str = "vmoperator.jdrupes.org";

/// The kind of VMs.
pub const VIRTUAL_MACHINE: Kind = Kind::new(OUR_GROUP, "VirtualMachine", "vms").owner();
/// The kind of the runners' reports.
pub const VM_REPORT: Kind = Kind::new(OUR_GROUP, "VmReport", "vmreports");
/// The kind of pools.
pub const VM_POOL: Kind = Kind::new(OUR_GROUP, "VmPool", "vmpools").owner();
/// The kind of assignments.
pub const VM_ASSIGNMENT: Kind = Kind::new(OUR_GROUP, "VmAssignment", "vmassignments");

/// The kinds of VMs and pools.
pub const VM_KINDS: [Kind; 4] = [VIRTUAL_MACHINE, VM_REPORT, VM_POOL, VM_ASSIGNMENT];

/// The API of one of Kubernetes' own kinds or of [`VM_KINDS`], in that namespace or in all.
#[must_use]
pub fn api(client: &Client, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let mut known = CORE_KINDS.into_iter().chain(VM_KINDS);
    let known = known.find(|known| known.kind == kind).unwrap();
    known.api(client, namespace)
}

/// A state of an object, or its deletion.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The resource version.
    pub revision: u64,
    /// The kind of the object.
    pub kind: &'static str,
    /// Whether this is the last state before the object was removed.
    pub deleted: bool,
    /// The object in this state.
    pub object: Value,
}

#[derive(Default)]
struct Recorded {
    /// By namespace.
    history: BTreeMap<String, Vec<Entry>>,
    /// By namespace, kind and name.
    present: BTreeMap<String, BTreeMap<(&'static str, String), Value>>,
    /// UIDs of deleted owners of objects.
    dead: BTreeSet<String>,
    /// Failures of the simulated components, by namespace.
    failures: BTreeMap<String, Vec<String>>,
}

/// The simulated cluster.
#[derive(Clone)]
pub struct Cluster {
    /// The client of all components except the operator.
    pub client: Client,
    recorded: Arc<Mutex<Recorded>>,
    /// The only namespace that is recorded. It includes objects of other namespaces with names that begin with it.
    only: Option<Arc<str>>,
    /// All kinds.
    kinds: Arc<[Kind]>,
    /// Raised at each change.
    pub changed: Signal,
}

impl Cluster {
    /// Starts to watch Kubernetes' own kinds and these, and to simulate the components.
    pub async fn start(client: Client, kinds: &[Kind]) -> Self {
        Self::follow_kinds(client, None, kinds).await
    }

    /// The same for a cluster with a single run. All its objects count as those of that namespace.
    pub async fn start_single(client: Client, namespace: &str, kinds: &[Kind]) -> Self {
        Self::follow_kinds(client, Some(namespace.into()), kinds).await
    }

    async fn follow_kinds(client: Client, only: Option<Arc<str>>, kinds: &[Kind]) -> Self {
        let cluster = Self {
            client,
            recorded: Arc::default(),
            only,
            kinds: kinds.iter().copied().chain(CORE_KINDS).collect(),
            changed: Signal::default(),
        };
        for kind in cluster.kinds.iter().map(|it| it.kind).collect::<Vec<_>>() {
            let list = cluster.api(kind, None);
            let list = list.list(&ListParams::default()).await.unwrap();
            let from = list.metadata.resource_version.unwrap();
            let cluster = cluster.clone();
            tokio::spawn(async move { cluster.follow(kind, from).await });
        }
        cluster
    }

    fn kind(&self, kind: &str) -> &Kind {
        let mut kinds = self.kinds.iter();
        kinds.find(|known| known.kind == kind).unwrap()
    }

    /// The API of a kind, in that namespace or in all.
    #[must_use]
    pub fn api(&self, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
        self.kind(kind).api(&self.client, namespace)
    }

    async fn follow(self, kind: &'static str, mut from: String) {
        let api = self.api(kind, None);
        loop {
            let Ok(events) = api.watch(&WatchParams::default(), &from).await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let mut events = events.boxed();
            while let Ok(Some(event)) = events.try_next().await {
                let (object, deleted) = match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                    WatchEvent::Deleted(object) => (object, true),
                    WatchEvent::Bookmark(bookmark) => {
                        from = bookmark.metadata.resource_version;
                        continue;
                    }
                    WatchEvent::Error(error) => panic!("the history has a gap: {error:?}"),
                };
                from = object.metadata.resource_version.clone().unwrap();
                let object = serde_json::to_value(&object).unwrap();
                self.record(Entry {
                    revision: from.parse().unwrap(),
                    kind,
                    deleted,
                    object: object.clone(),
                });
                tokio::spawn(self.clone().react(kind, deleted, object));
            }
        }
    }

    fn record(&self, entry: Entry) {
        let text = |path: &str| {
            entry
                .object
                .pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let (mut namespace, mut name) = (text("/metadata/namespace"), text("/metadata/name"));
        if let Some(only) = self.only.as_deref().filter(|only| *only != namespace) {
            if !namespace.is_empty() {
                name = format!("{namespace}/{name}");
            }
            namespace = only.to_owned();
        }
        let mut seen = self.recorded.lock().unwrap();
        let present = seen.present.entry(namespace.clone()).or_default();
        match entry.deleted {
            true => present.remove(&(entry.kind, name)),
            false => present.insert((entry.kind, name), entry.object.clone()),
        };
        if entry.deleted && self.kind(entry.kind).is_owner {
            seen.dead.insert(text("/metadata/uid"));
        }
        seen.history.entry(namespace).or_default().push(entry);
        drop(seen);
        self.changed.raise();
    }

    /// The present objects of a namespace, by kind and name.
    #[must_use]
    pub fn present(&self, namespace: &str) -> BTreeMap<(&'static str, String), Value> {
        self.recorded
            .lock()
            .unwrap()
            .present
            .get(namespace)
            .cloned()
            .unwrap_or_default()
    }

    /// The number of changes in a namespace.
    #[must_use]
    pub fn changes(&self, namespace: &str) -> usize {
        self.recorded
            .lock()
            .unwrap()
            .history
            .get(namespace)
            .map_or(0, Vec::len)
    }

    /// UIDs of the deleted pods that had a node, the newest first.
    #[must_use]
    pub fn deleted_pods(&self, namespace: &str) -> Vec<String> {
        self.deleted(namespace, |entry| {
            entry.kind == "Pod" && entry.object["spec"]["nodeName"].is_string()
        })
    }

    /// UIDs of the deleted PVCs, the newest first.
    #[must_use]
    pub fn deleted_claims(&self, namespace: &str) -> Vec<String> {
        self.deleted(namespace, |entry| entry.kind == "PersistentVolumeClaim")
    }

    fn deleted(&self, namespace: &str, is_meant: impl Fn(&Entry) -> bool) -> Vec<String> {
        let seen = self.recorded.lock().unwrap();
        let history = seen.history.get(namespace).into_iter().flatten();
        let deleted = history.filter(|entry| entry.deleted && is_meant(entry));
        let uids = deleted
            .rev()
            .filter_map(|it| it.object["metadata"]["uid"].as_str());
        uids.map(ToOwned::to_owned).collect()
    }

    /// The object with that name.
    #[must_use]
    pub fn get(&self, namespace: &str, kind: &'static str, name: &str) -> Option<Value> {
        self.recorded
            .lock()
            .unwrap()
            .present
            .get(namespace)?
            .get(&(kind, name.to_owned()))
            .cloned()
    }

    /// The resource version of an object.
    #[must_use]
    pub fn version(&self, namespace: &str, kind: &'static str, name: &str) -> Option<String> {
        let seen = self.recorded.lock().unwrap();
        let object = seen.present.get(namespace)?.get(&(kind, name.to_owned()))?;
        object["metadata"]["resourceVersion"]
            .as_str()
            .map(ToOwned::to_owned)
    }

    /// Kinds and names of a VM's children.
    #[must_use]
    pub fn of_vm(&self, namespace: &str, vm: &str) -> BTreeSet<(&'static str, String)> {
        let seen = self.recorded.lock().unwrap();
        let present = seen.present.get(namespace).into_iter().flatten();
        let of_vm = present
            .filter(|(_, object)| object["metadata"]["labels"]["app.kubernetes.io/instance"] == vm);
        of_vm.map(|(key, _)| key.clone()).collect()
    }

    /// Deletes the recorded history.
    pub fn clear_history(&self) {
        self.recorded.lock().unwrap().history.clear();
    }

    /// Returns the history of a namespace in order, and deletes it.
    #[must_use]
    pub fn take_history(&self, namespace: &str) -> Vec<Entry> {
        let mut seen = self.recorded.lock().unwrap();
        seen.present.remove(namespace);
        let mut history = seen.history.remove(namespace).unwrap_or_default();
        history.sort_by_key(|entry| entry.revision);
        history
    }

    /// Failures of the simulated components in a namespace.
    #[must_use]
    pub fn failures(&self, namespace: &str) -> Vec<String> {
        self.recorded
            .lock()
            .unwrap()
            .failures
            .get(namespace)
            .cloned()
            .unwrap_or_default()
    }

    /// Creates an object as another client than the operator, and returns it.
    pub async fn make(&self, namespace: &str, kind: &str, object: Value) -> Value {
        let objects = self.api(kind, Some(namespace));
        let made = objects
            .create(
                &PostParams::default(),
                &serde_json::from_value(object).unwrap(),
            )
            .await
            .unwrap();
        serde_json::to_value(made).unwrap()
    }

    /// Patches an object as another client than the operator.
    ///
    /// # Errors
    /// The API server rejects the patch.
    pub async fn merge(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        subresource: &str,
        patch: Value,
    ) -> Result<(), kube::Error> {
        let api = self.api(kind, Some(namespace));
        let params = PatchParams {
            field_manager: Some("test".to_owned()),
            ..PatchParams::default()
        };
        match subresource {
            "" => api.patch(name, &params, &Patch::Merge(&patch)).await,
            _ => {
                api.patch_subresource(subresource, name, &params, &Patch::Merge(&patch))
                    .await
            }
        }
        .map(drop)
    }

    pub(crate) async fn delete(
        &self,
        kind: &str,
        namespace: &str,
        object: &Value,
        grace: u32,
    ) -> Result<(), kube::Error> {
        let uid = object["metadata"]["uid"].as_str().map(ToOwned::to_owned);
        let params = DeleteParams::default()
            .grace_period(grace)
            .preconditions(Preconditions {
                uid,
                resource_version: None,
            });
        let name = object["metadata"]["name"].as_str().unwrap();
        self.api(kind, Some(namespace))
            .delete(name, &params)
            .await
            .map(drop)
    }
}
