//! (pure) The children of a cluster. All objects of a service have the same name and labels.

mod auth;
pub mod child;
pub mod host_key;
mod jump_host;
mod load_balancer;

use crate::api::SIPCluster;
use crate::controllers::sip::objects::child::ServiceObjects;
use crate::controllers::sip::plan::Placed;
use crate::k8s::error::Error;
use crate::settings::sip::SipSettings;

/// The objects of all services of the cluster, with these hosts. `has_secret` tells whether a Secret of that name exists.
///
/// # Errors
/// An object cannot be serialized.
pub fn services(
    cluster: &SIPCluster,
    members: &[Placed],
    settings: &SipSettings,
    has_secret: &dyn Fn(&str) -> bool,
) -> Result<Vec<ServiceObjects>, Error> {
    let mut services = load_balancer::load_balancers(cluster, members, settings)?;
    services.extend(jump_host::jump_hosts(
        cluster, members, settings, has_secret,
    )?);
    services.extend(auth::auth_services(cluster, has_secret)?);
    Ok(services)
}

#[cfg(test)]
mod tests;
