//! (pure) CD images given by URL, and the pods that fetch them. [`crate::controllers::vm::fetch`] fetches them.

pub mod progress_cache;

use crate::api::VirtualMachine;
use crate::api::runner::fetch::{Progress, file_name, is_url, key, pod_name};
use crate::api::vm::names;
use crate::controllers::vm::views::PodView;
use kube::ResourceExt;
use std::sync::Arc;
use std::time::Duration;

/// What the names of all fetch pods begin with.
pub const POD_PREFIX: &str = "vmop-fetch-";

/// A CD image given by URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Place of the drive in `spec.vm.disks`.
    pub disk: usize,
    /// Place of the drive among the CD drives.
    pub drive: usize,
    /// The URL.
    pub url: String,
    /// What it must be, in hexadecimal digits.
    pub sha256: Option<String>,
}

impl Remote {
    /// The field that names it.
    #[must_use]
    pub fn field(&self) -> String {
        format!("spec.vm.disks[{}].cdrom.image", self.disk)
    }

    /// Name of the pod that fetches it.
    #[must_use]
    pub fn pod_name(&self) -> String {
        pod_name(&self.url, self.sha256.as_deref())
    }

    /// Its path in pods.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}/{}", names::IMAGE_REPOSITORY_DIR, self.file_name())
    }

    /// Its path in the repository.
    #[must_use]
    pub fn file_name(&self) -> String {
        file_name(&self.url, self.sha256.as_deref())
    }

    /// The annotation on the repository's claim that says that it is there.
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
pub fn remotes(vm: &VirtualMachine) -> Vec<Remote> {
    let disks = vm.spec.vm.disks.iter().enumerate();
    let cds = disks
        .filter_map(|(disk, item)| item.cdrom.as_ref().map(|cd| (disk, cd)))
        .enumerate();
    let remotes = cds
        .filter(|(_, (_, cd))| is_remote(&cd.image))
        .map(|(drive, (disk, cd))| {
            let sha256 = cd
                .checksum
                .as_deref()
                .and_then(|sum| sum.strip_prefix("sha256:"));
            Remote {
                disk,
                drive,
                url: cd.image.clone(),
                sha256: sha256.map(str::to_ascii_lowercase),
            }
        });
    remotes.collect()
}

/// Whether a CD image is given by a URL from which it is fetched.
#[must_use]
pub fn is_remote(image: &str) -> bool {
    is_url(image) && !image.starts_with("file://")
}

/// What is seen of one image's fetch.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The pod of its name, whosever it is.
    pub pod: Option<Arc<PodView>>,
    /// How far it is.
    pub progress: Option<Progress>,
    /// How long ago the pod has ended, if it has and says when.
    pub ended_for: Option<Duration>,
}

/// Whether a pod is one that fetches an image.
#[must_use]
pub fn is_fetch_pod(pod: &PodView) -> bool {
    let is = |label, value| {
        pod.labels()
            .get(label)
            .is_some_and(|present| present == value)
    };
    is(names::LABEL_COMPONENT, names::APP_FETCH) && is(names::LABEL_MANAGED_BY, names::MANAGED_BY)
}
