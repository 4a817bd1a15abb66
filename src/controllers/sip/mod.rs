//! The controller of `SIPCluster`: hosts and services for tenant clusters.
//!
//! ```text
//! facts ──► plan ──► labels of hosts that join ──► services ──► labels of hosts that leave ──► report
//! (stores)  (pure)   (one patch for each)          (applied)    (no pod uses them any more)    (status)
//! ```
//!
//! The three labels of a host are the contract with other programs: they select hosts by them. The controller writes nothing else on a host.
//! Each patch has the version of the host as a precondition, so that a host is never in two clusters. Clusters are reconciled one after the
//! other.

mod facts;
mod haproxy;
pub mod metrics;
mod objects;
mod plan;
mod report;
mod select;
mod services;
mod views;
mod watches;

use crate::api::metal3::BareMetalHost;
use crate::api::sip::names;
use crate::api::{SIPCluster, sip::SIPClusterReason};
use crate::controllers::sip::facts::{Host, Membership, Role};
use crate::controllers::sip::metrics::SipMetrics;
use crate::controllers::sip::plan::{Placed, plan};
use crate::controllers::sip::report::{Problem, Progress, publish};
use crate::controllers::sip::views::{
    ConfigMapView, DeploymentView, HostView, NetworkDataView, ServiceView,
};
use crate::k8s::cluster::{Cluster, Manager};
use crate::k8s::controller::{Outcome, Reconciler};
use crate::k8s::error::Error;
use crate::k8s::key::ObjectKey;
use crate::k8s::live::Version;
use crate::k8s::registry::{Registry, Stored};
use crate::k8s::scope::Scope;
use crate::k8s::state::States;
use crate::k8s::store::children::Cache;
use crate::k8s::store::primary::PrimaryStore;
use crate::k8s::undecodable::Undecodable;
use crate::k8s::views::PodView;
use crate::settings::sip::SipSettings;
use kube::api::Patch;
use kube::runtime::events::EventType;
use kube::runtime::reflector::Store;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The controller as field manager and as reporter of events.
pub const MANAGER: Manager = Manager {
    field_manager: names::MANAGER,
    reporter: names::REPORTER,
    action: names::ACTION,
};

/// Delay before a reconcile that the API server, or a missing definition, has stopped. Nothing reports that it can go on.
const BLOCKED_RECHECK: Duration = Duration::from_secs(60);

/// Delay before a reconcile if a store is old. The watch usually causes one before.
const OUTDATED_RECHECK: Duration = Duration::from_secs(1);

/// Plans in one reconcile, if other programs change the hosts.
const CLAIM_ROUNDS: usize = 3;

/// The controller.
pub struct SipController {
    scope: Scope,
    settings: SipSettings,
    states: States<()>,
    clusters: Arc<PrimaryStore<SIPCluster>>,
    hosts: Arc<Cache<HostView>>,
    networks: Arc<Cache<NetworkDataView>>,
    config_maps: Arc<Cache<ConfigMapView>>,
    deployments: Arc<Cache<DeploymentView>>,
    services: Arc<Cache<ServiceView>>,
    pods: Arc<Cache<PodView>>,
    undecodable: [Arc<Undecodable>; 2],
    metrics: Arc<SipMetrics>,
}

/// The hosts of the namespace with their network data.
struct Snapshot(Vec<(Arc<HostView>, Option<Arc<NetworkDataView>>)>);

impl Snapshot {
    fn hosts(&self) -> Vec<Host<'_>> {
        let all = self.0.iter();
        all.map(|(view, secret)| Host {
            view,
            networks: secret.as_ref().map(|secret| &secret.networks),
        })
        .collect()
    }
}

/// The result of a write on a host.
enum Written {
    Yes,
    /// Another program has changed or deleted the host before.
    Conflict,
}

impl SipController {
    /// A controller with empty stores.
    #[must_use]
    pub fn new(cluster: Cluster, namespace: String, settings: SipSettings) -> Self {
        fn of_cluster(child: &impl Resource<DynamicType = ()>) -> Option<ObjectKey> {
            let name = child.labels().get(names::LABEL_CLUSTER_NAME)?;
            Some(ObjectKey::of(child).sibling(name))
        }
        Self {
            states: States::new(cluster.first_backoff, cluster.jitter),
            clusters: Arc::default(),
            hosts: Arc::new(Cache::new(|host| Some(ObjectKey::of(host).sibling("")))),
            networks: Arc::new(Cache::new(|secret| Some(ObjectKey::of(secret).sibling("")))),
            config_maps: Arc::new(Cache::new(of_cluster)),
            deployments: Arc::new(Cache::new(of_cluster)),
            services: Arc::new(Cache::new(of_cluster)),
            pods: Arc::new(Cache::new(of_cluster)),
            undecodable: [
                Undecodable::new::<SIPCluster>(Some(
                    "the hosts and services of the cluster remain as they are",
                )),
                Undecodable::new::<HostView>(Some("no further cluster gets the host")),
            ],
            metrics: cluster.metrics.of(),
            scope: Scope { cluster, namespace },
            settings,
        }
    }

