//! (client) Does what is to be done about images.

use crate::api::conditions::Wanted;
use crate::api::runner::fetch::shown;
use crate::api::vm::names;
use crate::controllers::vm::context::Context;
use crate::controllers::vm::diagnose::Problem;
use crate::controllers::vm::fetch::{Fetch, State, Step, condition};
use crate::k8s::error::Error;
use crate::k8s::writer::only;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::Patch;
use serde_json::json;

/// The state of an image, and its download pod if one has to be created.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedDownload {
    /// The image.
    pub fetch: Fetch,
    /// Its pod, if one has to be made.
    pub pod: Option<Pod>,
}

/// Does it, and gives what there is to tell. A pod that the API server refuses keeps nobody from going on: the VM may
/// have something else to start from.
///
/// # Errors
/// If a write fails for another reason than a refusal.
pub async fn apply(downloads: &[PreparedDownload], ctx: &Context) -> Result<Option<Wanted>, Error> {
    let mut fetches = Vec::new();
    for PreparedDownload { fetch, pod } in downloads {
        let mut fetch = fetch.clone();
        match one(&fetch, pod.as_ref(), ctx).await {
            Err(error) if error.is_rejection() => {
                let Problem { reason, message } = Problem::rejected(&error);
                fetch.state = State::Failed {
                    reason: reason.into(),
                    message,
                };
            }
            result => result?,
        }
        fetches.push(fetch);
    }
    Ok(condition(&fetches))
}

async fn one(fetch: &Fetch, pod: Option<&Pod>, ctx: &Context) -> Result<(), Error> {
    let url = shown(&fetch.remote.url);
    match &fetch.step {
        Step::None => Ok(()),
        Step::Create(_) => create(pod, &url, ctx).await,
        Step::Retry(uid, attempt) => {
            tracing::info!(
                url,
                number = attempt.number,
                "trying to fetch an image again"
            );
            remove(fetch, uid, ctx).await?;
            create(pod, &url, ctx).await
        }
        Step::Record(uid) => {
            tracing::info!(url, "an image is fetched");
            record(fetch, ctx).await?;
            remove(fetch, uid, ctx).await
        }
        Step::Remove(uid) => remove(fetch, uid, ctx).await,
    }
}

async fn create(pod: Option<&Pod>, url: &str, ctx: &Context) -> Result<(), Error> {
    let Some(pod) = pod else { return Ok(()) };
    tracing::info!(url, "fetching an image");
    // By POST: another VM's reconcile may have been first.
    ctx.writer().create_or_get(&ctx.caches.pods, pod).await?;
    Ok(())
}

/// Says on the repository's claim that the image is there.
async fn record(fetch: &Fetch, ctx: &Context) -> Result<(), Error> {
    let annotations = json!({fetch.remote.annotation(): fetch.remote.file_name()});
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    let (claims, name) = (&ctx.caches.claims, names::IMAGE_REPOSITORY_CLAIM);
    ctx.writer()
        .patch::<PersistentVolumeClaim, _>(claims, name, &patch)
        .await?;
    Ok(())
}

/// Removes a pod that has ended.
async fn remove(fetch: &Fetch, uid: &str, ctx: &Context) -> Result<(), Error> {
    ctx.writer()
        .delete::<Pod, _>(
            &ctx.caches.pods,
            &fetch.remote.pod_name(),
            only(uid),
            Some(0),
        )
        .await
}
