//! (pure) The state of an instance of EC2 and of the resources beside it, and the proof that they are those of a pod.

use crate::api::peerpod::{instance_name_prefix, is_instance_name, names};
use crate::controllers::peerpod::aws::answers::Item;
use crate::controllers::peerpod::decide::{Answer, InstanceState};
use crate::controllers::peerpod::facts::{Owner, Seen};

/// Tag with the name of an instance, address or interface.
pub const TAG_NAME: &str = "Name";

/// The instance with the resources that the adaptor has created for it, as EC2 describes them now.
#[derive(Debug, Default)]
pub struct Found {
    /// The instance, if EC2 has it.
    pub instance: Option<Item>,
    /// Elastic addresses that are named after the instance.
    pub addresses: Vec<Item>,
    /// Elastic addresses with such a name that something else uses now. They are never released.
    pub used_addresses: Vec<Item>,
    /// Network interfaces that are named after the instance.
    pub interfaces: Vec<Item>,
}

impl Found {
    /// The answer about the instance. `place` is where EC2 was asked.
    pub fn answer(&self, owner: &Owner, cluster_uid: &str, place: &str) -> Answer {
        let has_remains = self.has_remains();
        let name = self.instance.as_ref().and_then(|it| it.tag(TAG_NAME));
        let foreign = self
            .instance
            .as_ref()
            .and_then(|it| foreign(it, owner, cluster_uid));
        let remains = match (&self.instance, &foreign) {
            (None, _) => self.unproved(),
            (Some(_), None) => self.used(),
            (Some(_), Some(_)) => Vec::new(),
        };
        let state = match (&self.instance, foreign) {
            (None, _) => InstanceState::Absent,
            (Some(instance), foreign) if instance.is_gone() => InstanceState::Gone {
                has_remains: has_remains && foreign.is_none(),
            },
            (Some(_), Some(why)) => InstanceState::NotOurs(why),
            (Some(instance), None) => InstanceState::Ours {
                is_ending: instance.is_ending(),
            },
        };
        let is_ours = matches!(
            state,
            InstanceState::Ours { .. } | InstanceState::Gone { has_remains: true }
        );
        let seen = name.filter(|_| is_ours).map(|name| Seen {
            place: place.to_owned(),
            name: name.to_owned(),
            volumes: Vec::new(),
        });
        Answer {
            state,
            seen,
            remains,
            place: place.to_owned(),
            ..Answer::default()
        }
    }

    /// Whether there are addresses or interfaces that can be removed.
    pub fn has_remains(&self) -> bool {
        !self.addresses.is_empty() || !self.interfaces.is_empty()
    }

    fn used(&self) -> Vec<String> {
        let used = self.used_addresses.iter().map(|it| {
            let id = it.allocation_id.as_deref().unwrap_or_default();
            format!("address {id} is associated with another instance or interface")
        });
        used.collect()
    }

    /// All resources that are named after an instance that EC2 does not have.
    fn unproved(&self) -> Vec<String> {
        let addresses = self
            .addresses
            .iter()
            .map(|it| ("address", &it.allocation_id));
        let interfaces = self.interfaces.iter();
        let interfaces = interfaces.map(|it| ("network interface", &it.network_interface_id));
        let unproved = addresses.chain(interfaces).map(|(kind, id)| {
            let id = id.as_deref().unwrap_or_default();
            format!(
                "{kind} {id} remains, because EC2 does not have the instance of its name any more"
            )
        });
        unproved.chain(self.used()).collect()
    }
}

/// Why the instance is not that of the pod. An account that may write PeerPods can name any instance, so the proof is at the instance.
fn foreign(instance: &Item, owner: &Owner, cluster_uid: &str) -> Option<String> {
    let tag = |key| instance.tag(key);
    let id = instance.instance_id.as_deref().unwrap_or_default();
    if tag(names::TAG_CLUSTER).is_some_and(|uid| uid != cluster_uid) {
        return Some(format!(
            "the tag {} of instance {id} names another cluster than {cluster_uid}, so the instance does not belong to the pod",
            names::TAG_CLUSTER
        ));
    }
    match tag(TAG_NAME).is_some_and(|name| is_instance_name(name, &owner.name)) {
        true => None,
        false => Some(format!(
            "the tag {TAG_NAME} of instance {id} does not begin with {} and end with 8 characters of the sandbox, which prove that it \
             belongs to the pod",
            instance_name_prefix(&owner.name)
        )),
    }
}
