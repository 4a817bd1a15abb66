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
mod labels;
pub mod metrics;
mod objects;
mod plan;
mod report;
mod select;
mod services;
mod views;
mod watches;

use crate::api::sip::names;
use crate::api::{SIPCluster, sip::SIPClusterReason};
use crate::controllers::sip::facts::{Host, Role, has_been_complete};
use crate::controllers::sip::metrics::SipMetrics;
use crate::controllers::sip::plan::plan;
use crate::controllers::sip::report::{Problem, Progress};
use crate::controllers::sip::views::{
    ConfigMapView, DeploymentView, HostSecretView, HostView, PodDisruptionBudgetView, SecretView,
    ServiceView,
};
use crate::k8s::cluster::{Cluster, Manager};
use crate::k8s::controller::{Outcome, Reconciler};
use crate::k8s::error::Error;
use crate::k8s::key::ObjectKey;
use crate::k8s::registry::{Registry, Stored};
use crate::k8s::scope::Scope;
use crate::k8s::state::States;
use crate::k8s::store::children::Cache;
use crate::k8s::store::primary::PrimaryStore;
use crate::k8s::store::trim::Labelled;
use crate::k8s::undecodable::Undecodable;
use crate::k8s::views::PodView;
use crate::settings::sip::SipSettings;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::reflector::Store;
use kube::{Resource, ResourceExt};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// The resources of hosts, which are read in all namespaces with hosts, and the options of `kubectl create role`.
const HOST_KINDS: [(&str, &str); 2] = [
    (
        "baremetalhosts",
        "--verb=list,watch,get,patch --resource=baremetalhosts.metal3.io",
    ),
    ("secrets", "--verb=list,watch --resource=secrets"),
];

/// A step of a reconcile that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Labels of hosts that join.
    Claim,
    /// Children.
    Serve,
    /// Labels of hosts that leave.
    Release,
}

/// A step whose requests the API server has rejected.
#[derive(Clone, Debug)]
pub struct Rejected {
    /// Generation of the spec that caused the requests.
    generation: Option<i64>,
    /// The time of the next try.
    until: Instant,
    problem: Problem,
}

/// What the controller remembers of a cluster.
#[derive(Default)]
pub struct SipState {
    rejections: BTreeMap<Step, Rejected>,
    /// UID and generation for which the controller has looked for templates.
    templates_of: Option<(Option<String>, Option<i64>)>,
}

impl SipState {
    fn has_looked(&self, cluster: &SIPCluster) -> bool {
        self.templates_of == Some((cluster.uid(), cluster.metadata.generation))
    }
}

/// The controller.
pub struct SipController {
    scope: Scope,
    settings: SipSettings,
    states: States<SipState>,
    clusters: Arc<PrimaryStore<SIPCluster>>,
    hosts: Arc<Cache<HostView>>,
    host_secrets: Arc<Cache<HostSecretView>>,
    secrets: Arc<Cache<SecretView>>,
    config_maps: Arc<Cache<ConfigMapView>>,
    deployments: Arc<Cache<DeploymentView>>,
    services: Arc<Cache<ServiceView>>,
    budgets: Arc<Cache<PodDisruptionBudgetView>>,
    pods: Arc<Cache<PodView>>,
    undecodable: [Arc<Undecodable>; 2],
    metrics: Arc<SipMetrics>,
    /// Generates the data of a Secret with the key of a jump host.
    pub host_key: fn() -> Result<BTreeMap<String, ByteString>, Error>,
}

/// A host with its Secrets.
struct StoredHost {
    view: Arc<HostView>,
    name: String,
    networks: Option<Arc<HostSecretView>>,
    credentials: Option<Arc<HostSecretView>>,
    may_use_bmc: bool,
}

/// The hosts of all namespaces.
struct Snapshot(Vec<StoredHost>);

impl Snapshot {
    fn hosts(&self) -> Vec<Host<'_>> {
        let all = self.0.iter();
        all.map(|host| Host {
            view: &host.view,
            name: &host.name,
            networks: host.networks.as_ref().map(|secret| &secret.data.networks),
            credentials: host
                .credentials
                .as_ref()
                .and_then(|secret| secret.data.credentials.as_ref()),
            may_use_bmc: host.may_use_bmc,
        })
        .collect()
    }
}

