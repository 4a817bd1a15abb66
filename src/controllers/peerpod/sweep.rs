//! (client) The search for orphans: instances of EC2 with the tag of this cluster that no `PeerPod` and no pod names. The adaptor can have failed to
//! write the `PeerPod`.
//!
//! The instances are listed first, and then the objects of all namespaces. So an instance is on the first list before an object that names it can
//! be missing on the second one. If a list fails, nothing is an orphan. Before each deletion, all of it is read again.

use crate::api::PeerPod;
use crate::api::peerpod::{PeerPodReason, instance_name_prefix, names, pod_part};
use crate::controllers::peerpod::adaptor::AdaptorConfig;
use crate::controllers::peerpod::aws::config::AwsConfig;
use crate::controllers::peerpod::aws::orphans::{Sights, Tagged, deletable};
use crate::controllers::peerpod::aws::{Ec2, ROUND_MAX};
use crate::controllers::peerpod::failure::Failure;
use crate::controllers::peerpod::{PeerPodController, report};
use crate::k8s::error::Error;
use crate::k8s::writer::Writer;
use crate::settings::peerpod::Sweep;
use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use serde::Deserialize;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Time between two sweeps, without jitter.
const INTERVAL: Duration = Duration::from_secs(10 * 60);

/// Reason of the event about an orphan.
const ORPHANED: &str = "InstanceOrphaned";

/// Time between two looks at the clock of the controller.
const CLOCK_RECHECK: Duration = Duration::from_secs(2);

/// Memory of a process between its sweeps.
#[derive(Default)]
struct Memory {
    connection: Option<(AwsConfig, Ec2)>,
    sights: Sights,
    /// The orphans that were reported.
    reported: BTreeSet<Tagged>,
    /// Whether the log has said that the tags of the adaptor do not name the cluster.
    has_warned: bool,
}

/// A `PeerPod`, also one whose other fields are of an unknown form.
#[derive(Clone, Deserialize)]
struct Naming {
    #[serde(default)]
    spec: serde_json::Value,
}

impl PeerPodController {
    /// Searches for orphans, as long as the process runs.
    pub async fn sweep_instances(self: Arc<Self>) {
        if self.settings.sweep == Sweep::Off {
            return std::future::pending().await;
        }
        self.cluster.leadership.elected().await;
        let mut memory = Memory::default();
        loop {
            if let Err(failure) = self.sweep(&mut memory).await {
                self.count(&failure);
                tracing::warn!(
                    "the search for orphaned instances has failed, and is repeated: {}",
                    failure.message
                );
            }
            let until =
                (self.cluster.instant)() + INTERVAL.mul_f64(0.9 + 0.2 * (self.cluster.jitter)());
            while (self.cluster.instant)() < until {
                tokio::time::sleep(CLOCK_RECHECK).await;
            }
        }
    }

