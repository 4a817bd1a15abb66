//! (pure) The state of a domain and its volumes, and the proof that they are those of a pod.

use crate::api::peerpod::{LibvirtUuid, instance_name_prefix, is_instance_name};
use crate::controllers::peerpod::decide::{Answer, InstanceState};
use crate::controllers::peerpod::facts::{Owner, Seen};
use crate::controllers::peerpod::libvirt::xdr::{Domain, Volume};
use std::collections::BTreeSet;

/// Endings of the names of volumes after that of the domain: the disk and the cloud-init data, with the overlays that snapshots put on them.
const VOLUME_NAMES: [&str; 3] = ["-root.", "-cloudinit.", "."];

/// Whether the cloud-api-adaptor gives this name to volumes of the domain. A name of another instance of a pod is none, because these names have no
/// dots.
pub fn is_volume_name(name: &str, domain: &str) -> bool {
    let rest = name.strip_prefix(domain).filter(|it| !it.contains('/'));
    rest.is_some_and(|rest| VOLUME_NAMES.iter().any(|it| rest.starts_with(it)))
}

/// A volume that is named after the domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnVolume {
    /// The volume.
    pub volume: Volume,
    /// Its path.
    pub path: Option<String>,
}

impl OwnVolume {
    /// Pool and name, for the note and for messages.
    pub fn text(&self) -> String {
        format!("{}/{}", self.volume.pool, self.volume.name)
    }

    /// Whether the text is its path, its key, or its pool and name.
    pub fn is(&self, reference: &String) -> bool {
        *reference == self.volume.key
            || *reference == self.text()
            || Some(reference) == self.path.as_ref()
    }
}

/// A domain and its volumes, as libvirt describes them now.
#[derive(Debug, Default)]
pub struct Found {
    /// The domain, if libvirt has it.
    pub domain: Option<Domain>,
    /// Its volumes. Without the domain, those of the note.
    pub volumes: Vec<OwnVolume>,
    /// Volumes that are named after the domain and are never deleted, each with the reason.
    pub remains: Vec<String>,
}

impl Found {
    /// The answer about the domain. `place` is the host.
    pub fn answer(&self, owner: &Owner, place: &str) -> Answer {
        let place = place.to_owned();
        let (state, seen) = match &self.domain {
            None => (InstanceState::Absent, None),
            Some(domain) => match foreign(domain, owner) {
                Some(why) => (InstanceState::NotOurs(why), None),
                None => {
                    let mut volumes: Vec<_> = self.volumes.iter().map(OwnVolume::text).collect();
                    volumes.sort();
                    let (place, name) = (place.clone(), domain.name.clone());
                    let seen = Seen {
                        place,
                        name,
                        volumes,
                    };
                    (InstanceState::Ours { is_ending: false }, Some(seen))
                }
            },
        };
        Answer {
            noted_remain: self.domain.is_none() && !self.volumes.is_empty(),
            remains: self.remains.clone(),
            state,
            seen,
            place,
            ..Answer::default()
        }
    }
}

/// Why the domain is not that of the pod. An account that may write PeerPods can name any domain, so the proof is at the domain.
fn foreign(domain: &Domain, owner: &Owner) -> Option<String> {
    (!is_instance_name(&domain.name, &owner.name)).then(|| {
        format!(
            "the name of domain {} does not begin with {} and end with 8 characters of the sandbox, which prove that it belongs to the pod",
            domain.uuid,
            instance_name_prefix(&owner.name)
        )
    })
}

/// The uses of volumes on a host.
#[derive(Debug, Default)]
pub struct Uses {
    /// Domains, with all paths and volumes to which they refer.
    pub domains: Vec<(Domain, BTreeSet<String>)>,
    /// Volumes, as `<pool>/<volume>`, with the path of the volume on which they are based.
    pub backings: Vec<(String, String)>,
}

