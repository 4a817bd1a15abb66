//! (pure) What is in which CD drive while an image is on its way, and whether a start waits for it.
//!
//! | the VM's pod | the image is not there yet | in the drive |
//! |---|---|---|
//! | lives | | what is there, until the image is |
//! | is the reference's, which reads from the URL itself | also if it is there | the URL, until the next start |
//! | none | a drive with something in it precedes by `bootindex` | nothing |
//! | none | the guest boots from it | the image: the pod is made once it is there |
//! | none | the guest boots from it, and the deadline is over | nothing |

use crate::api::vm::Disk;
use crate::controllers::vm::fetch::{Fetch, State};
use crate::controllers::vm::observe::{Observed, images_missing_since};
use crate::settings;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::time::Duration;

/// What is in the drives of images by URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Media {
    /// Place in `spec.vm.disks`, and the file in that drive; empty where there is none.
    pub files: Vec<(usize, String)>,
    /// Until when a start waits for an image.
    pub wait: Option<Timestamp>,
}

/// What is in the drives.
#[must_use]
pub fn media(fetches: &[Fetch], observed: &Observed, settings: &settings::FetchSettings) -> Media {
    let until = deadline(observed, Duration::from_secs(settings.start_deadline));
    let in_time = observed.now < until;
    let pending = |fetch: &Fetch| fetch.state != State::Fetched;
    let lives = observed.own_pod().is_some_and(|pod| !pod.has_ended());
    let file = |fetch: &Fetch| match fetch {
        fetch if lives && before(observed, fetch.remote.drive) == fetch.remote.url => {
            fetch.remote.url.clone()
        }
        fetch if !pending(fetch) => fetch.remote.path(),
        fetch if lives => before(observed, fetch.remote.drive),
        fetch if in_time && boots_from(observed, fetch.remote.disk) => fetch.remote.path(),
        _ => String::new(),
    };
    let waits = |fetch: &Fetch| {
        pending(fetch) && !lives && in_time && boots_from(observed, fetch.remote.disk)
    };
    Media {
        files: fetches
            .iter()
            .map(|fetch| (fetch.remote.disk, file(fetch)))
            .collect(),
        wait: fetches.iter().any(waits).then_some(until),
    }
}

/// When a start does not wait any more. It counts from the time when the image was found missing, which stands in the
/// condition; whole seconds, as there.
fn deadline(observed: &Observed, wait: Duration) -> Timestamp {
    let since = images_missing_since(&observed.vm).unwrap_or(observed.now);
    let since = Timestamp::from_second(since.as_second()).unwrap_or(since);
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::ZERO);
    since.checked_add(wait).unwrap_or(since)
}

/// What the running machine has in that drive.
fn before(observed: &Observed, drive: usize) -> String {
    let media = observed
        .config_map
        .as_ref()
        .and_then(|config_map| config_map.config.media.get(drive));
    media.cloned().unwrap_or_default()
}

/// Whether the guest would boot from the CD drive at that place of `spec.vm.disks`: no drive with something in it comes
/// before it by `bootindex`. Drives without come last.
fn boots_from(observed: &Observed, place: usize) -> bool {
    let disks = &observed.vm.spec.vm.disks;
    let order = |disk: &Disk| disk.bootindex.unwrap_or(i64::MAX);
    let Some(own) = disks.get(place).map(order) else {
        return false;
    };
    let precedes = |disk: &Disk| {
        let has_something = disk.cdrom.as_ref().is_none_or(|cd| !cd.image.is_empty());
        has_something && order(disk) < own
    };
    !disks.iter().any(precedes)
}
