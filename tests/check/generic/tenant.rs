//! A cluster-scoped kind of another group, with the parts of a controller that the other two kinds lack: a set with its Lease and its
//! section of the configuration, a finalizer, a child by server-side apply, rejections, objects that cannot be decoded, a check against the
//! API server, and the deletion of its own object.

use super::kinds::SECOND;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Preconditions, PropagationPolicy};
use kube::runtime::{reflector::Store, watcher::Config};
use kube::{Api, CustomResource, CustomResourceExt, Resource, ResourceExt};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use vm_operator::api::conditions::{DesiredCondition, Reason};
use vm_operator::k8s::cluster::{Cluster, ForeignKind, Manager};
use vm_operator::k8s::controller::{Outcome, Reconciler};
use vm_operator::k8s::error::Error;
use vm_operator::k8s::follow::{self, Changes};
use vm_operator::k8s::ownership::check_owner;
use vm_operator::k8s::rejection::{Cause, Rejections};
use vm_operator::k8s::store::{children::Cache, primary::PrimaryStore};
use vm_operator::k8s::undecodable::{StandIn, Undecodable, decoded};
use vm_operator::k8s::watch::{Guarded, Namespaces, listed};
use vm_operator::k8s::writer::{Writer, only_uid};
use vm_operator::k8s::{key::ObjectKey, live::is_gone, state::States};
use vm_operator::operator::set::{ControllerName, ControllerSet, SetDefinition, Start};
use vm_operator::settings::Section;

const FINALIZER: &str = "foreign.example.org/tenants";
const READY: &str = "Ready";
const SOON: Duration = Duration::from_secs(1);

#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "foreign.example.org",
    version = "v1",
    kind = "Tenant",
    plural = "tenants"
)]
#[kube(status = "TenantStatus")]
pub struct TenantSpec {
    /// The definition admits any value, so that an object can exist that the controller cannot decode.
    #[schemars(schema_with = "any")]
    pub size: u32,
}