impl Uses {
    /// The volumes that nothing else uses, and why the others remain. A volume is also used by one of the others, such as the base of an
    /// overlay that remains.
    pub fn unused(
        &self,
        volumes: &[OwnVolume],
        own: Option<LibvirtUuid>,
    ) -> (Vec<OwnVolume>, Vec<String>) {
        let (mut unused, mut remains) = (volumes.to_vec(), Vec::new());
        let used = |rest: &[OwnVolume]| {
            let mut all = rest.iter().enumerate();
            all.find_map(|(n, volume)| Some((n, self.other(volume, own, rest)?)))
        };
        while let Some((n, why)) = used(&unused) {
            unused.remove(n);
            remains.push(why);
        }
        (unused, remains)
    }

    /// Why the volume may not be deleted: the use by another domain than `own`, or by a volume that is not among `volumes`.
    fn other(
        &self,
        volume: &OwnVolume,
        own: Option<LibvirtUuid>,
        volumes: &[OwnVolume],
    ) -> Option<String> {
        let text = volume.text();
        let mut domains = self.domains.iter();
        let domain = domains.find(|(domain, references)| {
            Some(domain.uuid) != own && references.iter().any(|it| volume.is(it))
        });
        if let Some((domain, _)) = domain {
            return Some(format!("volume {text} is used by domain {}", domain.name));
        }
        let is_own = |user: &String| volumes.iter().any(|it| it.text() == *user);
        let mut backings = self.backings.iter();
        let (user, _) = backings.find(|(user, path)| volume.is(path) && !is_own(user))?;
        Some(format!("volume {text} is the base of volume {user}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: &str = "podvm-a-0123abcd";

    fn volume(name: &str) -> OwnVolume {
        let (pool, key) = ("p".to_owned(), format!("/p/{name}"));
        let path = Some(format!("/link/{name}"));
        let name = name.to_owned();
        OwnVolume {
            volume: Volume { pool, name, key },
            path,
        }
    }

    #[test]
    fn volumes_are_named_after_their_domain() {
        for (rest, is_own) in [
            ("-root.qcow2", true),
            ("-cloudinit.iso", true),
            ("-root.snapshot", true),
            (".img", true),
            ("-root", false),
            ("x-root.qcow2", false),
            // The volume of another instance, of a pod with such a name.
            ("-0123abcd-root.qcow2", false),
            ("-root.x/y", false),
        ] {
            assert_eq!(
                is_volume_name(&format!("{DOMAIN}{rest}"), DOMAIN),
                is_own,
                "{rest}"
            );
        }
        assert!(!is_volume_name("base.qcow2", DOMAIN));
    }

    #[test]
    fn volumes_that_something_else_uses_remain() {
        let domain = |n: u8, references: &[&str]| {
            let references = references.iter().map(|it| (*it).to_owned()).collect();
            let (name, uuid, number) = (format!("domain-{n}"), LibvirtUuid([n; 16]), -1);
            (Domain { name, uuid, number }, references)
        };
        let own = [
            volume("a"),
            volume("b"),
            volume("c"),
            volume("d"),
            volume("e"),
        ];
        let backing = |user: &str, base: &str| (user.to_owned(), base.to_owned());
        let uses = Uses {
            domains: vec![
                domain(1, &["/p/a", "/p/e"]),
                domain(2, &["/link/b", "p/c", "/p/x"]),
            ],
            backings: vec![backing("p/other", "/p/d"), backing("p/a", "/p/e")],
        };
        let other = |n: usize| uses.other(&own[n], Some(LibvirtUuid([1; 16])), &own);
        assert_eq!(other(0), None);
        for (n, user) in [(1, "domain-2"), (2, "domain-2"), (3, "p/other")] {
            assert!(other(n).unwrap().contains(user), "{n}");
        }
        // The overlay of a snapshot belongs to the same domain.
        assert_eq!(other(4), None);
        // Without it, its base remains, too.
        let (unused, remains) = uses.unused(&own, None);
        assert!(unused.is_empty(), "{unused:?}");
        assert_eq!(remains.len(), 5);
        let (unused, _) = uses.unused(&own, Some(LibvirtUuid([1; 16])));
        assert_eq!(unused, [own[0].clone(), own[4].clone()]);
        assert!(
            uses.other(&own[0], None, &own)
                .unwrap()
                .contains("domain-1")
        );
    }
}
