//! An API server for all tests of this process, a namespace for each test, and an operator in the test's process.

use futures::FutureExt;
use http::{Method, Request};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::client::{Body, ClientBuilder};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};
use support::real::Server;
use support::vms::{children_listed, operate};
use tokio::task::JoinHandle;
use vm_operator::api::{VirtualMachine, VmAssignment, VmPool, VmReport};
use vm_operator::controllers::vm;
use vm_operator::controllers::vm::context::VmController;
use vm_operator::k8s::cluster::Cluster;
use vm_operator::settings::Settings;

/// The time limit of waits. They take a few seconds, but more on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// etcd, API server, scheduler and garbage collector, with the definitions of this project. It stops with the process.
static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let server = Server::start_for_controllers();
    // The tests already run in their own runtimes.
    let prepared = std::thread::scope(|scope| scope.spawn(|| prepare(&server)).join());
    assert!(prepared.is_ok(), "the API server cannot be prepared");
    server
});

fn prepare(server: &Server) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = server.client().await;
        install(&client, |_| true).await;
        let vms = Api::<VirtualMachine>::all(client.clone());
        let reports = Api::<VmReport>::all(client.clone());
        let pools = Api::<VmPool>::all(client.clone());
        let claims = Api::<VmAssignment>::all(client);
        eventually("the definitions are established", || async {
            vms.list(&ListParams::default()).await.is_ok()
                && reports.list(&ListParams::default()).await.is_ok()
                && pools.list(&ListParams::default()).await.is_ok()
                && claims.list(&ListParams::default()).await.is_ok()
        })
        .await;
    });
    server.start_controllers();
}

/// Installs the definitions in `crds/` whose file names are meant, without those in folders.
pub async fn install(client: &Client, is_meant: impl Fn(&str) -> bool) {
    let crds = Api::<CustomResourceDefinition>::all(client.clone());
    for entry in std::fs::read_dir(root().join("crds")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() || !is_meant(path.file_name().unwrap().to_str().unwrap()) {
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap();
        let crd: CustomResourceDefinition = serde_saphyr::from_str(&text).unwrap();
        crds.create(&PostParams::default(), &crd).await.unwrap();
    }
}

/// The API server of all tests.
pub fn server() -> &'static Server {
    &SERVER
}

/// Waits until the condition holds.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A VM with that spec.
pub fn machine(name: &str, spec: Value) -> VirtualMachine {
    let metadata = json!({"name": name});
    let (version, kind) = ("vmoperator.jdrupes.org/v1", "VirtualMachine");
    serde_json::from_value(
        json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}),
    )
    .unwrap()
}

pub struct World {
    pub client: Client,
    pub namespace: String,
    pub config: Config,
    pub server: &'static Server,
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

impl World {
    /// A new namespace, in which Pod Security enforces `restricted`, with the runners' service accounts.
    pub async fn new(name: &str) -> Self {
        Self::on(server(), name).await
    }

    /// The same on that server.
    pub async fn on(server: &'static Server, name: &str) -> Self {
        let config = server.config().await;
        let client = Client::try_from(config.clone()).unwrap();
        let world = Self {
            client,
            namespace: format!("test-{name}"),
            config,
            server,
        };
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        let metadata = json!({"name": world.namespace, "labels": labels});
        let namespace: Namespace = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        Api::all(world.client.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
        let accounts = Api::namespaced(world.client.clone(), &world.namespace);
        for name in ["vm-runner", "vm-reporter"] {
            let account: ServiceAccount =
                serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
            accounts
                .create(&PostParams::default(), &account)
                .await
                .unwrap();
        }
        world
    }

    fn api(&self, object: &Value) -> Api<DynamicObject> {
        let version = object["apiVersion"].as_str().unwrap();
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(
            group,
            version,
            object["kind"].as_str().unwrap(),
        ));
        match object["kind"].as_str().unwrap() {
            "ClusterRole"
            | "ClusterRoleBinding"
            | "CustomResourceDefinition"
            | "ValidatingAdmissionPolicy"
            | "ValidatingAdmissionPolicyBinding" => Api::all_with(self.client.clone(), &resource),
            _ => Api::namespaced_with(self.client.clone(), &self.namespace, &resource),
        }
    }

    /// Applies an object. A namespaced object goes into the test's namespace.
    ///
    /// # Errors
    /// The API server's rejection.
    pub async fn apply(&self, object: &Value, dry_run: bool) -> Result<DynamicObject, kube::Error> {
        let params = PatchParams::apply("test").force();
        let params = if dry_run { params.dry_run() } else { params };
        let name = object["metadata"]["name"].as_str().unwrap();
        self.api(object)
            .patch(name, &params, &Patch::Apply(object))
            .await
    }

