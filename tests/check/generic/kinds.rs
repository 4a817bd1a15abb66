//! The two kinds, their scenarios, and the invariants of their runs.

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::object::HasStatus;
use kube::runtime::watcher::{self, Config, Event};
use kube::{Api, CustomResource, CustomResourceExt, Resource};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt::Debug;
use support::components::Cluster as Components;
use support::enumeration::run::Run;
use support::enumeration::simulated::NAMESPACE;
use support::enumeration::{History, Scenario, Step};
use vm_operator::k8s::cluster::Cluster;
use vm_operator::k8s::key::ObjectKey;
use vm_operator::k8s::watch::{Namespaces, listed, listed_in};

/// The second namespace of each run.
pub const SECOND: &str = "second";

#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "example.org",
    version = "v1",
    kind = "Note",
    plural = "notes",
    namespaced,
    status = "Status"
)]
pub struct NoteSpec {
    pub text: String,
}

#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "example.org",
    version = "v1",
    kind = "Site",
    plural = "sites",
    status = "Status"
)]
pub struct SiteSpec {
    pub text: String,
    /// The namespace of the ConfigMap.
    pub namespace: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub observed_generation: Option<i64>,
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Condition {
    pub r#type: String,
    pub status: String,
    pub reason: String,
}

/// Either kind.
pub trait Kind:
    Resource<DynamicType = ()>
    + CustomResourceExt
    + HasStatus<Status = Status>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    const RESOURCE: &'static str;

    /// The namespaces of the ConfigMaps.
    fn namespaces() -> Namespaces;
    fn events(cluster: &Cluster) -> BoxStream<'static, watcher::Result<Event<Self>>>;
    fn text(&self) -> &str;
    /// The object that a ConfigMap belongs to.
    fn owner_of_copy(copy: &ConfigMap) -> Option<ObjectKey>;
    /// The namespace of the object's ConfigMap.
    fn namespace_of_copy(&self) -> String;

    fn copy(&self) -> ConfigMap {
        let name = self.meta().name.clone().unwrap();
        let mut copy = ConfigMap::default();
        copy.metadata.owner_references = Some(vec![self.controller_owner_ref(&()).unwrap()]);
        copy.metadata.namespace = Some(self.namespace_of_copy());
        copy.metadata.name = Some(name);
        copy.data = Some([("text".to_owned(), self.text().to_owned())].into());
        copy
    }

    fn wanted_status(&self) -> Status {
        let [r#type, status, reason] = ["Ready", "True", "Copied"].map(str::to_owned);
        Status {
            observed_generation: self.meta().generation,
            conditions: vec![Condition {
                r#type,
                status,
                reason,
            }],
        }
    }
}

fn owner(copy: &ConfigMap) -> Option<&str> {
    let owners = copy.metadata.owner_references.as_deref()?;
    owners.first().map(|owner| owner.name.as_str())
}

impl Kind for Note {
    const RESOURCE: &'static str = "notes";

    fn namespaces() -> Namespaces {
        Namespaces::Only([NAMESPACE, SECOND].map(str::to_owned).to_vec())
    }

    fn events(cluster: &Cluster) -> BoxStream<'static, watcher::Result<Event<Self>>> {
        listed_in(cluster, &Self::namespaces(), &Config::default()).boxed()
    }

    fn text(&self) -> &str {
        &self.spec.text
    }

    fn owner_of_copy(copy: &ConfigMap) -> Option<ObjectKey> {
        Some(ObjectKey::of(copy).sibling(owner(copy)?))
    }

    fn namespace_of_copy(&self) -> String {
        self.metadata.namespace.clone().unwrap()
    }
}

impl Kind for Site {
    const RESOURCE: &'static str = "sites";

    fn namespaces() -> Namespaces {
        Namespaces::All
    }

    fn events(cluster: &Cluster) -> BoxStream<'static, watcher::Result<Event<Self>>> {
        let api = Api::all(cluster.client.clone());
        listed(api, Config::default(), cluster.watch_backoff_max).boxed()
    }

    fn text(&self) -> &str {
        &self.spec.text
    }

    fn owner_of_copy(copy: &ConfigMap) -> Option<ObjectKey> {
        Some(ObjectKey::new("", owner(copy)?))
    }

    fn namespace_of_copy(&self) -> String {
        self.spec.namespace.clone()
    }
}

