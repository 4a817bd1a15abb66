//! The errors with which the program exits.

use crate::device_plugin::cli::Fatal as PluginFatal;
use crate::k8s::leader::LeadershipLost;
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
        "no access to a cluster: {0}; set KUBECONFIG to the path of a kubeconfig, or run in a pod of the cluster"
    )]
    NoCluster(#[from] kube::config::InferConfigError),
    #[error("cannot create an API client: {0}")]
    Client(#[from] kube::Error),
    #[error(
        "no namespace: set /Manager./Controller.namespace in the configuration, or run in a pod of the cluster"
    )]
    NoNamespace,
    #[error("cannot serve HTTP on {0}: {1}; choose another address with --http")]
    Http(SocketAddr, std::io::Error),
    #[error("cannot write {0}: {1}")]
    File(PathBuf, std::io::Error),
    #[error("cannot serialize a custom resource definition: {0}")]
    Yaml(#[from] Box<serde_saphyr::ser::Error>),
    #[error("cannot start threads: {0}")]
    Runtime(std::io::Error),
    #[error("cannot handle signals: {0}")]
    Signals(std::io::Error),
    #[error("{0}; exiting, because another operator may be the leader")]
    Lost(#[from] LeadershipLost),
    #[error("{0}; exiting, because the stores of objects are no longer current")]
    Task(#[from] TaskEnded),
    #[error("{0}")]
    DevicePlugin(#[from] PluginFatal),
}
