//! One folder for each kind of object. Controllers never import each other: they meet through objects of the API server.

pub mod vm;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

/// A controller, as `--controllers` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ControllerName {
    /// Virtual machines.
    Vm,
}

/// The definitions of all kinds of ours.
#[must_use]
pub fn definitions() -> Vec<CustomResourceDefinition> {
    vec![crate::api::vm::crd(), crate::api::report::crd()]
}
