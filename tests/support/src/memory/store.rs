//! Objects, their history, and the revision counter.

use super::resource::Resource;
use crate::signal::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use tokio::time::Instant;

/// Namespace and name. The namespace is empty for cluster-scoped kinds.
pub type Key = (String, String);

/// A state of an object. It is serialized at most once in each format.
#[derive(Debug)]
pub struct Object {
    pub value: Value,
    whole: OnceLock<Arc<[u8]>>,
    item: OnceLock<Arc<[u8]>>,
}

impl Object {
    fn new(value: Value) -> Arc<Self> {
        Arc::new(Self {
            value,
            whole: OnceLock::new(),
            item: OnceLock::new(),
        })
    }

    /// The object as JSON.
    pub fn json(&self) -> Arc<[u8]> {
        self.whole
            .get_or_init(|| self.value.to_string().into_bytes().into())
            .clone()
    }

    /// The object as an item of a list of built-in kinds, without its type.
    pub fn item_json(&self) -> Arc<[u8]> {
        let item = || {
            let mut value = self.value.clone();
            if let Some(fields) = value.as_object_mut() {
                fields.remove("apiVersion");
                fields.remove("kind");
            }
            value.to_string().into_bytes().into()
        };
        self.item.get_or_init(item).clone()
    }
}

/// A change of one object. A creation has no `old`, a deletion no `new`.
#[derive(Clone, Debug)]
pub struct Change {
    pub revision: u64,
    pub at: Instant,
    pub key: Key,
    pub old: Option<Arc<Object>>,
    pub new: Option<Arc<Object>>,
    /// The last state of a deleted object, with the revision of the deletion.
    pub last: Option<Arc<Object>>,
}

/// The objects of a kind.
#[derive(Debug, Default)]
pub struct Table {
    pub objects: BTreeMap<Key, Arc<Object>>,
    pub log: Vec<Change>,
    /// Notified of each change.
    pub changed: Signal,
}

/// All objects.
#[derive(Debug, Default)]
pub struct Store {
    pub revision: u64,
    /// The oldest revision that has not expired.
    pub floor: u64,
    /// By qualified resource name.
    tables: BTreeMap<String, Table>,
}

impl Store {
    pub fn table(&mut self, resource: &Resource) -> &mut Table {
        self.tables.entry(resource.qualified()).or_default()
    }

    /// Each change of each object, with the qualified resource name.
    pub fn changes(&self) -> impl Iterator<Item = (&str, &Change)> {
        self.tables
            .iter()
            .flat_map(|(kind, table)| table.log.iter().map(move |change| (&**kind, change)))
    }

    pub fn get(&mut self, resource: &Resource, key: &Key) -> Option<Arc<Object>> {
        self.table(resource).objects.get(key).cloned()
    }

    /// Stores a state of an object under the next revision.
    pub fn put(&mut self, resource: &Resource, key: Key, mut value: Value) -> Arc<Object> {
        self.revision += 1;
        let revision = self.revision;
        value["metadata"]["resourceVersion"] = revision.to_string().into();
        let object = Object::new(value);
        let table = self.table(resource);
        let old = table.objects.insert(key.clone(), object.clone());
        table.log.push(Change {
            revision,
            at: Instant::now(),
            key,
            old,
            new: Some(object.clone()),
            last: None,
        });
        table.changed.raise();
        object
    }

    /// A state that is not stored, for a dry run.
    pub fn unsaved(value: Value) -> Arc<Object> {
        Object::new(value)
    }

    /// Removes an object. Its last state is given.
    pub fn remove(&mut self, resource: &Resource, key: Key, mut value: Value) -> Arc<Object> {
        self.revision += 1;
        let revision = self.revision;
        value["metadata"]["resourceVersion"] = revision.to_string().into();
        let last = Object::new(value);
        let table = self.table(resource);
        let old = table.objects.remove(&key);
        table.log.push(Change {
            revision,
            at: Instant::now(),
            key,
            old,
            new: None,
            last: Some(last.clone()),
        });
        table.changed.raise();
        last
    }

    /// The objects of a kind as they were at a revision.
    pub fn at(&mut self, resource: &Resource, revision: u64) -> BTreeMap<Key, Arc<Object>> {
        let is_now = revision >= self.revision;
        let table = self.table(resource);
        if is_now {
            return table.objects.clone();
        }
        let mut objects = BTreeMap::new();
        for change in table
            .log
            .iter()
            .take_while(|change| change.revision <= revision)
        {
            match &change.new {
                Some(object) => objects.insert(change.key.clone(), object.clone()),
                None => objects.remove(&change.key),
            };
        }
        objects
    }
}
