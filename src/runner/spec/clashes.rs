//! (pure) Values of which each could be used, but not together: QEMU would end with the second of them.

use super::super::failure::Invalid;
use super::{Backend, Network, Spice};
use crate::api::runner_config::DriveConfig;
use std::collections::BTreeMap;

/// Each drive that has a place in the boot order has it alone.
pub fn boot_order(drives: &[DriveConfig]) -> Result<(), Invalid> {
    let mut taken = BTreeMap::new();
    for (n, drive) in drives.iter().enumerate() {
        let Some(index) = drive.bootindex else { continue };
        let key = format!("vm.drives[{n}].bootindex");
        if let Some(other) = taken.insert(index, n) {
            return Err(Invalid::new(key, format!("{index} is that of vm.drives[{other}] already; give each its own")));
        }
        if i32::try_from(index).is_err() {
            return Err(Invalid::value(key, &index.to_string(), &format!("0 to {}", i32::MAX)));
        }
    }
    Ok(())
}

/// Each port of the pod leads to one place.
pub fn ports(networks: &[Network], spice: Option<&Spice>) -> Result<(), Invalid> {
    let mut taken = BTreeMap::new();
    if let Some(spice) = spice {
        taken.insert((false, spice.port), "vm.display.spice.port".to_owned());
    }
    for (n, network) in networks.iter().enumerate() {
        let Backend::User { forwards, .. } = &network.backend else { continue };
        for (i, forward) in forwards.iter().enumerate() {
            let key = format!("vm.network[{n}].forward[{i}].port");
            if let Some(other) = taken.insert((forward.udp, forward.port), key.clone()) {
                let problem = format!("{} is in use by {other} already; give each a port of its own", forward.port);
                return Err(Invalid::new(key, problem));
            }
        }
    }
    Ok(())
}
