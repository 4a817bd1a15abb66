//! (pure) The load balancer service.

use crate::api::vm::{Forward, VirtualMachineSpec, names};
use crate::controllers::vm::plan::protocol;
use crate::settings::LoadBalancerService;
use std::collections::BTreeMap;

/// The load balancer service of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePlan {
    /// Labels besides ours.
    pub labels: BTreeMap<String, String>,
    /// Annotations besides ours.
    pub annotations: BTreeMap<String, String>,
    /// Ports: name, number, protocol. Never empty.
    pub ports: Vec<(String, u16, &'static str)>,
}

/// The service, if the settings want one, the VM does not say no (`{}`), and there is a port to be reached: the
/// display's, else those that lead into the guest.
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
        labels: overlaid(labels, own.labels.unwrap_or_default()),
        annotations: overlaid(annotations, own.annotations.unwrap_or_default()),
        ports,
    })
}

/// The defaults with the VM's values over them, where null takes one away; without those that are the operator's.
fn overlaid(
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
