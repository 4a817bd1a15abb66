use crate::k8s::store::children::*;
use k8s_openapi::api::core::v1::ConfigMap;

const OWNER_LABEL: &str = "owner";

fn object(name: &str, owner: &str, version: u64) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(name.to_owned());
    object.metadata.resource_version = Some(version.to_string());
    object.metadata.labels = Some([(OWNER_LABEL.to_owned(), owner.to_owned())].into());
    object
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("", name)
}

fn cache() -> Cache<ConfigMap> {
    Cache::new(|o| Some(key(o.metadata.labels.as_ref()?.get(OWNER_LABEL)?)))
}

fn version_of(cache: &Cache<ConfigMap>, name: &str) -> Option<u64> {
    cache.get(&key(name)).and_then(|o| version(o.as_ref()))
}

#[test]
fn known_resource_version_is_no_change() {
    let cache = cache();
    let watched = |version| cache.watched(Event::Apply(object("a", "owner", version)));
    cache.writing().answered(object("a", "owner", 5));
    assert_eq!([watched(5), watched(5)], [Change::None, Change::None]);
    assert_eq!(watched(6), Change::Group(key("owner")));
}

#[test]
fn an_own_write_is_seen_before_the_watch_tells_and_older_news_does_not_undo_it() {
    let cache = cache();
    cache.writing().answered(object("a", "owner", 7));
    assert_eq!(
        cache.watched(Event::Apply(object("a", "owner", 5))),
        Change::None
    );
    assert_eq!(version_of(&cache, "a"), Some(7));
    assert_eq!(
        cache.watched(Event::Apply(object("a", "owner", 9))),
        Change::Group(key("owner"))
    );
    assert_eq!(version_of(&cache, "a"), Some(9));
}

#[test]
fn an_answer_that_comes_after_the_deletion_brings_nothing_back() {
    let cache = cache();
    cache.watched(Event::Apply(object("a", "owner", 5)));
    cache.watched(Event::Delete(object("a", "owner", 6)));
    cache.writing().answered(object("a", "owner", 5));
    assert_eq!(version_of(&cache, "a"), None);
    cache.writing().answered(object("a", "owner", 8));
    assert_eq!(version_of(&cache, "a"), Some(8));
}

/// Two clients delete a finished pod. The later response shows the pod without its version. The watch may have reported
/// the deletion before.
#[test]
fn an_answer_without_a_version_brings_nothing_back() {
    let cache = cache();
    cache.watched(Event::Apply(object("a", "owner", 5)));
    cache.watched(Event::Delete(object("a", "owner", 6)));
    let mut response = object("a", "owner", 0);
    response.metadata.resource_version = None;
    cache.writing().answered(response);
    assert_eq!(version_of(&cache, "a"), None);
    cache.writing().answered(object("a", "owner", 8));
    assert_eq!(version_of(&cache, "a"), Some(8));
}

/// Otherwise the store would keep a deleted pod forever, and its owner would never get another one.
#[test]
fn an_answer_that_a_new_list_has_overtaken_brings_nothing_back() {
    let cache = cache();
    let writing = cache.writing();
    // The object is created at version 5 and deleted at version 6, while the watch is disconnected and its events
    // expire.
    cache.watched(Event::Init);
    cache.watched(Event::InitDone);
    writing.answered(object("a", "owner", 5));
    assert_eq!(version_of(&cache, "a"), None);
    cache.writing().answered(object("a", "owner", 8));
    assert_eq!(version_of(&cache, "a"), Some(8));
}

/// A lagging API server can list an older version than that of the operator's own write.
#[test]
fn neither_an_older_list_nor_a_late_deletion_takes_a_newer_object_back() {
    let cache = cache();
    cache.writing().answered(object("a", "owner", 7));
    cache.watched(Event::Init);
    cache.watched(Event::InitApply(object("a", "owner", 5)));
    cache.watched(Event::InitDone);
    assert_eq!(version_of(&cache, "a"), Some(7));
    assert_eq!(
        cache.watched(Event::Delete(object("a", "owner", 6))),
        Change::None
    );
    assert_eq!(version_of(&cache, "a"), Some(7));
    assert_eq!(
        cache.watched(Event::Delete(object("a", "owner", 8))),
        Change::Group(key("owner"))
    );
}

#[test]
fn object_missing_from_a_new_list_is_removed() {
    let cache = cache();
    for name in ["a", "b"] {
        cache.watched(Event::Apply(object(name, "owner", 1)));
    }
    cache.watched(Event::Init);
    cache.watched(Event::InitApply(object("b", "owner", 2)));
    assert_eq!(cache.len(), 2);
    assert_eq!(cache.watched(Event::InitDone), Change::Relisted);
    assert_eq!(
        (version_of(&cache, "a"), version_of(&cache, "b")),
        (None, Some(2))
    );
    assert!(cache.is_ready());
}

#[test]
fn a_group_holds_its_own_objects_even_after_one_has_moved() {
    let cache = cache();
    for (name, owner) in [
        ("a", "owner"),
        ("b", "owner"),
        ("c", "owner-2"),
        ("d", "other"),
    ] {
        cache.watched(Event::Apply(object(name, owner, 1)));
    }
    cache.watched(Event::Apply(object("b", "other", 2)));
    let names = |objects: Vec<Arc<ConfigMap>>| {
        let names = objects.iter().map(|o| o.metadata.name.clone().unwrap());
        names.collect::<Vec<_>>()
    };
    let group = |group: &str| names(cache.group(&key(group)));
    assert_eq!(group("owner"), ["a"]);
    assert_eq!(group("owner-2"), ["c"]);
    assert_eq!(group("other"), ["b", "d"]);
    assert_eq!(names(cache.groups(&key("owner"))), ["a", "c"]);
}

#[test]
fn objects_of_one_name_in_two_namespaces_are_two() {
    let cache = Cache::new(|o: &ConfigMap| Some(ObjectKey::of(o)));
    let within = |namespace: &str, version| {
        let mut object = object("a", "owner", version);
        object.metadata.namespace = Some(namespace.to_owned());
        object
    };
    cache.watched(Event::Apply(within("one", 1)));
    cache.watched(Event::Apply(within("two", 2)));
    let (one, two) = (ObjectKey::new("one", "a"), ObjectKey::new("two", "a"));
    assert_eq!(cache.len(), 2);
    assert_eq!(
        cache.watched(Event::Delete(within("one", 3))),
        Change::Group(one.clone())
    );
    assert!(cache.get(&one).is_none());
    assert_eq!(cache.group(&two).len(), 1);
}