fn any(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-preserve-unknown-fields": true})
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TenantStatus {
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Copy, Debug)]
struct TenantReason(&'static str);

impl Reason for TenantReason {
    fn as_str(self) -> &'static str {
        self.0
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct TenantSettings {
    size_max: u32,
}

impl Section for TenantSettings {
    const PATH: &'static [&'static str] = &["/Tenants"];
}

pub struct Tenants {
    cluster: Cluster,
    size_max: u32,
    states: States<Rejections>,
    objects: Arc<PrimaryStore<Tenant>>,
    quotas: Arc<Cache<ConfigMap>>,
    undecodable: [Arc<Undecodable>; 1],
}

impl ControllerSet for Tenants {
    type Settings = TenantSettings;

    const DEFINITION: SetDefinition = SetDefinition {
        name: "tenants",
        lease: "tenants",
        folder: "",
        controllers: &[],
        manager: Manager {
            field_manager: "tenants",
            reporter: FINALIZER,
            action: "Share",
        },
        definitions: || vec![Tenant::crd()],
        metrics: |_| {},
        foreign: &[ForeignKind {
            plural: "tenants",
            install: "kubectl apply -f tenants.yaml",
        }],
    };

    fn start(_: &[ControllerName], settings: &TenantSettings, start: &mut Start) {
        let cluster = start.pages.cluster.clone();
        let quotas = Cache::new(|quota: &ConfigMap| {
            let owner = quota.owner_references().first()?;
            Some(ObjectKey::new("", &owner.name))
        });
        let tenants = Arc::new(Self {
            states: States::new(cluster.first_backoff, cluster.jitter),
            size_max: settings.size_max,
            objects: Arc::default(),
            quotas: Arc::new(quotas),
            undecodable: [Undecodable::new::<Tenant>(Some("its quota remains"))],
            cluster: cluster.clone(),
        });
        let (objects, quotas) = (tenants.objects.clone(), &tenants.quotas);
        start.pages.registry.add("tenants", objects.clone());
        start.pages.registry.add("configmaps", quotas.clone());
        let (changes, changed) = Changes::new(objects.clone());
        let (namespaces, tasks) = (Namespaces::Only(vec![SECOND.to_owned()]), &mut start.tasks);
        let on_change = move |_, change| changes.of(change);
        follow::spawn_children(
            &cluster,
            &namespaces,
            tasks,
            "configmaps",
            "",
            quotas,
            on_change,
        );
        let api = Api::<Guarded<Tenant>>::all(cluster.client.clone());
        let events = listed(api, Config::default(), cluster.watch_backoff_max);
        let events = decoded(
            &cluster,
            events,
            &tenants.undecodable[0],
            StandIn::LastVersion,
        );
        let own = follow::primaries(&cluster, "tenants", events, objects);
        start.run(tenants, futures::stream::select(own, changed));
    }
}

impl Reconciler for Tenants {
    type Object = Tenant;
    type State = Rejections;
    const NAME: &'static str = "tenants";
    const CONCURRENCY: u16 = 2;

    fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn states(&self) -> &States<Rejections> {
        &self.states
    }

    fn objects(&self) -> Store<Tenant> {
        self.objects.reader()
    }

    fn undecodable(&self) -> &[Arc<Undecodable>] {
        &self.undecodable
    }

    async fn reconcile(&self, tenant: Arc<Tenant>) -> Result<Outcome, Error> {
        let (key, now) = (ObjectKey::of(&*tenant), (self.cluster.instant)());
        if tenant.metadata.deletion_timestamp.is_some() {
            return self.release(&tenant).await;
        }
        if tenant.spec.size == 0 {
            let mut unchanged = only_uid(&tenant.uid().unwrap());
            unchanged.resource_version = tenant.resource_version();
            return self.delete(&tenant, unchanged).await;
        }
        let forbidden = self.cluster.forbidden.kinds(SECOND).join(", ");
        if !forbidden.is_empty() {
            let reported = self.report(&tenant, "Forbidden", forbidden).await?;
            return Ok(reported.recheck_within(Some(SOON)));
        }
        let objects = &self.objects;
        let tenant = self.own().add_finalizer(objects, tenant, FINALIZER).await?;
        let left = self
            .states
            .retry_after(&key, READY, now)
            .unwrap_or_default();
        if !left.is_zero() {
            return Ok(Outcome::Recheck(left));
        }
        let quota = self.quota(&tenant);
        let present = self.quotas.get(&ObjectKey::of(&quota));
        if let Some(present) = present.as_deref() {
            check_owner(
                "ConfigMap",
                present,
                is_owned(present, &tenant),
                &*tenant,
                || None,
            )?;
        }
        self.states.accepted(&key, READY);
        if present.is_some_and(|present| present.data == quota.data) {
            return self.report(&tenant, "Applied", String::new()).await;
        }
        let writer = Writer::new(&self.cluster, SECOND);
        match writer.apply(&self.quotas, &quota).await {
            Ok(_) => self.report(&tenant, "Applied", String::new()).await,
            Err(error) if error.is_rejection() => {
                self.states.rejected(&key, READY, now);
                let is_missing = Cause::of(&error) == Cause::Rights;
                let reason = if is_missing {
                    "NotAuthorized"
                } else {
                    "Rejected"
                };
                self.report(&tenant, reason, error.to_string()).await
            }
            Err(error) => Err(error),
        }
    }
}

fn is_owned(quota: &ConfigMap, tenant: &Tenant) -> bool {
    let owner = quota.owner_references().first();
    owner.is_some_and(|owner| Some(&owner.uid) == tenant.metadata.uid.as_ref())
}

impl Tenants {
    fn own(&self) -> Writer<'_> {
        Writer::new(&self.cluster, "")
    }

    fn quota(&self, tenant: &Tenant) -> ConfigMap {
        let size = tenant.spec.size.min(self.size_max).to_string();
        let mut quota = ConfigMap::default();
        quota.metadata.name = tenant.metadata.name.clone();
        quota.metadata.namespace = Some(SECOND.to_owned());
        quota.metadata.owner_references = Some(vec![tenant.controller_owner_ref(&()).unwrap()]);
        quota.data = Some([("size".to_owned(), size)].into());
        quota
    }

    async fn delete(&self, tenant: &Tenant, unchanged: Preconditions) -> Result<Outcome, Error> {
        let (name, foreground) = (tenant.name_any(), PropagationPolicy::Foreground);
        let (own, objects) = (self.own(), &self.objects);
        let deleted = own.delete_primary::<_, Tenant>(objects, &name, unchanged, foreground);
        Ok(match deleted.await? {
            true => Outcome::Done,
            false => Outcome::Recheck(SOON),
        })
    }

    async fn report(
        &self,
        tenant: &Tenant,
        reason: &'static str,
        message: String,
    ) -> Result<Outcome, Error> {
        let (type_, status, name) = (READY, reason == "Applied", tenant.name_any());
        let reason = TenantReason(reason);
        let ready = DesiredCondition {
            type_,
            status,
            reason,
            message,
        };
        let present = tenant
            .status
            .as_ref()
            .map(|status| &*status.conditions)
            .unwrap_or_default();
        let ready = ready.at(present, tenant.metadata.generation, (self.cluster.now)());
        if present != [ready.clone()] {
            let body = json!({"status": {"conditions": [ready]}});
            self.own()
                .merge_status::<_, Tenant>(&self.objects, &name, &body)
                .await?;
        }
        let now = (self.cluster.instant)();
        Ok(Outcome::Done.recheck_within(self.states.retry_after(
            &ObjectKey::of(tenant),
            READY,
            now,
        )))
    }

    /// Deletes the quota, and removes the finalizer when the API server confirms the deletion.
    async fn release(&self, tenant: &Tenant) -> Result<Outcome, Error> {
        let (name, writer) = (tenant.name_any(), Writer::new(&self.cluster, SECOND));
        let live = writer.find::<ConfigMap, ConfigMap>(&name).await?;
        if let Some(live) = live.filter(|live| is_owned(live, tenant)) {
            let uid = live.uid().unwrap();
            writer
                .delete::<ConfigMap, _>(&self.quotas, &name, only_uid(&uid), None)
                .await?;
            let live = writer.find::<ConfigMap, ConfigMap>(&name).await?;
            if !is_gone(live.as_ref(), &uid) {
                return Ok(Outcome::Recheck(SOON));
            }
        }
        let own = self.own();
        own.remove_finalizer(&self.objects, tenant, FINALIZER)
            .await?;
        Ok(Outcome::Done)
    }
}
