//! (client) The status of PeerPods, and their events.

use crate::api::PeerPod;
use crate::api::conditions::{DesiredCondition, find};
use crate::api::peerpod::{PeerPodReason, READY, names};
use crate::controllers::peerpod::PeerPodController;
use crate::controllers::peerpod::decide::Release;
use crate::k8s::cluster::Cluster;
use crate::k8s::controller::Outcome;
use crate::k8s::error::Error;
use crate::k8s::events;
use crate::k8s::key::ObjectKey;
use crate::k8s::writer::Writer;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use kube::core::PartialObjectMeta;
use kube::runtime::events::EventType;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

/// The outcome of a release: a label of the metric.
pub(super) fn outcome(release: Release, has_deleted: bool) -> &'static str {
    match release {
        Release::Gone if has_deleted => "Deleted",
        Release::Gone => "Gone",
        Release::NoInstance => "NoInstance",
        Release::Replaced => "Replaced",
        Release::Abandoned => "Abandoned",
    }
}

/// Publishes an event of type `Normal`.
pub(super) async fn normal(cluster: &Cluster, peerpod: &PeerPod, reason: &str, note: &str) {
    let object = peerpod.object_ref(&());
    events::publish(cluster, &object, EventType::Normal, reason, note).await;
}

/// Logs a release, and publishes its event.
pub(super) async fn released(
    cluster: &Cluster,
    peerpod: &PeerPod,
    release: Release,
    has_deleted: bool,
) {
    let id = &peerpod.spec.instance_id;
    let (reason, note) = match release {
        Release::Gone if has_deleted => ("InstanceDeleted", format!("instance {id} is deleted")),
        Release::Gone => (
            "InstanceGone",
            format!("instance {id} does not exist any more"),
        ),
        Release::NoInstance => (
            "NothingToDelete",
            "the PeerPod names no instance".to_owned(),
        ),
        Release::Replaced => {
            let note = format!("instance {id} is retained for a younger PeerPod of the pod");
            ("InstanceRetained", note)
        }
        // Reported before the release.
        Release::Abandoned => return,
    };
    tracing::info!(peerpod = %ObjectKey::of(peerpod), "{note}");
    normal(cluster, peerpod, reason, &note).await;
}

/// Reports resources that remain after the release of the `PeerPod`.
pub(super) async fn remaining(cluster: &Cluster, peerpod: &PeerPod, remains: &[String]) {
    if remains.is_empty() {
        return;
    }
    let note = format!(
        "{}; delete it by hand if nothing uses it",
        remains.join(", and ")
    );
    tracing::warn!(peerpod = %ObjectKey::of(peerpod), "{note}");
    let object = peerpod.object_ref(&());
    events::publish(
        cluster,
        &object,
        EventType::Warning,
        "ResourcesRemain",
        &note,
    )
    .await;
}

/// Reports that a person has abandoned an instance, also on the controller's Deployment: the namespace of the `PeerPod` may be deleted.
/// `namespace` is that of the controller.
pub(super) async fn abandoned(cluster: &Cluster, namespace: &str, peerpod: &PeerPod) {
    const REASON: &str = "InstanceAbandoned";
    let (key, id) = (ObjectKey::of(peerpod), &peerpod.spec.instance_id);
    let retain = match &*peerpod.spec.cloud_provider {
        names::PROVIDER_AWS => {
            "; to retain the instance if sweep is delete, remove its tag caa-cluster-uid"
        }
        _ => "",
    };
    let note = format!(
        "PeerPod {key} is released without a proof that instance {id} of provider {} is deleted, because of the annotation {}{retain}",
        peerpod.spec.cloud_provider,
        names::ANNOTATION_ABANDON
    );
    tracing::warn!("{note}");
    let object = peerpod.object_ref(&());
    events::publish(cluster, &object, EventType::Warning, REASON, &note).await;
    on_deployment(cluster, namespace, REASON, &note).await;
}

/// Publishes a Warning on the controller's Deployment. `namespace` is that of the controller.
pub(super) async fn on_deployment(cluster: &Cluster, namespace: &str, reason: &str, note: &str) {
    let writer = Writer::new(cluster, namespace);
    let deployment = writer.find::<Deployment, PartialObjectMeta<Deployment>>(names::MANAGER);
    let deployment = deployment.await;
    if let Err(error) = &deployment {
        tracing::warn!(%error, reason, "cannot report this on the Deployment of the controller");
    }
    if let Ok(Some(deployment)) = deployment {
        let mut object = deployment.object_ref(&());
        (object.api_version, object.kind) =
            (Some("apps/v1".to_owned()), Some("Deployment".to_owned()));
        events::publish(cluster, &object, EventType::Warning, reason, note).await;
    }
}

