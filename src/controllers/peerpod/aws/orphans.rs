//! (pure) Orphans: instances of the cluster that no object names.
//!
//! The tag of the cluster is the only proof that an instance belongs to it, so an instance without the tag is never an orphan. Time is needed
//! too, because the adaptor creates an instance before its `PeerPod`.

use crate::api::peerpod::{AwsId, names, pod_part};
use crate::controllers::peerpod::aws::answers::Item;
use crate::controllers::peerpod::aws::proof::TAG_NAME;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time for which nothing may name an instance before it is an orphan.
pub const GRACE: Duration = Duration::from_secs(30 * 60);

/// Maximum number of instances that one sweep deletes.
const DELETIONS_MAX: usize = 5;

/// An instance that has the tag of the cluster and a name of the adaptor, and does not end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tagged {
    /// Its identifier.
    pub id: AwsId,
    /// Its name.
    pub name: String,
}

impl Tagged {
    /// The instance, if EC2 now describes it so.
    pub fn of(instance: &Item, cluster_uid: &str) -> Option<Self> {
        if instance.is_gone() || instance.is_ending() {
            return None;
        }
        Self::in_any_state(instance, cluster_uid)
    }

    /// The instance, which can be terminated.
    pub fn in_any_state(instance: &Item, cluster_uid: &str) -> Option<Self> {
        let (name, id) = (
            instance.tag(TAG_NAME)?,
            instance.instance_id.as_deref()?.parse().ok()?,
        );
        let is_ours = instance.tag(names::TAG_CLUSTER) == Some(cluster_uid);
        (is_ours && pod_part(name).is_some()).then(|| Self {
            id,
            name: name.to_owned(),
        })
    }
}

/// The first sights of instances that nothing names, all at one place.
#[derive(Debug, Default)]
pub struct Sights {
    place: String,
    first: BTreeMap<Tagged, Instant>,
}

impl Sights {
    /// Notes the instances that nothing names. Returns those that are orphans. An instance that was named since has a new first sight.
    pub fn note(&mut self, place: &str, unnamed: Vec<Tagged>, now: Instant) -> Vec<Tagged> {
        if self.place != place {
            *self = Self {
                place: place.to_owned(),
                ..Self::default()
            };
        }
        let before = std::mem::take(&mut self.first);
        let seen = |it: Tagged| {
            let first = before.get(&it).copied().unwrap_or(now);
            (it, first)
        };
        self.first = unnamed.into_iter().map(seen).collect();
        let is_old = |first: &Instant| now.saturating_duration_since(*first) >= GRACE;
        let old = self.first.iter().filter(|(_, first)| is_old(first));
        old.map(|(it, _)| it.clone()).collect()
    }
}

/// The orphans that one sweep may delete: none if many instances are orphans at once. Then the tag more likely names the wrong cluster.
pub fn deletable(orphans: &[Tagged], tagged: usize) -> &[Tagged] {
    let has_cause = orphans.len() > DELETIONS_MAX && orphans.len().saturating_mul(2) > tagged;
    let count = if has_cause { 0 } else { DELETIONS_MAX };
    orphans.get(..count).unwrap_or(orphans)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(n: usize) -> Tagged {
        Tagged {
            id: format!("i-{n:08x}").parse().unwrap(),
            name: format!("podvm-a-{n:08x}"),
        }
    }

    fn at(minutes: u64) -> Instant {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *START.get_or_init(Instant::now) + Duration::from_secs(minutes * 60)
    }

    #[test]
    fn instance_is_an_orphan_if_nothing_names_it_at_one_place_for_30_minutes() {
        let mut sights = Sights::default();
        let (a, b) = (tagged(1), tagged(2));
        let both = || vec![a.clone(), b.clone()];
        for (minutes, place, unnamed, orphans) in [
            (0, "x", both(), vec![]),
            (20, "x", vec![a.clone()], vec![]),
            // An object named b in between.
            (30, "x", both(), vec![a.clone()]),
            (59, "x", vec![b.clone()], vec![]),
            (60, "x", both(), vec![b.clone()]),
            (100, "y", both(), vec![]),
            (129, "y", both(), vec![]),
            (130, "y", both(), both()),
        ] {
            assert_eq!(
                sights.note(place, unnamed, at(minutes)),
                orphans,
                "{minutes}"
            );
        }
    }

    #[test]
    fn few_orphans_are_deleted_at_once_and_none_if_most_instances_are_orphans() {
        let orphans: Vec<Tagged> = (0..30).map(tagged).collect();
        for (count, tagged, expected) in [
            (0, 0, 0),
            (1, 1, 1),
            (5, 5, 5),
            (6, 11, 0),
            (6, 12, 5),
            (30, 40, 0),
            (30, 60, 5),
        ] {
            assert_eq!(
                deletable(&orphans[..count], tagged).len(),
                expected,
                "{count} of {tagged}"
            );
        }
    }
}
