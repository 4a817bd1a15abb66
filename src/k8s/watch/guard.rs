//! An object of a list or watch that can be impossible to decode.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::PartialObjectMeta;
use kube::core::error_boundary::InvalidObject;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::borrow::Cow;

/// The decoded object, or the error and the object's metadata. Like kube's `DeserializeGuard`, but in half of its time: that one makes a
/// copy of the whole object.
#[derive(Clone, Debug)]
pub struct Guarded<K>(pub Result<K, InvalidObject>);

impl<'de, K> Deserialize<'de> for Guarded<K>
where
    K: Resource + DeserializeOwned,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let error = match K::deserialize(&value) {
            Ok(object) => return Ok(Self(Ok(object))),
            Err(error) => error.to_string(),
        };
        let partial = PartialObjectMeta::<K>::deserialize(&value).map_err(D::Error::custom)?;
        let metadata = partial.metadata;
        Ok(Self(Err(InvalidObject { error, metadata })))
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &K::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &K::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(invalid) => &invalid.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(invalid) => &mut invalid.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Guarded;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt;
    use serde_json::json;

    #[test]
    fn object_that_cannot_be_decoded_has_its_metadata_and_the_error() {
        let object = |data| json!({"metadata": {"name": "a"}, "data": data});
        let valid: Guarded<ConfigMap> = serde_json::from_value(object(json!({"k": "v"}))).unwrap();
        assert_eq!(valid.0.as_ref().unwrap().data.as_ref().unwrap()["k"], "v");
        let invalid: Guarded<ConfigMap> = serde_json::from_value(object(json!("text"))).unwrap();
        let error = invalid.0.as_ref().unwrap_err().to_string();
        assert!(error.contains("expected a map"), "{error}");
        assert_eq!(
            (valid.name_any(), invalid.name_any()),
            ("a".into(), "a".into())
        );
        serde_json::from_value::<Guarded<ConfigMap>>(json!("text")).unwrap_err();
    }
}