/// Whether each object has a status of its newest generation.
pub fn are_settled(cluster: &Components, namespace: &str) -> bool {
    let is_settled =
        |object: &Value| object["status"]["observedGeneration"] == object["metadata"]["generation"];
    let present = cluster.present(namespace);
    let mut own = present
        .iter()
        .filter(|((kind, _), _)| ["Note", "Site"].contains(kind));
    own.all(|(_, object)| is_settled(object))
}

/// Each ConfigMap has had one controlling owner at any time.
pub fn judge(run: &History) -> Vec<String> {
    let copies = run.history.iter().filter(|entry| entry.kind == "ConfigMap");
    let without_owner = copies.filter(|entry| {
        entry.object["metadata"]["ownerReferences"]
            .as_array()
            .map(Vec::len)
            != Some(1)
    });
    without_owner
        .map(|entry| format!("no single owner: {}", entry.object))
        .collect()
}

pub const fn scenario(
    name: &'static str,
    spec: &'static str,
    before: &'static [Step],
    steps: &'static [Step],
    ready: &'static str,
    says: Option<(&'static str, &'static str)>,
) -> Scenario {
    Scenario {
        name,
        spec,
        before,
        steps,
        ready,
        says,
    }
}

/// Creates the object with the same name in the second namespace.
fn create_second<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    let note = json!({"apiVersion": "example.org/v1", "kind": "Note", "metadata": {"name": "a"}, "spec": {"text": "second"}});
    run.cluster.make(SECOND, "Note", note).map(drop).boxed()
}

/// Deletes the ConfigMap in the second namespace.
fn delete_copy<'a>(run: &'a mut Run, _: &'a Scenario) -> BoxFuture<'a, ()> {
    let copies = support::components::api(&run.cluster.client, "ConfigMap", Some(SECOND));
    async move {
        drop(
            copies
                .delete("a", &kube::api::DeleteParams::default())
                .await
                .unwrap(),
        )
    }
    .boxed()
}

const NOTE: &str = r#"{"text": "one"}"#;
const SITE: &str = r#"{"text": "one", "namespace": "second"}"#;
const CHANGE: Step = Step::Patch(r#"{"spec": {"text": "two"}}"#);
const BOTH: &[Step] = &[Step::Start, Step::Create, Step::Act(create_second)];
const SITE_CREATED: &[Step] = &[Step::Start, Step::Create];

pub const NOTES: &[Scenario] = &[
    scenario(
        "notes",
        NOTE,
        &[],
        BOTH,
        "Copied",
        Some(("ConfigMap/second/a", r#""text":"second""#)),
    ),
    scenario(
        "note-changed",
        NOTE,
        BOTH,
        &[CHANGE],
        "Copied",
        Some(("ConfigMap/a", r#""text":"two""#)),
    ),
    scenario(
        "copy-deleted",
        NOTE,
        BOTH,
        &[Step::Act(delete_copy)],
        "Copied",
        Some(("ConfigMap/second/a", "second")),
    ),
    scenario(
        "note-deleted",
        NOTE,
        BOTH,
        &[Step::Delete],
        "",
        Some(("Note/second/a", "second")),
    ),
];

pub const SITES: &[Scenario] = &[
    scenario(
        "site",
        SITE,
        &[],
        SITE_CREATED,
        "Copied",
        Some(("ConfigMap/second/a", r#""text":"one""#)),
    ),
    scenario(
        "site-changed",
        SITE,
        SITE_CREATED,
        &[CHANGE],
        "Copied",
        Some(("ConfigMap/second/a", r#""text":"two""#)),
    ),
    scenario(
        "site-restart",
        SITE,
        SITE_CREATED,
        &[Step::Start, CHANGE],
        "Copied",
        None,
    ),
    scenario(
        "site-deleted",
        SITE,
        SITE_CREATED,
        &[Step::Delete],
        "",
        None,
    ),
];
