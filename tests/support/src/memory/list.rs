//! Lists: of the present or a past revision, in pages.

use super::resource::Resource;
use super::route::Call;
use super::selector::Selector;
use super::status::Failure;
use super::store::{Key, Object, Store};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::sync::Arc;

/// The start of the next page.
struct Next {
    revision: u64,
    after: Key,
}

impl Next {
    fn token(&self) -> String {
        URL_SAFE_NO_PAD.encode(json!([self.revision, self.after.0, self.after.1]).to_string())
    }

    fn read(token: &str) -> Option<Self> {
        let (revision, namespace, name) =
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
        Some(Self {
            revision,
            after: (namespace, name),
        })
    }
}

const TOO_OLD: &str = "The resourceVersion for the provided list is too old.";
const CONTINUE_TOO_OLD: &str = "The provided continue parameter is too old to display a consistent list result. You can \
    start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder \
    of the results. Continuing with the provided token results in an inconsistent list - objects that were created, \
    modified, or deleted between the time the first chunk was returned and now may show up in the list.";

/// The requested list as JSON.
pub fn list(store: &mut Store, call: &Call) -> Result<Vec<u8>, Failure> {
    let resource = &*call.resource;
    let selector = selector(call)?;
    let next = call
        .query("continue")
        .map(|token| Next::read(token).ok_or_else(|| bad_token(token)))
        .transpose()?;
    let revision = match &next {
        Some(next) if next.revision < store.floor => {
            return Err(Failure::expired(CONTINUE_TOO_OLD));
        }
        Some(next) => next.revision,
        None => revision(store, call)?,
    };
    let limit = call
        .query("limit")
        .and_then(|limit| limit.parse().ok())
        .filter(|limit| *limit > 0);
    let objects = store.at(resource, revision);
    let after = next.map(|next| next.after);
    let mut left = objects.iter().filter(|(key, object)| {
        after.as_ref().is_none_or(|after| *key > after) && selector.matches(&object.value)
    });
    let page: Vec<(&Key, &Arc<Object>)> = left.by_ref().take(limit.unwrap_or(usize::MAX)).collect();
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    let rest = left.count();
    if resource.custom {
        metadata["continue"] = "".into();
    }
    if let (Some((last, _)), 1..) = (page.last(), rest) {
        metadata["continue"] = Next {
            revision,
            after: (*last).clone(),
        }
        .token()
        .into();
        if selector.is_empty() {
            metadata["remainingItemCount"] = rest.into();
        }
    }
    Ok(written(
        call,
        &metadata,
        page.into_iter().map(|(_, object)| &**object),
    ))
}

fn bad_token(token: &str) -> Failure {
    Failure::bad_request(format!("continue key is not valid: {token}"))
}

/// The selection of a list or watch.
pub fn selector(call: &Call) -> Result<Selector, Failure> {
    Selector::new(
        call.namespace.as_deref(),
        call.query("labelSelector"),
        call.query("fieldSelector"),
    )
}

/// The revision of the first page.
fn revision(store: &Store, call: &Call) -> Result<u64, Failure> {
    let given = call
        .query("resourceVersion")
        .filter(|version| !version.is_empty());
    let exact = match call.query("resourceVersionMatch") {
        Some("Exact") => true,
        Some("NotOlderThan") => false,
        None => call.query("limit").is_some_and(|limit| limit != "0"),
        Some(other) => return Err(Failure::unknown(format!("resourceVersionMatch={other}"))),
    };
    let Some(given) = given else {
        return Ok(store.revision);
    };
    let given = given
        .parse()
        .map_err(|_| Failure::bad_request(format!("Invalid value: {given:?}")))?;
    match given {
        given if given > store.revision => Err(Failure::too_large(given, store.revision)),
        given if !exact || given == 0 => Ok(store.revision),
        given if given < store.floor => Err(Failure::expired(TOO_OLD)),
        given => Ok(given),
    }
}

fn written<'a>(call: &Call, metadata: &Value, items: impl Iterator<Item = &'a Object>) -> Vec<u8> {
    let resource = &*call.resource;
    let (kind, version) = match call.metadata_only {
        true => (
            "PartialObjectMetadataList".to_owned(),
            "meta.k8s.io/v1".to_owned(),
        ),
        false => (format!("{}List", resource.kind), resource.api_version()),
    };
    let mut text =
        format!(r#"{{"kind":"{kind}","apiVersion":"{version}","metadata":{metadata},"items":["#)
            .into_bytes();
    for (n, object) in items.enumerate() {
        if n > 0 {
            text.push(b',');
        }
        match (call.metadata_only, resource.custom) {
            (true, _) => text.extend(partial(&object.value).to_string().into_bytes()),
            (false, true) => text.extend(&*object.json()),
            (false, false) => text.extend(&*object.item_json()),
        }
    }
    text.extend(b"]}");
    text
}

/// Only the object's metadata.
pub fn partial(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

/// The object with that name, as JSON.
pub fn get(store: &mut Store, call: &Call) -> Result<Vec<u8>, Failure> {
    let key = call.key();
    let object = store
        .get(&call.resource, &key)
        .ok_or_else(|| Failure::not_found(&call.resource, &key.1))?;
    Ok(shown(&call.resource, call.metadata_only, &object))
}

/// An object as the response to a call.
pub fn shown(_resource: &Resource, metadata_only: bool, object: &Object) -> Vec<u8> {
    match metadata_only {
        true => partial(&object.value).to_string().into_bytes(),
        false => object.json().to_vec(),
    }
}