    async fn sweep(&self, memory: &mut Memory) -> Result<(), Failure> {
        self.calls.aws_unpaused().await;
        let adaptor = self.read_adaptor().await.map_err(unread)?;
        let config = AwsConfig::of(&adaptor, &self.environment);
        let is_active = adaptor.uses_aws() && !adaptor.is_developer_mode();
        let (Ok(config), true) = (config, is_active) else {
            // After the developer mode, people have the whole time again.
            memory.sights = Sights::default();
            self.metrics.set_orphans(names::PROVIDER_AWS, 0);
            return Ok(());
        };
        let cluster_uid = self.cluster_uid.get_or_try_init(|| self.read_cluster_uid());
        let cluster_uid = cluster_uid.await.map_err(unread)?;
        if !std::mem::replace(&mut memory.has_warned, true) {
            warn_of_tags(&adaptor, cluster_uid);
        }

        let connection = match memory.connection.take().filter(|it| it.0 == config) {
            Some(connection) => connection,
            None => (config.clone(), self.connect_aws(&config)?),
        };
        let (_, ec2) = memory.connection.insert(connection);
        let place = ec2.begin_round().await?;
        let instances = ec2.of_cluster(cluster_uid).await?;
        self.metrics.set_up(names::PROVIDER_AWS, true);
        let tagged = instances
            .iter()
            .filter_map(|it| Tagged::in_any_state(it, cluster_uid));
        let running = instances
            .iter()
            .filter_map(|it| Tagged::of(it, cluster_uid));
        let running: BTreeSet<Tagged> = running.collect();
        let (now, count) = ((self.cluster.instant)(), running.len());
        let unnamed = self.unnamed(tagged.collect()).await?;
        // An orphan that this process, or the one before, has terminated can have left resources.
        let (orphans, ended): (Vec<_>, Vec<_>) = memory
            .sights
            .note(&place, unnamed, now)
            .into_iter()
            .partition(|it| running.contains(it));
        self.metrics.set_orphans(names::PROVIDER_AWS, orphans.len());
        for orphan in orphans.iter().filter(|it| !memory.reported.contains(it)) {
            self.report_orphan(orphan, &place).await;
        }
        memory.reported = orphans.iter().cloned().collect();
        if self.settings.sweep != Sweep::Delete {
            return Ok(());
        }
        self.release_resources(ec2, &ended, cluster_uid).await?;
        let deletable = deletable(&orphans, count);
        if deletable.is_empty() && !orphans.is_empty() {
            tracing::warn!(
                "{} of {count} instances with the tag of this cluster are orphans, so none is deleted; check that the adaptor of another \
                 cluster does not have the tag {}={cluster_uid}, and delete orphans by hand",
                orphans.len(),
                names::TAG_CLUSTER
            );
        }
        for orphan in deletable {
            self.delete_orphan(ec2, orphan, cluster_uid).await?;
        }
        Ok(())
    }

    /// Those of the instances that no `PeerPod` and no pod of any namespace names, in any state.
    async fn unnamed(&self, mut tagged: Vec<Tagged>) -> Result<Vec<Tagged>, Failure> {
        let everywhere = Writer::new(&self.cluster, "");
        if !tagged.is_empty() {
            let peerpods = everywhere
                .list_all::<PeerPod, Naming>()
                .await
                .map_err(unread)?;
            let ids = peerpods
                .iter()
                .filter_map(|it| it.spec.get("instanceID")?.as_str());
            let ids: HashSet<&str> = ids.map(str::trim).collect();
            tagged.retain(|it| !ids.contains(it.id.as_str()));
        }
        if !tagged.is_empty() {
            let pods = everywhere
                .list_all::<Pod, PartialObjectMeta<Pod>>()
                .await
                .map_err(unread)?;
            let parts = pods.iter().filter_map(|it| it.metadata.name.as_deref());
            let parts: HashSet<String> = parts.map(instance_name_prefix).collect();
            tagged.retain(|it| pod_part(&it.name).is_some_and(|part| !parts.contains(part)));
        }
        Ok(tagged)
    }

    async fn is_developer_mode(&self) -> Result<bool, Failure> {
        let adaptor = self.read_adaptor().await.map_err(unread)?;
        Ok(adaptor.is_developer_mode())
    }

    async fn report_orphan(&self, orphan: &Tagged, place: &str) {
        let (id, name) = (orphan.id.as_str(), &orphan.name);
        let next = match self.settings.sweep {
            Sweep::Delete => "the controller deletes it. To retain it",
            Sweep::Off | Sweep::Report => "terminate it if nothing needs it. To retain it",
        };
        let note = format!(
            "instance {id} ({name}) of provider aws in {place} has the tag of this cluster, but no PeerPod and no pod has named it for 30 min; \
             {next}, remove its tag {}",
            names::TAG_CLUSTER
        );
        tracing::warn!(reason = ORPHANED, "{note}");
        report::on_deployment(&self.cluster, &self.namespace, ORPHANED, &note).await;
    }

