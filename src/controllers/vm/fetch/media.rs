//! (pure) The files of CD drives with images by URL, and whether a start waits for an image.
//!
//! | the VM's pod | the image is missing | file in the drive |
//! |---|---|---|
//! | runs | yes | the previous file |
//! | runs | no | the image |
//! | runs, was created by the Java VM-Operator, and reads from the URL | yes or no | the URL, until the next start |
//! | none | yes, and another drive precedes it by `bootindex` | none |
//! | none | yes, and the guest boots from it | the image; the pod is created when the image is downloaded |
//! | none | yes, the guest boots from it, and the deadline has expired | none |

use crate::controllers::vm::fetch::{Fetch, State};
use crate::controllers::vm::images::boots_from;
use crate::controllers::vm::observe::{Observed, images_missing_since};
use crate::settings;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::time::Duration;

/// The files of the drives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Media {
    /// Index in `spec.vm.disks`, and the file of that drive; empty for an empty drive.
    pub files: Vec<(usize, String)>,
    /// The end of the wait for an image, if the start waits.
    pub wait: Option<Timestamp>,
}

/// The files of the drives, and the wait for a boot image.
#[must_use]
pub fn media(fetches: &[Fetch], observed: &Observed, settings: &settings::FetchSettings) -> Media {
    let until = deadline(observed, Duration::from_secs(settings.start_deadline));
    let in_time = observed.now < until;
    let pending = |fetch: &Fetch| fetch.state != State::Fetched;
    let is_alive = observed.own_pod().is_some_and(|pod| !pod.has_ended());
    let file = |fetch: &Fetch| match fetch {
        fetch if is_alive && previous_file(observed, fetch.remote.drive) == fetch.remote.url => {
            fetch.remote.url.clone()
        }
        fetch if !pending(fetch) => fetch.remote.path(),
        fetch if is_alive => previous_file(observed, fetch.remote.drive),
        fetch if in_time && boots_from(&observed.vm, fetch.remote.disk) => fetch.remote.path(),
        _ => String::new(),
    };
    let waits = |fetch: &Fetch| {
        pending(fetch) && !is_alive && in_time && boots_from(&observed.vm, fetch.remote.disk)
    };
    Media {
        files: fetches
            .iter()
            .map(|fetch| (fetch.remote.disk, file(fetch)))
            .collect(),
        wait: fetches.iter().any(waits).then_some(until),
    }
}

/// The time at which a start no longer waits. It counts from the first report of the missing image in the condition, in
/// whole seconds as conditions have.
fn deadline(observed: &Observed, wait: Duration) -> Timestamp {
    let since = images_missing_since(&observed.vm).unwrap_or(observed.now);
    let since = Timestamp::from_second(since.as_second()).unwrap_or(since);
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::ZERO);
    since.checked_add(wait).unwrap_or(since)
}

/// The file of this drive in the running VM.
fn previous_file(observed: &Observed, drive: usize) -> String {
    let media = observed
        .config_map
        .as_ref()
        .and_then(|config_map| config_map.config.media.get(drive));
    media.cloned().unwrap_or_default()
}
