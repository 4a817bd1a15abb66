//! (client) The children of clusters: applied if they differ, and deleted if the spec no longer has them.

use crate::api::SIPCluster;
use crate::api::metal3::BareMetalHost;
use crate::api::sip::Endpoint;
use crate::api::sip::names::ANNOTATION_CONFIGURATION;
use crate::controllers::sip::SipController;
use crate::controllers::sip::objects::LoadBalancer;
use crate::controllers::sip::views::{DeploymentView, ServiceView};
use crate::k8s::applied::contains;
use crate::k8s::error::Error;
use crate::k8s::key::ObjectKey;
use crate::k8s::live::Version;
use crate::k8s::ownership::check_owner;
use crate::k8s::store::children::Cache;
use crate::k8s::views::PodView;
use crate::k8s::writer::only_uid;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;

/// The state of the services of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Services {
    /// Their addresses.
    pub endpoints: Vec<Endpoint>,
    /// The first service whose pods do not run, or have another configuration, with the reason.
    pub problem: Option<String>,
    /// Whether no pod has another configuration, so that no pod uses a host that has left.
    pub is_drained: bool,
}

impl SipController {
    /// Whether the hosts that the load balancers get are, at the API server, as the store has them: the lists of a new process can be old.
    pub(super) async fn are_hosts_current(&self, desired: &[LoadBalancer]) -> Result<bool, Error> {
        for balancer in desired {
            let present = self.config_maps.get(&ObjectKey::of(&balancer.config_map));
            let data = present.and_then(|present| present.fields.get("data").cloned());
            let text = data.unwrap_or_default().to_string();
            let is_new = |name: &&String| !text.contains(&format!("server {name} "));
            for name in balancer.hosts.iter().filter(is_new) {
                let stored = self.hosts.get(&self.scope.key(name));
                let stored = stored.as_deref().map(Version::of);
                let writer = self.scope.writer();
                let live = writer
                    .find_into::<BareMetalHost, _>(&self.hosts, name)
                    .await?;
                if !stored.is_some_and(|stored| stored.is(live.as_deref())) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Applies the load balancers, and deletes those that the spec no longer has.
    pub(super) async fn apply_services(
        &self,
        cluster: &SIPCluster,
        desired: &[LoadBalancer],
    ) -> Result<Services, Error> {
        let mut services = Services {
            is_drained: true,
            ..Services::default()
        };
        for balancer in desired {
            self.apply_child(
                "ConfigMap",
                cluster,
                &self.config_maps,
                &balancer.config_map,
            )
            .await?;
            let deployment = self.apply_child(
                "Deployment",
                cluster,
                &self.deployments,
                &balancer.deployment,
            );
            let deployment = deployment.await?;
            let service = self.apply_child("Service", cluster, &self.services, &balancer.service);
            services
                .endpoints
                .push(endpoint(balancer, &*service.await?));
            if services.problem.is_none() {
                services.problem = self.problem(cluster, balancer, &deployment);
            }
            services.is_drained &= is_observed(&deployment);
        }
        let names: Vec<&str> = desired.iter().map(|it| it.name.as_str()).collect();
        self.remove::<Service, _>(cluster, &self.services, &names)
            .await?;
        self.remove::<Deployment, _>(cluster, &self.deployments, &names)
            .await?;
        self.remove::<ConfigMap, _>(cluster, &self.config_maps, &names)
            .await?;
        let pods = self.pods.group(&ObjectKey::of(cluster));
        let is_old = |pod: &Arc<PodView>| {
            let configuration = pod.annotations().get(ANNOTATION_CONFIGURATION);
            let mut present = desired.iter();
            !pod.is_complete() && !present.any(|it| Some(&it.configuration) == configuration)
        };
        services.is_drained &= !pods.iter().any(is_old);
        Ok(services)
    }

    async fn apply_child<K, V>(
        &self,
        kind: &'static str,
        cluster: &SIPCluster,
        cache: &Cache<V>,
        desired: &K,
    ) -> Result<Arc<V>, Error>
    where
        K: Resource<DynamicType = ()> + Serialize,
        V: Resource<DynamicType = ()> + Serialize + DeserializeOwned,
    {
        let (key, writer) = (ObjectKey::of(desired), self.scope.writer());
        let present = match cache.get(&key) {
            Some(present) => Some(present),
            // An object without our labels is in no cache.
            None => writer.find_into::<K, V>(cache, key.name()).await?,
        };
        if let Some(present) = present {
            check_owner(kind, &*present, is_own(&*present, cluster), cluster, || {
                None
            })?;
            let (present_value, mut desired_value) = (as_value(&*present), as_value(desired));
            // The items of lists have neither.
            if let Some(fields) = desired_value.as_object_mut() {
                fields.retain(|name, _| !["apiVersion", "kind"].contains(&name.as_str()));
            }
            if contains(&present_value, &desired_value) {
                return Ok(present);
            }
        }
        writer.apply(cache, desired).await
    }

    /// Deletes the children of the cluster with other names.
    async fn remove<K, V>(
        &self,
        cluster: &SIPCluster,
        cache: &Cache<V>,
        names: &[&str],
    ) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        V: Resource<DynamicType = ()> + DeserializeOwned,
    {
        for child in cache.group(&ObjectKey::of(cluster)) {
            let name = child.name_any();
            let is_ending = child.meta().deletion_timestamp.is_some();
            if names.contains(&name.as_str()) || is_ending || !is_own(&*child, cluster) {
                continue;
            }
            let uid = only_uid(&child.uid().unwrap_or_default());
            self.scope
                .writer()
                .delete::<K, V>(cache, &name, uid, None)
                .await?;
        }
        Ok(())
    }

    /// Why the pods of a load balancer do not run with the present configuration.
    fn problem(
        &self,
        cluster: &SIPCluster,
        balancer: &LoadBalancer,
        deployment: &DeploymentView,
    ) -> Option<String> {
        let status = |field: &str| number(deployment, "status", field);
        let wanted = number(deployment, "spec", "replicas");
        let (updated, available) = (status("updatedReplicas"), status("availableReplicas"));
        let is_complete = is_observed(deployment)
            && updated == wanted
            && available >= wanted
            && status("replicas") == updated;
        if is_complete {
            return None;
        }
        let name = &balancer.name;
        let pods = self.pods.group(&ObjectKey::of(cluster));
        let mut waiting = pods.iter().filter_map(|pod| {
            let instance = pod.labels().get("app.kubernetes.io/instance");
            let mut containers = pod.status.container_statuses.iter();
            let waiting = containers.find_map(|it| it.state.waiting.as_ref())?;
            let reason = waiting
                .reason
                .as_deref()
                .filter(|it| *it != "ContainerCreating")?;
            let message = waiting.message.as_deref().unwrap_or_default();
            (instance == Some(name)).then(|| format!("pod {}: {reason}: {message}", pod.name_any()))
        });
        let cause = waiting.next().unwrap_or_else(|| {
            format!(
                "{updated} of {wanted} pods have the present configuration, and {available} are available"
            )
        });
        Some(format!("Deployment {name}: {cause}"))
    }
}

fn as_value(object: &impl Serialize) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

fn is_own(child: &impl Resource, cluster: &SIPCluster) -> bool {
    let owners = child.owner_references().iter();
    let mut uids = owners.map(|owner| Some(&owner.uid));
    uids.any(|uid| uid == cluster.metadata.uid.as_ref())
}

/// A number in the object. Kubernetes leaves zeros out.
fn number(deployment: &DeploymentView, part: &str, field: &str) -> i64 {
    let number = deployment.fields.get(part).and_then(|it| it.get(field));
    number.and_then(Value::as_i64).unwrap_or_default()
}

/// Whether the controller of Deployments has read the last change.
fn is_observed(deployment: &DeploymentView) -> bool {
    let observed = number(deployment, "status", "observedGeneration");
    deployment
        .metadata
        .generation
        .is_some_and(|it| it == observed)
}

fn endpoint(balancer: &LoadBalancer, service: &ServiceView) -> Endpoint {
    let ports = service.fields.get("spec").and_then(|it| it.get("ports"));
    let port = ports.and_then(|ports| ports.get(0)?.get("nodePort")?.as_i64());
    // Without permissions for the whole cluster, the addresses of nodes are unknown.
    let host = balancer.cluster_ip.as_deref().unwrap_or("<node>");
    Endpoint {
        service: balancer.name.clone(),
        address: match (host.contains(':'), port.unwrap_or_default()) {
            (true, port) => format!("[{host}]:{port}"),
            (false, port) => format!("{host}:{port}"),
        },
    }
}
