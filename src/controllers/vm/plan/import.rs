//! (pure) The import of an image or a copy onto a disk.

use crate::api::vm::conditions::ReadyReason;
use crate::api::vm::diagnosis::Diagnosis;
use crate::api::vm::{DiskSource, HttpSource, PvcSource, State, UploadSource};
use crate::controllers::vm::claim_names;
use crate::controllers::vm::import::{self, DueImport};
use crate::controllers::vm::observe::Observed;
use crate::controllers::vm::plan::{DiskPlan, Place, invalid};
use crate::k8s::views::ClaimView;
use crate::settings;
use std::sync::Arc;

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
    /// The contents.
    pub source: Source,
    /// Image, proxies, authorities and limits of the import pod.
    pub settings: Box<settings::Reconciler>,
}

/// The contents of a disk.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// An image on a web server.
    Http(HttpSource),
    /// A copy of the disk on another PVC.
    Pvc {
        /// Name of the PVC.
        claim: String,
        /// Whether it is a block device.
        is_device: bool,
    },
    /// An image that a user sends to the import pod.
    Upload(UploadSource),
}

/// The import that is due, if there is one.
///
/// # Errors
/// If the operator's configuration does not allow the scheme of the URL, or the PVC of a copy cannot be read now.
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
    let source = match due.source {
        DiskSource { pvc: Some(pvc), .. } => pvc_source(&due, pvc, observed)?,
        DiskSource {
            http: Some(http), ..
        } => http_source(&due, http, settings)?,
        DiskSource {
            upload: Some(upload),
            ..
        } => Source::Upload(upload.clone()),
        DiskSource {
            http: None,
            pvc: None,
            upload: None,
        } => return Ok(None),
    };
    Ok(Some(ImportPlan {
        claim: due.claim,
        volume: disk.name.clone(),
        directory: (disk.place != Place::Device).then(|| disk.directory()),
        to: disk.path(),
        source,
        settings: Box::new(settings.clone()),
    }))
}

/// The PVC, if it has contents and nothing can write to it.
fn pvc_source(
    due: &DueImport<'_>,
    pvc: &PvcSource,
    observed: &Observed,
) -> Result<Source, Diagnosis> {
    let claim = pvc.name.clone();
    if claim_names::generates(&observed.vm, &claim) {
        return invalid(
            format!("spec.vm.disks[{}].source.pvc.name", due.disk),
            format!("the PVC {claim:?} belongs to the VM itself"),
            "name the PVC of another VM, or remove the source",
        );
    }
    let source = &observed.copy_source;
    let present = source.claim.as_ref();
    let is_device = present.is_some_and(|it| it.spec.volume_mode.as_deref() == Some("Block"));
    let is_usable = |it: &Arc<ClaimView>| {
        it.metadata.deletion_timestamp.is_none() && it.status.phase == "Bound"
    };
    let place = format!("the PVC {claim:?} of spec.vm.disks[{}].source", due.disk);
    // A stopped VM needs no source, and a running copy has it.
    if observed.desired_state() == State::Running && observed.pod.is_none() {
        if !present.is_some_and(is_usable) {
            let problem = format!("{place} does not exist, is being deleted, or has no volume");
            let step = "create and fill the PVC, or correct the name. If the disk has its contents already, remove the source";
            return Err(Diagnosis::new(ReadyReason::SourceMissing, problem, step));
        }
        if let Some(vm) = &source.unfilled {
            let problem = format!("{place} is not filled yet by VM {vm:?}");
            let step = format!("start VM {vm:?}, and stop it when its import is complete");
            return Err(Diagnosis::new(ReadyReason::SourceMissing, problem, step));
        }
        if let Some(writer) = &source.writer {
            let problem = format!("{place} is not copied while {writer} can write to it");
            let step = format!(
                "stop {writer}; the copy then begins within 10 s. A pod that only reads can set readOnly in its volume"
            );
            return Err(Diagnosis::new(ReadyReason::SourceInUse, problem, step));
        }
    }
    Ok(Source::Pvc { claim, is_device })
}

fn http_source(
    due: &DueImport<'_>,
    http: &HttpSource,
    settings: &settings::Reconciler,
) -> Result<Source, Diagnosis> {
    let url = &http.url;
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
    Ok(Source::Http(http.clone()))
}
