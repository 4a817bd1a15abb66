//! (client) The watches of clusters, hosts, network data and children. Each fills a store and reports the clusters to reconcile.

use crate::api::SIPCluster;
use crate::api::sip::names;
use crate::controllers::sip::SipController;
use crate::controllers::sip::views::{HostSecretView, HostView};
use crate::k8s::follow::{self, Changes};
use crate::k8s::key::ObjectKey;
use crate::k8s::store::children::{Cache, Change};
use crate::k8s::tasks::Tasks;
use crate::k8s::undecodable::{StandIn, decoded_in};
use crate::k8s::watch::{NamespacedObject, Namespaces, listed_in};
use futures::{Stream, StreamExt};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{Config, Event};
use std::sync::Arc;

impl SipController {
    /// Starts the watches. Returns the clusters that have changed themselves, or could be affected by a change.
    pub fn watch(
        &self,
        tasks: &mut Tasks,
    ) -> impl Stream<Item = ObjectRef<SIPCluster>> + Send + 'static + use<> {
        let (cluster, namespaces) = (&self.scope.cluster, self.scope.namespaces());
        let with_hosts = self.host_namespaces().map(|(name, _)| name.to_owned());
        let with_hosts = Namespaces::Only(with_hosts.collect());
        let (changes, changed) = Changes::new(self.clusters.clone());
        let [of_clusters, of_hosts] = &self.undecodable;
        let config = Config::default();

        // The labels of a host that cannot be decoded remain valid. It could have a consumer, so no cluster gets or loses it.
        let in_use = StandIn::Object(|metadata| {
            Some(HostView {
                metadata,
                is_undecodable: true,
                ..HostView::default()
            })
        });
        let hosts = decoded_in::<HostView>(cluster, &with_hosts, &config, of_hosts, in_use);
        // Before the store, which knows the own writes already: a host that leaves one cluster can be a candidate of another.
        let others = changes.clone();
        let hosts = hosts.inspect(move |event| {
            if let Ok(Event::Apply(_) | Event::Delete(_)) = event {
                others.all(|_| true);
            }
        });
        let hosts = follow::children(
            cluster.clone(),
            "baremetalhosts",
            hosts,
            self.hosts.clone(),
            affects_all(&changes),
        );
        tasks.spawn("watch of baremetalhosts".to_owned(), hosts);

        // All of the namespaces, because the spec of any cluster can name them.
        let secrets = listed_in::<HostSecretView>(cluster, &with_hosts, &config);
        let secrets = follow::children(
            cluster.clone(),
            "secrets",
            secrets,
            self.host_secrets.clone(),
            affects_all(&changes),
        );
        tasks.spawn("watch of secrets".to_owned(), secrets);

        self.watch_children("configmaps", &self.config_maps, &changes, tasks);
        self.watch_children("secrets", &self.secrets, &changes, tasks);
        self.watch_children("deployments", &self.deployments, &changes, tasks);
        self.watch_children("services", &self.services, &changes, tasks);
        self.watch_children("poddisruptionbudgets", &self.budgets, &changes, tasks);
        self.watch_children("pods", &self.pods, &changes, tasks);

        let last = StandIn::LastVersion;
        let clusters = decoded_in(cluster, &namespaces, &config, of_clusters, last);
        let own = follow::primaries(cluster, "sipclusters", clusters, self.clusters.clone());
        futures::stream::select(own, changed)
    }

    fn watch_children<K: NamespacedObject>(
        &self,
        resource: &'static str,
        cache: &Arc<Cache<K>>,
        changes: &Changes<SIPCluster>,
        tasks: &mut Tasks,
    ) {
        let labels = format!("app.kubernetes.io/part-of={}", names::PART_OF);
        let changes = changes.clone();
        follow::spawn_children(
            &self.scope.cluster,
            &self.scope.namespaces(),
            tasks,
            resource,
            &labels,
            cache,
            move |_, change| changes.of(change),
        );
    }
}

/// Any cluster may want a changed host.
fn affects_all(changes: &Changes<SIPCluster>) -> impl Fn(Option<ObjectKey>, Change) + use<> {
    let changes = changes.clone();
    move |_, change| {
        if change != Change::None {
            changes.all(|_| true);
        }
    }
}
