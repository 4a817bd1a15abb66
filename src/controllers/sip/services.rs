//! (client) The children of clusters: applied if they differ, and deleted if the spec no longer has them.

use crate::api::SIPCluster;
use crate::api::sip::Endpoint;
use crate::api::sip::names::{ANNOTATION_CONFIGURATION, LABEL_CLUSTER_NAME};
use crate::controllers::sip::SipController;
use crate::controllers::sip::objects::child::ServiceObjects;
use crate::controllers::sip::views::{DeploymentView, SecretView, ServiceView};
use crate::k8s::applied::contains;
use crate::k8s::error::Error;
use crate::k8s::key::ObjectKey;
use crate::k8s::ownership::{check_owner, owns};
use crate::k8s::store::children::Cache;
use crate::k8s::store::trim::Labelled;
use crate::k8s::views::{PodConditionStatus, PodConditionType, PodConditionView, PodView};
use crate::k8s::writer::only_uid;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
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
    /// Whether a service gets another configuration.
    pub(super) fn is_reconfigured(&self, desired: &[ServiceObjects]) -> bool {
        let mut config_maps = desired.iter().filter_map(|it| it.config_map.as_ref());
        config_maps.any(|config_map| {
            let present = self.config_maps.get(&ObjectKey::of(config_map));
            let data = present.and_then(|present| present.fields.read().remove("data"));
            data.is_none_or(|data| data != json!(config_map.data))
        })
    }

    /// Whether a child belongs to no service of the spec.
    pub(super) fn has_surplus(&self, cluster: &SIPCluster, desired: &[ServiceObjects]) -> bool {
        let key = ObjectKey::of(cluster);
        let services = self.services.group(&key).into_iter();
        let names = services.map(|child| child.name_any());
        let deployments = self.deployments.group(&key).into_iter();
        let mut names = names.chain(deployments.map(|child| child.name_any()));
        names.any(|name| desired.iter().all(|service| service.name != name))
    }

    /// Applies the services, and deletes those that the spec no longer has.
    pub(super) async fn apply_services(
        &self,
        cluster: &SIPCluster,
        desired: &[ServiceObjects],
    ) -> Result<Services, Error> {
        // First, because one of them may have a node port that another one gets.
        let names: Vec<&str> = desired.iter().map(|it| it.name.as_str()).collect();
        self.remove::<Service, _>(cluster, &self.services, &names)
            .await?;
        self.remove::<Deployment, _>(cluster, &self.deployments, &names)
            .await?;
        let configured = desired.iter().filter(|it| it.config_map.is_some());
        let names: Vec<&str> = configured.map(|it| it.name.as_str()).collect();
        self.remove::<ConfigMap, _>(cluster, &self.config_maps, &names)
            .await?;
        let host_keys = desired.iter().filter_map(|it| it.host_key.as_ref());
        let host_keys: Vec<String> = host_keys.map(ResourceExt::name_any).collect();
        let secrets = desired.iter().filter(|it| it.secret.is_some());
        let mut names: Vec<&str> = secrets.map(|it| it.name.as_str()).collect();
        names.extend(host_keys.iter().map(String::as_str));
        self.remove::<Secret, _>(cluster, &self.secrets, &names)
            .await?;
        let with_budget = desired.iter().filter(|it| it.budget.is_some());
        let names: Vec<&str> = with_budget.map(|it| it.name.as_str()).collect();
        self.remove::<PodDisruptionBudget, _>(cluster, &self.budgets, &names)
            .await?;
        let mut services = Services {
            is_drained: true,
            ..Services::default()
        };
        let mut rejection = None;
        for service in desired {
            match self.apply_service(cluster, service, &mut services).await {
                // The next one may release a node port that this one needs.
                Err(error) if error.is_rejection() => {
                    rejection.get_or_insert(error);
                }
                applied => applied?,
            }
        }
        if let Some(error) = rejection {
            return Err(error);
        }
        let pods = self.pods.group(&ObjectKey::of(cluster));
        let is_old = |pod: &Arc<PodView>| {
            let configuration = pod.annotations().get(ANNOTATION_CONFIGURATION);
            let mut present = desired.iter();
            !pod.is_complete()
                && !present.any(|it| Some(it.configuration.as_str()) == configuration)
        };
        services.is_drained &= !pods.iter().any(is_old);
        Ok(services)
    }

    async fn apply_service(
        &self,
        cluster: &SIPCluster,
        service: &ServiceObjects,
        applied: &mut Services,
    ) -> Result<(), Error> {
        let (config_maps, deployments) = (&self.config_maps, &self.deployments);
        if let Some(secret) = &service.secret {
            self.apply_child("Secret", cluster, &self.secrets, secret)
                .await?;
        }
        if let Some(secret) = &service.host_key {
            self.create_host_key(cluster, secret).await?;
        }
        if let Some(config_map) = &service.config_map {
            self.apply_child("ConfigMap", cluster, config_maps, config_map)
                .await?;
        }
        let deployment = self.apply_child("Deployment", cluster, deployments, &service.deployment);
        let deployment = deployment.await?;
        let node_port = self.apply_child("Service", cluster, &self.services, &service.service);
        applied
            .endpoints
            .push(endpoint(service, &*node_port.await?));
        if let Some(budget) = &service.budget {
            self.apply_child("PodDisruptionBudget", cluster, &self.budgets, budget)
                .await?;
        }
        let own = || service.problem.clone();
        let problem = || self.problem(cluster, service, &deployment);
        applied.problem = applied.problem.take().or_else(own).or_else(problem);
        applied.is_drained &= is_observed(&deployment);
        Ok(())
    }

    /// Creates the Secret with the key of a jump host. A present one is never changed.
    async fn create_host_key(&self, cluster: &SIPCluster, secret: &Secret) -> Result<(), Error> {
        let check = |present: &SecretView| {
            check_owner(
                "Secret",
                present,
                is_labelled_for(present, cluster),
                cluster,
                || None,
            )
        };
        if let Some(present) = self.secrets.get(&ObjectKey::of(secret)) {
            return check(&present);
        }
        let secret = Secret {
            data: Some((self.host_key)()?),
            ..secret.clone()
        };
        let writer = self.scope.writer();
        check(&*writer.create_or_get(&self.secrets, &secret).await?)
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
        V: Resource<DynamicType = ()> + Labelled + Serialize + DeserializeOwned,
    {
        let (key, writer) = (ObjectKey::of(desired), self.scope.writer());
        let present = match cache.get(&key) {
            Some(present) => Some(present),
            // An object without our labels is in no cache.
            None => writer.find_into::<K, V>(cache, key.name()).await?,
        };
        if let Some(present) = present {
            let is_own = is_labelled_for(&*present, cluster);
            check_owner(kind, &*present, is_own, cluster, || None)?;
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
            if names.contains(&name.as_str()) || is_ending || !owns(cluster, &*child) {
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

    /// Why the pods of a service do not run with the present configuration.
    fn problem(
        &self,
        cluster: &SIPCluster,
        service: &ServiceObjects,
        deployment: &DeploymentView,
    ) -> Option<String> {
        let fields = deployment.fields.read();
        let status = |field: &str| number(&fields, "status", field);
        let wanted = number(&fields, "spec", "replicas");
        let (updated, available) = (status("updatedReplicas"), status("availableReplicas"));
        let is_complete = is_observed(deployment)
            && updated == wanted
            && available >= wanted
            && status("replicas") == updated;
        if is_complete {
            return None;
        }
        let name = &service.name;
        let pods = self.pods.group(&ObjectKey::of(cluster));
        let of_service = pods
            .iter()
            .filter(|pod| pod.label("app.kubernetes.io/instance") == Some(name));
        let cause = of_service
            .filter_map(|pod| not_running(pod))
            .next()
            .or_else(|| not_created(&fields));
        let cause = cause.unwrap_or_else(|| {
            let old = status("replicas") - updated;
            format!(
                "{updated} of {wanted} pods have the present configuration, {old} have the previous one, {available} are available"
            )
        });
        Some(format!("Deployment {name}: {cause}"))
    }
}

/// Why a pod has no running container.
fn not_running(pod: &PodView) -> Option<String> {
    let status = &pod.status;
    let containers = status.container_statuses.iter();
    let waiting = containers.filter_map(|it| it.state.waiting.as_ref());
    let mut waiting = waiting.filter(|it| it.reason.as_deref() != Some("ContainerCreating"));
    let mut conditions = status.conditions.iter();
    let (reason, message) = match waiting.next() {
        Some(waiting) => (waiting.reason.as_deref(), waiting.message.as_deref()),
        None => {
            let unscheduled = |it: &&PodConditionView| {
                it.type_ == PodConditionType::PodScheduled && it.status == PodConditionStatus::False
            };
            let condition = conditions.find(unscheduled)?;
            (condition.reason.as_deref(), condition.message.as_deref())
        }
    };
    let [reason, message] = [reason, message].map(Option::unwrap_or_default);
    Some(format!("pod {}: {reason}: {message}", pod.name_any()))
}

/// Why a Deployment cannot create its pods, for example because of a quota.
fn not_created(deployment: &Map<String, Value>) -> Option<String> {
    let conditions = deployment.get("status")?.get("conditions")?;
    let mut conditions = conditions.as_array()?.iter();
    let failure = conditions.find(|it| {
        let text = |field| it.get(field).and_then(Value::as_str);
        text("type") == Some("ReplicaFailure") && text("status") == Some("True")
    })?;
    Some(failure.get("message")?.as_str()?.to_owned())
}

fn as_value(object: &impl Serialize) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

/// Whether the object was created for the cluster, or for a previous one with its name.
fn is_labelled_for(child: &impl Labelled, cluster: &SIPCluster) -> bool {
    child.label(LABEL_CLUSTER_NAME) == cluster.metadata.name.as_deref()
}

/// A number in the object. Kubernetes leaves zeros out.
fn number(object: &Map<String, Value>, part: &str, field: &str) -> i64 {
    let number = object.get(part).and_then(|it| it.get(field));
    number.and_then(Value::as_i64).unwrap_or_default()
}

/// Whether the controller of Deployments has read the last change.
fn is_observed(deployment: &DeploymentView) -> bool {
    let observed = number(&deployment.fields.read(), "status", "observedGeneration");
    deployment
        .metadata
        .generation
        .is_some_and(|it| it == observed)
}

fn endpoint(objects: &ServiceObjects, service: &ServiceView) -> Endpoint {
    let fields = service.fields.read();
    let ports = fields.get("spec").and_then(|it| it.get("ports"));
    let port = ports.and_then(|ports| ports.get(0)?.get("nodePort")?.as_i64());
    // Without permissions for the whole cluster, the addresses of nodes are unknown.
    let host = objects.cluster_ip.as_deref().unwrap_or("<node>");
    Endpoint {
        service: objects.name.clone(),
        address: match (host.contains(':'), port.unwrap_or_default()) {
            (true, port) => format!("[{host}]:{port}"),
            (false, port) => format!("{host}:{port}"),
        },
    }
}
