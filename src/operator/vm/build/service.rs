//! (pure) The load balancer service.

use super::{Plan, owned};
use crate::api::names;
use crate::operator::vm::plan::ServicePlan;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

pub(super) fn build(plan: &Plan, service: &ServicePlan) -> Service {
    let mut metadata = owned(plan, plan.name.clone());
    let ours = metadata.labels.take().unwrap_or_default();
    let applied = json!({
        "labels": service.labels.keys().collect::<Vec<_>>(),
        "annotations": service.annotations.keys().collect::<Vec<_>>(),
    });
    let applied = (names::ANNOTATION_APPLIED.to_owned(), applied.to_string());
    metadata.labels = Some(service.labels.clone().into_iter().chain(ours).collect());
    metadata.annotations = Some(service.annotations.clone().into_iter().chain([applied]).collect());
    let ports = service.ports.iter().map(|(name, port, protocol)| ServicePort {
        name: Some(name.clone()),
        port: i32::from(*port),
        protocol: Some((*protocol).to_owned()),
        target_port: Some(IntOrString::Int(i32::from(*port))),
        ..ServicePort::default()
    });
    let selector = [(names::LABEL_NAME, names::APP_NAME), (names::LABEL_INSTANCE, plan.name.as_str())];
    let spec = ServiceSpec {
        type_: Some("LoadBalancer".to_owned()),
        selector: Some(selector.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
        ports: Some(ports.collect()),
        ..ServiceSpec::default()
    };
    Service { metadata, spec: Some(spec), status: None }
}
