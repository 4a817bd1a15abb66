//! `vm-operator web`: the web console. Users see the VMs on which they have permissions, start and stop them, and use their consoles.
//!
//! | module | content |
//! |---|---|
//! | `rights` (pure) | the rights of a user on a VM |
//! | `pools` (pure) | pools and assignments as the console stores them |
//! | `assignments` (pure) | the VMs that users have by pools |
//! | `view` (pure) | VMs as the console stores and shows them |
//! | `details`, `size` (pure) | one VM: disks, events, CPUs and memory |
//! | `events` | events about actions of users |
//! | `history` (pure) | totals of all VMs over the last day |
//! | `logins` | passwords, limits of attempts, logins in use |
//! | `oidc`, `https` | logins by providers of OpenID Connect |
//! | `live` | the list of VMs on one page, by WebSocket |
//! | `relay` | the screen or the serial console of a VM on one page |
//! | `viewer_file` (pure) | files for SPICE viewers |
//! | `runner` | connections to the runners of VMs |
//! | `metrics` | the metrics of the console |
//! | `end` | ends of SPICE clients whose users have lost the right |
//! | `freshness` | the time without news of the API server |
//! | `keys` | the keys that all replicas share, and logouts |
//! | `http` | routes and headers |
//! | `server` | connections with their limits |
//!
//! The pages are in `src/web/ui`; `make web` builds them into `src/web/dist`, which becomes a part of the program.

mod assignments;
mod details;
mod end;
mod events;
mod freshness;
mod history;
mod http;
mod https;
mod keys;
mod live;
mod logins;
mod metrics;
mod oidc;
mod pools;
mod relay;
mod rights;
mod runner;
mod server;
mod size;
mod view;
mod viewer_file;

pub use http::{probes, router};
pub use logins::{COST, PASSWORD_MAX};
pub use metrics::{DONE, WebMetrics};
pub use server::serve;

use crate::api::vm::names;
use crate::k8s::cluster::{Cluster, Manager};
use crate::k8s::follow;
use crate::k8s::key::ObjectKey;
use crate::k8s::registry::Stored;
use crate::k8s::store::children::{Cache, Change};
use crate::k8s::tasks::Tasks;
use crate::k8s::undecodable::{StandIn, Undecodable, decoded_in};
use crate::k8s::watch::{NamespacedObject, Namespaces};
use crate::settings::web::WebSettings;
use crate::web::assignments::Pools;
use crate::web::freshness::News;
use crate::web::history::{History, Sample};
use crate::web::keys::Keys;
use crate::web::logins::Logins;
use crate::web::pools::{AssignmentView, PoolView};
use crate::web::view::VmView;
use futures::StreamExt;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::runtime::watcher;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit, broadcast, watch};

/// Field manager of the console's writes.
pub const MANAGER: Manager = Manager {
    field_manager: "vm-web",
    reporter: "vmoperator.jdrupes.org/vm-web",
    action: "Request",
};

/// Pages with a live list at the same time.
const LIVE_MAX: usize = 500;

/// Pages with a live list of one login, and also the pages with a console.
const LIVE_OF_LOGIN_MAX: usize = 10;

/// Screens and serial consoles at the same time.
const CONSOLES_MAX: usize = 200;

/// Logins by providers that are under way at the same time.
const PROVIDER_REQUESTS_MAX: usize = 16;

/// Requests for the details of a VM at the same time.
const DETAILS_MAX: usize = 8;

/// Changes of VMs that a page can lag behind. After more, it gets the whole list.
const LAG_MAX: usize = 1024;

