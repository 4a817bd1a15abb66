//! (pure) The import of an image onto a disk.

use crate::api::vm::HttpSource;
use crate::api::vm::diagnosis::Diagnosis;
use crate::controllers::vm::import;
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::plan::{DiskPlan, Place, invalid};
use crate::settings;

/// An import that is due.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportPlan {
    /// Name of the PVC that is filled.
    pub claim: String,
    /// Mount path of its file system. `None` if the disk is a block device.
    pub directory: Option<String>,
    /// Name of its volume in the pod.
    pub volume: String,
    /// Path of the image file or of the block device.
    pub to: String,
    /// The image.
    pub source: HttpSource,
    /// Image, proxies, authorities and limits of the import pod.
    pub settings: Box<settings::Reconciler>,
}

/// The import that is due, if there is one.
///
/// # Errors
/// If the operator's configuration does not allow the scheme of the URL.
pub(super) fn import(
    observed: &Observed,
    disks: &[DiskPlan],
    settings: &settings::Reconciler,
) -> Result<Option<ImportPlan>, Diagnosis> {
    let Some(due) = import::due(observed) else {
        return Ok(None);
    };
    let Some(disk) = disks.iter().find(|disk| disk.claim == due.claim) else {
        return Ok(None);
    };
    let url = &due.source.url;
    let allowed = &settings.image_repository.fetch.schemes;
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    if !allowed.iter().any(|it| it.eq_ignore_ascii_case(scheme)) {
        return invalid(
            format!("spec.vm.disks[{}].source.http.url", due.disk),
            format!(
                "the operator's ConfigMap does not allow the URL scheme {scheme:?} (imageRepository.fetch.schemes)"
            ),
            match allowed.as_slice() {
                [] => "fill the PVC before the first start of the VM, and remove the source"
                    .to_owned(),
                allowed => format!("use a URL with the scheme {}", allowed.join(" or ")),
            },
        );
    }
    Ok(Some(ImportPlan {
        claim: due.claim,
        volume: disk.name.clone(),
        directory: (disk.place != Place::Device).then(|| disk.directory()),
        to: disk.path(),
        source: due.source.clone(),
        settings: Box::new(settings.clone()),
    }))
}
