//! A set of controllers: its definition, and the start of its controllers.

use crate::k8s::cluster::{Cluster, ForeignKind, Manager};
use crate::k8s::controller::{self, Reconciler};
use crate::k8s::registry::Registry;
use crate::k8s::tasks::Tasks;
use crate::operator::http::Pages;
use crate::settings::Section;
use crate::telemetry::metrics::Metrics;
use futures::future::{BoxFuture, FutureExt, Shared};
use futures::stream::Stream;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::runtime::reflector::ObjectRef;
use std::sync::Arc;

/// A controller, as `--controllers` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ControllerName {
    /// Virtual machines.
    Vm,
    /// Pools of virtual machines.
    Pool,
    /// Cloud instances of the pods of confidential containers.
    #[value(name = "peerpod")]
    PeerPod,
    /// Hosts and services of tenant clusters.
    Sip,
}

/// A set of controllers.
pub trait ControllerSet {
    /// Its section of the configuration file.
    type Settings: Section;

    /// The definition of the set.
    const DEFINITION: SetDefinition;

    /// Starts these controllers of the set.
    fn start(controllers: &[ControllerName], settings: &Self::Settings, start: &mut Start);
}

/// The definition of a set.
#[derive(Clone, Copy)]
pub struct SetDefinition {
    /// The name of its Deployment, and the value of the label `app.kubernetes.io/name`.
    pub name: &'static str,
    /// The name of its Lease. All selections of controllers of the set have the same Lease, so that never two processes run one
    /// controller.
    pub lease: &'static str,
    /// Its controllers.
    pub controllers: &'static [ControllerName],
    /// Field manager of its writes, and reporter of its events. A controller can have another one.
    pub manager: Manager,
    /// The folder of `crds/` with the kinds that it defines, and of `deploy/` with its manifests. Empty for the
    /// operator of VMs: `crds/` itself and `deploy/base`.
    pub folder: &'static str,
    /// The kinds that it defines.
    pub definitions: fn() -> Vec<CustomResourceDefinition>,
    /// Registers the metrics that its controllers define.
    pub metrics: fn(&Metrics),
    /// The kinds of other programs that it needs.
    pub foreign: &'static [ForeignKind],
}

/// Completes when the controllers must stop.
pub type Stop = Shared<BoxFuture<'static, ()>>;

/// The controllers of a process while they are started: their cluster and namespace, and the started tasks.
pub struct Start {
    /// Namespace of the operator.
    pub namespace: String,
    /// The cluster, and the stores and metrics that the HTTP pages show.
    pub pages: Pages,
    /// Watches and other tasks.
    pub tasks: Tasks,
    /// The reconcile loops of the controllers.
    pub runs: Vec<BoxFuture<'static, ()>>,
    stop: Stop,
}

impl Start {
    /// Nothing is started yet.
    #[must_use]
    pub fn new(cluster: Cluster, namespace: String, stop: Stop) -> Self {
        Self {
            namespace,
            pages: Pages {
                cluster,
                registry: Registry::default(),
                update_metrics: Vec::new(),
            },
            tasks: Tasks::default(),
            runs: Vec::new(),
            stop,
        }
    }

    /// Runs the loop of a controller, and updates its metrics before each scrape.
    pub fn run<R: Reconciler>(
        &mut self,
        reconciler: Arc<R>,
        changes: impl Stream<Item = ObjectRef<R::Object>> + Send + 'static,
    ) {
        let measured = reconciler.clone();
        let update_metrics = move || measured.update_metrics();
        self.pages.update_metrics.push(Arc::new(update_metrics));
        let run = controller::run(reconciler, changes, self.stop.clone());
        self.runs.push(run.boxed());
    }
}