/// Counts the deletions. Only the leader knows their reasons.
pub(super) fn update_metrics(controller: &PeerPodController) {
    let (mut pending, mut oldest) = (BTreeMap::new(), 0);
    let all = controller.peerpods.reader().state();
    let is_leader = controller.cluster.leadership.leads();
    for peerpod in all.iter().filter(|_| is_leader) {
        let Some(since) = &peerpod.metadata.deletion_timestamp else {
            continue;
        };
        let state = controller.states.with(&ObjectKey::of(&**peerpod), |state| {
            (state.reason, state.free_since)
        });
        let (reason, free_since) = state.unwrap_or_default();
        *pending
            .entry(reason.map_or("InProgress", Into::into))
            .or_default() += 1;
        if reason != Some(PeerPodReason::WaitingForPod) {
            let age = (controller.cluster.now)().duration_since(since.0).as_secs();
            // The PeerPod may have been deleted long before its pod.
            let now = (controller.cluster.instant)();
            let free = free_since.map(|it| now.saturating_duration_since(it).as_secs());
            let free = free.and_then(|it| i64::try_from(it).ok());
            oldest = oldest.max(free.map_or(age, |free| free.min(age)));
        }
    }
    controller.metrics.set_pending(&pending, oldest);
}

impl PeerPodController {
    /// Reports a problem or a wait, if it differs from the last report.
    pub(super) async fn report(
        &self,
        peerpod: &PeerPod,
        reason: PeerPodReason,
        message: String,
        recheck: Option<Duration>,
    ) -> Result<Outcome, Error> {
        let outcome = Outcome::Done.recheck_within(recheck);
        // In most cases the adaptor deletes the instance, so that a report would be a write in vain.
        if reason == PeerPodReason::WaitingForAdaptor {
            return Ok(outcome);
        }
        let key = ObjectKey::of(peerpod);
        self.state(peerpod, |state| state.reason = Some(reason));
        let desired = DesiredCondition {
            type_: READY,
            status: false,
            reason,
            message,
        };
        let present = conditions(peerpod);
        let generation = peerpod.metadata.generation;
        let ready = desired.at(present, generation, (self.cluster.now)());
        let text = format!("{}: {}", ready.reason, ready.message);
        let is_reported = self.state(peerpod, |state| state.reported.as_ref() == Some(&text));
        if present.contains(&ready) || is_reported {
            return Ok(outcome);
        }
        let is_new = find(present, READY).is_none_or(|before| before.reason != ready.reason);
        let is_problem = !matches!(
            reason,
            PeerPodReason::WaitingForPod | PeerPodReason::Deleting
        );
        // Some definitions do not keep the condition, and a namespace that is being deleted admits no event.
        if is_problem {
            tracing::warn!(peerpod = %key, "{text}");
        } else {
            tracing::info!(peerpod = %key, "{text}");
        }
        self.write(peerpod, std::slice::from_ref(&ready)).await?;
        self.state(peerpod, |state| state.reported = Some(text));
        if is_new {
            let type_ = match is_problem {
                true => EventType::Warning,
                false => EventType::Normal,
            };
            let (object, note) = (peerpod.object_ref(&()), &ready.message);
            events::publish(&self.cluster, &object, type_, &ready.reason, note).await;
        }
        Ok(outcome)
    }

    /// Removes the condition of a problem that is solved.
    pub(super) async fn clear(&self, peerpod: &PeerPod) -> Result<Outcome, Error> {
        let is_ending = peerpod.metadata.deletion_timestamp.is_some();
        if !conditions(peerpod).is_empty() && !is_ending {
            self.write(peerpod, &[]).await?;
        }
        let key = ObjectKey::of(peerpod);
        self.states
            .with(&key, |state| (state.reason, state.reported) = (None, None));
        Ok(Outcome::Done)
    }

    async fn write(&self, peerpod: &PeerPod, conditions: &[Condition]) -> Result<(), Error> {
        let key = ObjectKey::of(peerpod);
        let writer = Writer::new(&self.cluster, key.namespace());
        let body = json!({
            "metadata": {"resourceVersion": peerpod.metadata.resource_version},
            "status": {"conditions": conditions},
        });
        let written = writer.merge_status::<_, PeerPod>(&self.peerpods, key.name(), &body);
        written.await.map(drop)
    }
}

fn conditions(peerpod: &PeerPod) -> &[Condition] {
    let status = peerpod.status.as_ref();
    status.map(|status| &*status.conditions).unwrap_or_default()
}
