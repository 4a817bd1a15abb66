//! VMs that cannot be read: objects that were stored under another definition, such as an older one. One such must
//! not stop the watch for all others, and its own user is told, by a condition on the object. What it has already (a
//! pod that runs) is left alone.

use super::explain::Problem;
use crate::api::conditions::{self, ReadyReason, Wanted};
use crate::api::{VirtualMachine, VirtualMachineSpec, VirtualMachineStatus, names};
use crate::operator::context::Context;
use crate::operator::error::Error;
use crate::operator::events;
use crate::operator::views::metadata;
use crate::operator::write::Writer;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::Resource;
use kube::runtime::events::EventType;
use kube::runtime::watcher::Event;
use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;

/// A VM as the API server sends it.
#[derive(Clone, Debug)]
pub enum Arriving {
    /// One that can be read.
    Readable(Box<VirtualMachine>),
    /// One that cannot.
    Unreadable(Box<Unreadable>),
}

/// A VM that cannot be read.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// The field, and what is wrong with it.
    pub why: String,
    /// Status, as it is.
    status: Value,
}

/// A VM, of whose metadata only that is read which somebody uses.
#[derive(Deserialize)]
struct Stored {
    #[serde(deserialize_with = "metadata")]
    metadata: ObjectMeta,
    spec: VirtualMachineSpec,
    #[serde(default)]
    status: Option<VirtualMachineStatus>,
}

impl From<Stored> for Arriving {
    fn from(Stored { metadata, spec, status }: Stored) -> Self {
        Self::Readable(Box::new(VirtualMachine { metadata, spec, status }))
    }
}

impl<'de> Deserialize<'de> for Arriving {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        if let Ok(stored) = serde_json::from_str::<Stored>(text.get()) {
            return Ok(stored.into());
        }
        // Seldom: read once more as a value, which has no lines and columns to tell of.
        let object: Value = serde_json::from_str(text.get()).map_err(de::Error::custom)?;
        match serde_path_to_error::deserialize::<_, Stored>(&object) {
            Ok(stored) => Ok(stored.into()),
            Err(error) => {
                let metadata = metadata(object.get("metadata").unwrap_or(&Value::Null)).map_err(de::Error::custom)?;
                let why = format!("{}: {}", error.path(), error.inner());
                let status = object.get("status").cloned().unwrap_or_default();
                Ok(Self::Unreadable(Box::new(Unreadable { metadata, why, status })))
            }
        }
    }
}

impl Resource for Arriving {
    type DynamicType = ();
    type Scope = <VirtualMachine as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        VirtualMachine::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        VirtualMachine::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        VirtualMachine::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        VirtualMachine::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Readable(vm) => &vm.metadata,
            Self::Unreadable(unreadable) => &unreadable.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Readable(vm) => &mut vm.metadata,
            Self::Unreadable(unreadable) => &mut unreadable.metadata,
        }
    }
}

/// The event as the rest of the operator sees it, to which a VM that cannot be read is one that is not there;
/// `report` gets those.
pub fn readable(event: Event<Arriving>, report: impl FnOnce(Unreadable)) -> Option<Event<VirtualMachine>> {
    match event {
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
        Event::InitApply(Arriving::Readable(vm)) => Some(Event::InitApply(*vm)),
        Event::Apply(Arriving::Readable(vm)) => Some(Event::Apply(*vm)),
        Event::Delete(Arriving::Readable(vm)) => Some(Event::Delete(*vm)),
        Event::InitApply(Arriving::Unreadable(unreadable)) => {
            report(*unreadable);
            None
        }
        // It may have been readable before: what is known of it is out of date.
        Event::Apply(Arriving::Unreadable(unreadable)) => {
            let gone = stand_in(&unreadable.metadata).map(Event::Delete);
            report(*unreadable);
            gone
        }
        Event::Delete(Arriving::Unreadable(unreadable)) => stand_in(&unreadable.metadata).map(Event::Delete),
    }
}

/// A VM of that name, of which nobody reads more than that.
fn stand_in(metadata: &ObjectMeta) -> Option<VirtualMachine> {
    let (version, kind) = (VirtualMachine::api_version(&()), VirtualMachine::kind(&()));
    let object = json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {"vm": {}}});
    serde_json::from_value(object).ok()
}