impl SipController {
    /// A controller with empty stores.
    #[must_use]
    pub fn new(cluster: Cluster, namespace: String, settings: SipSettings) -> Self {
        fn of_cluster<K: Resource + Labelled>(child: &K) -> Option<ObjectKey> {
            let name = child.label(names::LABEL_CLUSTER_NAME)?;
            Some(ObjectKey::of(child).sibling(name))
        }
        Self {
            states: States::new(cluster.first_backoff, cluster.jitter),
            clusters: Arc::default(),
            hosts: Arc::new(Cache::new(|host| Some(ObjectKey::of(host).sibling("")))),
            host_secrets: Arc::new(Cache::new(|secret| Some(ObjectKey::of(secret).sibling("")))),
            secrets: Arc::new(Cache::new(of_cluster)),
            config_maps: Arc::new(Cache::new(of_cluster)),
            deployments: Arc::new(Cache::new(of_cluster)),
            services: Arc::new(Cache::new(of_cluster)),
            budgets: Arc::new(Cache::new(of_cluster)),
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
            host_key: objects::host_key::generate,
        }
    }

    /// Adds the stores to the registry. The kind `BareMetalHost` may be missing.
    pub fn register(&self, registry: &mut Registry) {
        registry.add("sipclusters", self.clusters.clone());
        registry.add("secrets", self.host_secrets.clone());
        registry.add("secrets of services", self.secrets.clone());
        registry.add("configmaps", self.config_maps.clone());
        registry.add("deployments", self.deployments.clone());
        registry.add("services", self.services.clone());
        registry.add("poddisruptionbudgets", self.budgets.clone());
        registry.add("pods", self.pods.clone());
        registry.add_optional("baremetalhosts", self.hosts.clone());
    }

    /// The namespaces with hosts, and whether the credentials of their management controllers may be used. The first one is that of the
    /// clusters.
    fn host_namespaces(&self) -> impl Iterator<Item = (&str, bool)> {
        let own = self.scope.namespace.as_str();
        let others = self.settings.host_namespaces.iter();
        let others = others.map(|it| (it.name.as_str(), it.bmc));
        std::iter::once((own, true)).chain(others.filter(move |(name, _)| *name != own))
    }

    fn snapshot(&self) -> Snapshot {
        let all = self.host_namespaces();
        let hosts = all.flat_map(|(name, bmc)| self.stored_hosts(name, bmc));
        let mut hosts: Vec<StoredHost> = hosts.collect();
        hosts.sort_by(|one, other| one.name.cmp(&other.name));
        Snapshot(hosts)
    }

    fn stored_hosts(&self, namespace: &str, may_use_bmc: bool) -> impl Iterator<Item = StoredHost> {
        let hosts = self.hosts.group(&ObjectKey::new(namespace, "")).into_iter();
        let is_own = namespace == self.scope.namespace;
        let secret = move |name: &str| self.host_secrets.get(&ObjectKey::new(namespace, name));
        hosts.map(move |view: Arc<HostView>| {
            let name = match is_own {
                true => view.name_any(),
                false => format!("{}_{namespace}", view.name_any()),
            };
            let networks = view.spec.network_data.as_ref();
            let networks = networks.and_then(|it| secret(it.name.as_deref()?));
            let credentials = view.spec.bmc.as_ref();
            let credentials = credentials.and_then(|it| secret(&it.credentials_name));
            StoredHost {
                view,
                name,
                networks,
                credentials,
                may_use_bmc,
            }
        })
    }

    /// Why the list of hosts is not complete for the cluster.
    fn blocked(&self, of: &SIPCluster) -> Option<Problem> {
        let cluster = &self.scope.cluster;
        for (namespace, _) in self.host_namespaces() {
            let kinds = cluster.forbidden.kinds(namespace);
            let is_forbidden = |(kind, _): &&(&str, &str)| kinds.iter().any(|it| *it == *kind);
            let Some((kind, role)) = HOST_KINDS.iter().find(is_forbidden) else {
                continue;
            };
            let account = match &self.settings.namespace {
                None => self.scope.namespace.as_str(),
                Some(_) => "<NAMESPACE-OF-THE-CONTROLLER>",
            };
            let next = match namespace == self.scope.namespace {
                true => "apply deploy/sip again, which has the Role".to_owned(),
                false => format!(
                    "run: kubectl create role vm-operator-sip-{kind} -n {namespace} {role}; kubectl create rolebinding vm-operator-sip-{kind} \
                     -n {namespace} --role=vm-operator-sip-{kind} --serviceaccount={account}:vm-operator-sip"
                ),
            };
            let message =
                format!("the controller may not list {kind} in namespace {namespace}; {next}");
            return Some((SIPClusterReason::PermissionDenied, message));
        }
        let members = of.status.iter().flat_map(|status| &status.members);
        let mut namespaces = members.filter_map(|it| it.namespace.as_deref());
        let is_known = |name: &str| self.host_namespaces().any(|(known, _)| known == name);
        if let Some(removed) = namespaces.find(|name| !is_known(name)) {
            let message = format!(
                "hosts of namespace {removed} are members, but sip.hostNamespaces does not contain it; add it again. Before it can be removed, \
                 delete the SIPCluster, or reduce its counts until no host of the namespace is a member"
            );
            return Some((SIPClusterReason::PermissionDenied, message));
        }
        if self.hosts.is_unknown() {
            let message = format!(
                "the API server does not know the kind BareMetalHost; {}",
                cluster.install_command("baremetalhosts")
            );
            return Some((SIPClusterReason::BareMetalHostKindMissing, message));
        }
        None
    }