    /// Adds the stores to the registry. The kind `BareMetalHost` may be missing.
    pub fn register(&self, registry: &mut Registry) {
        registry.add("sipclusters", self.clusters.clone());
        registry.add("secrets", self.networks.clone());
        registry.add("configmaps", self.config_maps.clone());
        registry.add("deployments", self.deployments.clone());
        registry.add("services", self.services.clone());
        registry.add("pods", self.pods.clone());
        registry.add_optional("baremetalhosts", self.hosts.clone());
    }

    /// The number of clusters with a failed last reconcile.
    #[must_use]
    pub fn failing(&self) -> usize {
        self.states.failing()
    }

    fn snapshot(&self) -> Snapshot {
        let hosts = self.hosts.group(&self.scope.key("")).into_iter();
        let with_networks = |host: Arc<HostView>| {
            let secret = host.spec.network_data.as_ref();
            let name = secret.and_then(|secret| secret.name.as_deref());
            let networks = name.and_then(|name| self.networks.get(&self.scope.key(name)));
            (host, networks)
        };
        Snapshot(hosts.map(with_networks).collect())
    }

    /// Why the list of hosts is not complete.
    fn blocked(&self) -> Option<Problem> {
        let cluster = &self.scope.cluster;
        let namespace = &self.scope.namespace;
        if cluster
            .forbidden
            .kinds(namespace)
            .iter()
            .any(|kind| kind == "baremetalhosts")
        {
            let message = format!(
                "the controller may not list BareMetalHosts in namespace {namespace}; apply deploy/sip again, which has the Role"
            );
            return Some((SIPClusterReason::PermissionDenied, message));
        }
        if self.hosts.is_unknown() || !self.hosts.is_ready() {
            let message = format!(
                "the API server does not know the kind BareMetalHost; install its definition: {}",
                cluster.install_command("baremetalhosts")
            );
            return Some((SIPClusterReason::BareMetalHostKindMissing, message));
        }
        None
    }

    /// Sets or removes the labels of a host, if it is unchanged.
    async fn label(
        &self,
        host: &HostView,
        labels: [(&str, Option<&str>); 3],
    ) -> Result<Written, Error> {
        let labels: BTreeMap<&str, Option<&str>> = labels.into();
        let version = &host.metadata.resource_version;
        let patch: Value = json!({"metadata": {"resourceVersion": version, "labels": labels}});
        let (writer, name) = (self.scope.writer(), host.name_any());
        let patch = Patch::Merge(patch);
        match writer
            .patch::<BareMetalHost, _>(&self.hosts, &name, &patch)
            .await
        {
            Ok(_) => return Ok(Written::Yes),
            Err(error) if error.code() == Some(409) || error.is_absence() => {}
            Err(error) => return Err(error),
        }
        self.metrics.conflict();
        // The watch may report the change later than the next plan.
        writer
            .find_into::<BareMetalHost, _>(&self.hosts, &name)
            .await?;
        Ok(Written::Conflict)
    }

    async fn claim(&self, cluster: &SIPCluster, claim: &Placed<'_>) -> Result<Written, Error> {
        let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
        let labels = [
            (names::LABEL_CLUSTER_NAMESPACE, Some(namespace.as_str())),
            (names::LABEL_CLUSTER_NAME, Some(name.as_str())),
            (names::LABEL_NODE_TYPE, Some(claim.role)),
        ];
        let written = self.label(claim.host.view, labels).await?;
        if matches!(written, Written::Yes) {
            let note = format!(
                "host {} joins with the role {}",
                claim.host.name(),
                claim.role
            );
            tracing::info!(cluster = %ObjectKey::of(cluster), "{note}");
            publish(
                &self.scope.cluster,
                cluster,
                EventType::Normal,
                "HostClaimed",
                &note,
            )
            .await;
        }
        Ok(written)
    }