    /// Dry-runs the creation of the object in the test's namespace.
    /// Installs the definition in that file, and waits until it is served.
    pub async fn define(&self, file: &str) {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        let crd: CustomResourceDefinition = serde_saphyr::from_str(&text).unwrap();
        let crds = Api::<CustomResourceDefinition>::all(self.client.clone());
        let (name, params) = (crd.name_any(), PatchParams::apply("test").force());
        crds.patch(&name, &params, &Patch::Apply(&crd))
            .await
            .unwrap();
        let (group, version) = (&crd.spec.group, &crd.spec.versions[0].name);
        let path = format!("/apis/{group}/{version}/{}", crd.spec.names.plural);
        eventually(&format!("{name} is served"), async || {
            let list = http::Request::get(&path).body(Vec::new()).unwrap();
            self.client.request_text(list).await.is_ok()
        })
        .await;
    }

    pub async fn dry_run_apply(&self, object: &Value) -> Result<DynamicObject, kube::Error> {
        let mut object = object.clone();
        object["metadata"]["namespace"] = self.namespace.clone().into();
        self.apply(&object, true).await
    }

    /// Dry-runs the creation of a VM with that spec. The spec is sent as a user wrote it, because the typed one would
    /// already have the defaults.
    pub async fn create_dry(&self, spec: &Value) -> Result<Value, kube::Error> {
        let metadata = json!({"name": "dry", "namespace": self.namespace});
        let (version, kind) = ("vmoperator.jdrupes.org/v1", "VirtualMachine");
        let object =
            json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec});
        let path = format!(
            "/apis/vmoperator.jdrupes.org/v1/namespaces/{}/vms?dryRun=All",
            self.namespace
        );
        let request = Request::post(path).header("Content-Type", "application/json");
        self.client
            .request(request.body(serde_json::to_vec(&object).unwrap()).unwrap())
            .await
    }

    /// Runs a command of kubectl in the namespace of this world, and returns its output or its error.
    pub fn shell(&self, command: &str) -> Result<String, String> {
        let kubectl = format!(
            "{} --namespace {} ",
            self.server.path("kubectl").display(),
            self.namespace
        );
        let output = Command::new("bash")
            .args(["-c", &command.replacen("kubectl ", &kubectl, 1)])
            .current_dir(root())
            .env("KUBECONFIG", self.server.path("kubeconfig"))
            // kubectl must not use the cached kinds of another cluster.
            .env("KUBECACHEDIR", self.server.path("kubectl-cache"))
            .output()
            .expect("bash is missing");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr))
        }
    }

    /// The objects of a kustomization.
    pub fn kustomize(&self, directory: &str) -> Vec<Value> {
        let output = Command::new(server().path("kubectl"))
            .arg("kustomize")
            .arg(root().join(directory))
            .output();
        let output = output.unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8(output.stdout).unwrap();
        text.split("\n---\n")
            .map(|document| serde_saphyr::from_str(document).unwrap())
            .collect()
    }

    /// Starts an operator for the test's namespace.
    pub async fn start_operator(&self) -> Operator {
        self.start_operator_with(Settings::default()).await
    }

    /// Starts an operator with that configuration.
    pub async fn start_operator_with(&self, settings: Settings) -> Operator {
        let writes = Arc::new(Mutex::new(Vec::new()));
        let log = writes.clone();
        let builder = ClientBuilder::try_from(self.config.clone()).unwrap();
        let layer = tower::util::MapRequestLayer::new(move |request: Request<Body>| {
            if request.method() != Method::GET && !request.uri().path().ends_with("/events") {
                log.lock()
                    .unwrap()
                    .push(format!("{} {}", request.method(), request.uri().path()));
            }
            request
        });
        let client = builder.with_layer(&layer).build();
        let operator = self.start_operator_as(client, settings).await;
        Operator { writes, ..operator }
    }

    /// Starts an operator with that client, the writes of which are not logged.
    pub async fn start_operator_as(&self, client: Client, settings: Settings) -> Operator {
        let cluster = Cluster::new(client, vm::MANAGER);
        let ctx = Arc::new(VmController::new(cluster, self.namespace.clone(), settings));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let task = tokio::spawn(operate(ctx.clone(), stopped.map(drop)));
        children_listed(&ctx).await;
        Operator {
            stop,
            task,
            writes: Arc::default(),
        }
    }
}

pub struct Operator {
    stop: tokio::sync::oneshot::Sender<()>,
    task: JoinHandle<()>,
    writes: Arc<Mutex<Vec<String>>>,
}

impl Operator {
    /// Its writes so far, without events.
    pub fn writes(&self) -> Vec<String> {
        self.writes.lock().unwrap().clone()
    }

    /// Stops it as a signal does.
    pub async fn stop(self) {
        let _ = self.stop.send(());
        tokio::time::timeout(TIMEOUT, self.task)
            .await
            .expect("it stops")
            .unwrap();
    }
}