    /// The problem of the step, if the API server has just rejected its requests for this spec. A request that is sent again at each reconcile
    /// would be a hot loop, because the message of a rejection can differ each time.
    fn retained(&self, cluster: &SIPCluster, step: Step) -> Option<Problem> {
        let key = ObjectKey::of(cluster);
        let rejected = self
            .states
            .with(&key, |state| state.rejections.get(&step).cloned())??;
        Some(rejected.problem)
    }

    /// Forgets rejections of another spec, and those that are due again.
    fn forget_old_rejections(&self, cluster: &SIPCluster) {
        let (key, now) = (ObjectKey::of(cluster), (self.scope.cluster.instant)());
        let is_current = |rejected: &Rejected| {
            rejected.generation == cluster.metadata.generation && now < rejected.until
        };
        self.states.with(&key, |state| {
            state.rejections.retain(|_, it| is_current(it))
        });
    }

    /// Retains the problem of the step for a minute. The time is random, because the controllers of two namespaces can share hosts: if both
    /// tried again at the same time, neither of them would ever get enough hosts.
    fn reject(&self, cluster: &SIPCluster, step: Step, problem: Problem) -> Problem {
        let rejected = Rejected {
            generation: cluster.metadata.generation,
            until: (self.scope.cluster.instant)()
                + BLOCKED_RECHECK.mul_f64(1.0 + self.states.jitter()),
            problem: problem.clone(),
        };
        let key = ObjectKey::of(cluster);
        self.states
            .change(&key, |state| state.rejections.insert(step, rejected));
        problem
    }

    /// The time after which a rejected request is sent again. It is not zero, because the retained rejections were not due at the begin of the
    /// reconcile.
    fn retry_after(&self, cluster: &SIPCluster) -> Option<Duration> {
        let (key, now) = (ObjectKey::of(cluster), (self.scope.cluster.instant)());
        let until = self.states.with(&key, |state| {
            state.rejections.values().map(|it| it.until).min()
        })??;
        Some(until.saturating_duration_since(now).max(OUTDATED_RECHECK))
    }

    /// Releases all hosts, and removes the finalizer.
    async fn end(&self, cluster: &SIPCluster) -> Result<Outcome, Error> {
        if let Some(problem) = self.release_all(cluster).await? {
            return self.stop(cluster, problem).await;
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
        self.report(cluster, &progress).await?;
        Ok(Outcome::Recheck(BLOCKED_RECHECK))
    }
}

/// A rejected request with the next step.
fn rejected(error: &Error) -> String {
    let next = match error.code() {
        Some(403) => {
            "apply deploy/sip again, or the Role in the namespace of the host, or change the policy or quota that rejects the request"
        }
        None => "delete the object, or rename the SIPCluster",
        _ => "correct the spec, or the webhook that rejects the request",
    };
    format!("{error}; {next}")
}

impl Reconciler for SipController {
    type Object = SIPCluster;
    type State = SipState;
    const NAME: &'static str = "sip";
    // Clusters compete for hosts. One after the other, no two of this process choose the same host.
    const CONCURRENCY: u16 = 1;

    fn cluster(&self) -> &Cluster {
        &self.scope.cluster
    }

    fn states(&self) -> &States<SipState> {
        &self.states
    }

    fn objects(&self) -> Store<SIPCluster> {
        self.clusters.reader()
    }

    // Without the Secrets of hosts or the children, each decision would be wrong, and the first lists are no changes.
    async fn ready(&self) {
        let mut registry = Registry::default();
        self.register(&mut registry);
        registry.ready().await;
    }

    fn undecodable(&self) -> &[Arc<Undecodable>] {
        &self.undecodable
    }

