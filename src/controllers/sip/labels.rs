//! (client) The labels of hosts. Each patch has the version of the host as a precondition.

use crate::api::SIPCluster;
use crate::api::metal3::BareMetalHost;
use crate::api::sip::{SIPClusterReason, names};
use crate::controllers::sip::facts::{Host, Membership, Role};
use crate::controllers::sip::plan::{Placed, Plan, plan};
use crate::controllers::sip::report::Problem;
use crate::controllers::sip::views::HostView;
use crate::controllers::sip::{SipController, Step, rejected};
use crate::k8s::error::Error;
use crate::k8s::live::Version;
use crate::k8s::writer::Writer;
use kube::ResourceExt;
use kube::api::Patch;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// Plans in one reconcile, if other programs change the hosts.
const CLAIM_ROUNDS: usize = 3;

/// The result of a write on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Yes,
    /// Another program has changed the host before.
    Conflict,
}

impl SipController {
    /// Sets or removes the labels of a host, if it is unchanged.
    async fn label(
        &self,
        host: &HostView,
        labels: [(&str, Option<&str>); 3],
    ) -> Result<Written, Error> {
        let labels: BTreeMap<&str, Option<&str>> = labels.into();
        let version = &host.metadata.resource_version;
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": version, "labels": labels},
        }));
        let namespace = host.namespace().unwrap_or_default();
        let writer = Writer::new(&self.scope.cluster, &namespace);
        let name = host.name_any();
        let written = writer.patch::<BareMetalHost, _>(&self.hosts, &name, &patch);
        match written.await {
            Ok(_) => return Ok(Written::Yes),
            Err(error) if error.is_absence() => return Err(changed("BareMetalHost", &name)),
            Err(error) if error.code() == Some(409) => {}
            Err(error) => return Err(error),
        }
        self.metrics.conflict();
        // The watch may report the change later than the next plan.
        let live = writer.find_into::<BareMetalHost, _>(&self.hosts, &name);
        live.await.map(|_| Written::Conflict)
    }

    async fn claim(&self, cluster: &SIPCluster, claim: &Placed<'_>) -> Result<Written, Error> {
        let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
        let labels = [
            (names::LABEL_CLUSTER_NAMESPACE, Some(namespace.as_str())),
            (names::LABEL_CLUSTER_NAME, Some(name.as_str())),
            (names::LABEL_NODE_TYPE, Some(claim.role)),
        ];
        let written = self.label(claim.host.view, labels).await?;
        if written == Written::Yes {
            let (host, role) = (claim.host.name, claim.role);
            let note = format!("host {host} joins with the role {role}");
            self.publish_normal(cluster, "HostClaimed", &note).await;
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
        if written == Written::Yes {
            let note = format!("host {} has left", host.name);
            self.publish_normal(cluster, "HostReleased", &note).await;
        }
        Ok(written)
    }

    /// The UIDs of the hosts that, at the API server, have the labels of the cluster.
    async fn live_members(&self, cluster: &SIPCluster) -> Result<BTreeSet<String>, Error> {
        let labels = format!(
            "{}={},{}={}",
            names::LABEL_CLUSTER_NAMESPACE,
            cluster.namespace().unwrap_or_default(),
            names::LABEL_CLUSTER_NAME,
            cluster.name_any()
        );
        let mut members = BTreeSet::new();
        for (namespace, _) in self.host_namespaces() {
            let writer = Writer::new(&self.scope.cluster, namespace);
            let live = writer.list_metadata::<BareMetalHost>(&labels).await?;
            members.extend(live.into_iter().filter_map(|host| host.metadata.uid));
        }
        Ok(members)
    }

    /// Checks that the spec of the cluster and its members among these hosts are as the API server has them. The lists of a new process can be
    /// old, and its previous leader may have written since.
    pub(super) async fn check_current(
        &self,
        cluster: &SIPCluster,
        hosts: &[Host<'_>],
    ) -> Result<(), Error> {
        let live = self.scope.writer().find_metadata(cluster).await?;
        let is_current = Version::of(cluster).is(live.as_ref());
        let is_own = |host: &&Host| matches!(host.membership(cluster), Membership::Own(_));
        let own = hosts.iter().filter(is_own);
        let stored: BTreeSet<String> = own.map(|host| host.uid().to_owned()).collect();
        if is_current && stored == self.live_members(cluster).await? {
            return Ok(());
        }
        Err(changed("SIPCluster", &cluster.name_any()))
    }

    /// Gives hosts to the roles. Returns the problem of a rejected or repeatedly conflicting patch.
    pub(super) async fn gather(
        &self,
        cluster: &SIPCluster,
        roles: &BTreeMap<&str, Role>,
    ) -> Result<Option<Problem>, Error> {
        let states = &self.settings.host_states;
        let mut is_outdated = false;
        for _ in 0..CLAIM_ROUNDS {
            let snapshot = self.snapshot();
            let hosts = snapshot.hosts();
            let plan = plan(cluster, roles, &hosts, states);
            // Another cluster is taking the hosts. Both take back their first claims, and one of them must be first then.
            if is_outdated && plan.is_first_claim_abandoned {
                break;
            }
            if plan.claims.is_empty() {
                return Ok(None);
            }
            if let Some(problem) = self.retained(cluster, Step::Claim) {
                return Ok(Some(problem));
            }
            self.check_current(cluster, &hosts).await?;
            is_outdated = false;
            for claim in &plan.claims {
                match self.claim(cluster, claim).await {
                    Ok(written) => is_outdated |= written == Written::Conflict,
                    Err(error) if error.is_rejection() => {
                        let problem = (SIPClusterReason::UnableToApplyLabels, rejected(&error));
                        return Ok(Some(self.reject(cluster, Step::Claim, problem)));
                    }
                    Err(error) => return Err(error),
                }
            }
            if !is_outdated {
                return Ok(None);
            }
        }
        let message = "other programs have changed the selected hosts at the same time; the controller tries again in one to two minutes";
        let problem = (SIPClusterReason::UnableToApplyLabels, message.to_owned());
        Ok(Some(self.reject(cluster, Step::Claim, problem)))
    }

    /// Releases the hosts that leave. Returns the problem of a rejected patch.
    pub(super) async fn release_leaving(
        &self,
        cluster: &SIPCluster,
        plan: &Plan<'_>,
        hosts: &[Host<'_>],
    ) -> Result<Option<Problem>, Error> {
        if plan.leaving.is_empty() {
            return Ok(None);
        }
        if let Some(problem) = self.retained(cluster, Step::Release) {
            return Ok(Some(problem));
        }
        self.check_current(cluster, hosts).await?;
        let mut rejection = None;
        for leaving in &plan.leaving {
            rejection = rejection.or(self.release_one(cluster, leaving.host).await?);
        }
        Ok(rejection)
    }

    async fn release_one(
        &self,
        cluster: &SIPCluster,
        host: Host<'_>,
    ) -> Result<Option<Problem>, Error> {
        match self.release(cluster, host).await {
            Ok(Written::Yes) => Ok(None),
            // It may have a consumer now.
            Ok(Written::Conflict) => Err(changed("BareMetalHost", host.name)),
            Err(error) if error.is_rejection() => {
                let problem = (SIPClusterReason::UnableToDecommission, rejected(&error));
                Ok(Some(self.reject(cluster, Step::Release, problem)))
            }
            Err(error) => Err(error),
        }
    }

    /// Releases all hosts of a cluster that is being deleted. Returns the problem of a rejected patch.
    pub(super) async fn release_all(&self, cluster: &SIPCluster) -> Result<Option<Problem>, Error> {
        if let Some(problem) = self.retained(cluster, Step::Release) {
            return Ok(Some(problem));
        }
        let snapshot = self.snapshot();
        let hosts = snapshot.hosts().into_iter();
        let mut rejection = None;
        for host in hosts.filter(|host| matches!(host.membership(cluster), Membership::Own(_))) {
            rejection = rejection.or(self.release_one(cluster, host).await?);
        }
        if rejection.is_some() {
            return Ok(rejection);
        }
        // The store may lack a host that the previous leader has claimed.
        match self.live_members(cluster).await?.is_empty() {
            true => Ok(None),
            false => Err(changed("SIPCluster", &cluster.name_any())),
        }
    }
}

/// The store is old: the next reconcile, after a second, decides.
fn changed(kind: &'static str, name: &str) -> Error {
    Error::Changed {
        kind,
        name: name.to_owned(),
    }
}