/// The state of the console.
pub struct Console {
    cluster: Cluster,
    namespace: String,
    settings: watch::Receiver<Arc<WebSettings>>,
    /// PEM file with certificate authorities of providers of OpenID Connect.
    authorities: Arc<Path>,
    /// Requests to providers at the same time.
    provider_requests: Semaphore,
    /// Each VM is a group of its own.
    vms: Arc<Cache<VmView>>,
    changes: broadcast::Sender<Change>,
    news: Arc<News>,
    history: History,
    pools: Pools,
    /// Changes when a pool or an assignment does.
    pools_changed: watch::Sender<()>,
    logins: Logins,
    /// Events by user and UID of the object.
    reported: DefaultKeyedRateLimiter<(String, String)>,
    /// The metrics of the console, without those of a controller.
    pub metrics: Arc<WebMetrics>,
    details: Semaphore,
    live: Arc<Semaphore>,
    consoles: Arc<Semaphore>,
    /// The keys of all replicas, as soon as the console has them.
    keys: watch::Sender<Option<Keys>>,
    /// One request at a time reads and writes the Secret with keys and logouts.
    secret: Mutex<()>,
}

impl Console {
    /// A console without VMs. The sender of `settings` changes the configuration of the running console.
    #[must_use]
    pub fn new(
        cluster: Cluster,
        namespace: String,
        settings: watch::Receiver<Arc<WebSettings>>,
        authorities: &Path,
    ) -> Arc<Self> {
        Arc::new(Self {
            cluster,
            pools: Pools {
                namespace: namespace.clone(),
                pools: Arc::new(Cache::new(|pool| Some(ObjectKey::of(pool)))),
                assignments: Arc::new(Cache::new(|it| Some(ObjectKey::of(it)))),
            },
            pools_changed: watch::Sender::new(()),
            news: Arc::default(),
            history: History::default(),
            namespace,
            settings,
            authorities: authorities.into(),
            provider_requests: Semaphore::new(PROVIDER_REQUESTS_MAX),
            vms: Arc::new(Cache::new(|vm| Some(ObjectKey::of(vm)))),
            changes: broadcast::Sender::new(LAG_MAX),
            logins: Logins::default(),
            reported: RateLimiter::keyed(Quota::per_minute(events::PER_MINUTE)),
            metrics: Arc::default(),
            details: Semaphore::new(DETAILS_MAX),
            live: Arc::new(Semaphore::new(LIVE_MAX)),
            consoles: Arc::new(Semaphore::new(CONSOLES_MAX)),
            keys: watch::Sender::new(None),
            secret: Mutex::default(),
        })
    }

    /// Starts the watch of VMs, and the check of logins after each change of the configuration.
    pub fn start(self: &Arc<Self>, tasks: &mut Tasks) {
        let changes = self.changes.clone();
        // Without receivers, no page is open.
        let changed = move |change| drop(changes.send(change));
        self.watch(tasks, "vms", VmView::without_rights, &self.vms, changed);
        let (pools, assignments) = (&self.pools.pools, &self.pools.assignments);
        let (changes, of_pool) = (self.pools_changed.clone(), PoolView::without_rights);
        let changed = move |_| changes.send_replace(());
        self.watch(tasks, "vmpools", of_pool, pools, changed.clone());
        let of_assignment = AssignmentView::without_rights;
        self.watch(tasks, "vmassignments", of_assignment, assignments, changed);
        let keys = keys::follow(self.clone());
        tasks.spawn("keys of the console".to_owned(), keys);
        let console = self.clone();
        tasks.spawn("history of totals".to_owned(), async move {
            console.vms.ready().await;
            let mut times = tokio::time::interval(history::INTERVAL);
            loop {
                times.tick().await;
                let time = (console.cluster.now)().as_second();
                console.history.add(Sample::of(&console.all_vms(), time));
            }
        });
        let console = self.clone();
        tasks.spawn("news of the API server".to_owned(), async move {
            console.news.follow(|| console.is_answered()).await;
        });
        tasks.spawn(
            "rights of SPICE clients".to_owned(),
            end::follow(self.clone()),
        );
        let console = self.clone();
        tasks.spawn("check of logins".to_owned(), async move {
            let mut settings = console.settings.clone();
            while settings.changed().await.is_ok() {
                let settings = settings.borrow_and_update().clone();
                console.logins.end_invalid(&settings, console.now());
            }
            // The sender exists as long as the process.
            std::future::pending().await
        });
    }