    async fn release(&self, cluster: &SIPCluster, host: Host<'_>) -> Result<Written, Error> {
        let labels = [
            (names::LABEL_CLUSTER_NAMESPACE, None),
            (names::LABEL_CLUSTER_NAME, None),
            (names::LABEL_NODE_TYPE, None),
        ];
        let written = self.label(host.view, labels).await?;
        if matches!(written, Written::Yes) {
            let note = format!("host {} has left", host.name());
            tracing::info!(cluster = %ObjectKey::of(cluster), "{note}");
            publish(
                &self.scope.cluster,
                cluster,
                EventType::Normal,
                "HostReleased",
                &note,
            )
            .await;
        }
        Ok(written)
    }

    /// Whether the spec of the cluster is, at the API server, as the store has it.
    async fn is_current(&self, cluster: &SIPCluster) -> Result<bool, Error> {
        let live = self.scope.writer().find_metadata(cluster).await?;
        Ok(Version::of(cluster).is(live.as_ref()))
    }

    /// Gives hosts to the roles. Returns the problem that stops it.
    async fn gather(
        &self,
        cluster: &SIPCluster,
        roles: &BTreeMap<&str, Role>,
    ) -> Result<Option<Problem>, Error> {
        for _ in 0..CLAIM_ROUNDS {
            let snapshot = self.snapshot();
            let plan = plan(
                cluster,
                roles,
                &snapshot.hosts(),
                &self.settings.host_states,
            );
            let mut is_outdated = false;
            if !plan.claims.is_empty() && !self.is_current(cluster).await? {
                return Err(Error::Changed {
                    kind: "SIPCluster",
                    name: cluster.name_any(),
                });
            }
            for claim in &plan.claims {
                match self.claim(cluster, claim).await {
                    Ok(Written::Yes) => {}
                    Ok(Written::Conflict) => is_outdated = true,
                    Err(error) if error.is_rejection() => {
                        return Ok(Some((
                            SIPClusterReason::UnableToApplyLabels,
                            rejected(&error),
                        )));
                    }
                    Err(error) => return Err(error),
                }
            }
            if !is_outdated {
                return Ok(None);
            }
        }
        let message = "other programs have changed the selected hosts at the same time; the controller tries again";
        Ok(Some((
            SIPClusterReason::UnableToApplyLabels,
            message.to_owned(),
        )))
    }

    /// Releases all hosts, and removes the finalizer.
    async fn end(&self, cluster: &SIPCluster) -> Result<Outcome, Error> {
        let snapshot = self.snapshot();
        for host in snapshot.hosts() {
            if !matches!(host.membership(cluster), Membership::Own(_)) {
                continue;
            }
            match self.release(cluster, host).await {
                Ok(Written::Yes) => {}
                Ok(Written::Conflict) => return Ok(Outcome::Recheck(OUTDATED_RECHECK)),
                Err(error) if error.is_rejection() => {
                    let problem = (SIPClusterReason::UnableToDecommission, rejected(&error));
                    return self.stop(cluster, problem).await;
                }
                Err(error) => return Err(error),
            }
        }
        let writer = self.scope.writer();
        let removed = writer.remove_finalizer(&self.clusters, cluster, names::FINALIZER);
        match removed.await {
            Err(error) if error.is_absence() => Ok(Outcome::Done),
            removed => removed.map(|()| Outcome::Done),
        }
    }

    /// Reports a problem that nothing but time or a person solves.
    async fn stop(&self, cluster: &SIPCluster, problem: Problem) -> Result<Outcome, Error> {
        let progress = Progress {
            problem: Some(problem),
            ..Progress::default()
        };
        self.report(cluster, &progress, &[]).await?;
        Ok(Outcome::Recheck(BLOCKED_RECHECK))
    }
}

/// A rejected request with the next step.
fn rejected(error: &Error) -> String {
    let next = match error.code() {
        Some(403) => {
            "apply deploy/sip again, or change the policy or quota that rejects the request"
        }
        None => "delete the object, or rename the SIPCluster",
        _ => "correct the spec, or the webhook that rejects the request",
    };
    format!("{error}; {next}")
}

impl Reconciler for SipController {
    type Object = SIPCluster;
    type State = ();
    const NAME: &'static str = "sip";
    // Clusters compete for hosts. One after the other, no two of this process choose the same host.
    const CONCURRENCY: u16 = 1;

    fn cluster(&self) -> &Cluster {
        &self.scope.cluster
    }