    fn update_own_metrics(&self) {
        self.metrics.clear();
        // The metrics of all replicas are added.
        let clusters = self.clusters.reader().state().into_iter();
        for cluster in clusters.filter(|_| self.cluster().leadership.leads()) {
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
        // The store has an old version, with which no write succeeds. The correction of the object is an event.
        if self.undecodable[0].contains(&ObjectKey::of(&*cluster)) {
            return Ok(Outcome::Done);
        }
        self.forget_old_rejections(&cluster);
        // Without a complete list, nothing is claimed, released or deleted.
        if let Some(problem) = self.blocked(&cluster) {
            return self.stop(&cluster, problem).await;
        }
        // The first list is in progress.
        if !self.hosts.is_ready() {
            return Ok(Outcome::Recheck(OUTDATED_RECHECK));
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
        let problem = self.gather(&current, &roles).await?;
        self.serve(&current, &roles, problem).await
    }
}

impl SipController {
    /// The ConfigMaps with templates of the Airship SIP operator. A process looks for them once for each version of the spec.
    async fn templates(&self, cluster: &SIPCluster) -> Result<Option<Vec<&'static str>>, Error> {
        let has_looked = |state: &mut SipState| state.has_looked(cluster);
        if self.states.with(&ObjectKey::of(cluster), has_looked) == Some(true) {
            return Ok(None);
        }
        let (writer, mut present) = (self.scope.writer(), Vec::new());
        for name in names::TEMPLATES {
            let found = writer.find::<ConfigMap, ConfigMapView>(name).await?;
            present.extend(found.map(|_| name));
        }
        Ok(Some(present))
    }

    /// Configures the services, releases hosts that no service uses any more, and reports. `problem` is that of the claims.
    async fn serve(
        &self,
        cluster: &SIPCluster,
        roles: &BTreeMap<&str, Role>,
        problem: Option<Problem>,
    ) -> Result<Outcome, Error> {
        let states = &self.settings.host_states;
        let mut progress = Progress {
            problem,
            templates: self.templates(cluster).await?,
            ..Progress::default()
        };
        let snapshot = self.snapshot();
        // The hosts of a namespace can have become unreadable since the begin of the reconcile. The note is older than the list without them.
        if let Some(problem) = self.blocked(cluster) {
            return self.stop(cluster, problem).await;
        }
        let hosts = snapshot.hosts();
        let mut planned = plan(cluster, roles, &hosts, states);
        // A first claim that the API server rejects is taken back, too.
        if progress.problem.is_some() && !has_been_complete(cluster) {
            planned.abandon_first_claim();
        }
        // Without hosts, a new cluster has no services.
        let desired = match planned.is_first_claim_abandoned && planned.members.is_empty() {
            true => Vec::new(),
            false => {
                let secrets = &self.host_secrets;
                let has_secret = |name: &str| secrets.get(&self.scope.key(name)).is_some();
                objects::services(cluster, &planned.members, &self.settings, &has_secret)?
            }
        };
        let mut is_drained = false;
        let unreadable = planned
            .members
            .iter()
            .find(|it| it.host.view.is_undecodable);
        if let Some(member) = unreadable {
            let message = format!(
                "BareMetalHost {} cannot be decoded, so the services and members remain as they are; its event Unreadable, or the log, names the field",
                member.host.name
            );
            progress
                .problem
                .get_or_insert((SIPClusterReason::HostUnreadable, message));
        } else if let Some(problem) = self.retained(cluster, Step::Serve) {
            progress.problem.get_or_insert(problem);
        } else {
            if self.is_reconfigured(&desired) || self.has_surplus(cluster, &desired) {
                self.check_current(cluster, &hosts).await?;
            }
            match self.apply_services(cluster, &desired).await {
                Ok(services) => {
                    is_drained = services.is_drained;
                    progress.services = Some(services);
                }
                // The garbage collector is deleting the objects of a previous cluster with the name.
                Err(error @ Error::OwnedByPrevious { .. }) => return Err(error),
                Err(error) if error.is_rejection() => {
                    let problem = (SIPClusterReason::InfraServiceFailure, rejected(&error));
                    let problem = self.reject(cluster, Step::Serve, problem);
                    progress.problem.get_or_insert(problem);
                }
                Err(error) => return Err(error),
            }
        }
        if is_drained {
            let rejected = self.release_leaving(cluster, &planned, &hosts).await?;
            progress.problem = progress.problem.or(rejected);
        }
        let (snapshot, replanned);
        let is_unchanged = planned.leaving.is_empty() && !planned.is_first_claim_abandoned;
        let after = if is_unchanged {
            &planned
        } else {
            snapshot = self.snapshot();
            if let Some(problem) = self.blocked(cluster) {
                return self.stop(cluster, problem).await;
            }
            replanned = plan(cluster, roles, &snapshot.hosts(), states);
            &replanned
        };
        progress.plan = Some((roles, after));
        self.report(cluster, &progress).await?;
        if progress.templates.is_some() {
            let looked = Some((cluster.uid(), cluster.metadata.generation));
            let key = ObjectKey::of(cluster);
            self.states
                .change(&key, |state| state.templates_of = looked);
        }
        // Hosts that have become free since the claims.
        let is_progressing = !after.claims.is_empty() && progress.problem.is_none();
        let recheck = is_progressing.then_some(OUTDATED_RECHECK);
        Ok(Outcome::Done
            .recheck_within(recheck)
            .recheck_within(self.retry_after(cluster)))
    }
}
