//! One folder for each kind of object. Controllers never import each other: they meet through objects of the API server.

pub mod pool;
pub mod vm;

use crate::api;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

/// A controller, as `--controllers` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ControllerName {
    /// Virtual machines.
    Vm,
    /// Pools of virtual machines.
    Pool,
}

/// The definitions of all kinds of ours.
#[must_use]
pub fn definitions() -> Vec<CustomResourceDefinition> {
    [api::vm::crd(), api::report::crd()]
        .into_iter()
        .chain(api::pool::definitions())
        .collect()
}