    fn states(&self) -> &States<()> {
        &self.states
    }

    fn objects(&self) -> Store<SIPCluster> {
        self.clusters.reader()
    }

    fn undecodable(&self) -> &[Arc<Undecodable>] {
        &self.undecodable
    }

    fn update_own_metrics(&self) {
        self.metrics.clear();
        for cluster in self.clusters.reader().state() {
            let Some(status) = &cluster.status else {
                continue;
            };
            let ready = status.conditions.first().map(|it| it.reason.as_str());
            self.metrics.cluster(ready.unwrap_or_default());
            for (role, count) in &status.nodes {
                self.metrics.hosts(role, count.members);
            }
        }
    }

    async fn reconcile(&self, cluster: Arc<SIPCluster>) -> Result<Outcome, Error> {
        let is_ending = cluster.metadata.deletion_timestamp.is_some();
        if is_ending && !cluster.finalizers().iter().any(|it| it == names::FINALIZER) {
            return Ok(Outcome::Done);
        }
        // Without a complete list, nothing is claimed, released or deleted.
        if let Some(problem) = self.blocked() {
            return self.stop(&cluster, problem).await;
        }
        if is_ending {
            return self.end(&cluster).await;
        }
        let roles = match facts::roles(&cluster) {
            Ok(roles) => roles,
            Err(message) => {
                return self
                    .stop(&cluster, (SIPClusterReason::InvalidSpec, message))
                    .await;
            }
        };
        let writer = self.scope.writer();
        let finalizer = names::FINALIZER;
        // Before the first label.
        let current = writer
            .add_finalizer(&self.clusters, cluster.clone(), finalizer)
            .await?;
        if let Some(problem) = self.gather(&current, &roles).await? {
            return self.stop(&current, problem).await;
        }
        self.serve(&current, &roles).await
    }
}

impl SipController {
    /// Configures the services, releases hosts that no service uses any more, and reports.
    async fn serve(
        &self,
        cluster: &SIPCluster,
        roles: &BTreeMap<&str, Role>,
    ) -> Result<Outcome, Error> {
        let states = &self.settings.host_states;
        let (mut progress, mut released) = (Progress::default(), Vec::new());
        let snapshot = self.snapshot();
        let hosts = snapshot.hosts();
        let planned = plan(cluster, roles, &hosts, states);
        // Without its hosts, a new cluster gets no services.
        let mut is_drained = planned.is_first_claim_given_up;
        if !planned.is_first_claim_given_up {
            let desired = match objects::load_balancers(cluster, &planned.members, &self.settings) {
                Ok(desired) => desired,
                Err(message) => {
                    return self
                        .stop(cluster, (SIPClusterReason::InvalidSpec, message))
                        .await;
                }
            };
            if !self.are_hosts_current(&desired).await? {
                return Ok(Outcome::Recheck(OUTDATED_RECHECK));
            }
            match self.apply_services(cluster, &desired).await {
                Ok(services) => {
                    is_drained = services.is_drained;
                    progress.services = Some(services);
                }
                Err(error) if error.is_rejection() => {
                    let reason = SIPClusterReason::InfraServiceFailure;
                    progress.problem = Some((reason, rejected(&error)));
                }
                Err(error) => return Err(error),
            }
        }
        let mut outcome = match progress.problem {
            Some(_) => Outcome::Recheck(BLOCKED_RECHECK),
            None => Outcome::Done,
        };
        if !planned.leaving.is_empty() && is_drained && !self.is_current(cluster).await? {
            return Ok(Outcome::Recheck(OUTDATED_RECHECK));
        }
        for leaving in planned.leaving.iter().filter(|_| is_drained) {
            match self.release(cluster, leaving.host).await {
                Ok(Written::Yes) => released.push(leaving.host.uid().to_owned()),
                Ok(Written::Conflict) => outcome = Outcome::Recheck(OUTDATED_RECHECK),
                Err(error) if error.is_rejection() => {
                    let reason = SIPClusterReason::UnableToDecommission;
                    progress.problem.get_or_insert((reason, rejected(&error)));
                    outcome = Outcome::Recheck(BLOCKED_RECHECK);
                }
                Err(error) => return Err(error),
            }
        }
        let snapshot = self.snapshot();
        let hosts = snapshot.hosts();
        let after = plan(cluster, roles, &hosts, states);
        progress.plan = Some((roles, &after));
        self.report(cluster, &progress, &released).await?;
        Ok(outcome)
    }
}