/// Says on the object that it cannot be read, unless that stands there already. Where the API server refuses the status,
/// because it cannot read the object either, the event must do.
///
/// # Errors
/// If the API server could not be asked.
pub async fn report(unreadable: &Unreadable, ctx: &Context) -> Result<(), Error> {
    let Unreadable { metadata, why, status } = unreadable;
    let name = metadata.name.as_deref().unwrap_or_default();
    let problem = Problem::new(ReadyReason::Unreadable, &format!("the VM cannot be read: {why}"), name);
    let present =
        status.get("conditions").and_then(|list| Vec::<Condition>::deserialize(list).ok()).unwrap_or_default();
    let wanted = Wanted {
        type_: conditions::READY,
        status: false,
        reason: problem.reason.into(),
        message: problem.message.clone(),
    };
    let condition = wanted.at(&present, metadata.generation, (ctx.now)());
    if conditions::find(&present, conditions::READY) == Some(&condition) {
        return Ok(());
    }
    tracing::warn!(vm = name, "{}", problem.message);
    let mut fields = json!({"observedGeneration": metadata.generation, "conditions": [condition]});
    // What is left out is taken away, and this is still needed.
    if let (Some(fields), Some(restarts)) = (fields.as_object_mut(), status.get("restarts")) {
        fields.insert("restarts".to_owned(), restarts.clone());
    }
    let (version, kind) = (VirtualMachine::api_version(&()), VirtualMachine::kind(&()));
    let body = json!({
        "apiVersion": version, "kind": kind, "status": fields,
        "metadata": {"name": name, "resourceVersion": metadata.resource_version},
    });
    match Writer::new(ctx).apply_status::<Value>(name, names::MANAGER_OPERATOR, &body).await {
        // It has changed or is gone: the watch tells.
        Err(error) if matches!(error.code(), Some(404 | 409)) => return Ok(()),
        Err(error) if error.code().is_some() => tracing::warn!(vm = name, %error, "told by an event only"),
        answer => drop(answer?),
    }
    let regarding = ObjectReference {
        api_version: Some(version.into_owned()),
        kind: Some(kind.into_owned()),
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        uid: metadata.uid.clone(),
        ..ObjectReference::default()
    };
    events::publish(ctx, &regarding, EventType::Warning, problem.reason.as_str(), &problem.message).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arriving(maximum_ram: Value) -> Arriving {
        serde_json::from_value(json!({
            "apiVersion": "vmoperator.jdrupes.org/v1", "kind": "VirtualMachine",
            "metadata": {"name": "vm", "namespace": "ns", "uid": "u"}, "spec": {"vm": {"maximumRam": maximum_ram}},
        }))
        .unwrap()
    }

    #[test]
    fn a_vm_that_cannot_be_read_is_known_by_its_name_and_the_field_in_the_way() {
        let Arriving::Unreadable(unreadable) = arriving(json!(5)) else { panic!() };
        assert_eq!(unreadable.metadata.name.as_deref(), Some("vm"));
        assert!(unreadable.why.starts_with("spec.vm.maximumRam: invalid type: integer `5`"), "{}", unreadable.why);
        assert!(matches!(arriving(json!("5Gi")), Arriving::Readable(_)));
    }

    #[test]
    fn to_the_rest_it_is_one_that_is_not_there() {
        let of = |event: Event<Arriving>| {
            let mut reported = 0;
            (readable(event, |_| reported += 1), reported)
        };
        let bad = || arriving(json!(5));
        assert!(matches!(of(Event::InitApply(bad())), (None, 1)));
        assert!(
            matches!(of(Event::Apply(bad())), (Some(Event::Delete(vm)), 1) if vm.metadata.name.as_deref() == Some("vm"))
        );
        assert!(matches!(of(Event::Delete(bad())), (Some(Event::Delete(_)), 0)));
        assert!(matches!(of(Event::Apply(arriving(json!("5Gi")))), (Some(Event::Apply(_)), 0)));
    }
}