    /// Starts the watch of a kind. The operator reports objects that cannot be decoded; nobody has rights by them.
    fn watch<K: NamespacedObject>(
        &self,
        tasks: &mut Tasks,
        resource: &'static str,
        without_rights: fn(ObjectMeta) -> Option<K>,
        cache: &Arc<Cache<K>>,
        changed: impl Fn(Change) + Send + 'static,
    ) {
        let namespaces = Namespaces::Only(vec![self.namespace.clone()]);
        let (cluster, undecodable) = (self.cluster.clone(), Undecodable::new::<K>(None));
        let (config, stand_in) = (watcher::Config::default(), StandIn::Nothing(without_rights));
        let events = decoded_in(&cluster, &namespaces, &config, &undecodable, stand_in);
        let news = self.news.clone();
        // The watcher begins a list with `Init`, before the API server has answered.
        let events = events.inspect(move |event| match event {
            Ok(watcher::Event::Init) | Err(_) => {}
            Ok(_) => news.received(),
        });
        let changed = move |_, change| changed(change);
        let watch = follow::children(cluster, resource, events, cache.clone(), changed);
        tasks.spawn(format!("watch of {resource}"), watch);
    }

    /// Whether the API server answers.
    async fn is_answered(&self) -> bool {
        let client = self.cluster.client.clone();
        let config_maps: Api<ConfigMap> = Api::namespaced(client, &self.namespace);
        match config_maps.get_metadata_opt(names::WEB_CONFIG_MAP).await {
            Ok(_) => true,
            // A missing permission or a limit of requests is an answer, too.
            Err(kube::Error::Api(status)) => status.code < 500,
            Err(_) => false,
        }
    }

    /// The pool by which the user has the VM now. None if it cannot be read: without a pool, the user has fewer rights.
    async fn held_now(&self, vm: &VmView, user: &str) -> Option<PoolView> {
        self.read_holder(vm, user).await.unwrap_or_else(|error| {
            tracing::warn!(vm = vm.name(), %error, "the console cannot read the assignment of a VM");
            None
        })
    }

    /// The pool by which the user has the VM, as the API server has pool and assignment.
    async fn read_holder(&self, vm: &VmView, user: &str) -> kube::Result<Option<PoolView>> {
        let Some((pool, assignment)) = self.pools.holder(vm, user) else {
            return Ok(None);
        };
        let client = &self.cluster.client;
        let assignments = Api::<AssignmentView>::namespaced(client.clone(), &self.namespace);
        let assignment = assignments.get_opt(&assignment).await?;
        match assignment.filter(|assignment| assignments::has(assignment, vm)) {
            Some(_) => self.pool_now(pool).await,
            None => Ok(None),
        }
    }

    /// The pool as the API server has it.
    async fn pool_now(&self, name: &str) -> kube::Result<Option<PoolView>> {
        let client = self.cluster.client.clone();
        let pools: Api<PoolView> = Api::namespaced(client, &self.namespace);
        pools.get_opt(name).await
    }

    /// The place of a login by a provider among those that are under way.
    fn provider_permit(&self) -> Result<SemaphorePermit<'_>, oidc::Error> {
        let permit = self.provider_requests.try_acquire();
        permit.map_err(|_| oidc::Error::Provider("too many logins are under way".to_owned()))
    }

    /// None before the first answer of the API server.
    fn keys(&self) -> Option<Keys> {
        self.keys.borrow().clone()
    }

    /// The time in seconds since 1970.
    fn now(&self) -> i64 {
        (self.cluster.now)().as_second()
    }

    /// Whether the login is valid. Its page may have been open for hours.
    fn has_login(&self, id: &str) -> bool {
        self.logins.has(id, &self.settings(), self.now())
    }

    /// The user of the login has used the keyboard or a pointer.
    fn has_input(&self, id: &str) {
        self.logins.used(id, self.now());
    }

    fn settings(&self) -> Arc<WebSettings> {
        self.settings.borrow().clone()
    }

    /// All VMs.
    fn all_vms(&self) -> Vec<Arc<VmView>> {
        self.vms.groups(&ObjectKey::new(&self.namespace, ""))
    }

    fn api(&self) -> Api<VmView> {
        Api::namespaced(self.cluster.client.clone(), &self.namespace)
    }
}
