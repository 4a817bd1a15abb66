//! (pure) CD images that a VM names by URL, the CD drive from which it boots, and the pods that download images.
//! [`crate::controllers::vm::fetch`] carries out the downloads.

use crate::api::VirtualMachine;
use crate::api::runner::fetch::{Progress, file_name, is_url, key, pod_name};
use crate::api::vm::{Disk, names};
use crate::k8s::store::trim::Labelled;
use crate::k8s::views::PodView;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The prefix of the names of all download pods.
pub const POD_PREFIX: &str = "vmop-fetch-";

/// A CD image given by URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteImage {
    /// Index of the drive in `spec.vm.disks`.
    pub disk: usize,
    /// Index of the drive among the CD drives.
    pub drive: usize,
    /// The URL.
    pub url: String,
    /// The required SHA-256 checksum, in lower-case hexadecimal digits.
    pub sha256: Option<String>,
}

impl RemoteImage {
    /// Path of the field with the URL.
    #[must_use]
    pub fn field(&self) -> String {
        format!("spec.vm.disks[{}].cdrom.image", self.disk)
    }

    /// Name of the download pod.
    #[must_use]
    pub fn pod_name(&self) -> String {
        pod_name(&self.url, self.sha256.as_deref())
    }

    /// Path of the file in pods.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}/{}", names::IMAGE_REPOSITORY_DIR, self.file_name())
    }

    /// Name of the file in the image repository.
    #[must_use]
    pub fn file_name(&self) -> String {
        file_name(&self.url, self.sha256.as_deref())
    }

    /// The annotation of the image repository that records a finished download.
    #[must_use]
    pub fn annotation(&self) -> String {
        format!(
            "{}/{}",
            names::ANNOTATION_FETCHED,
            key(&self.url, self.sha256.as_deref())
        )
    }
}

/// The images that a VM names by URL.
#[must_use]
pub fn remote_images(vm: &VirtualMachine) -> Vec<RemoteImage> {
    let disks = vm.spec.vm.disks.iter().enumerate();
    let cds = disks
        .filter_map(|(disk, item)| item.cdrom.as_ref().map(|cd| (disk, cd)))
        .enumerate();
    let remote_images =
        cds.filter(|(_, (_, cd))| is_remote(&cd.image))
            .map(|(drive, (disk, cd))| {
                let sha256 = cd
                    .checksum
                    .as_deref()
                    .and_then(|sum| sum.strip_prefix("sha256:"));
                RemoteImage {
                    disk,
                    drive,
                    url: cd.image.clone(),
                    sha256: sha256.map(str::to_ascii_lowercase),
                }
            });
    remote_images.collect()
}

/// Whether the guest boots from the CD drive with this index in `spec.vm.disks`: no drive with a file precedes it by
/// `bootindex`. Drives without `bootindex` come last.
#[must_use]
pub fn boots_from(vm: &VirtualMachine, index: usize) -> bool {
    let disks = &vm.spec.vm.disks;
    let order = |disk: &Disk| disk.bootindex.unwrap_or(i64::MAX);
    let Some(own) = disks.get(index).map(order) else {
        return false;
    };
    let precedes = |disk: &Disk| {
        let has_file = disk.cdrom.as_ref().is_none_or(|cd| !cd.image.is_empty());
        has_file && order(disk) < own
    };
    !disks.iter().any(precedes)
}

/// The CD image from which the guest boots, and the number of its drive among the CD drives.
#[must_use]
pub fn boot_image(vm: &VirtualMachine) -> Option<(usize, &str)> {
    let disks = vm.spec.vm.disks.iter().enumerate();
    let drives = disks.filter_map(|(disk, item)| item.cdrom.as_ref().map(|cd| (disk, cd)));
    let mut drives = drives.enumerate();
    let is_first = |disk, image: &str| !image.is_empty() && boots_from(vm, disk);
    let (drive, (_, cd)) = drives.find(|(_, (disk, cd))| is_first(*disk, &cd.image))?;
    Some((drive, cd.image.as_str()))
}

/// Whether a CD image is given by a URL that has to be downloaded.
#[must_use]
pub fn is_remote(image: &str) -> bool {
    is_url(image) && !image.starts_with("file://")
}

/// The observed download of one image.
#[derive(Clone, Debug, Default)]
pub struct ObservedDownload {
    /// The pod with the name of the download pod. Another program may have created it.
    pub pod: Option<Arc<PodView>>,
    /// The progress of a running download.
    pub progress: Option<Progress>,
    /// Time since the pod has ended.
    pub ended_for: Option<Duration>,
}

/// Whether a pod is a download pod.
#[must_use]
pub fn is_download_pod(pod: &PodView) -> bool {
    let is = |label, value| pod.label(label) == Some(value);
    is(names::LABEL_COMPONENT, names::APP_FETCH) && is(names::LABEL_MANAGED_BY, names::MANAGED_BY)
}

type ReadProgress = (Timestamp, Option<Progress>);

/// The last known progress of downloads, by the pod's name, with the time of the reading. One reading serves all VMs that wait for an
/// image.
#[derive(Default)]
pub struct ProgressCache(Mutex<HashMap<String, ReadProgress>>);

impl ProgressCache {
    fn entries(&self) -> MutexGuard<'_, HashMap<String, ReadProgress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last known progress of a pod, and whether it is younger than `max_age`.
    pub fn get(&self, pod: &str, now: Timestamp, max_age: Duration) -> (Option<Progress>, bool) {
        let max_age = SignedDuration::try_from(max_age).unwrap_or(SignedDuration::ZERO);
        match self.entries().get(pod) {
            // A reading from the future is old: the clock was set back.
            Some((at, progress)) => {
                let age = now.duration_since(*at);
                (*progress, (SignedDuration::ZERO..max_age).contains(&age))
            }
            None => (None, false),
        }
    }

    /// Records the progress that was read now.
    pub fn insert(&self, pod: &str, now: Timestamp, progress: Option<Progress>) {
        self.entries().insert(pod.to_owned(), (now, progress));
    }

    /// Removes all pods except those that `is_retained` selects.
    pub fn retain(&self, is_retained: impl Fn(&str) -> bool) {
        self.entries().retain(|pod, _| is_retained(pod));
    }
}
