//! (pure) What a VM's pod may do beyond Pod Security `restricted`, each for a cause of its own.

use crate::api::vm::{Forward, Machine, names};
use crate::controllers::vm::plan::protocol;
use crate::settings::{self, DeviceAccess, Policy};

/// What a pod may do beyond Pod Security `restricted`: nothing, by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// The node's network and the capability to put a tap on one of its bridges; how the pod gets the device for it.
    pub tap: Option<Tun>,
    /// All of the node's devices, for `/dev/kvm` where no device plugin offers it. What comes with it, the runner gives up.
    pub privileged: bool,
    /// Root's user id, without capabilities, for block devices that belong to root.
    pub root: bool,
    /// All that the reference gives its runner, which is not ours to restrict: a privileged container of its image's user,
    /// root, with a writable root and the node's network. Nothing of the above is set beside it.
    pub as_reference: bool,
}

/// How a pod gets `/dev/net/tun`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tun {
    /// By that resource of a device plugin.
    Resource(String),
    /// It is the node's own, mounted.
    HostPath,
    /// It is among the node's devices, all of which a privileged pod has.
    Privileged,
}

impl Rights {
    /// What that machine needs with that image.
    pub(super) fn of(machine: &Machine, image: &str, settings: &settings::Reconciler) -> Self {
        if image.starts_with(settings::REFERENCE_IMAGES) {
            return Self {
                as_reference: true,
                ..Self::default()
            };
        }
        let has_tap = machine.networks.iter().any(|network| network.tap.is_some());
        let accelerator = &settings.accelerator;
        let privileged = accelerator.privileged && accelerator.policy != Policy::Tcg;
        let tun = || match (privileged, settings.tap.host_path) {
            (true, _) => Tun::Privileged,
            (_, true) => Tun::HostPath,
            _ => Tun::Resource(settings.tap.tun_resource.clone()),
        };
        let root = settings.device_access == DeviceAccess::Root;
        Self {
            tap: has_tap.then(tun),
            privileged,
            root,
            as_reference: false,
        }
    }

    /// Whether the pod is in the node's network.
    #[must_use]
    pub fn host_network(&self) -> bool {
        self.tap.is_some() || self.as_reference
    }

    /// The resource for taps that the pod asks for.
    pub(super) fn tun_resource(&self) -> Option<&str> {
        match &self.tap {
            Some(Tun::Resource(name)) => Some(name),
            _ => None,
        }
    }

    /// The port of `/metrics`: the VM's, or else the usual one; that not where the VM uses it for something else, nor in
    /// the node's network, where it would be open to all, and taken by another VM.
    pub(super) fn metrics_port(
        &self,
        wanted: Option<i64>,
        spice_port: Option<u16>,
        forwards: &[Forward],
    ) -> Option<u16> {
        if wanted.is_some() {
            return wanted
                .and_then(|port| u16::try_from(port).ok())
                .filter(|_| !self.as_reference);
        }
        let port = names::METRICS_PORT;
        let is_forwarded = |f: &Forward| f.port == i32::from(port) && protocol(f.protocol) == "TCP";
        let is_free = spice_port != Some(port) && !forwards.iter().any(is_forwarded);
        (is_free && !self.host_network()).then_some(port)
    }
}
