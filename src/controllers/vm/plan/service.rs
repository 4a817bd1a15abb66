//! (pure) The Service of type `LoadBalancer`.

use crate::api::vm::{Forward, VirtualMachineSpec, names};
use crate::controllers::vm::plan::protocol;
use crate::settings::LoadBalancerService;
use std::collections::BTreeMap;

/// The Service of type `LoadBalancer` of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePlan {
    /// Labels in addition to those of the operator.
    pub labels: BTreeMap<String, String>,
    /// Annotations in addition to those of the operator.
    pub annotations: BTreeMap<String, String>,
    /// Name, number and protocol of each port. Never empty.
    pub ports: Vec<(String, u16, &'static str)>,
}

/// The Service, if the configuration enables it, `spec.loadBalancerService` is not `{}`, and the VM has a port: the port of the
/// display, otherwise the forwarded ports.
pub(super) fn service(
    spec: &VirtualMachineSpec,
    spice_port: Option<u16>,
    forwards: &[Forward],
    setting: &LoadBalancerService,
) -> Option<ServicePlan> {
    let LoadBalancerService::On {
        labels,
        annotations,
    } = setting
    else {
        return None;
    };
    let own = spec.load_balancer_service.clone().unwrap_or_default();
    if spec.load_balancer_service.is_some() && own.labels.is_none() && own.annotations.is_none() {
        return None;
    }
    let forwarded = |forward: &Forward| {
        let protocol = protocol(forward.protocol);
        let port = u16::try_from(forward.port).ok()?;
        Some((
            format!("{}-{port}", protocol.to_lowercase()),
            port,
            protocol,
        ))
    };
    let ports: Vec<_> = match spice_port {
        Some(port) => vec![("spice".to_owned(), port, "TCP")],
        None => forwards.iter().filter_map(forwarded).collect(),
    };
    (!ports.is_empty()).then(|| ServicePlan {
        labels: merged(labels, own.labels.unwrap_or_default()),
        annotations: merged(annotations, own.annotations.unwrap_or_default()),
        ports,
    })
}

/// The defaults, replaced by values of the VM. A null removes a default. Names that the operator uses are left out.
fn merged(
    defaults: &BTreeMap<String, String>,
    own: BTreeMap<String, Option<String>>,
) -> BTreeMap<String, String> {
    let mut merged = defaults.clone();
    for (name, value) in own {
        match value {
            Some(value) => merged.insert(name, value),
            None => merged.remove(&name),
        };
    }
    let generated = [
        names::LABEL_NAME,
        names::LABEL_INSTANCE,
        names::LABEL_MANAGED_BY,
    ];
    merged.retain(|name, _| {
        !generated.contains(&name.as_str())
            && !names::ANNOTATION_PREFIXES
                .iter()
                .any(|prefix| name.starts_with(prefix))
    });
    merged
}
