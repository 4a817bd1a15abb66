//! The errors with which the program exits.

use crate::device_plugin::cli::Fatal as PluginFatal;
use crate::k8s::tasks::TaskEnded;
use crate::settings::SettingsError;
use std::net::SocketAddr;
use std::path::PathBuf;

/// An error with which the program exits.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fatal {
    #[error("{0}")]
    Settings(#[from] SettingsError),
    #[error(
        "cannot find the API server of a cluster: {0}; set KUBECONFIG to the path of a kubeconfig, or run the operator in a \
         pod of the cluster"
    )]
    NoCluster(#[from] kube::config::InferConfigError),
    #[error(
        "cannot create an API client: {0}; check the kubeconfig, or the service account of the pod"
    )]
    Client(#[from] kube::Error),
    #[error(
        "the namespace of the VMs is not configured; set the key /Manager./Controller.namespace in the configuration, or run the \
         operator in a pod of the cluster"
    )]
    NoNamespace,
    #[error(
        "the namespace of the cloud-api-adaptor is unknown; name it with --namespace, or run the command in the pod of the controller"
    )]
    NoAdaptorNamespace,
    #[error("{0} of the lines above name a problem")]
    Check(usize),
    #[error("--controllers names no controller; name at least one")]
    NoController,
    #[error(
        "--controllers names controllers of the sets {0} and {1}; each set runs in a Deployment of its own, so name controllers of one set only"
    )]
    TwoSets(&'static str, &'static str),
    #[error("cannot serve HTTP on {0}: {1}; choose another address with --http")]
    Http(SocketAddr, std::io::Error),
    #[error("cannot write {0}: {1}")]
    File(PathBuf, std::io::Error),
    #[error("cannot write an object as YAML: {0}; report this as a bug of the operator")]
    Yaml(#[from] Box<serde_saphyr::ser::Error>),
    #[error(
        "cannot start the threads of the operator: {0}; raise the limit of processes of the pod (podPidsLimit of the kubelet)"
    )]
    Runtime(std::io::Error),
    #[error(
        "the operator cannot install signal handlers, so it does not start: {0}; report this error as a bug of the operator"
    )]
    Signals(std::io::Error),
    #[error(
        "{0}; report this as a bug. The operator exits, so that Kubernetes starts it again with all tasks"
    )]
    Task(#[from] TaskEnded),
    #[cfg(feature = "web")]
    #[error("cannot make the hash of the password: {0}")]
    Password(std::io::Error),
    #[cfg(feature = "web")]
    #[error("the password must have 1 to {0} bytes; choose another one")]
    PasswordLength(usize),
    #[error("{0}")]
    DevicePlugin(#[from] PluginFatal),
}