    /// Terminates the orphan, if it is one at this moment.
    async fn delete_orphan(
        &self,
        ec2: &mut Ec2,
        orphan: &Tagged,
        cluster_uid: &str,
    ) -> Result<(), Failure> {
        let found = ec2.find(&[&orphan.id]).await?;
        let instance = found.get(&orphan.id).and_then(|it| it.instance.as_ref());
        let is_same = instance.and_then(|it| Tagged::of(it, cluster_uid)).as_ref() == Some(orphan);
        if !is_same
            || self.unnamed(vec![orphan.clone()]).await?.is_empty()
            || self.is_developer_mode().await?
        {
            return Ok(());
        }
        let (id, name) = (orphan.id.as_str(), &orphan.name);
        let failures = ec2.terminate(std::slice::from_ref(&orphan.id)).await;
        if let Some(failure) = failures.into_values().next() {
            if failure.is_of_provider() {
                return Err(failure);
            }
            self.count(&failure);
            tracing::warn!(
                "the orphaned instance {id} ({name}) remains: {}",
                failure.message
            );
            return Ok(());
        }
        let note = format!("the orphaned instance {id} ({name}) of provider aws is deleted");
        tracing::warn!("{note}");
        self.metrics.orphan_deleted(names::PROVIDER_AWS);
        report::on_deployment(&self.cluster, &self.namespace, "OrphanDeleted", &note).await;
        Ok(())
    }

    /// Removes the addresses and interfaces of terminated orphans.
    async fn release_resources(
        &self,
        ec2: &mut Ec2,
        ended: &[Tagged],
        cluster_uid: &str,
    ) -> Result<(), Failure> {
        for ended in ended.chunks(ROUND_MAX) {
            let ids: Vec<_> = ended.iter().map(|it| &it.id).collect();
            for found in ec2.find(&ids).await?.values() {
                let instance = found.instance.as_ref().filter(|it| it.is_gone());
                let is_orphan = instance
                    .and_then(|it| Tagged::in_any_state(it, cluster_uid))
                    .is_some_and(|it| ended.contains(&it));
                if is_orphan && found.has_remains() {
                    if self.is_developer_mode().await? {
                        return Ok(());
                    }
                    ec2.release(found).await?;
                }
            }
        }
        Ok(())
    }

    /// Counts a failure of the provider. One of the API server has no code.
    fn count(&self, failure: &Failure) {
        if failure.code.is_empty() && !failure.is_of_provider() {
            return;
        }
        self.metrics
            .failed(names::PROVIDER_AWS, failure.reason.into());
    }
}

/// Logs that the adaptor does not give the tag of the cluster to instances.
fn warn_of_tags(adaptor: &AdaptorConfig, cluster_uid: &str) {
    let tags = adaptor.get(names::KEY_TAGS).unwrap_or_default().split(',');
    let mut tag = tags.filter_map(|it| {
        it.trim()
            .strip_prefix(names::TAG_CLUSTER)?
            .strip_prefix('=')
    });
    let next = format!(
        "add {}={cluster_uid} to the key {} in the ConfigMap of the cloud-api-adaptor",
        names::TAG_CLUSTER,
        names::KEY_TAGS
    );
    match tag.next_back() {
        Some(uid) if uid.trim() == cluster_uid => {}
        None => tracing::info!(
            "no orphaned instance can be found, because instances do not have the tag of this cluster; {next}"
        ),
        Some(_) => tracing::warn!(
            "the instances of this cluster have the tag of another one, whose controller can take them for orphans and delete them; {next}"
        ),
    }
}

/// The failure of a request to the API server.
fn unread(error: Error) -> Failure {
    let (reason, next) = match error.code() {
        Some(403) => (
            PeerPodReason::PermissionDenied,
            "give the controller this permission, or set sweep to off",
        ),
        _ => (PeerPodReason::DeletionFailed, "the controller tries again"),
    };
    Failure::new(reason, format!("{error}; {next}"))
}

#[cfg(test)]
mod tests;
