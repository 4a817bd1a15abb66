//! The errors with which the program exits.

use crate::device_plugin::cli::Fatal as PluginFatal;
use crate::k8s::leader::Lost;
use crate::k8s::tasks::TaskEnded;
use crate::settings::SettingsError;
use std::net::SocketAddr;
use std::path::PathBuf;

/// An error with which the program exits.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fatal {
    #[error("{0}")]
    Settings(#[from] SettingsError),
    #[error("no access to a cluster: {0}; give a kubeconfig by KUBECONFIG, or run in the cluster")]
    NoCluster(#[from] kube::config::InferConfigError),
    #[error("cannot make a client: {0}")]
    Client(#[from] kube::Error),
    #[error(
        "no namespace: give /Manager./Controller.namespace in the configuration, or run in the cluster"
    )]
    NoNamespace,
    #[error("cannot serve on {0}: {1}; choose another address by --http")]
    Http(SocketAddr, std::io::Error),
    #[error("{0}: {1}")]
    File(PathBuf, std::io::Error),
    #[error("cannot print a definition: {0}")]
    Yaml(#[from] Box<serde_saphyr::ser::Error>),
    #[error("cannot start threads: {0}")]
    Runtime(std::io::Error),
    #[error("cannot listen to signals: {0}")]
    Signals(std::io::Error),
    #[error("{0}; ending, as another operator may lead")]
    Lost(#[from] Lost),
    #[error("{0}; ending, as the stores are out of date from now on")]
    Task(#[from] TaskEnded),
    #[error("{0}")]
    DevicePlugin(#[from] PluginFatal),
}
