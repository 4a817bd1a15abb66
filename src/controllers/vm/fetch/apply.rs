//! (client) Carries out the steps of downloads: creates and deletes download pods, and records finished downloads.

use crate::api::runner::fetch::shown;
use crate::api::vm::conditions::DesiredCondition;
use crate::api::vm::names;
use crate::controllers::vm::context::VmController;
use crate::controllers::vm::diagnose;
use crate::controllers::vm::fetch::{Fetch, State, Step, condition};
use crate::k8s::error::Error;
use crate::k8s::writer::only_uid;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::Patch;
use serde_json::json;

/// The state of an image, and its download pod if one has to be created.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedDownload {
    /// The image and its next step.
    pub fetch: Fetch,
    /// The download pod of this step.
    pub pod: Option<Pod>,
}

/// Carries out the next step of each image. Returns the condition `MediaFetched`. A rejected download pod is reported in the condition and
/// does not fail the reconcile: the VM may boot from another disk.
///
/// # Errors
/// If a request fails for another reason than a rejection.
pub async fn apply(
    downloads: &[PreparedDownload],
    ctx: &VmController,
) -> Result<Option<DesiredCondition>, Error> {
    let mut fetches = Vec::new();
    for PreparedDownload { fetch, pod } in downloads {
        let mut fetch = fetch.clone();
        match apply_step(&fetch, pod.as_ref(), ctx).await {
            Err(error) if error.is_rejection() => {
                fetch.state = State::Failed(diagnose::rejected(&error, None).into());
            }
            result => result?,
        }
        fetches.push(fetch);
    }
    Ok(condition(&fetches))
}

async fn apply_step(fetch: &Fetch, pod: Option<&Pod>, ctx: &VmController) -> Result<(), Error> {
    let url = shown(&fetch.remote.url);
    match &fetch.step {
        Step::None => Ok(()),
        Step::Create(_) => create_pod(pod, &url, ctx).await,
        Step::Retry(uid, attempt) => {
            tracing::info!(
                url,
                number = attempt.number,
                "retrying the download of a CD image"
            );
            delete_pod(fetch, uid, ctx).await?;
            create_pod(pod, &url, ctx).await
        }
        Step::Record(uid) => {
            tracing::info!(url, "the download of a CD image has finished");
            record(fetch, ctx).await?;
            delete_pod(fetch, uid, ctx).await
        }
        Step::Remove(uid) => delete_pod(fetch, uid, ctx).await,
    }
}

async fn create_pod(pod: Option<&Pod>, url: &str, ctx: &VmController) -> Result<(), Error> {
    let Some(pod) = pod else { return Ok(()) };
    tracing::info!(url, "starting the download of a CD image");
    // The reconcile of another VM may have created the pod.
    ctx.scope
        .writer()
        .create_or_get(&ctx.caches.pods, pod)
        .await?;
    Ok(())
}

/// Annotates the image repository with the finished download.
async fn record(fetch: &Fetch, ctx: &VmController) -> Result<(), Error> {
    let annotations = json!({fetch.remote.annotation(): fetch.remote.file_name()});
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    let (claims, name) = (&ctx.caches.claims, names::IMAGE_REPOSITORY_CLAIM);
    ctx.scope
        .writer()
        .patch::<PersistentVolumeClaim, _>(claims, name, &patch)
        .await?;
    Ok(())
}

/// Deletes an exited download pod.
async fn delete_pod(fetch: &Fetch, uid: &str, ctx: &VmController) -> Result<(), Error> {
    ctx.scope
        .writer()
        .delete::<Pod, _>(
            &ctx.caches.pods,
            &fetch.remote.pod_name(),
            only_uid(uid),
            Some(0),
        )
        .await
        .map(drop)
}
