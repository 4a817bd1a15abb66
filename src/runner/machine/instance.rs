//! (pure) The identity of the VM for cloud-init, which configures a guest again if it changes.

use crate::api::hex;
use crate::api::runner::config::CloudInit;
use crate::api::runner::identity::GeneratedInstance;
use crate::runner::machine::record::{Record, RecordedInstance};
use serde_json::json;
use sha2::{Digest, Sha256};

const INSTANCE_ID: &str = "instance-id";

/// The identity of the VM for cloud-init.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The `instance-id`. None if the configuration has none, or if the user has configured it.
    pub id: Option<String>,
    /// The identity from which the seed derives an `instance-id` that the configuration lacks.
    pub vm: String,
}

impl Instance {
    /// Replaces the `instance-id` that the operator has generated. `vm` identifies the VM.
    ///
    /// The operator derives its `instance-id` from the UID of the VM, which changes if the object is
    /// created again. The replacement changes with the content only. A VM of the Java VM-Operator keeps its ID.
    pub fn select(
        record: &mut Record,
        cloud_init: Option<&CloudInit>,
        generated: Option<&GeneratedInstance>,
        vm: &str,
    ) -> Self {
        let configured = cloud_init.and_then(configured_id);
        let id = generated
            .filter(|generated| configured == Some(generated.id.as_str()))
            .map(|generated| recorded_id(record, generated, vm));
        Self {
            id,
            vm: vm.to_owned(),
        }
    }

    /// The content of the seed, with the `instance-id`.
    pub fn complete(&self, cloud_init: &CloudInit) -> CloudInit {
        let mut cloud_init = cloud_init.clone();
        if let Some(id) = &self.id {
            let meta_data = cloud_init.meta_data.get_or_insert_default();
            meta_data.insert(INSTANCE_ID.to_owned(), json!(id));
        }
        cloud_init
    }
}

fn configured_id(cloud_init: &CloudInit) -> Option<&str> {
    cloud_init.meta_data.as_ref()?.get(INSTANCE_ID)?.as_str()
}

/// The recorded `instance-id` of this content, or a new one.
fn recorded_id(record: &mut Record, generated: &GeneratedInstance, vm: &str) -> String {
    let content = &generated.content;
    let present = record.instance.as_ref();
    if let Some(present) = present.filter(|present| present.content == *content) {
        return present.id.clone();
    }
    let id = if record.hardware.is_first() {
        generated.id.clone()
    } else {
        let hash = Sha256::digest(json!([vm, content]).to_string());
        format!("i-{}", hex(hash.iter().take(8)))
    };
    record.instance = Some(RecordedInstance {
        id: id.clone(),
        content: content.clone(),
    });
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cloud_init(id: &str) -> CloudInit {
        CloudInit {
            meta_data: json!({"instance-id": id}).as_object().cloned(),
            ..CloudInit::default()
        }
    }

    fn generated(id: &str, content: &str) -> GeneratedInstance {
        GeneratedInstance {
            id: id.to_owned(),
            content: content.to_owned(),
        }
    }

    /// The id of a start with this generated id and content.
    fn start(record: &mut Record, id: &str, content: &str, vm: &str) -> String {
        let (cloud_init, generated) = (cloud_init(id), generated(id, content));
        let instance = Instance::select(record, Some(&cloud_init), Some(&generated), vm);
        let meta_data = instance.complete(&cloud_init).meta_data.unwrap();
        meta_data[INSTANCE_ID].as_str().unwrap().to_owned()
    }

    #[test]
    fn a_generated_id_follows_uuid_and_content_and_not_the_uid() {
        let mut record = Record::new("q35", false);
        let first = start(&mut record, "v1", "a", "uuid");
        assert_ne!(first, "v1");
        assert_eq!(start(&mut record, "v2", "a", "uuid"), first);
        assert_ne!(start(&mut record, "v2", "b", "uuid"), first);
        let mut other = Record::new("q35", false);
        assert_ne!(start(&mut other, "v1", "a", "other uuid"), first);
        let mut recreated = Record::new("q35", false);
        assert_eq!(start(&mut recreated, "v3", "a", "uuid"), first);
    }

    #[test]
    fn a_vm_of_the_reference_keeps_its_id_also_if_its_object_is_created_again() {
        let mut record = Record::new("q35", true);
        assert_eq!(start(&mut record, "v1", "a", "uuid"), "v1");
        assert_eq!(start(&mut record, "v2", "a", "uuid"), "v1");
        assert_eq!(start(&mut record, "v3", "b", "uuid"), "v3");
    }

    #[test]
    fn a_configured_id_is_used_unchanged() {
        let mut record = Record::new("q35", false);
        let (cloud_init, other) = (cloud_init("mine"), generated("v1", "a"));
        for generated in [None, Some(&other)] {
            let instance = Instance::select(&mut record, Some(&cloud_init), generated, "uuid");
            assert_eq!(instance.complete(&cloud_init), cloud_init);
        }
        assert_eq!(record, Record::new("q35", false));
    }
}
